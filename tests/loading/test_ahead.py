"""Batches ahead of the trainer: in order, errors in their place, no thread left behind, no fork that hangs;
steps planned together; and every block of a block shuffle announced once, before its rows, a window ahead.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loading.numbered import NumberedRows, rows_in
from tests.store.stores import relist

from packline import Loader, Mixture
from packline.errors import CorruptStore
from packline.facade import Store
from packline.loading import ahead
from packline.loading.ahead import make_ahead
from packline.packing import offsets
from packline.packing.batch import ALL_FIELDS
from packline.testing import make_store

LOADING = """
from packline.loading.ahead import make_ahead
batches = make_ahead(lambda step: step, 0, 100, ahead=2)
next(batches)
time.sleep(0.01)
print(next(batches), end="")  # made by the thread
"""


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "packline-prefetch"]


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    assert threads() == []
    yield
    gc.collect()
    assert threads() == []


@settings(max_examples=25)
@given(st.integers(0, 5), st.integers(0, 20), st.integers(0, 6))
def test_results_come_in_order(start: int, count: int, ahead: int) -> None:
    made = make_ahead(lambda number: number * 3, start, start + count, ahead=ahead)
    assert list(made) == [number * 3 for number in range(start, start + count)]
    assert threads() == []


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_no_more_is_made_ahead_than_was_asked_for(ahead: int) -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        return number

    taken = make_ahead(make, 0, 100, ahead=ahead)
    for number in range(5):
        assert next(taken) == number
        deadline = time.monotonic() + 60
        while len(made) < number + 1 + ahead and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.01)
        assert made == list(range(number + 1 + ahead))
    taken.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("ahead", [0, 1, 50])
@pytest.mark.parametrize("error", [ValueError("damaged"), KeyboardInterrupt()])
def test_an_error_comes_out_in_the_place_of_its_result(ahead: int, error: BaseException) -> None:
    def make(number: int) -> int:
        if number == 7:
            raise error
        return number

    made = make_ahead(make, 0, 20, ahead=ahead)
    assert [next(made) for _ in range(7)] == list(range(7))
    with pytest.raises(type(error)) as caught:
        next(made)
    assert caught.value is error
    with pytest.raises(StopIteration):
        next(made)


def test_the_thread_ends_with_the_iterator() -> None:
    made = make_ahead(lambda number: number, 0, 1000, ahead=2)
    assert threads() == []  # none before the first result is wanted
    assert next(made) == 0
    assert len(threads()) == 1
    made.close()  # type: ignore[attr-defined]
    assert threads() == []
    for number in make_ahead(lambda number: number, 0, 1000, ahead=2):
        if number == 3:
            break
    del number
    gc.collect()
    assert threads() == []


def test_the_thread_works_for_a_caller_who_is_away_and_not_for_one_who_waits() -> None:
    made = make_ahead(lambda number: (number, threading.current_thread()), 0, 20_000, ahead=2)
    here = threading.current_thread()

    def makers(count: int, seconds: float) -> list[threading.Thread]:
        found = []
        for _ in range(count):
            found.append(next(made)[1])
            time.sleep(seconds)
        return found

    assert next(made) == (0, here)
    time.sleep(0.002)
    assert here not in makers(10, 0.002)
    waiting = [next(made) for _ in range(15_000)]
    assert [number for number, _ in waiting] == list(range(11, 15_011))
    assert here in {maker for _, maker in waiting}
    time.sleep(0.002)
    next(made)  # nobody was asked for it before it was wanted
    time.sleep(0.002)
    assert here not in makers(10, 0.002)
    made.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("taken", [1, 3, 20])
def test_a_forked_child_makes_the_rest_itself(taken: int) -> None:
    made = make_ahead(lambda number: number * number, 0, 20, ahead=4)
    before = [next(made) for _ in range(taken)]
    with warnings.catch_warnings():
        # Newer Pythons warn of forks beside threads: the case that is tested here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        wrong = 1
        try:
            rest = list(made)
            wrong = int(before + rest != [number * number for number in range(20)])
        finally:
            os._exit(wrong)
    deadline = time.monotonic() + 60
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if done == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the forked child hangs")
    assert os.waitstatus_to_exitcode(done[1]) == 0
    assert before + list(made) == [number * number for number in range(20)]  # and the parent goes on


def test_a_program_ends_without_a_word() -> None:
    """If something keeps `__main__`, its objects go after the names of the modules that they use."""
    keep = "ctypes.pythonapi.Py_IncRef(ctypes.py_object(sys.modules[__name__]))"
    program = f"import ctypes, sys, time\n{LOADING}\n{keep}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1", "")


class Announced(NumberedRows):
    """Rows that record what is announced, and check that what is read was."""

    settled = 1 << 40
    """Plans each step by itself."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.ranges: list[tuple[int, int]] = []
        self.strict = True

    def will_need(self, start: int, stop: int) -> None:
        self.ranges.append((start, stop))

    def plan(self, rows: Any) -> Any:
        if self.strict:
            there = {row for start, stop in self.ranges for row in range(start, stop)}
            assert set(rows.tolist()) <= there
        return super().plan(rows)


