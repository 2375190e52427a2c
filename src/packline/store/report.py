"""What verifying a store gives: problems, each with its place, and how much was looked at.

    Problem   file, what is wrong, expected, found
    Report    all problems, what was checked; `ok` if there are none
    Findings  collects them while the checks run

Checks never stop at the first problem, so a report shows the extent of the damage. After `MOST` problems
the rest is only counted. It does not check anything itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

MOST = 100
"""Problems that a report lists one by one."""

OnProgress = Callable[[int, int], None]
"""Called with the bytes that were read and all bytes of the store."""


class Problem(msgspec.Struct, frozen=True):
    """One thing that is not as it should be.

    >>> str(Problem("train-000000.bin", "size in bytes", "10", "8"))
    'train-000000.bin: size in bytes: expected 10, found 8'
    """

    file: str
    """Name within the store."""
    what: str
    expected: str = ""
    found: str = ""

    def __str__(self) -> str:
        differs = f": expected {self.expected}, found {self.found}" if self.expected or self.found else ""
        return f"{self.file}: {self.what}{differs}"


class DeepReport(msgspec.Struct, frozen=True):
    """What the reference tokenizer was asked about."""

    documents: int
    """Encoded again and compared."""
    text_bytes: int
    """Of these, UTF-8 bytes of the text that was encoded."""
    decoded: int
    """Documents whose ids were decoded and compared with the text."""
    shards: int
    """Shards with at least one of them."""
    notes: list[str]
    """What could not be compared, and why: inputs that are gone or have changed."""


class Report(msgspec.Struct, eq=False):
    """The result of `verify`. Two reports are equal if they say the same, whatever time it took."""

    ok: bool
    problems: list[Problem]
    problems_not_listed: int
    files: int
    bytes: int
    documents: int
    tokens: int
    deep: DeepReport | None = None
    seconds: float = 0.0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Report):
            return NotImplemented
        mine, theirs = msgspec.to_builtins(self), msgspec.to_builtins(other)
        return bool({**mine, "seconds": 0} == {**theirs, "seconds": 0})


class Findings:
    """Problems and counts of a verification that is under way.

    >>> findings = Findings()
    >>> findings.compare("a.bin", "tokens", 3, 4)
    False
    >>> [str(problem) for problem in findings.problems]
    ['a.bin: tokens: expected 3, found 4']
    """

    def __init__(self, total_bytes: int = 0, on_progress: OnProgress | None = None) -> None:
        self.problems: list[Problem] = []
        self.not_listed = 0
        self.files = 0
        self.bytes = 0
        self.documents = 0
        self.tokens = 0
        self._total, self._on_progress = total_bytes, on_progress

    def expect(self, total_bytes: int, on_progress: OnProgress | None) -> None:
        """Say how many bytes there are, where that is known only later."""
        self._total, self._on_progress = total_bytes, on_progress

    def add(self, file: str, what: str, expected: object = "", found: object = "") -> None:
        """Note a problem."""
        if len(self.problems) < MOST:
            self.problems.append(Problem(file, what, _shown(expected), _shown(found)))
        else:
            self.not_listed += 1

    def compare(self, file: str, what: str, expected: object, found: object) -> bool:
        """Note a problem unless the two are equal; return whether they are."""
        equal = bool(expected == found)
        if not equal:
            self.add(file, what, expected, found)
        return equal

    def read(self, size: int) -> None:
        """Count bytes that were read."""
        self.bytes += size
        if self._on_progress is not None:
            self._on_progress(self.bytes, self._total)

    def report(self, deep: DeepReport | None, seconds: float) -> Report:
        """Sum up."""
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
        )


def _shown(value: Any) -> str:
    """A value in a message: numbers with separators, anything long cut."""
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
