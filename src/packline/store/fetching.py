"""Requests for ranges of remote files, made by threads in the order in which their bytes are due.

What is needed now goes before what is fetched ahead. A slow request is repeated by the reader that waits for
it, and the faster of the two counts. A forked process makes new threads; if its parent had used the client of
the object store, which does not survive a fork, requests go through a helper process.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from typing import Any, Generic, TypeVar

import msgspec

from packline.errors import CorruptStore
from packline.storage.clients import needs_relay, relayed
from packline.storage.places import open_storage
from packline.storage.results import Storage

THREADS = 128
"""Requests at a time: with 64, an answer after 50 ms limits a reader to 1,200 ranges a second."""
HEDGE_SECONDS = 2.0
"""Seconds after which a request that a reader waits for is made again: p99.9 of S3's first byte."""


class Traffic(msgspec.Struct):
    """Requests and waits of one process."""

    requests: int = 0
    bytes: int = 0
    repeated: int = 0
    stalls: int = 0
    """Times that a reader had to wait for bytes that were not there."""
    stall_seconds: float = 0.0
    latency: float = 0.0
    """Seconds of a request: a running mean, with more weight on the slow ones."""

    def add(self, other: Traffic) -> None:
        """Add the counts of another store."""
        self.requests += other.requests
        self.bytes += other.bytes
        self.repeated += other.repeated
        self.stalls += other.stalls
        self.stall_seconds += other.stall_seconds
        self.latency = max(self.latency, other.latency)

    def arrived(self, size: int, seconds: float) -> None:
        """Count the answer to a request."""
        self.bytes += size
        share = 0.2 if seconds > self.latency else 0.05
        self.latency += share * (seconds - self.latency)


T = TypeVar("T")


class Request(Generic[T]):
    """Work of a thread that fetches.

    Args:
        work: makes the request; it may be called twice, and the first result counts.
        due: time at which the result will be used, in seconds since the epoch; 0: now.
    """

    def __init__(self, fetcher: Fetcher, work: Callable[[], T], due: float) -> None:
        self._fetcher, self._work = fetcher, work
        self._future = fetcher.put(work, due)

    @property
    def done(self) -> bool:
        """True if it has ended."""
        return self._future.done()

    def wait(self) -> T:
        """Result of the work, or the error that it raised."""
        if self._future.cancel():  # it is queued for later
            self._future = self._fetcher.put(self._work, 0.0)
        while True:
            first = self._future
            try:
                return first.result(HEDGE_SECONDS)
            except CancelledError:  # by another reader, who needs it now as well
                time.sleep(0)
            except TimeoutError:
                if first.done():  # its own error, or it has ended just now
                    return first.result()
                self._fetcher.traffic.requests += 1
                self._fetcher.traffic.repeated += 1
                again = self._fetcher.put(self._work, -1.0)
                wait((first, again), return_when=FIRST_COMPLETED)
                if first.done():
                    again.cancel()
                else:
                    self._future = again


class Fetcher:
    """Requests of one process for one store."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.reached = False
        """True if the store has answered, perhaps to another process."""
        self.traffic = Traffic()
        self._process = 0
        self._make()

    def _make(self) -> None:
        self._storage: Storage | None = None
        self._queue: queue.PriorityQueue[tuple[float, int, Future[Any], Callable[[], Any]]] = (
            queue.PriorityQueue()
        )
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._threads = 0

    def _own(self) -> None:
        """Begin anew in a forked process: it has none of the threads, and perhaps a lock of one of them."""
        if self._process != os.getpid():
            self._make()
            self.traffic = Traffic()
            self._process = os.getpid()

    @property
    def storage(self) -> Storage:
        """Storage of this process."""
        self._own()
        with self._lock:
            if self._storage is None:
                opened = relayed if needs_relay() else open_storage
                self._storage = opened(self.place, reached=self.reached)
            return self._storage

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` of a file, fewer if it is shorter; waits, so it is for the threads."""
        started = time.monotonic()
        try:
            data = self.storage.read(name, start, stop)
        except FileNotFoundError as error:
            raise missing(f"{self.place}/{name}") from error
        self.traffic.arrived(len(data), time.monotonic() - started)
        return data

    def request(self, work: Callable[[], T], due: float = 0.0) -> Request[T]:
        """Have work done by a thread, without waiting; see `Request`."""
        self._own()
        self.traffic.requests += 1
        return Request(self, work, due)

    def put(self, work: Callable[[], T], due: float) -> Future[T]:
        """Queue work for the threads; of two works, the one that is due first is done first."""
        self._own()
        future: Future[T] = Future()
        self._queue.put((due, next(self._numbers), future, work))
        with self._lock:
            if self._threads < THREADS:
                self._threads += 1
                name, arguments = "packline-fetch", (self._queue,)
                threading.Thread(target=_serve, args=arguments, name=name, daemon=True).start()
        return future


def _serve(waiting: queue.PriorityQueue[tuple[float, int, Future[Any], Callable[[], Any]]]) -> None:
    while True:
        _, _, future, work = waiting.get()
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
        del future, work


def missing(path: str) -> CorruptStore:
    """Error for a file of a remote store that is not there."""
    error = CorruptStore(
        f"cannot read {path}: it does not exist", hint="it was deleted, or never copied there"
    )
    error.__cause__ = FileNotFoundError(path)
    return error
