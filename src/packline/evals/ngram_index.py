"""Hashes of n-grams, computed on whole arrays, and an index of the n-grams of evaluation sets.

A gram is n values in a row; its hash is `sum(value[i] * BASE**(n-1-i))` modulo 2**64, combined from those of
1, 2, 4, ... values, so that n = 13 takes five multiplications and additions per position:

    h13[i] = h8[i] * BASE**5 + h4[i+8] * BASE**1 + h1[i+12]

The index holds the sorted hashes of all grams with the text and the position of each, 16 bytes per gram, and
two bit tables that reject nearly all other hashes in one or two lookups. Cost: about 10 ns per position.
Equal hashes are only candidates: the caller compares the grams themselves. A second set has the blocks of
(n + 1) // 2 words or ids that grams consist of, in which `candidates` looks first.

    questions ──> words with hashes, or ids ──> grams, sorted by hash ──> FOLDER/*.npy ──> QuestionGrams

    values                        words with a space after each, uint8; or ids, int32
    starts                        int64 `[W+1]`: start of each word in `values`; absent for ids
    firsts                        int64 `[Q+1]`: first word or id of each question
    hashes, texts, positions      one per gram; see `GramIndex`
    blocks                        uint64, sorted: `block_of_sums` of each block of a gram, or `block_hashes`

The files are written once and memory-mapped by every process that searches. Grams shared by more than
`most_texts` questions are common phrasing; those with fewer than n / 2 different words are rules and rows of
dots. Both are left out and counted. A question with fewer than n words, or whose grams are all left out,
cannot be found: it is counted as not checked. Cost: 1.5 s for the 78,000 questions of CORE, MMLU and GSM8K;
24 bytes per gram, 8 bytes plus its length per word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from packline.errors import InputError
from packline.evals.task import EvaluationText
from packline.evals.words import BASE, LOWER, SPACE, split_words
from packline.ragged import Ragged, distinct_values

MASK = 2**64 - 1
FILTER_BITS = 24, 27
"""Table sizes as powers of two, in bits: at most 2 MB for one, which fits a core's cache, and 16 MB for the
other; less for few grams."""


GramOf = Literal["words", "tokens"]
BATCH = 1 << 20
"""Characters of questions to process at a time."""


def mix(values: np.ndarray) -> np.ndarray:
    """Map small integers to well-spread uint64, each separately (SplitMix64)."""
    mixed = (values.astype(np.uint64) + np.uint64(1)) * np.uint64(BASE)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def block_size(n: int) -> int:
    """Words in a block: n words in a row include a whole block, if a text is divided into blocks.

    >>> [block_size(n) for n in (1, 2, 3, 13)]
    [1, 1, 2, 7]
    """
    return (n + 1) // 2


def block_hashes(ids: np.ndarray, size: int, step: int) -> np.ndarray:
    """Hash of the block of ids that begins at every `step`-th position, uint64.

    >>> ids = np.array([5, 1, 2, 5, 1], np.uint16)
    >>> block_hashes(ids, 2, 3)[0] == block_hashes(ids, 2, 1)[3]
    np.True_
    """
    count = max(len(ids) - size + step, 0) // step
    found = np.zeros(count, np.uint64)
    for place in range(size if count else 0):
        column = ids[place : place + (count - 1) * step + 1 : step]
        found += column.astype(np.uint64) * np.uint64(pow(BASE, place + 1, MASK + 1))
    return found


def block_of_sums(sums: np.ndarray) -> np.ndarray:
    """Value to look up for each sum of the letters of a block: its highest byte is not part of the sum."""
    return sums << np.uint64(8)


def letter_sums(text: np.ndarray) -> np.ndarray:
    """Sum of the values of all letters before each byte of a text, uint64 `[N+1]`; spaces have none.

    >>> sums = letter_sums(np.frombuffer(b"ab ba", np.uint8))
    >>> (sums[5:6] - sums[3:4] == sums[2]).item()
    True
    """
    sums = np.zeros(len(text) + 1, np.uint64)
    np.cumsum(_LETTERS[text], out=sums[1:])
    return sums


_LETTERS = mix(np.arange(256))
_LETTERS[SPACE] = 0


def gram_hashes(values: np.ndarray, n: int) -> np.ndarray:
    """Hash of the gram that begins at each position, uint64 `[T - n + 1]`; empty if there is none.

    Args:
        values: well-spread uint64 `[T]`.
        n: number of values per gram, 1 or more.

    >>> one, other = np.array([5, 1, 2, 3], np.uint64), np.array([1, 2, 3, 4], np.uint64)
    >>> bool(gram_hashes(one, 3)[1] == gram_hashes(other, 3)[0])
    True
    """
    places = len(values) - n + 1
    if places <= 0:
        return np.empty(0, np.uint64)
    found: np.ndarray | None = None
    power, width, taken, left = values, 1, 0, n
    parts: list[tuple[np.ndarray, int]] = []
    while left:
        if left & 1:
            parts.append((power, width))
        left >>= 1
        if left:
            power = power[:-width] * np.uint64(pow(BASE, width, MASK + 1)) + power[width:]
            width *= 2
    for hashes, size in reversed(parts):
        part = hashes[taken : taken + places]
        found = part.copy() if found is None else found * np.uint64(pow(BASE, size, MASK + 1)) + part
        taken += size
    assert found is not None
    return found ^ (found >> np.uint64(32))


def varied(values: np.ndarray, n: int) -> np.ndarray:
    """True at each position whose gram has at least n / 2 different values, bool `[T - n + 1]`.

    Other grams, such as runs of spaces or of dots, are in every text and not significant.

    >>> varied(np.array([1, 1, 1, 1, 2, 3]), 4).tolist()
    [False, True, True]
    """
    if len(values) < n:
        return np.empty(0, np.bool_)
    grams = np.sort(np.lib.stride_tricks.sliding_window_view(values, n), axis=1)
    different = 1 + np.count_nonzero(grams[:, 1:] != grams[:, :-1], axis=1)
    return np.asarray(2 * different >= n)


class Matches(NamedTuple):
    """Positions that may hold a known gram: each pair once."""

    places: np.ndarray
    """int64 `[M]`: positions in the values that were searched."""
    texts: np.ndarray
    """int64 `[M]`: text of the known gram."""
    positions: np.ndarray
    """int64 `[M]`: start of the gram in that text."""


class HashSet:
    """A set of hashes, with two bit tables that reject nearly all others.

    Args:
        hashes: uint64 `[G]`, sorted.
    """

    def __init__(self, hashes: np.ndarray) -> None:
        self.hashes = hashes
        enough = max(int(16 * len(hashes)).bit_length(), 10)
        self._shifts = [np.uint64(64 - min(enough, most)) for most in FILTER_BITS]
        self._tables = []
        for step, shift in enumerate(self._shifts):
            table = np.zeros(1 << (64 - int(shift)), np.bool_)
            table[self._looks(hashes, step)] = True
            self._tables.append(np.packbits(table, bitorder="little"))

    def __len__(self) -> int:
        return len(self.hashes)

    def places(self, hashes: np.ndarray) -> np.ndarray:
        """Positions in `hashes` `[P]` of those in the set, int64, in any order."""
        places = np.flatnonzero(self._may_be(hashes, 0))
        places = places[self._may_be(hashes[places], 1)]
        # Sorted, they are close to each other in the set too: half as many cache misses.
        places = places[np.argsort(hashes[places])]
        wanted = hashes[places]
        first = np.searchsorted(self.hashes, wanted)
        found = self.hashes.take(first, mode="clip") == wanted if len(self) else first > 0
        return places[found]

    def _looks(self, hashes: np.ndarray, step: int) -> np.ndarray:
        """Number of the bit for each hash in one of the tables."""
        spread = hashes if step else hashes * np.uint64(BASE)
        return (spread >> self._shifts[step]).view(np.int64)

    def _may_be(self, hashes: np.ndarray, step: int) -> np.ndarray:
        """True for each hash that one table may know: with two million grams, an eighth of others pass."""
        bits = self._looks(hashes, step)
        found = self._tables[step].take(bits >> 3, mode="clip")  # a third faster without bounds checks
        found >>= (bits & 7).astype(np.uint8)
        found &= 1
        return found.view(np.bool_)


class GramIndex:
    """Index of the grams of texts.

    Args:
        hashes: uint64 `[G]`, sorted.
        texts: int32 `[G]`: text of each gram.
        positions: int32 `[G]`: position in that text.
    """

    def __init__(self, hashes: np.ndarray, texts: np.ndarray, positions: np.ndarray) -> None:
        self._hashes, self.texts, self.positions = hashes, texts, positions

    def __len__(self) -> int:
        return len(self._hashes)

    @cached_property
    def _known(self) -> HashSet:
        return HashSet(self._hashes)

    def find(self, hashes: np.ndarray) -> Matches:
        """Find the hashes `[P]` that are those of known grams; matches are in any order."""
        places = self._known.places(hashes)
        wanted = hashes[places]
        first = np.searchsorted(self._hashes, wanted)
        counts = np.searchsorted(self._hashes, wanted, side="right") - first
        ends = np.cumsum(counts)
        entries = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - ends + counts, counts)
        return Matches(
            np.repeat(places, counts),
            self.texts[entries].astype(np.int64),
            self.positions[entries].astype(np.int64),
        )


def sort_grams(
    hashes: np.ndarray, texts: np.ndarray, positions: np.ndarray, most_texts: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Sort the arrays of an index; also return the number of grams left out.

    Args:
        hashes: hash of each gram, uint64 `[G]`.
        texts: text of each gram, ascending.
        positions: position in that text, ascending within each.
        most_texts: a gram of more texts than this is left out as common phrasing.
    """
    order = np.argsort(hashes, kind="stable")
    hashes, texts, positions = hashes[order], texts[order], positions[order]
    first = np.ones(len(hashes), np.bool_)
    first[1:] = hashes[1:] != hashes[:-1]
    new = first.copy()
    new[1:] |= texts[1:] != texts[:-1]
    group = np.cumsum(first) - 1
    shared = np.bincount(group[new]) > most_texts
    kept = ~shared[group]
    return hashes[kept], texts[kept], positions[kept], int(shared.sum())


