"""Checksums of the blocks of files: independent of how a file is written, and located damage."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tests.store.stores import reseal

from packline.store import sums as sums_module
from packline.store.report import Report
from packline.store.sums import BlockSums, block_ranges, count_blocks, split_sums
from packline.store.verify import verify
from packline.testing import make_store


def said(report: Report) -> str:
    return "\n".join(map(str, report.problems))


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(1, 16))
def test_sums_are_those_of_the_blocks_however_they_come(pieces: list[bytes], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums_module, "BLOCK_BYTES", block)
        found = BlockSums()
        for piece in pieces:
            found.update(piece)
        data = b"".join(pieces)
        blocks = [data[at : at + block] for at in range(0, len(data), block)]
        assert found.finish().tolist() == [xxhash.xxh3_64_intdigest(one) for one in blocks]
        assert count_blocks(len(data), block) == len(blocks)


@given(st.lists(st.integers(0, 5 << 20), min_size=1, max_size=4), st.sampled_from([1 << 16, 1 << 20]))
def test_sums_are_split_by_file(sizes: list[int], block: int) -> None:
    counts = [count_blocks(size, block) for size in sizes]
    sums = np.arange(sum(counts), dtype="<u8")
    parts = split_sums(sums.view(np.uint8), sizes)
    assert parts is not None
    assert [len(part.values) for part in parts] == counts
    assert np.concatenate([part.values for part in parts]).tolist() == sums.tolist()
    other = (1 << 16) + (1 << 20) - block
    same = counts == [count_blocks(size, other) for size in sizes]
    assert {part.block for part in parts} == {block} or same
    assert split_sums(np.append(sums.view(np.uint8), 0), sizes) is None
    if any(size > 1 << 16 for size in sizes):
        assert not same, "the number of blocks tells their size"


@given(st.sets(st.integers(0, 40), min_size=1))
def test_ranges_cover_the_blocks(blocks: set[int]) -> None:
    shown = block_ranges(sorted(blocks), 1 << 10, most=99).replace(" KiB", "").split(" and ")
    covered = [range(*map(int, part.split(" to "))) for part in shown]
    assert [number for part in covered for number in part] == sorted(blocks)
    assert all(one.stop < other.start for one, other in itertools.pairwise(covered))


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
