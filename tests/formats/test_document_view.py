from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.stores import CASES, Case, make_store, random_documents, random_loss
from tests.store.stores import edit_tokens, relist

from packline.errors import CorruptStore, RecipeError, StoreError
from packline.facade import Store
from packline.formats.document_view import DocumentView
from packline.testing import make_store as make_packed

EOD, BOS = 0, 1
DOCUMENTS = random_documents(60, 1000, longest=12, seed=5)
VAL = (3, 4, 17, 40, 59)
VIEWS: dict[str, Case] = {
    "eod": Case("eod", DOCUMENTS, val=VAL, shards=3, loss=random_loss(DOCUMENTS)),
    "bos": Case("bos", DOCUMENTS, bos_id=BOS, val=VAL, shards=4, loss=random_loss(DOCUMENTS, 2)),
    "wide": Case("wide", DOCUMENTS, vocab_size=70_000, shards=2),
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Store]:
    folder = tmp_path_factory.mktemp("views")
    return {name: case.make(folder / name) for name, case in VIEWS.items()}


def by_hand(store: Store, edges: str, numbers: list[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Documents and loss masks of the output, by lists alone."""
    bos = store.manifest.tokenizer.bos_id
    documents, masks, ended = [], [], 0
    for number in numbers:
        shard, inner = store.locate(number)
        tokens = shard.document(inner).tolist()
        start = int(shard.places(np.array([inner]))[0])
        mask = [1] * len(tokens) if shard.loss is None else shard.loss[start : start + len(tokens)].tolist()
        head, body, tail = ([], tokens[:-1], tokens[-1:]) if bos is None else (
            tokens[:1], tokens[1:-1], tokens[-1:]
        )  # fmt: skip
        size = len(head)
        of_head, of_body, of_tail = mask[:size], mask[size:-1], mask[-1:]
        if edges == "bos" and bos is None:
            head, of_head = [EOD], [ended]
        ended = of_tail[0]
        before, behind = edges in ("bos", "both"), edges in ("eod", "both")
        documents.append([*(head if before else []), *body, *(tail if behind else [])])
        masks.append([*(of_head if before else []), *of_body, *(of_tail if behind else [])])
    return documents, masks


def flat(lists: list[list[int]]) -> list[int]:
    return [value for one in lists for value in one]


SELECTIONS: list[dict[str, Any]] = [
    {},
    {"split": "val"},
    {"min_tokens": 5},
    {"min_tokens": 3, "max_tokens": 9},
    {"shuffle_documents": 7},
    {"split": "train", "max_tokens": 8, "shuffle_documents": 1},
]
POSSIBLE: list[tuple[str, Any]] = [("eod", edges) for edges in ("eod", "bos", "none")] + [
    ("bos", edges) for edges in ("eod", "bos", "both", "none")
] + [("wide", edges) for edges in ("eod", "bos", "none")]  # fmt: skip


@settings(max_examples=150)
@given(data=st.data())
def test_any_stretch_of_any_view_is_what_lists_give(stores: dict[str, Store], data: st.DataObject) -> None:
    name, edges = data.draw(st.sampled_from(POSSIBLE))
    chosen = data.draw(st.sampled_from([one for one in SELECTIONS if name != "wide" or "split" not in one]))
    store = stores[name]
    view = DocumentView(store, edges=edges, **chosen)
    split = data.draw(st.sampled_from(view.splits))
    stream = view.stream(split)
    dtype = np.dtype(data.draw(st.sampled_from(["<u2", "<i4", "<u4", "<i8"] if name != "wide" else ["<u4"])))
    numbers = stream.selection.documents(np.arange(stream.documents)).tolist()
    documents, masks = by_hand(store, edges, numbers)
    ends = np.cumsum([len(one) for one in documents])
    assert (stream.documents, stream.tokens) == (len(documents), int(ends[-1]))

    start = data.draw(st.integers(0, stream.documents))
    stop = data.draw(st.integers(start, stream.documents))
    limit = data.draw(st.integers(1, 60))
    assert stream.lengths(start, stop).tolist() == [len(one) for one in documents[start:stop]]
    begins = [0, *ends.tolist()]
    assert (stream.before(start), stream.before(stop)) == (begins[start], begins[stop])
    blocks = list(stream.blocks(start, stop, dtype, limit))
    found = [block.tokens[low:high].tolist() for block in blocks
             for low, high in zip(block.offsets, block.offsets[1:], strict=False)]  # fmt: skip
    assert found == documents[start:stop]
    assert all(block.tokens.dtype == dtype and block.offsets[0] == 0 for block in blocks)
    assert all(len(block.tokens) <= limit or len(block) == 1 for block in blocks)
    if view.has_loss:
        given = [mask for block in blocks for mask in ([] if block.loss is None else block.loss.tolist())]
        assert given == flat(masks[start:stop])
    else:
        assert all(block.loss is None for block in blocks)

    low = data.draw(st.integers(0, stream.tokens))
    high = data.draw(st.integers(low, stream.tokens + 3))
    pieces = list(stream.tokens_between(low, high, dtype, limit))
    assert [token for tokens, _ in pieces for token in tokens.tolist()] == flat(documents)[low:high]
    assert all(tokens.dtype == dtype and 0 < len(tokens) <= limit for tokens, _ in pieces)
    if view.has_loss:
        given = [one for _, mask in pieces for one in ([] if mask is None else mask.tolist())]
        assert given == flat(masks)[low:high]
    assert stream.document_at(low) == int(np.searchsorted(ends, low, "right"))


@settings(max_examples=30)
@given(data=st.data())
def test_provenance_follows_the_documents(stores: dict[str, Store], data: st.DataObject) -> None:
    chosen = data.draw(st.sampled_from(SELECTIONS))
    view = DocumentView(stores["bos"], edges="none", **chosen)
    stream = view.stream(view.splits[0])
    start = data.draw(st.integers(0, stream.documents))
    stop = data.draw(st.integers(start, stream.documents))
    rows = stream.provenance(start, stop).to_pylist()
    numbers = stream.selection.documents(np.arange(start, stop)).tolist()
    assert len(rows) == stop - start
    for row, number, tokens in zip(rows, numbers, stream.lengths(start, stop).tolist(), strict=True):
        expected = stores["bos"].provenance(number)
        assert row == {
            "source": expected.source,
            "file": expected.file,
            "position": expected.position,
            "id": expected.id,
            "label": expected.label,
            "text_bytes": expected.text_bytes,
            "tokens": tokens,
        }


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_nothing_is_copied_where_the_output_is_what_is_stored(case: Case, tmp_path: Path) -> None:
    store = case.make(tmp_path / "store")
    view = DocumentView(store, edges="eod" if case.bos_id is None else "both")
    for split in view.splits:
        stream = view.stream(split)
        shards = stream.shards
        assert shards is not None and sum(shard.documents for shard in shards) == stream.documents
        maps = [shard.tokens for shard in store.shards if shard.entry.split == split]
        for block in stream.blocks(0, stream.documents, store.dtype):
            assert any(np.shares_memory(block.tokens, one) for one in maps)
        for tokens, _ in stream.tokens_between(0, stream.tokens, store.dtype):
            assert any(np.shares_memory(tokens, one) for one in maps)
        for shard in shards:
            found = shard.file(".bin")
            assert found is not None and shard.files.local(found).stat().st_size == found.bytes
            assert (shard.file(".loss") is not None) == (case.loss is not None)


def test_a_boundary_moved_to_the_front_is_not_copied_either(stores: dict[str, Store]) -> None:
    stream = DocumentView(stores["eod"], edges="bos").stream("train")
    assert stream.shards is None
    _, *pieces = list(stream.tokens_between(0, stream.tokens, np.dtype("<u2")))
    assert pieces and all(
        any(np.shares_memory(tokens, shard.tokens) for shard in stores["eod"].shards) for tokens, _ in pieces
    )


def test_a_split_without_wanted_documents_is_left_out(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", [[5, 6, 7], [8]], vocab_size=300, eod_id=0, val=[1])
    assert DocumentView(store, edges="eod", min_tokens=3).splits == ["train"]
    with pytest.raises(StoreError, match="no document is left"):
        DocumentView(store, edges="eod", min_tokens=30)


def test_a_dtype_must_hold_the_vocabulary(stores: dict[str, Store]) -> None:
    stream = DocumentView(stores["wide"], edges="eod").stream("train")
    with pytest.raises(RecipeError, match="70,000 do not fit into uint16"):
        list(stream.blocks(0, 1, np.uint16))


@pytest.mark.parametrize("seed", [None, 5])
def test_an_id_outside_the_vocabulary_never_leaves_the_stream(tmp_path: Path, seed: int | None) -> None:
    store = make_packed(tmp_path / "store", [[9, 9, 9]])

    def damage(tokens: np.ndarray) -> None:
        tokens[13] = 1000

    edit_tokens(store.path, "train-made-000000", damage)
    view = DocumentView(relist(store.path), edges="eod", shuffle_documents=seed)
    with pytest.raises(CorruptStore, match=r"token 13 of train-made-000000\.bin is 1,000"):
        list(view.stream("train").tokens_between(0, 27, np.int32, 5))
