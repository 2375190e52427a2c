"""Arrays of a batch against a reference on plain lists, token by token; damage that must be refused; and
memory, used again when nothing refers to it, never while something does.
"""

from __future__ import annotations

import gc
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.stores import relist

import packline
from packline.errors import CorruptStore, RecipeError
from packline.facade import Store
from packline.packing import batch
from packline.packing.batch import ALL_FIELDS, FIELDS, KEPT, LEAST, CompactBatch, PlannedRows, take_memory
from packline.packing.packer import Spans
from packline.store.reader import StoreReader
from packline.testing import make_store

PAD = 777
LENGTHS = [[5, 1, 9, 30, 2], [1], [7, 7, 1, 1, 64, 3], [12, 40]]
ALL_LENGTHS = [length for shard in LENGTHS for length in shard]
DOCUMENTS = len(ALL_LENGTHS)
KINDS = ["uint16", "int32", "one shard", "loss"]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Store]:
    """Stores of equal documents: several shards of either type, one shard, some shards with a loss mask."""
    folder = tmp_path_factory.mktemp("stores")
    made = {
        "uint16": make_store(folder / "uint16", LENGTHS),
        "int32": make_store(folder / "int32", LENGTHS, dtype="int32"),
        "one shard": make_store(folder / "one", [ALL_LENGTHS]),
        "loss": make_store(folder / "loss", LENGTHS),
    }
    random = np.random.default_rng(3)
    for shard in (made["loss"].shards[0], made["loss"].shards[2]):
        trained = random.integers(0, 2, shard.entry.tokens, np.uint8)
        trained.tofile(folder / "loss" / f"{shard.entry.name}.loss")
    return made | {"loss": relist(folder / "loss")}


def loss_of(store: Store, document: int) -> list[int]:
    """A document's bytes of the loss mask, found without the code under test."""
    shard, inner = store.locate(document)
    begin = sum(int(length) for length in shard.lengths[:inner])
    path = store.path / f"{shard.entry.name}.loss"
    count = int(shard.lengths[inner])
    return list(path.read_bytes()[begin : begin + count]) if path.exists() else [1] * count


Piece = tuple[int, int, int]
"""Document, start, length."""
Batch = tuple[int, list[list[Piece]], list[int] | None]
"""Row length, rows, what follows each."""


def reference_row(
    store: Store, pieces: Sequence[Piece], following: int, seq_len: int, boundary_loss: bool
) -> dict[str, list[int]]:
    """One row, token by token."""
    row: dict[str, list[int]] = {field: [] for field in ALL_FIELDS}
    for number, (document, start, length) in enumerate(pieces):
        tokens, trained = store.documents[document].tolist(), loss_of(store, document)
        behind, skipped = pieces[number + 1][:2] if number + 1 < len(pieces) else (following, 0)
        for place in range(start, start + length):
            target, counts = -100, 0
            if place + 1 < len(tokens):
                if place + 1 < start + length or number + 1 == len(pieces):
                    target, counts = tokens[place + 1], trained[place + 1]
            elif boundary_loss and behind >= 0:
                target, counts = int(store.documents[behind][skipped]), loss_of(store, behind)[skipped]
            row["tokens"].append(tokens[place])
            row["targets"].append(target if counts else -100)
            row["position_ids"].append(place - start)
            row["segment_ids"].append(number)
            row["loss_mask"].append(int(row["targets"][-1] != -100))
    for place in range(seq_len - len(row["tokens"])):
        for field, value in zip(ALL_FIELDS, (PAD, -100, place, -1, 0), strict=True):
            row[field].append(value)
    return row


def spans_of(store: StoreReader, rows: Sequence[Sequence[Piece]], following: Sequence[int] | None) -> Spans:
    """Spans of these pieces, with what the indexes have of their documents, one after another."""
    flat = np.array([piece for row in rows for piece in row], np.int64).reshape(-1, 3)
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    behind = None if following is None else np.array(following, np.int64)
    begins, sizes = np.empty(len(flat), np.int64), np.empty(len(flat), np.int64)
    for number, document in enumerate(flat[:, 0].tolist()):
        shard, place = store.locate(document)
        before = sum(one.entry.tokens for one in store.shards[: store.shards.index(shard)])
        begins[number] = before + shard.offset_of(place) // store.dtype.itemsize
        sizes[number] = shard.length_of(place)
    documents, starts, lengths = flat.T.copy()
    return Spans(offsets, documents, starts, lengths, begins, sizes, behind)


