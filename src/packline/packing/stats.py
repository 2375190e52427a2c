"""Statistics of every packing for a selection of documents, to compare before choosing one.

Cost: a pass or two over the lengths for each, about a second for 100 million documents in stored order; for
best_fit nothing is written or sorted, since it is laid out on counts of lengths. Of a store with a loss mask,
also a pass over its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from packline.errors import RecipeError
from packline.packing.best_fit import best_fit_counts
from packline.packing.in_order import Concat, Pad
from packline.packing.options import OVERFLOWS, PACKINGS, Overflow, Packing, RowOptions
from packline.packing.packer import Counts
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
    seq_len: int
    counts: Counts
    pack_window: int | None = None
    """Units packed together by best_fit; None for all, and for other packings."""
    untrained_rows: int | None = None
    """Rows without a token in the loss; None for a store without a loss mask."""

    @property
    def name(self) -> str:
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
    prices: list[PackingStats] = []
    for packing in packings:
        if packing == "concat":
            made = Concat(selection, seq_len, min_tail_fraction=min_tail_fraction)
            prices.append(PackingStats(packing, None, seq_len, made.counts))
        elif packing == "best_fit":
            for units in (None,) if pack_window is None else (None, pack_window):
                counts = best_fit_counts(selection, seq_len, units)
                prices.append(PackingStats(packing, None, seq_len, counts, units))
        elif packing == "pad":
            for overflow in OVERFLOWS:
                counts = Pad(selection, seq_len, overflow=overflow).counts
                prices.append(PackingStats(packing, overflow, seq_len, counts))
        else:
            raise RecipeError(f"packing is {packing!r}: expected one of {', '.join(PACKINGS)}")
    if not selection.store.has_loss:
        return prices
    found = []
    for price in prices:
        options = RowOptions(
            **selection.settings,
            packing=price.packing,
            pack_window=price.pack_window,
            overflow=price.overflow or "truncate",
            min_tail_fraction=min_tail_fraction if price.packing == "concat" else 0.5,
        )
        count = 0
        if price.counts.rows:
            count = len(untrained_rows(Rows(selection.store, seq_len, options, plans={})))
        found.append(msgspec.structs.replace(price, untrained_rows=count))
    return found


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
