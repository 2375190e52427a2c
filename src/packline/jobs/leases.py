"""Leases of units to nodes: which node runs which unit, while nodes come, go and lag behind.

    queue ──take──> held by a node ──done──> counted once
      ^                  │
      └──── lost ────────┘                      of a node that is gone

This knows no clock, process or message, so a simulation drives the same code. A unit that runs twice has the
same bytes and only costs time: so at the end, nodes without work also take what others still hold.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from packline.jobs.plan import Unit

AHEAD = 2
"""Units that a node holds per worker, so that no worker waits for an answer."""
MOST_DEATHS = 3
"""Deaths of workers during the same unit after which the job stops."""


class Leases:
    """Units of one run, by the node that runs them.

    Args:
        units: units to run, in order.
        in_order: start units in this order only, because the last ones may not be needed.

    >>> from packline.jobs.job import Unit
    >>> leases = Leases([Unit.of(number) for number in range(3)])
    >>> [unit.name for unit in leases.take("a", 1)], [unit.name for unit in leases.take("b", 1)]
    (['000000', '000001'], ['000002'])
    >>> leases.lost("a")
    >>> [unit.name for unit in leases.take("b", 1)], leases.waiting
    (['000000'], 1)
    >>> leases.done("b", "000000"), leases.left
    (True, 2)
    """

    def __init__(self, units: Sequence[Unit], *, in_order: bool = False) -> None:
        self._units = units
        self._streams = deque(index for index, unit in enumerate(units) if unit.slice_bytes and not in_order)
        """Streams have a queue of their own, since a node reads one at a time."""
        self._apart = frozenset(self._streams)
        self._next = 0
        """First unit of the plain queue that was never taken."""
        self._returned: deque[int] = deque()
        """Units of nodes that are gone, in front of the plain queue."""
        self._fresh = len(units) - len(self._streams)
        """Units of the plain queue that were never taken."""
        self._is_done = bytearray(len(units))
        self.left = len(units)
        """Number of units that are not done."""
        self._parts: set[str] = set()
        """Names of units that are done."""
        self._held: dict[str, dict[str, int]] = {}
        """Units by node and name, until that node reports them."""
        self._holders: Counter[int] = Counter()
        """Number of nodes that hold a unit."""
        self._deaths: Counter[int] = Counter()

    @property
    def waiting(self) -> int:
        """Number of units that no node holds."""
        return self._fresh + len(self._returned) + len(self._streams)

    def held(self, node: str) -> int:
        """Number of units that a node has not reported yet."""
        return len(self._held.get(node, ()))

    def take(self, node: str, workers: int) -> list[Unit]:
        """More units for a node, so that it holds two for each of its workers, at most one of them a stream.

        When none are waiting, a node with idle workers gets units that others hold and have not reported.
        """
        held = self._held.setdefault(node, {})
        taken: list[Unit] = []
        while len(held) < AHEAD * workers:
            index = self._from_queue(held)
            if index is None and not self.waiting and len(held) < workers:
                index = self._help(node)
            if index is None:
                break
            unit = self._units[index]
            held[unit.name] = index
            self._holders[index] += 1
            taken.append(unit)
        return taken

    def _from_queue(self, held: dict[str, int]) -> int | None:
        if self._streams and not any(index in self._apart for index in held.values()):
            while self._streams:
                index = self._streams.popleft()
                if not self._is_done[index]:  # else another node has finished it meanwhile
                    return index
        while self._returned:
            index = self._returned.popleft()
            if not self._is_done[index]:
                return index
        while self._fresh:
            index, self._next = self._next, self._next + 1
            if index not in self._apart:
                self._fresh -= 1
                return index
        return None

    def _help(self, node: str) -> int | None:
        """The last unit of the longest line; never a stream, which would be read again from its start."""
        others = (name for name in self._held if name != node)
        mine = self._held[node].values()
        for other in sorted(others, key=self.held, reverse=True):
            for index in reversed(self._held[other].values()):
                alone = self._holders[index] == 1 and not self._is_done[index]
                if alone and index not in self._apart and index not in mine:
                    return index
        return None

    def is_done(self, name: str) -> bool:
        """True if a node has reported a unit."""
        return name in self._parts

    def done(self, node: str, name: str) -> bool:
        """Count a unit that a node reports; False if it was counted before."""
        self._parts.add(name)
        if (index := self._held.get(node, {}).pop(name, None)) is not None:
            self._let_go(index)
            first = not self._is_done[index]
            self._is_done[index] = True
            self.left -= first
            return first
        return False

    def _let_go(self, index: int) -> None:
        self._holders[index] -= 1
        if not self._holders[index]:
            del self._holders[index]

    def lost(self, node: str, *, charged: bool = False) -> str | None:
        """Return the units of a node that is gone to the front of the queue.

        Args:
            charged: a worker died there, perhaps because of one of its units.

        Returns:
            A unit during which too many workers have died; None if there is none.
        """
        units = self._held.pop(node, {})
        for index in reversed(units.values()):
            self._deaths[index] += charged
            self._let_go(index)
            if not self._holders[index] and not self._is_done[index]:
                (self._streams if index in self._apart else self._returned).appendleft(index)
        return next((name for name, index in units.items() if self._deaths[index] >= MOST_DEATHS), None)
