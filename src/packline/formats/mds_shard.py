"""One MDS shard: positions of the tokens within its records. `mds` describes the layout.

    record     size  size | bytes of column a | of tokens: [type] [shape] values | of column z
               of the columns of varying size

The positions follow from the sizes before them. They are computed with NumPy for all records of a block
together, and the values are then copied slice by slice: about a microsecond per record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from packline.errors import CorruptStore, InputError
from packline.formats.shared.records import read_bytes
from packline.formats.types import ForeignFile

BLOCK_BYTES = 4 << 20
"""Approximate size of the records read at a time, in bytes."""
BLOCK_RECORDS = 1 << 16
TYPES = {8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 32: "<u4", 33: "<i4", 64: "<u8", 65: "<i8"}
"""Integer types, by the byte that encodes them."""
NAMES = {np.dtype(code).name: np.dtype(code) for code in TYPES.values()}


@dataclass(frozen=True, slots=True)
class Columns:
    """Position of the tokens within the records of a shard."""

    varying: int
    """Number of columns of varying size; every record begins with their sizes."""
    fixed_bytes: int
    """Bytes of the columns of fixed size."""
    fixed_before: int
    """Bytes of the columns of fixed size before the tokens."""
    varying_before: int
    """Number of columns of varying size before the tokens."""
    size: int | None
    """Size of the tokens' column in bytes, if fixed."""
    dtype: np.dtype | None
    """Dtype of the tokens; None where each record contains its own."""
    shaped: bool
    """True if each record contains its own shape."""

    @classmethod
    def of(cls, where: str, settings: dict[str, Any], column: str, bytes_dtype: str) -> Columns:
        """Derive the positions from a shard's settings.

        Raises:
            InputError: the column is missing or holds no tokens.
        """
        names, encodings = settings.get("column_names"), settings.get("column_encodings")
        sizes = settings.get("column_sizes")
        lists = (names, encodings, sizes)
        if not all(isinstance(one, list) for one in lists) or len({len(one or ()) for one in lists}) != 1:
            raise InputError(f"{where}: expected names, encodings and sizes of its columns, found {settings}")
        assert names is not None and encodings is not None and sizes is not None
        if not all(size is None or (isinstance(size, int) and size >= 0) for size in sizes):
            raise InputError(f"{where}: expected sizes of columns, found {sizes}")
        if column not in names:
            raise InputError(
                f"{where}: no column {column!r} among {', '.join(map(str, names))}",
                hint="name the column of tokens: --set column=NAME",
            )
        at = names.index(column)
        kind, *rest = str(encodings[at]).split(":")
        dtype: np.dtype | None
        if kind == "bytes":
            dtype, shaped = np.dtype(bytes_dtype).newbyteorder("<"), False
        elif kind == "ndarray" and (not rest or rest[0] in NAMES):
            dtype, shaped = NAMES[rest[0]] if rest else None, len(rest) < 2
        else:
            raise InputError(f"{where}: column {column}: expected integers, found {encodings[at]!r}")
        fixed = [size or 0 for size in sizes]
        return cls(
            varying=sum(size is None for size in sizes),
            fixed_bytes=sum(fixed),
            fixed_before=sum(fixed[:at]),
            varying_before=sum(size is None for size in sizes[:at]),
            size=sizes[at],
            dtype=dtype,
            shaped=shaped,
        )


