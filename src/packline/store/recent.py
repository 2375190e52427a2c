"""Keep open what was opened last, and no more: a bound over all stores of a process.

    shard.tokens ── opened, kept with the shard ──> Recent ── too many ──> the earliest is let go

What is open is an attribute of its owner, so reading it again costs what reading an attribute costs; only
opening passes here. What is let go is opened again when it is next asked for. Arrays that were handed out
stay valid: they hold their map themselves.

There is no lock, since appending to and taking from a `deque` are atomic: threads may share it, and a
process that is forked while another thread opens something cannot inherit a lock that nobody releases.
Owners are held weakly.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any


class Recent:
    """What was opened last, the earliest first.

    Args:
        most: how many stay open.

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
        """Note what was just opened, in these attributes; let go of the earliest if there are too many."""
        self._opened.append((weakref.ref(owner), tuple(names)))
        while len(self._opened) > self.most:
            self._release()

    def clear(self) -> None:
        """Let go of everything."""
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
    """An attribute that is opened when it is first read, and then is an attribute like any other.

    Args:
        open_it: gives attributes of the owner by name, this one among them.
        recent: lets go of them again.
    """
    return _Opened(open_it, recent)


class _Opened:
    """A descriptor without `__set__`: what is in the owner's own `__dict__` goes before it, at no cost."""

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
    """What was opened and is so small that it stays, for it holds no map."""


MAPS = Recent(1 << 14)
"""Maps of files. Linux allows a process 65,530, and a loader's process may hold some for others."""
TABLES = Recent(64)
"""Tables of provenance, a few megabytes each."""
