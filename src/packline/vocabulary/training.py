"""Training of a byte-level BPE tokenizer: texts in, a tokenizer.json out.

    texts ── words by a pattern, counted (`word_counts`) ── merges (`Merger`) ──> tokenizer.json

The merges are those that HF's trainer finds on the same texts, including ties, in a fraction of the time, and
a corpus may be larger than memory. Patterns that `word_counts` does not support (o200k) are left to HF's
trainer. `trained_folder` chooses the texts.

    words   l o w  x5    l o w e r  x2         pairs  lo 7  ow 7  we 2  er 2
    merge   lo w   x5    lo w e r   x2                low 7 ...

The most frequent pair becomes a token, ties go to the smaller pair of ids, and so on. All words are in one
array. The id of a token is stored at its first and at its last byte, so its neighbours are found with one
lookup, and a merge takes a few vector operations on the positions where its pair begins:

    bytes     l   o   w   e   r
    symbols   lo  lo  w   e   r         after the merge of l and o
              low  .  low e   r         after that of lo and w

A pair keeps the positions where it was formed. When it comes up, the positions that still hold it are
recounted (counts only fall), and if it is still the most frequent, all of them are merged at once. Pairs that
are too rare to be next wait in arrays, sorted by count, and become Python objects only shortly before they
are needed.

Cost of merging: 8 bytes per byte of the distinct words and 4 for each pair ever formed; about 0.1 ms per
merge, in one thread.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from packline.encoders.tiktoken import (
    ALPHABET,
    LETTERS,
    Pattern,
    PatternName,
    SpecialPlace,
    check_specials,
    json_of_merges,
    pattern_of,
)
from packline.errors import RecipeError, TokenizerError, refuse_unknown_names
from packline.sources.batch import Texts
from packline.vocabulary.word_counts import batches_of, count_words

MEMORY_BYTES = 4 << 30
LEAST_MEMORY_BYTES = 1_000_000
WORDS_SHARE = 32
"""Memory for finding merges, as a multiple of that of the distinct words."""

GONE = -1
"""Symbol for a byte inside a token, and for the end of a word."""
NEVER = 1 << 62
TOLD_EVERY = 256
"""Number of merges between two progress reports."""
ZERO = np.zeros(1, np.int64)

BYTES_IN_ORDER = sorted(range(256), key=ALPHABET.__getitem__)
"""Bytes sorted by their characters in byte-level vocabularies; ties are broken in this order."""


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """A trained tokenizer and statistics of its texts."""

    json: str
    """Contents of a tokenizer.json."""
    trainer: str
    merges: int
    vocab_size: int
    text_bytes: int
    words: int | None
    """Number of distinct words; None if HF's trainer counted them."""
    forgotten_words: int = 0
    """Number of distinct words that did not fit into memory: the rarest."""
    forgotten_share: float = 0.0
    """Their share of all distinct words seen."""


class TrainingProgress(NamedTuple):
    """Progress of a training: first texts are read, then merges are found."""

    documents: int
    text_bytes: int
    merges: int
    wanted: int
    """Number of merges to find, if the texts have that many."""


OnProgress = Callable[[TrainingProgress], None]


@refuse_unknown_names
def train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: Sequence[str] = ("<|endoftext|>",),
    *,
    pattern: PatternName = "gpt2",
    place: SpecialPlace = "first",
) -> str:
    """Train on a few texts.

    Args:
        texts: training texts.
        vocab_size: total number of tokens: 256 bytes, the special tokens, and merges.
        special_tokens: tokens that text never becomes.
        pattern: pattern that cuts text into words.
        place: whether special tokens get the first or the last ids.

    Returns:
        Contents of a tokenizer.json. It has fewer tokens if the texts run out of pairs to merge.

    Raises:
        TokenizerError: no texts, or no room for a single merge.

    >>> tokenizer = msgspec.json.decode(train_bpe(["low lower lowest"] * 9, 262))
    >>> tokenizer["model"]["merges"]
    [['l', 'o'], ['lo', 'w'], ['Ġ', 'low'], ['Ġlow', 'e'], ['s', 't']]
    """
    return train_batches(
        batches_of(texts), vocab_size, special_tokens, pattern=pattern_of(pattern), place=place
    ).json


