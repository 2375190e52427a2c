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

from packline.jobs.job import WorkUnit

AHEAD = 2
"""Units that a node holds per worker, so that no worker waits for an answer."""
MOST_DEATHS = 3
"""Deaths of workers during the same unit after which the job stops."""


class Leases:
    """Units of one run, by the node that runs them.

    Args:
        units: units to run, in order.
        in_order: start units in this order only, because the last ones may not be needed.

    >>> from packline.jobs.job import Numbered
    >>> leases = Leases([Numbered.of(number) for number in range(3)])
    >>> [unit.name for unit in leases.take("a", 1)], [unit.name for unit in leases.take("b", 1)]
    (['000000', '000001'], ['000002'])
    >>> leases.lost("a")
    >>> [unit.name for unit in leases.take("b", 1)], leases.waiting
    (['000000'], 1)
    >>> leases.done("b", "000000"), leases.left
    (True, 2)
    """

    def __init__(self, units: Sequence[WorkUnit], *, in_order: bool = False) -> None:
        self._in_order = in_order
        self._streams: deque[WorkUnit] = deque()
        self._queue: deque[WorkUnit] = deque()
        for unit in units:
            self._line(unit).append(unit)
        self._left = {unit.name for unit in units}
        self._parts: set[str] = set()
        """Parts of streams that are done."""
        self._held: dict[str, dict[str, WorkUnit]] = {}
        """Units by node and name, until that node reports them."""
        self._holders: Counter[str] = Counter()
        """Number of nodes that hold a unit."""
        self._deaths: Counter[str] = Counter()

    def _line(self, unit: WorkUnit) -> deque[WorkUnit]:
        """Queue of a unit: streams have one of their own, since a node reads one at a time."""
        return self._streams if unit.is_stream and not self._in_order else self._queue

    @property
    def left(self) -> int:
        """Number of units that are not done."""
        return len(self._left)

    @property
    def waiting(self) -> int:
        """Number of units that no node holds."""
        return len(self._queue) + len(self._streams)

    def held(self, node: str) -> int:
        """Number of units that a node has not reported yet."""
        return len(self._held.get(node, ()))

    def take(self, node: str, workers: int) -> list[WorkUnit]:
        """More units for a node, so that it holds two for each of its workers, at most one of them a stream.

        When none are waiting, a node with idle workers gets units that others hold and have not reported.
        """
        held = self._held.setdefault(node, {})
        taken: list[WorkUnit] = []
        while len(held) < AHEAD * workers:
            unit = self._next(held)
            if unit is None and not self.waiting and len(held) < workers:
                unit = self._help(node)
            if unit is None:
                break
            held[unit.name] = unit
            self._holders[unit.name] += 1
            taken.append(unit)
        return taken

    def _next(self, held: dict[str, WorkUnit]) -> WorkUnit | None:
        reads = any(unit.is_stream for unit in held.values())
        for queue in (self._streams, self._queue):
            while queue and not (reads and queue[0].is_stream):
                unit = queue.popleft()
                if unit.name in self._left:  # else another node has finished it meanwhile
                    return unit
        return None

    def _help(self, node: str) -> WorkUnit | None:
        """The last unit of the longest line; never a stream, which would be read again from its start."""
        others = (name for name in self._held if name != node)
        for other in sorted(others, key=self.held, reverse=True):
            for unit in reversed(self._held[other].values()):
                alone = self._holders[unit.name] == 1 and unit.name in self._left
                if alone and not unit.is_stream and unit.name not in self._held[node]:
                    return unit
        return None

    def done(self, node: str, name: str) -> bool:
        """Count a unit, or a part of a stream, that a node reports; False if it was counted before."""
        if self._held.get(node, {}).pop(name, None) is not None:
            self._holders[name] -= 1
            first = name in self._left
            self._left.discard(name)
            return first
        first = name not in self._parts
        self._parts.add(name)
        return first

    def lost(self, node: str, *, charged: bool = False) -> str | None:
        """Return the units of a node that is gone to the front of the queue.

        Args:
            charged: a worker died there, perhaps because of one of its units.

        Returns:
            A unit during which too many workers have died; None if there is none.
        """
        units = self._held.pop(node, {})
        for unit in reversed(units.values()):
            self._deaths[unit.name] += charged
            self._holders[unit.name] -= 1
            if not self._holders[unit.name] and unit.name in self._left:
                self._line(unit).appendleft(unit)
        return next((name for name in units if self._deaths[name] >= MOST_DEATHS), None)
