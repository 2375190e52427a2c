"""The public store: reading, rows, verification and its page in a notebook, in one class.

Modules below need one part each: `store.reader.StoreReader`, `packing.rows.Rows`, `store.verify`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from packline.errors import refuse_unknown_names
from packline.notebook import Notebook
from packline.store.reader import StoreReader, shard_labels

if TYPE_CHECKING:
    import numpy as np

    from packline.packing.options import Overflow, Packing, SplitChoice
    from packline.packing.rows import Rows
    from packline.store.report import Report


class SourceSummary(msgspec.Struct, frozen=True):
    """Documents of one source of a store."""

    documents: int
    tokens: int
    splits: dict[str, int]
    """Number of documents per split."""
    label: str | None = None
    """Label of its documents."""


class Store(StoreReader, Notebook):
    """A finished store, opened for reading; `packline.open` returns it.

    Raises:
        StoreNotFound: there is none.
        CorruptStore: it is damaged, or has a newer format.

    >>> len(store.documents), store.documents[0][:4].tolist(), store.verify().ok
    (1, [0, 1, 0, 0], True)
    """

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.documents)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Tokens of each document."""
        return iter(self.documents)

    def __bool__(self) -> bool:
        """True, also for a store without documents."""
        return True

    @property
    def sources(self) -> dict[str, SourceSummary]:
        """Documents, tokens, splits and label of each source, by its name; in the order of the recipe.

        >>> store.sources
        {'words': SourceSummary(documents=1, tokens=25, splits={'train': 1}, label=None)}
        """
        sums = {name: SourceSummary(0, 0, {}) for name in self.manifest.sources}
        for entry, origin in zip(self.manifest.shards, shard_labels(self), strict=True):
            before = sums[origin.source]
            splits = Counter(before.splits) + Counter({entry.split: entry.documents})
            sums[origin.source] = SourceSummary(
                before.documents + entry.documents, before.tokens + entry.tokens, dict(splits), origin.label
            )
        return sums

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the store's documents, sorted."""
        labels = {source.label for source in self.sources.values()}
        return tuple(sorted(label for label in labels if label is not None))

    @refuse_unknown_names
    def rows(
        self,
        seq_len: int,
        *,
        packing: Packing = "concat",
        split: SplitChoice = "train",
        labels: str | Sequence[str] | None = None,
        sources: str | Sequence[str] | None = None,
        min_tokens: int | None = None,
        max_tokens: int | None = None,
        where: str | None = None,
        unique: bool | str | Path | Sequence[str | Path] = False,
        exclude: str | Path | Sequence[str | Path] | None = None,
        shuffle_documents: int | None = None,
        min_tail_fraction: float = 0.5,
        pack_window: int | None = None,
        overflow: Overflow = "truncate",
        boundary_loss: bool = False,
        pad_id: int | None = None,
        plans: str | Path | None = None,
    ) -> Rows:
        """Make training sequences of `seq_len` tokens from these documents.

        Args:
            seq_len: tokens per row, L.
            packing: `concat`, `best_fit` or `pad`; `packline info --seq-len` reports the cost of each.
            split: `train`, `val`, `test`, or `all`.
            labels: only documents with this label, or with one of these.
            sources: only documents of this source, or of these.
            min_tokens: only documents with at least n tokens, including boundary tokens.
            max_tokens: only documents with at most n tokens.
            where: only documents that meet a condition on their columns, such as
                `score >= 3 and language in ['de', 'en']`; see `packline.where.conditions`.
            unique: True keeps the first of equal texts, in the order of documents, among those that the other
                filters leave. Folders of other stores: also no text that one of them has.
            exclude: a list of documents to leave out, or several, as `packline verify --against --write` and
                `packline analyze --write` make it.
            shuffle_documents: seed for a shuffle of the documents before they are packed; None keeps the
                stored order. The loader determines the order of the rows.
            min_tail_fraction: for concat: smallest share of L for which the last row is kept, padded.
            pack_window: for best_fit: units of a source that are packed together; None packs all documents.
            overflow: for pad: treatment of documents longer than L: `truncate`, `split` or `drop`.
            boundary_loss: True if the end of a document predicts the beginning of the next.
            pad_id: token at padding; None: the end-of-document token.
            plans: folder of plans; default below the store.

        Raises:
            RecipeError: an invalid setting, or one that does not belong to the packing.
            StoreError: no document is left, or no row.
        """
        from packline.packing.options import RowOptions
        from packline.packing.rows import Rows

        options = RowOptions(
            split=split,
            labels=labels if labels is None else _names(labels),
            sources=sources if sources is None else _names(sources),
            min_tokens=min_tokens,
            max_tokens=max_tokens,
            where=where,
            unique=unique if isinstance(unique, bool) else _names(unique),
            exclude=None if exclude is None else _names(exclude),
            shuffle_documents=shuffle_documents,
            packing=packing,
            min_tail_fraction=min_tail_fraction,
            pack_window=pack_window,
            overflow=overflow,
            boundary_loss=boundary_loss,
            pad_id=pad_id,
        )
        return Rows(self, seq_len, options, plans=plans)

    @refuse_unknown_names
    def verify(self, *, deep: bool = False, slice: tuple[int, int] = (0, 1)) -> Report:
        """Check the store from its files alone, or slice i of n; `deep` encodes a sample of documents again.

        See `packline.store.verify.verify`.
        """
        from packline.store.verify import verify

        return verify(self.place, deep=deep, slice=slice)


def _names(names: str | Path | Sequence[str | Path]) -> tuple[str, ...]:
    return (str(names),) if isinstance(names, str | Path) else tuple(map(str, names))
