"""levanter, Marin: Parquet files with one row per record, for its format `prebuilt`.

    rows-00000-of-00002.parquet       input_ids      list<int32>      L tokens, padding included
                                      loss_weights   list<float32>    1 where the next token is a target

levanter makes one training sequence of each record and neither joins nor cuts them, so every row has exactly
L tokens, and L must be the model's sequence length. The weight of position t belongs to the prediction of
token t + 1, as in levanter's own causal mask, which is 0 at the last position of a row: that target is lost.
Weights are 0 at padding, at the last token of a document, and where a loss mask has 0. levanter separates
documents in attention by the tokenizer's end of document.

Rows are in training order. levanter keeps it with `shuffle: false` and `mixture_block_size: 1`; else it
permutes rows within blocks of its mixture, even of a single component. Based on `PrebuiltLmDatasetFormat` of
levanter; tests read the files with pyarrow and repeat what its processor does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa

from packline.formats.columns import LIMITS, WEIGHTS, list_array, make_schema
from packline.formats.export_folder import ExportRecord, Target
from packline.formats.files import find_files, paths_of
from packline.formats.format import Options, RowFormat
from packline.formats.parquet import create_parquet, leaves_of, read_footer, schema_of
from packline.formats.row_view import RowView
from packline.formats.token_files import UNIT_TOKENS
from packline.formats.types import ExportPart, ExportPlan, Facts, NotPreserved, RowFiles, Size, row_parts
from packline.store.report import Findings

IDS = "input_ids"
ENDING = ".parquet"
GROUP_TOKENS = 1 << 20
SCHEMA = make_schema({IDS: pa.list_(pa.int32()), WEIGHTS: pa.list_(pa.float32())})


class LevanterOptions(Options, frozen=True):
    shard_tokens: Size = UNIT_TOKENS
    """Maximum tokens per file, unless a single row is longer."""
    compression: Literal["zstd", "snappy", "none"] = "zstd"
    """Compression of pages."""


class Levanter(RowFormat):
    name = "levanter"
    title = "levanter, Marin: Parquet, one row per record in input_ids, with loss_weights"
    options = LevanterOptions
    limits: ClassVar = {"int32": LIMITS["int32"]}
    last_targets = False

    def trainer_lines(self, out: str, record: ExportRecord, options: LevanterOptions) -> tuple[str, ...]:
        places = {split: f"{out}/{folder}" for split, folder in record.folders.items()} or {"train": out}
        keys = {"train": "train_urls", "val": "validation_urls"}
        return (
            f"# the model's sequence length: {record.seq_len}",
            "data:",
            f"  tokenizer: {out}",
            "  shuffle: false  # rows are in training order",
            "  mixture_block_size: 1  # else rows are permuted in blocks of 2,048, even of one component",
            "  components:",
            "    packline:",
            "      source:",
            "        type: url",
            *(f'        {keys[split]}: ["{places[split]}/*.parquet"]' for split in keys if split in places),
            "      format:",
            "        type: prebuilt",
            f"        input_ids_key: {IDS}",
            f"        loss_weights_key: {WEIGHTS}",
        )

    def plan(self, view: RowView, options: LevanterOptions) -> ExportPlan:
        self.dtype_of(view.vocab_size, options)
        rows = max(options.shard_tokens // view.seq_len, 1)
        parts = row_parts(view.rows, rows, f"rows-{{number:05d}}-of-{{count:05d}}{ENDING}")
        why = "the target of a row's last token is in no row"
        lost = (
            *view.not_preserved(masks=True, boundaries=False),
            NotPreserved("last targets", view.rows, "tokens", why),
        )
        return ExportPlan(parts, 8 * view.rows * view.seq_len, lost=lost)

    def write(self, view: RowView, part: ExportPart, target: Target, options: LevanterOptions) -> Facts:
        with create_parquet(target, part.name, SCHEMA, options.compression) as writer:
            for batch in _batches(view, part):
                writer.write_batch(batch, row_group_size=batch.num_rows)
                target.progress(batch.num_rows * view.seq_len)
        return {}

    def recognises(self, path: Path) -> bool:
        found = paths_of(path, ENDING)
        return bool(found) and {IDS, WEIGHTS} <= set(schema_of(found[0]).names)

    def check(self, path: Path, findings: Findings) -> RowFiles:
        listed, paths = find_files(path, ENDING, "Parquet files of rows, *.parquet", below=True)
        widths: set[int] = set()
        for one in paths:
            _check_file(one, listed.files[listed.add(one)].name, widths, findings)
        if len(widths) > 1:
            lengths = ", ".join(map(str, sorted(widths)))
            findings.add(listed.folder.name, "tokens per row", "one length", lengths)
        return RowFiles(listed.files)


def _check_file(path: Path, name: str, widths: set[int], findings: Findings) -> None:
    """Check the columns of a file and that all rows have one length, which is added to `widths`."""
    footer = read_footer(path, name, findings)
    if footer is None:
        return
    metadata, _ = footer
    columns = leaves_of(metadata)
    if missing := {IDS, WEIGHTS}.difference(columns):
        findings.add(name, "columns", f"{IDS} and {WEIGHTS}", f"none called {min(missing)}")
        return
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        ids, weights = (group.column(columns.index(column)).num_values for column in (IDS, WEIGHTS))
        width, rest = divmod(ids, max(group.num_rows, 1))
        where = f"in row group {number}"
        findings.compare(name, f"values of {WEIGHTS} {where}", ids, weights)
        findings.compare(name, f"tokens {where}, with rows of one length", ids - rest, ids)
        widths.add(width)


def _batches(view: RowView, part: ExportPart) -> Iterator[pa.RecordBatch]:
    """Rows of a part as record batches, about a million tokens each."""
    block = max(GROUP_TOKENS // view.seq_len, 1)
    for start in range(part.start, part.stop, block):
        stop = min(start + block, part.stop)
        read = view.read(start, stop, ("tokens", "loss_mask"))
        weights = read["loss_mask"].astype(np.float32)
        weights[:, -1] = 0  # what levanter does
        offsets = np.arange(stop - start + 1, dtype=np.int64) * view.seq_len
        columns = [list_array(values.reshape(-1), offsets) for values in (read["tokens"], weights)]
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


FORMAT = Levanter()
