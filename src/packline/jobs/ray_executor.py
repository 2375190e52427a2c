"""Executor on a Ray cluster: an actor on every node, with a host and its workers as on one machine.

    driver ──units──> actor (num_cpus=k) ──> host ──fork──> worker, worker, ..., feeder
           <─progress, results─                                 run units, commit them

Ray places processes and notices their end, nothing else: units and results are messages of a host
(`host_process`), results are committed to the storage, and what runs again is decided here (`leases`).

    node gone              its units return to the queue; no unit is blamed
    worker process killed  the same, but a unit during which three died stops the job; the actor that takes
                           its place has half the workers, as memory has usually run out
    any other error        stops the job: it would happen again, or the encoder or the inputs are wrong

Actors that find no room wait for it, so nodes that join later are used, and a cluster that grows on demand
sees the demand. The driver holds no state, so it may be killed at any time: Ray ends its actors, and their
processes end with them.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from packline.errors import PacklineError, RecipeError, WorkerDied
from packline.jobs.events import Event, Failed, Note, Progress, as_failed, revive
from packline.jobs.host_process import (
    END_SECONDS,
    REPLIES,
    Committed,
    Done,
    HostProcess,
    Opened,
    Request,
    Run,
    Start,
    encode,
    start_message,
)
from packline.jobs.job import Job
from packline.jobs.leases import Leases
from packline.jobs.plan import Unit
from packline.jobs.resources import usable_cores
from packline.jobs.signals import INTERRUPTING
from packline.jobs.work import hold_lock
from packline.version import __version__

STEP_SECONDS = 1.0
"""Longest time that an actor waits for a reply of its host before it answers."""
LOOK_SECONDS = 2.0
"""Time between two looks at the nodes of the cluster."""
WAIT_NOTE_SECONDS = 15.0
"""Time without any node after which a note names what is missing."""
MEMORY_SHARE = 0.9
"""Share of a node's memory that actors may reserve."""
MOST_USED = 0.9
"""Share of all cores that actors should use, where they are as large as possible."""


MOST_FAILED_STARTS = 3
"""Actors in a row that may end before they are open."""
MOST_REPLIES = 1000
"""Replies of a host that one answer of an actor holds at most."""
NODE_DIED = "its node has died"
"""In Ray's message on an actor whose node is gone."""
SAME = "install the same version of packline on all nodes, and give them the same files"


class NodeShare:
    """The actor: passes messages between the driver and a host that it starts.

    Its methods run on the main thread of its process, whose end the kernel reports to the host.
    """

    def __init__(self, version: str) -> None:
        self._version = version
        self._locks: list[int] = []
        self._host: HostProcess | None = None

    def open(self, start: bytes, folder: str, work: str) -> tuple[str, str]:
        """Start the host; returns the id and the name of the node. The first step replies `Opened`.

        Args:
            start: first message to the host.
            folder: working directory of the driver, which relative paths belong to.
            work: work folder of the job, whose lock the host and its workers share; empty if it has none.
        """
        import ray

        if self._version != __version__:
            raise RuntimeError(f"expected packline {self._version} as on the driver, found {__version__}")
        with suppress(OSError):  # on a machine without this folder, paths have to be absolute
            os.chdir(folder)
        self._locks = [hold_lock(Path(work))] if work else []
        first = msgspec.msgpack.decode(start, type=Start)
        self._host = HostProcess(first.module)
        self._host.open(first, self._locks)
        return ray.get_runtime_context().get_node_id(), os.uname().nodename

    def close(self) -> None:
        """End the host and its workers, and release the lock."""
        if self._host is not None:
            self._host.close(kill=True)
        for lock in self._locks:
            os.close(lock)

    def step(self, requests: list[bytes]) -> list[bytes]:
        """Pass on requests; wait for replies, and return those that have arrived."""
        host = self._host
        assert host is not None
        for request in requests:
            host.send_bytes(request)
        replies: list[bytes] = []
        try:
            while len(replies) < MOST_REPLIES and host.poll(0.0 if replies else STEP_SECONDS):
                replies.append(host.receive())
        except WorkerDied as error:
            replies.append(msgspec.msgpack.encode(as_failed(error)))
        return replies


