"""`NAME.sums`: a checksum of every block of a shard's files, to locate damage and to check ranges of a file.

    .bin ── 64 KiB ── 64 KiB ── ...   .idx ── ...   .docs.parquet ── ...   .loss ── ...
            xxh3-64 of each, uint64, little-endian, in this order

There is no header: the sizes of the files are in `shards.parquet`. The last block of a file is shorter; an
empty file has none. Blocks are small because every byte of an object store that reaches a batch is compared:
in global order a row of 4,096 tokens costs 64 or 128 KiB, not one or two MiB. Stores of format 2 have blocks
of a MiB, which the size of the file tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import xxhash

BLOCK_BYTES = 1 << 16
FORMAT_2_BYTES = 1 << 20
"""Bytes of a block in stores of format 2."""


class BlockSums:
    """Checksums of the blocks of a file that is written or read in pieces of any size.

    Args:
        block: bytes of a block; None: those of new stores.

    >>> sums = BlockSums()
    >>> sums.update(bytes(BLOCK_BYTES - 1)); sums.update(b"ab"); len(sums.finish())
    2
    """

    def __init__(self, block: int | None = None) -> None:
        self._block = block or BLOCK_BYTES
        self._hasher = xxhash.xxh3_64()
        self._held = 0
        self._sums: list[int] = []

    def update(self, data: bytes | memoryview) -> None:
        """Add the next bytes of the file."""
        rest = memoryview(data)
        while len(rest):
            part = rest[: self._block - self._held]
            self._hasher.update(part)
            self._held += len(part)
            if self._held == self._block:
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


def block_sums(data: np.ndarray, block: int) -> np.ndarray:
    """Checksums of all blocks of a file's bytes, uint8 `[N]`."""
    parts = (data[start : start + block] for start in range(0, len(data), block))
    return np.array([xxhash.xxh3_64_intdigest(part.data) for part in parts], "<u8")


Sizes = TypeVar("Sizes", int, np.ndarray)


def count_blocks(size: Sizes, block: int) -> Sizes:
    """Number of blocks of a file, or of each of several files.

    >>> count_blocks(0, 4), count_blocks(1, 4), count_blocks(5, 4)
    (0, 1, 2)
    """
    return -(-size // block)


class BlockChecksums(NamedTuple):
    """Expected checksums of the blocks of a file."""

    values: np.ndarray
    """uint64 `[N]`."""
    block: int
    """Bytes of a block."""


def split_sums(data: np.ndarray, sizes: Sequence[int]) -> list[BlockChecksums] | None:
    """Checksums of each file of a shard; None if they are not as many as blocks of any format.

    Args:
        data: contents of its `NAME.sums`, uint8 `[N]`.
        sizes: bytes of its other files, in order.

    >>> parts = split_sums(np.zeros(24, np.uint8), [BLOCK_BYTES + 1, 3])
    >>> [(len(one.values), one.block) for one in parts]
    [(2, 65536), (1, 65536)]
    """
    for block in (BLOCK_BYTES, FORMAT_2_BYTES):
        counts = [count_blocks(size, block) for size in sizes]
        if 8 * sum(counts) == len(data):
            parts = np.split(data.view("<u8"), np.cumsum(counts)[:-1])
            return [BlockChecksums(values, block) for values in parts]
    return None


def block_ranges(wrong: Sequence[int] | np.ndarray, block: int, most: int = 3) -> str:
    """Byte ranges of some blocks of a file, for messages.

    >>> block_ranges([3], 1 << 20), block_ranges([0, 1, 2, 9], 1 << 16)
    ('3,072 KiB to 4,096 KiB', '0 KiB to 192 KiB and 576 KiB to 640 KiB')
    """
    numbers, size = np.asarray(wrong, np.int64), block >> 10
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    shown = [f"{int(run[0]) * size:,} KiB to {(int(run[-1]) + 1) * size:,} KiB" for run in runs[:most]]
    return " and ".join(shown) + (f" and {len(runs) - most:,} more" if len(runs) > most else "")