class Shard:
    """Records of one shard."""

    def __init__(
        self, file: ForeignFile, number: int, split: str, columns: Columns, records: int, packed: int | None
    ) -> None:
        self.file, self.number, self.split, self.columns, self.records = file, number, split, columns, records
        self.packed = packed
        """Uncompressed size of a compressed shard."""

    @cached_property
    def dtype(self) -> np.dtype:
        """Dtype of the shard's tokens."""
        if self.columns.dtype is not None:
            return self.columns.dtype
        data = self.take(*self.offsets(0, 1)) if self.records else np.empty(0, np.uint8)
        starts, _ = self._places(data, np.array([0, len(data)]), 0)
        return np.dtype(TYPES.get(int(data[starts[0]]) if len(starts) else 33, "<i4"))

    def take(self, start: int, stop: int) -> np.ndarray:
        """Bytes of the file, uint8."""
        return read_bytes(self.file, int(start), int(stop), self.packed)

    def offsets(self, start: int, stop: int) -> np.ndarray:
        """Start offsets of records `start` to `stop`, int64 `[stop - start + 1]`; the last entry is an end.

        Raises:
            CorruptStore: they decrease, or the file is too short.
        """
        if self.packed is not None and (said := int(self.take(0, 4).view("<u4")[0])) != self.records:
            raise CorruptStore(f"{self.file.path}: expected {self.records:,} records, found {said:,}")
        offsets = self.take(4 + 4 * start, 8 + 4 * stop).view("<u4").astype(np.int64)
        if len(wrong := np.flatnonzero(np.diff(offsets) < 4 * self.columns.varying)):
            at = int(wrong[0])
            raise CorruptStore(
                f"{self.file.path}: record {start + at}: expected its end behind its beginning at byte "
                f"{offsets[at]:,}, found {offsets[at + 1]:,}",
                hint="the shard is damaged",
            )
        return offsets

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of records `start` to `stop`, back to back, and the number of tokens of each, int64.

        Raises:
            CorruptStore: a record does not match its columns.
        """
        if start == stop:
            return np.empty(0, self.dtype), np.empty(0, np.int64)
        offsets = self.offsets(start, stop)
        data = self.take(int(offsets[0]), int(offsets[-1]))
        starts, ends = self._values(data, offsets - offsets[0], start)
        view = np.ascontiguousarray(data).data
        joined = b"".join(
            [view[begin:end] for begin, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        )
        return np.frombuffer(joined, self.dtype), (ends - starts) // self.dtype.itemsize

    def _places(self, data: np.ndarray, offsets: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
        """Start and end of the tokens' column in each record."""
        columns, begins = self.columns, offsets[:-1]
        sizes = [_numbers(data, begins + 4 * column, 4) for column in range(columns.varying)]
        expected = begins + 4 * columns.varying + columns.fixed_bytes + sum(sizes)
        self._refuse(expected != offsets[1:], first, "a size other than that of its columns")
        starts = begins + 4 * columns.varying + columns.fixed_before + sum(sizes[: columns.varying_before])
        return starts, starts + (sizes[columns.varying_before] if columns.size is None else columns.size)

    def _values(self, data: np.ndarray, offsets: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
        """Start and end of the tokens themselves, after their type and shape."""
        columns = self.columns
        starts, ends = self._places(data, offsets, first)
        if columns.dtype is None:
            self._refuse(starts >= ends, first, "no type before its tokens")
            code = next(code for code, name in TYPES.items() if np.dtype(name) == self.dtype)
            self._refuse(data[starts] != code, first, f"another type than {self.dtype.name}")
            starts = starts + 1
        shape = None
        if columns.shaped:
            self._refuse(starts >= ends, first, "no shape before its tokens")
            axes, width = (data[starts] >> 2).astype(np.int64), 1 << (data[starts] & 3).astype(np.int64)
            self._refuse(axes != 1, first, "more than one axis")
            self._refuse(starts + 1 + width > ends, first, "no shape before its tokens")
            shape = np.zeros(len(starts), np.int64)
            for size in np.unique(width):
                those = width == size
                shape[those] = _numbers(data, starts[those] + 1, int(size))
            starts = starts + 1 + width
        size = self.dtype.itemsize
        self._refuse((ends - starts) % size != 0, first, f"a size that is no multiple of {size}")
        if shape is not None:
            self._refuse(shape * size != ends - starts, first, "a shape other than its size")
        return starts, ends

    def _refuse(self, wrong: Any, first: int, what: str) -> None:
        if np.any(wrong):
            at = first + int(np.flatnonzero(wrong)[0])
            raise CorruptStore(
                f"{self.file.path}: record {at:,}: {what}", hint="the shard is damaged, or index.json"
            )

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield records a few megabytes at a time: number of the first record, tokens, and number of tokens
        per record."""
        while start < stop:
            offsets = self.offsets(start, min(stop, start + BLOCK_RECORDS))
            within = int(np.searchsorted(offsets, offsets[0] + BLOCK_BYTES, side="right")) - 1
            end = start + max(min(within, len(offsets) - 1), 1)
            yield start, *self.read(start, end)
            start = end


def _numbers(data: np.ndarray, places: np.ndarray, size: int) -> np.ndarray:
    """Unsigned integers of `size` bytes at the given positions, aligned or not, as int64 `[n]`."""
    gathered = data[places[:, None] + np.arange(size)]
    return gathered.view(f"<u{size}").reshape(-1).astype(np.int64)
