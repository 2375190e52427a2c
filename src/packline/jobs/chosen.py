"""Some units of a job, by their places in its plan: each is made when it is used, and none is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar, overload

import numpy as np

from packline.jobs.job import WorkUnit

U = TypeVar("U", bound=WorkUnit)
U_co = TypeVar("U_co", bound=WorkUnit, covariant=True)
BLOCK = 1 << 10
"""Units that are made at a time."""


class Chosen(Sequence[U_co], Generic[U_co]):
    """Units at some places of a plan.

    Args:
        make: makes the units at given places.
        places: places in the plan, int64 `[N]`.
        is_stream: True for each stream of the plan, bool `[U]`; None if there are none.

    >>> from packline.jobs.job import Numbered
    >>> units = Chosen(lambda places: map(Numbered.of, places.tolist()), np.array([2, 5, 7]))
    >>> [unit.name for unit in units], units[-1].number, [unit.number for unit in units[:2]]
    (['000002', '000005', '000007'], 7, [2, 5])
    """

    def __init__(
        self,
        make: Callable[[np.ndarray], Iterable[U_co]],
        places: np.ndarray,
        is_stream: np.ndarray | None = None,
    ) -> None:
        self._make, self.places, self._is_stream = make, places, is_stream

    def ordered(self, indices: np.ndarray) -> Chosen[U_co]:
        """Units at these indices, in their order."""
        return Chosen(self._make, self.places[indices], self._is_stream)

    @property
    def is_stream(self) -> np.ndarray:
        """True for each stream, bool `[N]`."""
        if self._is_stream is None:
            return np.zeros(len(self.places), bool)
        found: np.ndarray = self._is_stream[self.places]
        return found

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> U_co: ...

    @overload
    def __getitem__(self, index: slice) -> list[U_co]: ...

    def __getitem__(self, index: int | slice) -> U_co | list[U_co]:
        if isinstance(index, slice):
            return list(self._make(self.places[index]))
        place = range(len(self))[index]
        return next(iter(self._make(self.places[place : place + 1])))

    def __iter__(self) -> Iterator[U_co]:
        for start in range(0, len(self), BLOCK):
            yield from self._make(self.places[start : start + BLOCK])


def stream_indices(units: Sequence[WorkUnit]) -> list[int]:
    """Indices of the streams among units."""
    if isinstance(units, Chosen):
        found: list[int] = np.flatnonzero(units.is_stream).tolist()
        return found
    return [index for index, unit in enumerate(units) if unit.is_stream]


def chosen(units: Sequence[U]) -> Chosen[U]:
    """The same units of a job that runs in slices, which must know their places."""
    assert isinstance(units, Chosen), type(units)
    return units
