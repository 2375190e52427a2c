"""Receipts of a build, each read once.

A receipt is small and a build has many, so where reading takes a request, many are read at the same time.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec

from packline.fingerprint import hash_bytes
from packline.storage.protocol import Storage
from packline.store.files import FileEntry
from packline.store.manifest import Receipt, StreamReceipt, to_json
from packline.store.naming import STREAM
from packline.store.tables import RECEIPTS

TOGETHER, READERS = 1024, 32
"""Number of receipts that are requested together, and read at the same time, from an object store."""
DECODER = msgspec.json.Decoder(Receipt)


class ReceiptMap(Mapping[str, Receipt]):
    """Receipts by unit, compressed: a million take half a gigabyte, and as values three."""

    def __init__(self) -> None:
        self._packed: dict[str, bytes] = {}

    def add(self, unit: str, data: bytes) -> None:
        """Take over a receipt as it is in its file."""
        DECODER.decode(data)  # damage is noticed here
        self._packed[unit] = zlib.compress(data, 1)

    def __delitem__(self, unit: str) -> None:
        del self._packed[unit]

    def entry(self, unit: str) -> FileEntry:
        """Entry of a receipt's file."""
        return _entry(unit, zlib.decompress(self._packed[unit]))

    def __getitem__(self, unit: str) -> Receipt:
        return DECODER.decode(zlib.decompress(self._packed[unit]))

    def __contains__(self, unit: object) -> bool:
        return unit in self._packed

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)


class CommittedReceipts:
    """Receipts of a build, as far as they were read."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.receipts = ReceiptMap()
        """Receipts of units, by unit."""
        self.streams: dict[str, StreamReceipt] = {}
        """Receipts of streams that were read to their end, by name."""
        self.unread: set[str] = set()
        """Units that are known to be committed, and whose receipts were not read."""

    def look(self) -> None:
        """Find out what is committed by now, and forget what was withdrawn: by a listing."""
        start = len(RECEIPTS) + 1
        names = {name[start:].removesuffix(".json") for name in self._storage.list(RECEIPTS)}
        for unit in [unit for unit in self.receipts if unit not in names]:
            del self.receipts[unit]
        for stream in [stream for stream in self.streams if f"{stream}{STREAM}" not in names]:
            del self.streams[stream]
        names.difference_update(self.receipts, [f"{stream}{STREAM}" for stream in self.streams])
        self.unread = {name for name in names if not name.endswith(STREAM)}
        self._read(names - self.unread)

    def refresh(self) -> None:
        """Look, and read receipts that are new."""
        self.look()
        self.read(self.unread)

    def __contains__(self, unit: object) -> bool:
        """True for a unit or slice that is known to be committed."""
        return unit in self.receipts or unit in self.unread

    def read(self, units: Iterable[str]) -> None:
        """Read receipts of units that are known to be committed, unless they were read."""
        wanted = self.unread.intersection(units)
        self._read(wanted)
        self.unread -= wanted

    def add(self, unit: str, receipt: Receipt | StreamReceipt) -> None:
        """Take over a receipt that a worker has committed."""
        if isinstance(receipt, StreamReceipt):
            self.streams[unit] = receipt
        else:
            self.receipts.add(unit, to_json(receipt))

    def entries(self, units: Iterable[str]) -> Iterator[FileEntry]:
        """Entries of the receipts' own files: of these units in order, then of all streams."""
        yield from map(self.receipts.entry, units)
        yield from (_entry(f"{stream}{STREAM}", to_json(end)) for stream, end in self.streams.items())

    def _read(self, wanted: set[str]) -> None:
        """Read receipts of units and streams; one that is withdrawn meanwhile is left out."""
        names = sorted(wanted)
        with ThreadPoolExecutor(READERS) as threads:
            many = map if self._storage.folder is not None else threads.map
            for start in range(0, len(names), TOGETHER):
                part = names[start : start + TOGETHER]
                for name, data in zip(part, many(self._read_one, part), strict=True):
                    if data is None:
                        continue
                    if name.endswith(STREAM):
                        end = msgspec.json.decode(data, type=StreamReceipt)
                        self.streams[name.removesuffix(STREAM)] = end
                    else:
                        self.receipts.add(name, data)

    def _read_one(self, name: str) -> bytes | None:
        try:
            return self._storage.read(_file_of(name))
        except FileNotFoundError:
            return None


def _entry(name: str, data: bytes) -> FileEntry:
    return FileEntry(_file_of(name), len(data), hash_bytes(data))


def _file_of(name: str) -> str:
    return f"{RECEIPTS}/{name}.json"
