"""One file of a remote store, and the checksums of its blocks.

Whatever arrives is compared with them, or with the checksum of the whole file, before anyone sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from packline.errors import CorruptStore
from packline.fingerprint import hash_bytes
from packline.store.files import HINT, FileEntry
from packline.store.sums import BlockChecksums, block_ranges, block_sums, count_blocks, split_sums
from packline.store.tables import SHARD_FILES, ShardEntry


class Brings(Protocol):
    """A store that brings its files."""

    place: str

    def bring_files(self, files: Sequence[RemoteFile]) -> list[np.ndarray]:
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

    def piece_key(self, number: int, size: int) -> str:
        """Key of one of its pieces of this size in the cache; a file of one is the whole file."""
        return f"{self.key}-{number}-{size >> 10}" if self.entry.bytes > size else self.key

    def piece_bytes(self, number: int, size: int) -> int:
        """Bytes of one of its pieces: of the last, what remains."""
        return min(size, self.entry.bytes - number * size)

    def damage(self, data: np.ndarray) -> CorruptStore | None:
        """Error for bytes of the whole file that are not those of the manifest; None if they are."""
        if not (problem := self._problem(data)):
            return None
        place = ""
        if self.sums is not None and len(data) == self.entry.bytes:
            expected, block = self.sums.by_name[self.entry.name]
            wrong = np.flatnonzero(block_sums(data, block) != expected)
            place = f" in byte range {block_ranges(wrong, block)}" if len(wrong) else ""
        return CorruptStore(
            f"{self.store.place}/{self.entry.name} arrived damaged{place}: {problem}", hint=HINT
        )

    def _problem(self, data: np.ndarray) -> str:
        """Difference between bytes of the whole file and the manifest, in words; empty if there is none."""
        size, checksum = self.entry.bytes, self.entry.checksum
        if len(data) != size:
            return f"expected {size:,} bytes, found {len(data):,}"
        if checksum and (found := hash_bytes(data.data)) != checksum:
            return f"expected the checksum {checksum}, found {found}"
        return ""

    def piece_damage(self, number: int, size: int, data: np.ndarray) -> CorruptStore | None:
        """Error for a piece that is not the file's; None if it is.

        Args:
            size: bytes of a piece, a multiple of those of a block.
        """
        start, stop = number * size, min((number + 1) * size, self.entry.bytes)
        problem = f"expected {stop - start:,} bytes, found {len(data):,}" if len(data) != stop - start else ""
        if not problem and stop - start == self.entry.bytes:
            problem = self._problem(data)  # not located: a thread that fetches cannot wait for checksums
        elif not problem and self.sums is not None:
            every, block = self.sums.by_name[self.entry.name]
            expected = every[start // block : count_blocks(stop, block)]
            found = block_sums(data, block)
            if (wrong := np.flatnonzero(found != expected)).size:
                at = int(wrong[0])
                start, stop = start + at * block, min(start + (at + 1) * block, self.entry.bytes)
                right, wrong_one = int(expected[at]), int(found[at])
                problem = f"expected the checksum {right:016x}, found the checksum {wrong_one:016x}"
        if not problem:
            return None
        return CorruptStore(
            f"{self.store.place}/{self.entry.name}: bytes {start:,} to {stop:,} arrived damaged: {problem}",
            hint=HINT,
        )


class ShardSums:
    """Checksums of the blocks of a shard's files, brought when they are first needed.

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
    def by_name(self) -> dict[str, BlockChecksums]:
        """Checksums of the blocks of each of its files, by name.

        Raises:
            CorruptStore: there are not as many checksums as blocks.
        """
        return self._split(*self._store.bring_files([self.file]))

    def take(self, data: np.ndarray) -> None:
        """Keep the contents of the file, uint8 `[N]`, which were brought with those of others."""
        self.by_name = self._split(data)

    def _split(self, data: np.ndarray) -> dict[str, BlockChecksums]:
        others = [one for one in self.entry.files if one.name != self.file.entry.name]
        if (found := split_sums(data, [one.bytes for one in others])) is None:
            path = f"{self._store.place}/{self.file.entry.name}"
            raise CorruptStore(f"{path}: {len(data):,} bytes are not those of its blocks", hint=HINT)
        return {one.name: sums for one, sums in zip(others, found, strict=True)}

    def are_needed(self, size: int) -> bool:
        """True if they are not here, and a file has several pieces of this size."""
        return "by_name" not in self.__dict__ and any(one.bytes > size for one in self.entry.files)
