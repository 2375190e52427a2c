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

from packline.store import shard as sums_module
from packline.store.report import Report
from packline.store.shard import BlockSums, block_ranges, split_sums
from packline.store.verify import verify
from packline.testing import make_store


def said(report: Report) -> str:
    return "\n".join(map(str, report.problems))


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
