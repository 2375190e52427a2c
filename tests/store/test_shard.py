"""Index and checksums of a shard: by hand, independent of how they are written, and damage with its place."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tests.store.stores import reseal, said

from packline.errors import CorruptStore
from packline.ragged import dtype_for
from packline.store import shard as sums_module
from packline.store.shard import BlockSums, Index, block_ranges, index_size, split_sums, write_index
from packline.store.verify import verify
from packline.testing import make_store

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


@given(st.lists(st.lists(st.binary(max_size=40), max_size=8), min_size=1, max_size=4), st.integers(1, 16))
def test_sums_are_those_of_the_blocks_of_each_file_however_they_come(
    files: list[list[bytes]], block: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums_module, "BLOCK_BYTES", block)
        found, expected = [], []
        for pieces in files:
            sums = BlockSums()
            for piece in pieces:
                sums.update(piece)
            found.append(sums.finish())
            data = b"".join(pieces)
            blocks = [data[at : at + block] for at in range(0, len(data), block)]
            expected.append([xxhash.xxh3_64_intdigest(one) for one in blocks])
        assert [one.tolist() for one in found] == expected
        whole = np.concatenate(found).view(np.uint8)
        parts = split_sums(whole, [sum(map(len, pieces)) for pieces in files])
        assert parts is not None and [part.tolist() for part in parts] == expected
        assert split_sums(np.append(whole, 0), [sum(map(len, pieces)) for pieces in files]) is None


@given(st.sets(st.integers(0, 40), min_size=1))
def test_ranges_cover_the_blocks(blocks: set[int]) -> None:
    *shown, last = block_ranges(np.array(sorted(blocks))).replace(" KiB", "").split(" and ")
    parts = [*shown] if "more" in last else [*shown, last]
    covered = [range(*(int(one.replace(",", "")) >> 6 for one in part.split(" to "))) for part in parts]
    numbers = [number for part in covered for number in part]
    assert numbers == sorted(blocks)[: len(numbers)] and (len(covered) == 3 or "more" not in last)
    assert all(one.stop < other.start for one, other in itertools.pairwise(covered))
    left = sum(number - 1 not in blocks for number in sorted(blocks)[len(numbers) :])
    assert left == (int(last.split()[0]) if "more" in last else 0)


def test_sums_that_are_not_those_of_the_files_are_found(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [[1 << 20, 9], [5]])
    path = store.path / "train-made-000000.sums"
    sums = np.fromfile(path, "<u8")
    assert len(sums) == 33 + 1 + 1  # of 64 KiB each
    sums[32] += np.uint64(1)
    sums.tofile(path)
    assert [problem.file for problem in verify(store.path).problems] == [path.name]
    reseal(store.path, renew=False)
    place = "train-made-000000.bin: checksums in its .sums, byte range 2,048 KiB to 2,112 KiB"
    assert place in said(verify(store.path))
    path.write_bytes(path.read_bytes()[:-8])
    reseal(store.path, renew=False)
    assert (
        "train-made-000000.sums: bytes, 8 for each block of the other files: expected 280, found 272"
        in said(verify(store.path))
    )
