"""The index: its bytes by hand, and that what is written is what is read."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.errors import CorruptStore
from packline.ragged import dtype_for
from packline.store.shard import Index, index_size, write_index

LENGTHS = st.lists(st.integers(1, 2**31 - 1), max_size=40)


def write(path: Path, lengths: list[int], dtype: np.dtype) -> None:
    with open(path, "wb") as file:
        write_index(file, np.array(lengths, np.int32), dtype)


@given(LENGTHS, st.sampled_from([100, 151_670]))
def test_what_is_written_is_what_is_read(lengths: list[int], vocab_size: int) -> None:
    dtype = dtype_for(vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.idx"
        write(path, lengths, dtype)
        assert path.stat().st_size == index_size(len(lengths))
        index = Index(path)
        assert len(index) == len(lengths) and not index.offsets.flags.writeable
        assert index.dtype == dtype
        assert index.lengths.tolist() == lengths
        sums = [sum(lengths[:place]) * dtype.itemsize for place in range(len(lengths))]
        assert index.offsets.tolist() == sums
        assert index.document_indices.tolist() == list(range(len(lengths) + 1))


@given(st.data())
def test_a_cut_or_missing_index_is_refused(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.idx"
        write(path, [3, 1, 2], dtype_for(100))
        size = path.stat().st_size
        path.write_bytes(path.read_bytes()[: data.draw(st.integers(0, size - 1))])
        for place in (path, path.with_name("none.idx")):
            with pytest.raises(CorruptStore, match=place.name):
                Index(place)


@pytest.mark.parametrize(
    ("offset", "byte", "said"),
    [
        (0, 0, "not an index"),
        (9, 2, "version 2"),
        (17, 6, "code 6"),
        (26, 9, "9 document entries"),
        (18, 9, "9 sequences"),
    ],
)
def test_another_header_is_refused(tmp_path: Path, offset: int, byte: int, said: str) -> None:
    path = tmp_path / "a.idx"
    write(path, [3, 1, 2], dtype_for(100))
    data = bytearray(path.read_bytes())
    data[offset] = byte
    path.write_bytes(data)
    with pytest.raises(CorruptStore, match=said):
        Index(path)
