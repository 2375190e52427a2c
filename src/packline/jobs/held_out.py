"""`val_documents`: the share of the hashes that contains exactly n documents.

    inputs ──> documents, as the build keeps them ──> share of each text in [0, 1) ──> the N smallest
                                                                        val_share: just above the Nth

The split of a document remains a function of its text: `val` if its share is below `val_share`. So equal
texts share a split, any worker can compute the split of any document alone, and bytes do not depend on the
assignment of work. The price is one pass over all inputs before the first unit. If the limit falls among
equal texts, all of them go to train; the smaller size of the validation set is reported at the end.

The share is stored in the work folder. A resumed build takes it from there, unless an input has another
modification time: then it is computed again, and must be the same if any unit is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from packline.encoders.special import SpecialTokenCounter
from packline.errors import RecipeError, ResumeMismatch
from packline.fingerprint import Hasher, share_of
from packline.jobs.folder import BuildFolder
from packline.jobs.prepare import Work
from packline.jobs.task_pool import run_tasks
from packline.jobs.task_worker import Runner
from packline.jobs.unit import KEEP, check_unchanged, judge
from packline.jobs.units import Unit
from packline.recipe import Recipe
from packline.sources.files import InputFile
from packline.sources.reader import Span, read_span
from packline.storage.inputs import open_input
from packline.storage.local import publish_bytes
from packline.store.manifest import to_json

RECORD = "val_share.json"


class Settled(msgspec.Struct, frozen=True):
    """The share, and the state of the inputs from which it was computed."""

    share: float
    modified: tuple[str, ...]


class ScanJob(msgspec.Struct, frozen=True):
    """Settings common to all scans of a build."""

    recipe: Recipe
    files: list[InputFile]
    special_tokens: dict[str, int]
    limit: int
    """Maximum bytes of a record."""


class ScanTask(msgspec.Struct, frozen=True):
    """Spans of one source to scan."""

    source: int
    spans: tuple[Span, ...]


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
            hint="ask for fewer; documents of a source with a split of its own are not among them",
        )
    last = shares[count - 1]
    among_equals = len(shares) > count and shares[count] == last
    return last if among_equals else float(np.nextafter(last, 2.0))


def settle_share(
    folder: BuildFolder, files: Sequence[InputFile], begun: bool, compute: Callable[[], float]
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
    record, modified = folder.work / RECORD, tuple(file.modified for file in files)
    earlier = msgspec.json.decode(record.read_bytes(), type=Settled) if record.exists() else None
    if earlier is not None and earlier.modified == modified:
        return earlier.share
    share = compute()
    if begun and earlier is not None and earlier.share != share:
        raise ResumeMismatch(
            f"{folder.path} was begun with another state of the inputs: expected the same validation "
            "documents, found others",
            hint="put the earlier files back to resume, or choose another --out",
        )
    publish_bytes(record, to_json(Settled(share, modified)))
    return share


def find_share(work: Work, workers: int) -> float:
    """Read all inputs of a build to find the share for its `val_documents`.

    Raises:
        RecipeError: there are not enough documents.
        InputChanged: a file changes while it is read.
    """
    count = work.recipe.val_documents
    assert isinstance(count, int)
    limit = min(work.recipe.max_document_bytes, work.room.record)
    job = ScanJob(work.recipe, work.files, work.tokenizer.special_tokens, limit)
    tasks = [
        (
            unit.name,
            ScanTask(unit.source, unit.spans if isinstance(unit, Unit) else (_whole(work.files[unit.file]),)),
        )
        for unit in work.units
        if not work.recipe.sources[unit.source].split
    ]
    parts = run_tasks(open_scan, job, tasks, workers=workers)
    return share_below((msgspec.json.decode(part, type=list[float]) for _, part in parts), count)


def _whole(file: InputFile) -> Span:
    if file.format != "parquet":
        return Span(file.index, 0, file.size)
    from packline.sources.parquet import open_parquet

    with open_input(file.path) as raw:
        return Span(file.index, 0, open_parquet(raw, file.path).metadata.num_row_groups)


def open_scan(job: msgspec.Raw) -> Runner:
    """Runner that scans spans, for a worker process or this one."""
    scan = msgspec.json.decode(job, type=ScanJob)
    special = SpecialTokenCounter(scan.special_tokens)

    def run(task: msgspec.Raw, report: Callable[[int], None]) -> Any:
        return _scan(scan, msgspec.json.decode(task, type=ScanTask), special)

    return run


def _scan(job: ScanJob, task: ScanTask, special: SpecialTokenCounter) -> list[float]:
    """Smallest shares among the documents of some spans that the build keeps."""
    recipe, source = job.recipe, job.recipe.sources[task.source]
    assert isinstance(recipe.val_documents, int)
    smallest = Smallest(recipe.val_documents)
    for span in task.spans:
        file = job.files[span.file]
        for batch in read_span(file, source, span, job.limit, Hasher()):
            verdicts = judge(batch.texts, source, recipe, special).verdicts
            kept = np.flatnonzero(verdicts == KEEP)
            if len(kept):
                texts = batch.texts.take(kept).raw()
                smallest.add([share_of(text, recipe.seed) for text in texts])
        check_unchanged(file)
    return smallest.shares
