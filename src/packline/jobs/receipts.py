"""Committed units of a build, in the order of the documents: read from receipts, and published for readers.

Each receipt is read once; where that takes a request, many are read at the same time. A file that is
committed slice by slice is done once its end is recorded, and as many slices as it has.

    plan         a  b  c  d  e  f
    committed    a  b  c  -  e  -
    published    a  b | c             partial manifests: each adds units to those before it

Units in document order are a function of the plan, so partial manifests of several processes agree where
they overlap, and a reader takes of each what continues what it has. A failure to write one is made good by
the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby

import msgspec

from packline.errors import PacklineError, StoreError
from packline.fingerprint import hash_bytes
from packline.jobs.plan import Plan, Unit, pack, read_packed
from packline.storage.results import WORK, Storage
from packline.store.files import FileEntry
from packline.store.ledger import source_names
from packline.store.manifest import Receipt, StreamReceipt, to_json
from packline.store.naming import STREAM
from packline.store.tables import RECEIPTS, ShardEntry, UnitEntry

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


PARTIAL = f"{WORK}/partial"
FIRST_SECONDS, LONGEST_SECONDS = 1.0, 30.0
"""Time from one file to the next of a process, doubled from the first to the last."""

ListedUnit = tuple[UnitEntry, tuple[ShardEntry, ...]]
"""A unit as a manifest lists it: its receipt and rejects, and its shards."""


class SourcePart(msgspec.Struct, frozen=True, array_like=True):
    """Units of one source, in document order."""

    first: int
    """Number of units before these."""
    units: list[ListedUnit]
    passed: int
    """Planned units that are done: a file that is committed slice by slice counts at its end."""
    following: str
    """Name of the unit after them; empty if there is none."""

    @property
    def end(self) -> tuple[int, int]:
        """Place up to which the source is known: units, and planned units that are done."""
        return self.first + len(self.units), self.passed


class PartialManifest(msgspec.Struct, frozen=True):
    build: str
    """Identity of the build, as in its plan."""
    sources: dict[str, SourcePart]
    """By name; those without anything new are left out."""


class PublishedUnits:
    """Units that a running build has published, up to the first gap of each source.

    Args:
        take: called with the name of a source and its next units.
    """

    def __init__(self, storage: Storage, build: str, take: Callable[[str, list[ListedUnit]], None]) -> None:
        self._storage, self._build, self._take = storage, build, take
        self._seen: set[str] = set()
        self._waiting: dict[str, list[SourcePart]] = {}
        """Parts of each source that do not continue what is known."""
        self.ends: dict[str, tuple[int, int]] = {}
        """Place up to which each source is known; see `SourcePart.end`."""
        self.following: dict[str, str] = {}
        """Name of the next unit of each source; empty if there is none."""

    def look(self) -> bool:
        """Read the files that are new; True if a source is known further."""
        before = dict(self.ends)
        for name in self._storage.list(PARTIAL):
            with suppress(FileNotFoundError):  # the build has ended meanwhile
                if name not in self._seen:
                    self.add(name, read_packed(self._storage, name, PartialManifest))
        return self.ends != before

    def add(self, name: str, found: PartialManifest) -> None:
        """Take over a file; one of another build is a StoreError."""
        if found.build != self._build:
            raise StoreError(
                f"{self._storage.place} was begun again, from another recipe, tokenizer or inputs while it "
                "was read",
                hint="begin the run again, or put the earlier store back",
            )
        self._seen.add(name)
        for source, part in found.sources.items():
            waiting = self._waiting.setdefault(source, [])
            waiting.append(part)
            for one in sorted(waiting, key=lambda part: part.end):
                first, passed = self.ends.get(source, (0, -1))
                if one.first <= first and one.end > (first, passed):
                    self.ends[source], self.following[source] = one.end, one.following
                    if units := one.units[first - one.first :]:
                        self._take(source, units)
            waiting[:] = [one for one in waiting if one.first > self.ends.get(source, (0, 0))[0]]


class Publisher:
    """Publishes what a build has committed; the caller adds receipts."""

    def __init__(self, storage: Storage, plan: Plan, committed: CommittedReceipts) -> None:
        self._storage, self._plan, self._committed = storage, plan, committed
        self._published = PublishedUnits(storage, plan.build, lambda source, units: None)
        self._orders: dict[str, tuple[DocumentOrder, list[str]]] = {}
        """By source: the order of its units, and the names of those up to the first gap."""
        self._pause, self._due = FIRST_SECONDS, time.monotonic() + FIRST_SECONDS

    def publish_when_due(self) -> None:
        """Publish, unless the last time was a moment ago; a failure is ignored."""
        if time.monotonic() < self._due:
            return
        self._pause = min(2 * self._pause, LONGEST_SECONDS)
        with suppress(PacklineError, OSError):
            self.publish()
        self._due = time.monotonic() + self._pause

    def publish(self) -> None:
        """Publish what is committed and not published yet, also by other processes."""
        if not self._orders:
            names, committed = source_names(self._plan.recipe), self._committed
            for source, units in groupby(self._plan.units, lambda unit: unit.source):
                self._orders[names[source]] = (
                    DocumentOrder(list(units), committed.names, committed.streams),
                    [],
                )
        self._published.look()
        found = PartialManifest(self._plan.build, {})
        for source, (order, there) in self._orders.items():
            there += order.advance()
            first, passed = self._published.ends.get(source, (0, -1))
            # Another process may have seen more.
            if first <= len(there) and (len(there), order.passed) > (first, passed):
                following = "" if order.unit is None else order.next_name
                part = SourcePart(first, self._listed(there[first:]), order.passed, following)
                found.sources[source] = part
        if found.sources:
            data = pack(found)
            name = f"{PARTIAL}/{hash_bytes(data)}.zst"
            self._storage.put_new(name, data)
            self._published.add(name, found)

    def _listed(self, units: list[str]) -> list[ListedUnit]:
        self._committed.read(units)
        receipts = self._committed.receipts
        found = [(unit, receipts[unit]) for unit in units]
        return [
            (UnitEntry(unit, one.source, receipt_entry(unit, one), one.rejects), one.shards)
            for unit, one in found
        ]
