"""A crash at any boundary of writing, run again: the same bytes as if nothing had happened (promise 2)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.jobs.builds import build, digests, set_sizes
from tests.laws.reference import Contents, write_corpus
from tests.storage.kills import Crash as Crash

from packline.errors import OutOfSpace

NUMBERS = [f"{number} " * (number % 11 + 1) for number in range(60)]
CORPUS: Contents = [
    ("jsonl", NUMBERS[:20], True),
    ("jsonl.zst", NUMBERS[20:50], True),
    ("parquet", NUMBERS[:20], False),
]


class Breaker:
    """Counts calls that change names on the disk, and breaks off at one of them."""

    def __init__(
        self, patch: pytest.MonkeyPatch, names: list[str], error: Callable[[], BaseException]
    ) -> None:
        self.calls = 0
        self.break_at = -1
        self.after = False
        self._error = error
        for name in names:
            patch.setattr(os, name, self._wrap(getattr(os, name)))

    def _wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            number, self.calls = self.calls, self.calls + 1
            if self.break_at < 0 or number < self.break_at:
                return function(*args, **options)
            if number == self.break_at and self.after:
                function(*args, **options)
            raise self._error()

        return call

    def reset(self, break_at: int, *, after: bool = False) -> None:
        self.calls, self.break_at, self.after = 0, break_at, after


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder of the test alone: what others leave there takes no calls."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


RECIPES: dict[str, dict[str, Any]] = {
    "plain": {"val_fraction": 0.3},
    "limited": {"limit_tokens": 400},
}


@pytest.mark.parametrize(
    ("recipe", "after"),
    [
        ("plain", True),
        ("limited", False),
        pytest.param("plain", False, marks=pytest.mark.long(only=True)),
        pytest.param("limited", True, marks=pytest.mark.long(only=True)),
    ],
)
def test_a_crash_at_every_rename_and_removal_leaves_no_trace(
    recipe: str, after: bool, tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(tmp_path / "in", CORPUS)
    set_sizes(monkeypatch, 1000, 200)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    build(tmp_path / "first", tmp_path / "in", tokenizer_json)  # it fills the caches
    breaker = Breaker(monkeypatch, ["link", "replace", "unlink"], Crash)
    build(tmp_path / "clean", tmp_path / "in", tokenizer_json, **RECIPES[recipe])
    expected, calls = digests(tmp_path / "clean"), breaker.calls
    assert calls > 15
    for number in range(calls):
        out = tmp_path / f"out-{number}"
        breaker.reset(number, after=after)
        try:
            build(out, tmp_path / "in", tokenizer_json, **RECIPES[recipe])
            crashed = False  # clean() is the last thing; it may pass over what it cannot delete
        except Crash:
            crashed = True
        assert crashed
        breaker.reset(-1)
        build(out, tmp_path / "in", tokenizer_json, **RECIPES[recipe])
        assert digests(out) == expected, f"call {number} of {calls}"


def test_crashes_one_after_another_come_to_the_same_end(
    tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(tmp_path / "in", CORPUS)
    set_sizes(monkeypatch, 700, 200)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    breaker = Breaker(monkeypatch, ["link", "replace"], Crash)
    build(tmp_path / "clean", tmp_path / "in", tokenizer_json)
    crashes, done = 0, 0
    while True:
        breaker.reset(11)  # the start takes three, so each run commits one unit: its files and the receipt
        try:
            build(tmp_path / "out", tmp_path / "in", tokenizer_json)
            break
        except Crash:
            crashes += 1
            committed = len(list((tmp_path / "out/receipts").glob("*.json")))
            assert committed > done, "a run that was long enough for a unit committed none"
            done = committed
    assert crashes >= 3
    assert digests(tmp_path / "out") == digests(tmp_path / "clean")


def test_a_disk_that_fills_up_at_any_sync_is_told_and_nothing_is_lost(
    tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(tmp_path / "in", CORPUS)
    set_sizes(monkeypatch, 700, 200)
    breaker = Breaker(monkeypatch, ["fsync"], lambda: OSError(errno.ENOSPC, "No space left on device"))
    build(tmp_path / "clean", tmp_path / "in", tokenizer_json)
    expected, calls = digests(tmp_path / "clean"), breaker.calls
    for number in range(0, calls, 5):
        out = tmp_path / f"out-{number}"
        breaker.reset(number)
        with pytest.raises(OutOfSpace, match="is full") as caught:
            build(out, tmp_path / "in", tokenizer_json)
        assert str(out) in caught.value.message and "run the same command again" in caught.value.hint
        breaker.reset(-1)
        build(out, tmp_path / "in", tokenizer_json)
        assert digests(out) == expected, f"sync {number} of {calls}"
