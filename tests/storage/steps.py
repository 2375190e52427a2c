"""Steps of writing: a record of them, and a failure at any of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def recorded() -> Iterator[list[tuple[str, int, Path | None]]]:
    """Steps in order: `sync` or `move`, the inode of the file or folder, and the target of a move."""
    steps: list[tuple[str, int, Path | None]] = []
    sync, replace, rename, link = os.fsync, os.replace, os.rename, os.link

    def moving(move: Callable[..., None]) -> Callable[..., None]:
        def call(source: Any, target: Any, **options: Any) -> None:
            steps.append(("move", os.stat(source).st_ino, Path(target)))
            move(source, target, **options)

        return call

    def syncing(descriptor: int) -> None:
        steps.append(("sync", os.fstat(descriptor).st_ino, None))
        sync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", syncing)
        patch.setattr(os, "replace", moving(replace))
        patch.setattr(os, "rename", moving(rename))
        patch.setattr(os, "link", moving(link))
        yield steps


@contextmanager
def failing_at(number: int, error: BaseException, *names: str) -> Iterator[None]:
    """Raise the error at this call of these functions of `os`, counted from 0, and at all later ones."""
    calls = iter(range(1 << 30))

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if next(calls) >= number:
                raise error
            return function(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(os, name, wrap(getattr(os, name)))
        yield