def train_batches(
    batches: Iterable[Texts],
    vocab_size: int,
    special_tokens: Sequence[str],
    *,
    pattern: Pattern,
    place: SpecialPlace = "first",
    memory_bytes: int = MEMORY_BYTES,
    threads: int | None = None,
    on_progress: OnProgress = lambda progress: None,
) -> Trained:
    """Train on batches of texts, each of bounded size.

    Beyond `memory_bytes` rare words are dropped; the limit does not apply to HF's trainer.
    """
    check_specials(special_tokens, LETTERS)
    if threads is not None and threads < 1:
        raise RecipeError(f"threads is {threads}: expected at least 1")
    if memory_bytes < LEAST_MEMORY_BYTES:
        raise RecipeError(f"memory is {memory_bytes:,} bytes: expected at least {LEAST_MEMORY_BYTES:,}")
    room = vocab_size - 256 - len(special_tokens)
    if room < 1:
        least = 257 + len(special_tokens)
        raise TokenizerError(
            f"vocab_size is {vocab_size}: expected at least {least}, which is 256 bytes, the special tokens"
            " and one merge"
        )
    seen = [0, 0]

    def told() -> Iterator[Texts]:
        for texts in batches:
            yield texts
            seen[0] += len(texts)
            seen[1] += len(texts.data)
            on_progress(TrainingProgress(seen[0], seen[1], 0, room))

    counted = None
    if pattern.rules == "other":
        merges = _merges_by_hf(told(), room, pattern)
    else:
        counted = count_words(told(), pattern, memory_bytes=memory_bytes // WORDS_SHARE, threads=threads)
        merges = Merger(counted.data, counted.offsets, counted.counts).run(
            room, lambda done: on_progress(TrainingProgress(seen[0], seen[1], done, room))
        )
    if not seen[1]:
        raise TokenizerError("no text to train on")
    forgotten = counted.forgotten_words if counted else 0
    return Trained(
        json=json_of_merges(merges, special_tokens, pattern, place),
        trainer="packline" if counted else "HF tokenizers",
        merges=len(merges),
        vocab_size=256 + len(special_tokens) + len(merges),
        text_bytes=seen[1],
        words=len(counted) if counted else None,
        forgotten_words=forgotten,
        forgotten_share=forgotten / (forgotten + len(counted)) if counted else 0.0,
    )


def _merges_by_hf(batches: Iterable[Texts], room: int, pattern: Pattern) -> list[tuple[bytes, bytes]]:
    """Merges of the reference trainer: an order of magnitude slower, with all distinct words in memory."""
    from tokenizers import Tokenizer, pre_tokenizers, trainers

    tokenizer = Tokenizer.from_str(json_of_merges([], (), pattern))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=room + 256, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator((batch.to_list() for batch in batches), trainer)
    return [
        (bytes(LETTERS[letter] for letter in left), bytes(LETTERS[letter] for letter in right))
        for left, right in msgspec.json.decode(tokenizer.to_str())["model"]["merges"]
    ]


@dataclass(slots=True)
class _Pairs:
    """Pairs and their positions: pair `i` begins at `places[bounds[i]:bounds[i + 1]]`."""

    keys: np.ndarray
    """int64: the id of the left token, shifted, combined with the id of the right one."""
    counts: np.ndarray
    bounds: np.ndarray
    places: np.ndarray
    done: int = 0
    """Number of pairs already taken from the beginning; the waiting ones are sorted by descending count."""

    def take(self, which: np.ndarray) -> _Pairs:
        starts = self.bounds[which]
        lengths = self.bounds[which + 1] - starts
        bounds = _bounds(lengths)
        places = self.places[np.repeat(starts - bounds[:-1], lengths) + np.arange(bounds[-1])]
        return _Pairs(self.keys[which], self.counts[which], bounds, places)


class Merger:
    """Finder of successive merges.

    >>> words = [b"low", b"lower", b" lowest"]
    >>> data = np.frombuffer(b"".join(words), np.uint8)
    >>> merger = Merger(data, np.array([0, 3, 8, 15]), np.array([9, 2, 1]))
    >>> merger.run(3)
    [(b'l', b'o'), (b'lo', b'w'), (b'low', b'e')]
    """

    def __init__(self, data: np.ndarray, offsets: np.ndarray, counts: np.ndarray) -> None:
        """Lay out the words.

        Args:
            data: bytes of the words back to back, uint8.
            offsets: start of each word in `data`, and the end, int64 `[W+1]`.
            counts: occurrences of each word, int64 `[W]`.
        """
        lengths = np.diff(offsets)
        size = len(data) + len(lengths) + 1
        self._dtype = np.int32 if size < 2**31 else np.int64
        # A cell of `GONE` before every word and at the end: no pair spans it.
        ends = offsets[1:] + np.arange(1, len(lengths) + 1)
        inside = np.ones(size, np.bool_)
        inside[0] = False
        inside[ends] = False
        order = np.empty(256, np.int32)
        order[BYTES_IN_ORDER] = np.arange(256)
        # Symbols and weights are interleaved: values that are used together are in one cache line.
        cells = np.empty((size, 2), np.int32)
        self._symbols, self._weighted = cells[:, 0], cells[:, 1]
        self._symbols[:] = GONE
        self._symbols[inside] = order[data]
        self._weights, index = np.unique(counts, return_inverse=True)
        self._weighted[:] = 0
        self._weighted[inside] = np.repeat(index.astype(np.int32), lengths)
        self._tokens: list[bytes] = [bytes([byte]) for byte in BYTES_IN_ORDER]
        self._heap: list[tuple[int, int, int]] = []
        self._places: dict[int, np.ndarray] = {}
        self._serial = 0
        self._waiting: list[_Pairs] = []
        self._fresh: list[_Pairs] = []
        self._least = NEVER
        self._find_first_pairs()

    def run(
        self, count: int, on_merges: Callable[[int], None] = lambda done: None
    ) -> list[tuple[bytes, bytes]]:
        """Merge until there are `count` tokens besides the 256 bytes, or no pair is left."""
        merges: list[tuple[bytes, bytes]] = []
        self._sizes = np.ones(256 + count, self._dtype)
        while len(self._tokens) - 256 < count:
            found = self._pop()
            if found is None:
                break
            key, places = found
            left, right = key >> 32, key & 0xFFFFFFFF
            merges.append((self._tokens[left], self._tokens[right]))
            # The string is new: inside a range that becomes a token, merges depend on that range alone.
            number = len(self._tokens)
            self._tokens.append(self._tokens[left] + self._tokens[right])
            self._sizes[number] = len(self._tokens[number])
            self._merge(left, right, number, places)
            if len(merges) % TOLD_EVERY == 0:
                on_merges(len(merges))
        return merges

    def _find_first_pairs(self) -> None:
        symbols = self._symbols
        at = np.flatnonzero((symbols[:-1] >= 0) & (symbols[1:] >= 0)).astype(self._dtype)
        keys = (symbols[at].astype(np.uint16) << 8) | symbols[at + 1].astype(np.uint16)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        if len(at):
            first = _first_of_each(keys)
            wide = keys[first].astype(np.int64)
            self._add(((wide >> 8) << 32) | (wide & 255), first, at[order])

    def _add(self, keys: np.ndarray, first: np.ndarray, places: np.ndarray) -> None:
        """Add new pairs: distinct keys, the start of each pair's positions, and all positions."""
        counts = np.add.reduceat(self._weights[self._weighted[places]], first)
        bounds = np.concatenate((first, [len(places)]))
        frequent = (counts >= self._least).nonzero()[0]
        for i in frequent.tolist():
            self._push(int(keys[i]), int(counts[i]), places[bounds[i] : bounds[i + 1]])
        if len(frequent):
            counts[frequent] = 0
        if len(frequent) < len(keys):
            self._fresh.append(_Pairs(keys, counts, bounds, places))

    def _push(self, key: int, count: int, places: np.ndarray) -> None:
        self._serial += 1
        self._places[self._serial] = places
        heapq.heappush(self._heap, (-count, key, self._serial))

    def _lower(self) -> bool:
        """Lower the count limit and push the waiting pairs that reach it; False if no pair is left."""
        if self._fresh:
            self._waiting.append(_sorted(self._fresh))
            self._fresh = []
        self._waiting = [one for one in self._waiting if one.done < len(one.keys)]
        most = max((int(one.counts[one.done]) for one in self._waiting), default=0)
        if most < 1:
            return False
        self._least = max(most * 3 // 4, 1)
        for one in self._waiting:
            stop = int(np.searchsorted(-one.counts, -self._least, side="right"))
            if stop > one.done:
                self._let_in(one.take(np.arange(one.done, stop)))
                one.done = stop
        return True

    def _let_in(self, pairs: _Pairs) -> None:
        """Recount pairs, since most counts have fallen, and push those that are still frequent."""
        bounds = pairs.bounds
        lengths = np.diff(bounds)
        holds = self._holds(
            pairs.places,
            np.repeat((pairs.keys >> 32).astype(np.int32), lengths),
            np.repeat((pairs.keys & 0xFFFFFFFF).astype(np.int32), lengths),
        )
        weights = np.zeros(len(holds), np.int64)
        weights[holds] = self._weights[self._weighted[pairs.places[holds]]]
        counts = np.add.reduceat(weights, bounds[:-1])
        for i in (counts >= self._least).nonzero()[0].tolist():
            part = slice(bounds[i], bounds[i + 1])
            self._push(int(pairs.keys[i]), int(counts[i]), pairs.places[part][holds[part]])
        rest = ((counts > 0) & (counts < self._least)).nonzero()[0]
        if len(rest):
            pairs.counts = counts
            self._fresh.append(pairs.take(rest))

    def _holds(self, places: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """True for each position where the pair of `left` and `right` still begins."""
        holds = self._symbols[places] == left
        found = holds.nonzero()[0]
        following = places[found] + self._sizes[left[found]]
        holds[found] = self._symbols[following] == right[found]
        return holds

    def _pop(self) -> tuple[int, np.ndarray] | None:
        """The most frequent pair and its positions."""
        symbols = self._symbols
        while True:
            if not self._heap or -self._heap[0][0] < self._least:
                if self._lower():
                    continue
                if not self._heap:
                    return None
            negative, key, serial = heapq.heappop(self._heap)
            places = self._places.pop(serial)
            left, right = key >> 32, key & 0xFFFFFFFF
            places = places[symbols[places] == left]
            places = places[symbols[places + len(self._tokens[left])] == right]
            count = int(self._weights[self._weighted[places]].sum())
            if count == -negative:
                return key, places
            if count > 0:
                self._push(key, count, places)

    def _merge(self, left: int, right: int, token: int, places: np.ndarray) -> None:
        symbols = self._symbols
        if left == right:
            places = self._every_other(np.sort(places), len(self._tokens[left]))
        if not len(places):
            return
        size, behind = len(self._tokens[token]), len(self._tokens[left])
        if size - behind > 1:
            symbols[places + behind] = GONE
        ends = places + (size - 1)
        symbols[places] = token
        symbols[ends] = token
        # Pairs with the neighbours on either side: the neighbour and its side in one number, negative if
        # there is none.
        number = len(places)
        neighbours = np.empty(2 * number, np.int32)
        neighbours[:number] = on_left = symbols[places - 1]
        neighbours[number:] = symbols[ends + 1]
        neighbours <<= 1
        neighbours[number:] |= 1
        both_new = on_left == token
        if both_new.any():  # a pair of two new tokens is found twice; only the one of the right token is kept
            neighbours[:number][both_new] = GONE
        order = neighbours.view(np.uint32).argsort(kind="stable")
        neighbours = neighbours[order]
        found = int(np.count_nonzero(neighbours >= 0))
        if found:
            first = _first_of_each(neighbours[:found])
            wide = neighbours[first].astype(np.int64)
            beside = wide >> 1
            keys = np.where(wide & 1, token << 32 | beside, beside << 32 | token)
            at = np.concatenate((places - self._sizes[on_left], places))
            self._add(keys, first, at[order[:found]])

    def _every_other(self, places: np.ndarray, size: int) -> np.ndarray:
        """First, third, fifth ... position of each run of equal tokens: merging is from left to right."""
        touching = np.diff(places) == size
        if not touching.any():
            return places
        index = np.arange(len(places))
        start = np.where(np.concatenate(([False], touching)), 0, index)
        return places[(index - np.maximum.accumulate(start)) % 2 == 0]


def _first_of_each(keys: np.ndarray) -> np.ndarray:
    """Start of each distinct key in sorted keys."""
    return np.concatenate((ZERO, (keys[1:] != keys[:-1]).nonzero()[0] + 1))


def _bounds(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))


def _sorted(parts: list[_Pairs]) -> _Pairs:
    """All pairs of several lists in one, by descending count; pairs with count 0 are left out."""
    counts = np.concatenate([one.counts for one in parts])
    lengths = np.concatenate([np.diff(one.bounds) for one in parts])
    whole = _Pairs(
        np.concatenate([one.keys for one in parts]),
        counts,
        _bounds(lengths),
        np.concatenate([one.places for one in parts]),
    )
    order = np.argsort(-counts, kind="stable")
    return whole.take(order[: np.count_nonzero(counts > 0)])
