"""One file of a remote store, and the checksums of its MiB.

Whatever arrives is compared with them, or with the checksum of the whole file, before anyone sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import xxhash

from packline.errors import CorruptStore
from packline.fingerprint import hash_bytes
from packline.store.files import HINT, FileEntry
from packline.store.sums import BLOCK_BYTES, block_ranges, block_sums, split_sums
from packline.store.tables import SHARD_FILES, ShardEntry


class Brings(Protocol):
    """A store that brings its files."""

    place: str

    def bring(self, files: Sequence[RemoteFile]) -> list[np.ndarray]:
        """Whole files, uint8 `[N]` each."""


class RemoteFile:
    """One file of a remote store.

    Args:
        store: its store.
        entry: its name, size and checksum; an empty checksum is not compared.
        key: key of the whole file in the cache.
        sums: the checksums of the MiB of its shard; None for a file that has none.
    """

    def __init__(self, store: Brings, entry: FileEntry, key: str, sums: ShardSums | None = None) -> None:
        self.store, self.entry, self.key, self.sums = store, entry, key, sums

    def piece_key(self, number: int) -> str:
        """Key of one of its MiB in the cache; a file of one is the whole file."""
        return f"{self.key}-{number}" if self.entry.bytes > BLOCK_BYTES else self.key

    def piece_bytes(self, number: int) -> int:
        """Bytes of one of its MiB: of the last, what remains."""
        return min(BLOCK_BYTES, self.entry.bytes - number * BLOCK_BYTES)

    @property
    def _sums(self) -> np.ndarray | None:
        return None if self.sums is None else self.sums.by_name[self.entry.name]

    def damage(self, data: np.ndarray) -> CorruptStore | None:
        """Error for bytes of the whole file that are not those of the manifest; None if they are."""
        entry, path = self.entry, f"{self.store.place}/{self.entry.name}"
        if len(data) != entry.bytes:
            return CorruptStore(f"{path}: expected {entry.bytes:,} bytes, found {len(data):,}", hint=HINT)
        if not entry.checksum or (found := hash_bytes(data.data)) == entry.checksum:
            return None
        place = ""
        if self.sums is not None:
            wrong = np.flatnonzero(block_sums(data) != self._sums)
            place = f" in byte range {block_ranges(wrong)}" if len(wrong) else ""
        return CorruptStore(
            f"{path} arrived damaged{place}: expected the checksum {entry.checksum}, found {found}", hint=HINT
        )

    def piece_damage(self, number: int, data: np.ndarray) -> CorruptStore | None:
        """Error for a MiB that is not the file's; None if it is."""
        start = number * BLOCK_BYTES
        stop = min(start + BLOCK_BYTES, self.entry.bytes)
        expected: int | str = stop - start
        found: int | str = len(data)
        if expected == found and stop - start == self.entry.bytes:
            return self.damage(data)
        if expected == found and (sums := self._sums) is not None:
            expected, found = (f"the checksum {one:016x}" for one in (int(sums[number]), _sum(data)))
        if expected == found:
            return None
        return CorruptStore(
            f"{self.store.place}/{self.entry.name}: bytes {start:,} to {stop:,} arrived damaged: expected "
            f"{expected}, found {found}",
            hint=HINT,
        )


def _sum(data: np.ndarray) -> int:
    return xxhash.xxh3_64_intdigest(data.data)


class ShardSums:
    """Checksums of the MiB of a shard's files, brought when they are first needed.

    Args:
        store: its store.
        entry: the shard.
    """

    def __init__(self, store: Brings, entry: ShardEntry) -> None:
        self._store, self.entry = store, entry

    @cached_property
    def file(self) -> RemoteFile:
        """The file of the checksums.

        Raises:
            CorruptStore: the manifest does not list it.
        """
        name = f"{self.entry.name}{SHARD_FILES['sums']}"
        for one in self.entry.files:
            if one.name == name:
                return RemoteFile(self._store, one, one.checksum)
        raise CorruptStore(f"the manifest of {self._store.place} does not list {name}", hint=HINT)

    @cached_property
    def by_name(self) -> dict[str, np.ndarray]:
        """Checksums of the MiB of each of its files, uint64 `[N]`, by name."""
        (data,) = self._store.bring([self.file])
        others = [one for one in self.entry.files if one.name != self.file.entry.name]
        found = split_sums(data.view("<u8"), [one.bytes for one in others])
        return {one.name: sums for one, sums in zip(others, found, strict=True)}

    @property
    def are_needed(self) -> bool:
        """True if they are not here, and a file is so long that its own checksum is not enough."""
        return "by_name" not in self.__dict__ and any(one.bytes > BLOCK_BYTES for one in self.entry.files)
