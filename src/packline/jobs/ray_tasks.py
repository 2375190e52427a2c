"""Executor on a Ray cluster: slices of the units, each one task of Ray.

Ray places the tasks, and repeats those whose node is lost, without bound. A task that begins looks at one
listing of receipts and leaves out what is committed. A worker that is killed, usually because memory ran out,
is replaced within its task by half as many workers. Any other error stops the job: it would happen again.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from packline.errors import PacklineError, RecipeError, WorkerDied
from packline.jobs.events import Note, OnEvent, OnResult, Progress
from packline.jobs.executors import LocalProcesses, LocalThreads, sendable
from packline.jobs.job import Job, Opening
from packline.jobs.machines import Ray
from packline.jobs.plan import Unit
from packline.jobs.resources import MEMORY_A_WORKER, usable_cores
from packline.jobs.signals import INTERRUPTING
from packline.jobs.work import lock_file
from packline.store.naming import planned_name
from packline.version import __version__

LOOK_SECONDS = 10.0
"""Time between two listings of receipts, for progress."""
WAIT_NOTE_SECONDS = 15.0
"""Time without any node after which a note names what is missing."""
ANSWER_SECONDS = 5.0
"""Time in which the address of a cluster has to accept a connection."""
MEMORY_SHARE = 0.9
"""Share of a node's memory that tasks may reserve."""
MOST_USED = 0.9
"""Share of all cores that tasks should use, where they are as large as possible."""
MOST_CORES = 4
"""Cores of a task, unless a number of workers is given: small tasks are finer, and each loads a tokenizer."""
SLICES_A_TASK = 4
"""Slices for each task that fits on the nodes at the same time: a late one is a small part of the work."""
MOST_DEATHS = 3
"""Deaths of workers during the same unit after which the job stops."""
SAME = "install the same version of packline on all nodes, and give them the same files"


class Share(Job[Any, Any, None]):
    """Settings common to all tasks of a job, which a task runs as a job of its own."""

    def __init__(self, job: Job[Any, Any, Any], workers: int) -> None:
        self.version, self.settings, self.width = __version__, job.opening(), workers
        self.if_died, self.in_threads = job.if_died, job.in_threads
        self.cwd = os.getcwd()
        """Working directory of the driver, which relative paths belong to."""
        self.lock = "" if job.folder is None else str(job.folder.work / "lock")
        """Lock of the job, which a task shares; empty if it has none."""

    def opening(self) -> Opening:
        return self.settings

    begin = todo = take = finish = Any  # type: ignore[assignment]


def run_slice(share: Share, units: Sequence[Unit]) -> list[tuple[str, Any]] | PacklineError:
    """The task: run a slice; its results, or the error that stopped it. Without units: `Runner.info`."""
    if share.version != __version__:
        raise RuntimeError(f"expected packline {share.version} as on the driver, found {__version__}")
    with suppress(OSError):  # on a machine without this folder, paths have to be absolute
        os.chdir(share.cwd)
    lock = lock_file(Path(share.lock), fcntl.LOCK_SH) if share.lock else -1
    try:
        return _run(share, units)
    except Exception as error:
        return sendable(error)
    finally:
        if lock >= 0:
            os.close(lock)


