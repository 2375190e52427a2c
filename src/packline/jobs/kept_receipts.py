"""Receipts of many units, in a file without a name: a million of them take 200 MB of memory instead of 3 GB.

What a store is made of is read from receipts once, at the end, so they need not be values until then. The
first few thousand stay in memory, so a usual build has no such file.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator, MutableMapping
from pathlib import Path

import msgspec

from packline.fingerprint import hash_bytes
from packline.jobs.work import SCRATCH
from packline.store.files import FileEntry
from packline.store.manifest import Receipt, to_json
from packline.store.tables import RECEIPTS

IN_MEMORY = 8 << 20
"""Bytes of receipts up to which there is no file."""
SIZE_BITS = 32
DECODER = msgspec.json.Decoder(Receipt)


class KeptReceipts(MutableMapping[str, Receipt]):
    """Receipts by unit, each decoded when it is used.

    >>> from packline.store.ledger import Ledger
    >>> kept = KeptReceipts()
    >>> kept["web-000007"] = Receipt("web-000007", "web", (), (), (), Ledger(tokens=9), 0)
    >>> kept["web-000007"].ledger.tokens, list(kept), kept.entry("web-000007").name
    (9, ['web-000007'], 'receipts/web-000007.json')
    """

    def __init__(self) -> None:
        self._memory = bytearray()
        self._file = -1
        """Descriptor of the file, once there is one."""
        self._places: dict[str, int] = {}
        """Start and size of the bytes of each receipt, in one number."""
        self._end = 0

    def add(self, unit: str, data: bytes) -> None:
        """Take over a receipt as it is in its file."""
        if self._file >= 0:
            os.pwrite(self._file, data, self._end)
        else:
            self._memory += data
            if len(self._memory) > IN_MEMORY:
                self._move()
        self._places[unit] = self._end << SIZE_BITS | len(data)
        self._end += len(data)

    def _move(self) -> None:
        """Move all receipts into a file."""
        scratch = os.environ.get(SCRATCH)
        if scratch:
            Path(scratch).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=scratch) as file:
            file.write(self._memory)
            file.flush()
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        self._memory.clear()

    def data(self, unit: str) -> bytes:
        """The bytes of a receipt's file."""
        place = self._places[unit]
        start, size = place >> SIZE_BITS, place & (1 << SIZE_BITS) - 1
        if self._file >= 0:
            return os.pread(self._file, size, start)
        return bytes(self._memory[start : start + size])

    def entry(self, unit: str) -> FileEntry:
        """Entry of a receipt's file."""
        data = self.data(unit)
        return FileEntry(f"{RECEIPTS}/{unit}.json", len(data), hash_bytes(data))

    def __getitem__(self, unit: str) -> Receipt:
        return DECODER.decode(self.data(unit))

    def __setitem__(self, unit: str, receipt: Receipt) -> None:
        self.add(unit, to_json(receipt))

    def __delitem__(self, unit: str) -> None:
        del self._places[unit]

    def __contains__(self, unit: object) -> bool:
        return unit in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
