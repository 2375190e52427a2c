"""Documents as Arrow columns: lists made around arrays, and their schema.

    input_ids   list<int32>     7 8 9    | 4 5       one row per document
    labels      list<int32>     7 8 -100 | 4 5       its ids, and -100 where a token is not trained on
    loss_mask   list<int8>      1 1 0    | 1 1       the same in another form; one of them if there is a mask
    attention_mask  list<int8>  1 1 1    | 1 1       on request

A column of lists is two buffers, values and offsets, so it is made without an object per token or document.
Where files and record batches are cut depends on the documents, not on the store's shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packline.errors import RecipeError
from packline.formats.document_view import DocumentStream, DocumentView
from packline.formats.export_record import Target
from packline.formats.format import Options
from packline.formats.layouts.token_files import BLOCK_DOCUMENTS
from packline.formats.types import Edges, ExportPart, ExportPlan, Size, fitting_dtype
from packline.packing.layout import IGNORED
from packline.store.report import Findings

LABELS = "labels"
WEIGHTS = "loss_weights"
LOSS_MASK = "loss_mask"
ATTENTION_MASK = "attention_mask"
PROVENANCE = ("source", "file", "position", "id")
SPLITS = {"train": "train", "val": "validation", "test": "test"}
"""Names of splits in the `datasets` library."""
LIMITS = {"int32": 2**31, "int64": 2**63}
"""Largest vocabulary per dtype."""
MOST_VALUES = 2**31 - 1
"""Most values per record batch, unless lists are large lists."""


class ColumnOptions(Options, frozen=True):
    edges: Edges = "eod"
    """Boundary tokens of documents."""
    column: str = "input_ids"
    """Name of the column of ids."""
    dtype: Literal["int32", "int64"] = "int32"
    """Writing: dtype of ids and labels."""
    lists: Literal["list", "large_list"] = "list"
    """Writing: `large_list` allows documents of more than 2**31 tokens."""
    loss: Literal["labels", "loss_mask", "none"] = "labels"
    """Writing: the column for a loss mask, where the store has one; reading: `none` ignores all masks."""
    attention_mask: bool = False
    """Writing: add a column of ones, and labels without a loss mask too: what axolotl takes as tokenized."""
    provenance: bool = False
    """Writing: add columns source, file, position and id."""
    shard_tokens: Size = 1 << 27
    """Writing: tokens per file, up to the end of a document: 512 MB."""


def list_array(values: np.ndarray, offsets: np.ndarray, *, large: bool = False) -> pa.Array:
    """Lists that share the memory of `values`, `[T]`, divided by `offsets`, int64 `[D+1]`."""
    begin = int(offsets[0])
    bounds = pa.array((offsets - begin).astype(np.int64 if large else np.int32, copy=False))
    kind = pa.LargeListArray if large else pa.ListArray
    return kind.from_arrays(bounds, pa.array(np.ascontiguousarray(values[begin : int(offsets[-1])])))


def make_schema(columns: dict[str, pa.DataType]) -> pa.Schema:
    """A schema with metadata that describes the columns to the `datasets` library."""
    schema = pa.schema(list(columns.items()))
    info = msgspec.json.encode({"info": {"features": hf_features(schema)}})
    return schema.with_metadata({"huggingface": info})


def hf_features(schema: pa.Schema) -> dict[str, Any]:
    """The columns as the `datasets` library describes them, in terms that older versions know too."""
    return {field.name: _feature(field.type) for field in schema}


def _feature(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_large_list(kind):
        return {"feature": _feature(kind.value_type), "_type": "LargeList"}
    if pa.types.is_list(kind):
        return {"feature": _feature(kind.value_type), "length": -1, "_type": "Sequence"}
    return {"dtype": str(kind), "_type": "Value"}


def is_list_type(kind: pa.DataType) -> bool:
    """True for a type of lists: 32-bit, large, or of fixed size."""
    return isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType)


def column_types(view: DocumentView, options: ColumnOptions) -> dict[str, pa.DataType]:
    lists = pa.large_list if options.lists == "large_list" else pa.list_
    ids = lists(pa.from_numpy_dtype(np.dtype(options.dtype)))
    columns: dict[str, pa.DataType] = {}
    if options.loss != "none" and (view.has_loss or (options.attention_mask and options.loss == LABELS)):
        columns[options.loss] = ids if options.loss == LABELS else lists(pa.int8())
    if options.attention_mask:
        columns[ATTENTION_MASK] = lists(pa.int8())
    if options.provenance:
        columns |= dict.fromkeys(PROVENANCE, pa.string()) | {"position": pa.int64()}
    if options.column in columns or not options.column:
        raise RecipeError(f"column is {options.column!r}: expected a name unlike {', '.join(columns)}")
    return {options.column: ids} | columns


def plan_columns(view: DocumentView, options: ColumnOptions, format: str, name: str) -> ExportPlan:
    """One part per file, cut between documents, independent of the shards of the store.

    Args:
        name: template of file names with `split`, `number` and `count`; also the names of the parts.
    """
    fitting_dtype(format, view.vocab_size, LIMITS, options.dtype)
    parts: list[ExportPart] = []
    for split in view.splits:
        stream, size = view.stream(split), options.shard_tokens
        if options.lists == "list" and (longest := _longest(stream)) > MOST_VALUES:
            raise RecipeError(
                f"{format}: a document has {longest:,} tokens: expected at most {MOST_VALUES:,} in a list",
                hint="set lists=large_list",
            )
        cuts = stream.files(size)
        for number, (start, stop) in enumerate(cuts):
            file = name.format(split=SPLITS[split], number=number, count=len(cuts))
            parts.append(ExportPart(file, split, number, start, stop))
    lost = view.not_preserved(format, keeps_loss=options.loss != "none", keeps_provenance=options.provenance)
    return ExportPlan(tuple(parts), _estimated_bytes(view, options), lost=lost)


def _longest(stream: DocumentStream) -> int:
    """Tokens of the longest document; 0 if none can be too long."""
    if stream.tokens <= MOST_VALUES:
        return 0
    starts = range(0, stream.documents, BLOCK_DOCUMENTS)
    return max(int(stream.lengths(start, start + BLOCK_DOCUMENTS).max()) for start in starts)


def _estimated_bytes(view: DocumentView, options: ColumnOptions) -> int:
    lists, rest = [kind for kind in column_types(view, options).values() if is_list_type(kind)], 0
    if options.provenance:
        rest = 40 * view.documents
    widths = sum(kind.value_type.bit_width // 8 for kind in lists)
    return view.tokens * widths + 8 * len(lists) * view.documents + rest


def record_batches(
    view: DocumentView,
    part: ExportPart,
    options: ColumnOptions,
    target: Target,
    *,
    most_documents: int,
    most_tokens: int,
) -> Iterator[pa.RecordBatch]:
    """Record batches of a part, cut by these limits alone; a longer document has a separate one."""
    stream, schema = view.stream(part.split), make_schema(column_types(view, options))
    dtype, large = np.dtype(options.dtype), options.lists == "large_list"
    start = part.start
    for block in stream.groups(start, part.stop, dtype, most_documents, most_tokens):
        columns = [list_array(block.tokens, block.offsets, large=large)]
        if options.loss in schema.names:
            loss = np.ones(len(block.tokens), np.uint8) if block.loss is None else block.loss
            values = labels_of(block.tokens, loss) if options.loss == LABELS else loss.view(np.int8)
            columns.append(list_array(values, block.offsets, large=large))
        if options.attention_mask:
            columns.append(list_array(np.ones(len(block.tokens), np.int8), block.offsets, large=large))
        if options.provenance:
            table = stream.provenance(start, start + len(block)).combine_chunks()
            columns += [table[name].cast(schema.field(name).type).combine_chunks() for name in PROVENANCE]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        target.progress(len(block.tokens))
        start += len(block)


def labels_of(tokens: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """Ids where a token is trained on, else -100; not shifted, since trainers do that."""
    return np.where(loss != 0, tokens, tokens.dtype.type(IGNORED))


@contextmanager
def create_parquet(
    target: Target, name: str, schema: pa.Schema, compression: str, repeated: Sequence[str] | bool = False
) -> Iterator[pq.ParquetWriter]:
    """Writer of a new Parquet file, with checksums of its pages and without statistics.

    Args:
        repeated: columns whose values repeat, kept as dictionaries.
    """
    with (
        target.create(name) as file,
        pa.PythonFile(file, "w") as sink,
        pq.ParquetWriter(
            sink,
            schema,
            compression=compression,
            use_dictionary=repeated,
            write_statistics=False,
            write_page_checksum=True,
        ) as writer,
    ):
        yield writer


def read_footer(path: str | Path, name: str, findings: Findings) -> tuple[pq.FileMetaData, pa.Schema] | None:
    """Metadata and schema of a Parquet file; None, and a problem in `findings`, if it is not a whole one."""
    try:
        with pq.ParquetFile(path) as file:
            return file.metadata, file.schema_arrow
    except (OSError, ValueError, pa.ArrowException) as error:  # ValueError: names that are not text
        findings.add(name, f"not a whole Parquet file: {error}")
        return None


def schema_of(path: Path) -> pa.Schema:
    """Schema of a Parquet file; without fields if it is not a whole one."""
    found = read_footer(path, path.name, Findings())
    return pa.schema([]) if found is None else found[1]


def leaves_of(metadata: pq.FileMetaData) -> list[str]:
    """Name of the column that each leaf of a Parquet schema belongs to."""
    return [metadata.schema.column(n).path.partition(".")[0] for n in range(metadata.num_columns)]
