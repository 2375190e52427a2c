"""Documents as Arrow columns, written and read: lists made around arrays, and arrays around lists.

    input_ids       list<int32>  7 8 9    | 4 5      one row per document
    labels          list<int32>  7 8 -100 | 4 5      its ids, and -100 where a token is not trained on
    loss_mask       list<int8>   1 1 0    | 1 1      the same in another form; one of them if there is a mask
    attention_mask  list<int8>   1 1 1    | 1 1      on request; when read, 0 is padding, which is left out

A column of lists is two buffers, values and offsets, so it is made without an object per token or document.
Where files and record batches are cut depends on the documents, not on the store's shards. When read, lists
may be 32-bit, large, or of fixed size, and masks have other names, too (`MASKS`); a token is trained on if
all that exist agree. Provenance of a document is then its file and row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from packline.errors import CorruptStore, RecipeError
from packline.formats.document_view import DocumentStream, DocumentView
from packline.formats.export_folder import Target
from packline.formats.format import DatasetReader, Options
from packline.formats.token_files import BLOCK_DOCUMENTS, BLOCK_TOKENS, UNIT_TOKENS
from packline.formats.types import (
    DatasetFile,
    DocumentBlock,
    Edges,
    ExportPart,
    ExportPlan,
    ReadTask,
    Size,
    fitting_dtype,
)
from packline.packing.layout import IGNORED
from packline.ragged import offsets_of
from packline.store.report import Findings

LABELS = "labels"
WEIGHTS = "loss_weights"
LOSS_MASK = "loss_mask"
ATTENTION_MASK = "attention_mask"
MASKS = (LOSS_MASK, "completion_mask", "assistant_masks")
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


def _holds_integers(kind: pa.DataType) -> bool:
    return is_list_type(kind) and bool(pa.types.is_integer(kind.value_type))


@dataclass(frozen=True, slots=True)
class Columns:
    tokens: str
    dtype: np.dtype
    labels: str | None
    masks: tuple[str, ...]
    attention: str | None
    ids: str | None

    @classmethod
    def of(
        cls, schema: pa.Schema, column: str, with_loss: bool, file: str, findings: Findings
    ) -> Columns | None:
        """Find the columns by name and type; None, and a problem in `findings`, if there are no ids."""
        kinds = {field.name: field.type for field in schema}
        found = kinds.get(column, pa.null())
        if not _holds_integers(found):
            there = found if column in kinds else f"columns {', '.join(kinds) or 'none'}"
            findings.add(file, f"column {column}", "lists of integers", there)
            return None
        masks = [
            name
            for name in (*MASKS, ATTENTION_MASK)
            if _holds_integers(kind := kinds.get(name, pa.null()))
            or (is_list_type(kind) and pa.types.is_boolean(kind.value_type))
        ]
        kind = kinds.get("id", pa.null())
        has_id = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)
        return cls(
            column,
            np.dtype(found.value_type.to_pandas_dtype()),
            LABELS if with_loss and _holds_integers(kinds.get(LABELS, pa.null())) else None,
            tuple(name for name in masks if with_loss and name != ATTENTION_MASK),
            ATTENTION_MASK if ATTENTION_MASK in masks else None,
            "id" if has_id else None,
        )

    @property
    def has_loss(self) -> bool:
        return self.labels is not None or bool(self.masks)

    @property
    def names(self) -> list[str]:
        found = (self.tokens, self.labels, *self.masks, self.attention, self.ids)
        return [name for name in found if name is not None]

    def blocks(self, batch: pa.RecordBatch, path: str, first_row: int) -> Iterator[DocumentBlock]:
        """Documents of a record batch, at most `BLOCK_TOKENS` at a time; a longer one alone."""
        whole = self.block(batch, path, first_row)
        offsets, positions, first = whole.offsets, whole.positions, 0
        assert positions is not None
        while first < len(whole):
            last = int(offsets.searchsorted(offsets[first] + BLOCK_TOKENS, "right")) - 1
            last = min(max(last, first + 1), first + BLOCK_DOCUMENTS)
            inner, rows = slice(offsets[first], offsets[last]), slice(first, last)
            yield DocumentBlock(
                whole.tokens[inner],
                offsets[first : last + 1] - offsets[first],
                None if whole.loss is None else whole.loss[inner],
                positions[rows],
                None if whole.ids is None else whole.ids[rows],
            )
            first = last

    def block(self, batch: pa.RecordBatch, path: str, first_row: int) -> DocumentBlock:
        """All documents of a record batch; see `blocks`."""
        read = ListReader(path, first_row)
        tokens, offsets = read.lists(batch, self.tokens)
        loss: np.ndarray | None = None
        if self.labels is not None:
            labels = read.parallel(batch, self.labels, offsets)
            loss = (labels != IGNORED).view(np.uint8)
            if len(wrong := np.flatnonzero((labels != tokens) & (labels != IGNORED))):
                at = int(wrong[0])
                row = int(offsets.searchsorted(at, "right")) - 1
                raise CorruptStore(
                    f"{read.row(row)}, label of token {at - int(offsets[row]):,}: "
                    f"expected {tokens[at]} or {IGNORED}, found {labels[at]}",
                    hint="labels were moved, or are of another kind; loss=none reads the ids without them",
                )
        for name in self.masks:
            mask = read.mask(batch, name, offsets)
            loss = mask if loss is None else loss & mask
        if self.attention is not None:
            kept = read.mask(batch, self.attention, offsets).view(np.bool_)
            if not kept.all():
                offsets = offsets_of(kept)[offsets]
                tokens, loss = tokens[kept], None if loss is None else loss[kept]
        ids = None
        if self.ids is not None:
            ids = batch.column(self.ids).cast(pa.string()).to_pylist()
        positions = np.arange(first_row, first_row + batch.num_rows, dtype=np.int64)
        return DocumentBlock(tokens, offsets, loss, positions, ids)


@dataclass(frozen=True, slots=True)
class ListReader:
    """Extracts lists from columns; errors contain the row."""

    path: str
    first_row: int

    def lists(self, batch: pa.RecordBatch, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Values `[T]` and offsets int64 `[D+1]` of a column, with offsets from 0."""
        array = batch.column(name)
        try:
            array.validate(full=True)  # that buffers are long enough, and lists do not go backwards
        except pa.ArrowInvalid as error:
            raise CorruptStore(f"{self.path}: column {name} from row {self.first_row:,}: {error}") from error
        if pa.types.is_fixed_size_list(array.type):
            offsets = (np.arange(len(array) + 1, dtype=np.int64) + array.offset) * array.type.list_size
        else:
            offsets = array.offsets.to_numpy().astype(np.int64)
        values = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        offsets = offsets - offsets[0]
        if array.null_count or values.null_count:
            nulls = (array if array.null_count else values).is_null().to_numpy(zero_copy_only=False)
            at = int(np.argmax(nulls))
            row = at if array.null_count else int(offsets.searchsorted(at, "right")) - 1
            raise CorruptStore(f"{self.row(row)}: expected a list of numbers in {name}, found null")
        return values.to_numpy(zero_copy_only=False), offsets

    def parallel(self, batch: pa.RecordBatch, name: str, offsets: np.ndarray) -> np.ndarray:
        values, found = self.lists(batch, name)
        if not np.array_equal(found, offsets):
            at = int(np.argmax(np.diff(found) != np.diff(offsets)))
            raise CorruptStore(
                f"{self.row(at)}: expected {offsets[at + 1] - offsets[at]:,} "
                f"numbers in {name}, as many as there are tokens, found {found[at + 1] - found[at]:,}",
                hint="loss=none reads the ids without them" if name != ATTENTION_MASK else "",
            )
        return values

    def mask(self, batch: pa.RecordBatch, name: str, offsets: np.ndarray) -> np.ndarray:
        values = self.parallel(batch, name, offsets)
        if len(wrong := np.flatnonzero((values != 0) & (values != 1))):
            row = int(offsets.searchsorted(wrong[0], "right")) - 1
            raise CorruptStore(f"{self.row(row)}: expected 0 or 1 in {name}, found {values[wrong[0]]}")
        return values.astype(np.uint8)

    def row(self, number: int) -> str:
        return f"{self.path}: row {self.first_row + number:,}"


