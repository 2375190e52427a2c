"""baked: rows in training order as native shards, read by a trainer from end to end.

    rows-000000.bin           tokens [n, L+1] of the store's dtype (uint16 or int32), little-endian, no header
    rows-000000.idx           Megatron's MMIDIDX of it, one sequence per row
    rows-000000.loss          uint8 [n, L+1]: byte t+1 is 1 where position t has a target; byte 0 is 0
    rows-000000.rows.parquet  row, store, document, start, length: one line per span, in order
    baked.json                rows, seq_len, dtype, batch_size, pad_id, ids of the tokenizer, names of files

The last column is the target of a row's last token, or padding if it has none. So a row is L+1 consecutive
tokens: inputs are all but the last, targets all but the first, where the loss byte is 1. Positions of a row
not covered by spans are padding. `BakedRows` returns the same arrays as the loader's batches.

Files are mapped. When a row of a file is first requested, the file is checked against its checksum in
`packline.json` (10 GB/s from the page cache); its spans are then read as well, and cached for the last `KEPT`
files.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packline.errors import CorruptStore, InputError, RecipeError
from packline.formats.export_folder import RECORD, ExportRecord, Target, read_record
from packline.formats.format import Options, RowFormat
from packline.formats.row_view import RowView
from packline.formats.types import (
    DatasetFile,
    ExportPart,
    ExportPlan,
    Facts,
    RowFiles,
    WrittenPart,
    row_parts,
)
from packline.packing.batch import ALL_FIELDS, FIELDS
from packline.packing.layout import IGNORED, Layout
from packline.ragged import offsets_of
from packline.store.files import FileEntry, StoreFiles, check_bytes, map_array, reading, stat_file
from packline.store.report import Findings
from packline.store.shard import Index, index_size, write_index

__all__ = ["FORMAT", "Baked", "BakedOptions", "BakedRows"]

FILE_BYTES = 256 << 20
"""Approximate bytes per `.bin`."""
BLOCK_TOKENS = 1 << 20
SPANS_A_GROUP = 1 << 16


class BakedOptions(Options, frozen=True):
    file_rows: int = 0
    """Rows per file; 0: about 256 MB of tokens."""


class Baked(RowFormat):
    name = "baked"
    title = "packline's own: rows-000000.bin/.idx/.loss in training order, rows of seq_len + 1 tokens"
    options = BakedOptions

    def trainer_lines(self, out: str, record: ExportRecord, options: BakedOptions) -> tuple[str, ...]:
        return (
            "from packline.formats.baked import BakedRows",
            "",
            f"rows = BakedRows({record.train_folder(out)!r})",
            "batch = rows.read(range(8))  # rows 0 to 7, in training order",
        )

    def plan(self, view: RowView, options: BakedOptions) -> ExportPlan:
        if options.file_rows < 0:
            raise RecipeError(f"baked: file_rows is {options.file_rows:,}: expected 0 or more")
        width, itemsize = view.seq_len + 1, view.store.dtype.itemsize
        rows = options.file_rows or max(FILE_BYTES // (width * itemsize), 1)
        parts = row_parts(view.rows, rows, "rows-{number:06d}")
        size = view.rows * width * (itemsize + 1) + sum(index_size(part.stop - part.start) for part in parts)
        return ExportPlan(parts, size)

    def write(self, view: RowView, part: ExportPart, target: Target, options: BakedOptions) -> Facts:
        width, count = view.seq_len + 1, part.stop - part.start
        block = max(BLOCK_TOKENS // width, 1)
        with target.create(f"{part.name}.bin") as tokens, target.create(f"{part.name}.loss") as losses:
            # One memory for all blocks: fresh memory costs a copy.
            longer = np.empty((min(block, count), width), view.store.dtype)
            trained = np.empty((len(longer), view.seq_len), np.uint8)
            loss = np.zeros(longer.shape, np.uint8)
            for start in range(part.start, part.stop, block):
                rows = slice(part.stop - start)
                layout = view.read_longer(start, longer[rows])
                trained[rows] = 1
                layout.leave_out(trained[rows], 0)
                loss[rows, 1:] = trained[rows]
                tokens.write(longer[rows].reshape(-1))
                losses.write(loss[rows].reshape(-1))
                target.progress(len(longer[rows]) * view.seq_len)
        with target.create(f"{part.name}.idx") as index:
            lengths = np.full(count, width, np.int32)
            write_index(index, lengths, view.store.dtype)
        _write_spans(view, part, target, block)
        return {"rows": count}

    def finish(
        self, view: RowView, written: list[WrittenPart], target: Target, options: BakedOptions
    ) -> None:
        facts = BakedFacts(
            rows=view.rows,
            seq_len=view.seq_len,
            dtype=view.store.dtype.name,
            batch_size=view.batch_size,
            pad_id=view.pad_id,
            eod_id=view.eod_id,
            bos_id=view.bos_id,
            vocab_size=view.vocab_size,
            has_loss=view.has_loss,
            stores=tuple(store.manifest.checksum for store in view.stores),
            files=tuple(BakedFile(one.part.name, one.facts["rows"]) for one in written),
        )
        with target.create(BAKED) as file:
            file.write(msgspec.json.format(msgspec.json.encode(facts), indent=1) + b"\n")

    def recognises(self, path: Path) -> bool:
        return (path / BAKED).is_file()

    def check(self, path: Path, findings: Findings) -> RowFiles:
        entries = read_entries(path)
        facts = read_facts(path, entries)
        check_files(path, facts, entries, findings)
        names = [BAKED, *(f"{file.name}{ending}" for file in facts.files for ending in ENDINGS)]
        metadata = {"vocab_size": facts.vocab_size, "eod_id": facts.eod_id, "bos_id": facts.bos_id}
        return RowFiles([DatasetFile.of(path / name, path) for name in names], metadata)


def _write_spans(view: RowView, part: ExportPart, target: Target, block: int) -> None:
    """Write the spans of a part's rows, in row groups of a fixed size: no byte depends on the block."""
    schema = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in SPAN_COLUMNS])
    waiting = np.empty((len(SPAN_COLUMNS), 0), np.int64)
    with (
        target.create(f"{part.name}.rows.parquet") as file,
        pa.PythonFile(file, "w") as sink,
        pq.ParquetWriter(sink, schema, compression="zstd") as writer,
    ):
        for start in range(part.start, part.stop, block):
            stop = min(start + block, part.stop)
            spans = view.spans(start, stop)
            found = [spans.rows, spans.stores, spans.documents, spans.starts, spans.lengths]
            waiting = np.concatenate([waiting, np.stack(found)], axis=1)
            while waiting.shape[1] >= (SPANS_A_GROUP if stop < part.stop else 1):
                columns = [pa.array(one) for one in waiting[:, :SPANS_A_GROUP]]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
                waiting = waiting[:, SPANS_A_GROUP:]


