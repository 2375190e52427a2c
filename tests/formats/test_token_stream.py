"""A stream of tokens is the list of its documents' tokens, whatever is read of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.stores import make_store as make_masked
from tests.packing.counting import SHARDS, made
from tests.store.stores import edit_tokens, relist

from packline.errors import CorruptStore
from packline.formats.token_stream import TokenStream
from packline.packing.options import DocumentFilter
from packline.packing.selection import Selection
from packline.testing import document_tokens, make_store


@settings(max_examples=30)
@given(SHARDS, st.none() | st.integers(0, 9), st.integers(1, 50), st.data())
def test_any_range_in_any_pieces_is_a_slice_of_the_list(
    shards: list[list[int]], seed: int | None, most: int, data: st.DataObject
) -> None:
    flat = [length for shard in shards for length in shard]
    with made(shards) as store:
        selection = Selection(store, DocumentFilter(shuffle_documents=seed))
        stream = TokenStream(selection)
        order = selection.documents(np.arange(len(selection))).tolist()
        documents = [document_tokens(number, flat[number]) for number in order]
        whole = [token for document in documents for token in document]
        starts = [sum(map(len, documents[:place])) for place in range(len(documents) + 1)]
        start = data.draw(st.integers(0, len(whole)))
        stop = data.draw(st.integers(0, len(whole)))
        found: list[int] = []
        for begin, tokens, loss in stream.read(start, stop, most, with_loss=True):
            assert begin == start + len(found) and 0 < len(tokens) <= most
            assert loss is not None and loss.tolist() == [1] * len(tokens)
            found += tokens.tolist()
        assert found == whole[start:stop]
        assert [stream.before(place) for place in range(len(starts))] == starts
        for token in range(0, len(whole), 7):
            place, before = stream.find(token)
            assert before == starts[place] <= token < starts[place + 1]
        if start < stop:
            begins, ends = stream.bounds(start, stop)
            inside = [n for n in range(len(documents)) if starts[n] < stop and starts[n + 1] > start]
            assert begins.tolist() == [starts[n] for n in inside]
            assert ends.tolist() == [starts[n + 1] for n in inside]


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), min_size=1, max_size=6), st.booleans())
def test_a_mask_moves_with_its_tokens(loss: list[list[int]], shuffled: bool) -> None:
    documents = [[7] * (len(mask) - 1) for mask in loss]
    with tempfile.TemporaryDirectory() as name:
        store = make_masked(Path(name) / "store", documents, vocab_size=300, eod_id=0, loss=loss)
        selection = Selection(store, DocumentFilter(shuffle_documents=3 if shuffled else None))
        stream = TokenStream(selection)
        found = [bit for *_, mask in stream.read(0, selection.tokens, 4, True) for bit in mask.tolist()]  # type: ignore[union-attr]
        order = selection.documents(np.arange(len(selection)))
        assert stream.has_loss and found == [bit for number in order for bit in loss[number]]
        assert all(mask is None for *_, mask in stream.read(0, selection.tokens, 4, False))


@pytest.mark.parametrize("seed", [None, 5])
def test_an_id_outside_the_vocabulary_never_leaves_the_stream(tmp_path: Path, seed: int | None) -> None:
    store = make_store(tmp_path / "store", [[9, 9, 9]])

    def damage(tokens: np.ndarray) -> None:
        tokens[13] = 1000

    edit_tokens(store.path, "train-made-000000", damage)
    selection = Selection(relist(store.path), DocumentFilter(shuffle_documents=seed))
    with pytest.raises(CorruptStore, match=r"token 13 of train-made-000000\.bin is 1,000"):
        list(TokenStream(selection).read(0, 27, 5, with_loss=False))
