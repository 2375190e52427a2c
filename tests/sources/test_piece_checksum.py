"""The checksum of a piece from its bytes alone is the one that reading the documents gives."""

from __future__ import annotations

import gzip
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sources.reading import files_of, source_of

from packline.fingerprint import Hasher
from packline.recipe import Source
from packline.sources.reader import FileEnd, Span, piece_checksum, read_slices, read_span, stream_checksum

LINES = st.lists(st.sampled_from(['{"text": "a"}', "", '{"text": "' + "b" * 60 + '"}', "{", "\ufeff", "\r"]))
DATA = st.tuples(LINES.map("\n".join), st.sampled_from(["", "\n"])).map(lambda pair: "".join(pair).encode())
KINDS: dict[str, dict[str, Any]] = {
    "jsonl": {"format": "jsonl"},
    "line": {"format": "text", "documents": "line"},
    "file": {"format": "text"},
    "separator": {"format": "text", "documents": "separator", "separator": "bb"},
    "filtered": {"format": "jsonl", "where": "text != 'a'", "rare_fields": ("text",)},
}


def by_reading(source: Source, span: Span, most: int) -> str:
    (file,), hasher = files_of(source), Hasher()
    for _ in read_span(file, source, span, most, hasher):
        pass
    return str(hasher.hexdigest())


@settings(max_examples=60)
@given(DATA, st.sampled_from(sorted(KINDS)), st.lists(st.integers(0, 300)), st.sampled_from([20, 1000]))
def test_of_ranges_of_a_plain_file(data: bytes, kind: str, cuts: list[int], most: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a")
        path.write_bytes(data)
        source = source_of(path, **KINDS[kind])
        (file,) = files_of(source)
        inner = [cut for cut in cuts if cut < len(data)] if kind in ("jsonl", "line", "filtered") else []
        for start, stop in pairwise(sorted({0, *inner, len(data)})):
            span = Span(0, start, stop)
            assert piece_checksum(file, source, span, most) == by_reading(source, span, most)


@pytest.mark.parametrize("kind", ["jsonl", "file", "separator"])
def test_of_a_compressed_file_as_a_whole_and_as_a_stream(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b'{"text": "one"}\n' * 9000) + gzip.compress(b"{}\n") + bytes(100))
    source = source_of(path, **KINDS[kind])
    (file,) = files_of(source)
    span = Span(0, 0, file.size)
    assert piece_checksum(file, source, span, 999_999) == by_reading(source, span, 999_999)
    *_, end = read_slices(
        file, source, slice_bytes=999, max_document_bytes=999_999, wanted=lambda number: False
    )
    assert isinstance(end, FileEnd) and stream_checksum(file, source, 999_999) == end.checksum


@pytest.mark.parametrize("settings", [{}, {"where": "number > 3"}])
def test_of_parquet(tmp_path: Path, settings: dict[str, Any]) -> None:
    table = pa.table({"text": [f"text {number}" for number in range(90)], "number": list(range(90))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=20)
    source = source_of(tmp_path / "a.parquet", **settings)
    from packline.recipe import Recipe
    from packline.sources.fields import find_files

    (file,) = find_files(Recipe(sources=(source,), tokenizer="none"))
    *_, end = read_slices(file, source, slice_bytes=99, max_document_bytes=999, wanted=lambda number: False)
    assert isinstance(end, FileEnd) and stream_checksum(file, source, 999) == end.checksum
    assert end.slices == 5  # one of each row group
    assert piece_checksum(file, source, Span(0, 1, 3), 999) != end.checksum
