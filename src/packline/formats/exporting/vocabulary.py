"""What a view says of the tokenizer whose ids it gives out; the same for documents and for rows."""

from __future__ import annotations

from packline.store.manifest import TokenizerEntry


class OfTokenizer:
    """Something that has a tokenizer."""

    tokenizer: TokenizerEntry

    @property
    def vocab_size(self) -> int:
        """Every id is below it."""
        return self.tokenizer.vocab_size

    @property
    def eod_id(self) -> int:
        """The end-of-document token."""
        return self.tokenizer.eod_id

    @property
    def bos_id(self) -> int | None:
        """The begin-of-document token, where there is one."""
        return self.tokenizer.bos_id
