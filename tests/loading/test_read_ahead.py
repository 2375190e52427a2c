"""Reading ahead: every block of a block shuffle is announced once, before its rows, a window ahead."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loading.numbered import NumberedRows, rows_in

from packline.loading.loader import Loader
from packline.testing import make_store


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
