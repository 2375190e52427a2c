"""Facts about a tokenizer, kept on disk: computing them takes half of the start of a short build.

    $XDG_CACHE_HOME/packline/tokenizers/KEY    16 bytes of checksum, then the fact in msgpack

A fact is a function of the tokenizer's text and of the code that computes it, and checksums of both are in
its key: another tokenizer, or another packline, never reads it. A fact that is missing or damaged is computed
again; a folder that cannot be written is ignored. The folder may be deleted at any time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, update_wrapper
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import msgspec

from packline.fingerprint import Hasher
from packline.storage.local import user_cache

SMALL = 1 << 18
"""Bytes of a tokenizer below which computing is faster than reading."""
MOST = 60
"""Number of facts that are kept."""

T = TypeVar("T")
P = ParamSpec("P")


class keep_last(Generic[P, T]):
    """Cache of one call, for arguments of megabytes: they are compared, which takes less than hashing them.

    >>> keep_last(len)([1, 2])
    2
    """

    def __init__(self, compute: Callable[P, T]) -> None:
        update_wrapper(self, compute)
        self._compute = compute
        self._last: tuple[object, T] | None = None

    def __call__(self, *args: P.args, **named: P.kwargs) -> T:
        last = self._last
        if last is None or last[0] != (args, named):
            self._last = last = (args, named), self._compute(*args, **named)
        return last[1]

    def cache_clear(self) -> None:
        """Forget the call."""
        self._last = None


def remember(what: str, text: bytes | str, kind: type[T], compute: Callable[[], T]) -> T:
    """Return a fact about a tokenizer: from disk, or computed and then kept.

    Args:
        what: name of the fact, and everything but the text that it depends on.
        text: the tokenizer's text.
        kind: type of the fact, which msgspec can decode.
        compute: called if the fact is not known; its errors are not kept.

    >>> remember("size", b"{}", int, lambda: 2)
    2
    """
    if len(text) < SMALL:
        return compute()
    key = _digest(_digest_of(text), what.encode(), _code()).hex()
    with suppress(OSError, RuntimeError, msgspec.MsgspecError):
        kept = (user_cache() / "tokenizers" / key).read_bytes()
        if kept[:16] == _digest(memoryview(kept)[16:]):
            return msgspec.msgpack.decode(memoryview(kept)[16:], type=kind)
    fact = compute()
    with suppress(OSError, RuntimeError):
        _keep(user_cache() / "tokenizers", key, msgspec.msgpack.encode(fact))
    return fact


def _keep(folder: Path, key: str, data: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    waiting = folder / f".{key}.{os.getpid()}"
    try:
        waiting.write_bytes(_digest(data) + data)
        os.replace(waiting, folder / key)
    finally:
        waiting.unlink(missing_ok=True)
    facts = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in facts[MOST:]:
        path.unlink(missing_ok=True)


def _digest(*parts: Any) -> bytes:
    hasher = Hasher()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return bytes(hasher.digest())


@keep_last
def _digest_of(text: bytes | str) -> bytes:
    return _digest(text.encode() if isinstance(text, str) else text)


@lru_cache(maxsize=1)
def _code() -> bytes:
    """Checksum of the modules of this package, which compute the facts."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return _digest(*(path.read_bytes() for path in files))
