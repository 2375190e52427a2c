"""Forager (data-forager): token files, and an index with the file and offset of each sample.

    tokenized-samples/STEM-tokenized-samples.bin    tokens back to back, no header: uint16, or uint32 for a
                                                    vocabulary of more than 65,535
    index/file_location.txt                         one path per line, relative to the data set's folder
    index/sample_locations.bin                      uint64 [samples, 3]: line of its file, first byte, bytes

All little-endian. STEM is `train-000000` and so on. If there are several splits,
`train/` and `val/` are a data set each, else the export's folder is.

With `sample_size` unset, a sample is a document including its end, and a file is a shard of the store if the
tokens' bytes are the same, and is then shared. With `sample_size=N`, samples are windows of N tokens over all
documents of a split, one after another; the remainder at the very end is dropped, as in Forager, and counted
in the ledger. No window continues in another file, so files are cut between windows and nothing is shared.
`files=single` writes one token file per split.

When read, files must hold their samples one after another, as Forager writes them; paths may be absolute, as
written by older versions, even if the data set was moved. Windows are read with `sample_size` set, and
documents are found by their ends; the last may have none. No dtype is stored anywhere: it is that of the
vocabulary. Based on `index_stores/fs_based.py` and `datasets/tokens.py` of data-forager; tested with a reader
that was written from these rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from packline.errors import CorruptStore, InputError, RecipeError
from packline.formats.document_files import (
    BLOCK_DOCUMENTS,
    SHARD_TOKENS,
    TokensAndEnds,
    declared_dtype,
    folder_of,
    open_documents,
    plan_files,
    write_files,
)
from packline.formats.document_view import DocumentView
from packline.formats.export_folder import ExportRecord, Target
from packline.formats.files import FileList
from packline.formats.format import DatasetReader, DocumentFormat, Options
from packline.formats.types import (
    Edges,
    ExportPart,
    ExportPlan,
    Facts,
    Files,
    NotPreserved,
    Size,
    WrittenPart,
)
from packline.store.report import Findings

SAMPLES = "tokenized-samples"
LOCATIONS = "index/sample_locations.bin"
FILES = "index/file_location.txt"


class ForagerOptions(Options, frozen=True):
    files: Files = "many"
    """many: one file per shard of the store, sharing its bytes; single: one file per split."""
    dtype: Literal["auto", "uint16", "uint32"] = "auto"
    """Dtype of the tokens."""
    edges: Edges = "eod"
    """Boundary tokens of documents."""
    sample_size: Size | None = None
    """Tokens of each sample, across documents; none: a sample is a document."""
    shard_tokens: Size = SHARD_TOKENS
    """Approximate tokens per file for `many`, if it is not a shard of the store."""
    vocab_size: int | None = None
    """Determines the dtype when reading: 65,536 and more are uint32."""
    marker: int | None = None
    """The id at the end of documents when windows are read; taken from the tokenizer unless given."""


class Forager(DocumentFormat):
    name = "forager"
    title = "Forager: tokenized-samples/*.bin with index/sample_locations.bin"
    options = ForagerOptions
    limits: ClassVar = {"uint16": 65_535, "uint32": 2**32}

    def recognises(self, path: Path) -> bool:
        return path.is_dir() and bool(_bases(path))

    def trainer_lines(self, out: str, record: ExportRecord, options: ForagerOptions) -> tuple[str, ...]:
        dtype = self.dtype_of(record.tokenizer.vocab_size, options)
        return (
            "import numpy as np",
            "from data_forager.datasets.tokens import TokensDataset",
            "",
            "dataset = TokensDataset.create_from_index_on_filesystem(",
            f"    {record.train_folder(out)!r}, token_dtype=np.{dtype.name}",
            ")",
        )

    def plan(self, view: DocumentView, options: ForagerOptions) -> ExportPlan:
        if options.sample_size is None:
            return plan_files(self, view, options, bytes_each=24)
        windows, tail = _plan_windows(view, options)
        tokens = view.tokens - sum(one.count for one in tail)
        if options.edges == "none":
            why = "windows go over them, and no token stands there"
            tail = (*tail, NotPreserved("document boundaries", view.documents, "documents", why))
        itemsize = self.dtype_of(view.vocab_size, options).itemsize
        size = tokens * itemsize + 24 * (tokens // options.sample_size)
        return ExportPlan(windows, size, lost=(*view.not_preserved(self.name), *tail))

    def write(self, view: DocumentView, part: ExportPart, target: Target, options: ForagerOptions) -> Facts:
        dtype = self.dtype_of(view.vocab_size, options)
        stream = view.stream(part.split)
        name = f"{folder_of(view, part.split)}{_name(part)}"
        if options.sample_size is None:
            write_files(stream, part, dtype, target, name)
        else:
            with target.create(name) as file:
                stream.write(file, part.start, part.stop, dtype, target)
        return {}

    def finish(
        self, view: DocumentView, written: list[WrittenPart], target: Target, options: ForagerOptions
    ) -> None:
        size = self.dtype_of(view.vocab_size, options).itemsize
        for split in view.splits:
            parts = sorted((one.part for one in written if one.part.split == split), key=lambda p: p.number)
            folder = folder_of(view, split)
            with target.create(f"{folder}{FILES}") as names:
                names.write("".join(f"{_name(part)}\n" for part in parts).encode())
            with target.create(f"{folder}{LOCATIONS}") as locations:
                for number, part in enumerate(parts):
                    begin = 0
                    for tokens in _lengths(view, part, options):
                        ends = begin + np.cumsum(tokens)
                        triples = [np.full(len(tokens), number), (ends - tokens) * size, tokens * size]
                        locations.write(np.stack(triples, axis=1).astype("<u8"))
                        begin = int(ends[-1])

    def open(self, path: Path, options: ForagerOptions, findings: Findings) -> DatasetReader:
        bases = _bases(path)
        if not bases:
            raise InputError(
                f"{path}: expected Forager's {LOCATIONS} and {FILES}, found none",
                hint="name the folder that has the folder index in it",
            )
        dtype = declared_dtype(self, path, options)
        if dtype is None and options.vocab_size is not None:
            dtype = self.dtype_of(options.vocab_size, options)
        listed, opened = FileList(path), []
        for base in bases:
            if dtype is not None:
                opened += _open_base(base, dtype.itemsize, listed, findings)
        for one in opened if options.sample_size is not None else ():
            one.ends = None  # windows: documents are found by their ends
        needed = "a dtype, which Forager does not record"
        return open_documents(self, path, listed, opened, options, findings, dtypes={}, needed=needed)


class _SampleEnds:
    """Ends of the samples of a file, in tokens: a range of the mapped index."""

    def __init__(self, triples: np.ndarray, size: int) -> None:
        self._triples, self._size = triples, size

    def __len__(self) -> int:
        return len(self._triples)

    def __getitem__(self, key: Any, /) -> Any:
        triples = self._triples[key].astype(np.int64)
        return (triples[..., 1] + triples[..., 2]) // self._size


def _plan_windows(
    view: DocumentView, options: ForagerOptions
) -> tuple[tuple[ExportPart, ...], tuple[NotPreserved, ...]]:
    """One part per file, `start` and `stop` in tokens; and the remainder of each split."""
    size = options.sample_size or 0
    parts, lost = [], []
    for split in view.splits:
        tokens = view.stream(split).tokens
        if tail := tokens % size:
            lost.append(
                NotPreserved("tail", tail, "tokens", f"less than a sample of {size:,} at the end of {split}")
            )
        step = max(options.shard_tokens // size, 1) * size if options.files == "many" else max(tokens, size)
        for number, start in enumerate(range(0, tokens - tail, step)):
            stop = min(start + step, tokens - tail)
            parts.append(ExportPart(f"{split}-{number:06d}", split, number, start, stop))
    if not parts:
        raise RecipeError(
            f"forager: expected at least sample_size tokens, {size:,}, found {view.tokens:,}",
            hint="set sample_size smaller",
        )
    return tuple(parts), tuple(lost)


def _lengths(view: DocumentView, part: ExportPart, options: ForagerOptions) -> Iterator[np.ndarray]:
    """Tokens per sample of a file, several at a time."""
    if (size := options.sample_size) is not None:
        count = (part.stop - part.start) // size
        for first in range(0, count, BLOCK_DOCUMENTS):
            yield np.full(min(BLOCK_DOCUMENTS, count - first), size, np.int64)
        return
    for first in range(part.start, part.stop, BLOCK_DOCUMENTS):
        yield view.stream(part.split).lengths(first, min(first + BLOCK_DOCUMENTS, part.stop))


def _name(part: ExportPart) -> str:
    return f"{SAMPLES}/{part.split}-{part.number:06d}-{SAMPLES}.bin"


def _bases(path: Path) -> list[Path]:
    """The given folder, or the folders in it, that are Forager data sets."""
    inner = sorted(one for one in path.iterdir() if one.is_dir()) if path.is_dir() else []
    return [one for one in (path, *inner) if (one / LOCATIONS).is_file() and (one / FILES).is_file()]


def _open_base(base: Path, itemsize: int, listed: FileList, findings: Findings) -> list[TokensAndEnds]:
    """The files of one data set, in the order of its index; none if the index is damaged."""
    companions = [listed.add(base / LOCATIONS), listed.add(base / FILES)]
    index, names = (listed.files[number] for number in companions)
    if not findings.compare(
        index.name, "size in bytes, a multiple of 24", index.bytes // 24 * 24, index.bytes
    ):
        return []
    whole = np.asarray(np.memmap(base / LOCATIONS, "<u8", "r")) if index.bytes else np.empty(0, "<u8")
    triples = whole.reshape(-1, 3)
    try:
        lines = (base / FILES).read_text("utf-8").removesuffix("\n").split("\n") if index.bytes else []
    except (OSError, UnicodeDecodeError) as error:
        raise CorruptStore(f"cannot read {base / FILES}: {error}") from error
    if not _check_samples(index.name, triples, len(lines), itemsize, findings):
        return []
    cuts = np.searchsorted(triples[:, 0], np.arange(len(lines) + 1))
    opened: list[TokensAndEnds] = []
    for number, line in enumerate(lines):
        if (place := _place_of(base, line)) is None:
            findings.add(names.name, f"file of line {number + 1}", "a file", line)
            continue
        added = listed.add(place)
        one = TokensAndEnds(listed.files[added], added, index.name)
        one.set_ends(_SampleEnds(triples[cuts[number] : cuts[number + 1]], itemsize), "samples", ())
        one.companions = [] if opened else companions
        opened.append(one)
    return opened


def _check_samples(name: str, triples: np.ndarray, files: int, size: int, findings: Findings) -> bool:
    """Note the first sample that does not follow the one before it; return True if all do."""
    last = np.zeros((1, 3), np.int64)
    for start in range(0, len(triples), BLOCK_DOCUMENTS):
        block = np.concatenate([last, triples[start : start + BLOCK_DOCUMENTS].astype(np.int64)])
        before, (number, begin, length) = block[:-1], block[1:].T
        begins = np.where(number == before[:, 0], before[:, 1] + before[:, 2], 0)
        in_order = (before[:, 0] <= number) & (number < files)
        if not (good := in_order & (begin == begins) & (length % size == 0)).all():
            at = int(np.argmin(good))
            findings.add(
                name,
                f"sample {start + at}",
                f"in file {before[at, 0]} to {files - 1}, byte {begins[at]:,}, a multiple of {size} bytes",
                f"in file {number[at]}, byte {begin[at]:,}, {length[at]:,} bytes",
            )
            return False
        last = block[-1:]
    return True


def _place_of(base: Path, line: str) -> Path | None:
    """File of a line of `file_location.txt`; files with absolute paths may have moved with their data set."""
    here = Path(line)
    if not here.is_absolute():
        return place if (place := base / here).is_file() else None
    moved = base / SAMPLES / here.name
    return next((one for one in (moved, here) if one.is_file()), None)


FORMAT = Forager()
