"""Memory of batches: blocks that are used again once nothing refers to the arrays of an earlier batch.

A batch that is allocated anew costs a page fault for every page that malloc had returned to the kernel, up
to five times as much as filling it. So each use of a block has an owner, to which all its arrays and their
views refer, and whose end gives the memory back: an array never changes while anything refers to it. A
process never has more memory for batches than it needed at some time.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

KEPT = 4
"""Free blocks that are kept: as many as a loader with two batches ahead has in use."""
LEAST = 1 << 17
"""Bytes from which a block is kept; malloc keeps smaller ones itself."""
HUGE = 1 << 21
"""Bytes of a huge page. NumPy asks the kernel for them for arrays of twice that size."""

_FREE: deque[_Memory] = deque(maxlen=KEPT)


class _Memory:
    """Memory of a block, aligned to huge pages (filling takes a sixth less), and its description."""

    __slots__ = ("described", "memory", "size")

    def __init__(self, size: int) -> None:
        spare = HUGE if size >= HUGE else 0
        memory = np.empty(size + spare, np.uint8)
        begin = -memory.ctypes.data % HUGE if spare else 0
        self.size, self.memory = size, memory
        self.described: dict[str, Any] = memory[begin : begin + size].__array_interface__


class _Owner:
    """One use of a block: base of all its views, and as long-lived as the last of them."""

    __slots__ = ("__array_interface__", "_memory")

    def __init__(self, memory: _Memory) -> None:
        self._memory, self.__array_interface__ = memory, memory.described

    def __del__(self, free: deque[_Memory] = _FREE) -> None:
        free.append(self._memory)


def take(size: int) -> np.ndarray:
    """Block of memory with any contents, uint8 `[size]`.

    >>> first = take(1 << 20)
    >>> row, place = first[:4], first.ctypes.data
    >>> del first
    >>> take(1 << 20).ctypes.data == place      # a view of it exists
    False
    >>> del row
    >>> take(1 << 20).ctypes.data == place
    True
    """
    if size < LEAST:
        return np.empty(size, np.uint8)
    return np.asarray(_Owner(_free_memory(size) or _Memory(size)))


def _free_memory(size: int) -> _Memory | None:
    """Free memory of this size; if there is none, the memory that has been free for longest is given up.

    Without a lock, since the end of an array may come at any point of any thread: each step is atomic.
    """
    try:
        for _ in range(len(_FREE)):
            memory = _FREE.pop()
            if memory.size == size:
                return memory
            _FREE.appendleft(memory)
        if len(_FREE) > 1:  # two sizes in turn may have one each
            _FREE.popleft()
    except IndexError:  # another thread took it
        pass
    return None
