"""A process that ends between any two calls of its storage, or of `os`: nothing is called after it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from packline.storage.local import LocalFolder
from packline.storage.objects import ObjectFolder

CALLS = ("read", "facts", "walk", "list", "put_new", "delete")


class Crash(BaseException):
    """The end of the process."""


@contextmanager
def _hooked(hook: Callable[[str], None]) -> Iterator[None]:
    """Call a hook before every call of a storage, and before every single file that is created."""

    def wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            hook(f"{name} {arguments[1] if len(arguments) > 1 else ''}")
            return function(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for kind in (LocalFolder, ObjectFolder):
            for name in CALLS:
                patch.setattr(kind, name, wrap(name, getattr(kind, name)))
        from packline.storage import local

        patch.setattr(local, "_link_new", wrap("create", local._link_new))
        patch.setattr(ObjectFolder, "_put", wrap("create", ObjectFolder._put))
        yield


@contextmanager
def storage_calls() -> Iterator[list[str]]:
    calls: list[str] = []
    with _hooked(calls.append):
        yield calls


@contextmanager
def killed_at(number: int) -> Iterator[None]:
    """End the process at this call, counted from 0: it and all later ones raise."""
    made = 0

    def hook(name: str) -> None:
        nonlocal made
        made += 1
        if made > number:
            raise Crash(name)

    with _hooked(hook):
        yield


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
