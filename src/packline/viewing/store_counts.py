"""Counts of a store: totals of its groups, lengths of its documents, and a tally of its tokens by processes.

Lengths up to a million tokens are counted by value, so quantiles are exact there and memory is 8 MB for a
store of any size. Tokens are counted in ranges of documents, work units of about equal numbers of tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np

from packline.jobs.engine import run_units
from packline.jobs.job import Opening, ReportProgress, Runner
from packline.jobs.machines import On
from packline.jobs.plan import Unit
from packline.ragged import offsets_of
from packline.sources.reader import Span
from packline.store.paths import CacheSettings
from packline.store.reader import StoreReader, shard_labels
from packline.viewing.duplicates import HashFiles
from packline.viewing.tally import BLOCK_TOKENS, Counter, TokenTally

LONGEST_COUNTED = 1 << 20
BLOCK = 1 << 20


class Group(msgspec.Struct, frozen=True):
    """Totals for one split, source and label of a store."""

    split: str
    source: str
    label: str | None
    documents: int
    tokens: int
    text_bytes: int
    shards: int


class DocumentLengths(msgspec.Struct, frozen=True):
    """Tokens per document, boundary tokens included."""

    shortest: int
    median: int
    mean: float
    p90: int
    p99: int
    longest: int
    histogram: list[int]
    """Documents of 1, 2 to 3, 4 to 7, ... tokens: entry k counts lengths from 2**k to 2**(k+1) - 1."""


def group_shards(store: StoreReader, text_bytes: Mapping[int, int] | None = None) -> list[Group]:
    """Totals by split, source and label, with sources in the order of the recipe."""
    groups: dict[tuple[str, int, str, str | None], list[int]] = {}
    for number, (shard, origin) in enumerate(zip(store.manifest.shards, shard_labels(store), strict=True)):
        sums = groups.setdefault((shard.split, *origin), [0, 0, 0, 0])
        counts = (shard.documents, shard.tokens, (text_bytes or {}).get(number, 0), 1)
        for place, count in enumerate(counts):
            sums[place] += count
    return [
        Group(split, source, label, *sums)
        for (split, _, source, label), sums in sorted(groups.items(), key=lambda item: item[0][:2])
    ]


def measure_lengths(store: StoreReader) -> DocumentLengths:
    return summarize_lengths(length_blocks(store))


def summarize_lengths(blocks: Iterator[np.ndarray]) -> DocumentLengths:
    """Summarize lengths.

    Args:
        blocks: lengths, integers `[D]` each, not empty.
    """
    counts = np.zeros(LONGEST_COUNTED + 1, np.int64)
    histogram = np.zeros(32, np.int64)
    longest = tokens = 0
    for lengths in blocks:
        longest, tokens = max(longest, int(lengths.max())), tokens + int(lengths.sum(dtype=np.int64))
        counts += np.bincount(np.minimum(lengths, LONGEST_COUNTED), minlength=len(counts))
        powers = np.frexp(np.maximum(lengths, 1).astype(np.float64))[1] - 1
        histogram += np.bincount(powers, minlength=32)
    documents = int(counts.sum())
    if not documents:
        return DocumentLengths(0, 0, 0.0, 0, 0, 0, [])
    sums = np.cumsum(counts)

    def quantile(share: float) -> int:
        place = min(int(share * documents), documents - 1)
        return int(np.searchsorted(sums, place, side="right"))

    last = int(np.flatnonzero(histogram)[-1])
    return DocumentLengths(
        quantile(0),
        quantile(0.5),
        tokens / documents,
        quantile(0.9),
        quantile(0.99),
        longest,
        histogram[: last + 1].tolist(),
    )


def length_blocks(store: StoreReader) -> Iterator[np.ndarray]:
    """Lengths of all documents in order, small shards joined because counting has a cost per block."""
    waiting: list[np.ndarray] = []
    held = 0
    for shard in store.shards:
        waiting.append(np.array(shard.lengths))  # a copy, so that no memory map stays open
        held += len(waiting[-1])
        if held >= BLOCK:
            yield np.concatenate(waiting)
            waiting, held = [], 0
    if held:
        yield np.concatenate(waiting)


ALONE_TOKENS = 1 << 24
"""Smaller stores are counted in this process, since starting a process takes a quarter of a second."""
MOST_RANGES = 64
"""Largest number of ranges on a cluster; each writes separate files."""
OnProgress = Callable[[int], None]
"""Callback that takes the number of tokens counted since the last call."""


class CountSettings(Opening, msgspec.Struct, frozen=True):
    """Settings common to all ranges of a store."""

    store: str
    special: list[int]
    folder: str
    files: int
    cache: CacheSettings | None = None

    def open(self) -> RangeCounter:
        return RangeCounter(self)


class RangeCounter(Runner[Unit, TokenTally]):
    """Counts ranges of a store."""

    def __init__(self, settings: CountSettings) -> None:
        self._settings, self._store = settings, StoreReader(settings.store, settings.cache)

    def run(self, unit: Unit, report: ReportProgress) -> Iterator[TokenTally]:
        yield count_range(self._settings, unit, self._store, report)


def count_store(
    store: StoreReader,
    special: list[int],
    folder: Path,
    files: int,
    *,
    workers: int,
    on_progress: OnProgress = lambda tokens: None,
    on: On = "local",
) -> list[TokenTally]:
    most = workers if on == "local" else MOST_RANGES
    wanted = min(most, store.manifest.tokens // ALONE_TOKENS)
    cuts = cut_documents(store, max(wanted, 1))
    settings = CountSettings(str(store.place), special, str(folder), files, store.cache)
    ranges = [
        Unit(f"range-{number}", number, spans=(Span(0, start, stop),))
        for number, (start, stop) in enumerate(itertools.pairwise(cuts))
    ]
    processes = wanted if wanted > 1 else 0
    return run_units(settings, ranges, workers=processes, on_tokens=on_progress, on=on)


def cut_documents(store: StoreReader, ranges: int) -> list[int]:
    """Document numbers at which ranges of about equal numbers of tokens begin and end."""
    sums = offsets_of(store.manifest.shards.numbers("tokens"))
    cuts = [0]
    for number in range(1, ranges):
        token = int(sums[-1]) * number // ranges
        place = int(np.searchsorted(sums, token, side="right")) - 1
        shard = store.shards[place]
        inner = np.searchsorted(shard.offsets, (token - int(sums[place])) * store.dtype.itemsize)
        cuts.append(max(int(store.firsts[place]) + int(inner), cuts[-1]))
    return [*cuts, len(store.documents)]


def count_range(
    settings: CountSettings, unit: Unit, store: StoreReader, on_progress: OnProgress
) -> TokenTally:
    entry, (documents,) = store.manifest.tokenizer, unit.spans
    before = 0 if entry.bos_id is None else 1
    hashes = HashFiles(Path(settings.folder), settings.files, unit.number)
    counter = Counter(entry.vocab_size, settings.special, before, hashes)
    for number, shard in enumerate(store.shards):
        first = int(store.firsts[number])
        start, stop = max(documents.start - first, 0), min(documents.stop - first, len(shard))
        if start >= stop:
            continue
        sizes = read_text_bytes(store, number)[start:stop]
        path = shard.path("bin")
        places = shard.places(slice(start, stop))
        places = np.append(places, int(places[-1]) + int(shard.lengths[stop - 1]))
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
    """Read the bytes of text of each document of a shard, int64 `[D]`."""
    groups = store.shards[number].open_provenance().groups(["text_bytes"])
    return np.concatenate([np.empty(0, np.int64), *(table["text_bytes"].to_numpy() for _, table in groups)])
