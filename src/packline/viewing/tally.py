"""One pass over documents: everything that is counted from tokens, as sums that can be added.

Bytes per token of documents have a usual range. Text that a tokenizer was not made for (another script,
base64, noise) has few, text of spaces or of one long known word has many. The limits come from the store
itself: one and a half times the interquartile distance of the logarithm beyond the quartiles, and at least a
factor of two from the median. Rates are counted in classes of a 32nd of an octave, and limits lie between
classes, so counts add up over processes and are exact. Only documents of at least 32 tokens are counted.
A store is counted in ranges of documents, work units of about equal numbers of tokens.

Cost: 4 nanoseconds per token of prose, 2 of them for counting ids; 7 for code with much white space, most of
which is examined twice. Memory: a block of a million tokens, plus eight bytes per id.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from packline.errors import CorruptStore
from packline.jobs.engine import run_units
from packline.jobs.job import Opening, ReportProgress, Runner
from packline.jobs.machines import On
from packline.jobs.plan import Unit
from packline.ragged import offsets_of
from packline.sources.reader import Span
from packline.store.files import CacheSettings
from packline.store.reader import StoreReader
from packline.viewing.suspicious import REASONS, SHORTEST, HashFiles, judge_document, screen

BLOCK_TOKENS = 1 << 20
COUNTED_TOKENS = 1 << 18
"""Tokens counted at a time: `bincount` makes 64-bit numbers of them, which stay in the cache."""
KEPT = 100
CLASSES_AN_OCTAVE = 32
LOWEST, HIGHEST = -6, 14
"""Octaves: from 1/64 byte per token to 16,384; rates beyond count in the outermost class."""
CLASSES = (HIGHEST - LOWEST) * CLASSES_AN_OCTAVE
BEYOND = 1.5
"""Distance of the limits beyond the quartiles, in interquartile distances."""
ALONE_TOKENS = 1 << 24
"""Smaller stores are counted in this process, since starting a process takes a quarter of a second."""
MOST_RANGES = 64
"""Largest number of ranges on a cluster; each writes separate files."""
OnProgress = Callable[[int], None]
"""Callback that takes the number of tokens counted since the last call."""


class Suspect(msgspec.Struct, frozen=True):
    """A document that looks wrong for one reason."""

    document: int
    value: float
    """Severity: a share, the tokens of a run, or bytes per token."""


class TokenTally(msgspec.Struct):
    """Counts of a range of documents."""

    vocab_size: int
    documents: int = 0
    tokens: int = 0
    text_bytes: dict[int, int] = msgspec.field(default_factory=dict)
    """Bytes of text by shard number."""
    counts: bytes = b""
    """Tokens by id, int64 `[V]`, little-endian."""
    rates: list[int] = msgspec.field(default_factory=lambda: [0] * CLASSES)
    """Documents by class of bytes per token."""
    found: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    suspects: dict[str, list[Suspect]] = msgspec.field(
        default_factory=lambda: {name: [] for name in (*REASONS, "few", "many")}
    )
    """The worst of each kind; `few` and `many` are those with the fewest and the most bytes per token."""

    def used(self) -> np.ndarray:
        """Tokens by id, int64 `[V]`."""
        return np.frombuffer(self.counts, "<i8") if self.counts else np.zeros(self.vocab_size, "<i8")

    def keep(self, reason: str, suspects: Iterable[Suspect]) -> None:
        sign = 1 if reason == "few" else -1
        both = [*self.suspects[reason], *suspects]
        self.suspects[reason] = sorted(both, key=lambda one: (sign * one.value, one.document))[:KEPT]


def add_up(tallies: Iterable[TokenTally], vocab_size: int) -> TokenTally:
    """Add tallies up to one."""
    whole = TokenTally(vocab_size)
    used, rates = whole.used().copy(), np.zeros(CLASSES, np.int64)
    for one in tallies:
        whole.documents += one.documents
        whole.tokens += one.tokens
        for shard, count in one.text_bytes.items():
            whole.text_bytes[shard] = whole.text_bytes.get(shard, 0) + count
        used += one.used()
        rates += np.array(one.rates)
        for reason, count in one.found.items():
            whole.found[reason] += count
        for reason, suspects in one.suspects.items():
            whole.keep(reason, suspects)
    whole.counts, whole.rates = used.astype("<i8").tobytes(), rates.tolist()
    return whole


class Counter:
    """Counts blocks of documents."""

    def __init__(self, vocab_size: int, special: Iterable[int], before: int, hashes: HashFiles) -> None:
        self.tally = TokenTally(vocab_size)
        self._special = np.zeros(vocab_size, bool)
        self._special[[one for one in special if one < vocab_size]] = True
        self._before, self._hashes = before, hashes
        self._used = np.zeros(vocab_size, np.int64)
        self._rates = np.zeros(CLASSES, np.int64)

    def add(
        self,
        first: int,
        tokens: np.ndarray,
        offsets: np.ndarray,
        text_bytes: np.ndarray,
        shard: int,
        where: str,
    ) -> None:
        """Count documents.

        Args:
            tokens: ids, uint16 or 32 bits `[T]`.
            offsets: int64 `[D+1]`, the first 0, the last T.
            text_bytes: bytes of text of each document, int64 `[D]`.
        """
        ids = np.ascontiguousarray(tokens).view(f"<u{tokens.itemsize}")
        for start in range(0, len(ids), COUNTED_TOKENS):
            self._count(ids[start : start + COUNTED_TOKENS], first, start, offsets, where)
        starts, ends = offsets[:-1] + self._before, offsets[1:] - 1
        if (starts > ends).any():
            document = first + int(np.argmax(starts > ends))
            raise CorruptStore(f"{where}: document {document:,}: expected boundary tokens, found none")
        self._hashes.add(first, ids, starts, ends)
        found: dict[str, list[Suspect]] = {}
        for place, reasons in screen(ids, starts, ends, self._special).items():
            for reason, value in judge_document(
                ids[starts[place] : ends[place]], self._special, reasons
            ).items():
                found.setdefault(reason, []).append(Suspect(first + place, value))
        for reason, suspects in found.items():
            self.tally.found[reason] += len(suspects)
            self.tally.keep(reason, suspects)
        self._rate(first, ends - starts, text_bytes)
        self.tally.documents += len(starts)
        self.tally.tokens += len(ids)
        known = self.tally.text_bytes.get(shard, 0)
        self.tally.text_bytes[shard] = known + int(text_bytes.sum())

    def finish(self) -> TokenTally:
        self._hashes.flush()
        self.tally.counts = self._used.astype("<i8").tobytes()
        self.tally.rates = self._rates.tolist()
        return self.tally

    def _count(self, ids: np.ndarray, first: int, start: int, offsets: np.ndarray, where: str) -> None:
        if int(ids.max()) >= self.tally.vocab_size:  # before counting: memory grows with the largest id
            place = int(np.argmax(ids >= self.tally.vocab_size))
            document = int(np.searchsorted(offsets, start + place, side="right")) - 1
            inner = start + place - int(offsets[document])
            found = int(ids[place]) if ids.itemsize == 2 else int(ids.view("<i4")[place])
            raise CorruptStore(
                f"{where}: document {first + document:,}, token {inner:,}: expected an id below "
                f"{self.tally.vocab_size:,}, found {found:,}",
                hint="packline verify shows all differences",
            )
        self._used += np.bincount(ids, minlength=self.tally.vocab_size)

    def _rate(self, first: int, lengths: np.ndarray, text_bytes: np.ndarray) -> None:
        asked = np.flatnonzero(lengths >= SHORTEST)
        if not len(asked):
            return
        rates = text_bytes[asked] / lengths[asked]
        self._rates += np.bincount(rate_class(rates), minlength=CLASSES)
        order = np.lexsort((asked, rates))
        few, many = order[:KEPT], np.lexsort((asked, -rates))[:KEPT]
        for reason, places in (("few", few), ("many", many)):
            worst = self.tally.suspects[reason]
            if len(worst) == KEPT:  # most blocks have nothing that is worse
                edge = worst[-1].value
                places = places[rates[places] < edge if reason == "few" else rates[places] > edge]
            if len(places):
                self.tally.keep(
                    reason, [Suspect(first + int(asked[one]), float(rates[one])) for one in places]
                )


class Rates(msgspec.Struct, frozen=True):
    """Bytes per token of the documents that were counted, and the limits of the usual range."""

    documents: int
    median: float
    low: float
    """Lower limit; documents below it have few bytes per token."""
    high: float
    """Upper limit; documents at or above it have many bytes per token."""
    few: int
    many: int


def rate_class(rates: np.ndarray) -> np.ndarray:
    """Class of each rate, int64."""
    octaves = np.log2(np.maximum(rates, 2.0**LOWEST)) - LOWEST
    return np.minimum((octaves * CLASSES_AN_OCTAVE).astype(np.int64), CLASSES - 1)


def edge_of(number: int) -> float:
    """Rate at which a class begins."""
    return float(2.0 ** (number / CLASSES_AN_OCTAVE + LOWEST))


def measure_rates(counts: np.ndarray) -> Rates:
    """Compute the usual range from counts of documents by class."""
    documents = int(counts.sum())
    if not documents:
        return Rates(0, 0.0, 0.0, 0.0, 0, 0)
    sums = np.cumsum(counts)
    first, middle, last = (
        int(np.searchsorted(sums, min(int(share * documents), documents - 1), side="right"))
        for share in (0.25, 0.5, 0.75)
    )
    beyond = round(BEYOND * (last - first))
    low = max(min(first - beyond, middle - CLASSES_AN_OCTAVE), 0)
    high = min(max(last + 1 + beyond, middle + 1 + CLASSES_AN_OCTAVE), CLASSES)
    few, many = int(counts[:low].sum()), int(counts[high:].sum())
    return Rates(
        documents, (edge_of(middle) + edge_of(middle + 1)) / 2, edge_of(low), edge_of(high), few, many
    )


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
    on_progress: OnProgress,
    on: On,
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
