"""Place of a job, as its caller chooses: this machine, a Ray cluster, or one slice of several.

No byte of a result depends on it. Loading this loads nothing heavy.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from packline.errors import RecipeError


class Ray(msgspec.Struct, frozen=True):
    """A Ray cluster.

    >>> Ray("10.0.0.7:6379").address
    '10.0.0.7:6379'
    """

    address: str | None = None
    """Address of the cluster; None: `$RAY_ADDRESS`, or else a cluster that is started on this machine."""
    slices: int | None = None
    """Number of tasks; by default four for each task that fits on the nodes at the same time."""


class Slice(msgspec.Struct, frozen=True):
    """One of several processes that share the units of a job without a coordinator.

    >>> Slice(3, 8)
    Slice(number=3, count=8)
    """

    number: int
    """Number of the process, from 0."""
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


On = Literal["local", "ray"] | Ray | Slice
"""Place of a job; `"ray"` is `Ray()`."""


def parse_slice(text: str) -> Slice:
    """Slice from its number and the number of slices."""
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if found is None or not int(found[1]) < int(found[2]):
        raise RecipeError(
            f"the slice is {text!r}: expected i/n, with i from 0 to n-1",
            hint="for example --slice 0/4, --slice 1/4, --slice 2/4 and --slice 3/4 on four machines",
        )
    return Slice(int(found[1]), int(found[2]))


def check_on(on: On) -> On:
    """The same place; a RecipeError if it cannot exist."""
    if isinstance(on, Slice):
        return parse_slice(str(on))
    if not isinstance(on, Ray) and on not in ("local", "ray"):
        raise RecipeError(f"on is {on!r}: expected 'local', 'ray', packline.Ray(...) or packline.Slice(i, n)")
    return on


@contextmanager
def temporary_folder(on: On) -> Iterator[Path]:
    """Folder for files that all processes of a job read or write, deleted at the end.

    On a cluster it is in `$PACKLINE_SHARED`, if set, which several machines must have in common.
    """
    parent = None if on == "local" else os.environ.get("PACKLINE_SHARED")
    with tempfile.TemporaryDirectory(prefix="packline-", dir=parent) as name:
        yield Path(name)


def cluster_executor(on: On) -> Any:
    """Executor of a cluster; None for a job that runs on this machine."""
    if on == "ray":
        on = Ray()
    if not isinstance(on, Ray):
        return None
    from packline.jobs.ray_tasks import RayTasks

    return RayTasks(on)