@given(
    st.integers(1, 90), st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.integers(1, 3), st.data()
)
def test_every_block_is_announced_once_before_its_rows(
    count: int, block_rows: int, window_blocks: int, batch_size: int, epochs: int, data: st.DataObject
) -> None:
    rows = Announced(count)
    if count * epochs < batch_size:
        return
    loader = Loader(
        rows,
        batch_size=batch_size,
        order="blocks",
        block_rows=block_rows,
        window_blocks=window_blocks,
        epochs=epochs,
        prefetch=0,
    )
    window, given_rows = block_rows * window_blocks, 0
    for batch in loader:
        given_rows += len(rows_in(batch))
        announced = sum(stop - start for start, stop in rows.ranges)
        assert announced <= given_rows + window + 2 * block_rows * epochs + batch_size
    blocks = -(-count // block_rows)
    for epoch in range(epochs):
        of_epoch = rows.ranges[epoch * blocks : (epoch + 1) * blocks]
        if len(of_epoch) == blocks:
            assert sorted(of_epoch) == [
                (first, min(first + block_rows, count)) for first in range(0, count, block_rows)
            ]


def test_a_resumed_run_announces_the_window_that_it_is_in() -> None:
    rows = Announced(100)
    loader = Loader(rows, batch_size=5, order="blocks", block_rows=4, window_blocks=5, prefetch=0)
    loader.load_state_dict({**loader.state_dict(), "step": 9})
    next(iter(loader))
    assert rows.ranges[0] == (40, 44) and rows.ranges[-1] == (68, 72)


def test_random_access_and_other_orders_announce_nothing() -> None:
    rows = Announced(100)
    rows.strict = False
    Loader(rows, batch_size=5, order="blocks", prefetch=0).batch(3)
    for shuffle in (True, False):
        next(iter(Loader(rows, batch_size=5, prefetch=0, shuffle=shuffle)))
    assert rows.ranges == []


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"packing": "pad"},
        {"packing": "pad", "overflow": "split"},
        {"packing": "best_fit", "pack_window": 1},
        {"min_tokens": 5},
    ],
)
def test_the_files_of_the_rows_are_announced(
    tmp_path: Path, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [[5, 9, 3, 12], [7, 30], [2, 2, 8, 20, 4]]
    store = make_store(tmp_path / "store", lengths)
    rows = store.rows(8, **settings)  # type: ignore[arg-type]
    asked: dict[str, set[int]] = {}

    def advise(descriptor: int, start: int, size: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        asked.setdefault(name, set()).update(range(start, start + size))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    for first in range(0, len(rows), 3):
        asked.clear()
        if first == 0 or settings.get("packing") != "best_fit":
            wanted = np.arange(first, min(first + 3, len(rows)))
            rows.will_need(first, int(wanted[-1]) + 1)
        else:
            wanted = np.arange(len(rows))  # a window is announced with its first rows
            rows.will_need(0, len(rows))
        spans = rows.spans(wanted)
        for document, start, length in zip(spans.documents, spans.starts, spans.lengths, strict=True):
            shard, inner = store.locate(int(document))
            begin = int(shard.offset_of(inner)) + int(start) * 2
            assert asked[f"{shard.entry.name}.bin"] >= set(range(begin, begin + int(length) * 2))


def test_shuffled_documents_are_not_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path / "store", [[5, 9, 3, 12], [7, 30]])
    monkeypatch.setattr(os, "posix_fadvise", None)
    store.rows(8, shuffle_documents=1).will_need(0, 3)
    store.rows(8, packing="best_fit").will_need(0, 3)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Store]:
    """Two stores of several shards; one shard of the second has a loss mask."""
    folder = tmp_path_factory.mktemp("stores")
    lengths = np.random.default_rng(3).integers(1, 90, (6, 40)).tolist()
    plain = make_store(folder / "plain", lengths[:3])
    masked = make_store(folder / "masked", lengths[3:]).shards[1].entry
    loss = np.random.default_rng(1).integers(0, 2, masked.tokens, np.uint8)
    loss.tofile(folder / "masked" / f"{masked.name}.loss")
    return plain, relist(folder / "masked")


