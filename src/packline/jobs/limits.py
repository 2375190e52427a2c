"""Limits of a whole build, on documents or tokens: a loop of rounds around the engine.

    round     one unit for each worker, in document order; files and receipts stay in scratch
    commit    in document order, up to the unit that crosses a limit
    crossing  run once more with what is left, and committed last; what lies behind it is dropped

So nothing that is committed is ever withdrawn, a limit gives the same bytes for any number of workers, and
at most one round is dropped, or lost by a kill. A file that is committed slice by slice is a round of its
own, in which all workers take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from packline.errors import PacklineError
from packline.jobs.document_order import DocumentOrder
from packline.jobs.events import Event
from packline.jobs.folder import StoreFolder, names_of
from packline.jobs.job import Session
from packline.jobs.plan import Unit
from packline.jobs.receipts import CommittedReceipts
from packline.jobs.text_unit import ENOUGH, BuildResult, Built, FileRead
from packline.recipe import Recipe
from packline.store.ledger import total
from packline.store.manifest import Receipt, StreamReceipt
from packline.store.naming import parse_unit, planned_name


class Limit:
    """Remainder of the recipe's limits, unit by unit."""

    def __init__(self, recipe: Recipe) -> None:
        self.documents, self.tokens = recipe.limit_documents, recipe.limit_tokens
        self.given = self.documents is not None or self.tokens is not None
        self.reached = False

    def crosses(self, *receipts: Receipt) -> bool:
        """True if units hold more than the remainder."""
        ledger = total(receipt.ledger for receipt in receipts)
        return (self.documents is not None and ledger.documents > self.documents) or (
            self.tokens is not None and ledger.tokens > self.tokens
        )

    def take(self, receipt: Receipt) -> None:
        """Count a unit that is committed."""
        if self.documents is not None:
            self.documents -= receipt.ledger.documents
        if self.tokens is not None:
            self.tokens -= receipt.ledger.tokens
        self.reached = self.reached or not receipt.complete or self.documents == 0 or self.tokens == 0


def limit_reached(recipe: Recipe, receipts: Iterable[Receipt]) -> bool:
    """True if committed units, in order and without a gap, reach a limit of the recipe."""
    limit = Limit(recipe)
    if limit.given:
        for receipt in receipts:
            limit.take(receipt)
    return limit.reached


