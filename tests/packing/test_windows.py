"""best_fit in windows of units: each window is best_fit of its units alone, and does not know of others."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packline.errors import RecipeError
from packline.facade import Store
from packline.packing import best_fit
from packline.packing.best_fit import BestFit, make_plan, window_edges, window_of
from packline.packing.options import DocumentFilter
from packline.packing.packer import Counts
from packline.packing.selection import Selection
from packline.packing.stats import compare_packings
from packline.testing import make_store

SHARDS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=9), min_size=1, max_size=7)


def make(folder: str | Path, shards: list[list[int]], **settings: Any) -> Store:
    return make_store(Path(folder) / "store", shards, **settings)


def contents(packer: Any, rows: np.ndarray) -> list[list[tuple[int, int, int]]]:
    """(document, start, length) of every span of these rows."""
    spans = packer.spans(rows)
    whole = list(zip(spans.documents.tolist(), spans.starts.tolist(), spans.lengths.tolist(), strict=True))
    return [whole[a:b] for a, b in zip(spans.offsets[:-1], spans.offsets[1:], strict=True)]


@settings(max_examples=12)
@given(SHARDS, st.integers(2, 14), st.integers(1, 4), st.booleans(), st.booleans(), st.data())
def test_each_window_is_best_fit_of_its_units_alone(
    shards: list[list[int]], seq_len: int, units: int, memory: bool, filtered: bool, data: st.DataObject
) -> None:
    chosen = DocumentFilter(min_tokens=5) if filtered else DocumentFilter()
    with TemporaryDirectory() as folder:
        store = make(folder, shards)
        if not any(length >= (chosen.min_tokens or 0) for shard in shards for length in shard):
            return
        selection = Selection(store, chosen)
        packer = BestFit(selection, seq_len, units, plans={} if memory else None)
        expected: list[list[tuple[int, int, int]]] = []
        first = 0
        counts: list[Counts] = []
        for start in range(0, len(shards), units):
            group = shards[start : start + units]
            kept = [length for shard in group for length in shard if length >= (chosen.min_tokens or 0)]
            numbers = [
                first + place
                for place, length in enumerate(length for shard in group for length in shard)
                if length >= (chosen.min_tokens or 0)
            ]
            first += sum(map(len, group))
            if kept:
                with TemporaryDirectory() as inner:
                    alone = BestFit(Selection(make(inner, [kept])), seq_len)
                    counts.append(alone.counts)
                    for row in contents(alone, np.arange(len(alone))):
                        expected.append([(numbers[place], begin, size) for place, begin, size in row])
        assert len(packer) == len(expected)
        assert contents(packer, np.arange(len(packer))) == expected
        order = np.array(data.draw(st.permutations(range(len(packer)))), np.int64)
        assert contents(packer, order) == [expected[row] for row in order]
        for document in range(len(store.documents)):
            holding = [row for row, spans in enumerate(expected) if document in [span[0] for span in spans]]
            assert packer.rows_of(document).tolist() == holding
        assert packer.counts.rows == len(packer) == sum(one.rows for one in counts)
        assert packer.counts.padding_tokens == sum(one.padding_tokens for one in counts)
        edges = np.cumsum([0, *(one.rows for one in counts)]).tolist()
        assert packer.plan.arrays["rows"].tolist() == edges and packer.settled(None) == edges[-2]
        if seq_len <= store.manifest.tokens:
            _, price = compare_packings(selection, seq_len, ["best_fit"], pack_window=units)
            assert price.counts == packer.counts


@settings(max_examples=8)
@given(SHARDS, SHARDS, st.integers(2, 14), st.integers(1, 4))
def test_later_units_leave_earlier_windows_as_they_are(
    shards: list[list[int]], more: list[list[int]], seq_len: int, units: int
) -> None:
    shards = shards[: len(shards) // units * units]
    if not shards:
        return
    with TemporaryDirectory() as folder, TemporaryDirectory() as other:
        short = BestFit(Selection(make(folder, shards)), seq_len, units)
        long = BestFit(Selection(make(other, shards + more)), seq_len, units)
        rows = np.arange(len(short))
        assert contents(short, rows) == contents(long, rows)


def test_windows_follow_the_numbers_of_units_and_slices() -> None:
    assert [window_of(f"web-{n:06d}", 3)[1] for n in range(7)] == [0, 0, 0, 1, 1, 1, 2]
    assert window_of("web-000002-000004", 3) == ("web-000002", 1)
    assert window_of("my-web-000002", 3) != window_of("web-000002", 3)


def test_a_unit_without_selected_documents_counts(tmp_path: Path) -> None:
    splits = ["train", "val", "val", "train", "train"]
    store = make(tmp_path, [[3], [4], [5], [6], [7]], splits=splits)
    assert window_edges(Selection(store), 2) == [0, 1, 2, 3]  # units 0; 3; 4
    assert window_edges(Selection(store, DocumentFilter(split="all")), 2) == [0, 2, 4, 5]


def test_windows_of_a_store_that_grows_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []

    def counted(blocks: Any, start: int, stop: int, seq_len: int) -> Any:
        made.append((start, stop))
        return make_plan(blocks, start, stop, seq_len)

    monkeypatch.setattr(best_fit, "make_plan", counted)
    shards = [[5, 9, 3], [7, 30], [2, 2, 8], [4], [1, 1]]
    memory: dict[Any, Any] = {}
    for size in range(1, 6):
        store = make(tmp_path / str(size), shards[:size])
        packer = BestFit(Selection(store), 10, 2, plans=memory)
        alone = BestFit(Selection(store), 10, 2, plans={})
        rows = np.arange(len(alone))
        assert contents(packer, rows) == contents(alone, rows)
    assert made.count((0, 5)) == 1 + 4  # by the memory, and by each of those alone
    (held,) = memory.values()
    assert list(held) == [(0, 5), (5, 9), (9, 11)]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"pack_window": 0}, "pack_window is 0: expected at least 1"),
        ({"pack_window": 2, "packing": "concat"}, "pack_window is 2, and packing is concat"),
        ({"pack_window": 2, "shuffle_documents": 1}, "units in stored order"),
    ],
)
def test_windows_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    store = make(tmp_path, [[5, 9, 3]])
    with pytest.raises(RecipeError, match=problem):
        store.rows(8, **{"packing": "best_fit", **options})


def test_by_hand() -> None:
    """Two windows lose what one would share: 6 and 4 in one row, or in two."""
    with TemporaryDirectory() as folder:
        selection = Selection(make(folder, [[6], [4]]))
        prices = {price.name: price for price in compare_packings(selection, 10, pack_window=1)}
    assert list(prices)[:3] == ["concat", "best_fit", "best_fit, 1 unit"]
    assert (prices["best_fit"].counts.rows, prices["best_fit"].padding) == (1, 0)
    assert (prices["best_fit, 1 unit"].counts.rows, prices["best_fit, 1 unit"].padding) == (2, 0.5)
