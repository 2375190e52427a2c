"""A build on machines that are slow, lost and replaced, on a simulated clock.

    clock (heapq) ──> nodes: start, run units, lag, die, are replaced
                        │ take, done, lost            │ commit
                        v                             v
                      tasks or slices               StoreFolder.commit ──> ObjectFolder.put_new
                      (packline.jobs)               (packline.jobs)        (packline.storage, in memory)

Only time and failures are simulated. Which node runs which unit is decided by the code of `--on ray` and of
`--slice`; units are committed by the code of a build, into an object store in memory that loses replies and
reports conflicts that are none. A node that is lost in the middle of a commit leaves a part of its files. A
node that is only cut off continues to commit while its units run elsewhere.

`Result.check` proves the end: one receipt for every unit, the files that the receipts name and no others, and
a manifest with the sum of them, which two processes publish.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.simulated_store import SimulatedFolder, SimulatedStore, expected_tokens, receipt_of
from packline.jobs.engine import common_order, round_size, units_of_slice
from packline.jobs.machines import Slice
from packline.jobs.plan import Unit
from packline.jobs.ray_tasks import SLICES_A_TASK, slices_of
from packline.jobs.receipts import CommittedReceipts
from packline.storage.results import WORK
from packline.store.manifest import manifest_files

How = Literal["ray", "slices"]
ASK_SECONDS = 1.0
"""Time after which a node without work asks again."""
LISTING_SECONDS = 0.1
"""Time of a listing of receipts."""
LONGEST_SECONDS = 30 * 86_400.0
"""Simulated time after which units are taken for lost."""


@dataclass(frozen=True)
class World:
    """Machines, units and failures. Times are in seconds."""

    nodes: int = 50
    workers: int = 20
    """Workers of each node."""
    units: int = 400_000
    unit_seconds: float = 3.0
    """Mean time of a unit: lognormal with a sigma of 0.3; 1% take 3 times as long, 0.1% 10 times."""
    put_seconds: float = 0.03
    """Median time of a put: lognormal with a sigma of 1."""
    losses_a_node_hour: float = 0.5
    together: float = 0.5
    """Share of losses that take one more node at the same time."""
    cut_off: float = 0.1
    """Share of lost nodes that continue for a minute, unseen."""
    notice_seconds: float = 15.0
    """Time until the driver knows of a loss."""
    replace_seconds: tuple[float, float] = (120.0, 600.0)
    start_seconds: tuple[float, float] = (5.0, 15.0)
    lost_replies: float = 1e-3
    """Share of puts that succeed, and whose reply is lost."""
    refusals: float = 1e-3
    """Share of puts that are answered by 503, or by a conflict, and write nothing."""
    seed: int = 0


@dataclass
class Result:
    """Outcome of a simulated build."""

    world: World
    how: How
    makespan: float
    """Seconds until the last unit was committed."""
    ideal: float
    """Work of all units, divided by all workers: no loss, no start, no last unit."""
    used: float
    """Work of all units, divided by the time of the workers that were there."""
    runs: int
    """Units that were run to their end, those that ran twice counted twice."""
    interrupted: int
    """Units that ended with their node."""
    losses: int
    nodes_started: int
    puts: int
    found_again: int
    """Files that existed with the same bytes when they were put."""
    folder: SimulatedFolder
    units: Sequence[Unit]

    @property
    def efficiency(self) -> float:
        """Ideal time / time."""
        return self.ideal / self.makespan

    def check(self) -> None:
        """Prove that no unit is lost or doubled.

        Raises:
            AssertionError: with what is wrong.
        """
        world, store = self.world, self.folder.storage
        committed = CommittedReceipts(store)
        committed.refresh()
        names = {Unit.of(number).name for number in range(world.units)}
        assert set(committed.receipts) == names, "units without a receipt, or receipts without a unit"
        shards = [shard for receipt in committed.receipts.values() for shard in receipt.shards]
        named = {entry.name for shard in shards for entry in shard.files}
        there = {facts.name for facts in store.walk() if not facts.name.startswith(WORK)}
        assert there == named | {entry.name for entry in committed.entries(committed.receipts)}, (
            "files that no receipt names"
        )
        manifest = self.folder.manifest(committed)
        assert manifest.tokens == sum(expected_tokens(number) for number in range(world.units))
        for _ in range(2):
            self.folder.publish(manifest_files(manifest))


@dataclass(eq=False)
class _Node:
    """A machine, from its start to its loss."""

    name: str
    began: float
    dies: float
    """Time of its loss."""
    silent: float
    """Time from which nobody hears it; before `dies` for a node that is cut off."""
    queue: deque[Unit] = field(default_factory=deque)
    busy: int = 0
    slice: int = 0
    task: list[Unit] = field(default_factory=list)
    """The task that it runs, on Ray."""


class _Simulation:
    """The clock, the machines, and the store."""

    def __init__(self, world: World, how: How, scratch: Path) -> None:
        self.world, self.how = world, how
        self.random = random.Random(world.seed)
        self.now = 0.0
        self.events: list[tuple[float, int, Any, tuple[Any, ...]]] = []
        self.order = itertools.count()
        self.store = SimulatedStore(self.random, world.lost_replies, world.refusals, world.put_seconds)
        self.folder = SimulatedFolder(self.store, scratch)
        self.units = list(map(Unit.of, range(world.units)))
        self.tasks = deque(slices_of(self.units, SLICES_A_TASK * world.nodes))
        """Tasks that no node runs, on Ray."""
        self.places = common_order(world.units)
        self.committed: set[str] = set()
        self.nodes: dict[str, _Node] = {}
        self.all_nodes: list[_Node] = []
        self.runs = self.interrupted = self.losses = self.started = 0
        self.finished = 0.0

    def run(self) -> Result:
        world = self.world
        for number in range(world.nodes):
            self.at(self.random.uniform(*world.start_seconds), self.start, number)
        while self.events:
            self.now, _, action, arguments = heapq.heappop(self.events)
            assert self.now < LONGEST_SECONDS, f"{world.units - len(self.committed)} units are never run"
            action(*arguments)
        work = sum(self.seconds_of(unit) for unit in self.units)
        lives = sum(max(min(node.silent, self.finished) - node.began, 0.0) for node in self.all_nodes)
        return Result(
            world=world,
            how=self.how,
            makespan=self.finished,
            ideal=work / (world.nodes * world.workers),
            used=work / (lives * world.workers),
            runs=self.runs,
            interrupted=self.interrupted,
            losses=self.losses,
            nodes_started=self.started,
            puts=self.store.puts,
            found_again=self.store.same,
            folder=self.folder,
            units=self.units,
        )

    @property
    def over(self) -> bool:
        return len(self.committed) == self.world.units

    def at(self, seconds: float, action: Any, *arguments: Any) -> None:
        """Do something after some time."""
        heapq.heappush(self.events, (self.now + seconds, next(self.order), action, arguments))

    def seconds_of(self, unit: Unit) -> float:
        """Time of a unit: the same for every attempt, as most of it is the unit's own."""
        mixed = random.Random(f"{self.world.seed} {unit.name}")
        seconds = self.world.unit_seconds * mixed.lognormvariate(-0.045, 0.3)
        chance = mixed.random()
        return seconds * (10 if chance < 0.001 else 3 if chance < 0.011 else 1)

    # machines

    def start(self, number: int) -> None:
        """A machine begins to work."""
        if self.over:
            return
        self.started += 1
        world = self.world
        rate = world.losses_a_node_hour / 3600
        dies = self.now + (self.random.expovariate(rate) if rate else float("inf"))
        node = _Node(f"{number}.{self.started}", self.now, dies, dies, slice=number)
        self.all_nodes.append(node)
        if self.random.random() < world.cut_off:
            node.dies += 60
        self.nodes[node.name] = node
        if rate:
            self.at(node.silent - self.now, self.die, node)
        self.ask(node)

    def die(self, node: _Node) -> None:
        """A machine is gone, or cannot be heard any more; another one takes its place."""
        if self.over or node.name not in self.nodes:
            return
        self.losses += 1
        del self.nodes[node.name]
        self.at(self.world.notice_seconds, self.notice, node)
        self.at(self.random.uniform(*self.world.replace_seconds), self.start, node.slice)
        if self.nodes and self.random.random() < self.world.together:
            other = self.random.choice(list(self.nodes.values()))
            other.silent = other.dies = self.now
            self.at(0.0, self.die, other)

    def notice(self, node: _Node) -> None:
        """Ray knows of a loss, and runs the task again."""
        if node.task:
            self.tasks.append(node.task)

    # units

    def ask(self, node: _Node) -> None:
        """An idle node gets more units: the next task, or a round of its slice."""
        if self.over or self.now >= node.dies:
            return
        if self.how == "slices":
            workers, world = self.world.workers, self.world
            own, others = units_of_slice(self.left(), self.places, Slice(node.slice, world.nodes))
            units = own or others
            size = round_size(len(own), workers, LISTING_SECONDS, world.unit_seconds / workers)
            node.queue.extend(units[:size])
        elif self.now < node.silent and self.tasks:
            node.task = self.tasks.popleft()
            node.queue.extend(self.folder.left(node.task))
        self.begin(node)
        if not node.busy:
            self.at(ASK_SECONDS, self.ask, node)

    def left(self) -> list[Unit]:
        """Units without a receipt, by a listing."""
        return self.folder.left(self.units)

    def begin(self, node: _Node) -> None:
        """Idle workers of a node begin units."""
        while node.busy < self.world.workers and node.queue:
            unit = node.queue.popleft()
            node.busy += 1
            self.at(self.seconds_of(unit), self.end, node, unit)

    def end(self, node: _Node, unit: Unit) -> None:
        """A worker has encoded a unit, and commits it."""
        if self.now >= node.dies:
            self.interrupted += 1
            return
        self.runs += 1
        receipt = receipt_of(unit)
        if not self.store.committing(self.now, node.dies, lambda: self.folder.commit(receipt)):
            self.interrupted += 1
            return
        if unit.name not in self.committed:
            self.committed.add(unit.name)
            self.finished = max(self.finished, self.store.clock)
        self.at(self.store.clock - self.now, self.report, node, unit)

    def report(self, node: _Node, unit: Unit) -> None:
        """A worker of a node is free."""
        node.busy -= 1
        self.begin(node)
        if not node.busy:
            node.task = []
            self.ask(node)


def simulate(world: World, how: How, scratch: Path) -> Result:
    """Build in a simulated world.

    Args:
        how: `ray`: tasks that are run again if their node is lost; `slices`: nodes that share the units.
        scratch: an empty folder.
    """
    return _Simulation(world, how, scratch).run()


def describe(result: Result) -> Mapping[str, str]:
    """Figures of a result, by name."""
    world = result.world
    return {
        "choice of units": result.how,
        "workers": f"{world.nodes} x {world.workers}",
        "units": f"{world.units:,}",
        "losses": f"{result.losses}, {world.losses_a_node_hour:g} a node and hour",
        "ideal": f"{result.ideal:,.0f} s",
        "time": f"{result.makespan:,.0f} s ({result.efficiency:.1%} of the ideal rate)",
        "use of machines": f"{result.used:.1%} of the time of those that were there",
        "run twice": f"{result.runs - world.units:,} ({(result.runs - world.units) / world.units:.2%})",
        "interrupted": f"{result.interrupted:,}",
        "puts": f"{result.puts:,}, of which {result.found_again:,} found the same bytes",
    }