FORMAT = Baked()


BAKED = "baked.json"
BAKED_VERSION = 1
ENDINGS = (".bin", ".idx", ".loss", ".rows.parquet")
SPAN_COLUMNS = ("row", "store", "document", "start", "length")
KEPT = 8


class BakedFile(msgspec.Struct, frozen=True):
    name: str
    rows: int


class BakedFacts(msgspec.Struct, frozen=True, kw_only=True):
    version: int = BAKED_VERSION
    rows: int
    seq_len: int
    dtype: str
    batch_size: int | None
    pad_id: int
    eod_id: int
    bos_id: int | None
    vocab_size: int
    has_loss: bool
    stores: tuple[str, ...]
    """Checksums of the store manifests, in the order of store numbers in spans."""
    files: tuple[BakedFile, ...]


Entries: TypeAlias = dict[str, FileEntry]


def read_entries(folder: Path) -> Entries:
    record, prefix = read_record(folder), ""
    if record is None and (folder / BAKED).exists():  # one of several splits: the record is above
        record, prefix = read_record(folder.absolute().parent), f"{folder.absolute().name}/"
        if record is None or f"{prefix}{BAKED}" not in {entry.name for entry in record.files}:
            raise CorruptStore(
                f"{folder} has no {RECORD}: expected the one that was written with {BAKED}",
                hint="without it damaged rows cannot be detected; put it back, or export the rows again",
            )
    if record is None:
        raise InputError(f"{folder} holds no baked rows: it has no {BAKED}")
    entries = {
        name: msgspec.structs.replace(entry, name=name)
        for entry in record.files
        if entry.name.startswith(prefix) and (name := entry.name.removeprefix(prefix))
    }
    if BAKED not in entries:
        if folders := list(record.folders.values()):
            raise InputError(
                f"{folder} holds several splits: expected the folder of one",
                hint=f"name one of {', '.join(str(folder / name) for name in folders)}",
            )
        raise InputError(f"{folder} holds no baked rows: its {RECORD} is of {record.format}")
    return entries


