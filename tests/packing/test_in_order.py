"""concat and pad: equal to cutting one long list of tokens, or each document, whatever the shards, the
filters and the order; and damage of an index is refused.
"""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.packing.counting import (
    SEQ_LENS,
    SHARDS,
    Place,
    all_tokens,
    check_conservation,
    check_rows_of,
    counted,
    made,
    tokens_of,
)
from tests.store.stores import relist

from packline.errors import CorruptStore
from packline.facade import Store
from packline.packing import offsets
from packline.packing.in_order import Concat, Pad
from packline.packing.offsets import ShardRange
from packline.packing.options import OVERFLOWS, DocumentFilter
from packline.packing.selection import Selection
from packline.testing import make_store

SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "min_tokens": st.integers(0, 4),
        "max_tokens": st.integers(8, 30),
        "shuffle_documents": st.integers(0, 2**63 - 1),
    },
)


def reference(run: list[Place], seq_len: int, min_tail_fraction: float) -> list[list[Place]]:
    """Cut a list."""
    rows = [run[start : start + seq_len] for start in range(0, len(run), seq_len)]
    if rows and len(rows[-1]) < seq_len and len(rows[-1]) < min_tail_fraction * seq_len:
        rows.pop()
    return rows


@given(
    SHARDS,
    SEQ_LENS,
    SETTINGS,
    st.sampled_from([0, 0.25, 0.5, 1]),
    st.booleans(),
    st.lists(st.integers(0, 99), max_size=9),
)
@example([[16] * 16, [16] * 17], 4, {"shuffle_documents": 1}, 0.5, False, [])  # ends of steps, of rows
@example([[1], [1], [1], [1]], 2, {}, 0.5, True, [])
def test_rows_are_those_of_one_long_list(
    shards: list[list[int]],
    seq_len: int,
    settings: dict[str, int],
    min_tail: float,
    mapped: bool,
    some: list[int],
) -> None:
    flat = [length for shard in shards for length in shard]
    least, most = settings.get("min_tokens", 0), settings.get("max_tokens", 10**9)
    if not any(least <= length <= most for length in flat):
        return
    with made(shards, mapped=mapped) as store:
        selection = Selection(store, DocumentFilter(**settings))  # type: ignore[arg-type]
        order = selection.documents(np.arange(len(selection))).tolist()
        expected_order = [number for number, length in enumerate(flat) if least <= length <= most]
        if "shuffle_documents" not in settings:
            assert order == expected_order
        assert sorted(order) == expected_order
        run = [(document, place) for document in order for place in range(flat[document])]
        packer = Concat(selection, seq_len, min_tail_fraction=min_tail)
        expected = reference(run, seq_len, min_tail)
        assert len(packer) == len(expected)
        assert all_tokens(packer) == expected
        lengths = {document: flat[document] for document in order}
        assert packer.counts == counted(packer, seq_len, lengths)
        check_conservation(packer, lengths)
        check_rows_of(packer, len(flat))
        check_following(packer, run, flat)
        some = [row % len(packer) for row in some] if len(packer) else []
        spans = packer.spans(np.array(some, np.int64))
        assert tokens_of(spans) == [expected[row] for row in some] and len(spans) == len(some)
        assert {spans.offsets.dtype, spans.documents.dtype, spans.starts.dtype, spans.lengths.dtype} == {
            np.dtype(np.int64)
        }


def check_following(packer: Concat, run: list[Place], flat: list[int]) -> None:
    """The document that begins right behind a row, or -1."""
    following = packer.spans(np.arange(len(packer))).following
    assert following is not None
    for row, found in enumerate(following.tolist()):
        behind = run[(row + 1) * packer.seq_len :][:1]
        assert found == (behind[0][0] if behind and behind[0][1] == 0 else -1)


