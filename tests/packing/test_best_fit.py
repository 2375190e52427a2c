"""best_fit: as many rows as plain best fit decreasing, every token once, plans that fit their store; in
windows of units, each is best_fit of its units alone, and does not know of others.
"""

from __future__ import annotations

import bisect
import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.packing.counting import check_conservation, check_rows_of, counted

from packline.errors import CorruptStore, RecipeError
from packline.packing import best_fit, cache
from packline.packing.best_fit import (
    BestFit,
    Fit,
    best_fit_counts,
    fit,
    make_plan,
    plan_settings,
    window_edges,
    window_of,
)
from packline.packing.cache import Plan, plan_fingerprint, save_plan
from packline.packing.options import DocumentFilter
from packline.packing.packer import Counts
from packline.packing.selection import Selection
from packline.packing.stats import compare_packings
from packline.testing import make_store


def naive_room(pieces: list[int], seq_len: int) -> list[int]:
    """The room that is left in each row by best fit decreasing, a piece at a time; sorted."""
    rooms: list[int] = []
    for piece in sorted(pieces, reverse=True):
        place = bisect.bisect_left(rooms, piece)
        room = rooms.pop(place) if place < len(rooms) else seq_len
        bisect.insort(rooms, room - piece)
    return rooms


def rows_of_fit(fitted: Fit) -> list[list[tuple[int, int]]]:
    """The rows of a fit as lists of (rank, length), in plain Python."""
    rows: list[list[tuple[int, int]]] = []
    firsts, runs, bases, each, lengths = (column.tolist() for column in fitted)
    for group in range(len(runs) - 1):
        for row in range(firsts[group], firsts[group + 1]):
            rows.append([])
            for run in range(runs[group], runs[group + 1]):
                first = bases[run] + row * each[run]
                rows[-1] += [(rank, lengths[run]) for rank in range(first, first + each[run])]
    return rows


def blocks_of(lengths: list[int] | np.ndarray, size: int) -> list[np.ndarray]:
    """Lengths in blocks."""
    return [np.array(lengths[start : start + size], np.int64) for start in range(0, len(lengths), size)]


