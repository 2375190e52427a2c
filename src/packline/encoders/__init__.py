"""Tokenizers of every kind as one tokenizer.json, and encoding with the fastest engine that is exact.

Names of engines, their interface and reports about them are defined here, so that code that only displays a
report, such as the terminal, need not load NumPy and Arrow, which would delay the start by 0.1 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from packline.ragged import Ragged
    from packline.sources.batch import Texts

EngineName = Literal["gigatoken", "fastokens", "nanotoken", "tokenizers"]
ENGINE_NAMES: tuple[EngineName, ...] = ("gigatoken", "fastokens", "nanotoken", "tokenizers")
LITTLE_TEXT = 16 << 20
"""Bytes of text below which loading a second engine, or starting processes, takes longer than it saves."""


class EngineReport(msgspec.Struct, frozen=True):
    """Result of an engine on the user's own text, before the build."""

    name: EngineName
    exact: bool
    megabytes_per_second: float
    """Rate on a small sample with cold caches; during a build, rates are measured again."""
    note: str


class Engine(Protocol):
    """Interface of an encoding engine."""

    name: EngineName

    def encode(self, texts: Texts) -> Ragged:
        """Encode each text: `tokens` uint32 `[T]`, `offsets` int64 `[D+1]`."""
