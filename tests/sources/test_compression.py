"""gzip and zstd streams: every byte of a whole file, every byte before the damage of a broken one."""

from __future__ import annotations

import gzip
import io
import random
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from packline.fingerprint import hash_bytes
from packline.sources.compression import Compression, DecompressedStream, detect_compression

KINDS: list[Compression] = ["gzip", "zstd"]


def compress(kind: Compression, data: bytes) -> bytes:
    if kind == "gzip":
        return gzip.compress(data, 6, mtime=0)
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def skippable(data: bytes, number: int = 0) -> bytes:
    """A zstd frame that holds no data of the stream."""
    return (0x184D2A50 + number).to_bytes(4, "little") + len(data).to_bytes(4, "little") + data


def read_all(raw: bytes, kind: Compression, size: int = 1 << 16) -> tuple[bytes, DecompressedStream]:
    stream = DecompressedStream(io.BytesIO(raw), kind)
    parts = []
    while data := stream.read(size):
        parts.append(data)
    return b"".join(parts), stream


def prose(size: int) -> bytes:
    chooser = random.Random(7)
    words = [bytes(chooser.choices(b"abcdefghij ", k=chooser.randint(1, 9))) for _ in range(500)]
    return b" ".join(chooser.choices(words, k=size // 5))[:size]


members = st.lists(st.binary(max_size=300) | st.integers(0, 3000).map(lambda n: b"ab" * n), max_size=5)


@given(st.sampled_from(KINDS), members, st.integers(1, 5000), st.integers(0, 600))
@example("gzip", [b"one", b"", b"two"], 2, 0)
def test_all_members_and_frames_come_out_whatever_the_read_size(
    kind: Compression, parts: list[bytes], size: int, padding: int
) -> None:
    raw = b"".join(compress(kind, part) for part in parts) or compress(kind, b"")
    if kind == "gzip":
        raw += bytes(padding)
    data, stream = read_all(raw, kind, size)
    assert data == b"".join(parts)
    assert stream.problem is None
    assert stream.raw_bytes == len(raw) and stream.checksum() == hash_bytes(raw)


@pytest.mark.parametrize("gap", [1, 1000, 256 << 10, 300_000])
def test_zeros_between_gzip_members_are_padding(gap: int) -> None:
    raw = compress("gzip", b"one") + bytes(gap) + compress("gzip", b"two") + bytes(gap)
    data, stream = read_all(raw, "gzip")
    assert (data, stream.problem) == (b"onetwo", None)


def test_skippable_frames_are_skipped_and_recognised_at_the_start() -> None:
    raw = (
        skippable(b"note")
        + compress("zstd", b"one")
        + skippable(b"x" * 20_000, 15)
        + compress("zstd", b"two")
    )
    assert detect_compression(raw[:4]) == "zstd"
    data, stream = read_all(raw, "zstd")
    assert (data, stream.problem) == (b"onetwo", None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_cut_at_any_byte_says_so_unless_a_member_ends_there(kind: Compression) -> None:
    parts = [prose(400), b"", prose(900)[300:]]
    ends, raw, plain = {0}, b"", {0: b""}
    for part in parts:
        raw += compress(kind, part)
        ends.add(len(raw))
        plain[len(raw)] = plain[max(plain)] + part
    whole = b"".join(parts)
    for cut in range(len(raw)):
        data, stream = read_all(raw[:cut], kind)
        assert whole.startswith(data)
        if cut in ends:
            assert (data, stream.problem) == (plain[cut], None)
        else:
            assert stream.problem is not None
            assert (
                stream.problem[0] == "truncated_stream" and f"after {cut:,} compressed" in stream.problem[1]
            )
            assert data.startswith(plain[max(end for end in ends if end <= cut)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_byte_never_passes_for_the_data(kind: Compression) -> None:
    whole = prose(3000)
    raw = compress(kind, whole)
    unnoticed = 0
    for place in range(len(raw)):
        broken = bytearray(raw)
        broken[place] ^= 0x40
        data, stream = read_all(bytes(broken), kind)
        if data == whole and stream.problem is None:
            unnoticed += 1  # a bit of the header that means nothing here (a time, an operating system)
        else:
            assert stream.problem is not None, f"byte {place} gave other data without a word"
    assert unnoticed <= 10


@pytest.mark.parametrize("kind", KINDS)
def test_what_stood_before_the_damage_is_passed_on(kind: Compression) -> None:
    first, second = prose(200_000), prose(300_000)
    raw = bytearray(compress(kind, first) + compress(kind, second))
    at = len(compress(kind, first)) + len(compress(kind, second)) // 2
    raw[at : at + 40] = bytes(255 - byte for byte in raw[at : at + 40])
    data, stream = read_all(bytes(raw), kind)
    assert stream.problem is not None and stream.problem[0] == "corrupt_stream"
    assert data.startswith(first) and len(data) > len(first)


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("size", [100, 400_000])
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_checksum_at_the_end_costs_nothing_that_stood_before_it(
    kind: Compression, size: int, before: int
) -> None:
    data = prose(size)
    raw = bytearray(compress(kind, b"first\n") * before + compress(kind, data))
    raw[-6 if kind == "gzip" else -2] ^= 1  # within the checksum
    for after in (b"", compress(kind, b"behind")):
        found, stream = read_all(bytes(raw) + after, kind)
        assert found == b"first\n" * before + data
        assert stream.problem is not None and stream.problem[0] == "corrupt_stream"
        assert stream.checksum() == hash_bytes((bytes(raw) + after)[: stream.raw_bytes])


def zeros_behind_noise(kind: Compression, size: int) -> bytes:
    """Noise makes a reader take large steps; then a little input is a lot of output."""
    noise = random.Random(1).randbytes(1 << 20)
    compressor: Callable[[bytes], bytes]
    if kind == "gzip":
        packer = zlib.compressobj(9, wbits=31)
        compressor, finish = packer.compress, packer.flush
    else:
        frame = zstandard.ZstdCompressor().compressobj()
        compressor, finish = frame.compress, frame.flush
    raw = compressor(noise)
    for _ in range(size >> 20):
        raw += compressor(bytes(1 << 20))
    return raw + finish()


@pytest.mark.parametrize(
    ("kind", "size", "most"), [("gzip", 100 << 20, 30 << 20), ("zstd", 600 << 20, 400 << 20)]
)
def test_a_thousandfold_expansion_takes_bounded_memory(kind: Compression, size: int, most: int) -> None:
    # The worst step of 8 KiB gives 8 MiB from gzip and 256 MiB from zstd (twice that while it is joined).
    stream = DecompressedStream(io.BytesIO(zeros_behind_noise(kind, size)), kind)
    view, total = bytearray(1 << 20), 0
    tracemalloc.start()
    try:
        while count := stream.readinto(memoryview(view)):
            total += count
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == size + (1 << 20) and stream.problem is None
    assert peak < most
