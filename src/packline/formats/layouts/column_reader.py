"""Documents from Arrow columns, as arrays that share the buffers of the lists.

    input_ids                                          lists of integers: 32-bit, large, or of fixed size
    attention_mask                                     0 is padding, which is left out
    labels                                             the ids, or -100 where a token is not trained on
    loss_mask, completion_mask, assistant_masks        0 or 1
    id                                                 id of the document

Shared by the readers of `arrow` and `parquet`. A token is trained on if all of the mask columns that exist
agree. Other columns are ignored. A `ColumnFile` is cut into units and read one record batch at a time;
`ColumnsReader` is a data set of such files. Provenance of a document is its file and row.

Cost: one comparison per token and mask, and no object per token; one per document for document ids. Does not
check token ids. Memory: one record batch, of the size chosen by the writer of the file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from packline.errors import CorruptStore
from packline.formats.format import DatasetReader
from packline.formats.layouts.columns import LABELS, LOSS_MASK, is_list_type
from packline.formats.layouts.header_shards import split_of_name
from packline.formats.layouts.token_files import BLOCK_DOCUMENTS, BLOCK_TOKENS, UNIT_TOKENS
from packline.formats.types import DatasetFile, DocumentBlock, Edges, ReadTask
from packline.packing.layout import IGNORED
from packline.ragged import offsets_of

if TYPE_CHECKING:
    import pyarrow as pa

    from packline.store.report import Findings

ATTENTION = "attention_mask"
MASKS = (LOSS_MASK, "completion_mask", "assistant_masks")


def _integers(kind: pa.DataType) -> np.dtype | None:
    """Dtype of the integers, for a type of lists of integers."""
    if not is_list_type(kind) or not pa.types.is_integer(kind.value_type):
        return None
    return np.dtype(kind.value_type.to_pandas_dtype())


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a file, by their role."""

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
        """Find the columns by name and type; None, and a problem in `findings`, if there are no ids.

        >>> from packline.store.report import Findings
        >>> schema = pa.schema({"input_ids": pa.list_(pa.int64()), "labels": pa.int64()})
        >>> columns = Columns.of(schema, "input_ids", True, "a.arrow", Findings())
        >>> columns.names, columns.has_loss
        (['input_ids'], False)
        """
        kinds = {field.name: field.type for field in schema}
        found = kinds.get(column)
        dtype = None if found is None else _integers(found)
        if dtype is None:
            there = found if found is not None else f"columns {', '.join(kinds) or 'none'}"
            findings.add(file, f"column {column}", "lists of integers", there)
            return None

        def listed(name: str) -> bool:
            kind = kinds.get(name)
            return (
                kind is not None
                and is_list_type(kind)
                and (_integers(kind) is not None or pa.types.is_boolean(kind.value_type))
            )

        labels = LABELS if with_loss and _integers(kinds.get(LABELS, pa.null())) is not None else None
        return cls(
            column,
            dtype,
            labels,
            tuple(name for name in MASKS if with_loss and listed(name)),
            ATTENTION if listed(ATTENTION) else None,
            "id" if "id" in kinds and _may_be_id(kinds["id"]) else None,
        )

    @property
    def has_loss(self) -> bool:
        """True if a column contains a loss mask."""
        return self.labels is not None or bool(self.masks)

    @property
    def names(self) -> list[str]:
        """Columns that have to be read."""
        found = (self.tokens, self.labels, *self.masks, self.attention, self.ids)
        return [name for name in found if name is not None]

    def blocks(self, batch: pa.RecordBatch, path: str, first_row: int) -> Iterator[DocumentBlock]:
        """Documents of a record batch, at most `BLOCK_TOKENS` at a time; a longer one alone.

        Args:
            path: path of the file, for errors.
            first_row: number of the first row in the file, to which positions are relative.

        Raises:
            CorruptStore: invalid or inconsistent lists.
        """
        whole = self.block(batch, path, first_row)
        offsets, first = whole.offsets, 0
        while first < len(whole):
            last = int(offsets.searchsorted(offsets[first] + BLOCK_TOKENS, "right")) - 1
            last = min(max(last, first + 1), first + BLOCK_DOCUMENTS)
            yield self._slice(whole, first, last)
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
                raise CorruptStore(
                    f"{read.row(offsets, at)}, label of token {read.inner(offsets, at):,}: "
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

    def _slice(self, block: DocumentBlock, first: int, last: int) -> DocumentBlock:
        begin, end = int(block.offsets[first]), int(block.offsets[last])
        assert block.positions is not None
        return DocumentBlock(
            block.tokens[begin:end],
            block.offsets[first : last + 1] - begin,
            None if block.loss is None else block.loss[begin:end],
            block.positions[first:last],
            None if block.ids is None else block.ids[first:last],
        )


def _may_be_id(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind))