@dataclass
class _Share:
    """An actor, as the driver sees it."""

    name: str
    actor: Any
    workers: int
    node: str = ""
    """Id of its node; empty until the actor runs."""
    host: str = ""
    is_open: bool = False


class RayExecutor:
    """Runs units on the nodes of a Ray cluster.

    Args:
        address: address of the cluster; None: `$RAY_ADDRESS`, or else one that is started on this machine.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address or os.environ.get("RAY_ADDRESS")
        self._ray = _library(self._address)
        self._job: Job[Any, Any, Any] | None = None
        self._owned = False
        self._shares: dict[str, _Share] = {}
        self._steps: dict[Any, _Share] = {}
        """Calls that have not returned, by reference."""
        self._cores = self._memory = self._made = self._failed_starts = 0
        self._opened = False
        self._info: Any = None
        self._looked = 0.0
        self._fitting = 0
        self._fewer: list[int] = []
        """Numbers of workers of actors that take the place of killed ones."""

    def count(self, job: Job[Any, Any, Any], units: int) -> int:
        """Number of workers on all nodes that are there now."""
        self._connect()
        nodes = self._nodes()
        given = job.node_workers()
        if given == 0:
            raise RecipeError("workers is 0: expected 1 or more for each node of a Ray cluster")
        self._cores = given or cores_per_share([int(node["CPU"]) for node in nodes])
        fitting = [node for node in nodes if node["CPU"] >= self._cores and "memory" in node]
        rooms = [MEMORY_SHARE * node["memory"] * self._cores / node["CPU"] for node in fitting]
        self._memory = int(min([job.memory_of(self._cores), *rooms]))
        self._look()
        return self._cores * max(self._fitting, 1)

    def _connect(self) -> None:
        """Connect to the cluster; start one on this machine, if there is none and none is named."""
        ray = self._ray
        if ray.is_initialized():
            return
        address = self._address
        logging.getLogger("ray").setLevel(logging.ERROR)
        quiet: dict[str, Any] = {
            "log_to_driver": bool(os.environ.get("PACKLINE_DEBUG")),
            "logging_level": logging.ERROR,
            "configure_logging": False,
        }
        if address is None:
            place = {
                "address": "local",  # never one that a file of another process names
                "num_cpus": usable_cores(),
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
            }
        else:
            place = {"address": address}
        try:
            with _own_signals():
                ray.init(**place, **quiet)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            raise PacklineError(
                f"cannot connect to Ray at {address or 'this machine'}: {str(error).strip().splitlines()[0]}",
                hint="start a cluster with: ray start --head; or name one: RAY_ADDRESS=HOST:6379",
            ) from error
        self._owned = True

    def _nodes(self) -> list[dict[str, float]]:
        """Resources of the living nodes that have cores."""
        found = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return [node for node in found if node.get("CPU", 0) >= 1]

    def _look(self) -> None:
        """Count the actors that fit on the nodes that are there."""
        self._looked = time.monotonic()
        self._fitting = sum(int(node["CPU"]) // self._cores for node in self._nodes())

    def open(self, job: Job[Any, Any, Any], workers: int) -> RayExecutor:
        """Session for a job, once its runner is open on one node."""
        self._job = job
        memory = f"{self._memory / 2**30:.1f} GiB"
        job.tell(
            Note(f"Ray: room for {self._fitting} x {self._cores} workers, each {self._cores} with {memory}")
        )
        self._recruit(1 << 30)
        begun, told = time.monotonic(), False
        while not self._opened:
            self._wait(None, lambda event: None, lambda name, result: None)
            nobody = not any(share.node for share in self._shares.values())
            if nobody and not told and time.monotonic() - begun > WAIT_NOTE_SECONDS:
                told = True
                job.tell(
                    Note(
                        f"waiting for a node with {self._cores} free cores and {memory} of free memory; "
                        "fewer --workers need less of both"
                    )
                )
        return self

    def info(self) -> Any:
        """Facts found while opening, on the first node."""
        return self._info

    def run(
        self,
        units: Sequence[Unit],
        on_event: Callable[[Event], None],
        on_result: Callable[[str, Any], None],
    ) -> None:
        """See `Session.run`."""
        if not units:
            return
        leases = Leases(units)
        busy = {share.name for share in self._steps.values()}
        for share in self._shares.values():
            if share.name not in busy:
                self._step(share, leases)
        while leases.left:
            self._recruit(leases.waiting)
            self._wait(leases, on_event, on_result)

    def _recruit(self, waiting: int) -> None:
        """Create actors for the nodes that are there, and some more if units are waiting.

        Those that find no room are what a cluster that grows on demand sees: at most as many as there are
        running ones, so that it doubles.
        """
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._look()
        running = sum(bool(share.node) for share in self._shares.values())
        wanted = self._fitting + (0 if self._address is None else max(running, 1))
        needed = running + -(-waiting // (2 * self._cores))
        while len(self._shares) < max(min(wanted, needed), 1):
            self._create()

    def _create(self) -> None:
        assert self._job is not None
        job, workers = self._job, self._fewer.pop() if self._fewer else self._cores
        actor = (
            self._ray.remote(NodeShare)
            .options(
                num_cpus=self._cores,
                memory=self._memory,
                scheduling_strategy="SPREAD",
                max_restarts=0,
                max_task_retries=0,
            )
            .remote(__version__)
        )
        self._made += 1
        share = _Share(str(self._made), actor, workers)
        opening = job.opening_on(workers, self._memory)
        start = start_message(opening, workers, job.if_died, shared=True)
        self._shares[share.name] = share
        work = "" if job.folder is None else str(job.folder.work)
        self._steps[actor.open.remote(msgspec.msgpack.encode(start), os.getcwd(), work)] = share

    def _step(self, share: _Share, leases: Leases | None) -> None:
        """Give an actor more units, and wait for its replies."""
        requests: list[Request] = []
        if share.is_open and leases and (units := leases.take(share.name, share.workers)):
            requests.append(Run([encode(unit) for unit in units]))
        encoded = [msgspec.msgpack.encode(request) for request in requests]
        self._steps[share.actor.step.remote(encoded)] = share

    def _wait(
        self,
        leases: Leases | None,
        on_event: Callable[[Event], None],
        on_result: Callable[[str, Any], None],
    ) -> None:
        """Handle the calls that return within a moment."""
        ready, _ = self._ray.wait(list(self._steps), num_returns=1, timeout=STEP_SECONDS)
        for step in ready:
            share = self._steps.pop(step)
            try:
                answer = self._ray.get(step)
            except self._ray.exceptions.RayActorError as error:
                self._lost(share, leases, error)
                continue
            except self._ray.exceptions.RayTaskError as error:
                raise PacklineError(
                    f"a node of the cluster cannot run the job: {_reason(error)}", hint=SAME
                ) from error
            if not share.node:
                share.node, share.host = answer
                answer = []
            runs = self._hear(share, leases, answer, on_event, on_result)
            if runs and (leases or not share.is_open):
                self._step(share, leases)

    def _hear(
        self,
        share: _Share,
        leases: Leases | None,
        replies: Sequence[bytes],
        on_event: Callable[[Event], None],
        on_result: Callable[[str, Any], None],
    ) -> bool:
        """Handle the replies of an actor; False if it has ended."""
        assert self._job is not None
        for data in replies:
            reply = REPLIES.decode(data)
            if isinstance(reply, Opened):
                share.is_open, self._failed_starts = True, 0
                if not self._opened:
                    self._opened, self._info = True, msgspec.msgpack.decode(reply.info)
            elif isinstance(reply, Progress):
                on_event(reply)
            elif isinstance(reply, Committed):
                if leases is not None and not leases.is_done(reply.name):
                    on_result(reply.name, msgspec.msgpack.decode(reply.result, type=self._job.result))
            elif isinstance(reply, Done):
                if leases is not None:
                    leases.done(share.name, reply.name)
            elif isinstance(reply, Failed):
                if reply.error != WorkerDied.__name__:
                    raise revive(reply)
                self._replace(share, leases, reply)
                return False
        return True

    def _lost(self, share: _Share, leases: Leases | None, error: Exception) -> None:
        """Return the units of an actor that has ended, and blame them only if its node lives."""
        if getattr(error, "actor_init_failed", False):
            raise PacklineError(f"a node of the cluster cannot run the job: {_reason(error)}", hint=SAME)
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        if share.node in alive and NODE_DIED not in str(error) and not getattr(error, "preempted", False):
            died = WorkerDied(f"the process of packline on {share.host} was killed", hint=Job.if_died)
            self._replace(share, leases, as_failed(died))
            return
        self._remove(share, as_failed(PacklineError(f"no node starts the job: {_reason(error)}", hint=SAME)))
        if share.node:
            self._tell(f"node {share.host} is gone: its units run elsewhere")
        if leases is not None:
            leases.lost(share.name)

    def _replace(self, share: _Share, leases: Leases | None, reason: Failed) -> None:
        """Let an actor with half the workers take the place of one in which a worker was killed."""
        self._ray.kill(share.actor)
        self._remove(share, reason)
        if leases is not None and (unit := leases.lost(share.name, charged=True)) is not None:
            raise WorkerDied(f"{reason.message}, for the third time while unit {unit} ran", hint=reason.hint)
        fewer = max(share.workers // 2, 1)
        self._fewer.append(fewer)
        self._tell(f"{reason.message}: its units run again, {fewer} at a time")

    def _remove(self, share: _Share, reason: Failed) -> None:
        """Forget an actor; raise the reason if several in a row have ended before they were open."""
        self._shares.pop(share.name)
        self._looked = 0.0
        self._failed_starts += not share.is_open
        if self._failed_starts >= MOST_FAILED_STARTS:
            raise revive(reason)

    def _tell(self, text: str) -> None:
        assert self._job is not None
        self._job.tell(Note(text))

    def close(self) -> None:
        """End all actors and their processes."""
        if not self._ray.is_initialized():
            return
        if sys.exc_info()[0] is None:  # else units are running that nobody needs
            ends = [share.actor.close.remote() for share in self._shares.values() if share.node]
            self._ray.wait(ends, num_returns=len(ends), timeout=END_SECONDS) if ends else None
        for share in self._shares.values():
            self._ray.kill(share.actor)
        self._shares.clear()
        self._steps.clear()
        if self._owned:
            with _own_signals():
                self._ray.shutdown()
            self._owned = False


def cores_per_share(nodes: Sequence[int]) -> int:
    """Cores of an actor: as many as possible, if actors of that size use nearly all cores.

    Args:
        nodes: number of cores of each node.

    >>> cores_per_share([64, 64, 4]), cores_per_share([4, 16, 16, 64]), cores_per_share([])
    (64, 16, 1)
    """
    sizes = sorted({count for count in nodes if count}, reverse=True)
    used = {size: sum(count // size * size for count in nodes) for size in sizes}
    return next((size for size in sizes if used[size] >= MOST_USED * sum(nodes)), 1)


def _library(address: str | None) -> Any:
    """Ray's module, without reports of usage; a cluster that it starts listens on this machine only."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address is None:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError as error:
        raise PacklineError(
            "Ray is not installed", hint="install it with: pip install 'packline[ray]'"
        ) from error
    return ray


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the handlers of signals, some of which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in INTERRUPTING}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _reason(error: Exception) -> str:
    """Last line of an error's text, which names its cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
