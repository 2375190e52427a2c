"""The texts that a tokenizer is trained on: those that a build of the same sources would train on.

    files ── batches ── template, filters ── split train ── cut at --doc-chars ── the first --max-chars

What a recipe sets aside for validation and testing is not learned from. Files come in the order of the
recipe, so a limit takes from the beginning: put first what matters, or a folder that is shuffled. Records
that cannot be read are left out and counted by their reason.

Cost: reading. What it does not do: sample at random, or weigh sources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow.compute as pc

from packline.errors import RecipeError
from packline.filesystem import open_input
from packline.fingerprint import Hasher, split_of
from packline.recipe import Recipe, Source
from packline.sources.files import InputFile
from packline.sources.reader import Span
from packline.sources.texts import Texts
from packline.transforms.reading import find_files, read_span


@dataclass
class TrainingTexts:
    """Texts of a recipe's sources, within limits; may be gone through once.

    Counts are right when all texts have been read.
    """

    recipe: Recipe
    max_chars: int | None = None
    """Of all documents together."""
    doc_chars: int | None = None
    """Of one document; the rest of it is not read."""
    files: list[InputFile] = field(default_factory=list)
    documents: int = 0
    characters: int = 0
    cut_documents: int = 0
    """That went on beyond `doc_chars`."""
    left_out: int = 0
    """By the filters of their source."""
    held_out: int = 0
    """For validation and testing, by the recipe."""
    bad_records: Counter[str] = field(default_factory=Counter)
    """By reason."""
    stopped_early: bool = False
    """Whether `max_chars` was reached."""

    def __post_init__(self) -> None:
        for name in ("max_chars", "doc_chars"):
            limit: int | None = getattr(self, name)
            if limit is not None and limit < 1:
                raise RecipeError(f"{name} is {limit}: expected at least 1")
        if self.recipe.val_documents:
            raise RecipeError(
                "a tokenizer cannot be trained by a recipe with val_documents: which documents they are is "
                "known to a build only",
                hint="use val_fraction in the recipe, or name the inputs instead",
            )
        self.files = find_files(self.recipe)

    def batches(self) -> Iterator[Texts]:
        """The texts, batch by batch."""
        room = self.recipe.limit_documents
        for file in self.files:
            source = self.recipe.sources[file.source]
            span = Span(file.index, 0, _end_of(file))
            for batch in read_span(file, source, span, self.recipe.max_document_bytes, Hasher()):
                for reject in batch.rejects:
                    if not reject.continued:
                        self.bad_records[reject.reason] += reject.records
                self.left_out += len(batch.filtered)
                texts = self._filtered(batch.texts, source)
                if room is not None:
                    texts = texts.take(np.arange(min(len(texts), room)))
                    room -= len(texts)
                texts = self._limited(self._to_train(texts, source))
                if len(texts):
                    yield texts
                if self.stopped_early or room == 0:
                    return

    def _filtered(self, texts: Texts, source: Source) -> Texts:
        """As a build does it: also documents without a character are none."""
        characters = texts.characters()
        kept = (characters > 0) & (characters >= source.min_chars)
        if source.max_chars is not None:
            kept &= characters <= source.max_chars
        if kept.all():
            return texts
        self.left_out += int(np.count_nonzero(~kept))
        return texts.take(np.flatnonzero(kept))

    def _to_train(self, texts: Texts, source: Source) -> Texts:
        val_share, test_share = self.recipe.val_fraction, self.recipe.test_fraction or 0.0
        if source.split:
            kept = np.full(len(texts), source.split == "train")
        elif val_share or test_share:
            splits = [split_of(text, self.recipe.seed, val_share, test_share) for text in texts.raw()]
            kept = np.array([split == "train" for split in splits], bool)
        else:
            return texts
        self.held_out += int(np.count_nonzero(~kept))
        return texts.take(np.flatnonzero(kept))

    def _limited(self, texts: Texts) -> Texts:
        characters = texts.characters()
        long = np.zeros(len(texts), np.bool_)
        if self.doc_chars is not None and (long := characters > self.doc_chars).any():
            texts = Texts(pc.utf8_slice_codeunits(texts.array, 0, self.doc_chars))
            characters = np.minimum(characters, self.doc_chars)
        if self.max_chars is not None:
            ends = self.characters + np.cumsum(characters)
            whole = int(np.searchsorted(ends, self.max_chars, side="right"))
            if whole < len(texts):
                self.stopped_early = True
                rest = self.max_chars - (int(ends[whole - 1]) if whole else self.characters)
                taken = texts.take(np.arange(whole + (rest > 0))).to_list()
                if rest > 0:
                    taken[-1] = taken[-1][:rest]
                texts, characters = Texts.of(taken), np.append(characters[:whole], [rest] if rest else [])
        self.cut_documents += int(np.count_nonzero(long[: len(texts)]))
        self.documents += len(texts)
        self.characters += int(characters.sum())
        return texts


def _end_of(file: InputFile) -> int:
    if file.format != "parquet":
        return file.size
    from packline.sources.parquet import open_parquet

    with open_input(file.path) as raw:
        return int(open_parquet(raw, file.path).metadata.num_row_groups)
