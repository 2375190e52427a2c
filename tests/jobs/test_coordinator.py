"""The coordinator: in what state its workers are forked from it."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from packline.jobs import coordinator
from packline.jobs.build import Request
from packline.recipe import Recipe, RunOptions


def test_workers_are_forked_with_the_collector_on_and_nothing_to_look_through(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is off while the tokenizer is loaded; a worker without it would keep every cycle of its life."""
    seen: list[tuple[bool, int]] = []

    class Forks:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def run(self) -> None:
            seen.append((gc.isenabled(), len(gc.get_objects())))

    monkeypatch.setattr(coordinator, "Pool", Forks)
    request = Request(Recipe(sources=(), tokenizer="any"), str(tmp_path), RunOptions(), 0.0)
    anything: Any = SimpleNamespace()
    before = len(gc.get_objects())
    gc.disable()
    try:
        coordinator.Coordinator(request, lambda event: None)._run_units(
            anything, anything, anything, workers=1, memory=1 << 30
        )
    finally:
        gc.enable()
        gc.unfreeze()
    [(enabled, tracked)] = seen
    assert enabled
    assert tracked < before / 10
