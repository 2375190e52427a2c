"""Count the documents of a store, in worker processes or in this one.

    documents 0 .. D, cut into one range for each process, of about as many tokens each
    process:   range ── blocks of a million tokens ──> Counter ──> Tally
    together:  add_up

A worker is started fresh (`python -m packline.viewing.counting`): a line of JSON says what to do, lines of
JSON say how far it is and what came of it. The first error ends all; however this ends, no process is left.
"""

from __future__ import annotations

import itertools
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from packline.errors import ERRORS, CorruptStore, PacklineError, WorkerDied
from packline.store.reader import Store
from packline.viewing.duplicates import HashFiles
from packline.viewing.tally import BLOCK_TOKENS, Counter, Tally

ALONE_TOKENS = 1 << 24
"""Fewer are counted here: a process takes a quarter of a second to begin."""
REPORT_SECONDS = 0.1
OnProgress = Callable[[int], None]
"""Is called with tokens that were counted."""


class Job(msgspec.Struct, frozen=True):
    """A range of documents to count."""

    store: str
    start: int
    stop: int
    special: list[int]
    folder: str
    """Of the hashes."""
    files: int
    writer: int
    parent: int = 0


class Said(msgspec.Struct, frozen=True):
    """A line of a worker: tokens that are done; at the end a tally or an error."""

    tokens: int = 0
    tally: Tally | None = None
    error: str = ""
    message: str = ""
    hint: str = ""


SAID = msgspec.json.Decoder(Said)


