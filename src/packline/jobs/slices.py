"""Slices: several processes share the units of a job without a coordinator.

    units in the order of a keyed permutation      0  1  2  3  4  5  6  7  8  9 10 11
    slice 0 of 3 begins with                       ^        ^        ^        ^
    then with what has no receipt, from the end    other slices are gone, late or slow

Every slice plans the same units. A worker looks for a unit's receipt before it runs it, so slices that help
each other meet in the middle, and at most the units that are just being run are run twice. A unit that runs
twice has the same bytes. No clock is compared, so nothing depends on whether a machine is alive.

A compressed file is read from its start by one process, so no slice helps with the streams of another. What
then has no receipt is left, and the slice that sees the last receipt publishes. In an object store the slices
look at the names of receipts only, and the one that becomes the driver of the build reads them and publishes,
while others wait: a thousand slices would otherwise read all receipts.
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
        units: number of planned units, done or not.

    >>> shares = SliceShares(5, Slice(0, 2))
    >>> [shares.owns(number) for number in range(5)].count(True)
    3
    """

    def __init__(self, units: int, slice: Slice) -> None:
        self._slice = slice
        self._order: list[int] = Permutation(units, KEY)(np.arange(units)).tolist() if units else []
        """Place of each unit in the common order."""

    def owns(self, number: int) -> bool:
        """True for a unit that the slice begins with, by its place in the plan."""
        return self._order[number] % self._slice.count == self._slice.number

    def own(self, units: Sequence[U]) -> list[U]:
        """Units that the slice begins with, in their order."""
        return sorted((unit for unit in units if self.owns(unit.number)), key=self._place)

    def help(self, units: Sequence[U]) -> list[U]:
        """Units of other slices to help with: their last ones first, and each slice begins elsewhere."""
        others = sorted((unit for unit in units if not unit.is_stream), key=self._place, reverse=True)
        start = len(others) * self._slice.number // self._slice.count
        return others[start:] + others[:start]

    def _place(self, unit: WorkUnit) -> int:
        return self._order[unit.number]


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
        what = f"{len(left) - streams:,} units" + (f" and {streams:,} compressed files" if streams else "")
        raise UnitsLeft(
            f"slice {slice} is done; {what} are left to other slices",
            hint="the slice that commits the last unit publishes; if one was lost, run its command again",
        )
