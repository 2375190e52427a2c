"""Result of verifying a store: problems, each with its place, and the amount checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

MOST = 100
"""Largest number of problems that a report lists; the rest is only counted."""

OnProgress = Callable[[int, int], None]
"""Called with the number of bytes read and the total bytes of the store."""


class Problem(msgspec.Struct, frozen=True):
    """One difference from what is expected."""

    file: str
    what: str
    expected: str = ""
    found: str = ""

    def __str__(self) -> str:
        differs = f": expected {self.expected}, found {self.found}" if self.expected or self.found else ""
        return f"{self.file}: {self.what}{differs}"


class DeepReport(msgspec.Struct, frozen=True):
    """Amounts compared with the reference tokenizer."""

    documents: int
    """Documents encoded again and compared."""
    text_bytes: int
    """UTF-8 bytes of the text of those documents that was encoded."""
    decoded: int
    """Documents whose ids were decoded and compared with the text."""
    shards: int
    """Shards with at least one of them."""
    notes: list[str]
    """Comparisons that were not possible, and why: inputs that are missing or have changed."""


class Report(msgspec.Struct, eq=False):
    """Result of `verify`. Two reports are equal if their contents are, apart from the time taken."""

    ok: bool
    problems: list[Problem]
    problems_not_listed: int
    files: int
    bytes: int
    documents: int
    tokens: int
    deep: DeepReport | None = None
    seconds: float = 0.0
    slice: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET
    """Number of the slice that was checked, and the number of slices; absent if all was checked."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Report):
            return NotImplemented
        mine, theirs = msgspec.to_builtins(self), msgspec.to_builtins(other)
        return bool({**mine, "seconds": 0} == {**theirs, "seconds": 0})


class Findings:
    """Problems and counts of a running verification, or of one slice of it."""

    def __init__(self, slice: tuple[int, int] = (0, 1)) -> None:
        self._slice = slice
        self.problems: list[Problem] = []
        self.not_listed = 0
        self.files = 0
        self.bytes = 0
        self.documents = 0
        self.tokens = 0
        self.expect(0, None)

    def expect(self, total_bytes: int, on_progress: OnProgress | None) -> None:
        """Set the total number of bytes, and the function that is called with those read."""
        self._total, self._on_progress = total_bytes, on_progress

    def add(self, file: str, what: str, expected: object = "", found: object = "") -> None:
        """Record a problem."""
        self._keep([Problem(file, what, _shown(expected), _shown(found))])

    def _keep(self, problems: list[Problem]) -> None:
        self.problems += problems
        self.not_listed += max(len(self.problems) - MOST, 0)
        del self.problems[MOST:]

    def compare(self, file: str, what: str, expected: object, found: object) -> bool:
        """Record a problem unless the two are equal; return True if they are."""
        if equal := bool(expected == found):
            return equal
        self.add(file, what, expected, found)
        return False

    def read(self, size: int) -> None:
        """Count bytes that were read."""
        self.bytes += size
        if self._on_progress is not None:
            self._on_progress(self.bytes, self._total)

    def include(self, other: Findings, prefix: str = "") -> None:
        """Add what was found by another one, as if it had been found here; file names get a prefix."""
        self._keep([msgspec.structs.replace(one, file=prefix + one.file) for one in other.problems])
        self.not_listed += other.not_listed
        self.files += other.files
        self.documents += other.documents
        self.tokens += other.tokens
        self.read(other.bytes)

    def report(self, deep: DeepReport | None, seconds: float) -> Report:
        """Make the report."""
        return Report(
            not self.problems,
            self.problems,
            self.not_listed,
            self.files,
            self.bytes,
            self.documents,
            self.tokens,
            deep,
            seconds,
            msgspec.UNSET if self._slice == (0, 1) else self._slice,
        )


def _shown(value: Any) -> str:
    """Format a value for a message: numbers with separators, anything long cut."""
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
