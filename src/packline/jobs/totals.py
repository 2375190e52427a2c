"""Totals of a build, which no unit knows: limits on documents and tokens, the number of validation documents.

A limit is a loop of rounds around the engine:

    round     one unit for each worker, in document order; files and receipts stay in scratch
    commit    in document order, up to the unit that crosses a limit
    crossing  run once more with what is left, and committed last; what lies behind it is dropped

So nothing that is committed is ever withdrawn, a limit gives the same bytes for any number of workers, and
at most one round is dropped, or lost by a kill. A file that is committed slice by slice is a round of its
own, in which all workers take turns.

A number of validation documents becomes a fraction, by a pass over all inputs before the build:

    inputs ──> documents, as the build keeps them ──> share of each text in [0, 1) ──> the n smallest
                                                                        val_share: just above the nth

So the split of a document remains a function of its text. The share is committed like a unit, create-only,
and a resumed build, or another process, takes it from there, unless an input has another modification time:
then it is computed again, and must be the same if any unit is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from packline.encoders.special_tokens import BytesCounter
from packline.errors import PacklineError, RecipeError, ResumeMismatch
from packline.fingerprint import Hasher, shares_of
from packline.jobs.cut_inputs import lanes_of
from packline.jobs.engine import run_units
from packline.jobs.events import Note
from packline.jobs.folder import digest_inputs, names_of
from packline.jobs.job import Opening, ReportProgress, Runner, Session
from packline.jobs.machines import On, Slice
from packline.jobs.plan import Unit
from packline.jobs.receipts import DocumentOrder
from packline.jobs.text_build import TextBuild
from packline.jobs.text_unit import ENOUGH, KEEP, BuildResult, Built, judge, refusing_changes
from packline.recipe import Recipe
from packline.sources.reader import read_span
from packline.storage.results import WORK
from packline.store.ledger import Ledger
from packline.store.manifest import Receipt, StreamReceipt, to_json
from packline.store.naming import STREAM, parse_unit, planned_name

if TYPE_CHECKING:
    from packline.jobs.build_job import BuildJob
    from packline.jobs.store_job import StoreJob


class Limit:
    """Remainder of the recipe's limits, unit by unit."""

    def __init__(self, recipe: Recipe) -> None:
        self.documents, self.tokens = recipe.limit_documents, recipe.limit_tokens
        self.given = self.documents is not None or self.tokens is not None
        self.reached = False

    def crosses(self, *receipts: Receipt) -> bool:
        ledger = sum((receipt.ledger for receipt in receipts), Ledger())
        return (self.documents is not None and ledger.documents > self.documents) or (
            self.tokens is not None and ledger.tokens > self.tokens
        )

    def take(self, receipt: Receipt) -> None:
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
    """Runs the units of a build up to its limits, and commits them in document order.

    What earlier runs have committed are the first units of the plan, without a gap.
    """

    def __init__(self, job: BuildJob, session: Session) -> None:
        self._job, self._session = job, session
        self._limit, self._committed, self._scratch = Limit(job.recipe), job.committed, job.folder.tmp
        self._held: dict[str, Built] = {}
        """Finished units and slices that are not committed, by name."""
        self._there = set(job.committed.receipts)
        self._ends: dict[str, StreamReceipt] = dict(job.committed.streams)
        self._order = DocumentOrder(job.units, self._there, self._ends)
        self._crossing = ""
        """Name of the unit or slice that holds more than what is left."""

    def run(self) -> None:
        job, width = self._job, self._session.width
        self._advance()
        while not self._limit.reached and (unit := self._order.unit) is not None:
            before = self._order.next_name
            if unit.slice_bytes:
                self._run(lanes_of(unit, job.files, width, unit.text_bytes), self._hold)
            else:  # the next units, one for each worker
                following = job.units[unit.number : unit.number + max(width, 1)]
                self._run(takewhile(lambda one: not one.slice_bytes, following), self._hold)
            if self._crossing:
                self._run_again()
            elif self._order.unit is not None and self._order.next_name == before:
                self._look()  # another process has committed it
        self._drop()

    def _look(self) -> None:
        before = self._order.next_name
        self._committed.refresh()
        self._there.update(self._committed.receipts)
        self._ends.update(self._committed.streams)
        self._advance()
        if not self._limit.reached and self._order.unit is not None and self._order.next_name == before:
            raise PacklineError(f"{self._job.folder.place}: unit {before} was run and is not committed")

    def _run(self, units: Iterable[Unit], hold: Callable[[str, BuildResult], None]) -> None:
        given = {"max_documents": self._limit.documents, "max_tokens": self._limit.tokens}
        limited = [msgspec.structs.replace(unit, **given) for unit in units]
        self._session.run(limited, self._job.on_progress, hold)

    def _hold(self, name: str, result: BuildResult) -> None:
        if isinstance(result, StreamReceipt):
            self._ends[name] = result
        else:
            self._held[result.receipt.unit] = result
            self._there.add(result.receipt.unit)
        self._advance()

    def _advance(self) -> None:
        """Count what follows without a gap, up to a limit, and commit it unless it was before."""
        if self._crossing or self._limit.reached:
            return
        for name in self._order.advance():
            if (held := self._held.get(name)) is None:
                self._limit.take(self._committed.receipts[name])
            elif self._limit.crosses(held.receipt):
                self._crossing = name
            else:
                self._commit(held)
            if self._crossing or self._limit.reached:
                (self._scratch / ENOUGH).touch()
                return
        self._commit_ends()

    def _commit(self, built: Built) -> None:
        name = built.receipt.unit
        self._job.folder.commit(built.receipt, self._scratch)
        self._held.pop(name, None)
        self._job.take(name, built)
        self._limit.take(built.receipt)

    def _commit_ends(self) -> None:
        """Commit the ends of files all of whose slices are committed, unless the last one reaches a limit."""
        unit = self._order.unit
        for name, end in self._ends.items():
            if name not in self._committed.streams and (unit is None or unit.name != name):
                self._job.folder.commit_record(f"{name}{STREAM}", end)
                self._job.take(name, end)

    def _run_again(self) -> None:
        self._drop()
        name, self._crossing = self._crossing, ""
        planned, parsed = planned_name(name), parse_unit(name)
        unit = next(unit for unit in self._job.units if unit.name == planned)
        if unit.slice_bytes:
            assert parsed is not None and parsed.slice is not None
            unit = msgspec.structs.replace(unit, lane=parsed.slice, lanes=1 << 62)  # no other slice
        found: list[BuildResult] = []
        self._run([unit], lambda name, result: found.append(result))
        self._commit(next(one for one in found if isinstance(one, Built)))

    def _drop(self) -> None:
        (self._scratch / ENOUGH).unlink(missing_ok=True)
        for built in self._held.values():
            for name in names_of(built.receipt):
                with suppress(OSError):
                    (self._scratch / Path(name).name).unlink()
        self._held.clear()


