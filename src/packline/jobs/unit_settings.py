"""Checksum of everything but the inputs' bytes that decides the files of a unit, for its receipt.

    versions    packline, pyarrow (which writes provenance)
    tokenizer   fingerprint, boundary tokens
    recipe      special tokens, size limit, shares and seed of the splits where they matter
    source      all settings but its inputs; what decides how a file is read is taken from the file
    files       format, compression, fields; for a slice of a stream the size of the slices

Two units of equal settings that read the same pieces of the same files, with equal checksums, have the same
files: `reuse` relies on it. Limits of the build are left out, since a unit that was read to its end does not
depend on them, and so are settings that only refuse (`strict`, `rare_fields`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from packline.encoders.special_tokens import Boundary
from packline.fingerprint import hash_value
from packline.recipe import Recipe
from packline.sources.files import InputFile
from packline.version import __version__

OF_FILES = ("inputs", "name", "rare_fields", "format", "text", "id", "columns")
"""Settings of a source that act through its files alone, or on no byte."""


class UnitSettingsKey:
    """Settings of the units of a build.

    Args:
        tokenizer: fingerprint of the tokenizer.
        val_share: value of val_fraction that `val_documents` amounts to, if it is given.
    """

    def __init__(
        self, recipe: Recipe, tokenizer: str, boundary: Boundary | None, val_share: float | None = None
    ) -> None:
        import pyarrow

        self._recipe = recipe
        val = recipe.val_fraction if val_share is None else val_share
        self._shares = [val, recipe.test_fraction or 0.0, recipe.seed]
        self._common = {
            "packline": __version__,
            "pyarrow": pyarrow.__version__,
            "tokenizer": tokenizer,
            "boundary": msgspec.to_builtins(boundary),
            "special_tokens": recipe.special_tokens,
            "max_document_bytes": recipe.max_document_bytes,
        }
        self._hash = lru_cache(maxsize=256)(self._hashed)

    def checksum(self, source: int, files: Iterable[InputFile], slice_bytes: int = 0) -> str:
        """Checksum of the settings of a unit.

        Args:
            source: number of its source.
            files: files that it reads.
            slice_bytes: size of the slices, if it is one.
        """
        facts = tuple(
            (file.format, file.compression, file.text, file.id, file.columns or (), file.carried or ())
            for file in files
        )
        return self._hash(source, facts if len(set(facts)) > 1 else facts[:1], slice_bytes)

    def _hashed(self, source: int, facts: tuple[Any, ...], slice_bytes: int) -> str:
        settings = self._recipe.sources[source]
        own: dict[str, Any] = msgspec.to_builtins(settings)
        own = {name: value for name, value in own.items() if name not in OF_FILES}
        splits = None if settings.split or not any(self._shares[:2]) else self._shares
        return hash_value([self._common, own, splits, facts, slice_bytes])
