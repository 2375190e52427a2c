"""Units, and many of them as columns: a million take 50 MB instead of 400, each made when it is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, overload

import msgspec
import numpy as np

from packline.sources.reader import Span
from packline.store.unit_names import UnitName, parse_unit


class Unit(msgspec.Struct, frozen=True):
    """Spans to be encoded together, in order, all of one source."""

    name: str
    source: int
    spans: tuple[Span, ...]
    text_bytes: int
    """Bytes of text, as far as known in advance."""


class Stream(msgspec.Struct, frozen=True):
    """A file to be cut into units while it is read; their names are `NAME-000000` and so on."""

    name: str
    source: int
    file: int
    slice_bytes: int
    text_bytes: int

    def unit_name(self, number: int) -> str:
        """Name of the unit with this number."""
        return f"{self.name}-{number:06d}"

    def slices(self) -> int:
        """Estimated number of slices."""
        return max(-(-self.text_bytes // max(self.slice_bytes, 1)), 1)


COLUMNS = {
    "source": np.uint32,
    "number": np.uint32,
    "text_bytes": np.int64,
    "slice_bytes": np.int64,
    "ends": np.int64,
    "file": np.uint32,
    "start": np.int64,
    "stop": np.int64,
}
"""Names and types of the columns: four of a unit, the end of its spans, and three of a span.

`slice_bytes` is 0 for a unit, and positive for a stream, whose one span is its file.
"""
BLOCK = 1 << 14


class UnitTable(Sequence[Unit | Stream]):
    """Planned units and streams, in the order of the documents.

    Args:
        slugs: slug of each source.
        columns: see `COLUMNS`.

    >>> units = [Unit("web-000000", 0, (Span(0, 0, 9),), 9), Stream("web-000001", 0, 1, 4, 9)]
    >>> table = UnitTable.of(["web"], units)
    >>> list(table) == units, table[1].name, len(table), table.is_stream.tolist()
    (True, 'web-000001', 2, [False, True])
    """

    def __init__(self, slugs: Sequence[str], columns: dict[str, np.ndarray]) -> None:
        self.slugs, self.columns = list(slugs), columns

    @classmethod
    def of(cls, slugs: Sequence[str], units: Iterable[Unit | Stream]) -> Self:
        """Table of units; their names must be those of sources with these slugs."""
        blocks: list[dict[str, np.ndarray]] = []
        rows: list[tuple[int, int, int, int, int]] = []
        spans: list[tuple[int, int, int]] = []
        before = 0

        def flush() -> None:
            own = np.array(rows, np.int64).reshape(-1, 5).T
            of_spans = np.array(spans, np.int64).reshape(-1, 3).T
            values = zip(COLUMNS.items(), (*own, *of_spans), strict=True)
            blocks.append({name: column.astype(dtype) for (name, dtype), column in values})
            rows.clear()
            spans.clear()

        for unit in units:
            name = parse_unit(unit.name)
            assert name is not None, unit.name
            own = (Span(unit.file, 0, 0),) if isinstance(unit, Stream) else unit.spans
            spans += ((span.file, span.start, span.stop) for span in own)
            before += len(own)
            slice_bytes = unit.slice_bytes if isinstance(unit, Stream) else 0
            rows.append((unit.source, name.number, unit.text_bytes, slice_bytes, before))
            if len(rows) == BLOCK:
                flush()
        flush()
        return cls(slugs, {name: np.concatenate([block[name] for block in blocks]) for name in COLUMNS})

    @classmethod
    def of_names(cls, slugs: Sequence[str], names: Iterable[str]) -> Self:
        """Table of units of which only names are known."""
        place = {slug: number for number, slug in enumerate(slugs)}
        parsed = (name for name in map(parse_unit, names) if name is not None)
        return cls.of(slugs, (Unit(str(name), place[name.slug], (), 0) for name in parsed))

    @property
    def is_stream(self) -> np.ndarray:
        """True for each stream, bool `[U]`."""
        return self.columns["slice_bytes"] > 0

    def names(self) -> Iterator[str]:
        """Names of all units."""
        numbers = zip(self.columns["source"].tolist(), self.columns["number"].tolist(), strict=True)
        return (str(UnitName(self.slugs[source], number)) for source, number in numbers)

    def __len__(self) -> int:
        return len(self.columns["source"])

    @overload
    def __getitem__(self, place: int) -> Unit | Stream: ...

    @overload
    def __getitem__(self, place: slice) -> list[Unit | Stream]: ...

    def __getitem__(self, place: int | slice) -> Unit | Stream | list[Unit | Stream]:
        places = range(len(self))[place]
        if isinstance(places, range):
            return [self[one] for one in places]
        return next(self.at([places]))

    def __iter__(self) -> Iterator[Unit | Stream]:
        """Units in order, of which a block is converted at a time."""
        for start in range(0, len(self), BLOCK):
            yield from self.at(range(start, min(start + BLOCK, len(self))))

    def at(self, places: Sequence[int] | np.ndarray) -> Iterator[Unit | Stream]:
        """Units at these places, several times as fast as one by one."""
        columns, where = self.columns, np.asarray(places, np.int64)
        ends = columns["ends"][where]
        firsts = np.where(where > 0, columns["ends"][where - 1], 0) if len(where) else ends
        own = (columns[name][where].tolist() for name in ("source", "number", "text_bytes", "slice_bytes"))
        of_spans = [columns[name] for name in ("file", "start", "stop")]
        for source, number, text_bytes, slice_bytes, first, last in zip(
            *own, firsts.tolist(), ends.tolist(), strict=True
        ):
            name = str(UnitName(self.slugs[source], number))
            if slice_bytes:
                yield Stream(name, source, int(of_spans[0][first]), slice_bytes, text_bytes)
                continue
            spans = zip(*(column[first:last].tolist() for column in of_spans), strict=True)
            yield Unit(name, source, tuple(Span(*span) for span in spans), text_bytes)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, UnitTable)
            and self.slugs == other.slugs
            and all(np.array_equal(self.columns[name], other.columns[name]) for name in COLUMNS)
        )

    __hash__ = None  # type: ignore[assignment]

    def packed(self) -> dict[str, Any]:
        """The table as values that msgpack has."""
        columns = {
            name: column.astype(column.dtype.newbyteorder("<")) for name, column in self.columns.items()
        }
        return {"slugs": self.slugs, **{name: column.tobytes() for name, column in columns.items()}}

    @classmethod
    def unpacked(cls, values: dict[str, Any]) -> Self:
        """The table that `packed` has made.

        Raises:
            ValueError: it is damaged.
        """
        try:
            slugs: list[str] = msgspec.convert(values["slugs"], list[str])
            columns = {
                name: np.frombuffer(values[name], np.dtype(dtype).newbyteorder("<"))
                for name, dtype in COLUMNS.items()
            }
        except (KeyError, TypeError) as error:
            raise ValueError(f"no units: {error}") from error
        units, spans = len(columns["source"]), len(columns["file"])
        lengths = {name: len(column) for name, column in columns.items()}
        if any(lengths[name] != (spans if name in ("file", "start", "stop") else units) for name in COLUMNS):
            raise ValueError(f"columns of other lengths: {lengths}")
        return cls(slugs, columns)
