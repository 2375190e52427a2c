"""Receipts of a build, each read once, and what is committed in the order of the documents.

A receipt is small and a build has many, so where reading takes a request, many are read at the same time. A
file that is committed slice by slice is done once its end is recorded, and as many slices as it has.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec

from packline.fingerprint import hash_bytes
from packline.jobs.plan import Unit
from packline.storage.results import Storage
from packline.store.files import FileEntry
from packline.store.manifest import Receipt, StreamReceipt, to_json
from packline.store.naming import STREAM
from packline.store.tables import RECEIPTS

TOGETHER, READERS = 1024, 32
"""Number of receipts that are requested together, and read at the same time, from an object store."""


class CommittedReceipts:
    """Committed units of a build, as far as they are known, and their receipts, as far as they were read."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.names: set[str] = set()
        """Committed units and slices."""
        self.receipts: dict[str, Receipt] = {}
        self.streams: dict[str, StreamReceipt] = {}
        """Ends of files that are committed slice by slice, by name of the unit."""

    def look(self) -> None:
        """Find out what is committed by now: by a listing."""
        start = len(RECEIPTS) + 1
        listed = {name[start:].removesuffix(".json") for name in self._storage.list(RECEIPTS)}
        ends = {name for name in listed if name.endswith(STREAM)}
        self.names.update(listed - ends)
        for name, data in self._read(ends - {f"{end}{STREAM}" for end in self.streams}):
            self.streams[name.removesuffix(STREAM)] = msgspec.json.decode(data, type=StreamReceipt)

    def refresh(self) -> None:
        self.look()
        self.read(self.names)

    def read(self, units: Iterable[str]) -> None:
        """Read receipts of committed units, unless they were read."""
        for name, data in self._read(self.names.intersection(units) - self.receipts.keys()):
            self.receipts[name] = msgspec.json.decode(data, type=Receipt)

    def add(self, name: str, receipt: Receipt | StreamReceipt) -> None:
        if isinstance(receipt, StreamReceipt):
            self.streams[name] = receipt
        else:
            self.receipts[name] = receipt
            self.names.add(name)

    def entries(self, units: Iterable[str]) -> Iterator[FileEntry]:
        yield from (receipt_entry(unit, self.receipts[unit]) for unit in units)
        yield from (receipt_entry(f"{stream}{STREAM}", end) for stream, end in self.streams.items())

    def _read(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        def read(name: str) -> bytes:
            with suppress(FileNotFoundError):  # another build has begun
                return self._storage.read(_file_of(name))
            return b""

        names = sorted(names)
        with ThreadPoolExecutor(READERS) as threads:
            many = map if self._storage.folder is not None else threads.map
            for start in range(0, len(names), TOGETHER):
                part = names[start : start + TOGETHER]
                yield from ((name, data) for name, data in zip(part, many(read, part), strict=True) if data)


def receipt_entry(name: str, receipt: Receipt | StreamReceipt) -> FileEntry:
    data = to_json(receipt)
    return FileEntry(_file_of(name), len(data), hash_bytes(data))


def _file_of(name: str) -> str:
    return f"{RECEIPTS}/{name}.json"


class DocumentOrder:
    """Names of committed units and slices in document order, up to the first gap; each is given once.

    Over a whole build the cost is linear in the number of units, however often `advance` is called.

    Args:
        receipts: names of committed units and slices; the caller adds later ones.
        ends: ends of files that are committed slice by slice; the caller adds later ones.
    """

    def __init__(
        self, units: Iterable[Unit], receipts: Container[str], ends: Mapping[str, StreamReceipt]
    ) -> None:
        self._units, self._receipts, self._ends = iter(units), receipts, ends
        self.unit = next(self._units, None)
        """Unit of the first gap; None if there is none."""
        self._slice = 0
        self.passed = 0
        """Number of planned units before the first gap."""

    @property
    def next_name(self) -> str:
        """Name of the first unit or slice that is missing; it may turn out that a file has no such slice."""
        assert self.unit is not None
        return self.unit.slice_name(self._slice) if self.unit.slice_bytes else self.unit.name

    def advance(self) -> Iterator[str]:
        """Names of the units that follow those already given, up to the next gap."""
        while (unit := self.unit) is not None:
            if unit.slice_bytes:
                while (name := unit.slice_name(self._slice)) in self._receipts:
                    self._slice += 1
                    yield name
                if unit.name not in self._ends or self._slice < self._ends[unit.name].units:
                    return
            elif unit.name not in self._receipts:
                return
            self.unit, self._slice, self.passed = next(self._units, None), 0, self.passed + 1
            if not unit.slice_bytes:
                yield unit.name


def units_left(
    units: Iterable[Unit], receipts: Container[str], ends: Mapping[str, StreamReceipt]
) -> list[Unit]:
    """Units that are not, or not all, committed; see `DocumentOrder`."""

    def is_done(unit: Unit) -> bool:
        if not unit.slice_bytes:
            return unit.name in receipts
        end = ends.get(unit.name)
        return end is not None and all(unit.slice_name(number) in receipts for number in range(end.units))

    return [unit for unit in units if not is_done(unit)]
