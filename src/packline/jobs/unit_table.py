"""Planned units as columns: a million of them take 50 MB instead of 400, and are made when they are used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, overload

import msgspec
import numpy as np

from packline.jobs.units import Stream, Unit
from packline.sources.reader import Span
from packline.store.unit_names import UnitName, parse_unit

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
        columns = self.columns
        source, text_bytes = int(columns["source"][places]), int(columns["text_bytes"][places])
        name = str(UnitName(self.slugs[source], int(columns["number"][places])))
        first = int(columns["ends"][places - 1]) if places else 0
        last = int(columns["ends"][places])
        if slice_bytes := int(columns["slice_bytes"][places]):
            return Stream(name, source, int(columns["file"][first]), slice_bytes, text_bytes)
        spans = zip(*(columns[one][first:last].tolist() for one in ("file", "start", "stop")), strict=True)
        return Unit(name, source, tuple(Span(*span) for span in spans), text_bytes)

    def __iter__(self) -> Iterator[Unit | Stream]:
        return (self[place] for place in range(len(self)))

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
