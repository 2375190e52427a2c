"""The public store: reading, rows, verification and its page in a notebook, in one class.

Modules below need one part each: `store.reader.StoreReader`, `packing.rows.Rows`, `store.verify`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packline.notebook import Notebook
from packline.store.reader import StoreReader

if TYPE_CHECKING:
    from packline.packing.rows import Rows
    from packline.store.verify import Report


class Store(StoreReader, Notebook):
    """A finished store, opened for reading; `packline.open` returns it.

    Raises:
        StoreNotFound: there is none.
        CorruptStore: it is damaged, or has a newer format.
    """

    def rows(self, seq_len: int, **settings: Any) -> Rows:
        """Make training sequences of `seq_len` tokens from these documents.

        `packing="concat" | "best_fit" | "pad"`, filters and the rest: see `packline.packing.rows.Rows`.

        Raises:
            RecipeError: an invalid setting.
            StoreError: no document is left, or no row.
        """
        from packline.packing.rows import Rows

        return Rows(self, seq_len, **settings)

    def verify(self, *, deep: bool = False) -> Report:
        """Check the store from its files alone; `deep` encodes a sample of documents again.

        See `packline.store.verify.verify`.
        """
        from packline.store.verify import verify

        return verify(self.path, deep=deep)