def fill(
    store: StoreReader, spans: Spans, seq_len: int, *, fields: Sequence[str] = FIELDS, **settings: Any
) -> dict[str, np.ndarray]:
    """Arrays of rows with these spans."""
    planned = PlannedRows.of(store, spans, seq_len, **{"boundary_loss": False} | settings)
    return CompactBatch.of(planned, fields).arrays()


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """A row length, rows of it, and what follows them: neighbours, jumps, cut documents, padding."""
    seq_len = draw(st.integers(2, 40))
    lengths = ALL_LENGTHS
    anywhere = st.integers(0, DOCUMENTS - 1)
    rows: list[list[Piece]] = []
    for _ in range(draw(st.integers(0, 4))):
        row: list[Piece] = []
        left = seq_len
        document = draw(anywhere)
        while left and draw(st.integers(0, 9)):
            start = draw(st.sampled_from([0, 0, lengths[document] // 2, lengths[document] - 1]))
            length = min(left, lengths[document] - start)
            left -= length
            row.append((document, start, length))
            if start + length < lengths[document]:
                break
            document = draw(st.sampled_from([(document + 1) % DOCUMENTS, draw(anywhere)]))
        if draw(st.booleans()) and row:
            # The end of a document, with padding behind it: only a full row leaves a document unfinished.
            document = row[-1][0]
            length = draw(st.integers(1, min(row[-1][2], lengths[document])))
            row[-1] = (document, lengths[document] - length, length)
        rows.append(row)
    following = draw(st.none() | st.lists(st.integers(-1, DOCUMENTS - 1), min_size=4, max_size=4))
    if following is not None:
        filled = [sum(length for _, _, length in row) for row in rows]
        following = [one if size == seq_len else -1 for one, size in zip(following, filled, strict=False)]
    return seq_len, rows, following


@pytest.mark.parametrize("kind", KINDS)
@given(
    batch=batches(),
    boundary_loss=st.booleans(),
    fields=st.just(list(ALL_FIELDS)) | st.lists(st.sampled_from(ALL_FIELDS), unique=True),
)
def test_arrays_are_those_of_the_reference(
    stores: dict[str, Store], kind: str, batch: Batch, boundary_loss: bool, fields: list[str]
) -> None:
    seq_len, rows, following = batch
    store = stores[kind]
    spans = spans_of(store, rows, following)
    found = fill(store, spans, seq_len, fields=fields, pad_id=PAD, boundary_loss=boundary_loss)
    behind = following or [-1] * len(rows)
    expected = [
        reference_row(store, row, after, seq_len, boundary_loss)
        for row, after in zip(rows, behind, strict=True)
    ]
    assert list(found) == fields
    for field, array in found.items():
        assert array.shape == (len(rows), seq_len)
        assert array.dtype == (np.uint8 if field == "loss_mask" else np.int32)
        assert array.tolist() == [row[field] for row in expected], field


@pytest.mark.parametrize("kind", KINDS)
def test_a_thread_reads_the_same(stores: dict[str, Store], kind: str) -> None:
    for packing in ("concat", "best_fit", "pad"):
        rows = stores[kind].rows(8, packing=packing)
        for numbers in (np.arange(len(rows)), np.empty(0, np.int64)):
            expected = rows.read(numbers, ALL_FIELDS)
            with ThreadPoolExecutor(1) as pool:
                found = pool.submit(rows.read, numbers, ALL_FIELDS).result()
            for field, values in found.items():
                assert values.dtype == expected[field].dtype and np.array_equal(values, expected[field])


def test_rows_longer_than_an_int16_count_right(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", [[40_000, 50_000]])
    spans = spans_of(store, [[(0, 0, 40_000), (1, 0, 30_000)]], None)
    found = fill(store, spans, 70_000, pad_id=0)
    expected = [*range(40_000), *range(30_000)]
    assert found["position_ids"][0].tolist() == expected
    assert int(found["targets"][0, -1]) == int(store.documents[1][30_000])
    assert np.bincount(found["segment_ids"][0]).tolist() == [40_000, 30_000]


def test_arrays_are_new_at_every_call(stores: dict[str, Store]) -> None:
    spans = spans_of(stores["uint16"], [[(0, 0, 5), (1, 0, 1)]], None)
    first = fill(stores["uint16"], spans, 6, pad_id=0)
    kept = {field: array.copy() for field, array in first.items()}
    second = fill(stores["uint16"], spans_of(stores["uint16"], [[(3, 4, 6)]], None), 6, pad_id=0)
    for field in FIELDS:
        assert not np.shares_memory(first[field], second[field])
        np.testing.assert_array_equal(first[field], kept[field])
        assert first[field].flags.c_contiguous and first[field].flags.writeable
        first[field].fill(-7)
    assert (second["tokens"] != -7).all(), "arrays of a batch are not of one another"


def test_padding_may_be_an_id_outside_of_the_vocabulary(stores: dict[str, Store]) -> None:
    found = fill(stores["uint16"], spans_of(stores["uint16"], [[(0, 0, 5)]], None), 8, pad_id=60_000)
    assert found["tokens"][0, 5:].tolist() == [60_000] * 3


def test_an_unknown_field_is_refused(stores: dict[str, Store]) -> None:
    spans = spans_of(stores["uint16"], [[(0, 0, 5)]], None)
    with pytest.raises(RecipeError, match="no field labels: expected some of tokens, targets"):
        fill(stores["uint16"], spans, 8, pad_id=0, fields=("tokens", "labels"))


def test_a_row_that_is_too_full_is_refused(stores: dict[str, Store]) -> None:
    spans = spans_of(stores["uint16"], [[(0, 0, 5)], [(2, 0, 9)]], None)
    with pytest.raises(RecipeError, match="row 1 of the batch has 9 tokens: expected at most seq_len=8"):
        fill(stores["uint16"], spans, 8, pad_id=0)


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Path]:
    """A folder with a store that a test may damage."""
    yield make_store(tmp_path / "s", LENGTHS, dtype="int32").path
    shutil.rmtree(tmp_path / "s")


@pytest.mark.parametrize(("place", "wrong"), [(7, 70_000), (7, -1), (7, -(2**31)), (7, 2**31 - 1)])
def test_an_id_outside_of_the_vocabulary_is_refused_with_its_place(
    damaged: Path, place: int, wrong: int
) -> None:
    name = packline.open(damaged).shards[2].entry.name
    path = damaged / f"{name}.bin"
    tokens = np.fromfile(path, "<i4")
    tokens[place] = wrong
    tokens.tofile(path)
    spans = spans_of(packline.open(damaged), [[(0, 0, 5), (6, 0, 7), (7, 0, 4)]], None)
    with pytest.raises(CorruptStore, match=rf"token 7 of {name}\.bin is {wrong:,}: expected an id from 0"):
        fill(packline.open(damaged), spans, 20, pad_id=10**6, fields=("tokens",))


def test_an_id_behind_the_end_of_a_row_is_checked_too(damaged: Path) -> None:
    shard = packline.open(damaged).shards[2]
    path = damaged / f"{shard.entry.name}.bin"
    tokens = np.fromfile(path, "<i4")
    tokens[4] = 70_000
    tokens.tofile(path)
    spans = spans_of(packline.open(damaged), [[(6, 0, 4)]], None)
    assert fill(packline.open(damaged), spans, 4, pad_id=0, fields=("tokens",))["tokens"].shape == (1, 4)
    with pytest.raises(CorruptStore, match=rf"token 4 of {shard.entry.name}\.bin is 70,000"):
        fill(packline.open(damaged), spans, 4, pad_id=0)


@pytest.mark.parametrize("offset", [-4, -80, 4 * 83, 2**40])
def test_an_index_that_points_outside_of_its_shard_is_refused(damaged: Path, offset: int) -> None:
    shard = packline.open(damaged).shards[2]
    path = damaged / f"{shard.entry.name}.idx"
    data = bytearray(path.read_bytes())
    at = 34 + 4 * len(shard) + 8 * 1  # the offset of the shard's second document
    data[at : at + 8] = offset.to_bytes(8, "little", signed=True)
    path.write_bytes(data)
    store = relist(damaged)
    with pytest.raises(CorruptStore, match=rf"{shard.entry.name}\.idx at document 1: expected an index"):
        fill(store, spans_of(store, [[(7, 0, 7)]], None), 8, pad_id=0)
    # As what follows another row, too.
    follows = spans_of(store, [[(0, 0, 5)]], [7])
    with pytest.raises(CorruptStore, match=rf"{shard.entry.name}\.idx at document 1: expected an index"):
        fill(store, follows, 5, pad_id=0, boundary_loss=True)
    assert fill(store, follows, 5, pad_id=0)["targets"][0, -1] == -100


def test_a_loss_mask_of_another_size_is_refused(damaged: Path) -> None:
    shard = packline.open(damaged).shards[2]
    (damaged / f"{shard.entry.name}.loss").write_bytes(b"\1" * (shard.entry.tokens - 1))
    spans = spans_of(relist(damaged), [[(6, 0, 5)]], None)
    with pytest.raises(CorruptStore, match=r"\.loss: expected 83 bytes, .*found 82"):
        fill(relist(damaged), spans, 8, pad_id=0)


@pytest.fixture(autouse=True)
def nothing_free() -> None:
    gc.collect()
    batch._FREE.clear()


@given(st.lists(st.tuples(st.sampled_from([LEAST, LEAST + 8, 1000]), st.integers(0, 5)), max_size=60))
def test_a_block_that_is_kept_never_changes(uses: list[tuple[int, int]]) -> None:
    kept: list[tuple[int, np.ndarray]] = []
    for number, (size, drop) in enumerate(uses):
        whole = take_memory(size)
        assert whole.shape == (size,) and whole.flags.writeable
        whole[:] = number % 251
        # A view of a view in another dtype keeps the memory as the whole does.
        kept.append((number % 251, whole.view("u8")[:: 1 + number % 3]))
        del whole
        if drop < len(kept):
            kept.pop(drop)
        assert all((array.view(np.uint64) == value * 0x0101010101010101).all() for value, array in kept)
        places = [array.__array_interface__["data"][0] for _, array in kept]
        assert len(set(places)) == len(places)


def test_free_blocks_are_few_and_those_of_another_size_go() -> None:
    held = [take_memory(LEAST) for _ in range(3 * KEPT)]
    del held
    assert [free.size for free in batch._FREE] == [LEAST] * KEPT
    others = [take_memory(2 * LEAST) for _ in range(KEPT)]
    assert [free.size for free in batch._FREE] == [LEAST]
    del others
    assert [free.size for free in batch._FREE] == [2 * LEAST] * KEPT


def test_two_sizes_in_turn_use_their_own_memory_again() -> None:
    for size in (LEAST, 3 * LEAST):
        take_memory(size)
    first = list(map(id, batch._FREE))
    for size in (LEAST, 3 * LEAST) * 3:
        take_memory(size)
    assert sorted(map(id, batch._FREE)) == sorted(first)


def test_memory_of_a_few_megabytes_begins_at_a_huge_page() -> None:
    for size in (batch.HUGE, batch.HUGE + 4096, 3 * batch.HUGE):
        block = take_memory(size)
        assert len(block) == size and block.__array_interface__["data"][0] % batch.HUGE == 0
        block[:] = 1


def test_threads_never_share_a_block() -> None:
    wrong: list[int] = []

    def use(number: int) -> None:
        for _ in range(300):
            block = take_memory(LEAST)
            block[::4096] = number
            if not (block[::4096] == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_comes_back_from_a_reference_circle() -> None:
    circle: list[object] = [take_memory(LEAST)]
    circle.append(circle)
    del circle
    gc.collect()
    assert len(batch._FREE) == 1
