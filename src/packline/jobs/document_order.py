"""Committed units in document order: which follow one another without a gap, and which are left.

A file that is committed slice by slice counts as done once its end is recorded, and as many slices as it has.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from packline.jobs.plan import Unit
from packline.store.manifest import StreamReceipt


class DocumentOrder:
    """Names of committed units and slices in document order, up to the first gap; each is given once.

    Receipts are looked up lazily, so additions count. Over a whole build the cost is linear in the number of
    units, however often `advance` is called.

    Args:
        units: planned units.
        receipts: names of committed units and slices; the caller adds later ones.
        ends: ends of files that are committed slice by slice; the caller adds later ones.
    """

    def __init__(
        self, units: Iterable[Unit], receipts: Container[str], ends: Mapping[str, StreamReceipt]
    ) -> None:
        self._units, self._receipts, self._ends = iter(units), receipts, ends
        self.unit = next(self._units, None)
        """Unit of the first gap; None if there is none."""
        self.slice = 0
        """Slice of the first gap."""
        self.passed = 0
        """Number of planned units before the first gap."""

    @property
    def next_name(self) -> str:
        """Name of the first unit or slice that is missing; it may turn out that a file has no such slice."""
        assert self.unit is not None
        return self.unit.slice_name(self.slice) if self.unit.slice_bytes else self.unit.name

    def advance(self) -> Iterator[str]:
        """Names of the units that follow those already given, up to the next gap."""
        while (unit := self.unit) is not None:
            if unit.slice_bytes:
                while (name := unit.slice_name(self.slice)) in self._receipts:
                    self.slice += 1
                    yield name
                if unit.name not in self._ends or self.slice < self._ends[unit.name].units:
                    return
            elif unit.name not in self._receipts:
                return
            self.unit, self.slice, self.passed = next(self._units, None), 0, self.passed + 1
            if not unit.slice_bytes:
                yield unit.name


def units_left(
    units: Iterable[Unit], receipts: Container[str], ends: Mapping[str, StreamReceipt]
) -> list[Unit]:
    """Units that are not, or not all, committed; see `DocumentOrder`.

    >>> units = [Unit("a-000000"), Unit("a-000001", slice_bytes=9)]
    >>> end = StreamReceipt("a", "x.zst", 1, "")
    >>> [unit.name for unit in units_left(units, {"a-000001-000000"}, {"a-000001": end})]
    ['a-000000']
    """

    def is_done(unit: Unit) -> bool:
        if not unit.slice_bytes:
            return unit.name in receipts
        end = ends.get(unit.name)
        return end is not None and all(unit.slice_name(number) in receipts for number in range(end.units))

    return [unit for unit in units if not is_done(unit)]