def read_facts(folder: Path, entries: Entries) -> BakedFacts:
    path, hint = folder / BAKED, "export the rows again"
    data = StoreFiles(folder).read(entries[BAKED])
    try:
        facts = msgspec.json.decode(data, type=BakedFacts)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptStore(f"{path} is damaged: {error}", hint=hint) from error
    names = {f"{file.name}{ending}" for file in facts.files for ending in ENDINGS}
    if unknown := sorted(names - set(entries)):
        raise CorruptStore(f"{path}: expected files that {RECORD} lists, found {unknown[0]}", hint=hint)
    if facts.version > BAKED_VERSION or facts.dtype not in ("uint16", "int32"):
        raise CorruptStore(
            f"{path}: expected version {BAKED_VERSION} and tokens of uint16 or int32, "
            f"found version {facts.version} and {facts.dtype}"
        )
    return facts


def map_rows(folder: Path, facts: BakedFacts, file: BakedFile) -> tuple[np.ndarray, np.ndarray]:
    """Tokens in the store's dtype and loss bytes, uint8, of a file: `[n, L+1]`."""
    for ending in (".bin", ".loss"):
        stat_file(folder / f"{file.name}{ending}", folder)
    dtype = np.dtype(facts.dtype).newbyteorder("<")
    shape, holds = (file.rows, facts.seq_len + 1), f"{file.rows:,} rows"
    tokens, loss = (
        map_array(folder / f"{file.name}{ending}", kind, shape, holds=holds, of="other rows")
        for ending, kind in ((".bin", dtype), (".loss", np.dtype(np.uint8)))
    )
    return tokens, loss


def read_spans(
    folder: Path, facts: BakedFacts, file: BakedFile, first_row: int, entries: Entries
) -> dict[str, np.ndarray]:
    """Spans of a file's rows: int64 `[S]` by column, `row` counted within the file."""
    name = f"{file.name}.rows.parquet"
    path, data = folder / name, StoreFiles(folder).read(entries[name])
    with reading(path):
        table = pq.read_table(pa.BufferReader(data), columns=list(SPAN_COLUMNS), use_threads=False)
        columns = {column: table[column].to_numpy().astype(np.int64) for column in SPAN_COLUMNS}
    columns["row"] = columns["row"] - first_row
    rows, lengths = columns["row"], columns["length"]
    inside = not len(rows) or (int(rows[0]) >= 0 and int(rows[-1]) < file.rows)
    if not inside or bool((np.diff(rows) < 0).any()) or int(lengths.min(initial=1)) < 1:
        raise CorruptStore(f"{path}: expected spans of {file.rows:,} rows in order, found others")
    filled = np.bincount(rows, lengths, file.rows)
    if int(filled.max(initial=0)) > facts.seq_len:
        row = int(filled.argmax())
        raise CorruptStore(
            f"{path}: row {first_row + row:,}: expected at most {facts.seq_len:,} tokens, "
            f"found {int(filled[row]):,}"
        )
    return columns


