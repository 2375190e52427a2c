"""One file of a remote store, and the damage of what arrives of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from packline.errors import CorruptStore
from packline.store.files import HINT, FileEntry, content_problem
from packline.store.sums import BLOCK_BYTES, block_ranges, block_sums, count_blocks
from packline.store.tables import ShardEntry

if TYPE_CHECKING:
    from packline.store.mirror import Mirror


class RemoteFile(NamedTuple):
    """One file of a remote store."""

    store: Mirror
    entry: FileEntry
    """Its name, size and checksum; an empty checksum is not compared."""
    key: str
    """Key of the whole file in the cache."""
    shard: ShardEntry | None = None
    """Its shard, whose `NAME.sums` has the checksums of its blocks; None for a file that has none."""

    def piece_key(self, number: int, size: int) -> str:
        """Key of one of its pieces of this size in the cache; a file of one is the whole file."""
        return f"{self.key}-{number}-{size >> 10}" if self.entry.bytes > size else self.key

    def damage(self, data: np.ndarray) -> CorruptStore | None:
        """Error for bytes of the whole file that are not those of the manifest; None if they are."""
        if not (problem := self._problem(data)):
            return None
        place = ""
        if self.shard is not None and len(data) == self.entry.bytes:
            wrong = np.flatnonzero(block_sums(data) != self.store.block_sums(self.shard)[self.entry.name])
            place = f" in byte range {block_ranges(wrong)}" if len(wrong) else ""
        return CorruptStore(
            f"{self.store.path(self.entry.name)} arrived damaged{place}: {problem}", hint=HINT
        )

    def _problem(self, data: np.ndarray) -> str:
        if not self.entry.checksum and len(data) == self.entry.bytes:
            return ""
        return content_problem(self.entry, data.data)

    def piece_damage(self, number: int, size: int, data: np.ndarray) -> CorruptStore | None:
        """Error for a piece that is not the file's; None if it is."""
        start, stop = number * size, min((number + 1) * size, self.entry.bytes)
        problem = f"expected {stop - start:,} bytes, found {len(data):,}" if len(data) != stop - start else ""
        if not problem and stop - start == self.entry.bytes:
            # Not located: a thread that fetches cannot wait for checksums.
            problem = content_problem(self.entry, data.data)
        elif not problem and self.shard is not None:
            every = self.store.block_sums(self.shard)[self.entry.name]
            expected, found = every[start // BLOCK_BYTES : count_blocks(stop)], block_sums(data)
            if (wrong := np.flatnonzero(found != expected)).size:
                at = int(wrong[0])
                start += at * BLOCK_BYTES
                stop = min(start + BLOCK_BYTES, stop)
                problem = f"expected the checksum {expected[at]:016x}, found the checksum {found[at]:016x}"
        if not problem:
            return None
        return CorruptStore(
            f"{self.store.path(self.entry.name)}: bytes {start:,} to {stop:,} arrived damaged: {problem}",
            hint=HINT,
        )
