"""Rows: what a trainer asks for, from every packing, in this process and in others; and rows that are cut."""

from __future__ import annotations

import multiprocessing
import pickle
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.packing.counting import (
    SHARDS,
    all_tokens,
    check_conservation,
    check_rows_of,
    counted,
    made,
)

from packline.errors import RecipeError, StoreError
from packline.facade import Store
from packline.packing import cache, offsets
from packline.packing.batch import ALL_FIELDS, CompactBatch
from packline.packing.options import PACKINGS, Packing
from packline.packing.rows import Rows
from packline.packing.selection import Selection
from packline.testing import EOD_ID, document_tokens, make_store

SETTINGS: list[dict[str, Any]] = [
    {},
    {"shuffle_documents": 3, "boundary_loss": True},
    {"min_tokens": 4},
    {"packing": "best_fit"},
    {"packing": "best_fit", "pack_window": 2},
    {"packing": "pad"},
    {"packing": "pad", "overflow": "split", "pad_id": 7},
    {"packing": "pad", "overflow": "drop"},
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    rng = np.random.default_rng(11)
    shards = [rng.integers(1, 60, size).tolist() for size in (50, 3, 120)]
    return make_store(tmp_path_factory.mktemp("rows") / "store", shards)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_row_is_what_its_spans_say(store: Store, settings: dict[str, Any]) -> None:
    rows = store.rows(16, **settings)
    pad_id = settings.get("pad_id", EOD_ID)
    assert isinstance(rows, Rows)
    for row in rows:
        held: list[int] = []
        segments: list[int] = []
        positions: list[int] = []
        for number, span in enumerate(row.spans):
            document = document_tokens(span.document, len(store.documents[span.document]))
            held += document[span.start : span.start + span.length]
            segments += [number] * span.length
            positions += range(span.length)
        padding = 16 - len(held)
        assert row.tokens.tolist() == held + [pad_id] * padding
        assert row.segment_ids.tolist() == segments + [-1] * padding
        assert row.position_ids.tolist() == positions + list(range(padding))
        assert row.loss_mask.tolist() == [int(target != -100) for target in row.targets.tolist()]
        assert len(row) == 16
        edges = np.cumsum([0, *(span.length for span in row.spans), *([padding] if padding else [])])
        assert row.cu_seqlens().tolist() == edges.tolist()
        assert row.max_seqlen == np.diff(edges).max()


def test_with_boundary_loss_nothing_but_the_very_end_is_without_a_target(store: Store) -> None:
    rows = store.rows(16, boundary_loss=True, min_tail_fraction=0)
    targets = rows.read(np.arange(len(rows)))["targets"].reshape(-1)[: rows.selection.tokens]
    tokens = rows.read(np.arange(len(rows)))["tokens"].reshape(-1)[: rows.selection.tokens]
    assert targets[:-1].tolist() == tokens[1:].tolist()
    assert targets[-1] == -100


@pytest.mark.parametrize("settings", SETTINGS)
def test_any_integer_finds_its_row(store: Store, settings: dict[str, Any]) -> None:
    rows = store.rows(16, **settings)
    count = len(rows)
    batch = rows.read(np.arange(count))
    for index in (0, -1, -count, count - 1, np.int64(2), np.uint8(1), np.int32(-2)):
        row = rows[index]
        assert row.index == range(count)[int(index)]
        assert np.array_equal(row.tokens, batch["tokens"][row.index])
        assert np.array_equal(row.targets, batch["targets"][row.index])
    for index in (count, -count - 1, np.int64(10**12)):
        with pytest.raises(IndexError, match=rf"row {int(index):,} of {count}"):
            rows[index]


@given(
    SHARDS,
    st.integers(2, 90),
    st.sampled_from(PACKINGS),
    st.booleans(),
    st.booleans(),
    st.none() | st.integers(0, 3),
)
def test_a_row_by_itself_is_that_row_of_a_batch(
    shards: list[list[int]],
    seq_len: int,
    packing: Packing,
    mapped: bool,
    boundary_loss: bool,
    shuffle: int | None,
) -> None:
    """One row is found, laid out and copied in a shorter way than several, also where it has many spans."""
    with made(shards, mapped=mapped) as store:
        seq_len = min(seq_len, store.manifest.tokens)
        if seq_len < 2:
            return
        rows = store.rows(seq_len, packing=packing, boundary_loss=boundary_loss, shuffle_documents=shuffle)
        # Twice each, so that no batch is of one row.
        twice = np.arange(len(rows)).repeat(2)
        batch, spans = rows.read(twice, ALL_FIELDS), rows.spans(twice)
        for number in range(len(rows)):
            alone, at = rows.spans(np.array([number])), slice(*spans.offsets[2 * number :][:2].tolist())
            for name in ("documents", "starts", "lengths"):
                found, wanted = getattr(alone, name), getattr(spans, name)[at]
                assert found.dtype == wanted.dtype and found.tolist() == wanted.tolist()
            assert (alone.following is None) == (spans.following is None)
            if alone.following is not None and spans.following is not None:
                assert alone.following.tolist() == [spans.following[2 * number]]
            row, read = rows[number], rows.read(np.array([number]), ALL_FIELDS)
            for name in ALL_FIELDS:
                wanted = batch[name][2 * number]
                assert read[name].dtype == wanted.dtype and np.array_equal(read[name][0], wanted)
                assert np.array_equal(getattr(row, name), wanted)


def test_a_row_reads_what_it_is_asked_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, asked = store.rows(16), []
    read = CompactBatch.of

    def counted(planned: Any, fields: Any) -> CompactBatch:
        asked.append(tuple(fields))
        return read(planned, fields)

    monkeypatch.setattr(CompactBatch, "of", counted)
    row = rows[3]
    assert asked == [] and len(row) == 16
    assert row.tokens is row.tokens and asked == [("tokens",)]
    tokens = row.tokens
    assert row.targets is row.targets and row.position_ids.shape == row.segment_ids.shape == (16,)
    assert asked == [("tokens",), ("tokens", "targets"), ("position_ids", "segment_ids")]
    assert row.loss_mask.shape == (16,) and len(asked) == 4 and row.tokens is tokens
    again = pickle.loads(pickle.dumps(rows[5]))
    assert again.index == 5 and np.array_equal(again.targets, rows[5].targets)


def test_a_batch_names_rows_as_it_likes(store: Store) -> None:
    rows = store.rows(16)
    whole = rows.read(np.arange(len(rows)), ["tokens"])["tokens"]
    for chosen in ([3, 3, 0, 7], [], [len(rows) - 1]):
        for dtype in (np.int64, np.int32, np.uint16):
            batch = rows.read(np.array(chosen, dtype), ("tokens", "loss_mask"))
            assert list(batch) == ["tokens", "loss_mask"]
            assert batch["tokens"].shape == (len(chosen), 16)
            assert np.array_equal(batch["tokens"], whole[chosen])
    with pytest.raises(IndexError, match="row -1 of"):
        rows.read(np.array([0, -1]))
    with pytest.raises(IndexError, match=f"row {len(rows)} of {len(rows)}"):
        rows.spans(np.array([0, len(rows)]))
    with pytest.raises(IndexError, match="rows of dtype float64: expected integers"):
        rows.read(np.array([1.0]))


def test_documents_outside_the_store(store: Store) -> None:
    rows = store.rows(16)
    count = len(store.documents)
    for document in (-1, count):
        with pytest.raises(IndexError, match=f"document {document} of {count}"):
            rows.rows_of(document)
    assert rows.rows_of(np.int64(0)).tolist() == rows.rows_of(0).tolist()  # type: ignore[arg-type]


def test_a_fingerprint_says_what_is_in_the_rows(store: Store, tmp_path: Path) -> None:
    import shutil

    copy = shutil.copytree(store.path, tmp_path / "elsewhere")
    assert Store(copy).rows(16).fingerprint == store.rows(16).fingerprint
    assert store.rows(16, pad_id=EOD_ID, min_tokens=0).fingerprint == store.rows(16).fingerprint
    others = [store.rows(length) for length in (16, 17)]
    others += [store.rows(16, **settings) for settings in SETTINGS[1:]]
    others += [store.rows(16, min_tail_fraction=0), store.rows(16, boundary_loss=True)]
    others += [store.rows(16, pad_id=1)]
    assert len({rows.fingerprint for rows in others}) == len(others)


def test_opening_in_stored_order_reads_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Store(store.path)
    for shard in opened.shards:
        monkeypatch.setattr(shard, "lengths", None)
        monkeypatch.setattr(shard, "offsets", None)
        monkeypatch.setattr(shard, "tokens", None)
    settings: list[dict[str, Any]] = [{"packing": "concat"}, {"packing": "pad"}]
    for options in [*settings, {"packing": "pad", "shuffle_documents": 3, "sources": "made"}]:
        rows = opened.rows(16, **options)
        assert len(rows) == len(store.rows(16, **options))
        assert len(rows.fingerprint) == 32
        assert f"rows of 16 tokens, {options['packing']}: 173 documents" in repr(rows)
        assert "173 documents, " in repr(rows.selection)


def test_large_sums_are_a_plan_that_is_made_once(store: Store, tmp_path: Path) -> None:
    expected = all_tokens(store.rows(16, shuffle_documents=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "LARGE", 0)
        rows = store.rows(16, shuffle_documents=1, plans=tmp_path)
        assert all_tokens(rows) == expected
        patch.setattr(Selection, "_make_list", None)
        patch.setattr(Selection, "blocks", None)
        again = Store(store.path).rows(16, shuffle_documents=1, plans=tmp_path)
        assert all_tokens(again) == expected
        assert all_tokens(pickle.loads(pickle.dumps(again))) == expected


@pytest.mark.parametrize(
    ("seq_len", "settings", "message"),
    [
        (1, {}, "seq_len is 1: expected 2 to"),
        (2.5, {}, "seq_len is 2.5: expected a whole number"),
        (10**6, {}, "seq_len is 1,000,000: expected 2 to [0-9,]+, all tokens of the store"),
        (16, {"packing": "sorted"}, "packing is 'sorted': expected best_fit, concat or pad"),
        (16, {"packing": "pad", "overflow": "wrap"}, "overflow is 'wrap': expected drop, split or truncate"),
        (16, {"overflow": "drop"}, "overflow is 'drop', and packing is concat: pad has it"),
        (
            16,
            {"packing": "pad", "min_tail_fraction": 1},
            "min_tail_fraction is 1.0, and packing is pad: concat",
        ),
        (16, {"pad_id": 1000}, "pad_id is 1000: expected an id of the vocabulary, 0 to 999"),
        (16, {"pad_id": -1}, "pad_id is -1: expected at least 0"),
        (16, {"window": 3}, "window"),
    ],
)
def test_settings_that_make_no_sense(
    store: Store, seq_len: int, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        store.rows(seq_len, **settings)


def test_no_document_or_no_row(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is empty: expected at least one document"):
        make_store(tmp_path / "empty", []).rows(16)
    store = make_store(tmp_path / "store", [[5, 6], [9]], splits=["train", "val"])
    with pytest.raises(StoreError, match="is left of 3: 1 of another split, label or source, 2 shorter than"):
        store.rows(4, min_tokens=8)
    with pytest.raises(StoreError, match=r"no row of 20 tokens: .* gives none with concat") as caught:
        store.rows(20, min_tail_fraction=1)
    assert "smaller seq_len" in caught.value.hint
    with pytest.raises(StoreError, match=r"no row of 4 tokens: .* gives none with pad"):
        store.rows(4, packing="pad", overflow="drop")


# ------------------------------------------------------------------------------- other processes


def _read(rows: Any, seed: int, answer: Connection) -> None:
    """Read many rows at random and send back one number for each."""
    chosen = np.random.default_rng(seed).integers(0, len(rows), 2000)
    batches = [rows.read(chosen[start : start + 50]) for start in range(0, len(chosen), 50)]
    answer.send([int(row.sum()) for batch in batches for row in batch["tokens"] + batch["targets"]])
    answer.close()


@pytest.mark.parametrize(("method", "mapped"), [("fork", False), ("fork", True), ("spawn", True)])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_processes_read_the_same_rows(
    store: Store, method: str, mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "IN_MEMORY_BYTES", 0 if mapped else offsets.IN_MEMORY_BYTES)
    rows = store.rows(16, shuffle_documents=5, min_tokens=3)
    whole = rows.read(np.arange(len(rows)))  # also: maps are open before a fork
    sums = (whole["tokens"] + whole["targets"]).sum(axis=1)
    context: Any = multiprocessing.get_context(method)
    workers = []
    for seed in range(2):
        receive, send = context.Pipe(duplex=False)
        worker = context.Process(target=_read, args=(rows, seed, send))
        worker.start()
        send.close()
        workers.append((worker, receive))
    for seed, (worker, receive) in enumerate(workers):
        chosen = np.random.default_rng(seed).integers(0, len(rows), 2000)
        assert receive.recv() == sums[chosen].tolist()
        worker.join(30)
        assert worker.exitcode == 0


@pytest.mark.parametrize("settings", SETTINGS)
def test_rows_travel_as_path_and_settings(store: Store, settings: dict[str, Any]) -> None:
    rows = store.rows(16, **settings)
    rows.read(np.arange(3))
    data = pickle.dumps(rows)
    assert len(data) < 1000
    other = pickle.loads(data)
    assert other.fingerprint == rows.fingerprint
    assert np.array_equal(other.read(np.arange(5))["tokens"], rows.read(np.arange(5))["tokens"])


@given(
    SHARDS,
    st.sampled_from(PACKINGS),
    st.integers(2, 5),
    st.integers(1, 4),
    st.none() | st.integers(0, 9),
    st.booleans(),
)
def test_it_is_the_long_rows_cut(
    shards: list[list[int]], packing: str, seq_len: int, each: int, seed: int | None, boundary: bool
) -> None:
    flat = [length for shard in shards for length in shard]
    if sum(flat) < seq_len * each:
        return
    with made(shards) as store:
        settings: dict[str, Any] = {"packing": packing, "shuffle_documents": seed}
        if packing == "concat":
            settings["min_tail_fraction"] = 0
        parent = store.rows(seq_len * each, boundary_loss=boundary, **settings)
        rows = parent.split_to(seq_len)
        assert (len(rows), rows.seq_len) == (len(parent) * each, seq_len)
        cut = [
            row[start : start + seq_len]
            for row in all_tokens(parent)
            for start in range(0, seq_len * each, seq_len)
        ]
        assert all_tokens(rows) == cut
        check_arrays(rows, parent, boundary)
        check_conservation(rows, dict(enumerate(flat)))
        check_rows_of(rows, len(flat))
        overflow = "truncate" if packing == "pad" else ""
        assert rows.counts == counted(rows, seq_len, dict(enumerate(flat)), overflow)


def check_arrays(rows: Any, parent: Any, boundary: bool) -> None:
    """Tokens and targets are columns of the parent's; positions and segments begin anew at the cut."""
    length = rows.seq_len
    short, long = (one.read(np.arange(len(one))) for one in (rows, parent))
    assert np.array_equal(short["tokens"], long["tokens"].reshape(-1, length))
    wanted = long["targets"].reshape(-1, length)
    if boundary and parent.packing == "best_fit":
        # A cut between a document and the last part of a split one: see the module.
        differ = short["targets"] != wanted
        assert not differ[:, :-1].any()
        assert (short["targets"][differ] == -100).all()
    else:
        assert np.array_equal(short["targets"], wanted)
    segments = long["segment_ids"].reshape(-1, length)
    padding = segments < 0
    assert np.array_equal(short["segment_ids"], np.where(padding, -1, segments - segments[:, :1]))
    for ids, found in zip(segments.tolist(), short["position_ids"].tolist(), strict=True):
        expected = [0]
        for before, segment in pairwise(ids):
            expected.append(expected[-1] + 1 if segment == before else 0)
        assert found == expected


def test_it_has_what_rows_have(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [[30, 2, 9], [40]])
    parent = store.rows(16, packing="pad", overflow="split")
    rows = parent.split_to(4)
    assert len({rows.fingerprint, parent.fingerprint, parent.split_to(8).fingerprint}) == 3
    assert parent.split_to(8).split_to(4).fingerprint == rows.fingerprint
    again = pickle.loads(pickle.dumps(rows))
    assert (again.fingerprint, len(again)) == (rows.fingerprint, len(rows))
    assert np.array_equal(
        again.read(np.arange(len(rows)))["targets"], rows.read(np.arange(len(rows)))["targets"]
    )
    assert rows[-1].index == len(rows) - 1
    assert repr(rows).startswith(
        f"<{len(rows)} rows of 4 tokens, cut from <{len(parent)} rows of 16 tokens, pad"
    )
    with pytest.raises(IndexError, match=f"row {len(rows)} of {len(rows)}"):
        rows[len(rows)]
    padding = [row for row in rows if not row.spans]
    assert len(padding) > 0
    assert all((row.targets == -100).all() and (row.segment_ids == -1).all() for row in padding)


@pytest.mark.parametrize("seq_len", [0, 1, 3, 5, 32])
def test_a_length_that_does_not_divide_is_refused(tmp_path: Path, seq_len: int) -> None:
    rows = make_store(tmp_path / "store", [[30, 20]]).rows(16)
    with pytest.raises(RecipeError, match=f"rows of 16 tokens into rows of {seq_len}: expected a divisor"):
        rows.split_to(seq_len)
    with pytest.raises(RecipeError, match="cannot cut rows of 4 tokens into rows of 8"):
        rows.split_to(4).split_to(8)