def _run(share: Share, units: Sequence[Unit]) -> list[tuple[str, Any]]:
    """Run units with fewer and fewer workers, while these are killed."""
    workers, results, deaths = share.width, list[tuple[str, Any]](), Counter[str]()
    executor = LocalThreads if share.in_threads else LocalProcesses
    while True:
        try:
            with closing(executor(share, workers)) as session:
                if not units:
                    return [("", session.info())]
                left = share.settings.left(units)
                session.run(left, lambda event: None, lambda *found: results.append(found))
                return results
        except WorkerDied as error:
            deaths[error.message] += 1
            if deaths[error.message] >= MOST_DEATHS:
                raise WorkerDied(f"{error.message}, for the third time", hint=error.hint) from error
            workers = max(workers // 2, 1)


class RayTasks:
    def __init__(self, place: Ray) -> None:
        self._address = place.address or os.environ.get("RAY_ADDRESS")
        if self._address is not None:
            _refuse_silence(self._address)  # before the job has begun
        self._given = place.slices
        self._ray = _library(self._address)
        self._owned = False
        self._memory = self._fitting = self.width = 0
        self._tasks: list[Any] = []
        """Tasks that have not returned."""
        self._info: Any = None

    def count(self, job: Job[Any, Any, Any], units: int) -> int:
        """Number of workers on all nodes that are there now."""
        self._connect()
        alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        nodes = [node for node in alive if node.get("CPU", 0) >= 1]
        given = job.given_workers
        if given == 0:
            raise RecipeError("workers is 0: expected 1 or more for each node of a Ray cluster")
        self.width = cores = given or min(MOST_CORES, cores_per_task([int(node["CPU"]) for node in nodes]))
        fitting = [node for node in nodes if node["CPU"] >= cores and "memory" in node]
        rooms = [MEMORY_SHARE * node["memory"] * cores / node["CPU"] for node in fitting]
        self._memory = int(min([job.given_memory or cores * MEMORY_A_WORKER, *rooms]))
        self._fitting = max(sum(int(node["CPU"]) // cores for node in nodes), 1)
        return cores * self._fitting

    def _connect(self) -> None:
        """Connect to the cluster; start one on this machine, if there is none and none is named."""
        if self._ray.is_initialized():
            return
        logging.getLogger("ray").setLevel(logging.ERROR)
        place: dict[str, Any] = {"address": self._address}
        if self._address is None:
            place = {
                "address": "local",  # never one that a file of another process names
                "num_cpus": usable_cores(),
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
            }
        quiet = {"logging_level": logging.ERROR, "configure_logging": False}
        try:
            with _own_signals():
                self._ray.init(**place, **quiet, log_to_driver=bool(os.environ.get("PACKLINE_DEBUG")))
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            reason = str(error).strip().splitlines()[0]
            raise _no_cluster(self._address or "this machine", reason) from error
        self._owned = True

    def open(self, job: Job[Any, Any, Any], workers: int) -> RayTasks:
        """Session for a job, once one node has opened its runner."""
        self._job, cores = job, self.width
        memory = f"{self._memory / 2**30:.1f} GiB"
        job.tell(Note(f"Ray: room for {self._fitting} x {cores} workers, each {cores} with {memory}"))
        job.given_workers, job.given_memory = cores, self._memory
        self._share = self._ray.put(Share(job, cores))
        self._task = self._ray.remote(run_slice).options(
            num_cpus=cores,
            memory=self._memory,
            scheduling_strategy="SPREAD",
            max_retries=-1,  # of tasks whose node or process is lost
            retry_exceptions=False,
        )
        opened, began = self._start([]), time.monotonic()
        while not self._ray.wait([opened], timeout=WAIT_NOTE_SECONDS)[0]:
            free = self._ray.available_resources().get("CPU", 0)
            if free < cores and time.monotonic() - began < 2 * WAIT_NOTE_SECONDS:
                needed = f"{cores} free cores and {memory} of free memory"
                job.tell(Note(f"waiting for a node with {needed}; fewer --workers need less of both"))
        ((_, self._info),) = self._results(opened)
        return self

    def info(self) -> Any:
        return self._info

    def run(self, units: Sequence[Unit], on_event: OnEvent, on_result: OnResult) -> None:
        if not units:
            return
        for slice in slices_of(units, self._given or SLICES_A_TASK * self._fitting):
            self._start(slice)
        looked, seen = time.monotonic(), self._committed()
        planned, names = {unit.name: unit for unit in units}, self._job.sources
        while self._tasks:
            ready, _ = self._ray.wait(self._tasks, num_returns=1, timeout=LOOK_SECONDS)
            for task in ready:
                for name, result in self._results(task):
                    on_result(name, result)
            if time.monotonic() - looked > LOOK_SECONDS:
                looked, there = time.monotonic(), self._committed()
                for name in there - seen:  # as far as text is planned
                    if (unit := planned.get(planned_name(name))) is not None:
                        size = unit.slice_bytes or unit.text_bytes
                        on_event(Progress(names[unit.source] if names else "", 0, size, 0))
                seen = there

    def _committed(self) -> set[str]:
        return set() if self._job.folder is None else self._job.folder.receipt_names()

    def _start(self, units: Sequence[Unit]) -> Any:
        task = self._task.remote(self._share, list(units))
        self._tasks.append(task)
        return task

    def _results(self, task: Any) -> list[tuple[str, Any]]:
        """Results of a task that has returned; raises the error that stopped it."""
        self._tasks.remove(task)
        try:
            found: list[tuple[str, Any]] | PacklineError = self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = lines[-1] if lines else type(error).__name__  # the last line names the cause
            raise PacklineError(f"a node of the cluster cannot run the job: {reason}", hint=SAME) from error
        if isinstance(found, PacklineError):
            raise found
        return found

    def close(self) -> None:
        if not self._ray.is_initialized():
            return
        for task in self._tasks:
            with suppress(Exception):  # one that has just ended
                self._ray.cancel(task, force=True)
        self._tasks.clear()
        if self._owned:
            with _own_signals():
                self._ray.shutdown()
            self._owned = False


def slices_of(units: Sequence[Unit], count: int) -> list[list[Unit]]:
    """Units dealt out to this number of slices, none of them empty; lanes of one file stay together.

    >>> units = [Unit("a"), Unit("b"), Unit("b"), Unit("c")]
    >>> [[unit.name for unit in slice] for slice in slices_of(units, 2)]
    [['a', 'c'], ['b', 'b']]
    """
    together = [list(lanes) for _, lanes in groupby(units, lambda unit: unit.name)]
    dealt = (together[number::count] for number in range(min(count, len(together))))
    return [[unit for lanes in slice for unit in lanes] for slice in dealt]


def cores_per_task(nodes: Sequence[int]) -> int:
    """Cores of a task, by those of each node: as many as possible, if such tasks use nearly all cores.

    >>> cores_per_task([64, 64, 4]), cores_per_task([4, 16, 16, 64]), cores_per_task([])
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
        hint = "install it with: pip install 'packline[ray]'"
        raise PacklineError("Ray is not installed", hint=hint) from error
    return ray


def _no_cluster(address: str, reason: str) -> PacklineError:
    hint = "start a cluster with: ray start --head; or name one: RAY_ADDRESS=HOST:6379"
    return PacklineError(f"cannot connect to Ray at {address}: {reason}", hint=hint)


def _refuse_silence(address: str) -> None:
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdecimal():
        return  # a word, such as auto
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except OSError as error:
        raise _no_cluster(address, error.strerror or str(error)) from error


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