class BakedRows:
    """Baked rows, R of them.

    Args:
        path: folder of the rows.
        check: check each file against its checksum before its first row is returned. Without it, a damaged
            token is not detected: use only right after `packline verify` has passed.

    Raises:
        InputError: the folder holds no baked rows.
        CorruptStore: packline.json or a file is missing, or of the wrong size.
    """

    def __init__(self, path: str | Path, *, check: bool = True) -> None:
        self.path = Path(path)
        self._entries = read_entries(self.path)
        self.facts = read_facts(self.path, self._entries)
        self.seq_len, self.batch_size = self.facts.seq_len, self.facts.batch_size
        self._files = [map_rows(self.path, self.facts, file) for file in self.facts.files]
        self._firsts = offsets_of([file.rows for file in self.facts.files])
        self._layouts: OrderedDict[int, tuple[np.ndarray, np.ndarray]] = OrderedDict()
        self._unchecked = set(range(len(self._files))) if check else set()

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def read(self, rows: np.ndarray, fields: Sequence[str] = FIELDS) -> dict[str, np.ndarray]:
        """Arrays `[B, L]` of these rows, int64 `[B]`, as returned by `Rows.read`.

        Raises:
            IndexError: no such row.
            CorruptStore: the files are damaged in these rows.
        """
        rows = np.asarray(rows, np.int64)
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self):
            raise IndexError(f"rows {int(rows.min()):,} to {int(rows.max()):,} of {len(self):,}")
        unknown = sorted(set(fields).difference(ALL_FIELDS))
        if unknown:
            raise IndexError(f"no field {', '.join(unknown)}: expected some of {', '.join(ALL_FIELDS)}")
        shape = (len(rows), self.seq_len + 1)
        tokens, loss = np.empty(shape, np.int32), np.empty(shape, np.uint8)
        lengths: list[np.ndarray] = [np.empty(0, np.int64)] * len(rows)
        spans_wanted = "position_ids" in fields or "segment_ids" in fields
        of_file = self._firsts.searchsorted(rows, "right") - 1
        for number in np.unique(of_file).tolist():
            if number in self._unchecked:
                self._check(number)
            places = np.flatnonzero(of_file == number)
            inner = rows[places] - self._firsts[number]
            tokens[places], loss[places] = (values[inner] for values in self._files[number])
            if spans_wanted:
                offsets, sizes = self._spans_of(number)
                for place, row in zip(places.tolist(), inner.tolist(), strict=True):
                    lengths[place] = sizes[offsets[row] : offsets[row + 1]]
        trained = loss[:, 1:] != 0
        found = {
            "tokens": np.ascontiguousarray(tokens[:, :-1]),
            "targets": np.where(trained, tokens[:, 1:], np.int32(IGNORED)),
            "loss_mask": trained.view(np.uint8),
        }
        if spans_wanted:
            found |= _by_spans(lengths, self.seq_len)
        return {name: found[name] for name in fields}

    def _check(self, number: int) -> None:
        name = self.facts.files[number].name
        for ending, array in zip((".bin", ".loss"), self._files[number], strict=True):
            entry = self._entries[f"{name}{ending}"]
            check_bytes(self.path / entry.name, entry, array.reshape(-1).view(np.uint8).data)
        self._unchecked.discard(number)

    def _spans_of(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """First span of each row of a file, and the length of each span."""
        if number not in self._layouts:
            while len(self._layouts) >= KEPT:
                self._layouts.popitem(last=False)
            file = self.facts.files[number]
            spans = read_spans(self.path, self.facts, file, int(self._firsts[number]), self._entries)
            offsets = offsets_of(np.bincount(spans["row"], minlength=file.rows))
            self._layouts[number] = (offsets, spans["length"])
        return self._layouts[number]


def _by_spans(lengths: list[np.ndarray], seq_len: int) -> dict[str, np.ndarray]:
    """Positions and segments of rows with these spans."""
    offsets = offsets_of([len(one) for one in lengths])
    joined = np.concatenate([np.empty(0, np.int64), *lengths])
    layout = Layout.of(offsets, joined, seq_len)
    positions, segments = np.empty((2, len(lengths) * seq_len), np.int32)
    layout.fill_positions(positions)
    layout.fill_segments(segments)
    shape = (len(lengths), seq_len)
    return {"position_ids": positions.reshape(shape), "segment_ids": segments.reshape(shape)}


def check_files(folder: Path, facts: BakedFacts, entries: Entries, findings: Findings) -> None:
    findings.compare(BAKED, "rows of all files", facts.rows, sum(file.rows for file in facts.files))
    first = 0
    for file in facts.files:
        for check in (map_rows, partial(read_spans, first_row=first, entries=entries), _check_index):
            try:
                check(folder, facts, file)
            except CorruptStore as error:
                findings.add(file.name, error.message)
        first += file.rows


def _check_index(folder: Path, facts: BakedFacts, file: BakedFile) -> None:
    index = Index(folder / f"{file.name}.idx")
    if len(index) != file.rows or not bool((index.lengths == facts.seq_len + 1).all()):
        raise CorruptStore(
            f"{file.name}.idx: expected {file.rows:,} sequences of {facts.seq_len + 1:,} tokens"
        )
