"""Tokenizer properties of a view, the same for documents and for rows."""

from __future__ import annotations

from packline.store.manifest import TokenizerEntry


class OfTokenizer:
    """Base class of objects that have a tokenizer."""

    tokenizer: TokenizerEntry

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary; every id is below it."""
        return self.tokenizer.vocab_size

    @property
    def eod_id(self) -> int:
        """The end-of-document token."""
        return self.tokenizer.eod_id

    @property
    def bos_id(self) -> int | None:
        """The begin-of-document token, if there is one."""
        return self.tokenizer.bos_id
