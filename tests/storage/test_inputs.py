"""Checksums of ranges of files, in part from bytes that a reader hands over."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from packline.errors import InputChanged
from packline.storage.inputs import RangeHash, hash_range


@given(
    st.binary(max_size=60),
    st.integers(0, 60),
    st.integers(0, 60),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=6),
)
def test_the_checksum_of_a_range_does_not_depend_on_what_is_handed_over(
    data: bytes, start: int, stop: int, reads: list[tuple[int, int]]
) -> None:
    start, stop = sorted(min(one, len(data)) for one in (start, stop))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "data")
        path.write_bytes(data)
        range_hash = RangeHash(str(path), start, stop)
        for position, size in reads:
            position = min(position, len(data))
            range_hash.feed(position, memoryview(data)[position : position + size])
        assert range_hash.finish() == xxhash.xxh3_128_hexdigest(data[start:stop])


def test_a_range_behind_the_end_of_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"abc")
    with pytest.raises(InputChanged, match="expected 5 bytes, found 3"):
        hash_range(str(tmp_path / "data"), 1, 5)


def test_bytes_handed_over_are_not_read_again(tmp_path: Path) -> None:
    range_hash = RangeHash(str(tmp_path / "absent"), 2, 5)
    range_hash.feed(0, memoryview(b"abc"))
    range_hash.feed(3, memoryview(b"defg"))
    assert range_hash.finish() == xxhash.xxh3_128_hexdigest(b"cde")
