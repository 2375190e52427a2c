"""Packed rows as a data set of the `datasets` library, with TRL's columns: `load_from_disk(OUT)`.

    input_ids        list<int32>    one row: pieces of documents, one after another; without padding
    labels           list<int32>    ids, and -100 where a token is not trained on
    seq_lengths      list<int32>    tokens of each piece; their sum is the length of the row
    position_ids     list<int32>    0 1 2 ... for each piece
    attention_mask   list<int8>     1; with `padded`, 0 at padding

Files are those of `saved`; rows are in training order, so a trainer must not shuffle them. TRL's collator
derives positions from seq_lengths when it flattens a batch, and drops the columns that it does not need. It
does so with `padding_free=True` only. By default it passes the model an attention mask and no positions, so
that the documents of a row see each other; with `packing=True` it packs the rows again and treats each as one
document. And `max_length`, 1,024 by default, truncates rows, so it has to be None (`trainer_lines`).

Labels are not shifted: trainers do that, within a row. So the target of the last token of a row, where it is
in the next row, is lost, as the ledger records. The first token of a piece has the label -100, since no token
predicts it; the first of a row keeps its own mask, although trainers ignore it.

With `padded` every row has `seq_len` tokens, for collators that do not pad. Padding is then a separate piece,
as TRL requires lengths that add up.

Based on the source code of TRL and of datasets 5.2.0; tested against the latter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import msgspec
import numpy as np
import pyarrow as pa

from packline.formats.arrow import (
    BATCH_DOCUMENTS,
    BATCH_TOKENS,
    FILE,
    SEQ_LENGTHS,
    SavedFiles,
    features_of_saved,
    write_dict,
    write_folder,
    write_stream,
)
from packline.formats.columns import ATTENTION_MASK, LABELS, LIMITS, SPLITS, list_array, make_schema
from packline.formats.export_folder import ExportRecord, Target
from packline.formats.format import Options, RowFormat
from packline.formats.row_view import RowSpans, RowView
from packline.formats.token_files import UNIT_TOKENS
from packline.formats.types import (
    ExportPart,
    ExportPlan,
    Facts,
    NotPreserved,
    RowFiles,
    Size,
    WrittenPart,
    row_parts,
)
from packline.packing.layout import IGNORED
from packline.ragged import offsets_of
from packline.store.report import Findings

COLUMN = "input_ids"
POSITIONS = "position_ids"
OWN = b"packline"
"""Key in the schema metadata: whether labels contain more than the beginnings of pieces."""


class TrlOptions(Options, frozen=True):
    dtype: Literal["int32", "int64"] = "int32"
    """Dtype of ids and labels."""
    padded: bool = False
    """Pad all rows to seq_len tokens."""
    shard_tokens: Size = UNIT_TOKENS
    """Maximum tokens per file, unless a single row is longer."""


class Trl(RowFormat):
    name = "trl"
    title = "TRL: packed rows for load_from_disk, with labels and seq_lengths"
    options = TrlOptions
    limits = LIMITS
    folders = MappingProxyType(SPLITS)
    last_targets = False

    def trainer_lines(self, out: str, record: ExportRecord, options: TrlOptions) -> tuple[str, ...]:
        others = list(record.folders.values())[1:]
        return (
            "from datasets import load_from_disk",
            "from trl import SFTConfig",
            "",
            f"train_dataset = load_from_disk({record.train_folder(out)!r})",
            *(f"eval_dataset = load_from_disk({f'{out}/{name}'!r})" for name in others[:1]),
            "config = SFTConfig(  # and no packing: the rows are packed",
            "    padding_free=True,  # else the documents of a row see each other",
            "    max_length=None,  # else rows are cut; TRL refuses a length with padding_free",
            '    train_sampling_strategy="sequential",  # rows are in training order',
            ")",
        )

    def plan(self, view: RowView, options: TrlOptions) -> ExportPlan:
        dtype = self.dtype_of(view.vocab_size, options)
        rows = max(options.shard_tokens // view.seq_len, 1)
        parts = row_parts(view.rows, rows, FILE)
        tokens = view.rows * view.seq_len if options.padded else view.tokens
        why = "at most one per row: trainers shift labels within a row, and the next token is in another row"
        lost = (
            *view.not_preserved(masks=True, boundaries=True),
            NotPreserved("last targets", view.rows, "tokens", why),
        )
        return ExportPlan(parts, tokens * (2 * dtype.itemsize + 5) + 20 * view.rows, lost=lost)

    def write(self, view: RowView, part: ExportPart, target: Target, options: TrlOptions) -> Facts:
        def batches() -> Iterator[pa.RecordBatch]:
            step = min(max(BATCH_TOKENS // view.seq_len, 1), BATCH_DOCUMENTS)
            for start in range(part.start, part.stop, step):
                stop = min(start + step, part.stop)
                yield _batch(view, start, stop, schema, options)
                target.progress((stop - start) * view.seq_len)

        schema = _schema(view, options)
        return {"checksum": write_stream(target, part.name, schema, batches())}

    def finish(self, view: RowView, written: list[WrittenPart], target: Target, options: TrlOptions) -> None:
        split = SPLITS.get(written[0].part.split, "train") if written else "train"
        write_folder(target, "", _schema(view, options), written, split)

    def finish_splits(self, folders: Sequence[str], target: Target) -> None:
        write_dict(target, folders)

    def recognises(self, path: Path) -> bool:
        return SEQ_LENGTHS in features_of_saved(path)

    def check(self, path: Path, findings: Findings) -> RowFiles:
        saved = SavedFiles(path, findings)
        saved.open(COLUMN, True, findings)
        return RowFiles(saved.files)


def _schema(view: RowView, options: TrlOptions) -> pa.Schema:
    ids = pa.list_(pa.from_numpy_dtype(np.dtype(options.dtype)))
    rest = {ATTENTION_MASK: pa.int8(), POSITIONS: pa.int32(), SEQ_LENGTHS: pa.int32()}
    schema = make_schema({COLUMN: ids, LABELS: ids, **{name: pa.list_(kind) for name, kind in rest.items()}})
    own = msgspec.json.encode({"loss": view.has_loss})
    return schema.with_metadata({**schema.metadata, OWN: own})


def _batch(view: RowView, start: int, stop: int, schema: pa.Schema, options: TrlOptions) -> pa.RecordBatch:
    count, width = stop - start, view.seq_len
    arrays = view.read(start, stop, ("tokens", "targets", POSITIONS))
    spans, filled = view.spans(start, stop), view.lengths(start, stop)
    columns = np.arange(width)
    real = columns < filled[:, None]
    labels = np.full((count, width), IGNORED, np.int32)
    labels[:, 1:] = arrays["targets"][:, :-1]
    labels[:, 0] = np.where(_first_loss(view, spans, start, count), arrays["tokens"][:, 0], IGNORED)
    positions = np.where(real, arrays[POSITIONS], columns - filled[:, None]).astype(np.int32, copy=False)
    of_row = np.bincount(spans.rows - start, minlength=count)
    pieces, piece_offsets = spans.lengths, offsets_of(of_row)
    kept = np.ones_like(real) if options.padded else real
    if options.padded and len(short := np.flatnonzero(filled < width)):
        pieces = np.insert(pieces, piece_offsets[short + 1], width - filled[short])
        of_row[short] += 1
        piece_offsets = offsets_of(of_row)
    offsets = offsets_of(kept.sum(axis=1))
    whole = bool(kept.all())

    def column(values: np.ndarray, dtype: str) -> pa.Array:
        flat = values.reshape(-1) if whole else values[kept]
        return list_array(flat.astype(dtype, copy=False), offsets)

    return pa.RecordBatch.from_arrays(
        [
            column(arrays["tokens"], options.dtype),
            column(labels, options.dtype),
            column(real, "int8"),
            column(positions, "int32"),
            list_array(pieces.astype(np.int32), piece_offsets),
        ],
        schema=schema,
    )


def _first_loss(view: RowView, spans: RowSpans, start: int, count: int) -> np.ndarray:
    """True where the first token of a row is trained on, which its targets do not show; bool `[count]`."""
    trained = np.ones(count, bool)
    if not view.has_loss:
        return trained
    _, firsts = np.unique(spans.rows - start, return_index=True)
    for number, store in enumerate(view.stores):
        here = firsts[spans.stores[firsts] == number]
        shards = store.firsts.searchsorted(spans.documents[here], "right") - 1
        for place in np.unique(shards):
            shard, ours = store.shards[int(place)], here[shards == place]
            if shard.loss is not None:
                begins = shard.places(spans.documents[ours] - store.firsts[place])
                trained[spans.rows[ours] - start] = shard.loss[begins + spans.starts[ours]] != 0
    return trained


FORMAT = Trl()
