"""Number of validation documents: a pass before the build turns it into a fraction.

    inputs ──> documents, as the build keeps them ──> share of each text in [0, 1) ──> the n smallest
                                                                        val_share: just above the nth

The split of a document remains a function of its text: `val` if its share is below `val_share`. So equal
texts share a split, and any worker can compute the split of any document alone. The price is one pass over
all inputs before the first unit. If the limit falls among equal texts, all of them go to train; the smaller
size of the validation set is reported at the end.

The share is committed like a unit, create-only, and all that follows is as with a fraction. A resumed build,
and each of several processes, takes it from there, unless an input has another modification time: then it is
computed again, and must be the same if any unit is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from packline.encoders.special_tokens import SpecialTokenCounter
from packline.errors import RecipeError, ResumeMismatch
from packline.fingerprint import Hasher, shares_of
from packline.jobs.engine import run_units
from packline.jobs.folder import StoreFolder
from packline.jobs.identity import digest_inputs
from packline.jobs.job import Opening, ReportProgress, Runner
from packline.jobs.machines import On, Slice
from packline.jobs.plan import Unit
from packline.jobs.text_build import TextBuild
from packline.jobs.text_unit import KEEP, judge, refusing_changes
from packline.sources.files import InputFile
from packline.sources.reader import read_span
from packline.storage.publication import WORK
from packline.store.manifest import to_json

RECORD = f"{WORK}/val_share.json"


class Settled(msgspec.Struct, frozen=True):
    """The share, and the checksum of the state of the inputs from which it was computed."""

    share: float
    states: str


VAL_NOTE = "all inputs are read once to choose the validation documents"


class Shares(msgspec.Struct, frozen=True):
    """Result of a scan: the smallest shares of a unit's texts."""

    shares: list[float]


class TextScan(Opening, msgspec.Struct, frozen=True):
    """Settings of a scan of text."""

    build: TextBuild

    def open(self) -> TextScanner:
        """Runner of the units."""
        return TextScanner(self.build)


class TextScanner(Runner[Unit, Shares]):
    """Finds the smallest shares among the documents that a build of text keeps."""

    def __init__(self, build: TextBuild) -> None:
        self._build = build
        self._special = SpecialTokenCounter(build.tokenizer.special_tokens)

    def run(self, unit: Unit, report: ReportProgress) -> Iterator[Shares]:
        """Read the spans of a unit; write nothing."""
        build, recipe = self._build, self._build.recipe
        source = recipe.sources[unit.source]
        assert isinstance(recipe.val_documents, int)
        smallest = Smallest(recipe.val_documents)
        for span in unit.spans:
            file = build.files[span.file]
            with refusing_changes(file):
                for batch in read_span(file, source, span, recipe.max_document_bytes, Hasher()):
                    verdicts = judge(batch.texts, source, recipe, self._special).verdicts
                    kept = (verdicts == KEEP).nonzero()[0]
                    if len(kept):
                        smallest.add(shares_of(batch.texts.take(kept).hashes(recipe.seed)).tolist())
        yield Shares(smallest.shares)


def settle_text_share(
    build: TextBuild, folder: StoreFolder, *, begun: bool, workers: int, on: On = "local"
) -> float:
    """Value of val_fraction that the `val_documents` of a build of text amounts to; see `settle_share`."""
    sources = build.recipe.sources
    units = [unit for unit in build.units if not sources[unit.source].split]
    scan = TextScan(msgspec.structs.replace(build, units=[]))
    return settle_share(folder, build.files, begun, scan, units, build.recipe.val_documents, workers, on)


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
    folder: StoreFolder,
    files: Sequence[InputFile],
    begun: bool,
    scan: Opening,
    units: Sequence[Unit],
    count: int | msgspec.UnsetType | None,
    workers: int,
    on: On = "local",
) -> float:
    """Share of an earlier run of the same build, or newly computed.

    Args:
        folder: folder of the build.
        files: inputs of the build.
        begun: True if units are committed.
        scan: opens a runner of the units, whose results are `Shares`.
        count: number of validation documents.
        workers: number of processes; 0: this one.
        on: where the units run.

    Raises:
        ResumeMismatch: inputs have changed, and with them the share that committed units were built with.
    """
    states, storage = digest_inputs(files).states, folder.storage
    earlier = _read_settled(folder)
    if earlier is not None and earlier.states == states:
        return earlier.share
    found = run_units(scan, units, Shares, workers=workers, on="local" if isinstance(on, Slice) else on)
    assert isinstance(count, int)
    share = share_below((part.shares for part in found), count)
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
