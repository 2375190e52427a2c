"""Edges: which boundary tokens of a stored document are kept, dropped or moved in the output.

    a store without a begin-of-document token      a b EOD   c EOD
      eod      as it is                            a b EOD   c EOD
      bos      the end moved to the front          EOD a b   EOD c
      none     bodies alone                        a b       c

    a store with one                               BOS a b EOD   BOS c EOD
      both     as it is                            BOS a b EOD   BOS c EOD
      bos      without the ends                    BOS a b       BOS c
      eod      without the beginnings              a b EOD       c EOD
      none     bodies alone                        a b           c

No token is doubled. Moving the end to the front shifts the whole stream of documents by one: `EOD` first,
then all but the last stored token; it costs no more than a copy. Each token keeps its byte of the loss mask.
The token between two documents is therefore the end of the earlier one, in the position of a beginning of the
later one; the very first, which ends no document, is not trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from packline.errors import RecipeError

if TYPE_CHECKING:
    from packline.formats.types import Edges


@dataclass(frozen=True, slots=True)
class EdgeRule:
    """Change of boundary tokens that applies to every document.

    >>> EdgeRule.of("bos", bos_id=None)
    EdgeRule(drop_first=False, drop_last=False, moved=True)
    """

    drop_first: bool = False
    """True if the stored begin-of-document token is left out."""
    drop_last: bool = False
    """True if the stored end-of-document token is left out."""
    moved: bool = False
    """True if the end-of-document token is moved to the front."""

    @classmethod
    def of(cls, edges: Edges, bos_id: int | None) -> EdgeRule:
        """Rule for the documents of a store.

        Raises:
            RecipeError: begin-of-document tokens in addition to ends are requested, and the store has none.
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
        """True if documents are written as stored."""
        return not (self.drop_first or self.drop_last or self.moved)

    @property
    def dropped(self) -> int:
        """Number of tokens that every document loses."""
        return self.drop_first + self.drop_last

    def kept(self, begins: np.ndarray, ends: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Mask of the tokens to keep in a range of the stored stream, bool `[stop - start]`.

        Args:
            begins: int64 `[D]`, start offsets of all documents in the range, counted like `start`.
            ends: int64 `[D]`, their end offsets.
        """
        kept = np.ones(stop - start, np.bool_)
        for wanted, places in ((self.drop_first, begins), (self.drop_last, ends - 1)):
            if wanted:
                kept[places[(places >= start) & (places < stop)] - start] = False
        return kept
