"""OLMo and dolma: `part-G-NNNNN.npy`, a raw file without NumPy's header, with its documents in a `.csv.gz`.

    part-0-00000.npy         tokens back to back, no header at all: uint16, or uint32 for more than 65,536 ids
    part-0-00000.csv.gz      one line per document: start,end,id,src,loc; in tokens, end exclusive;
                             no header line; lines end with CR LF, as Python's csv writes them
    masks/part-0-00000.npy   bool [T] as bytes, 1 where a token is trained on; only where there is a mask

All little-endian. G is the number of dolma's group of files, zero-padded as necessary; here there is only one
group. Each document ends with its end-of-document token. `src` is the file a document came from and `loc` its
position there. The trainer takes two lists of paths, tokens and masks, so masks are in a separate folder. A
single split is in the folder itself, several are in `train/`, `val/` and `masks/train/`, `masks/val/`. The
trainer splits a line at commas and uses two numbers, so quotes and commas in an id do no harm; a line break
would, so it is replaced by a space.

Reading: the dtype is the exported one, else follows from the last end and the file size (uint16, uint32 or
uint64; uint8 has to be given explicitly); lines may be `start,end` alone, as OLMo-core writes them. Without
any `.csv.gz` documents are found by their ends, and the dtype is that of the vocabulary. Source and loc are
not imported into a store, whose provenance names the `.npy`; ids are. Based on `tokenizer/memmap_writer.py`
of dolma and `data/utils.py` of OLMo-core; tests use a reader written from these rules.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from packline.errors import CorruptStore, RecipeError
from packline.formats.document_files import (
    SHARD_TOKENS,
    TokensAndEnds,
    ends_of,
    folder_of,
    open_documents,
    plan_files,
    write_files,
)
from packline.formats.document_view import DocumentView
from packline.formats.export_folder import ExportRecord, Target
from packline.formats.files import FileList, find_files
from packline.formats.format import DatasetReader, DocumentFormat, Options
from packline.formats.types import Edges, ExportPart, ExportPlan, Facts, Files, Size, check_name
from packline.store.report import Findings

DTYPES: dict[int, np.dtype] = {size: np.dtype(f"<u{size}") for size in (2, 4, 8)}
"""Dtypes that lines and sizes together can determine; without uint8, since half a uint16 file would look like
it."""
MOST_FILES = 100_000
MASKS = "masks"
NUMPY_MAGIC = b"\x93NUMPY"
COMPRESSION = 1
"""zlib level: higher levels gain little for lines of numbers."""
LINE_BYTES = 24
"""Approximate size of a compressed line, in bytes."""


class OlmoOptions(Options, frozen=True):
    files: Files = "many"
    """many: one file per shard of the store, sharing its bytes; single: one file per split."""
    dtype: Literal["auto", "uint8", "uint16", "uint32", "uint64"] = "auto"
    """Dtype of the tokens; uint8 and uint64 are only read."""
    edges: Edges = "eod"
    """Boundary tokens of documents."""
    prefix: str = "part-0"
    """Prefix of file names, before `-00000.npy`."""
    shard_tokens: Size = SHARD_TOKENS
    """Approximate tokens per file for `many`, if it is not a shard of the store."""
    vocab_size: int | None = None
    """Determines the dtype of files that do not declare it."""
    marker: int | None = None
    """Reading: the id after each document, for files without `.csv.gz`; taken from the tokenizer unless
    given.
    """


class Olmo(DocumentFormat):
    name = "olmo"
    title = "OLMo, dolma: part-0-NNNNN.npy without a header, with .csv.gz and masks"
    options = OlmoOptions
    limits: ClassVar = {"uint16": 65_536, "uint32": 2**32}

    def recognises(self, path: Path) -> bool:
        if path.is_file():
            return path.suffix == ".npy" and _lines_of(path).is_file() and not _has_magic(path)
        if not path.is_dir():
            return False
        found = [one for pattern in ("*.npy", "*/*.npy") for one in path.glob(pattern) if one.is_file()]
        return any(_lines_of(one).is_file() and not _has_magic(one) for one in found)

    def trainer_lines(self, out: str, record: ExportRecord, options: OlmoOptions) -> tuple[str, ...]:
        entry, folder = record.tokenizer, record.train_folder("")
        masks = any(file.name.startswith(f"{MASKS}/") for file in record.files)
        dtype = self.dtype_of(entry.vocab_size, options)
        return (
            "from olmo_core.data import NumpyDatasetDType, NumpyFSLDatasetConfig, TokenizerConfig",
            "",
            f"eod, vocab_size = {entry.eod_id}, {entry.vocab_size}",
            "dataset = NumpyFSLDatasetConfig(",
            f"    paths=[{f'{out}{folder}/{options.prefix}-*.npy'!r}],",
            *([f"    label_mask_paths=[{f'{out}/{MASKS}{folder}/*.npy'!r}],"] if masks else []),
            "    expand_glob=True,",
            "    sequence_length=4096,  # your own",
            f"    dtype=NumpyDatasetDType.{dtype.name},",
            "    tokenizer=TokenizerConfig(vocab_size=vocab_size, eos_token_id=eod, pad_token_id=eod),",
            '    work_dir="work",',
            ")",
        )

    def plan(self, view: DocumentView, options: OlmoOptions) -> ExportPlan:
        check_name(self.name, "prefix", options.prefix)
        plan = plan_files(self, view, options, bytes_each=LINE_BYTES, keeps_loss=True, keeps_provenance=True)
        if (most := max(part.number for part in plan.parts) + 1) > MOST_FILES:
            raise RecipeError(
                f"olmo: expected at most {MOST_FILES:,} files, found {most:,}", hint="set shard_tokens larger"
            )
        ends = (
            f"{most:,} files in a split: OLMo-core's NumpyFSLDataset drops up to "
            "sequence_length - 1 tokens at the end of each; --set files=single writes one, and "
            "ConcatAndChunkInstanceSource drops none"
        )
        return msgspec.structs.replace(plan, warnings=(ends,) if most > 1 else ())

    def write(self, view: DocumentView, part: ExportPart, target: Target, options: OlmoOptions) -> Facts:
        dtype = self.dtype_of(view.vocab_size, options)
        stream = view.stream(part.split)
        name = f"{folder_of(view, part.split)}{options.prefix}-{part.number:05d}"
        mask = f"{MASKS}/{name}.npy" if view.has_loss else ""
        write_files(stream, part, dtype, target, f"{name}.npy", mask)
        with (
            target.create(f"{name}.csv.gz") as file,
            gzip.GzipFile("", "wb", COMPRESSION, file, mtime=0) as packed,
        ):
            begin, first = 0, part.start
            for ends in ends_of(stream, part.start, part.stop):
                starts = np.concatenate([[begin], ends[:-1]])
                origins = stream.provenance(first, first + len(ends))
                packed.write(_lines(starts, ends, origins))
                begin, first = int(ends[-1]), first + len(ends)
        return {}

    def open(self, path: Path, options: OlmoOptions, findings: Findings) -> DatasetReader:
        listed, paths = find_files(path, ".npy", "OLMo's .npy files", below=True)
        masks = listed.folder / MASKS
        opened = [
            _open_file(one, listed, masks, findings)
            for one in paths
            if path.is_file() or masks not in one.parents
        ]
        lines = {one.number: _lines_of(Path(one.file.path)) for one in opened}

        def ids(number: int, start: int, stop: int) -> list[str | None]:
            return _ids(lines[number], start, stop)

        needed = ".csv.gz next to .npy files"
        return open_documents(
            self, path, listed, opened, options, findings, dtypes=DTYPES, needed=needed, ids=ids
        )


def _open_file(path: Path, listed: FileList, masks: Path, findings: Findings) -> TokensAndEnds:
    number = listed.add(path)
    file = listed.files[number]
    one = TokensAndEnds(file, number, _lines_of(Path(file.name)).as_posix())
    one.mask = listed.add_if_there(masks / file.name)
    lines = listed.add_if_there(_lines_of(path))
    if _has_magic(path):
        findings.add(file.name, "a header", "none, in a .npy of OLMo's", "NumPy's")
        one.readable = False
    if lines is not None:
        one.companions.append(lines)
        ends = _read_ends(_lines_of(path), listed.files[lines].name, findings)
        one.readable = one.readable and ends is not None
        one.set_ends(np.empty(0, np.int64) if ends is None else ends, "lines", DTYPES)
    return one


def _read_ends(path: Path, name: str, findings: Findings) -> np.ndarray | None:
    """Ends of documents, int64; None for lines that are damaged or not back to back."""
    try:
        table = _read_table(path, columns=2)
    except CorruptStore as error:
        findings.add(name, str(error).removeprefix(f"{path}: "))
        return None
    starts, ends = (table.column(place).to_numpy() for place in (0, 1))
    wrong = np.flatnonzero(starts != np.concatenate([[0], ends[:-1]])[: len(starts)])
    if len(wrong):
        at = int(wrong[0])
        findings.add(name, f"start of document {at}", int(ends[at - 1]) if at else 0, int(starts[at]))
        return None
    return np.asarray(ends)


def _lines(starts: np.ndarray, ends: np.ndarray, origins: pa.Table) -> bytes:
    """Lines for documents, as Python's csv writes them, without breaks within: OLMo-core reads by lines."""
    ids, files = (origins.column(name).cast(pa.string()) for name in ("id", "file"))
    columns = [pa.array(starts), pa.array(ends), pc.fill_null(ids, ""), files, origins.column("position")]
    if any(pc.any(pc.match_substring_regex(names, '[",\\r\\n]')).as_py() for names in (ids, files)):
        text = io.StringIO()
        plain = [pc.replace_substring_regex(names, "[\r\n]+", " ") for names in columns[2:4]]
        rows = zip(*(one.to_pylist() for one in (*columns[:2], *plain, columns[4])), strict=True)
        csv.writer(text).writerows(rows)
        return text.getvalue().encode()
    fields = [one.cast(pa.large_string()) for one in columns]
    comma, nothing, end = (pa.scalar(text, pa.large_string()) for text in (",", "", "\r\n"))
    lines = pc.binary_join_element_wise(pc.binary_join_element_wise(*fields, comma), nothing, end)
    chunks = lines.chunks if isinstance(lines, pa.ChunkedArray) else [lines]
    return b"".join(_characters(chunk) for chunk in chunks)


