"""Documents whose tokens look wrong: excessive repetition, or nothing but control tokens.

    repetition     one sequence of four tokens makes up at least 30% of a document's sequences
    one token      one token makes up at least half of a document
    long run       one token occurs at least a hundred times in a row
    no text        no tokens, or special tokens only

The tokens are those between the boundary tokens; the first two reasons apply only to documents of at least 32
tokens. Every document is screened, and only those that do not pass are counted exactly, in their first four
million tokens. Screening examines 64 positions, one in each 64th of a document, then 256 in longer documents.
A document just at a limit may be missed (a repetition of 30% once in 10,000 times); whatever is reported is
exact. Content is not judged: a table of zeros is reported and may be correct.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