@pytest.mark.parametrize("settings", [{}, {"shuffle_documents": 7}, {"min_tokens": 50}])
def test_counts_over_several_blocks_and_both_ways_to_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, int]
) -> None:
    rng = np.random.default_rng(5)
    shards = [rng.integers(1, 400, size).tolist() for size in (700, 1, 333)]
    store = make_store(tmp_path / "store", shards)
    held = Concat(Selection(store, DocumentFilter(**settings)), 64)  # type: ignore[arg-type]
    expected = all_tokens(held)
    flat = [length for shard in shards for length in shard]
    lengths = {number: n for number, n in enumerate(flat) if n >= settings.get("min_tokens", 0)}
    monkeypatch.setattr(offsets, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr("packline.packing.selection.BLOCK", 48)
    mapped = Concat(Selection(Store(store.path), DocumentFilter(**settings)), 64)  # type: ignore[arg-type]
    assert all_tokens(mapped) == expected
    assert mapped.counts == held.counts == counted(held, 64, lengths)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("what", ["lengths", "offsets"])
def test_an_index_that_contradicts_itself_is_refused(tmp_path: Path, mapped: bool, what: str) -> None:
    store = make_store(tmp_path / "store", [[30, 20, 25]])
    path = store.path / "train-made-000000.idx"
    data = bytearray(path.read_bytes())
    at = 34 + 4 if what == "lengths" else 34 + 3 * 4 + 8
    data[at] ^= 16
    path.write_bytes(data)
    with pytest.raises(CorruptStore, match=r"train-made-000000.idx: expected the checksum"):
        Concat(Selection(Store(store.path)), 30).spans(np.array([0, 1, 2]))
    relist(store.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offsets, "IN_MEMORY_BYTES", 0 if mapped else offsets.IN_MEMORY_BYTES)
        packer = Concat(Selection(Store(store.path)), 30)
        with pytest.raises(CorruptStore, match=r"expected an index whose lengths agree .*, found") as caught:
            packer.spans(np.array([0, 1, 2]))
    assert "packline verify" in caught.value.hint


def documents_alone(order: list[int], flat: list[int], seq_len: int, overflow: str) -> list[list[Place]]:
    """A document a row, token by token."""
    rows = []
    for document in order:
        tokens = [(document, place) for place in range(flat[document])]
        pieces = [tokens[start : start + seq_len] for start in range(0, len(tokens), seq_len)]
        if overflow == "truncate":
            pieces = pieces[:1]
        elif overflow == "drop" and len(pieces) > 1:
            pieces = []
        rows += pieces
    return rows


@given(
    SHARDS,
    SEQ_LENS,
    st.sampled_from(OVERFLOWS),
    st.none() | st.integers(0, 99),
    st.integers(0, 3),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_rows_are_those_of_documents_cut_one_by_one(
    shards: list[list[int]],
    seq_len: int,
    overflow: str,
    seed: int | None,
    least: int,
    mapped: bool,
    random: Random,
) -> None:
    flat = [length for shard in shards for length in shard]
    if max(flat) < least:
        return
    with made(shards, mapped=mapped) as store:
        selection = Selection(store, DocumentFilter(shuffle_documents=seed, min_tokens=least))
        order = selection.documents(np.arange(len(selection))).tolist()
        packer = Pad(selection, seq_len, overflow=overflow)  # type: ignore[arg-type]
        expected = documents_alone(order, flat, seq_len, overflow)
        assert len(packer) == len(expected)
        assert all_tokens(packer) == expected
        lengths = {document: flat[document] for document in order}
        assert packer.counts == counted(packer, seq_len, lengths, overflow)
        assert packer.spans(np.arange(len(packer))).following is None
        check_conservation(packer, lengths)
        check_rows_of(packer, len(flat))
        rows = [*range(len(packer))] * 2
        random.shuffle(rows)
        assert tokens_of(packer.spans(np.array(rows, np.int64))) == [expected[row] for row in rows]


@pytest.mark.parametrize("held", [0, 32 << 20])
def test_no_wrong_place_comes_out_of_any_damaged_number_of_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(offsets, "IN_MEMORY_BYTES", held)
    lengths = [3, 9, 1, 7]
    store = make_store(tmp_path / "store", [lengths])
    path = store.path / "train-made-000000.idx"
    data = path.read_bytes()
    owners = [place for place, length in enumerate(lengths) for _ in range(length)]
    refused = 0
    numbers = [(34 + 4 * one, "<i") for one in range(4)] + [(50 + 8 * one, "<q") for one in range(4)]
    for at, form in numbers:
        for change in (-(2**20), -2, 2, 2**20):
            damaged = bytearray(data)
            struct.pack_into(form, damaged, at, struct.unpack_from(form, data, at)[0] + change)
            path.write_bytes(damaged)
            found = ShardRange(relist(store.path), [0])
            try:
                where, before = found.find(np.arange(20))
            except CorruptStore:
                refused += 1
                continue
            assert where.tolist() == owners
            assert before.tolist() == [sum(lengths[:place]) for place in owners]
    assert refused == 4 * len(numbers)


def test_the_sizes_of_the_shards_decide_whether_starts_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Store = make_store(tmp_path / "store", [[5, 1], [2, 2, 2]])
    for most, held in ((8 * 5, True), (8 * 5 - 1, False)):
        monkeypatch.setattr(offsets, "IN_MEMORY_BYTES", most)
        found = ShardRange(store, [0, 1])
        found.at(np.array([4, 0]))
        assert ("_begins" in vars(found)) is held
