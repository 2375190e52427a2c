"""Shards cut at a number of tokens, regardless of documents: common parts of llm.c and build-nanogpt.

    documents of a split    | a a a | b b b b b | c c | d ...
    shards of 4 tokens      [ a a a   b ][ b b b b ][ c c   d ...

A trainer reads the files of a split in the order of their names. The last shard of a split is shorter, or
left out on request.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Literal

import numpy as np

from packline.errors import RecipeError
from packline.formats.document_view import DocumentView
from packline.formats.export_record import ExportRecord, Target
from packline.formats.format import DocumentFormat, Options
from packline.formats.layouts.files import SHARD_ORDER, find_files
from packline.formats.layouts.token_files import ScannedReader, TokenFile
from packline.formats.types import DatasetFile, ExportPart, ExportPlan, Facts, NotPreserved
from packline.store.report import Findings

MOST_TOKENS = 2**31 - 1
"""Most tokens per shard, since its header counts them in an int32."""
USUAL_SHARD = 100_000_000
"""Most tokens per shard, unless a number is given."""
USUAL_BATCH = 1 << 19
"""Tokens per step, over all ranks, of the GPT-2 runs of llm.c and build-nanogpt."""

StreamEdges = Literal["bos", "eod", "both"]
"""Edges of documents that are separated by a token only."""


class ShardOptions(Options, frozen=True):
    prefix: str = ""
    """Prefix of file names, before `_train_000001`."""
    shard_tokens: int | None = None
    """Tokens per shard; none: shards of equal size, of at most 100 million."""
    numbering: Literal["shared", "own"] = "shared"
    """`shared`: val first, train continues the numbers; `own`: each split from 0."""
    last_shard: Literal["keep", "drop"] = "keep"
    """The last shard of train, if it is not full; dropped tokens are reported."""
    edges: StreamEdges = "bos"
    """Boundary tokens of documents."""
    marker: int | None = None
    """Reading: the id that separates documents; taken from the tokenizer unless given."""


class ShardFormat(DocumentFormat):
    """A format of such shards: each has a header, and then its tokens."""

    ending: ClassVar[str]
    what: ClassVar[str]
    """Description of its files, for errors."""
    least_train: ClassVar[int] = 1
    """Shards of train that its trainers need; without a given size, made if each has more than a batch."""

    @abstractmethod
    def header(self, tokens: int, dtype: np.dtype) -> bytes:
        """Bytes of a file before its tokens."""

    @abstractmethod
    def open_file(self, files: list[DatasetFile], number: int, findings: Findings) -> TokenFile | None:
        """Read the header of a file; None if it cannot be read."""

    def plan(self, view: DocumentView, options: ShardOptions) -> ExportPlan:
        """One part per shard; `start` and `stop` are tokens of its split's stream."""
        dtype, given = self.dtype_of(view.vocab_size, options), options.shard_tokens
        if given is not None and not 1 <= given <= MOST_TOKENS:
            raise RecipeError(
                f"{self.name}: expected shard_tokens from 1 to {MOST_TOKENS:,}, found {given:,}"
            )
        parts: list[ExportPart] = []
        lost = list(view.not_preserved(self.name))
        for split in sorted(view.splits, key=SHARD_ORDER.index):
            tokens, train = view.stream(split).tokens, split == "train"
            size = given or _equal_size(tokens, self.least_train if train else 1)
            tail = tokens % size if given and train and options.last_shard == "drop" else 0
            if tail == tokens > 0:
                raise RecipeError(
                    f"{self.name}: train has {tokens:,} tokens: expected at least a shard of {size:,}, "
                    "because the last one is dropped",
                    hint="set last_shard=keep, or shard_tokens smaller",
                )
            if tail:
                lost.append(NotPreserved("tail", tail, "tokens", "the last shard of train is not full"))
            first = len(parts) if options.numbering == "shared" else 0
            for number, start in enumerate(range(0, tokens - tail, size), first):
                name = f"{shard_prefix(options.prefix, split)}{number:06d}"
                parts.append(ExportPart(name, split, number, start, min(start + size, tokens - tail)))
        sizes = [part.stop - part.start for part in parts]
        whole = sum(len(self.header(size, dtype)) + size * dtype.itemsize for size in sizes)
        return ExportPlan(tuple(parts), whole, lost=tuple(lost), warnings=_short_shards(parts))

    def write(self, view: DocumentView, part: ExportPart, target: Target, options: ShardOptions) -> Facts:
        dtype = self.dtype_of(view.vocab_size, options)
        with target.create(f"{part.name}{self.ending}") as file:
            file.write(self.header(part.stop - part.start, dtype))
            view.stream(part.split).write(file, part.start, part.stop, dtype, target)
        return {}

    def open(self, path: Path, options: ShardOptions, findings: Findings) -> ScannedReader:
        listed, paths = find_files(path, self.ending, self.what)
        numbers = [listed.add(one) for one in paths]
        opened = [self.open_file(listed.files, number, findings) for number in numbers]
        sources = [source for source in opened if source is not None]
        marker, edges = options.marker, options.edges
        return ScannedReader(listed.files, sources, marker=marker, edges=edges, findings=findings)


def _equal_size(tokens: int, least: int) -> int:
    """Tokens per shard for as few shards of equal size as possible, so that no last one is short.

    >>> _equal_size(250_000_000, 1), _equal_size(2_000_000, 2), _equal_size(1000, 2)
    (83333334, 1000000, 1000)
    """
    count = -(-tokens // USUAL_SHARD)
    if tokens > least * (USUAL_BATCH + 1):
        count = max(count, least)
    return -(-tokens // max(count, 1)) or 1


def _short_shards(parts: list[ExportPart]) -> tuple[str, ...]:
    """A warning if the last shard of train may be smaller than a batch."""
    train = [part for part in parts if part.split == "train"]
    tokens = train[-1].stop - train[-1].start if len(train) > 1 else USUAL_BATCH + 1
    if tokens > USUAL_BATCH:
        return ()
    return (
        f"the last shard of train has {tokens:,} tokens: llm.c and build-nanogpt stop at a shard with fewer "
        "than B * T * ranks + 1; --set last_shard=drop leaves it out, and without shard_tokens all shards "
        "have the same size",
    )


def shard_prefix(prefix: str, split: str) -> str:
    """Name of the shards of a split, before the number."""
    return f"{prefix}_{split}_" if prefix else f"{split}_"


def shard_pattern(out: str, record: ExportRecord, options: ShardOptions, split: str, ending: str) -> str:
    """Pattern of the shards of a split in an export at `out`; empty if there are none."""
    name = shard_prefix(options.prefix, split)
    there = any(entry.name.startswith(name) for entry in record.files)
    return f"{out}/{name}*{ending}" if there else ""


def missing_shards(ending: str, trainer: str) -> Mapping[str, str]:
    """Files that are missing for a trainer that opens shards of train and of val, by split."""
    does = "open one and stop" if " and " in trainer else "opens one and stops"
    return MappingProxyType(
        {split: f"no *_{split}_*{ending}: {trainer} {does} without" for split in ("val", "train")}
    )
