"""The tokenizer kept with a store."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packline.store.files import FileEntry, StoreFiles
from packline.store.tables import TOKENIZER

if TYPE_CHECKING:
    from packline.encoders.tokenizer import Tokenizer


def load_kept_tokenizer(store: StoreFiles, files: Sequence[FileEntry]) -> Tokenizer:
    """Load the tokenizer of a store, local or remote."""
    from packline.encoders.tokenizer import load_tokenizer

    if isinstance(store.place, Path):
        return load_tokenizer(str(store.place / TOKENIZER))
    with tempfile.TemporaryDirectory(prefix="packline-") as folder:
        inner = Path(folder) / TOKENIZER
        inner.mkdir()
        for entry in files:
            (Path(folder) / entry.name).write_bytes(store.read(entry))
        return load_tokenizer(str(inner))
