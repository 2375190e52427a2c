"""Keep open what was opened last, with a bound over all stores of a process.

    shard.tokens ── opened, kept with the shard ──> Recent ── too many ──> the earliest is closed

Opened data is an attribute of its owner, so reading it again costs one attribute access; only opening passes
through here. Closed data is opened again on next use. Arrays that were returned stay valid: they hold their
map themselves.

There is no lock, since appending to and taking from a `deque` are atomic: threads may share it, and a process
that is forked while another thread opens something cannot inherit a lock that is never released. Owners are
held weakly.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any


class Recent:
    """The most recently opened data, the earliest first.

    Args:
        most: number of entries that stay open.

    >>> class Owner: ...
    >>> recent, owner = Recent(1), Owner()
    >>> owner.a = 1; recent.add(owner, ["a"])
    >>> owner.b = 2; recent.add(owner, ["b"])
    >>> vars(owner)
    {'b': 2}
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._opened: deque[tuple[weakref.ref[Any], tuple[str, ...]]] = deque()

    def __len__(self) -> int:
        return len(self._opened)

    def add(self, owner: object, names: Iterable[str]) -> None:
        """Record newly opened attributes of an owner; close the earliest if there are too many."""
        self._opened.append((weakref.ref(owner), tuple(names)))
        while len(self._opened) > self.most:
            self._release()

    def clear(self) -> None:
        """Close everything."""
        while self._opened:
            self._release()

    def _release(self) -> None:
        try:
            held, names = self._opened.popleft()
        except IndexError:  # another thread was faster
            return
        if (owner := held()) is not None:
            for name in names:
                owner.__dict__.pop(name, None)


def opened(open_it: Callable[[Any], dict[str, Any]], recent: Recent) -> Any:
    """Descriptor for an attribute that is opened on first access, and then is an ordinary attribute.

    Args:
        open_it: returns attributes of the owner by name, including this one.
        recent: closes them again.
    """
    return _Opened(open_it, recent)


class _Opened:
    """Descriptor without `__set__`: the owner's own `__dict__` takes precedence, at no cost."""

    def __init__(self, open_it: Callable[[Any], dict[str, Any]], recent: Recent) -> None:
        self._open, self._recent, self._name = open_it, recent, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, kind: type) -> Any:
        if owner is None:
            return self
        found = self._open(owner)
        owner.__dict__.update(found)
        if not isinstance(found, Kept):
            self._recent.add(owner, found)
        return found[self._name]


class Kept(dict[str, Any]):
    """Opened data so small that it stays, since it holds no map."""


MAPS = Recent(1 << 14)
"""Maps of files. Linux allows a process 65,530, and a loader's process may hold others."""
TABLES = Recent(64)
"""Tables of provenance, a few megabytes each."""
