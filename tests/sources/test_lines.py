"""Laws of cutting bytes into records: each record once, in order, at its place, whatever the cuts."""

from __future__ import annotations

import io
from collections.abc import Iterable
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from packline.sources.batch import Block
from packline.sources.lines import read_lines, seek_record

Record = tuple[int, bytes, bool]
"""Position, bytes with the delimiter, whether it was too large."""

# Few letters and many newlines, so that every kind of cut falls everywhere.
lines = st.lists(
    st.sampled_from([b"", b"a", b"bb", b"\r", b"c" * 9, b"\xff\x00", b"d" * 40]), max_size=12
).flatmap(lambda parts: st.sampled_from([b"\n".join(parts), b"\n".join([*parts, b""])]))
sizes = st.integers(1, 64)


def records_of(data: bytes, delimiter: bytes, most: int) -> list[Record]:
    """The same in the simplest way: `bytes.split` and a running sum."""
    pieces = data.split(delimiter)
    records = [piece + delimiter for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])
    found, position = [], 0
    for record in records:
        found.append((position, record, len(record) > most))
        position += len(record)
    return found


def records_in(blocks: Iterable[Block]) -> list[Record]:
    """What blocks hold, a record that came in pieces put together again."""
    found: list[Record] = []
    for block in blocks:
        data = bytes(block.data)  # at once: the next block takes its place
        if block.problem:
            assert block.problem == "too_large"
            if block.continued:
                position, before, _ = found.pop()
                assert position + len(before) == block.position
                found.append((position, before + data, True))
            else:
                found.append((block.position, data, True))
            continue
        bounds = [*block.starts.tolist(), len(data)]
        assert bounds[0] == 0
        found += [(block.position + begin, data[begin:end], False) for begin, end in pairwise(bounds)]
    return found


@given(lines, st.lists(st.integers(0, 120), max_size=4), sizes, sizes)
@example(b"x" * 40 + b"\nab\ncd\n", [42], 8, 20)  # a range ends just behind a record that is too long
@example(b"x" * 40 + b"\nab\n" + b"y" * 40 + b"\n", [], 8, 16)  # a short record between two long ones
def test_neighbouring_ranges_take_each_record_exactly_once(
    data: bytes, cuts: list[int], block_bytes: int, max_bytes: int
) -> None:
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    found: list[Record] = []
    for start, stop in pairwise(bounds):
        file = io.BytesIO(data)
        begin = seek_record(file, start)
        assert file.tell() == begin
        if begin < stop:
            blocks = read_lines(file.readinto, begin, stop=stop, max_bytes=max_bytes, block_bytes=block_bytes)
            found += records_in(blocks)
    assert found == records_of(data, b"\n", max_bytes)


@given(lines, sizes, sizes)
def test_where_the_bytes_broke_off_only_the_last_record_is_lost(
    data: bytes, block_bytes: int, max_bytes: int
) -> None:
    blocks = [
        (bytes(block.data), block.problem, block.position)
        for block in read_lines(
            io.BytesIO(data).readinto,
            0,
            max_bytes=max_bytes,
            block_bytes=block_bytes,
            problem=lambda: ("truncated_stream", "cut off"),
        )
    ]
    whole = data.rpartition(b"\n")[0] + b"\n" if b"\n" in data else b""
    rest = data[len(whole) :]
    last, reason, position = blocks[-1]
    if len(rest) <= max_bytes:
        # Even if nothing stands behind the last delimiter: that something did is known.
        assert (last, reason, position) == (rest, "truncated_stream", len(whole))
    assert b"".join(part for part, *_ in blocks) == data
