"""`NAME.sums`: a checksum of every MiB of a shard's files, to locate damage and to check ranges of a file.

    .bin ── MiB ── MiB ── MiB ── ...   .idx ── ...   .docs.parquet ── ...   .loss ── ...
            xxh3-64 of each, uint64, little-endian, in this order

There is no header: the sizes of the files are in `shards.parquet`. The last block of a file is shorter; an
empty file has none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash

BLOCK_BYTES = 1 << 20


class BlockSums:
    """Checksums of the blocks of a file that is written or read in pieces of any size.

    >>> sums = BlockSums()
    >>> sums.update(bytes(BLOCK_BYTES - 1)); sums.update(b"ab"); len(sums.finish())
    2
    """

    def __init__(self) -> None:
        self._hasher = xxhash.xxh3_64()
        self._held = 0
        self._sums: list[int] = []

    def update(self, data: bytes | memoryview) -> None:
        """Add the next bytes of the file."""
        rest = memoryview(data)
        while len(rest):
            part = rest[: BLOCK_BYTES - self._held]
            self._hasher.update(part)
            self._held += len(part)
            if self._held == BLOCK_BYTES:
                self._end_block()
            rest = rest[len(part) :]

    def _end_block(self) -> None:
        self._sums.append(self._hasher.intdigest())
        self._hasher.reset()
        self._held = 0

    def finish(self) -> np.ndarray:
        """Checksums of all blocks, uint64 `[N]`; nothing can be added afterwards."""
        if self._held:
            self._end_block()
        return np.array(self._sums, "<u8")


def block_sums(data: np.ndarray) -> np.ndarray:
    """Checksums of all blocks of a file's bytes, uint8 `[N]`."""
    sums = BlockSums()
    sums.update(data.data)
    return sums.finish()


def count_blocks(size: int) -> int:
    """Number of blocks of a file.

    >>> count_blocks(0), count_blocks(1), count_blocks(BLOCK_BYTES + 1)
    (0, 1, 2)
    """
    return -(-size // BLOCK_BYTES)


def split_sums(sums: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """Checksums of each file of a shard.

    Args:
        sums: contents of its `NAME.sums`, uint64 `[N]`.
        sizes: bytes of the files, in order; they have N blocks together.
    """
    return np.split(sums, np.cumsum([count_blocks(size) for size in sizes])[:-1])


def block_ranges(wrong: Sequence[int] | np.ndarray, most: int = 3) -> str:
    """Byte ranges of some blocks of a file, for messages.

    Args:
        wrong: numbers of the blocks, ascending.
        most: maximum number of ranges listed.

    >>> block_ranges([3]), block_ranges([0, 1, 2, 9])
    ('3 MiB to 4 MiB', '0 MiB to 3 MiB and 9 MiB to 10 MiB')
    """
    numbers = np.asarray(wrong, np.int64)
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    shown = [f"{int(run[0]):,} MiB to {int(run[-1]) + 1:,} MiB" for run in runs[:most]]
    return " and ".join(shown) + (f" and {len(runs) - most:,} more" if len(runs) > most else "")
