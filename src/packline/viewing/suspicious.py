"""Documents that look wrong by their tokens: one thing over and over, or nothing but control tokens.

    repetition     a run of four tokens makes up a fifth of a document's runs of four, or more
    one token      a token makes up half of a document, or more
    long run       a token stands a hundred times in a row, or more often
    no text        no token, or special tokens only

A document's tokens here are those between its boundary tokens. The first two are asked only of documents of
32 tokens and more, since a short text may well say a thing twice; of those longer than four million tokens
the first four million are looked at.

Cost: every document is screened, and only what does not pass is counted exactly. Screening looks at 64 places,
one in each 64th of a document at a place that does not depend on its content; a document of less than 68
tokens is seen whole. What is just at a limit may therefore be missed (a repetition of 0.2 once in 2,000 times,
one of 0.3 once in a million); what is reported is exact. Long runs and control tokens are never missed.

What it does not do: judge text. A table of zeros looks wrong and may be right.
"""

from __future__ import annotations

import numpy as np

SHORTEST = 32
"""Tokens of a document of which repetition is asked."""
LONGEST = 1 << 22
"""Tokens of a document that are looked at."""
GRAM = 4
REPETITION, ONE_TOKEN, LONG_RUN = 0.2, 0.5, 100

PLACES = 64
"""Of a document that are screened."""
SAME_GRAMS, SAME_TOKENS = 4, 16
"""So many equal ones among them and a document is counted. A document at the limit has 13, and 32."""
STRIDE = 16
"""Every 16th token is compared to find long runs: a run of 100 holds six of them."""

REASONS = {
    "repetition": "four tokens in a row that make up 20% of a document or more",
    "one token": "a token that makes up 50% of a document or more",
    "long run": "a token 100 times in a row or more",
    "no text": "no token but special ones",
}
"""What each name stands for."""

_JITTER = np.random.default_rng(64).random(PLACES)


def screen(tokens: np.ndarray, starts: np.ndarray, ends: np.ndarray, special: np.ndarray) -> np.ndarray:
    """Numbers of the documents that are worth counting, int64, ascending.

    Args:
        tokens: ids below the vocabulary, contiguous unsigned `[T]`.
        starts, ends: int64 `[D]`, where documents begin and end in them, without their boundary tokens.
        special: bool `[V]`, which ids are special tokens.

    >>> tokens = np.array([5, 1, 2] + [7] * 200, np.uint16)
    >>> screen(tokens, np.array([0, 3]), np.array([3, 203]), np.zeros(8, bool)).tolist()
    [1]
    """
    wanted = np.zeros(len(starts), bool)
    lengths = ends - starts
    filled = np.flatnonzero(lengths > 0)
    wanted[lengths <= 0] = True
    wanted[filled] = special[tokens[starts[filled]]] & special[tokens[ends[filled] - 1]]
    if len(starts):
        runs = np.searchsorted(starts, _run_places(tokens), side="right") - 1
        wanted[np.maximum(runs, 0)] = True
    long = np.flatnonzero(lengths >= SHORTEST)
    if len(long):
        wanted[long] |= _repeats(tokens, starts[long], np.minimum(lengths[long], LONGEST))
    return np.flatnonzero(wanted)


def judge(body: np.ndarray, special: np.ndarray) -> dict[str, float]:
    """What is wrong with one document, counted: shares of it, or for a run its tokens.

    Args:
        body: its ids, contiguous unsigned `[n]`, without boundary tokens.
        special: see `screen`.

    >>> judge(np.array([3, 4] * 50, np.uint16), np.zeros(8, bool))
    {'repetition': 0.5051546391752577, 'one token': 0.5}
    """
    body = body[:LONGEST]
    if special[body].all():
        return {"no text": 1.0}
    found: dict[str, float] = {}
    if len(body) >= SHORTEST:
        repetition = _most_common(grams_at(body, np.arange(len(body) - GRAM + 1))) / (len(body) - GRAM + 1)
        if repetition >= REPETITION:
            found["repetition"] = repetition
        if (share := _most_common(body) / len(body)) >= ONE_TOKEN:
            found["one token"] = share
    if (run := longest_run(body)) >= LONG_RUN:
        found["long run"] = float(run)
    return found


def longest_run(values: np.ndarray) -> int:
    """How often one value stands in a row at most.

    >>> longest_run(np.array([1, 2, 2, 2, 1]))
    3
    """
    if not len(values):
        return 0
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1
    return int(np.diff(np.concatenate([[0], changes, [len(values)]])).max())


def grams_at(tokens: np.ndarray, places: np.ndarray) -> np.ndarray:
    """A number for the four tokens from each place on, uint64 of the shape of `places`.

    Equal tokens give equal numbers; others differ, of 32-bit tokens but for one pair in 2**64.
    """
    item = tokens.itemsize
    wide = np.ndarray(len(tokens) - 8 // item + 1, "<u8", buffer=tokens, strides=(item,))
    found = wide[places]
    if item == 4:
        found = found * np.uint64(0x9E3779B97F4A7C15)
        found ^= found >> np.uint64(29)
        found += wide[places + 2] * np.uint64(0xBF58476D1CE4E5B9)
    return found


def _most_common(values: np.ndarray) -> int:
    """How often the most common value stands there."""
    ordered = np.sort(values)
    changes = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    return int(np.diff(np.concatenate([[0], changes, [len(ordered)]])).max())


def _run_places(tokens: np.ndarray) -> np.ndarray:
    """Some places in every run of `LONG_RUN` tokens, int64; shorter runs may have some too."""
    few = tokens[::STRIDE]
    same = few[1:] == few[:-1]
    pairs = LONG_RUN // STRIDE - 1
    if len(same) < pairs:
        return np.empty(0, np.int64)
    runs = same[: len(same) - pairs + 1].copy()
    for step in range(1, pairs):
        runs &= same[step : len(same) - pairs + 1 + step]
    return np.flatnonzero(runs) * STRIDE


def _repeats(tokens: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Which documents, of `SHORTEST` tokens or more, have equal ones among their places; bool `[D]`."""
    counts = lengths - GRAM + 1
    steps = np.arange(PLACES)
    inner = ((steps + _JITTER) * (counts / PLACES)[:, None]).astype(np.int64)
    few = np.flatnonzero(counts <= PLACES)
    inner[few] = np.minimum(steps, counts[few, None] - 1)
    places = starts[:, None] + np.minimum(inner, counts[:, None] - 1)
    grams = grams_at(tokens, places)
    firsts = tokens[places].astype(np.uint32)
    if len(few):  # each place of a short document once, then numbers that nothing else has, or hardly
        beyond = steps >= counts[few, None]
        grams[few] = np.where(beyond, steps.astype(np.uint64), grams[few])
        rest = np.minimum(steps, lengths[few, None] - 1)
        last = np.where(steps < lengths[few, None], tokens[starts[few, None] + rest], steps + (1 << 31))
        firsts[few] = np.where(beyond, last, firsts[few])
    grams.sort(axis=1)
    firsts.sort(axis=1)
    same = (grams[:, SAME_GRAMS - 1 :] == grams[:, : -SAME_GRAMS + 1]).any(axis=1)
    return np.asarray(same | (firsts[:, SAME_TOKENS - 1 :] == firsts[:, : -SAME_TOKENS + 1]).any(axis=1))
