"""Plain text: whole files, lines and what stands between separators, against `str.split`."""

from __future__ import annotations

import gzip
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.sources.reading import read_file, read_sliced, set_block_bytes, source_of

any_text = st.text(st.sampled_from("ab\r\n\t \x00é漢\u2028\x85\ufeff"), max_size=80)
quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


def lines_of(text: str) -> list[str]:
    """`\\n` ends a line and nothing else does; one `\\r` before it goes with it."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


@quick
@given(text=any_text, block=st.integers(1, 50), cuts=st.lists(st.integers(1, 150), max_size=3))
@example(text="a\r\nb\r", block=50, cuts=[])
@example(text="a\nb\r", block=50, cuts=[])
def test_lines_are_documents(tmp_path: Path, text: str, block: int, cuts: list[int]) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x\n" + text.encode())  # whatever the text begins with, it is no mark
    source = source_of(path, documents="line")
    with pytest.MonkeyPatch.context() as patch:
        set_block_bytes(patch, block)
        read = read_file(source, cuts)
    assert read.texts == ["x", *lines_of(text)]
    raw = path.read_bytes()
    assert read.positions == [0] + [place for place in range(1, len(raw)) if raw[place - 1] == 10]
    assert not read.rejects and set(read.ids) == {None}


@quick
@given(
    text=st.text(st.sampled_from("ab-\n"), max_size=80),
    separator=st.sampled_from(["-", "--", "\n\n", "a-a", "---"]),
    block=st.integers(1, 50),
    slice_bytes=st.integers(1, 90),
)
@example(text="a---b", separator="--", block=4, slice_bytes=1)
@example(text="a---", separator="--", block=50, slice_bytes=90)
def test_documents_stand_between_separators(
    tmp_path: Path, text: str, separator: str, block: int, slice_bytes: int
) -> None:
    expected = text.split(separator)
    starts = [0, *accumulate(len(piece) + len(separator) for piece in expected)][:-1]
    if not expected[-1]:
        expected.pop()
        starts.pop()
    plain, packed = tmp_path / "a.txt", tmp_path / "a.txt.gz"
    plain.write_bytes(text.encode())
    packed.write_bytes(gzip.compress(text.encode(), 1))
    with pytest.MonkeyPatch.context() as patch:
        set_block_bytes(patch, block)
        for path in (plain, packed):
            source = source_of(path, documents="separator", separator=separator)
            read = read_file(source)
            assert (read.texts, read.positions) == (expected, starts)
            assert read_sliced(source, slice_bytes)[0] == read


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_file_is_a_document_as_it_stands(tmp_path: Path, pack) -> None:
    text = "one\r\ntwo\n\n\x00 é\ufeff"
    path = tmp_path / "a"
    path.write_bytes(pack(b"\xef\xbb\xbf" + text.encode()))
    read = read_file(source_of(path))
    assert (read.texts, read.positions, read.rejects) == ([text], [0], [])


def test_a_file_that_is_not_utf8_is_one_reject_with_the_place_of_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"caf\xe9 au lait")
    read = read_file(source_of(path))
    (reject,) = read.rejects
    assert (reject.reason, reject.raw) == ("invalid_utf8", b"caf\xe9 au lait")
    assert "0xe9 at offset 3" in reject.detail


def test_a_line_that_is_not_utf8_costs_itself_only(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ncaf\xe9\r\ntwo\r\n")
    read = read_file(source_of(path, documents="line"))
    assert read.texts == ["one", "two"]
    (reject,) = read.rejects
    assert (reject.position, reject.raw) == (8, b"caf\xe9\r")
    assert "offset 11" in reject.detail


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_file_beyond_the_limit_is_one_reject_whole_and_verbatim(tmp_path: Path, pack) -> None:
    data = bytes(range(1, 128)) * 30_000
    path = tmp_path / "a.txt"
    path.write_bytes(pack(data))
    read = read_file(source_of(path), most=2_500_000)
    (reject,) = read.rejects
    assert reject.reason == "too_large" and reject.raw == data and not read.texts


def test_a_broken_compressed_file_is_one_reject_with_what_could_be_read(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(20_000))
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(text.encode())[:-1000])
    read = read_file(source_of(path))
    (reject,) = read.rejects
    assert (
        reject.reason == "truncated_stream"
        and text.encode().startswith(reject.raw)
        and len(reject.raw) > 1000
    )
    lines = read_file(source_of(path, documents="line"))
    (reject,) = lines.rejects
    assert text.startswith("\n".join(lines.texts) + "\n" + reject.raw.decode())
    assert reject.position == len("\n".join(lines.texts)) + 1