RECORD = f"{WORK}/val_share.json"


class Settled(msgspec.Struct, frozen=True):
    """The share, and the checksum of the state of the inputs from which it was computed."""

    share: float
    states: str


class TextScan(Opening, msgspec.Struct, frozen=True):
    build: TextBuild
    count: int
    """Number of validation documents."""

    def open(self) -> TextScanner:
        return TextScanner(self.build, self.count)


class TextScanner(Runner[Unit, list[float]]):
    """Finds the smallest shares among the documents that a build of text keeps."""

    def __init__(self, build: TextBuild, count: int) -> None:
        self._build, self._count = build, count
        self._special = BytesCounter(build.tokenizer.special_tokens)

    def run(self, unit: Unit, report: ReportProgress) -> Iterator[list[float]]:
        build, recipe = self._build, self._build.recipe
        source, found = recipe.sources[unit.source], list[float]()
        for span in unit.spans:
            file = build.files[span.file]
            with refusing_changes(file):
                for batch in read_span(file, source, span, recipe.max_document_bytes, Hasher()):
                    verdicts, _ = judge(batch.texts, source, recipe, self._special)
                    kept = (verdicts == KEEP).nonzero()[0]
                    shares = shares_of(batch.texts.take(kept).hashes(recipe.seed))
                    found = smallest([found, shares], self._count)
        yield found


def smallest(parts: Iterable[Sequence[float] | np.ndarray], count: int) -> list[float]:
    """Smallest `count + 1` shares, in order: one more, to detect a tie at the end; all if there are fewer."""
    found = np.empty(0)
    for part in parts:
        found = np.sort(np.concatenate([found, np.asarray(part, np.float64)]))[: count + 1]
    return list(found.tolist())


def share_below(parts: Iterable[Sequence[float]], count: int) -> float:
    """Share below which there are `count` documents; fewer, if the limit falls among equal texts.

    Args:
        parts: smallest shares of each part of the documents (`smallest`).
    """
    shares = smallest(parts, count)
    if len(shares) < count:
        raise RecipeError(
            f"val_documents is {count:,}: expected at most as many as there are documents to divide, "
            f"found {len(shares):,}",
            hint="choose fewer; documents of sources with a fixed split do not count",
        )
    last = shares[count - 1]
    among_equals = len(shares) > count and shares[count] == last
    return last if among_equals else float(np.nextafter(last, 2.0))


def settle_share(job: StoreJob[Any, Any], scan: Opening, units: Sequence[Unit], count: int) -> float:
    """Share of an earlier run of the same build, or newly computed by a scan of units."""
    job.tell(Note("all inputs are read once to choose the validation documents"))
    states, storage = digest_inputs(job.files).states, job.folder.storage
    earlier = None
    with suppress(FileNotFoundError):
        earlier = msgspec.json.decode(storage.read(RECORD), type=Settled)
    if earlier is not None and earlier.states == states:
        return earlier.share
    on: On = "local" if isinstance(job.on, Slice) else job.on
    share = share_below(run_units(scan, units, workers=job.workers(len(units)), on=on), count)
    if job.receipts and earlier is not None and earlier.share != share:
        raise ResumeMismatch(
            f"{job.folder.place} was begun with another state of the inputs: expected the same validation "
            "documents, found others",
            hint="put the earlier files back to resume, or choose another --out",
        )
    if earlier is not None:
        storage.delete([RECORD])
    storage.put_new(RECORD, to_json(Settled(share, states)))
    return share
