"""Slices: several processes share the units of a job without a coordinator.

    units in the order of a keyed permutation      0  1  2  3  4  5  6  7  8  9 10 11
    slice 0 of 3 begins with                       ^        ^        ^        ^
    then with what has no receipt, from the end    other slices are gone, late or slow

Every slice plans the same units. A worker looks for a unit's receipt before it runs it, so slices that help
each other meet in the middle, and at most the units that are just being run are run twice. A unit that runs
twice has the same bytes. No clock is compared, so nothing depends on whether a machine is alive.

A compressed file is read from its start by one process, so no slice helps with the streams of another. What
then has no receipt is left, and the slice that sees the last receipt publishes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from packline.errors import UnitsLeft
from packline.jobs.job import Job, Session, WorkUnit
from packline.jobs.on import Slice
from packline.permutation import Permutation

U = TypeVar("U", bound=WorkUnit)
KEY = 15


class SliceShares:
    """Division of a job's units among its slices.

    Args:
        names: names of all planned units, done or not, in order.

    >>> shares = SliceShares(["a", "b", "c", "d", "e"], Slice(0, 2))
    >>> len(shares.places), sum(shares.owns(name) for name in "abcde")
    (5, 3)
    """

    def __init__(self, names: Sequence[str], slice: Slice) -> None:
        self._slice = slice
        images = Permutation(len(names), KEY)(np.arange(len(names))).tolist() if names else []
        self.places = dict(zip(names, images, strict=True))
        """Place of each unit in the common order."""

    def owns(self, name: str) -> bool:
        """True if the slice begins with this unit."""
        return self.places[name] % self._slice.count == self._slice.number

    def own(self, units: Sequence[U]) -> list[U]:
        """Units that the slice begins with, in their order."""
        mine = (unit for unit in units if self.owns(unit.name))
        return sorted(mine, key=lambda unit: self.places[unit.name])

    def help(self, units: Sequence[U]) -> list[U]:
        """Units of other slices to help with: their last ones first, and each slice begins elsewhere."""
        others = [unit for unit in units if not unit.is_stream]
        others.sort(key=lambda unit: -self.places[unit.name])
        start = len(others) * self._slice.number // self._slice.count
        return others[start:] + others[:start]


def run_slice(job: Job[U, Any, Any], session: Session, todo: Sequence[U], slice: Slice) -> None:
    """Run a slice's units, then help with others.

    Raises:
        UnitsLeft: other slices have yet to finish units; the job is not published.
    """
    shares = SliceShares(job.planned(), slice)
    session.run(shares.own(todo), job.progress, job.take)
    if left := job.look_again():
        session.run(shares.help(left), job.progress, job.take)
        left = job.look_again()
    if left:
        streams = sum(unit.is_stream for unit in left)
        what = f"{len(left):,} of {len(shares.places):,} units"
        raise UnitsLeft(
            f"slice {slice} is done; {what} are left to other slices"
            + (f", {streams:,} of them compressed files" if streams else ""),
            hint="the slice that commits the last unit publishes; if one was lost, run its command again",
        )
