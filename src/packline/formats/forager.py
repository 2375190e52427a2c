"""Forager (data-forager): token files, and an index with the file and offset of each sample.

    tokenized-samples/STEM-tokenized-samples.bin    tokens back to back, no header: uint16, or uint32 for a
                                                    vocabulary of more than 65,535
    index/file_location.txt                         one path per line, relative to the data set's folder

All little-endian, 24 bytes per sample. STEM is `train-000000` and so on. If there are several
splits, `train/` and `val/` are a data set each, else the export's folder is.

With `sample_size` unset, a sample is a document including its end, and a file is a shard of the store if the
tokens' bytes are the same, and is then shared. With `sample_size=N`, samples are windows of N tokens over all
documents of a split, one after another; the remainder at the very end is dropped, as in Forager, and counted
in the ledger. No window continues in another file, so files are cut between windows and nothing is shared.
`files=single` writes one token file per split.

When read, files must hold their samples one after another, as Forager writes them; paths may be absolute, as
written by older versions, even if the data set was moved. Windows are read with `sample_size` set, and
documents are found by their ends; the last may have none. No dtype is stored anywhere: it is that of the
vocabulary. There is no loss mask and no field for provenance. Based on `index_stores/fs_based.py` and
`datasets/tokens.py` of data-forager; tested with a reader that was written from these rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from packline.errors import CorruptStore, InputError, RecipeError
from packline.formats.format import DatasetReader, DocumentFormat, Options
from packline.formats.layouts.document_files import (
    BLOCK_DOCUMENTS,
    SHARD_TOKENS,
    FileList,
    declared_dtype,
    exported_split,
    folder_of,
    open_source,
    plan_files,
    shared_bytes,
    split_of_folder,
    write_files,
)
from packline.formats.layouts.header_shards import write_tokens
from packline.formats.layouts.token_files import IndexedReader, ScannedReader, TokenFile
from packline.formats.types import (
    Edges,
    ExportPart,
    ExportPlan,
    Files,
    NotPreserved,
    Size,
    WrittenPart,
    fitting_dtype,
)

if TYPE_CHECKING:
    from packline.formats.document_view import DocumentView
    from packline.formats.export_record import ExportRecord, Target
    from packline.store.report import Findings

LIMITS = {"uint16": 65_535, "uint32": 2**32}
SAMPLES = "tokenized-samples"
LOCATIONS = "index/sample_locations.bin"
FILES = "index/file_location.txt"


class ForagerOptions(Options, frozen=True):
    """Options of Forager's files."""

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
    """Forager's tokenized samples."""

    name = "forager"
    title = "Forager: tokenized-samples/*.bin with index/sample_locations.bin"
    options = ForagerOptions

    def recognises(self, path: Path) -> bool:
        return path.is_dir() and bool(_bases(path))

    def trainer_lines(self, out: str, record: ExportRecord, options: ForagerOptions) -> tuple[str, ...]:
        dtype = fitting_dtype(self.name, record.tokenizer.vocab_size, LIMITS, options.dtype)
        return (
            "import numpy as np",
            "from data_forager.datasets.tokens import TokensDataset",
            "",
            "dataset = TokensDataset.create_from_index_on_filesystem(",
            f"    {record.train_folder(out)!r}, token_dtype=np.{dtype.name}",
            ")",
        )

    def plan(self, view: DocumentView, options: ForagerOptions) -> ExportPlan:
        dtype = fitting_dtype(self.name, view.vocab_size, LIMITS, options.dtype)
        lost = view.not_preserved(self.name)
        if options.sample_size is None:
            parts = plan_files(view, dtype, options.shard_tokens, options.files)
            shared = shared_bytes(view, parts, with_loss=False)
            size = view.tokens * dtype.itemsize + 24 * view.documents
            return ExportPlan(tuple(parts), size - shared, shared, lost)
        windows, tail = _plan_windows(view, options)
        tokens = view.tokens - sum(one.count for one in tail)
        if options.edges == "none":
            why = "windows go over them, and no token stands there"
            tail = (*tail, NotPreserved("document boundaries", view.documents, "documents", why))
        size = tokens * dtype.itemsize + 24 * (tokens // options.sample_size)
        return ExportPlan(windows, size, lost=(*lost, *tail))

    def write(
        self, view: DocumentView, part: ExportPart, target: Target, options: ForagerOptions
    ) -> dict[str, Any]:
        dtype = fitting_dtype(self.name, view.vocab_size, LIMITS, options.dtype)
        stream = view.stream(part.split)
        name = f"{folder_of(view, part.split)}{_name(part)}"
        if options.sample_size is None:
            tokens = write_files(stream, part, dtype, target, name)
        else:
            tokens = part.stop - part.start
            with target.create(name) as file:
                write_tokens(file, stream, part.start, part.stop, dtype, target)
        return {"tokens": tokens}

    def finish(
        self, view: DocumentView, written: list[WrittenPart], target: Target, options: ForagerOptions
    ) -> None:
        size = fitting_dtype(self.name, view.vocab_size, LIMITS, options.dtype).itemsize
        for split in view.splits:
            parts = sorted((one.part for one in written if one.part.split == split), key=lambda p: p.number)
            folder = folder_of(view, split)
            with target.create(f"{folder}{FILES}") as names:
                names.write("".join(f"{_name(part)}\n" for part in parts).encode())
            with target.create(f"{folder}{LOCATIONS}") as locations:
                for number, part in enumerate(parts):
                    for lengths in _lengths(view, part, options):
                        locations.write(self._triples(number, lengths, size))

    def _triples(self, number: int, lengths: tuple[int, np.ndarray], size: int) -> np.ndarray:
        """Index entries of samples with these lengths; the first begins at a given token of a file."""
        begin, tokens = lengths
        triples = np.empty((len(tokens), 3), "<u8")
        ends = begin + np.cumsum(tokens)
        triples[:, 0] = number
        triples[:, 1] = (ends - tokens) * size
        triples[:, 2] = tokens * size
        return triples

    def open(self, path: Path, options: ForagerOptions, findings: Findings) -> DatasetReader:
        bases = _bases(path)
        if not bases:
            raise InputError(
                f"{path}: expected Forager's {LOCATIONS} and {FILES}, found none",
                hint="name the folder that has the folder index in it",
            )
        listed = FileList(path)
        dtype = declared_dtype(path, self.name, LIMITS, options.dtype)
        if dtype is None and options.vocab_size is not None:
            dtype = fitting_dtype(self.name, options.vocab_size, LIMITS)
        if dtype is None:
            raise InputError(
                f"{path}: expected the width of tokens, which Forager does not record",
                hint="--set dtype=uint16 or dtype=uint32",
            )
        opened = [one for base in bases for one in _open_base(path, base, dtype, listed, findings)]
        if options.sample_size is not None:
            return ScannedReader(
                listed.files,
                [source for source, _ in opened],
                marker=options.marker,
                edges=options.edges,
                findings=findings,
            )
        return IndexedReader(listed.files, opened, edges=options.edges, findings=findings)


class _SampleEnds:
    """Ends of the samples of a file, in tokens: a range of the mapped index."""

    def __init__(self, triples: np.ndarray, size: int) -> None:
        self._triples, self._size = triples, size

    def __len__(self) -> int:
        return len(self._triples)

    def __getitem__(self, key: Any, /) -> Any:
        triples = self._triples[key].astype(np.int64)
        return (triples[..., 1] + triples[..., 2]) // self._size

    @property
    def last(self) -> int:
        """Number of tokens in all samples."""
        return int(self[len(self) - 1]) if len(self) else 0


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


def _lengths(
    view: DocumentView, part: ExportPart, options: ForagerOptions
) -> Iterator[tuple[int, np.ndarray]]:
    """Tokens per sample of a file, several at a time, and the token of the file at which the first begins."""
    stream, begin = view.stream(part.split), 0
    if options.sample_size is not None:
        count = (part.stop - part.start) // options.sample_size
        for first in range(0, count, BLOCK_DOCUMENTS):
            some = min(BLOCK_DOCUMENTS, count - first)
            yield first * options.sample_size, np.full(some, options.sample_size, np.int64)
        return
    for first in range(part.start, part.stop, BLOCK_DOCUMENTS):
        lengths = stream.lengths(first, min(first + BLOCK_DOCUMENTS, part.stop))
        yield begin, lengths
        begin += int(lengths.sum())


def _name(part: ExportPart) -> str:
    return f"{SAMPLES}/{part.split}-{part.number:06d}-{SAMPLES}.bin"


def _bases(path: Path) -> list[Path]:
    """The given folder, or the folders in it, that are Forager data sets."""
    inner = sorted(one for one in path.iterdir() if one.is_dir()) if path.is_dir() else []
    return [one for one in (path, *inner) if (one / LOCATIONS).is_file() and (one / FILES).is_file()]


def _open_base(
    path: Path, base: Path, dtype: np.dtype, listed: FileList, findings: Findings
) -> list[tuple[TokenFile, _SampleEnds]]:
    """The consistent files of one data set, in the order of its index."""
    companions = [listed.add(base / LOCATIONS), listed.add(base / FILES)]
    name, size = listed.files[companions[0]].name, listed.files[companions[0]].bytes
    if not findings.compare(name, "size in bytes, a multiple of 24", size - size % 24, size):
        return []
    whole = np.asarray(np.memmap(base / LOCATIONS, "<u8", "r")) if size else np.empty(0, "<u8")
    triples = whole.reshape(-1, 3)
    try:
        lines = (base / FILES).read_text("utf-8").removesuffix("\n").split("\n") if size else []
    except (OSError, UnicodeDecodeError) as error:
        raise CorruptStore(f"cannot read {base / FILES}: {error}") from error
    cuts = _file_cuts(name, triples, len(lines), findings)
    if cuts is None:
        return []
    opened: list[tuple[TokenFile, _SampleEnds]] = []
    for number, line in enumerate(lines):
        mine = triples[cuts[number] : cuts[number + 1]]
        if (place := _place_of(base, line)) is None:
            findings.add(listed.files[companions[1]].name, f"file of line {number + 1}", "a file", line)
            continue
        file = listed.add(place)
        if not _back_to_back(name, int(cuts[number]), mine, dtype.itemsize, findings):
            continue
        source = open_source(
            listed,
            file,
            dtype,
            findings,
            split=split_of_folder(f"{base.relative_to(path).as_posix()}/x", exported_split(path)),
            declared={"the last of its samples": (ends := _SampleEnds(mine, dtype.itemsize)).last},
            companions=() if opened else tuple(companions),
        )
        if source is None:
            continue
        opened.append((source, ends))
    return opened


def _file_cuts(name: str, triples: np.ndarray, files: int, findings: Findings) -> np.ndarray | None:
    """Positions in the index where each file's samples begin, int64 `[files + 1]`; None if mixed."""
    numbers = triples[:, 0]
    for start in range(0, len(triples), BLOCK_DOCUMENTS):
        block = numbers[max(start - 1, 0) : start + BLOCK_DOCUMENTS].astype(np.int64)
        if len(wrong := np.flatnonzero(block[1:] < block[:-1])):
            at = int(wrong[0]) + 1
            findings.add(
                name,
                f"file of sample {max(start - 1, 0) + at}",
                f"at least {block[at - 1]}, since samples are in the order of files",
                int(block[at]),
            )
            return None
    if len(triples) and int(numbers[-1]) >= files:
        findings.add(name, f"file of sample {len(triples) - 1}", f"below {files}", int(numbers[-1]))
        return None
    return np.searchsorted(numbers, np.arange(files + 1))


def _back_to_back(name: str, first: int, triples: np.ndarray, size: int, findings: Findings) -> bool:
    """Note the first sample that does not directly follow the last one; return True if all samples do."""
    last = 0
    for start in range(0, len(triples), BLOCK_DOCUMENTS):
        block = triples[start : start + BLOCK_DOCUMENTS, 1:].astype(np.int64)
        ends = block[:, 0] + block[:, 1]
        before = np.concatenate([[last], ends[:-1]])
        if len(wrong := np.flatnonzero((block[:, 0] != before) | (block[:, 1] % size != 0))):
            at = int(wrong[0])
            behind, odd = int(before[at]), bool(block[at, 1] % size)
            what = f"sample {first + start + at}"
            expected = f"a multiple of {size} bytes" if odd else f"byte {behind:,}, behind the last"
            found = f"{block[at, 1]:,} bytes" if odd else f"byte {block[at, 0]:,}"
            findings.add(name, what, expected, found)
            return False
        last = int(ends[-1])
    return True


def _place_of(base: Path, line: str) -> Path | None:
    """File of a line of `file_location.txt`; files with absolute paths may have moved with their data set."""
    here = Path(line)
    if not here.is_absolute():
        return place if (place := base / here).is_file() else None
    moved = base / SAMPLES / here.name
    return next((one for one in (moved, here) if one.is_file()), None)


FORMAT = Forager()
