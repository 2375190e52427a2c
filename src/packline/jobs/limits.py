"""Limits on documents or tokens of a whole build.

A limit on documents or tokens applies to the whole, in document order, while units run in any order. So
each unit runs up to the full limit; here the unit in which the sum crosses it is run again with the
remainder, and those after it are withdrawn. So a limit gives the same bytes for any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from packline.jobs.folder import StoreFolder
from packline.jobs.units import Stream, Unit
from packline.recipe import Recipe
from packline.store.manifest import Receipt, StreamReceipt


class Limited(Protocol):
    """A build, as far as its limits go."""

    @property
    def recipe(self) -> Recipe:
        """Recipe with the limits."""

    @property
    def units(self) -> Sequence[Unit | Stream]:
        """Planned units, in document order."""


class InOrder:
    """Committed units in document order, up to the first gap; each name is given once.

    Receipts and streams are looked up lazily, so additions count. Over a whole build the cost is linear
    in the number of units, however often `advance` is called.
    """

    def __init__(
        self, work: Limited, receipts: Mapping[str, Receipt], streams: Mapping[str, StreamReceipt]
    ) -> None:
        self._units, self._receipts, self._streams = work.units, receipts, streams
        self._place = self._number = 0

    def advance(self) -> Iterator[str]:
        """Names of the units that follow those already given, up to the next gap."""
        while self._place < len(self._units):
            unit = self._units[self._place]
            if isinstance(unit, Stream):
                while (name := unit.unit_name(self._number)) in self._receipts:
                    self._number += 1
                    yield name
                if unit.name not in self._streams or self._number < self._streams[unit.name].units:
                    return
            elif unit.name not in self._receipts:
                return
            self._place, self._number = self._place + 1, 0
            if not isinstance(unit, Stream):
                yield unit.name


def in_order(
    work: Limited, receipts: Mapping[str, Receipt], streams: Mapping[str, StreamReceipt]
) -> list[str]:
    """Names of committed units in document order, up to the first gap."""
    return list(InOrder(work, receipts, streams).advance())


class Limit:
    """Remainder of the recipe's limits, unit by unit."""

    def __init__(self, work: Limited) -> None:
        self.documents = work.recipe.limit_documents
        self.tokens = work.recipe.limit_tokens
        self.given = self.documents is not None or self.tokens is not None
        self.reached = False

    def crosses(self, receipt: Receipt) -> bool:
        """True if a unit holds more than the remainder."""
        documents, tokens = receipt.ledger.documents, receipt.ledger.tokens
        return (self.documents is not None and documents > self.documents) or (
            self.tokens is not None and tokens > self.tokens
        )

    def take(self, receipt: Receipt) -> None:
        """Count a unit."""
        if self.documents is not None:
            self.documents -= receipt.ledger.documents
        if self.tokens is not None:
            self.tokens -= receipt.ledger.tokens
        self.reached = self.reached or not receipt.complete or self.documents == 0 or self.tokens == 0


class LimitWatch:
    """Detects when the committed units, in order and without a gap, reach the limits.

    A running sum: each unit is counted once, when all before it are committed.

    Args:
        receipts: receipts of committed units; the caller adds later ones.
        streams: receipts of streams; the caller adds later ones.
    """

    def __init__(
        self, work: Limited, receipts: Mapping[str, Receipt], streams: Mapping[str, StreamReceipt]
    ) -> None:
        self._limit, self._receipts = Limit(work), receipts
        self._in_order = InOrder(work, receipts, streams)

    @property
    def given(self) -> bool:
        """True if the recipe has a limit."""
        return self._limit.given

    def reached(self) -> bool:
        """True if the committed units reach a limit."""
        limit = self._limit
        if limit.given and not limit.reached:
            for name in self._in_order.advance():
                receipt = self._receipts[name]
                limit.reached = limit.crosses(receipt)
                if not limit.reached:
                    limit.take(receipt)
                if limit.reached:
                    break
        return limit.reached


RunAgain = Callable[[str, int | None, int | None], Receipt]
"""Run a unit again, by name, with at most the given numbers of documents and tokens."""


def apply_limits(
    work: Limited,
    folder: StoreFolder,
    receipts: dict[str, Receipt],
    streams: dict[str, StreamReceipt],
    run_again: RunAgain,
) -> dict[str, Receipt]:
    """Cut the units to the limits; return the remaining receipts."""
    limit = Limit(work)
    if not limit.given:
        return receipts
    kept: dict[str, Receipt] = {}
    for name in in_order(work, receipts, streams):
        receipt = receipts[name]
        if limit.reached:
            break
        # A unit that stopped at the whole limit although less was left has stopped too late.
        if limit.crosses(receipt) or (not receipt.complete and kept):
            folder.withdraw(receipt)
            receipt = run_again(name, limit.documents, limit.tokens)
        limit.take(receipt)
        kept[name] = receipt
    for name, receipt in receipts.items():
        if name not in kept:
            folder.withdraw(receipt)
    if limit.reached:
        # Whether the last stream, or a later one, was read to its end depended on timing.
        last = next(reversed(kept)).partition("-")[0]
        for stream in streams:
            if stream >= last:
                folder.withdraw_stream(stream)
    return kept