def _characters(texts: pa.LargeStringArray) -> bytes:
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return bytes(data[int(bounds[0]) : int(bounds[-1])]) if len(texts) else b""


def _read_table(path: Path, columns: int) -> pa.Table:
    """Lines of a `.csv.gz`: start and end int64, and the requested further columns as text."""
    try:
        with gzip.open(path) as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise CorruptStore(f"{path}: damaged gzip: {error}") from error
    types = {f"f{place}": pa.int64() if place < 2 else pa.string() for place in range(5)}
    if not data:
        return pa.schema(list(types.items())).empty_table().select(range(columns))
    reading = pacsv.ReadOptions(autogenerate_column_names=True, use_threads=False, block_size=len(data) + 1)
    try:
        table = pacsv.read_csv(
            pa.BufferReader(data),
            reading,
            pacsv.ParseOptions(newlines_in_values=True),
            pacsv.ConvertOptions(column_types=types, strings_can_be_null=False),
        )
    except pa.ArrowException as error:
        raise CorruptStore(f"{path}: expected lines of start,end,id,src,loc: {error}") from error
    if table.num_columns < 2 or table.column(0).null_count or table.column(1).null_count:
        raise CorruptStore(f"{path}: expected two numbers at the beginning of each line")
    return table.select(range(min(columns, table.num_columns)))


@lru_cache(maxsize=1)
def _all_ids(path: Path, written: int) -> Any:
    """Ids of all documents of a file, cached for its blocks; None where it has none."""
    table = _read_table(path, columns=3)
    return table.column(2).combine_chunks() if table.num_columns > 2 else None


def _ids(path: Path, start: int, stop: int) -> list[str | None]:
    ids = _all_ids(path, path.stat().st_mtime_ns)
    if ids is None:
        return [None] * (stop - start)
    return [text or None for text in ids.slice(start, stop - start).to_pylist()]


def _lines_of(path: Path) -> Path:
    return path.with_name(f"{path.name.removesuffix('.npy')}.csv.gz")


def _has_magic(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(NUMPY_MAGIC)) == NUMPY_MAGIC
    except OSError:
        return False


FORMAT = Olmo()
