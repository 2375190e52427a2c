"""Reading by ranges: a remote file reads as a local one, whatever was announced, however small the budget."""

from __future__ import annotations

import hashlib
import io
import threading
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from packline.errors import InputChanged, InputError
from packline.storage import inputs, ranged_file
from packline.storage.inputs import hash_range
from packline.storage.ranged_file import RangedFile
from packline.storage.requests import map_in_threads

DATA = bytes(number * number % 251 for number in range(3000))
offsets = st.integers(0, len(DATA) + 10)
plans = st.lists(st.tuples(offsets, offsets), max_size=5)
steps = st.lists(st.tuples(st.sampled_from(["seek", "read", "readinto"]), offsets), max_size=20)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 100 bytes, three of them at a time."""
    monkeypatch.setattr(ranged_file, "PIECE_BYTES", 100)
    monkeypatch.setattr(ranged_file, "AHEAD_BYTES", 300)
    monkeypatch.setattr(ranged_file, "FIRST_REQUEST", 16)


class Server:
    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.lock = threading.Lock()

    def __call__(self, start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= len(DATA)
        with self.lock:
            self.ranges.append((start, stop))
        return DATA[start:stop]


@given(plans, steps)
def test_a_ranged_file_reads_as_a_local_one(plan: list[tuple[int, int]], todo: list[tuple[str, int]]) -> None:
    local = io.BytesIO(DATA)
    with RangedFile(Server(), len(DATA), "x") as remote:
        remote.expect(plan)
        for what, number in todo:
            if what == "seek":
                assert remote.seek(number) == local.seek(number)
            elif what == "read":
                assert remote.read(number) == local.read(number)
            else:
                ours, theirs = bytearray(number), bytearray(number)
                assert remote.readinto(ours) == local.readinto(theirs)
                assert ours == theirs
            assert remote.tell() == local.tell()


@given(st.integers(0, 2000), st.integers(1, 2000), st.integers(1, 300))
def test_an_announced_range_is_requested_once(start: int, size: int, step: int) -> None:
    stop = min(start + size, len(DATA))
    server = Server()
    with RangedFile(server, len(DATA), "x") as remote:
        remote.expect([(start, stop)])
        remote.seek(start)
        while remote.tell() < stop:
            assert remote.read(min(step, stop - remote.tell()))
    assert sorted(server.ranges) == [(at, min(at + 100, stop)) for at in range(start, stop, 100)]


def test_what_is_held_is_bounded() -> None:
    server = Server()
    with RangedFile(server, len(DATA), "x") as remote:
        remote.expect([(0, len(DATA))])
        for _ in range(0, len(DATA), 50):
            assert remote.read(50)
            assert sum(piece.stop - piece.start for piece in remote._pieces) <= 300


def test_damage_on_the_way_is_noticed_by_a_checksum() -> None:
    readings = 0

    def read(start: int, stop: int) -> bytes:
        nonlocal readings
        readings += not start
        data = bytearray(DATA[start:stop])
        data[0] ^= start == 0 and readings == 1
        return bytes(data)

    md5 = hashlib.md5(DATA).hexdigest()
    with RangedFile(read, len(DATA), "x", md5) as remote:
        with pytest.raises(InputError, match="damaged on its way"):
            remote.readall()
    with RangedFile(read, len(DATA), "x", md5) as remote:
        assert remote.readall() == DATA and readings == 3
    with RangedFile(read, len(DATA), "x", "0" * 32) as remote:
        assert remote.readall() == DATA and readings == 5, "the same twice: the checksum is of another kind"


def test_a_short_answer_is_an_error() -> None:
    with RangedFile(lambda start, stop: DATA[start : stop - 1], len(DATA), "x") as remote:
        with pytest.raises(InputChanged, match=r"x: expected 16 bytes of a range, found 15"):
            remote.read(3)


@given(st.lists(st.integers(), max_size=50), st.integers(1, 4))
def test_threads_keep_the_order(values: list[int], threads: int) -> None:
    assert list(map_in_threads(lambda value: -value, values, threads, "test")) == [-value for value in values]


def test_the_checksum_of_a_range_is_that_of_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "READ_BYTES", 2)
    path, data = tmp_path / "data", b"abcdefg"
    path.write_bytes(data)
    for start, stop in ((0, 7), (1, 6), (2, 4), (3, 3)):
        assert hash_range(str(path), start, stop) == xxhash.xxh3_128_hexdigest(data[start:stop])
    with pytest.raises(InputChanged, match="expected 9 bytes, found 7"):
        hash_range(str(path), 1, 9)
