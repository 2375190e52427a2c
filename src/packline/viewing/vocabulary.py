"""Vocabularies for display: the bytes of each token, and the names of special tokens.

The vocabulary of a store is built once per process, because reading a tokenizer of 150,000 tokens takes half
a second and 20 MB; then each token costs one list lookup. The tokenizer itself decodes no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from packline.encoders.token_bytes import token_bytes
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import TokenizerError
from packline.store.files import FileEntry, read_file
from packline.store.manifest import TOKENIZER, TokenizerEntry
from packline.store.reader import StoreReader


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens of a tokenizer."""

    name: str
    data: Sequence[bytes]
    """Bytes of each token by id; empty for special tokens and for ids without a token."""
    special: dict[int, str]
    """Names of special tokens by id, including those that begin and end documents."""
    eod_id: int | None = None
    """End-of-document token, if known."""

    def __len__(self) -> int:
        return len(self.data)

    @classmethod
    def of_tokenizer(cls, tokenizer: Tokenizer, *, eod_id: int | None = None) -> Vocabulary:
        """Build the vocabulary of a loaded tokenizer.

        >>> model = {"type": "WordLevel", "vocab": {"a": 0, "</s>": 1}, "unk_token": "a"}
        >>> added = [{"id": 1, "content": "</s>", "special": True}]
        >>> text = msgspec.json.encode({"model": model, "added_tokens": added}).decode()
        >>> Vocabulary.of_tokenizer(
        ...     Tokenizer(
        ...         name="tiny", kind="huggingface", json=text, vocab_size=2, special_tokens={"</s>": 1}
        ...     )
        ... )
        Vocabulary(name='tiny', data=[b' a', b''], special={1: '</s>'}, eod_id=None)
        """
        special = {number: name for name, number in tokenizer.special_tokens.items()}
        return cls(tokenizer.name, token_bytes(tokenizer), special, eod_id)

    @classmethod
    def of_store(cls, store: StoreReader) -> Vocabulary:
        """Return the vocabulary of a store; cached for a few stores.

        Raises:
            CorruptStore: the tokenizer kept with the store is damaged.
            TokenizerError: the tokenizer cannot be read.
        """
        entry = store.manifest.tokenizer
        return _of_folder(store.path, store.tokenizer_file, msgspec.json.encode(entry))

    def check(self, ids: np.ndarray, what: str) -> None:
        """Reject ids outside the vocabulary.

        Args:
            what: origin of the ids, for the error.

        Raises:
            TokenizerError: an id is outside the vocabulary, so another tokenizer probably made the ids.
        """
        if not ids.size or (int(ids.min()) >= 0 and int(ids.max()) < len(self)):
            return
        wrong = int(ids[(ids < 0) | (ids >= len(self))].flat[0])
        raise TokenizerError(
            f"{what}: token id {wrong:,} is outside the vocabulary of {self.name}: "
            f"expected 0 to {len(self) - 1:,}",
            hint="another tokenizer made these tokens; name that one with --tokenizer",
        )


@lru_cache(maxsize=4)
def _of_folder(folder: Path, file: FileEntry, entry_json: bytes) -> Vocabulary:
    entry = msgspec.json.decode(entry_json, type=TokenizerEntry)
    read_file(folder, file)  # raises an error if it is damaged
    tokenizer = load_tokenizer(str(folder / TOKENIZER))
    kind = "tiktoken" if entry.kind == "tiktoken" else tokenizer.kind
    found = Vocabulary.of_tokenizer(
        msgspec.structs.replace(tokenizer, name=entry.name, kind=kind), eod_id=entry.eod_id
    )
    found.special[entry.eod_id] = entry.eod
    if entry.bos_id is not None and entry.bos is not None:
        found.special[entry.bos_id] = entry.bos
    return found