SOURCES: list[dict[str, Any]] = [
    {"packing": "concat"},
    {"packing": "concat", "shuffle_documents": 4},
    {"packing": "best_fit"},
    {"packing": "pad", "overflow": "split"},
    {"packing": "pad", "overflow": "split", "pad_id": 3},
]


@settings(max_examples=15, deadline=None)
@given(
    data=st.data(), boundary_loss=st.booleans(), batch_size=st.integers(1, 7), world_size=st.integers(1, 2)
)
def test_batches_of_planned_steps_are_those_of_single_ones(
    stores: tuple[Store, Store], data: st.DataObject, boundary_loss: bool, batch_size: int, world_size: int
) -> None:
    chosen = data.draw(st.lists(st.integers(0, 2 * len(SOURCES) - 1), min_size=1, max_size=3, unique=True))
    length = data.draw(st.sampled_from((30, 64)))
    rows = [
        (stores[number % 2].rows(length, boundary_loss=boundary_loss, **SOURCES[number // 2]), weight + 1, 9)
        for weight, number in enumerate(chosen)
    ]
    loader = Loader(
        Mixture(rows),
        batch_size=batch_size * world_size,
        world_size=world_size,
        fields=ALL_FIELDS,
        prefetch=0,
    )
    step, stride = 0, data.draw(st.integers(1, 3))
    for _ in range(data.draw(st.integers(1, 30))):
        if data.draw(st.integers(0, 9)) == 0:
            step = data.draw(st.integers(0, len(loader) - 1))
        if step >= len(loader):
            break
        expected = loader.batch(step)
        whole = data.draw(st.booleans())
        found = loader.next_batch(step) if whole else loader.compact_batch(step).arrays()
        assert list(found) == list(expected)
        for name, values in found.items():
            assert values.dtype == expected[name].dtype and np.array_equal(values, expected[name]), name
        step += stride


def test_steps_are_planned_together_and_only_once(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[int] = []
    plan = ahead.plan_steps

    def counted(loader: Loader, steps: range) -> Any:
        planned.extend(steps)
        return plan(loader, steps)

    monkeypatch.setattr(ahead, "plan_steps", counted)
    rows = [(store.rows(30), 1, 9) for store in stores]
    loader = Loader(Mixture(rows), batch_size=4, prefetch=2)
    assert len(list(loader)) == len(loader) > 3 * ahead.STEPS
    assert planned == list(range(1, len(loader)))  # the first is not known to have a next one


def test_a_damaged_index_stops_at_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "IN_MEMORY_BYTES", 0)  # so that indexes are read where they are used
    store = make_store(tmp_path / "store", [[40] * 50, [40] * 50])
    path = store.path / f"{store.shards[1].entry.name}.idx"
    index = bytearray(path.read_bytes())
    index[40] ^= 1
    path.write_bytes(index)
    loader = Loader(store.rows(40, packing="pad"), batch_size=4, shuffle=False, prefetch=0)
    with pytest.raises(CorruptStore):
        for number, batch in enumerate(loader):
            assert number < 50 // 4 and len(batch["tokens"]) == 4
    assert loader.step == 50 // 4
