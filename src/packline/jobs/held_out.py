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

import msgspec
import numpy as np

from packline.errors import RecipeError, ResumeMismatch
from packline.jobs.folder import StoreFolder
from packline.jobs.job import Session, WorkUnit
from packline.sources.files import InputFile
from packline.storage.local import publish_bytes
from packline.store.manifest import to_json

RECORD = "val_share.json"


class Settled(msgspec.Struct, frozen=True):
    """The share, and the state of the inputs from which it was computed."""

    share: float
    modified: tuple[str, ...]


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
