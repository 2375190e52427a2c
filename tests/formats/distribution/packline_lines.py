"""Documents as lines of numbers, `train.lines` and `val.lines`: a format of another distribution.

    train.lines    5 6 7 0
                   8 0

An id takes as many characters as it has digits; a document of no tokens is an empty line.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from packline.errors import CorruptStore, InputError
from packline.formats.document_view import DocumentView
from packline.formats.export_folder import ExportRecord, Target
from packline.formats.format import DatasetReader, DocumentFormat, Options
from packline.formats.types import DatasetFile, DocumentBlock, Edges, ExportPart, ExportPlan, ReadTask, Size
from packline.ragged import offsets_of
from packline.recipe import SPLITS
from packline.store.report import Findings

ENDING = ".lines"


class LinesOptions(Options, frozen=True):
    """Options of lines of numbers."""

    edges: Edges = "eod"
    """Boundary tokens of documents."""
    shard_tokens: Size = 1 << 20
    """Tokens per file, up to the end of a document."""


class Lines(DocumentFormat):
    """Documents as lines of numbers."""

    name = "lines"
    title = "lines of numbers: SPLIT-0.lines, one document per line"
    options = LinesOptions

    def plan(self, view: DocumentView, options: LinesOptions) -> ExportPlan:
        parts = []
        for split in view.splits:
            stream = view.stream(split)
            steps = range(options.shard_tokens, stream.tokens, options.shard_tokens)
            cuts = sorted({0, stream.documents, *map(stream.document_at, steps)})
            for number, (start, stop) in enumerate(pairwise(cuts)):
                name = f"{split}-{number:06d}{ENDING}"
                parts.append(ExportPart(name, split, number, start, stop))
        return ExportPlan(tuple(parts), 4 * view.tokens, lost=view.not_preserved(self.name))

    def write(
        self, view: DocumentView, part: ExportPart, target: Target, options: LinesOptions
    ) -> dict[str, Any]:
        with target.create(part.name) as file:
            for block in view.stream(part.split).blocks(part.start, part.stop, np.int64):
                for tokens in np.split(block.tokens, block.offsets[1:-1]):
                    file.write(" ".join(map(str, tokens.tolist())).encode() + b"\n")
                target.progress(len(block.tokens))
        return {}

    def trainer_lines(self, out: str, record: ExportRecord, options: LinesOptions) -> tuple[str, ...]:
        return (f"documents = [line.split() for line in open({out!r} + '/train-000000.lines')]",)

    def recognises(self, path: Path) -> bool:
        return path.suffix == ENDING or any(path.glob(f"*{ENDING}"))

    def open(self, path: Path, options: LinesOptions, findings: Findings) -> DatasetReader:
        found = sorted(path.glob(f"*{ENDING}")) if path.is_dir() else [path]
        if not found:
            raise InputError(f"{path}: expected files of lines, *{ENDING}, found none")
        return LinesReader([DatasetFile.of(one, one.parent) for one in found], options.edges, findings)


class LinesReader(DatasetReader):
    """A unit per file, and a block per document."""

    def __init__(self, files: list[DatasetFile], edges: Edges, findings: Findings) -> None:
        self.files, self.edges, self.dtype, self.facts, self.units = files, edges, np.dtype("<i8"), {}, []
        for number, file in enumerate(files):
            split = file.name.partition("-")[0]
            if findings.compare(file.name, "name of a split", True, split in SPLITS):
                self.units.append(ReadTask(split, number, 0, file.bytes, ((number, 0, file.bytes),)))

    def blocks(self, unit: ReadTask) -> Iterator[DocumentBlock]:
        path, place = self.files[unit.file].path, 0
        with open(path, "rb") as file:
            for line in file:
                try:
                    tokens = np.array([int(word) for word in line.split()], np.int64)
                except (ValueError, OverflowError) as error:
                    raise CorruptStore(f"{path}: line at byte {place:,}: {error}") from error
                if not line.endswith(b"\n"):
                    raise CorruptStore(f"{path}: expected the end of a line, found the end of the file")
                yield DocumentBlock(tokens, offsets_of([len(tokens)]), positions=np.array([place]))
                place += len(line)
