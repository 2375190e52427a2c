"""The questions to search for, as grams: made once, memory-mapped by every searching process.

    questions ──> words with hashes, or ids ──> grams, sorted by hash ──> FOLDER/*.npy ──> Asked

    values                        words with a space after each, uint8; or ids, int32
    starts                        int64 `[W+1]`: start of each word in `values`; absent for ids
    firsts                        int64 `[Q+1]`: first word or id of each question
    hashes, texts, positions      one per gram; see `GramIndex`

Grams shared by more than `most_texts` questions are common phrasing; those with fewer than n / 2 different
words are rules and rows of dots. Both are left out and counted. A question with fewer than n words, or whose
grams are all left out, cannot be found: it is counted as not checked. Cost: 1.5 s for the 78,000 questions of
CORE, MMLU and GSM8K; 16 bytes per gram, 8 bytes plus its length per word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from packline.errors import InputError
from packline.evals.contamination_report import SetFound
from packline.evals.evaluation_texts import EvaluationText
from packline.evals.ngrams import GramIndex, gram_hashes, mix, sort_grams, varied
from packline.evals.words import LOWER, split_words
from packline.ragged import Ragged

BATCH = 1 << 20
"""Characters of questions to process at a time."""


class Asked:
    """The grams of all questions, and the words or ids that they consist of.

    Args:
        folder: folder that `write_questions` wrote.
    """

    def __init__(self, folder: str | Path) -> None:
        # Plain arrays that own the maps: slicing `np.memmap` itself costs five times as much.
        arrays = {file.stem: np.asarray(np.load(file, mmap_mode="r")) for file in Path(folder).glob("*.npy")}
        self.index = GramIndex(arrays["hashes"], arrays["texts"], arrays["positions"])
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
        folder: folder for `Asked`.
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
            hashes, said, sizes, owners = _words_of(spell([one.text for one in batch]))
            lengths.append(sizes)
        else:
            ids = encode([one.text for one in batch])
            hashes, said = mix(ids.tokens), ids.tokens.astype(np.int32)
            owners = np.repeat(np.arange(len(batch)), ids.lengths)
        values.append(said)
        counts.append(np.bincount(owners, minlength=len(batch)))
        whole = np.flatnonzero(owners[: max(len(owners) - n + 1, 0)] == owners[n - 1 :])
        says = varied(hashes, n)[whole]
        repetitive += len(whole) - int(says.sum())
        whole = whole[says]
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
    _save(folder, "values", np.concatenate(values))
    _save(folder, "firsts", np.cumsum(np.concatenate([[0], *counts])))
    if encode is None:
        _save(folder, "starts", np.cumsum(np.concatenate([[0], *lengths])))
    for name, array in zip(("hashes", "texts", "positions"), arrays, strict=True):
        _save(folder, name, array)
    return Questions(sets, names, numbers, len(arrays[0]), common, repetitive)


def _words_of(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Words of texts: their hashes, their bytes, the number of bytes and the text of each."""
    parts = [text.translate(LOWER) for text in texts]
    words = split_words(np.frombuffer(b" ".join(parts), np.uint8))
    behind = np.cumsum([len(part) + 1 for part in parts])
    said = words.said(0, len(words.starts))
    sizes = np.array([len(word) + 1 for word in said], np.int64)
    owners = np.searchsorted(behind, words.starts, side="right")
    return words.hashes, np.frombuffer(b" ".join([*said, b""]), np.uint8), sizes, owners


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