class ColumnFile(ABC):
    """One file. Its groups can be read separately: record batches, or row groups."""

    file: int
    path: str
    split: str
    columns: Columns
    rows: np.ndarray
    """int64 `[G+1]`: first row of each group, and the number of rows."""
    begins: np.ndarray
    """int64 `[G]`: start offset of each group, in bytes."""
    size: int
    tokens: np.ndarray
    """int64 `[G]`: approximate number of tokens per group."""

    @abstractmethod
    def batches(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The selected columns of groups `start` to `stop`."""

    def units(self, companions: Sequence[tuple[int, int, int]]) -> Iterator[ReadTask]:
        """Units of groups with about `UNIT_TOKENS` together; a unit's `start` and `stop` are groups."""
        ends, start, count = np.cumsum(self.tokens), 0, len(self.tokens)
        while start < count or start == 0:
            reached = (int(ends[start - 1]) if start else 0) + UNIT_TOKENS
            stop = min(max(int(ends.searchsorted(reached, "right")), start + 1), count)
            begin = int(self.begins[start]) if start else 0
            end = int(self.begins[stop]) if stop < count else self.size
            extra = tuple(companions) if start == 0 else ()
            yield ReadTask(self.split, self.file, start, stop, ((self.file, begin, end), *extra))
            start = max(stop, 1)


class ColumnsReader(DatasetReader):
    """Documents in columns."""

    def __init__(
        self, files: Sequence[DatasetFile], sources: Sequence[ColumnFile], *, edges: Edges, findings: Findings
    ) -> None:
        self.files, self.edges, self.facts = list(files), edges, {}
        self.dtype = sources[0].columns.dtype if sources else np.dtype(np.int32)
        self.documents = sum(int(source.rows[-1]) for source in sources)
        self.has_loss = any(source.columns.has_loss for source in sources)
        self._sources = {source.file: source for source in sources}
        self.units = []
        others = [(number, 0, file.bytes) for number, file in enumerate(files) if number not in self._sources]
        for source in sources:
            name = files[source.file].name
            its = source.columns
            findings.compare(name, "type of ids, as in the first file", self.dtype.name, its.dtype.name)
            findings.compare(name, "loss mask, where other files have one", self.has_loss, its.has_loss)
            self.units += source.units(others if not self.units else ())

    def blocks(self, unit: ReadTask) -> Iterator[DocumentBlock]:
        source = self._sources[unit.file]
        row = int(source.rows[unit.start])
        for batch in source.batches(unit.start, unit.stop):
            yield from source.columns.blocks(batch, source.path, row)
            row += batch.num_rows
