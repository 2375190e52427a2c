"""Requests for ranges of remote files, made by threads in the order in which their bytes are due.

    request(...)  ──> queue by time of use ──> 64 threads ──> bytes, or an error
                                                  └─ a request that takes too long is made again

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
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec

from packline.errors import CorruptStore
from packline.storage.cache import Sink
from packline.storage.places import open_storage
from packline.storage.protocol import Storage
from packline.storage.relay import needs_relay, relayed

THREADS = 64
HEDGE_SECONDS = 2.0
"""Seconds after which a request that a reader waits for is made again: p99.9 of S3's first byte."""


class Traffic(msgspec.Struct):
    """Requests and waits of one process."""

    requests: int = 0
    bytes: int = 0
    """Bytes that arrived."""
    repeated: int = 0
    """Requests that were made again because they were slow."""
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
        """Count a request."""
        self.requests += 1
        self.bytes += size
        share = 0.2 if seconds > self.latency else 0.05
        self.latency += share * (seconds - self.latency)


class Arriving:
    """Bytes that arrive in parts of any size, to be taken in others."""

    def __init__(self, parts: Iterable[bytes | memoryview]) -> None:
        self._parts, self._rest = iter(parts), memoryview(b"")
        self.taken = 0
        """Bytes that were written so far."""

    def write(self, size: int, sink: Sink) -> None:
        """Pass on the next bytes, fewer if no more arrive."""
        offset = 0
        while offset < size:
            if not len(self._rest):
                if (part := next(self._parts, None)) is None:
                    return
                self._rest = memoryview(part)
            some, self._rest = self._rest[: size - offset], self._rest[size - offset :]
            sink(some, offset)
            offset += len(some)
            self.taken += len(some)


T = TypeVar("T")


class Request(Generic[T]):
    """A range of a file that is being fetched.

    Args:
        take: takes what arrives, in the thread of the request; None: the bytes are the result.
        ended: called in that thread once it has ended.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        name: str,
        start: int,
        stop: int,
        take: Callable[[Arriving], T] | None = None,
        ended: Callable[[], None] | None = None,
    ) -> None:
        self.name, self.start, self.stop = name, start, stop
        self._fetcher, self._take, self._call_ended = fetcher, take, ended
        self._done = threading.Event()
        self._turns = threading.Semaphore(1)
        """One for each time that it is to be made."""
        self._result: Any = None
        self._error: Exception | None = None

    def claim(self) -> bool:
        """True for the thread that is to make it; it may be queued twice."""
        return self._turns.acquire(blocking=False)

    def allow(self) -> None:
        """Let it be made once more."""
        self._turns.release()

    def run(self) -> None:
        """Fetch, unless it was made twice and has ended; the first result counts."""
        if self.done:
            return
        try:
            result = self._fetch()
        except Exception as error:
            self._error = error
        else:
            self._result, self._error = result, None
        if self._call_ended is not None:
            self._call_ended()
        self._done.set()

    def _fetch(self) -> Any:
        storage, traffic, started = self._fetcher.storage, self._fetcher.traffic, time.monotonic()
        if self._take is None:
            data = storage.read(self.name, self.start, self.stop)
            traffic.arrived(len(data), time.monotonic() - started)
            return data
        arriving = Arriving(storage.read_parts(self.name, self.start, self.stop))
        try:
            return self._take(arriving)
        finally:
            if arriving.taken:
                traffic.arrived(arriving.taken, time.monotonic() - started)

    @property
    def done(self) -> bool:
        """True if it has ended."""
        return self._done.is_set()

    def wait(self) -> T:
        """Return the result of `take`, or the bytes of the range, fewer if the file is shorter.

        Raises:
            CorruptStore: there is no such file.
            PacklineError: the object store cannot be reached, or refuses.
        """
        if not self._done.is_set():
            self._fetcher.hurry(self)
            if not self._done.wait(HEDGE_SECONDS):
                self._fetcher.repeat(self)
                self._done.wait()
        if self._result is not None:
            return self._result
        if isinstance(self._error, FileNotFoundError):
            raise missing(f"{self._fetcher.place}/{self.name}") from self._error
        assert self._error is not None
        raise self._error


class Fetcher:
    """Requests of one process for one store.

    Args:
        place: URI of the store.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self.traffic = Traffic()
        self._process = 0
        self._make()

    def _make(self) -> None:
        self._storage: Storage | None = None
        self._queue: queue.PriorityQueue[tuple[float, int, Request[Any]]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def _own(self) -> None:
        """Begin anew in a forked process: it has none of the threads, and perhaps a lock of one of them."""
        if self._process != os.getpid():
            self._make()
            self.traffic = Traffic()
            self._process = os.getpid()

    @property
    def storage(self) -> Storage:
        """Storage of this process.

        Raises:
            StoreError: the place cannot be opened.
        """
        self._own()
        with self._lock:
            if self._storage is None:
                self._storage = relayed(self.place) if needs_relay() else open_storage(self.place)
            return self._storage

    def request(
        self,
        name: str,
        start: int,
        stop: int,
        due: float = 0.0,
        take: Callable[[Arriving], T] | None = None,
        ended: Callable[[], None] | None = None,
    ) -> Request[T]:
        """Fetch bytes `start` to `stop` of a file, without waiting; see `Request`.

        Args:
            due: time at which they will be used; 0: now.
        """
        self._own()
        request = Request(self, name, start, stop, take, ended)
        self._put(due, request)
        return request

    def hurry(self, request: Request[Any]) -> None:
        """Let a request that is queued for later go first."""
        self._put(0.0, request)

    def repeat(self, request: Request[Any]) -> None:
        """Make a slow request again."""
        self.traffic.repeated += 1
        request.allow()
        self._put(-1.0, request)

    def _put(self, due: float, request: Request[Any]) -> None:
        self._queue.put((due, next(self._numbers), request))
        with self._lock:
            if len(self._threads) < THREADS:
                thread = threading.Thread(
                    target=_serve, args=(self._queue,), name="packline-fetch", daemon=True
                )
                self._threads.append(thread)
                thread.start()


def _serve(waiting: queue.PriorityQueue[tuple[float, int, Request[Any]]]) -> None:
    while True:
        _, _, request = waiting.get()
        if request.claim():
            request.run()


def missing(path: str) -> CorruptStore:
    """Error for a file of a remote store that is not there."""
    error = CorruptStore(
        f"cannot read {path}: it does not exist", hint="it was deleted, or never copied there"
    )
    error.__cause__ = FileNotFoundError(path)
    return error