@st.composite
def packings(draw: st.DrawFn, most: int = 60) -> tuple[list[int], int]:
    """Lengths of documents and a row length: mixed, all equal, few kinds, longer than rows."""
    seq_len = draw(st.integers(2, 40))
    one = st.one_of(
        st.integers(1, 3 * seq_len),
        st.integers(1, max(1, seq_len // 3)),
        st.sampled_from([1, seq_len - 1, seq_len, seq_len + 1, 2 * seq_len, (seq_len + 1) // 2]),
    )
    one = draw(st.sampled_from([one, one, st.just(draw(one)), st.sampled_from([draw(one), draw(one)])]))
    return draw(st.lists(one, min_size=1, max_size=most)), seq_len


@given(packings(most=300))
@example(([10] * 50, 10))
@example(([1] * 1000, 7))
@example(([6, 6, 6, 2, 2, 2, 2, 2], 10))
def test_a_fit_leaves_the_room_that_best_fit_decreasing_leaves(case: tuple[list[int], int]) -> None:
    lengths, seq_len = case
    pieces = [1 + (length - 1) % seq_len for length in lengths]
    rows = rows_of_fit(fit(np.bincount(pieces), seq_len))
    assert sorted(seq_len - sum(length for _, length in row) for row in rows) == naive_room(pieces, seq_len)
    # Every piece once: ranks count pieces from the longest on.
    held = dict(piece for row in rows for piece in row)
    assert [held[rank] for rank in range(len(pieces))] == sorted(pieces, reverse=True)
    assert sum(map(len, rows)) == len(pieces)
    assert all(row == sorted(row) for row in rows)


@pytest.mark.parametrize("seq_len", [1000, 1024, 2500])
def test_many_pieces_fit_as_tightly_as_one_by_one(seq_len: int) -> None:
    generator = np.random.default_rng(seq_len)
    pieces = np.clip(generator.lognormal(4.5, 1.2, 20_000), 1, seq_len).astype(int)
    fitted = fit(np.bincount(pieces), seq_len)
    assert int(fitted.firsts[-1]) == len(naive_room(pieces.tolist(), seq_len))
    assert len(fitted.each) < len(pieces) / 2


@given(packings(), st.integers(1, 9), st.integers(1, 9))
def test_the_order_is_all_pieces_longest_first_whatever_the_blocks(
    case: tuple[list[int], int], read: int, sort: int
) -> None:
    lengths, seq_len = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(best_fit, "SORT_BLOCK", sort)
        plan = make_plan(blocks_of(lengths, read), 0, len(lengths), seq_len)
    rests = [length % seq_len for length in lengths]
    expected = sorted((place for place, rest in enumerate(rests) if rest), key=lambda place: -rests[place])
    assert plan.arrays["order"].tolist() == expected
    full = [place for place, length in enumerate(lengths) for _ in range(length // seq_len)]
    assert plan.arrays["full"].tolist() == full


def test_rows_of_more_than_65536_tokens_are_sorted_as_well() -> None:
    seq_len = 70_000
    lengths = np.random.default_rng(1).integers(1, 3 * seq_len, 5_000)
    lengths[:200] = [65_535, 65_536, 65_537, 1] * 50
    plan = make_plan([lengths], 0, len(lengths), seq_len)
    rests = lengths % seq_len
    expected = np.lexsort((np.arange(len(rests)), -rests))
    assert plan.arrays["order"].tolist() == expected[rests[expected] > 0].tolist()


def spans_of(packer: BestFit, rows: np.ndarray | Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """(document, start, length) of every span of these rows."""
    spans = packer.spans(np.array(rows, np.int64))
    columns = zip(spans.documents.tolist(), spans.starts.tolist(), spans.lengths.tolist(), strict=True)
    flat, offsets = list(columns), spans.offsets.tolist()
    return [flat[start:stop] for start, stop in itertools.pairwise(offsets)]


def check_packing(packer: BestFit, lengths: dict[int, int], documents: int) -> None:
    """Every law of a packing of these documents (number to length), from its spans alone."""
    seq_len, count = packer.seq_len, len(packer)
    check_conservation(packer, lengths)
    check_rows_of(packer, documents)
    assert packer.counts == counted(packer, seq_len, lengths) == best_fit_counts(packer.selection, seq_len)
    assert packer.counts.dropped_tokens == 0 and not (packer.spans(np.arange(count)).starts % seq_len).any()
    pieces = [length % seq_len for length in lengths.values() if length % seq_len]
    assert count == sum(n // seq_len for n in lengths.values()) + len(naive_room(pieces, seq_len))


@settings(max_examples=40)
@given(packings(), st.data())
@example(([7] * 20, 7), None)
@example(([1] * 50, 7), None)
@example(([29, 7, 14, 1], 7), None)
def test_every_token_is_in_one_row_and_every_row_is_found(case: tuple[list[int], int], data: Any) -> None:
    lengths, seq_len = case
    cuts, chosen = 0, {}
    if data is not None:
        cuts = data.draw(st.integers(0, len(lengths) - 1))
        chosen = data.draw(
            st.fixed_dictionaries(
                {}, optional={"shuffle_documents": st.integers(0, 9), "min_tokens": st.just(3)}
            )
        )
    kept = {n: length for n, length in enumerate(lengths) if length >= chosen.get("min_tokens", 0)}
    if not kept:
        return
    with TemporaryDirectory() as folder:
        shards = [shard for shard in (lengths[:cuts], lengths[cuts:]) if shard]
        store = make_store(Path(folder) / "store", shards)
        packer = BestFit(Selection(store, DocumentFilter(**chosen)), seq_len)
        check_packing(packer, kept, len(lengths))
        rows = np.random.default_rng(0).integers(0, len(packer), 30)
        assert spans_of(packer, rows) == [spans_of(packer, [row])[0] for row in rows]
        assert len(packer.spans(np.empty(0, np.int64))) == 0


def test_in_a_row_the_longest_piece_comes_first_and_equal_ones_by_place(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [[2, 6, 2, 6, 2, 13, 6, 2, 2, 10]])
    packer = BestFit(Selection(store), 10)
    rows = spans_of(packer, range(len(packer)))
    assert rows[:2] == [[(5, 0, 10)], [(9, 0, 10)]]
    assert sorted(rows[2:]) == [
        [(1, 0, 6), (5, 10, 3)],
        [(3, 0, 6), (0, 0, 2), (2, 0, 2)],
        [(6, 0, 6), (4, 0, 2), (7, 0, 2)],
        [(8, 0, 2)],
    ]


def fingerprint_of(store: Any) -> str:
    return plan_fingerprint(store, plan_settings(Selection(store), 10))


LENGTHS = [[5, 9, 3, 3, 8, 30, 1], [4, 4, 4, 2]]


def test_a_small_selection_writes_nothing(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", LENGTHS)
    before = sorted(store.path.iterdir())
    packer = BestFit(Selection(store), 10)
    assert packer.plan.folder is None and sorted(store.path.iterdir()) == before


@pytest.fixture
def never_made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """After it is called, making a plan is an error."""

    def forbid() -> None:
        def refuse(*_: Any) -> None:
            raise AssertionError("the plan was made again")

        monkeypatch.setattr(best_fit, "make_plan", refuse)

    return forbid


def test_a_large_selection_writes_its_plan_and_uses_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, never_made: Any
) -> None:
    store = make_store(tmp_path / "store", LENGTHS)
    monkeypatch.setattr(cache, "LARGE", 8 * 5)
    first = BestFit(Selection(store), 10)
    assert first.plan.folder is not None and first.plan.folder.parent == store.path / "plans"
    assert store.verify().ok
    never_made()
    again = BestFit(Selection(store), 10)
    check_packing(again, dict(enumerate(LENGTHS[0] + LENGTHS[1])), 11)
    with pytest.raises(AssertionError, match="made again"):
        BestFit(Selection(store), 9)
    with pytest.raises(AssertionError, match="made again"):
        BestFit(Selection(store, DocumentFilter(shuffle_documents=1)), 10)


@pytest.mark.parametrize("place", [10_000, "swapped"])
def test_a_plan_that_lies_with_matching_checksums_is_caught_when_a_row_is_read(
    tmp_path: Path, place: int | str
) -> None:
    store, plans = make_store(tmp_path / "store", LENGTHS), tmp_path / "plans"
    packer = BestFit(Selection(store), 10, plans=plans)
    order = packer.plan.arrays["order"].copy()
    first = int(packer.plan.arrays["ranks"][0])  # behind those of full rows
    if place == "swapped":
        order[first], order[-1] = order[-1], order[first]
    else:
        order[first] = place
    assert packer.plan.folder is not None
    shutil.rmtree(packer.plan.folder)
    save_plan(
        packer.plan.folder,
        fingerprint_of(store),
        Plan({**packer.plan.arrays, "order": order}, packer.plan.facts),
    )
    wrong = BestFit(Selection(store), 10, plans=plans)
    with pytest.raises(CorruptStore, match="does not fit the lengths"):
        wrong.spans(np.arange(len(wrong)))
    with pytest.raises(CorruptStore, match="does not fit the lengths"):
        for document in range(11):
            wrong.rows_of(document)


SHARDS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=9), min_size=1, max_size=7)


@settings(max_examples=12)
@given(SHARDS, st.integers(2, 14), st.integers(1, 4), st.booleans(), st.booleans(), st.data())
def test_each_window_is_best_fit_of_its_units_alone(
    shards: list[list[int]], seq_len: int, units: int, memory: bool, filtered: bool, data: st.DataObject
) -> None:
    chosen = DocumentFilter(min_tokens=5) if filtered else DocumentFilter()
    with TemporaryDirectory() as folder:
        store = make_store(Path(folder) / "store", shards)
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
                    alone = BestFit(Selection(make_store(Path(inner) / "store", [kept])), seq_len)
                    counts.append(alone.counts)
                    for row in spans_of(alone, np.arange(len(alone))):
                        expected.append([(numbers[place], begin, size) for place, begin, size in row])
        assert len(packer) == len(expected)
        assert spans_of(packer, np.arange(len(packer))) == expected
        order = np.array(data.draw(st.permutations(range(len(packer)))), np.int64)
        assert spans_of(packer, order) == [expected[row] for row in order]
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
        short = BestFit(Selection(make_store(Path(folder) / "store", shards)), seq_len, units)
        long = BestFit(Selection(make_store(Path(other) / "store", shards + more)), seq_len, units)
        rows = np.arange(len(short))
        assert spans_of(short, rows) == spans_of(long, rows)


def test_windows_follow_the_numbers_of_units_and_slices() -> None:
    assert [window_of(f"web-{n:06d}", 3)[1] for n in range(7)] == [0, 0, 0, 1, 1, 1, 2]
    assert window_of("web-000002-000004", 3) == ("web-000002", 1)
    assert window_of("my-web-000002", 3) != window_of("web-000002", 3)


def test_a_unit_without_selected_documents_counts(tmp_path: Path) -> None:
    splits = ["train", "val", "val", "train", "train"]
    store = make_store(tmp_path / "store", [[3], [4], [5], [6], [7]], splits=splits)
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
        store = make_store(tmp_path / str(size), shards[:size])
        packer = BestFit(Selection(store), 10, 2, plans=memory)
        alone = BestFit(Selection(store), 10, 2, plans={})
        rows = np.arange(len(alone))
        assert spans_of(packer, rows) == spans_of(alone, rows)
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
    store = make_store(tmp_path / "store", [[5, 9, 3]])
    with pytest.raises(RecipeError, match=problem):
        store.rows(8, **{"packing": "best_fit", **options})


def test_by_hand() -> None:
    """Two windows lose what one would share: 6 and 4 in one row, or in two."""
    with TemporaryDirectory() as folder:
        selection = Selection(make_store(Path(folder) / "store", [[6], [4]]))
        prices = {price.name: price for price in compare_packings(selection, 10, pack_window=1)}
    assert list(prices)[:3] == ["concat", "best_fit", "best_fit, 1 unit"]
    assert (prices["best_fit"].counts.rows, prices["best_fit"].padding) == (1, 0)
    assert (prices["best_fit, 1 unit"].counts.rows, prices["best_fit, 1 unit"].padding) == (2, 0.5)
