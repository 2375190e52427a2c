"""Worker process: receives tasks from its pipe, returns events and receipts.

It is forked from a process that has loaded the tokenizer, so it starts in milliseconds and shares that
memory. While a finished unit is synced to disk (mostly waiting), the next one is already being encoded; a
unit counts only when its receipt is on the disk.

Memory: an engine's cache of words may grow without bound. A worker that has grown beyond its share reports
so after a unit and is replaced by a fresh one.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from packline.encoders.encoder import Encoder
from packline.jobs.events import Failed, Progress, UnitDone, as_failed
from packline.jobs.folder import BuildFolder
from packline.jobs.resources import die_with_parent, keep_freed_memory, peak_memory, resident_memory
from packline.jobs.signals import ignore_signals
from packline.jobs.unit import Crowded, Job, Task, UnitRunner
from packline.store.ledger import Ledger
from packline.store.manifest import Receipt

REPORT_SECONDS = 0.2


class Committed(msgspec.Struct, frozen=True, tag=True):
    """A unit is in the store."""

    unit: str
    documents: int
    tokens: int
    ledger: Ledger
    rates: dict[str, dict[str, float]]
    engine_bytes: dict[str, int]
    peak_rss_bytes: int
    first_encode: float
    """Time when this worker began to encode, on the monotonic clock."""
    undecoded: int
    """Audited documents of this worker that do not decode to their text, although their ids are right."""


class Retired(msgspec.Struct, frozen=True, tag=True):
    """The worker has grown too large and ends; its tasks without a commit are still to be done."""


WorkerEvent = Committed | Retired | Progress | Failed
WORKER_EVENTS = msgspec.msgpack.Decoder(WorkerEvent)
TASKS = msgspec.msgpack.Decoder(Task)


class UnitCommitter:
    """Runs units and commits each while the next one runs.

    Args:
        send: called with every event, from either of two threads.
    """

    def __init__(
        self,
        job: Job,
        encoder: Encoder,
        folder: BuildFolder,
        send: Any,
        source_names: list[str],
    ) -> None:
        self._encoder = encoder
        self._runner = UnitRunner(job, encoder, folder.tmp)
        self._folder, self._send, self._names = folder, send, source_names
        self._first_encode = 0.0
        self._threads = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None
        self._told = 0.0
        self._counts = [0, 0, 0]

    def run(self, task: Task) -> None:
        """Run one unit; on return, the previous one is committed."""
        self._first_encode = self._first_encode or time.monotonic()
        source = self._names[task.source]

        def report(documents: int, text_bytes: int, tokens: int) -> None:
            for place, count in enumerate((documents, text_bytes, tokens)):
                self._counts[place] += count
            if time.monotonic() - self._told > REPORT_SECONDS:
                self._tell(source)

        receipt = self._runner.run(task, report)
        self._tell(source)
        self.wait()
        if task.piece is not None and task.piece.path:
            Path(task.piece.path).unlink()
        self._pending = self._threads.submit(self._commit, receipt)

    def used(self) -> None:
        """Note that a fresh process could take the place of this one."""
        self._runner.replaceable = True

    def _tell(self, source: str) -> None:
        if any(self._counts):
            self._send(Progress(source, *self._counts))
        self._counts = [0, 0, 0]
        self._told = time.monotonic()

    def _commit(self, receipt: Receipt) -> None:
        self._folder.commit(receipt)
        self._send(
            Committed(
                receipt.unit,
                receipt.ledger.documents,
                receipt.ledger.tokens,
                receipt.ledger,
                self._encoder.rates(),
                dict(self._encoder.encoded_bytes),
                peak_memory(),
                self._first_encode,
                self._encoder.undecoded,
            )
        )

    def wait(self) -> None:
        """Wait until the last unit is committed."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def close(self) -> None:
        """Wait for a running commit, whatever its outcome; nothing is written after this."""
        self._threads.shutdown()


def work(
    pipe: Connection,
    job: Job,
    encoder: Encoder,
    folder: BuildFolder,
    source_names: list[str],
    memory_bytes: int,
) -> None:
    """Main loop of a worker process."""
    die_with_parent()
    ignore_signals()
    keep_freed_memory()
    import pyarrow

    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)

    one_at_a_time = threading.Lock()

    def send(event: WorkerEvent) -> None:
        with one_at_a_time:
            pipe.send_bytes(msgspec.msgpack.encode(event))

    units = UnitCommitter(job, encoder, folder, send, source_names)
    try:
        while True:
            try:
                task = TASKS.decode(pipe.recv_bytes())
            except EOFError:
                break
            try:
                units.run(task)
            except Crowded:  # nothing of the unit is committed: a fresh worker starts it again
                units.wait()
                send(Retired())
                return
            units.used()
            if resident_memory() > memory_bytes:
                units.wait()
                send(Retired())
                return
        units.wait()
    except (ConnectionError, KeyboardInterrupt):
        return  # this unit is no longer needed: a limit has been reached
    except BaseException as error:  # the coordinator must learn of any error
        send(as_failed(error))


def done_event(committed: Committed) -> UnitDone:
    """Public event for a committed unit."""
    return UnitDone(committed.unit, committed.documents, committed.tokens, committed.rates)
