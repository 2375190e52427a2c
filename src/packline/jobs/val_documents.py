"""Number of validation documents: a pass before the build turns it into a fraction.

    inputs ──> documents, as the build keeps them ──> share of each text in [0, 1) ──> the n smallest
                                                                        val_share: just above the nth

The split of a document remains a function of its text. The price is one pass over all inputs before the first
unit. The share is committed like a unit, create-only, and a resumed build, or another process, takes it from
there, unless an input has another modification time: then it is computed again, and must be the same if any
unit is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from packline.encoders.special_tokens import BytesCounter
from packline.errors import RecipeError, ResumeMismatch
from packline.fingerprint import Hasher, shares_of
from packline.jobs.engine import run_units
from packline.jobs.events import Note
from packline.jobs.identity import digest_inputs
from packline.jobs.job import Opening, ReportProgress, Runner
from packline.jobs.machines import On, Slice
from packline.jobs.plan import Unit
from packline.jobs.store_job import StoreJob
from packline.jobs.text_build import TextBuild
from packline.jobs.text_unit import KEEP, judge, refusing_changes
from packline.sources.reader import read_span
from packline.storage.results import WORK
from packline.store.manifest import to_json

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