@dataclass(frozen=True, slots=True)
class ListReader:
    """Extracts lists from columns; errors contain the row."""

    path: str
    first_row: int

    def lists(self, batch: pa.RecordBatch, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Values `[T]` and offsets int64 `[D+1]` of a column, with offsets from 0."""
        array = batch.column(name)
        try:
            array.validate()  # that buffers are long enough; a constant cost
        except pa.ArrowInvalid as error:
            raise CorruptStore(f"{self.path}: column {name}: {error}") from error
        if array.null_count:
            at = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
            raise CorruptStore(
                f"{self.path}: row {self.first_row + at:,}: expected a list in {name}, found null"
            )
        if pa.types.is_fixed_size_list(array.type):
            width = array.type.list_size
            offsets = (np.arange(len(array) + 1, dtype=np.int64) + array.offset) * width
        else:
            offsets = array.offsets.to_numpy().astype(np.int64)
        if int(offsets[0]) < 0 or int(offsets[-1]) > len(array.values) or bool((np.diff(offsets) < 0).any()):
            at = int(np.argmax(np.diff(offsets) < 0))
            raise CorruptStore(f"{self.path}: row {self.first_row + at:,}: lists of {name} that go backwards")
        values = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        offsets = offsets - offsets[0]
        if values.null_count:
            at = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
            raise CorruptStore(f"{self.row(offsets, at)}: expected a number in {name}, found null")
        return values.to_numpy(zero_copy_only=False), offsets

    def parallel(self, batch: pa.RecordBatch, name: str, offsets: np.ndarray) -> np.ndarray:
        """Values of a column with one value per token."""
        values, found = self.lists(batch, name)
        if not np.array_equal(found, offsets):
            at = int(np.argmax(np.diff(found) != np.diff(offsets)))
            raise CorruptStore(
                f"{self.path}: row {self.first_row + at:,}: expected {offsets[at + 1] - offsets[at]:,} "
                f"numbers in {name}, as many as there are tokens, found {found[at + 1] - found[at]:,}",
                hint="loss=none reads the ids without them" if name != ATTENTION else "",
            )
        return values

    def mask(self, batch: pa.RecordBatch, name: str, offsets: np.ndarray) -> np.ndarray:
        """A mask as uint8 0 or 1 per token."""
        values = self.parallel(batch, name, offsets)
        if len(wrong := np.flatnonzero((values != 0) & (values != 1))):
            at = int(wrong[0])
            raise CorruptStore(f"{self.row(offsets, at)}: expected 0 or 1 in {name}, found {values[at]}")
        return values.astype(np.uint8)

    def row(self, offsets: np.ndarray, place: int) -> str:
        """The file, and the row that holds a value."""
        number = self.first_row + int(offsets.searchsorted(place, "right")) - 1
        return f"{self.path}: row {number:,}"

    def inner(self, offsets: np.ndarray, place: int) -> int:
        """Position of a value in its row."""
        return place - int(offsets[int(offsets.searchsorted(place, "right")) - 1])


class ColumnFile(ABC):
    """One file. Its groups can be read separately: record batches, or row groups."""

    file: int
    """Number of the file in the data set."""
    path: str
    split: str
    columns: Columns
    rows: np.ndarray
    """int64 `[G+1]`: first row of each group, and the number of rows."""
    begins: np.ndarray
    """int64 `[G]`: start offset of each group, in bytes."""
    size: int
    """Bytes of the file."""
    tokens: np.ndarray
    """int64 `[G]`: approximate number of tokens per group."""

    @abstractmethod
    def batches(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The selected columns of groups `start` to `stop`.

        Raises:
            CorruptStore: they cannot be read.
        """

    def units(self, companions: Sequence[tuple[int, int, int]]) -> Iterator[ReadTask]:
        """Units of groups with about `UNIT_TOKENS` together; a unit's `start` and `stop` are groups.

        Args:
            companions: pieces of other files that the first unit also covers.
        """
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
    """Documents in columns.

    Args:
        files: all files of the data set.
        sources: files with documents, in document order.
        edges: boundary tokens that every document is expected to have.
        findings: receives problems: types or masks unlike those of the first file.
    """

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
            findings.compare(
                name, "type of ids, as in the first file", self.dtype.name, source.columns.dtype.name
            )
            findings.compare(
                name, "loss mask, where other files have one", self.has_loss, source.columns.has_loss
            )
            self.units += source.units(others if not self.units else ())

    def blocks(self, unit: ReadTask) -> Iterator[DocumentBlock]:
        source = self._sources[unit.file]
        row = int(source.rows[unit.start])
        for batch in source.batches(unit.start, unit.stop):
            yield from source.columns.blocks(batch, source.path, row)
            row += batch.num_rows


def split_of_path(name: str) -> str:
    """Split from the path of a file: `val` or `test` if a word of its name or a folder means that.

    >>> split_of_path("data/test-00000-of-00001.parquet"), split_of_path("validation/data.arrow")
    ('test', 'val')
    """
    found = (split_of_name(part) for part in PurePath(name).parts)
    return next((split for split in found if split != "train"), "train")
