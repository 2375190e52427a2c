"""Streams are cut into chunks of whole records, the same cuts whatever is read, written or left out."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.reading import files_of, source_of

from packline.fingerprint import hash_bytes
from packline.recipe import Source
from packline.sources import stream_splitter
from packline.sources.files import InputFile
from packline.sources.stream_splitter import StreamChunk, StreamEnd, delimiter_of, split_stream


def split(
    file: InputFile, source: Source, folder: Path, size: int, skip: frozenset[int] = frozenset()
) -> tuple[list[StreamChunk], StreamEnd]:
    folder.mkdir(exist_ok=True)
    *chunks, end = split_stream(file, source, folder, chunk_bytes=size, max_document_bytes=30, skip=skip)
    assert isinstance(end, StreamEnd) and end.chunks == len(chunks)
    return [one for one in chunks if isinstance(one, StreamChunk)], end


@given(
    st.lists(st.sampled_from([b"", b"a", b"bb\r", b"\xff" * 9, b"d" * 200]), max_size=25),
    st.booleans(),
    st.sampled_from(["", ".gz"]),
    st.integers(1, 120),
    st.integers(1, 64),
    st.frozensets(st.integers(0, 6)),
)
def test_chunks_are_the_stream_cut_behind_records(
    lines: list[bytes], ended: bool, ending: str, size: int, block: int, skip: frozenset[int]
) -> None:
    data = b"\n".join(lines) + (b"\n" if ended else b"")
    with tempfile.TemporaryDirectory() as name, mock.patch.object(stream_splitter, "CUT_BYTES", block):
        folder = Path(name)
        path = folder / f"x.jsonl{ending}"
        path.write_bytes(gzip.compress(data) if ending else data)
        source = source_of(path, format="jsonl", text="text")
        (file,) = files_of(source)
        chunks, end = split(file, source, folder / "all", size)
        position = 0
        for number, chunk in enumerate(chunks):
            assert (chunk.number, chunk.position) == (number, position)
            assert position == 0 or data[position - 1 : position] == b"\n"
            held = Path(chunk.path).read_bytes()
            assert held == data[position : position + chunk.input_bytes]
            assert len(held) >= size or number == len(chunks) - 1
            position += len(held)
        assert position == len(data)
        assert end.checksum == hash_bytes(path.read_bytes())
        some, again = split(file, source, folder / "some", size, skip)
        assert again == end
        for before, after in zip(chunks, some, strict=True):
            assert (after.position, after.input_bytes) == (before.position, before.input_bytes)
            assert bool(after.path) == (after.number not in skip)
        written = {path.name for path in (folder / "some").iterdir()}
        assert written == {Path(one.path).name for one in some if one.path}


def test_a_cut_stream_ends_with_a_chunk_that_names_the_problem(tmp_path: Path) -> None:
    data = b"".join(b'{"text": "%d"}\n' % number for number in range(4000))
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(data)[:-2000])
    source = source_of(path, format="jsonl", text="text")
    (file,) = files_of(source)
    chunks, _ = split(file, source, tmp_path / "cut", 9000)
    *whole, last = chunks
    assert whole and all(one.problem is None for one in whole)
    assert last.problem is not None and last.problem[0] == "truncated_stream"
    held = b"".join(Path(one.path).read_bytes() for one in chunks)
    assert held and data.startswith(held) and len(held) < len(data)


def test_chunks_of_parquet_hold_each_row_once_and_its_number(tmp_path: Path) -> None:
    texts = [f"text {number} " * (number % 7) for number in range(400)]
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": texts, "other": texts}), path, row_group_size=150)
    source = source_of(path)
    (file,) = files_of(source)
    ends = set()
    for size in (1, 1 << 30):
        with mock.patch("packline.sources.parquet.CUT_BYTES", 1000):
            chunks, end = split(file, source, tmp_path / str(size), size)
        ends.add(end.checksum)
        found: list[str] = []
        for chunk in chunks:
            assert chunk.position == len(found)
            table = pa.ipc.open_stream(chunk.path).read_all()
            assert table.column_names == ["text"]
            found += table["text"].to_pylist()
        assert found == texts and not any(chunk.lost for chunk in chunks)
    assert len(ends) == 1  # the checksum is of the rows, not of the cuts


@pytest.mark.parametrize("documents", ["file", "line", "separator"])
def test_only_sections_of_text_end_with_the_separator(tmp_path: Path, documents: str) -> None:
    (tmp_path / "x.txt").write_text("a--b")
    (tmp_path / "x.jsonl").write_text('{"text": "a"}')
    source = source_of(tmp_path, documents=documents, separator="--" if documents == "separator" else None)
    found = {file.format: delimiter_of(file, source) for file in files_of(source)}
    assert found == {"text": b"--" if documents == "separator" else b"\n", "jsonl": b"\n"}