def runs_of(matches: Matches) -> list[tuple[int, int, int, int]]:
    """Merge matches that are consecutive in both: place, text, position, number of grams.

    >>> three = Matches(np.array([4, 5, 9]), np.array([0, 0, 0]), np.array([2, 3, 3]))
    >>> runs_of(three)
    [(4, 0, 2, 2), (9, 0, 3, 1)]
    """
    if not len(matches.places):
        return []
    shift = matches.places - matches.positions
    order = np.lexsort((matches.places, shift, matches.texts))
    places, texts, positions, shift = (
        one[order] for one in (matches.places, matches.texts, matches.positions, shift)
    )
    new = np.ones(len(places), np.bool_)
    new[1:] = (texts[1:] != texts[:-1]) | (shift[1:] != shift[:-1]) | (places[1:] != places[:-1] + 1)
    starts = np.flatnonzero(new)
    lengths = np.diff(np.append(starts, len(places)))
    runs = zip(*(one[starts].tolist() for one in (places, texts, positions)), lengths.tolist(), strict=True)
    return sorted(runs)


class SetFound(msgspec.Struct):
    """Results for one set."""

    questions: int
    unchecked: int = 0
    """Questions not checked: too short, or all their grams left out."""
    too_short: int = 0
    """Unchecked questions with fewer words or tokens than a gram."""
    found: int = 0
    """Questions found in some document."""
    documents: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of documents with an overlap with the set, by source."""


class QuestionGrams:
    """The grams of all questions, and the words or ids that they consist of.

    Args:
        folder: folder that `write_questions` wrote.
    """

    def __init__(self, folder: str | Path) -> None:
        # Plain arrays that own the maps: slicing `np.memmap` itself costs five times as much.
        arrays = {file.stem: np.asarray(np.load(file, mmap_mode="r")) for file in Path(folder).glob("*.npy")}
        self.index = GramIndex(arrays["hashes"], arrays["texts"], arrays["positions"])
        self.blocks = HashSet(arrays["blocks"])
        """Blocks of all grams."""
        self._values, self._firsts = arrays["values"], arrays["firsts"]
        self._starts = arrays.get("starts")

    def pieces(self, text: int, start: int, stop: int) -> list[bytes] | list[int]:
        """Words or ids `start` to `stop` (exclusive) of a question."""
        start, stop = (int(self._firsts[text]) + place for place in (start, stop))
        if self._starts is None:
            ids: list[int] = self._values[start:stop].tolist()
            return ids
        return self._values[self._starts[start] : self._starts[stop]].tobytes().split()


class Questions(NamedTuple):
    """Facts about the questions, apart from their grams."""

    sets: dict[str, SetFound]
    names: list[str]
    """Set of each question."""
    numbers: list[int]
    """Number of each question in its set."""
    grams: int
    common: int
    """Number of grams shared by too many questions."""
    repetitive: int
    """Number of grams that consist of repetitions."""


def as_written(texts: Sequence[str]) -> list[bytes]:
    """Encode texts as UTF-8."""
    return [text.encode("utf-8", "surrogatepass") for text in texts]


def write_questions(
    folder: Path,
    texts: Iterable[EvaluationText],
    n: int,
    most_texts: int,
    encode: Callable[[Sequence[str]], Ragged] | None = None,
    spell: Callable[[Sequence[str]], list[bytes]] = as_written,
) -> Questions:
    """Write the grams of all questions.

    Args:
        folder: folder for `QuestionGrams`.
        texts: questions with their answers.
        n: number of words or ids per gram.
        most_texts: a gram shared by more questions is left out.
        encode: texts to ids; None for words.
        spell: texts to the bytes whose words are searched for.

    Raises:
        InputError: there are no questions.
    """
    sets: dict[str, SetFound] = {}
    names: list[str] = []
    numbers: list[int] = []
    grams: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    values: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    counts: list[np.ndarray] = []
    repetitive = 0
    for batch in _batches(texts):
        if encode is None:
            hashes, spellings, sizes, owners = _words_of(spell([one.text for one in batch]))
            lengths.append(sizes)
        else:
            ids = encode([one.text for one in batch])
            hashes, spellings = mix(ids.tokens), ids.tokens.astype(np.int32)
            owners = np.repeat(np.arange(len(batch)), ids.lengths)
        values.append(spellings)
        counts.append(np.bincount(owners, minlength=len(batch)))
        whole = np.flatnonzero(owners[: max(len(owners) - n + 1, 0)] == owners[n - 1 :])
        is_varied = varied(hashes, n)[whole]
        repetitive += len(whole) - int(is_varied.sum())
        whole = whole[is_varied]
        firsts = np.cumsum(counts[-1]) - counts[-1]
        places = whole - firsts[owners[whole]]
        texts_of = owners[whole] + len(names)
        grams.append((gram_hashes(hashes, n)[whole], texts_of.astype(np.int32), places.astype(np.int32)))
        for one, count in zip(batch, counts[-1].tolist(), strict=True):
            found = sets.setdefault(one.set, SetFound(0))
            found.questions += 1
            found.too_short += count < n
            names.append(one.set)
            numbers.append(one.number)
    if not names:
        raise InputError("there are no questions to look for", hint="check what --against names")
    hashes, texts_of, places = (np.concatenate(column) for column in zip(*grams, strict=True))
    *arrays, common = sort_grams(hashes, texts_of, places, most_texts)
    for unchecked in np.flatnonzero(np.bincount(arrays[1], minlength=len(names)) == 0).tolist():
        sets[names[unchecked]].unchecked += 1
    whole_values, firsts = np.concatenate(values), np.cumsum(np.concatenate([[0], *counts]))
    _save(folder, "values", whole_values)
    _save(folder, "firsts", firsts)
    # First word of each block of a gram: those from the first word of the gram on, up to n - size behind.
    at, size = firsts[arrays[1]] + arrays[2], block_size(n)
    inside = np.bincount(at, minlength=firsts[-1] + 1)
    inside -= np.bincount(at + n - size + 1, minlength=firsts[-1] + 1)
    begins = np.flatnonzero(np.cumsum(inside))
    if encode is None:
        starts = np.cumsum(np.concatenate([[0], *lengths]))
        _save(folder, "starts", starts)
        sums = letter_sums(whole_values)
        blocks = block_of_sums(sums[starts[begins + size]] - sums[starts[begins]])
    else:
        blocks = block_hashes(whole_values, size, 1)[begins]
    _save(folder, "blocks", distinct_values(blocks))
    for name, array in zip(("hashes", "texts", "positions"), arrays, strict=True):
        _save(folder, name, array)
    return Questions(sets, names, numbers, len(arrays[0]), common, repetitive)


def _words_of(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Words of texts: their hashes, their bytes, the number of bytes and the text of each."""
    parts = [text.translate(LOWER) for text in texts]
    words = split_words(np.frombuffer(b" ".join(parts), np.uint8))
    behind = np.cumsum([len(part) + 1 for part in parts])
    spellings = words.spellings(0, len(words.starts))
    sizes = np.array([len(word) + 1 for word in spellings], np.int64)
    owners = np.searchsorted(behind, words.starts, side="right")
    return words.hashes, np.frombuffer(b" ".join([*spellings, b""]), np.uint8), sizes, owners


def _save(folder: Path, name: str, array: np.ndarray) -> None:
    np.save(folder / f"{name}.npy", array, allow_pickle=False)


def _batches(texts: Iterable[EvaluationText]) -> Iterator[list[EvaluationText]]:
    batch: list[EvaluationText] = []
    size = 0
    for one in texts:
        batch.append(one)
        size += len(one.text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
