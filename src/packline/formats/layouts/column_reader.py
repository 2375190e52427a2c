"""Documents from Arrow columns, as arrays that share the buffers of the lists.

    input_ids                                          lists of integers: 32-bit, large, or of fixed size
    attention_mask                                     0 is padding, which is left out
    labels                                             the ids, or -100 where a token is not trained on
    loss_mask, completion_mask, assistant_masks        0 or 1
    id                                                 id of the document

A token is trained on if all of the mask columns that exist agree. Provenance of a document is its file and
row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from packline.errors import CorruptStore
from packline.formats.format import DatasetReader
from packline.formats.layouts.columns import ATTENTION_MASK, LABELS, LOSS_MASK, is_list_type
from packline.formats.layouts.token_files import BLOCK_DOCUMENTS, BLOCK_TOKENS, UNIT_TOKENS
from packline.formats.types import DatasetFile, DocumentBlock, Edges, ReadTask
from packline.packing.layout import IGNORED
from packline.ragged import offsets_of
from packline.store.report import Findings

MASKS = (LOSS_MASK, "completion_mask", "assistant_masks")


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
