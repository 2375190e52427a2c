"""Documents whose tokens look wrong: excessive repetition, nothing but control tokens, or duplicates.

    repetition     one sequence of four tokens makes up at least 30% of a document's sequences
    one token      one token makes up at least half of a document
    long run       one token occurs at least a hundred times in a row
    no text        no tokens, or special tokens only

The tokens are those between the boundary tokens; the first two reasons apply only to documents of at least 32
tokens. Every document is screened, and only those that do not pass are counted exactly, in their first four
million tokens. Screening examines 64 positions, one in each 64th of a document, then 256 in longer documents.
A document just at a limit may be missed (a repetition of 30% once in 10,000 times); whatever is reported is
exact. Content is not judged: a table of zeros is reported and may be correct.

Documents with identical tokens, boundary tokens ignored, are found by hash; exact, in bounded memory. A file
of two million records is sorted in 100 MB. Near duplicates are not found.

    document ── xxh3-128 of its tokens ──> (hash, number) 24 bytes ──> files by the first bits of the hash
    a file ── sort by hash ──> equal neighbours ──> groups
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from packline.errors import OutOfSpace

SHORTEST = 32
"""Minimum tokens of a document that is checked for repetition."""
LONGEST = 1 << 22
"""Maximum number of tokens of a document that are examined."""
GRAM = 4
LONG_RUN = 100

PLACES = 64
"""Positions of a document that are screened first."""
SAME_GRAMS, SAME_TOKENS = 7, 16
"""Numbers of equal positions from which a document is counted. A document at the limit has 19 and 32."""
MORE_PLACES = 256
MORE_GRAMS, MORE_TOKENS = 45, 95
"""The same for those that pass, of more tokens than that. One at the limit has 77 and 128."""
MANY = 4 * MORE_PLACES
"""Number of values from which only those that are common in a sample are counted."""
STRIDE = 8
"""Every eighth token is compared to find long runs: a run of 100 contains twelve of them."""

REASONS = {
    "repetition": "one sequence of four tokens is 30% of all, or more",
    "one token": "one token is 50% of all, or more",
    "long run": "one token 100 times in a row, or more",
    "no text": "no token but special ones",
}
"""Description of each reason."""
LIMITS = {"repetition": 0.3, "one token": 0.5, "long run": float(LONG_RUN), "no text": 1.0}

_JITTER = np.random.default_rng(64).random(PLACES)
_MORE_JITTER = np.random.default_rng(64).random(MORE_PLACES)
_MORE_STEPS = np.arange(MORE_PLACES) + _MORE_JITTER


def screen(
    tokens: np.ndarray, starts: np.ndarray, ends: np.ndarray, special: np.ndarray
) -> dict[int, list[str]]:
    """Screen documents: the reasons to count, by document.

    Args:
        tokens: ids within the vocabulary, contiguous unsigned `[T]`.
        starts, ends: int64 `[D]`, offsets in `tokens` of the documents without their boundary tokens.
        special: bool `[V]`, True for special tokens.
    """
    lengths = ends - starts
    filled = np.flatnonzero(lengths > 0)
    control = special[tokens[starts[filled]]] & special[tokens[ends[filled] - 1]]
    found: dict[str, np.ndarray] = {
        "no text": np.concatenate([np.flatnonzero(lengths <= 0), filled[control]])
    }
    if len(starts):
        runs = np.maximum(np.searchsorted(starts, _run_places(tokens), side="right") - 1, 0)
        found["long run"] = runs[np.diff(runs, prepend=-1) > 0]  # each once: they are in order
    long = np.flatnonzero(lengths >= SHORTEST)
    if len(long):
        begins, sizes = starts[long], np.minimum(lengths[long], LONGEST)
        grams, firsts = _repeats(tokens, begins, sizes, _JITTER, SAME_GRAMS, SAME_TOKENS)
        again = np.flatnonzero((grams | firsts) & (sizes >= MORE_PLACES + GRAM))
        more = _repeats(tokens, begins[again], sizes[again], _MORE_JITTER, MORE_GRAMS, MORE_TOKENS)
        grams[again] &= more[0]
        firsts[again] &= more[1]
        found["repetition"], found["one token"] = long[grams], long[firsts]
    wanted: dict[int, list[str]] = {}
    for reason, documents in found.items():
        for document in documents.tolist():
            wanted.setdefault(document, []).append(reason)
    return wanted


def judge_document(
    body: np.ndarray, special: np.ndarray, reasons: Sequence[str] = tuple(REASONS)
) -> dict[str, float]:
    """Count one document exactly: its share for each reason that applies, or the tokens of a run."""
    body = body[:LONGEST]
    found: dict[str, float] = {}
    if "repetition" in reasons and len(body) >= SHORTEST:
        found["repetition"] = _share(all_grams(body), MORE_GRAMS)
    if "one token" in reasons and len(body) >= SHORTEST:
        found["one token"] = _share(body, MORE_TOKENS)
    if "long run" in reasons:
        found["long run"] = float(longest_run(body))
    if "no text" in reasons:
        found["no text"] = float(special[body].all())
    return {reason: value for reason, value in found.items() if value >= LIMITS[reason]}


def longest_run(values: np.ndarray) -> int:
    """Length of the longest run of one value."""
    if not len(values):
        return 0
    return int(_runs(values)[1].max())


def grams_at(tokens: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Number for the four tokens from each place on, uint64 of the shape of `places`.

    Equal tokens give equal numbers. Different tokens give different numbers, except, for 32-bit tokens, one
    pair in 2**64.
    """
    wide = _wide(tokens)
    return wide[places] if tokens.itemsize == 2 else _mixed(wide[places], wide[places + 2])


