"""A file of numbers is mapped if it is just as large as it has to be, and refused otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.stores import make_store

from packline.errors import CorruptStore
from packline.store.files import map_array


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=3),
    st.sampled_from(["<u2", "<i4", "u1"]),
    st.integers(-5, 5),
)
def test_what_is_mapped_is_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], kind: str, more: int
) -> None:
    path = tmp_path_factory.mktemp("mapped") / "a.bin"
    array = np.arange(np.prod(shape), dtype=kind).reshape(shape)
    data = array.tobytes()
    path.write_bytes(data[: len(data) + more] + bytes(max(more, 0)))
    size = path.stat().st_size
    if size == len(data):
        found = map_array(path, np.dtype(kind), tuple(shape), holds="numbers", of="others")
        assert type(found) is np.ndarray and found.dtype == array.dtype and np.array_equal(found, array)
        assert not found.size or not found.flags.writeable
    else:
        with pytest.raises(CorruptStore, match=f"expected {len(data)} bytes, numbers, found {size}"):
            map_array(path, np.dtype(kind), tuple(shape), holds="numbers", of="others")


def test_a_mask_that_is_cut_off_or_leads_nowhere_is_not_taken_for_none(tmp_path: Path) -> None:
    store = make_store(
        tmp_path / "s", [[5, 6], [7]], vocab_size=1000, eod_id=0, loss=[[0, 1, 1], [0, 1]], shards=1
    )
    (shard,) = store.shards
    assert shard.loss is not None and shard.loss.tolist() == [0, 1, 1, 0, 1]
    path = store.path / f"{shard.entry.name}.loss"
    path.write_bytes(b"\0\1\1\0")
    del shard.__dict__["loss"]
    with pytest.raises(CorruptStore, match=r"expected 5 bytes, one per token, found 4"):
        _ = shard.loss
    path.unlink()
    path.symlink_to("nowhere")
    with pytest.raises(CorruptStore, match="cannot read"):
        _ = shard.loss
    path.unlink()
    with pytest.raises(CorruptStore, match="cannot read"):
        _ = shard.loss
