"""Limits of documents and tokens: when enough is committed, and at what cost it is known."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.jobs.builds import SRC

from packline.jobs.begun import Stream, Unit
from packline.jobs.limits import InOrder, LimitWatch
from packline.recipe import Recipe, Source
from packline.store.ledger import Ledger
from packline.store.manifest import Receipt, StreamReceipt


def make_work(shapes: list[int], documents: int | None, tokens: int | None) -> Any:
    """A plan: 0 is a plain unit, another number a stream of so many slices."""
    recipe = Recipe(
        sources=(Source(inputs=("a",)),), tokenizer="t", limit_documents=documents, limit_tokens=tokens
    )
    units: list[Unit | Stream] = [
        Stream(f"a-{place:06d}", 0, 0, 1, 1) if slices else Unit(f"a-{place:06d}", 0, (), 1)
        for place, slices in enumerate(shapes)
    ]
    return SimpleNamespace(recipe=recipe, units=units)


def names_of(shapes: list[int]) -> list[str]:
    """Work units in document order."""
    return [
        f"a-{place:06d}-{number:06d}" if slices else f"a-{place:06d}"
        for place, slices in enumerate(shapes)
        for number in range(max(slices, 1))
    ]


def receipt_of(name: str, tokens: int) -> Receipt:
    return Receipt(name, "a", (), (), (), Ledger(documents=1, tokens=tokens), 0, True)


class Counting(dict[str, Receipt]):
    """A dict that counts how often it is asked."""

    asked = 0

    def __contains__(self, key: object) -> bool:
        self.asked += 1
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Receipt:
        self.asked += 1
        return super().__getitem__(key)


@given(
    shapes=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    documents=st.none() | st.integers(1, 12),
    tokens=st.none() | st.integers(1, 60),
    order=st.randoms(use_true_random=False),
)
def test_a_watch_says_what_all_receipts_say_whatever_the_order_of_commits(
    shapes: list[int], documents: int | None, tokens: int | None, order: Any
) -> None:
    work, names = make_work(shapes, documents, tokens), names_of(shapes)
    sizes = {name: 1 + number * 7 % 11 for number, name in enumerate(names)}
    ends = [f"end a-{place:06d}" for place, slices in enumerate(shapes) if slices]
    events = [*names, *ends]
    order.shuffle(events)
    receipts: dict[str, Receipt] = {}
    streams: dict[str, StreamReceipt] = {}
    watch = LimitWatch(work, receipts, streams)
    for event in events:
        if event.startswith("end "):
            name = event.removeprefix("end ")
            streams[name] = StreamReceipt("a", "a.txt", shapes[int(name.removeprefix("a-"))], "")
        else:
            receipts[event] = receipt_of(event, sizes[event])
        # Counted anew by hand: units without a gap, each stream up to the slices that are there.
        reached, left_documents, left_tokens = False, documents, tokens
        for name in names:
            place, _, number = name.removeprefix("a-").partition("-")
            first_of_its = not number or int(number) == 0
            before = f"a-{int(place) - 1:06d}"
            if first_of_its and int(place) and shapes[int(place) - 1] and before not in streams:
                break
            if name not in receipts or reached:
                break
            if left_documents is not None:
                left_documents -= 1
                reached = left_documents <= 0
            if left_tokens is not None:
                left_tokens -= sizes[name]
                reached = reached or left_tokens <= 0
        assert watch.reached() == reached
    assert list(InOrder(work, receipts, streams).advance()) == names


def test_asking_after_each_of_many_commits_looks_at_each_unit_a_few_times() -> None:
    count = 2000
    shapes = [0] * count
    receipts = Counting()
    watch = LimitWatch(make_work(shapes, None, 10**9), receipts, {})
    for name in names_of(shapes):
        dict.__setitem__(receipts, name, receipt_of(name, 1))
        assert not watch.reached()
    assert receipts.asked <= 4 * count


COUNT_READS = """
import sys
reads = 0
def hook(event, arguments):
    global reads
    if event == "open" and "/receipts/" in str(arguments[0]) and "r" in str(arguments[1]):
        reads += 1
sys.addaudithook(hook)
from packline.api import make_recipe
from packline.jobs.build_job import run_build
from packline.recipe import RunOptions, load_recipe
recipe, _ = load_recipe(sys.argv[1])
options = RunOptions(workers=int(sys.argv[3]), engine="tokenizers")
run_build(recipe, sys.argv[2], options)
print(reads)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_limit_costs_a_few_reads_of_each_receipt(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Callable[..., Path], workers: int
) -> None:
    count = 40
    lines = [f"tokenizer = '{tokenizer_json}'", "limit_tokens = 1000000"]
    for number in range(count):
        write_jsonl(tmp_path / f"in/{number}.jsonl", [f"text {number}"])
        lines.append(f"[[sources]]\nname = 's{number}'\ninputs = ['{tmp_path}/in/{number}.jsonl']")
    (tmp_path / "recipe.toml").write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, "-c", COUNT_READS, tmp_path / "recipe.toml", tmp_path / "out", str(workers)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(SRC)},
    )
    assert int(done.stdout) <= 6 * count
