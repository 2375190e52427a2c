"""Statistics of every packing for a selection of documents, to compare before choosing one.

Cost: a pass or two over the lengths for each, about a second for 100 million documents in stored order; for
best_fit nothing is written or sorted, since it is laid out on counts of lengths. Of a store with a loss mask,
also a pass over its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from packline.errors import RecipeError
from packline.packing.best_fit import best_fit_counts
from packline.packing.concat import Concat
from packline.packing.options import OVERFLOWS, PACKINGS, Overflow, Packing, RowOptions
from packline.packing.packer import Counts
from packline.packing.pad import Pad
from packline.packing.row import untrained_rows
from packline.packing.rows import Rows, check_seq_len
from packline.packing.selection import Selection


class PackingStats(msgspec.Struct, frozen=True):
    """Costs of one packing.

    >>> counts = Counts(rows=2, documents=3, tokens=9, padding_tokens=1, dropped_tokens=2)
    >>> stats = PackingStats("concat", None, 4, counts)
    >>> stats.name, stats.padding, round(stats.lost, 3)
    ('concat', 0.125, 0.222)
    """

    packing: Packing
    overflow: Overflow | None
    """Overflow of pad; None for other packings."""
    seq_len: int
    counts: Counts
    pack_window: int | None = None
    """Units packed together by best_fit; None for all, and for other packings."""
    untrained_rows: int | None = None
    """Rows without a token in the loss; None for a store without a loss mask."""

    @property
    def name(self) -> str:
        """Name of the packing, with its overflow or its window."""
        if self.pack_window is not None:
            return f"{self.packing}, {self.pack_window} unit{'s' if self.pack_window > 1 else ''}"
        return self.packing if self.overflow is None else f"{self.packing}, {self.overflow}"

    @property
    def padding(self) -> float:
        """Share of the rows' places without a token."""
        return _share(self.counts.padding_tokens, self.counts.rows * self.seq_len)

    @property
    def lost(self) -> float:
        """Share of the selected tokens that are in no row."""
        return _share(self.counts.dropped_tokens + self.counts.truncated_tokens, self.counts.tokens)

    @property
    def split(self) -> float:
        """Share of the documents with tokens in more than one row."""
        return _share(self.counts.split_documents, self.counts.documents)

    @property
    def shared(self) -> float:
        """Share of the rows that hold several documents."""
        return _share(self.counts.rows_with_several_documents, self.counts.rows)


def compare_packings(
    selection: Selection,
    seq_len: int,
    packings: Sequence[Packing] = PACKINGS,
    *,
    min_tail_fraction: float = 0.5,
    pack_window: int | None = None,
) -> list[PackingStats]:
    """Costs of several packings for rows of one length; of pad, once for every overflow.

    `pack_window`: also of best_fit in windows of this many units.
    """
    seq_len = check_seq_len(seq_len, selection.store)
    counts: dict[str, list[tuple[Overflow | None, Callable[[], Counts]]]] = {
        "concat": [(None, lambda: Concat(selection, seq_len, min_tail_fraction=min_tail_fraction).counts)],
        "best_fit": [(None, lambda: best_fit_counts(selection, seq_len))],
        "pad": [
            (overflow, lambda overflow=overflow: Pad(selection, seq_len, overflow=overflow).counts)  # type: ignore[misc]
            for overflow in OVERFLOWS
        ],
    }
    if unknown := [packing for packing in packings if packing not in counts]:
        raise RecipeError(f"packing is {unknown[0]!r}: expected one of {', '.join(PACKINGS)}")
    prices: list[PackingStats] = []
    for packing in packings:
        prices += [PackingStats(packing, overflow, seq_len, count()) for overflow, count in counts[packing]]
        if packing == "best_fit" and pack_window is not None:
            found = best_fit_counts(selection, seq_len, pack_window)
            prices.append(PackingStats(packing, None, seq_len, found, pack_window))
    if not selection.store.has_loss:
        return prices
    return [
        msgspec.structs.replace(price, untrained_rows=_count_untrained(selection, price, min_tail_fraction))
        for price in prices
    ]


def _count_untrained(selection: Selection, price: PackingStats, min_tail_fraction: float) -> int:
    """Number of rows of a packing without a token in the loss; its plan is not kept."""
    if not price.counts.rows:
        return 0
    options = RowOptions(
        **selection.settings,
        packing=price.packing,
        pack_window=price.pack_window,
        overflow=price.overflow or "truncate",
        min_tail_fraction=min_tail_fraction if price.packing == "concat" else 0.5,
    )
    return len(untrained_rows(Rows(selection.store, price.seq_len, options, plans={})))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
