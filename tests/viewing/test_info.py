"""Counts from manifest and indexes: groups are sums of provenance, lengths are those of all documents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packline.testing import StoreShape, store_shapes
from packline.viewing import info
from packline.viewing.info import measure_lengths, summarize_lengths

BLOCKS = st.lists(
    st.lists(
        st.integers(1, 40) | st.sampled_from([4095, 4096, 1 << 20, (1 << 31) - 1]), min_size=1, max_size=9
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=30)
@given(BLOCKS)
def test_quantiles_are_those_of_all_lengths_however_they_are_cut(blocks: list[list[int]]) -> None:
    lengths = np.sort(np.concatenate(blocks))
    found = summarize_lengths(np.array(block, np.int32) for block in blocks)
    for value, share in ((found.shortest, 0.0), (found.median, 0.5), (found.p90, 0.9), (found.p99, 0.99)):
        assert value == min(lengths[int(share * len(lengths))], info.LONGEST_COUNTED)
    assert found.longest == lengths[-1]
    assert found.mean == pytest.approx(lengths.mean())
    assert sum(found.histogram) == len(lengths)
    for place, count in enumerate(found.histogram):
        assert count == np.count_nonzero((lengths >= 2**place) & (lengths < 2 ** (place + 1)))


@settings(max_examples=12)
@given(store_shapes(), st.integers(1, 20))
def test_lengths_of_a_store_are_those_of_its_documents(shape: StoreShape, block: int) -> None:
    with shape.opened() as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(info, "BLOCK", block)
        lengths = np.array([len(tokens) for tokens in store.documents])
        assert measure_lengths(store) == summarize_lengths(iter([lengths]))
