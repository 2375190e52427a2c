"""Limits of a whole build: on documents, on tokens, and `val_documents`.

A limit on documents or tokens applies to the whole, in document order, while units run in any order. So
each unit runs up to the full limit; here the unit in which the sum crosses it is run again with the
remainder, and those after it are withdrawn. So a limit gives the same bytes for any number of workers.

`val_documents` is turned into the share of the hashes that contains exactly n documents:

    inputs ──> documents, as the build keeps them ──> share of each text in [0, 1) ──> the n smallest
                                                                        val_share: just above the nth

The split of a document remains a function of its text: `val` if its share is below `val_share`. So equal
texts share a split, and any worker can compute the split of any document alone. The price is one pass over
all inputs before the first unit. If the limit falls among equal texts, all of them go to train; the smaller
size of the validation set is reported at the end. The share is stored in the work folder, and a resumed build
takes it from there, unless an input has another modification time: then it is computed again, and must be the
same if any unit is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np

from packline.errors import RecipeError, ResumeMismatch
from packline.jobs.begun import Stream, Unit
from packline.jobs.folder import StoreFolder
from packline.jobs.identity import digest_inputs
from packline.jobs.job import Session, WorkUnit
from packline.recipe import Recipe
from packline.sources.files import InputFile
from packline.store.manifest import WORK, Receipt, StreamReceipt, to_json
from packline.store.unit_names import planned_name


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
        self._units, self._receipts, self._streams = iter(work.units), receipts, streams
        self._unit, self._number = next(self._units, None), 0

    def advance(self) -> Iterator[str]:
        """Names of the units that follow those already given, up to the next gap."""
        while (unit := self._unit) is not None:
            if isinstance(unit, Stream):
                while (name := unit.unit_name(self._number)) in self._receipts:
                    self._number += 1
                    yield name
                if unit.name not in self._streams or self._number < self._streams[unit.name].units:
                    return
            elif unit.name not in self._receipts:
                return
            self._unit, self._number = next(self._units, None), 0
            if not isinstance(unit, Stream):
                yield unit.name


def in_order(
    work: Limited, receipts: Mapping[str, Receipt], streams: Mapping[str, StreamReceipt]
) -> list[str]:
    """Names of committed units in document order, up to the first gap."""
    return list(InOrder(work, receipts, streams).advance())


class Limit:
    """Remainder of the recipe's limits, unit by unit."""

    def __init__(self, recipe: Recipe) -> None:
        self.documents, self.tokens = recipe.limit_documents, recipe.limit_tokens
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
        self._limit, self._receipts = Limit(work.recipe), receipts
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
    receipts: Mapping[str, Receipt],
    streams: Mapping[str, StreamReceipt],
    run_again: RunAgain,
) -> None:
    """Cut the units to the limits."""
    limit = Limit(work.recipe)
    if not limit.given:
        return
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
        places = {unit.name: place for place, unit in enumerate(work.units)}
        last = places[planned_name(next(reversed(kept)))]
        for stream in streams:
            if places[stream] >= last:
                folder.withdraw_stream(stream)


RECORD = f"{WORK}/val_share.json"


class Settled(msgspec.Struct, frozen=True):
    """The share, and the checksum of the state of the inputs from which it was computed."""

    share: float
    states: str


VAL_NOTE = "all inputs are read once to choose the validation documents"


class Shares(msgspec.Struct, frozen=True, tag=True):
    """Result of a scan: the smallest shares of a unit's texts."""

    shares: list[float]


def run_scans(session: Session, units: Sequence[WorkUnit]) -> list[list[float]]:
    """Run units that only look for the smallest shares; the results of each."""
    found: list[list[float]] = []
    session.run(units, lambda event: None, lambda name, result: found.append(result.shares))
    return found


class Smallest:
    """Smallest n of many shares, in bounded memory.

    >>> found = Smallest(2)
    >>> found.add([0.5, 0.1]), found.add([0.3, 0.2])
    (None, None)
    >>> found.shares
    [0.1, 0.2, 0.3]
    """

    def __init__(self, count: int) -> None:
        self._kept = count + 1  # one more, to detect a tie at the end
        self._shares = np.empty(0)

    def add(self, shares: Sequence[float]) -> None:
        """Add more shares."""
        joined = np.concatenate([self._shares, np.asarray(shares, np.float64)])
        if len(joined) > self._kept:
            joined = np.partition(joined, self._kept - 1)[: self._kept]
        self._shares = joined

    @property
    def shares(self) -> list[float]:
        """Smallest `count + 1` shares, or all if there are fewer, in order."""
        return [float(share) for share in np.sort(self._shares)]


def share_below(parts: Iterable[Sequence[float]], count: int) -> float:
    """Share below which there are `count` documents; fewer, if the limit falls among equal texts.

    Args:
        parts: smallest `count + 1` shares of each part of the documents, or all if there are fewer.
        count: number of documents wanted.

    Raises:
        RecipeError: there are not enough documents.

    >>> share_below([[0.1, 0.4], [0.2, 0.3]], 2)
    0.20000000000000004
    >>> share_below([[0.1, 0.2], [0.2]], 2)
    0.2
    """
    smallest = Smallest(count)
    for part in parts:
        smallest.add(part)
    shares = smallest.shares
    if len(shares) < count:
        raise RecipeError(
            f"val_documents is {count:,}: expected at most as many as there are documents to divide, "
            f"found {len(shares):,}",
            hint="choose fewer; documents of sources with a fixed split do not count",
        )
    last = shares[count - 1]
    among_equals = len(shares) > count and shares[count] == last
    return last if among_equals else float(np.nextafter(last, 2.0))


def settle_share(
    folder: StoreFolder, files: Sequence[InputFile], begun: bool, compute: Callable[[], float]
) -> float:
    """Share of an earlier run of the same build, or newly computed.

    Args:
        folder: folder of the build.
        files: inputs of the build.
        begun: True if units are committed.
        compute: computes the share by reading all inputs.

    Raises:
        ResumeMismatch: inputs have changed, and with them the share that committed units were built with.
    """
    states, storage = digest_inputs(files).states, folder.storage
    earlier = _read_settled(folder)
    if earlier is not None and earlier.states == states:
        return earlier.share
    share = compute()
    if begun and earlier is not None and earlier.share != share:
        raise ResumeMismatch(
            f"{folder.place} was begun with another state of the inputs: expected the same validation "
            "documents, found others",
            hint="put the earlier files back to resume, or choose another --out",
        )
    if earlier is not None:
        storage.delete([RECORD])
    storage.put_new(RECORD, to_json(Settled(share, states)))
    return share


def _read_settled(folder: StoreFolder) -> Settled | None:
    try:
        return msgspec.json.decode(folder.storage.read(RECORD), type=Settled)
    except FileNotFoundError:
        return None
