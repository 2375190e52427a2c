"""Receipts of a build, read once, and read together.

    receipts/UNIT.json               commit records, one file each
    .packline/receipts/CHECKSUM.zst  up to 1,000 of them as they are, named by the hash of their content

On an object store a request for each receipt would take longer than the work, so each process joins those
that it has committed or read, and another one reads them together. They are hints: they may be missing, or
overlap. A receipt counts only if it is in the listing of `receipts`.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec

from packline.errors import PacklineError
from packline.fingerprint import hash_bytes
from packline.storage.protocol import Storage
from packline.storage.publication import WORK
from packline.store.files import FileEntry
from packline.store.manifest import Receipt, StreamReceipt, to_json
from packline.store.naming import STREAM
from packline.store.tables import RECEIPTS

JOINED = f"{WORK}/receipts"
MOST_JOINED, LEAST_JOINED = 1000, 100
"""Receipts in one file: when enough wait, and at a look at what is committed."""
READERS = 32
"""Receipts that are read at the same time from an object store."""
DECODER = msgspec.json.Decoder(Receipt)


class ReceiptMap(Mapping[str, Receipt]):
    """Receipts by unit, compressed: a million take half a gigabyte, and as values three."""

    def __init__(self) -> None:
        self._packed: dict[str, bytes] = {}

    def add(self, unit: str, data: bytes) -> None:
        """Take over a receipt as it is in its file."""
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
    """Receipts of a build, as far as they were read.

    Args:
        storage: storage of the build; where reading takes a request, many are read at the same time, and
            joined.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage, self._joins = storage, storage.folder is None
        self.receipts = ReceiptMap()
        """Receipts of units, by unit."""
        self.streams: dict[str, StreamReceipt] = {}
        """Receipts of streams that were read to their end, by name."""
        self.unread: set[str] = set()
        """Units that are known to be committed, and whose receipts were not read."""
        self._waiting: dict[str, bytes] = {}

    def look(self) -> None:
        """Find out what is committed by now: by a listing, without a request for each unit."""
        if len(self._waiting) >= LEAST_JOINED:
            self._join()
        self._update(read_units=False)

    def refresh(self) -> None:
        """Read receipts that are new, and forget those that were withdrawn."""
        self._update(read_units=True)

    def _update(self, *, read_units: bool) -> None:
        start = len(RECEIPTS) + 1
        names = {name[start:].removesuffix(".json") for name in self._storage.list(RECEIPTS)}
        for unit in [unit for unit in self.receipts if unit not in names]:
            del self.receipts[unit]
        for stream in [stream for stream in self.streams if f"{stream}{STREAM}" not in names]:
            del self.streams[stream]
        names.difference_update(self.receipts, [f"{stream}{STREAM}" for stream in self.streams])
        self.unread = set() if read_units else {name for name in names if not name.endswith(STREAM)}
        names -= self.unread
        for name, data in self._read(names):
            self._take(name, data)

    def __contains__(self, unit: object) -> bool:
        """True for a unit or slice that is known to be committed."""
        return unit in self.receipts or unit in self.unread

    def read(self, units: Iterable[str]) -> None:
        """Read receipts of units that are known to be committed, unless they were read."""
        for unit, data in self._read(self.unread.intersection(units)):
            self._take(unit, data)
            self.unread.discard(unit)

    def add(self, unit: str, receipt: Receipt | StreamReceipt) -> None:
        """Take over a receipt that a worker has committed."""
        name = f"{unit}{STREAM}" if isinstance(receipt, StreamReceipt) else unit
        data = to_json(receipt)
        self._take(name, data)
        self._wait(name, data)

    def entries(self, units: Iterable[str]) -> Iterator[FileEntry]:
        """Entries of the receipts' own files: of these units in order, then of all streams."""
        yield from map(self.receipts.entry, units)
        yield from (_entry(f"{stream}{STREAM}", to_json(end)) for stream, end in self.streams.items())

    def _take(self, name: str, data: bytes) -> None:
        if name.endswith(STREAM):
            self.streams[name.removesuffix(STREAM)] = msgspec.json.decode(data, type=StreamReceipt)
        else:
            DECODER.decode(data)  # damage is noticed here
            self.receipts.add(name, data)

    def _read(self, names: set[str]) -> Iterator[tuple[str, bytes]]:
        """Receipts of units and streams, as they are; one that is withdrawn meanwhile is left out."""
        if not self._joins:
            found = ((name, self._read_one(name)) for name in sorted(names))
            yield from ((name, data) for name, data in found if data is not None)
            return
        with ThreadPoolExecutor(READERS) as threads:
            if len(names) >= LEAST_JOINED:
                for joined in threads.map(self._read_joined, self._storage.list(JOINED)):
                    for name in joined.keys() & names:
                        names.discard(name)
                        yield name, joined[name]
            rest = sorted(names)
            for start in range(0, len(rest), MOST_JOINED):
                part = rest[start : start + MOST_JOINED]
                for name, data in zip(part, threads.map(self._read_one, part), strict=True):
                    if data is not None:
                        self._wait(name, data)
                        yield name, data

    def _read_one(self, name: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return self._storage.read(_file_of(name))
        return None

    def _read_joined(self, name: str) -> dict[str, bytes]:
        """Receipts of a file of several, by name; none of one that is damaged."""
        import zstandard

        try:
            data = zstandard.ZstdDecompressor().decompress(self._storage.read(name))
            return msgspec.msgpack.decode(data, type=dict[str, bytes])
        except (FileNotFoundError, zstandard.ZstdError, msgspec.MsgspecError, ValueError):
            return {}

    def _wait(self, name: str, data: bytes) -> None:
        if self._joins:
            self._waiting[name] = data
            if len(self._waiting) >= MOST_JOINED:
                self._join()

    def _join(self) -> None:
        """Write what waits; a failure costs the next start some time, and is ignored."""
        import zstandard

        packed = msgspec.msgpack.encode(dict(sorted(self._waiting.items())))
        data = zstandard.ZstdCompressor(write_checksum=True).compress(packed)
        self._waiting = {}
        with contextlib.suppress(PacklineError, OSError):
            self._storage.put_new(f"{JOINED}/{hash_bytes(packed)}.zst", data)


def _entry(name: str, data: bytes) -> FileEntry:
    return FileEntry(_file_of(name), len(data), hash_bytes(data))


def _file_of(name: str) -> str:
    """Name of the file of a receipt, by its unit or stream."""
    return f"{RECEIPTS}/{name}.json"
