"""Count the documents of a store, in worker processes or in this one.

    documents 0 .. D, cut into one range per process, of about equal numbers of tokens
    process:   range ── blocks of a million tokens ──> Counter ──> TokenTally
    together:  add_up

Processes are those of `jobs.task_pool`: a range is a task, and its tally is the result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from packline.jobs.task_pool import run_tasks
from packline.jobs.task_worker import Runner
from packline.store.reader import StoreReader
from packline.store.shard import contradiction
from packline.viewing.duplicates import HashFiles
from packline.viewing.tally import BLOCK_TOKENS, Counter, TokenTally

ALONE_TOKENS = 1 << 24
"""Smaller stores are counted in this process, since starting a process takes a quarter of a second."""
IF_DIED = "use fewer workers if memory ran out"
OnProgress = Callable[[int], None]
"""Callback that takes the number of tokens counted since the last call."""


class Job(msgspec.Struct, frozen=True):
    """Parameters common to all ranges of a store."""

    store: str
    special: list[int]
    folder: str
    """Folder of the hash files."""
    files: int


class Range(msgspec.Struct, frozen=True):
    """A range of documents that one task counts."""

    writer: int
    """Number of the range, which separates its hash files from those of other ranges."""
    start: int
    stop: int


def count_store(
    store: StoreReader,
    special: list[int],
    folder: Path,
    files: int,
    *,
    workers: int,
    on_progress: OnProgress = lambda tokens: None,
) -> list[TokenTally]:
    """Count all documents.

    Args:
        special: ids of special tokens.
        folder: folder for the hash files.
        files: number of hash files.
        workers: maximum number of processes; 0: count in this process.

    Raises:
        CorruptStore: an id is outside the vocabulary, or files disagree.
        WorkerDied: a process ended unexpectedly.
    """
    wanted = min(workers, store.manifest.tokens // ALONE_TOKENS)
    cuts = cut_documents(store, max(wanted, 1))
    job = Job(str(store.path), special, str(folder), files)
    ranges = [Range(number, *ends) for number, ends in enumerate(itertools.pairwise(cuts))]
    if wanted < 2:
        return [count_range(job, one, store, on_progress) for one in ranges]
    tasks = [(str(one.writer), one) for one in ranges]
    done = run_tasks(open_job, job, tasks, workers=wanted, on_tokens=on_progress, if_died=IF_DIED)
    tallies = {name: msgspec.json.decode(tally, type=TokenTally) for name, tally in done}
    return [tallies[name] for name, _ in tasks]


def cut_documents(store: StoreReader, ranges: int) -> list[int]:
    """Document numbers at which ranges of about equal numbers of tokens begin and end."""
    sums = np.cumsum([0, *(entry.tokens for entry in store.manifest.shards)])
    cuts = [0]
    for number in range(1, ranges):
        token = int(sums[-1]) * number // ranges
        place = int(np.searchsorted(sums, token, side="right")) - 1
        shard = store.shards[place]
        inner = np.searchsorted(shard.offsets, (token - int(sums[place])) * store.dtype.itemsize)
        cuts.append(max(int(store.firsts[place]) + int(inner), cuts[-1]))
    return [*cuts, len(store.documents)]


def open_job(job: msgspec.Raw) -> Runner:
    """Runner that counts the ranges of a job."""
    decoded = msgspec.json.decode(job, type=Job)
    store = StoreReader(decoded.store)

    def run(task: msgspec.Raw, report: OnProgress) -> TokenTally:
        return count_range(decoded, msgspec.json.decode(task, type=Range), store, report)

    return run


def count_range(job: Job, documents: Range, store: StoreReader, on_progress: OnProgress) -> TokenTally:
    """Count a range of documents in this process."""
    entry = store.manifest.tokenizer
    before = 0 if entry.bos_id is None else 1
    hashes = HashFiles(Path(job.folder), job.files, documents.writer)
    counter = Counter(entry.vocab_size, job.special, before, hashes)
    for number, shard in enumerate(store.shards):
        first = int(store.firsts[number])
        start, stop = max(documents.start - first, 0), min(documents.stop - first, len(shard))
        if start >= stop:
            continue
        sizes = read_text_bytes(store, number)[start:stop]
        path = shard.path("bin")
        places = shard.places(slice(start, stop))
        places = np.append(places, int(places[-1]) + int(shard.lengths[stop - 1]))
        if (
            places[0] < 0
            or (np.diff(places) != shard.lengths[start:stop]).any()
            or places[-1] > len(shard.tokens)
        ):
            raise contradiction(shard)
        for low, high in _blocks(places):
            tokens = shard.tokens[places[low] : places[high]]
            offsets = places[low : high + 1] - places[low]
            counter.add(first + start + low, tokens, offsets, sizes[low:high], number, str(path))
            on_progress(len(tokens))
    return counter.finish()


def _blocks(places: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges of documents to count together: at most a block of tokens, or one document."""
    low = 0
    while low < len(places) - 1:
        high = int(np.searchsorted(places, places[low] + BLOCK_TOKENS, side="right")) - 1
        yield low, (high := max(high, low + 1))
        low = high


def read_text_bytes(store: StoreReader, number: int) -> np.ndarray:
    """Read the bytes of text of each document of a shard, int64 `[D]`.

    Raises:
        CorruptStore: provenance is missing or damaged.
    """
    column = store.shards[number].open_provenance().read(columns=["text_bytes"])["text_bytes"]
    return np.asarray(column.to_numpy(), np.int64)
