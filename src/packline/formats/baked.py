"""baked: rows in training order as native shards, read by a trainer from end to end.

    rows-000000.bin           tokens [n, L+1] of the store's dtype (uint16 or int32), little-endian, no header
    rows-000000.idx           Megatron's MMIDIDX of it, one sequence per row
    rows-000000.loss          uint8 [n, L+1]: byte t+1 is 1 where position t has a target; byte 0 is 0
    rows-000000.rows.parquet  row, store, document, start, length: one line per span, in order
    baked.json                rows, seq_len, dtype, batch_size, pad_id, ids of the tokenizer, names of files

The last column is the target of a row's last token, or padding if it has none. So a row is L+1 consecutive
tokens: inputs are all but the last, targets all but the first, where the loss byte is 1. Positions of a row
not covered by spans are padding. `BakedRows` returns the same arrays as the loader's batches.

The layout is packline's own; its token files can be read by any reader of Megatron's. Cost: reading is one
copy per row without a search; on disk, a row is stored as often as it is sampled.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from packline.errors import RecipeError
from packline.formats.baked_rows import (
    BAKED,
    ENDINGS,
    SPAN_COLUMNS,
    BakedFacts,
    BakedFile,
    BakedRows,
    check_files,
    read_entries,
    read_facts,
)
from packline.formats.format import RowFormat
from packline.formats.shared.records import foreign_file
from packline.formats.types import Options, Part, Plan, RowFiles, Written
from packline.packing.batch import IGNORED
from packline.store.report import Findings
from packline.store.shard import index_size, write_index

if TYPE_CHECKING:
    from packline.formats.exporting.rows import RowView
    from packline.formats.exporting.target import Target

__all__ = ["FORMAT", "Baked", "BakedOptions", "BakedRows"]

FILE_BYTES = 256 << 20
"""Approximate bytes per `.bin`."""
BLOCK_TOKENS = 1 << 20
SPANS_A_GROUP = 1 << 16


class BakedOptions(Options, frozen=True):
    """Options of baked rows."""

    file_rows: int = 0
    """Rows of a file; 0: as many as make about 256 MB of tokens."""


class Baked(RowFormat):
    """Rows in training order as native shards."""

    name = "baked"
    title = "packline's own: rows-000000.bin/.idx/.loss in training order, rows of seq_len + 1 tokens"
    options = BakedOptions

    def plan(self, view: RowView, options: BakedOptions) -> Plan:
        if options.file_rows < 0:
            raise RecipeError(f"baked: file_rows is {options.file_rows:,}: expected 0 or more")
        width, itemsize = view.seq_len + 1, view.store.dtype.itemsize
        rows = options.file_rows or max(FILE_BYTES // (width * itemsize), 1)
        parts = tuple(
            Part(f"rows-{number:06d}", number=number, start=start, stop=min(start + rows, view.rows))
            for number, start in enumerate(range(0, view.rows, rows))
        )
        size = view.rows * width * (itemsize + 1) + sum(index_size(part.stop - part.start) for part in parts)
        return Plan(parts, size)

    def write(self, view: RowView, part: Part, target: Target, options: BakedOptions) -> dict[str, Any]:
        width, count = view.seq_len + 1, part.stop - part.start
        block = max(BLOCK_TOKENS // width, 1)
        with target.create(f"{part.name}.bin") as tokens, target.create(f"{part.name}.loss") as losses:
            for start in range(part.start, part.stop, block):
                rows, loss = _rows(view, start, min(start + block, part.stop))
                tokens.write(rows.reshape(-1))
                losses.write(loss.reshape(-1))
                target.progress(len(rows) * view.seq_len)
        with target.create(f"{part.name}.idx") as index:
            lengths = np.full(count, width, np.int32)
            write_index(index, lengths, view.store.dtype)  # type: ignore[arg-type]
        _write_spans(view, part, target, block)
        return {"rows": count}

    def finish(self, view: RowView, written: list[Written], target: Target, options: BakedOptions) -> None:
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
        return RowFiles([foreign_file(path, path / name) for name in names], metadata)


def _rows(view: RowView, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows with the target of the last token at the end, and the loss bytes; `[n, L+1]` each."""
    read = view.read(start, stop, ("tokens", "targets"))
    targets = read["targets"]
    rows = np.empty((stop - start, view.seq_len + 1), view.store.dtype)
    rows[:, :-1] = read["tokens"]
    rows[:, -1] = np.where(targets[:, -1] == IGNORED, view.pad_id, targets[:, -1])
    loss = np.zeros(rows.shape, np.uint8)
    np.not_equal(targets, IGNORED, out=loss[:, 1:].view(np.bool_))
    return rows, loss


def _write_spans(view: RowView, part: Part, target: Target, block: int) -> None:
    """Write the spans of a part's rows, in row groups of a fixed size: no byte depends on the block."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in SPAN_COLUMNS])
    waiting = np.empty((len(SPAN_COLUMNS), 0), np.int64)
    with target.create(f"{part.name}.rows.parquet") as file:
        with pa.PythonFile(file, "w") as sink, pq.ParquetWriter(sink, schema, compression="zstd") as writer:

            def write(columns: np.ndarray) -> None:
                writer.write_table(pa.Table.from_arrays([pa.array(one) for one in columns], schema=schema))

            for start in range(part.start, part.stop, block):
                spans = view.spans(start, min(start + block, part.stop))
                found = [spans.rows, spans.stores, spans.documents, spans.starts, spans.lengths]
                waiting = np.concatenate([waiting, np.stack(found)], axis=1)
                while waiting.shape[1] >= SPANS_A_GROUP:
                    write(waiting[:, :SPANS_A_GROUP])
                    waiting = waiting[:, SPANS_A_GROUP:]
            if waiting.shape[1]:
                write(waiting)


FORMAT = Baked()
