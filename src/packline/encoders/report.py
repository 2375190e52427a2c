"""What is said of engines: their names, and how one did on the user's own text.

It is apart from the engines because whoever only shows it, such as the terminal, should not have to load
NumPy and Arrow: a tenth of a second before anything begins.
"""

from __future__ import annotations

from typing import Literal

import msgspec

EngineName = Literal["gigatoken", "fastokens", "tokenizers"]
ENGINE_NAMES: tuple[EngineName, ...] = ("gigatoken", "fastokens", "tokenizers")


class EngineReport(msgspec.Struct, frozen=True):
    """How an engine did on the user's own text, before the build."""

    name: EngineName
    exact: bool
    megabytes_per_second: float
    """On a small sample and cold; while running, rates are measured anew."""
    note: str
