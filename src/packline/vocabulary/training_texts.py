"""Training texts of a tokenizer: the texts of the training split of a build of the same sources.

    files ── batches ── template, filters ── split train ── cut at --doc-chars ── the first --max-chars

Documents that a recipe reserves for validation and testing are not used. Files are read in the order of the
recipe, so a limit keeps the beginning: put important files first, or shuffle the folder. Unreadable records
are skipped and counted by reason.

Cost: reading. Does not sample at random, and ignores the weights of sources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow.compute as pc

from packline.errors import RecipeError
from packline.fingerprint import Hasher, split_of
from packline.recipe import Recipe, Source
from packline.sources.fields import find_files
from packline.sources.files import InputFile
from packline.sources.reader import Span, read_span
from packline.sources.texts import Texts
from packline.storage.inputs import open_input


@dataclass
class TrainingTexts:
    """Texts of a recipe's sources, within limits; can be iterated once.

    Counts are complete after all texts have been read.
    """

    recipe: Recipe
    max_chars: int | None = None
    """Limit for all documents together."""
    doc_chars: int | None = None
    """Limit per document; the rest of it is not used."""
    files: list[InputFile] = field(default_factory=list)
    documents: int = 0
    characters: int = 0
    cut_documents: int = 0
    """Number of documents longer than `doc_chars`."""
    left_out: int = 0
    """Number of documents removed by the filters of their source."""
    held_out: int = 0
    """Number of documents that the recipe reserves for validation and testing."""
    bad_records: Counter[str] = field(default_factory=Counter)
    """Number of bad records by reason."""
    stopped_early: bool = False
    """True if `max_chars` was reached."""

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
        """Iterate over the texts in batches."""
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
        """Apply filters as a build does; this also removes empty documents."""
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