class LimitedRun:
    """Runs units up to the limits, and commits them in document order.

    Args:
        units: all planned units.
        committed: what earlier runs have committed: the first units of the plan, without a gap.
        scratch: folder in which workers leave finished units.
        take: called with the name and result of each unit that is committed.
        on_event: called with progress.
    """

    def __init__(
        self,
        recipe: Recipe,
        units: Sequence[Unit],
        committed: CommittedReceipts,
        folder: StoreFolder,
        scratch: Path,
        take: Callable[[str, BuildResult], None],
        on_event: Callable[[Event], None],
    ) -> None:
        self._limit, self._units = Limit(recipe), units
        self._committed, self._folder, self._scratch = committed, folder, scratch
        self._take, self._on_event = take, on_event
        self._held: dict[str, Built] = {}
        """Finished units and slices that are not committed, by name."""
        self._there = set(committed.receipts)
        self._ends: dict[str, StreamReceipt] = dict(committed.streams)
        self._order = DocumentOrder(units, self._there, self._ends)
        self._crossing = ""
        """Name of the unit or slice that holds more than what is left."""

    def run(
        self,
        session: Session,
        lanes: Callable[[Unit], Sequence[Unit]],
        workers: int,
        take_over: Callable[[Unit, Limit], bool],
    ) -> None:
        """Run rounds of units until a limit is reached.

        Args:
            lanes: lanes of a file that is committed slice by slice.
            take_over: commits a unit without running it, if that is possible and it does not cross a limit.
        """
        self._advance()
        while not self._limit.reached and (unit := self._order.unit) is not None:
            before = self._order.next_name
            if not take_over(unit, self._limit):
                self._run(session, lanes(unit) if unit.slice_bytes else self._round(unit, workers))
            if self._crossing:
                self._run_again(session)
            elif self._order.unit is not None and self._order.next_name == before:
                self._look()  # it was taken over, or another process has committed it
        self._drop()

    def _look(self) -> None:
        """Take over what is committed by now."""
        before = self._order.next_name
        self._committed.refresh()
        self._there.update(self._committed.receipts)
        self._ends.update(self._committed.streams)
        self._advance()
        if not self._limit.reached and self._order.unit is not None and self._order.next_name == before:
            raise PacklineError(f"{self._folder.place}: unit {before} was run and is not committed")

    def _round(self, first: Unit, workers: int) -> list[Unit]:
        """The next units, one for each worker."""
        following = self._units[first.number : first.number + max(workers, 1)]
        sliced = next((place for place, unit in enumerate(following) if unit.slice_bytes), len(following))
        return list(following[:sliced])

    def _run(self, session: Session, units: Sequence[Unit]) -> None:
        limit = self._limit
        given = {"max_documents": limit.documents, "max_tokens": limit.tokens}
        session.run([msgspec.structs.replace(unit, **given) for unit in units], self._on_event, self._hold)

    def _hold(self, name: str, result: BuildResult) -> None:
        if isinstance(result, FileRead):
            self._ends[name] = result.receipt
        else:
            self._held[result.receipt.unit] = result
            self._there.add(result.receipt.unit)
        self._advance()

    def _advance(self) -> None:
        """Commit what follows without a gap, up to a limit."""
        if self._crossing or self._limit.reached:
            return
        for name in self._order.advance():
            if self._settle(name):
                (self._scratch / ENOUGH).touch()
                return
        self._commit_ends()

    def _settle(self, name: str) -> bool:
        """Count a unit, and commit it unless it was before; True if it reaches or crosses a limit."""
        held = self._held.get(name)
        receipt = self._committed.receipts[name] if held is None else held.receipt
        if held is not None and self._limit.crosses(receipt):
            self._crossing = name
            return True
        if held is not None:
            self._commit(held)
        self._limit.take(receipt)
        return self._limit.reached

    def _commit(self, built: Built) -> None:
        name = built.receipt.unit
        self._folder.commit(built.receipt, self._scratch)
        self._held.pop(name, None)
        self._take(name, built)

    def _commit_ends(self) -> None:
        """Commit the ends of files all of whose slices are committed, unless the last one reaches a limit."""
        unit = self._order.unit
        for name, end in self._ends.items():
            if name not in self._committed.streams and (unit is None or unit.name != name):
                self._folder.commit_stream(name, end)
                self._take(name, FileRead(end))

    def _run_again(self, session: Session) -> None:
        """Run the unit, or the one slice, that crosses a limit with what is left."""
        self._drop()
        name, self._crossing = self._crossing, ""
        planned, parsed = planned_name(name), parse_unit(name)
        unit = next(unit for unit in self._units if unit.name == planned)
        if unit.slice_bytes:
            assert parsed is not None and parsed.slice is not None
            unit = msgspec.structs.replace(unit, lane=parsed.slice, lanes=1 << 62)  # no other slice
        found: list[Built] = []
        given = {"max_documents": self._limit.documents, "max_tokens": self._limit.tokens}

        def hold(_: str, result: BuildResult) -> None:
            if isinstance(result, Built):
                found.append(result)

        session.run([msgspec.structs.replace(unit, **given)], self._on_event, hold)
        self._commit(found[0])
        self._limit.take(found[0].receipt)

    def _drop(self) -> None:
        """Delete the files of units that are not needed."""
        (self._scratch / ENOUGH).unlink(missing_ok=True)
        for built in self._held.values():
            for name in names_of(built.receipt):
                with suppress(OSError):
                    (self._scratch / Path(name).name).unlink()
        self._held.clear()