def count_store(
    store: Store,
    special: list[int],
    folder: Path,
    files: int,
    *,
    workers: int,
    on_progress: OnProgress = lambda tokens: None,
) -> list[Tally]:
    """Count all documents.

    Args:
        special: ids of special tokens.
        folder: where hashes go.
        files: over how many files.
        workers: processes at most; 0: this one.

    Raises:
        CorruptStore: an id outside the vocabulary, or files that disagree.
        WorkerDied: a process ended by itself.
    """
    wanted = min(workers, store.manifest.tokens // ALONE_TOKENS)
    cuts = cut_documents(store, max(wanted, 1))
    jobs = [
        Job(str(store.path), start, stop, special, str(folder), files, number, os.getpid())
        for number, (start, stop) in enumerate(itertools.pairwise(cuts))
    ]
    if wanted < 2:
        return [count_range(job, store, on_progress) for job in jobs]
    return run_jobs(jobs, on_progress)


def cut_documents(store: Store, ranges: int) -> list[int]:
    """Numbers of documents at which ranges of about as many tokens begin and end."""
    sums = np.cumsum([0, *(entry.tokens for entry in store.manifest.shards)])
    cuts = [0]
    for number in range(1, ranges):
        token = int(sums[-1]) * number // ranges
        place = int(np.searchsorted(sums, token, side="right")) - 1
        shard = store.shards[place]
        inner = np.searchsorted(shard.offsets, (token - int(sums[place])) * store.dtype.itemsize)
        cuts.append(max(int(store.firsts[place]) + int(inner), cuts[-1]))
    return [*cuts, len(store.documents)]


def count_range(job: Job, store: Store, on_progress: OnProgress) -> Tally:
    """Count a range of documents in this process."""
    entry = store.manifest.tokenizer
    before = 0 if entry.bos_id is None else 1
    hashes = HashFiles(Path(job.folder), job.files, job.writer)
    counter = Counter(entry.vocab_size, job.special, before, hashes)
    for number, shard in enumerate(store.shards):
        first = int(store.firsts[number])
        start, stop = max(job.start - first, 0), min(job.stop - first, len(shard))
        if start >= stop:
            continue
        sizes = read_text_bytes(store, number)[start:stop]
        path = store.path / f"{shard.entry.name}.bin"
        places = shard.places(slice(start, stop))
        places = np.append(places, int(places[-1]) + int(shard.lengths[stop - 1]))
        if (
            places[0] < 0
            or (np.diff(places) != shard.lengths[start:stop]).any()
            or places[-1] > len(shard.tokens)
        ):
            raise CorruptStore(
                f"{path.with_suffix('.idx')}: expected documents back to back, found other offsets",
                hint="packline verify shows what else differs",
            )
        for low, high in _blocks(places):
            tokens = shard.tokens[places[low] : places[high]]
            offsets = places[low : high + 1] - places[low]
            counter.add(first + start + low, tokens, offsets, sizes[low:high], number, str(path))
            on_progress(len(tokens))
    return counter.finish()


def _blocks(places: np.ndarray) -> Iterator[tuple[int, int]]:
    """Documents that are counted together: a block's tokens at most, or one document."""
    low = 0
    while low < len(places) - 1:
        high = int(np.searchsorted(places, places[low] + BLOCK_TOKENS, side="right")) - 1
        yield low, (high := max(high, low + 1))
        low = high


def read_text_bytes(store: Store, number: int) -> np.ndarray:
    """Bytes of text of each document of a shard, int64 `[D]`.

    Raises:
        CorruptStore: provenance is missing or damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = store.path / f"{store.shards[number].entry.name}.docs.parquet"
    try:
        with pq.ParquetFile(path) as parquet:
            column = parquet.read(columns=["text_bytes"], use_threads=False)["text_bytes"]
        sizes = column.to_numpy().astype(np.int64)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise CorruptStore(
            f"cannot read {path}: {error}", hint="packline verify shows what else differs"
        ) from error
    if len(sizes) != len(store.shards[number]):
        raise CorruptStore(f"{path}: expected {len(store.shards[number]):,} documents, found {len(sizes):,}")
    return sizes


def run_jobs(jobs: list[Job], on_progress: OnProgress) -> list[Tally]:
    """Do each job in a process of its own; tallies in the order of the jobs."""
    tallies: dict[int, Tally] = {}
    workers = []
    try:
        with selectors.DefaultSelector() as selector:
            for number, job in enumerate(jobs):
                worker = _start(job)
                workers.append(worker)
                assert worker.stdout is not None
                selector.register(worker.stdout, selectors.EVENT_READ, (number, worker, bytearray()))
            while len(tallies) < len(jobs):
                for key, _ in selector.select():
                    number, worker, waiting = key.data
                    data = os.read(key.fd, 1 << 20)
                    if not data:
                        raise WorkerDied(
                            f"a worker process ended by itself (exit code {worker.wait()})",
                            hint="use fewer workers if memory ran out",
                        )
                    waiting += data
                    *lines, rest = bytes(waiting).split(b"\n") if b"\n" in data else [bytes(waiting)]
                    waiting[:] = rest
                    for said in map(SAID.decode, lines):
                        if said.error:
                            raise ERRORS.get(said.error, PacklineError)(said.message, hint=said.hint)
                        on_progress(said.tokens)
                        if said.tally is not None:
                            tallies[number] = said.tally
                            selector.unregister(key.fd)
    except BaseException:
        for worker in workers:
            worker.kill()  # it works on something that nobody waits for
        raise
    finally:
        for worker in workers:
            worker.communicate()
    return [tallies[number] for number in range(len(jobs))]


def _start(job: Job) -> subprocess.Popen[bytes]:
    home = str(Path(__file__).parents[2])
    paths = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    worker = subprocess.Popen(
        [sys.executable, "-P", "-m", "packline.viewing.counting"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": paths},
    )
    assert worker.stdin is not None
    try:
        worker.stdin.write(msgspec.json.encode(job) + b"\n")
        worker.stdin.flush()
    except BrokenPipeError:
        pass  # it died: its output ends, and says so
    return worker


def main() -> int:
    """Do one job."""
    from packline.runtime.resources import die_with_parent

    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the asking process decides what an interruption means
    messages = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def tell(said: Said) -> None:
        messages.write(msgspec.json.encode(said) + b"\n")
        messages.flush()

    waiting, told = 0, time.monotonic()

    def on_progress(tokens: int) -> None:
        nonlocal waiting, told
        waiting += tokens
        if time.monotonic() - told > REPORT_SECONDS:
            tell(Said(waiting))
            waiting, told = 0, time.monotonic()

    try:
        job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
        if os.getppid() != job.parent:
            return 1  # it ended before the kernel was told to end this one with it
        tally = count_range(job, Store(job.store), on_progress)
        tell(Said(waiting, tally))
    except BrokenPipeError:
        return 1  # nobody listens any more
    except BaseException as error:  # told, not raised: the asking process shows it
        if isinstance(error, PacklineError):
            tell(Said(error=type(error).__name__, message=error.message, hint=error.hint))
        else:
            tell(Said(error="PacklineError", message=f"{type(error).__name__}: {error}"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
