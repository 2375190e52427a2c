"""`NAME.sums`: a checksum of every block of a shard's files, to locate damage and to check ranges of a file.

Blocks are small because every byte of an object store that reaches a batch is compared: in global order a row
of 4,096 tokens costs 64 or 128 KiB, not one or two MiB.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash

BLOCK_BYTES = 1 << 16


class BlockSums:
    """Checksums of the blocks of a file that is written or read in pieces of any size."""

    def __init__(self) -> None:
        self._hasher = xxhash.xxh3_64()
        self._held = 0
        self._sums: list[int] = []

    def update(self, data: bytes | memoryview) -> None:
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
    parts = (data[start : start + BLOCK_BYTES] for start in range(0, len(data), BLOCK_BYTES))
    return np.array([xxhash.xxh3_64_intdigest(part.data) for part in parts], "<u8")


def count_blocks(size: int) -> int:
    """Number of blocks of a file."""
    return -(-size // BLOCK_BYTES)


def split_sums(data: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray] | None:
    """Checksums of the blocks of each file of a shard, uint64; None if they are not as many as its blocks.

    Args:
        data: contents of its `NAME.sums`, uint8 `[N]`.
        sizes: bytes of its other files, in order.
    """
    counts = list(map(count_blocks, sizes))
    return np.split(data.view("<u8"), np.cumsum(counts)[:-1]) if 8 * sum(counts) == len(data) else None


def block_ranges(wrong: np.ndarray) -> str:
    """Byte ranges of some blocks of a file, of which the first three are named.

    >>> block_ranges(np.array([0, 1, 2, 9]))
    '0 KiB to 192 KiB and 576 KiB to 640 KiB'
    """
    size = BLOCK_BYTES >> 10
    runs = np.split(wrong, np.flatnonzero(np.diff(wrong) != 1) + 1)
    shown = [f"{run[0] * size:,} KiB to {(run[-1] + 1) * size:,} KiB" for run in runs[:3]]
    return " and ".join(shown) + (f" and {len(runs) - 3:,} more" if len(runs) > 3 else "")