def all_grams(tokens: np.ndarray) -> np.ndarray:
    """Numbers as of `grams_at` for every place, uint64 `[n - 3]`."""
    wide, count = _wide(tokens), len(tokens) - GRAM + 1
    if tokens.itemsize == 2:
        return wide[:count].copy()
    return _mixed(wide[:count], wide[2 : count + 2])


def _wide(tokens: np.ndarray) -> np.ndarray:
    """View of the eight bytes from each token on, for tokens followed by that many bytes."""
    item = tokens.itemsize
    return np.ndarray(len(tokens) - 8 // item + 1, "<u8", buffer=tokens, strides=(item,))


def _mixed(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    found = first * np.uint64(0x9E3779B97F4A7C15)
    found ^= found >> np.uint64(29)
    found += second * np.uint64(0xBF58476D1CE4E5B9)
    return found


def _share(values: np.ndarray, least: int) -> float:
    """Share of the most common value.

    Only values that are common in a sample of many are counted, and none if no value is there `least` times:
    then 0.0.
    """
    if len(values) < MANY:
        return int(_runs(np.sort(values))[1].max()) / len(values)
    sample = np.sort(values[(_MORE_STEPS * (len(values) / MORE_PLACES)).astype(np.int64)])
    if not (sample[least - 1 :] == sample[: 1 - least]).any():
        return 0.0
    starts, counts = _runs(sample)
    common = sample[starts[counts >= least // 2]]
    return max(int(np.count_nonzero(values == one)) for one in common) / len(values)


def _runs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Starts and lengths of the runs of equal values, int64 each."""
    changes = (values[1:] != values[:-1]).nonzero()[0] + 1
    edges = np.concatenate([[0], changes, [len(values)]])
    return edges[:-1], edges[1:] - edges[:-1]


def _run_places(tokens: np.ndarray) -> np.ndarray:
    """Some places in every run of `LONG_RUN` tokens, int64; places in shorter runs may be included."""
    few = tokens[::STRIDE]
    same = few[1:] == few[:-1]
    pairs = LONG_RUN // STRIDE - 1
    if len(same) < pairs:
        return np.empty(0, np.int64)
    runs = same[: len(same) - pairs + 1].copy()
    for step in range(1, pairs):
        runs &= same[step : len(same) - pairs + 1 + step]
    places = np.flatnonzero(runs) * STRIDE
    for step in range(1, STRIDE * pairs, STRIDE + 1):  # between those: indented code does not pass
        places = places[tokens[places + step] == tokens[places]]
    return places


def _repeats(
    tokens: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    jitter: np.ndarray,
    same_grams: int,
    same_tokens: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Documents of at least `SHORTEST` tokens with repeated fours, or repeated tokens; bool `[D]` each."""
    counts, places = lengths - GRAM + 1, len(jitter)
    steps = np.arange(places)
    inner = ((steps + jitter) * (counts / places)[:, None]).astype(np.int64)
    few = np.flatnonzero(counts <= places)
    inner[few] = np.minimum(steps, counts[few, None] - 1)
    at = starts[:, None] + np.minimum(inner, counts[:, None] - 1)
    grams = grams_at(tokens, at)
    firsts = tokens[at].astype(np.uint32)
    if len(few):  # each place of a short document once, then numbers that are almost surely unique
        beyond = steps >= counts[few, None]
        grams[few] = np.where(beyond, steps.astype(np.uint64), grams[few])
        rest = np.minimum(steps, lengths[few, None] - 1)
        last = np.where(steps < lengths[few, None], tokens[starts[few, None] + rest], steps + (1 << 31))
        firsts[few] = np.where(beyond, last, firsts[few])
    grams.sort(axis=1)
    firsts.sort(axis=1)
    return (
        (grams[:, same_grams - 1 :] == grams[:, : 1 - same_grams]).any(axis=1),
        (firsts[:, same_tokens - 1 :] == firsts[:, : 1 - same_tokens]).any(axis=1),
    )


DOCUMENTS_A_FILE = 1 << 21
WAITING = 1 << 20
"""Records buffered before they are written, if there are several files."""
SHOWN = 4
RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("document", "<i8")])


class DuplicateGroup(msgspec.Struct, frozen=True):
    """A group of identical documents."""

    copies: int
    tokens: int
    """Tokens of each document, boundary tokens included."""
    documents: list[int]


class Duplicates(msgspec.Struct, frozen=True):
    """Totals of all groups, and the largest groups."""

    groups: int
    documents: int
    """Duplicate documents, not counting the first of each group."""
    tokens: int
    across_splits: int
    """Groups whose documents are in several splits."""
    largest: list[DuplicateGroup]
    """Groups with the most duplicate tokens."""


class HashFiles:
    """Writes the hashes of documents."""

    def __init__(self, folder: Path, files: int, writer: int) -> None:
        self._folder, self._files, self._writer = folder, files, writer
        self._waiting: list[np.ndarray] = []
        self._count = 0

    def add(self, first: int, tokens: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> None:
        """Hash documents.

        Args:
            tokens: contiguous `[T]`.
            starts, ends: int64 `[D]`, offsets in `tokens` of the documents without their boundary tokens.
        """
        view, size, digest = tokens.data.cast("B"), tokens.itemsize, xxhash.xxh3_128_digest
        places = zip((starts * size).tolist(), (ends * size).tolist(), strict=True)
        hashes = b"".join([digest(view[start:end]) for start, end in places])
        records = np.empty(len(starts), RECORD)
        halves = np.frombuffer(hashes, "<u8").reshape(-1, 2)
        records["high"], records["low"] = halves[:, 0], halves[:, 1]
        records["document"] = np.arange(first, first + len(starts))
        self._waiting.append(records)
        self._count += len(records)
        if self._count >= WAITING:
            self.flush()

    def flush(self) -> None:
        records = np.concatenate([np.empty(0, RECORD), *self._waiting])
        self._waiting, self._count = [], 0
        bits = self._files.bit_length() - 1
        numbers = (records["high"] >> np.uint64(64 - bits)).astype(np.int64) if bits else None
        if numbers is not None:
            order = np.argsort(numbers, kind="stable")
            records, numbers = records[order], numbers[order]
        try:
            for number in range(self._files):
                part = records
                if numbers is not None:
                    part = records[slice(*np.searchsorted(numbers, [number, number + 1]).tolist())]
                if len(part):
                    with open(self._folder / f"{number}-{self._writer}.bin", "ab") as file:
                        file.write(part.tobytes())
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OutOfSpace(
                    f"{self._folder}: no room for the hashes of documents",
                    hint="set TMPDIR to a folder with more room, 24 bytes per document",
                ) from error
            raise


def count_files(documents: int) -> int:
    """Number of hash files for a number of documents, a power of two.

    >>> count_files(100), count_files(5_000_000)
    (1, 4)
    """
    return 1 << max(-(-documents // DOCUMENTS_A_FILE) - 1, 0).bit_length()


def find_duplicates(
    folder: Path,
    files: int,
    tokens_of: Callable[[np.ndarray], np.ndarray],
    split_of: Callable[[np.ndarray], np.ndarray],
    most: int,
) -> Duplicates:
    """Find groups in the files of all writers.

    Args:
        tokens_of: function from document numbers to their lengths, int64 of the same shape.
        split_of: function from document numbers to the numbers of their splits, int64 of the same shape.
    """
    groups = documents = tokens = across = 0
    largest: list[DuplicateGroup] = []
    for number in range(files):
        numbers, sizes = _groups(_read(folder, number))
        if not len(sizes):
            continue
        firsts = np.cumsum(sizes) - sizes
        lengths = tokens_of(numbers[firsts])
        saved = lengths * (sizes - 1)
        groups, documents = groups + len(sizes), documents + int((sizes - 1).sum())
        tokens += int(saved.sum())
        splits = split_of(numbers)
        across += int((np.minimum.reduceat(splits, firsts) != np.maximum.reduceat(splits, firsts)).sum())
        for place in np.lexsort((numbers[firsts], -saved))[:most].tolist():
            first, size = int(firsts[place]), int(sizes[place])
            named = numbers[first : first + min(size, SHOWN)].tolist()
            largest.append(DuplicateGroup(size, int(lengths[place]), named))
        largest.sort(key=lambda group: (-group.tokens * (group.copies - 1), group.documents))
        del largest[most:]
    return Duplicates(groups, documents, tokens, across, largest)


def _read(folder: Path, number: int) -> np.ndarray:
    """Records of one file of all writers, sorted by hash, then by document."""
    found = [np.fromfile(path, RECORD) for path in sorted(folder.glob(f"{number}-*.bin"))]
    records = np.concatenate([np.empty(0, RECORD), *found])
    return records[np.lexsort((records["document"], records["low"], records["high"]))]


def _groups(records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    high, low = records["high"], records["low"]
    changes = np.flatnonzero((high[1:] != high[:-1]) | (low[1:] != low[:-1])) + 1
    sizes = np.diff(np.concatenate([[0], changes, [len(records)]]))
    several = sizes > 1
    return records["document"][np.repeat(several, sizes)], sizes[several]
