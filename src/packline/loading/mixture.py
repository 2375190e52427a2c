"""Mixture: rows of several sources by weight.

A mixture holds the rows, their weights, and the number of times each row may be used. `shares` determines
exactly which source a row of the mixture comes from; `order` determines which row of that source. Nothing is
read or shuffled here: random sampling would only make shares inexact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from packline.errors import RecipeError
from packline.loading.shares import Shares, Weight

if TYPE_CHECKING:
    from packline.packing.rows import RowSource


class Mixture:
    """Rows of several sources by weight.

    Args:
        sources: (rows, weight) or (rows, weight, max_epochs) each. `max_epochs` is the largest number of
            times a row may be used: 1 by default, None for no limit.

    Raises:
        RecipeError: no sources, a weight that is not a number above zero, `max_epochs` below 1, the same rows
            twice, rows of different length or of different tokenizers.

    A stage whose tokens need more of a source than its `max_epochs` allows is rejected before the first
    batch.

    With an open store:

    >>> import packline
    >>> short, long = store.rows(seq_len=5), store.rows(seq_len=10).split_to(5)
    >>> mixture = packline.Mixture([(short, 0.7), (long, 0.3, 4)])  # long ones up to four times
    >>> [str(share) for share in mixture.shares]
    ['7/10', '3/10']
    """

    def __init__(self, sources: Iterable[tuple[Any, ...]]) -> None:
        entries = [_entry(entry, number) for number, entry in enumerate(sources)]
        if not entries:
            raise RecipeError("a mixture needs at least one source, found none")
        self.rows: tuple[RowSource, ...] = tuple(rows for rows, _, _ in entries)
        self.weights: tuple[Weight, ...] = tuple(weight for _, weight, _ in entries)
        self.max_epochs: tuple[int | None, ...] = tuple(epochs for _, _, epochs in entries)
        self.schedule = Shares(self.weights)
        _check_alike(self.rows)

    def __len__(self) -> int:
        """Number of sources."""
        return len(self.rows)

    @property
    def seq_len(self) -> int:
        """Row length, the same for every source."""
        return self.rows[0].seq_len

    @property
    def shares(self) -> list[Fraction]:
        """Exact share of each source; they add up to 1."""
        return self.schedule.exact

    def split_to(self, seq_len: int) -> Mixture:
        """Cut the rows of the mixture to another length; returns itself if the length is the same.

        Raises:
            RecipeError: a row length that `seq_len` does not divide.
        """
        if seq_len == self.seq_len:
            return self
        for number, rows in enumerate(self.rows):
            if seq_len < 1 or rows.seq_len % seq_len:
                raise RecipeError(
                    f"source {number}: cannot cut rows of {rows.seq_len:,} tokens into rows of {seq_len:,}",
                    hint="choose a divisor, or make rows of that length: store.rows(seq_len=...)",
                )
        cut = [rows.split_to(seq_len) for rows in self.rows]
        return Mixture(zip(cut, self.weights, self.max_epochs, strict=True))

    def limit(self, drawn: Sequence[int]) -> int | None:
        """Rows of the mixture until a source would exceed its `max_epochs`; None if no source can.

        Args:
            drawn: rows of each source already consumed.
        """
        limits = [
            self.schedule.place(number, max(0, epochs * len(rows) - before))
            for number, (rows, epochs, before) in enumerate(
                zip(self.rows, self.max_epochs, drawn, strict=True)
            )
            if epochs is not None
        ]
        return min(limits, default=None)

    def __repr__(self) -> str:
        shares = ", ".join(
            f"{float(share):.4g} of {rows!r}" for share, rows in zip(self.shares, self.rows, strict=True)
        )
        return f"<Mixture: {shares}>"


def _entry(entry: Any, number: int) -> tuple[RowSource, Weight, int | None]:
    """Check one argument and return its (rows, weight, max_epochs)."""
    if not isinstance(entry, tuple | list) or len(entry) not in (2, 3):
        raise RecipeError(
            f"source {number} of a mixture: expected (rows, weight) or (rows, weight, max_epochs), "
            f"found {entry!r}"
        )
    rows, weight = entry[0], entry[1]
    epochs = entry[2] if len(entry) == 3 else 1
    if epochs is not None and (not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1):
        raise RecipeError(
            f"source {number}: expected max_epochs of 1 or more, or None for no limit, found {epochs!r}"
        )
    if not len(rows):
        raise RecipeError(f"source {number} has no rows: {rows!r}")
    return rows, weight, epochs


def _check_alike(sources: Sequence[RowSource]) -> None:
    """Reject rows that cannot share a batch, and duplicate rows."""
    first, seen = sources[0], dict[str, int]()
    for number, rows in enumerate(sources):
        if rows.seq_len != first.seq_len:
            raise RecipeError(
                f"source {number}: expected rows of {first.seq_len:,} tokens as in source 0, "
                f"found {rows.seq_len:,}",
                hint="make all rows of a mixture with one seq_len, or cut longer ones: rows.split_to(...)",
            )
        check_tokenizer(rows, first, f"source {number}", "source 0")
        if rows.fingerprint in seen:
            raise RecipeError(
                f"sources {seen[rows.fingerprint]} and {number} are the same rows: {rows!r}",
                hint="name them once, with the sum of their weights",
            )
        seen[rows.fingerprint] = number


def check_tokenizer(rows: RowSource, other: RowSource, name: str, other_name: str) -> None:
    """Reject rows whose ids have another meaning than the other's.

    Raises:
        RecipeError: the stores were made with different tokenizers.
    """
    found, expected = rows.store.manifest.tokenizer, other.store.manifest.tokenizer
    if found.fingerprint != expected.fingerprint:
        raise RecipeError(
            f"{name}: expected ids of the tokenizer {expected.name} ({expected.fingerprint[:8]}) as in "
            f"{other_name}, found {found.name} ({found.fingerprint[:8]})",
            hint="stores that are trained on together must be built with one tokenizer",
        )
