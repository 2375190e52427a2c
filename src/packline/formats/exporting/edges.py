"""Edges: how a stored document becomes one of the output's, by tokens that stay, go, or are moved.

    a store without a begin-of-document token      a b EOD   c EOD
      eod      as it is                            a b EOD   c EOD
      bos      the end moved to the front          EOD a b   EOD c
      none     bodies alone                        a b       c

    a store with one                               BOS a b EOD   BOS c EOD
      both     as it is                            BOS a b EOD   BOS c EOD
      bos      without the ends                    BOS a b       BOS c
      eod      without the beginnings              a b EOD       c EOD
      none     bodies alone                        a b           c

No token is doubled. Moving an end to the front is, in a stream of documents, moving the whole stream by one:
`EOD` first, then all but the last stored token; so it costs what copying costs. A token keeps its byte
of the loss mask. What is between two documents is thereby the end of the earlier one, in the place of a
beginning of the later one, and the very first, which ends nothing, is not trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from packline.errors import RecipeError

if TYPE_CHECKING:
    from packline.formats.format import Edges


@dataclass(frozen=True, slots=True)
class EdgeRule:
    """What is done to every document.

    >>> EdgeRule.of("bos", bos_id=None)
    EdgeRule(drop_first=False, drop_last=False, moved=True)
    """

    drop_first: bool = False
    """The stored begin-of-document token is left out."""
    drop_last: bool = False
    """The stored end-of-document token is left out."""
    moved: bool = False
    """The end is put in front."""

    @classmethod
    def of(cls, edges: Edges, bos_id: int | None) -> EdgeRule:
        """The rule for documents of a store.

        Raises:
            RecipeError: beginnings are wanted beside the ends, and the store has none.
        """
        if edges == "both" and bos_id is None:
            raise RecipeError(
                "edges 'both' need a begin-of-document token, and the store has none",
                hint="edges = bos puts the end of document in front; or build a store with --bos",
            )
        if edges not in ("eod", "bos", "both", "none"):
            raise RecipeError(f"edges are {edges!r}: expected eod, bos, both or none")
        if bos_id is None:
            return cls(drop_last=edges == "none", moved=edges == "bos")
        return cls(drop_first=edges in ("eod", "none"), drop_last=edges in ("bos", "none"))

    @property
    def own(self) -> bool:
        """Whether documents stay as they are stored."""
        return not (self.drop_first or self.drop_last or self.moved)

    @property
    def dropped(self) -> int:
        """How many tokens every document loses."""
        return self.drop_first + self.drop_last

    def kept(self, begins: np.ndarray, ends: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Which tokens of a stretch of the stored stream are left, bool `[stop - start]`.

        Args:
            begins: int64 `[D]`, of all documents that the stretch touches, counted like `start`.
            ends: one behind their last tokens.
        """
        kept = np.ones(stop - start, np.bool_)
        for wanted, places in ((self.drop_first, begins), (self.drop_last, ends - 1)):
            if wanted:
                kept[places[(places >= start) & (places < stop)] - start] = False
        return kept
