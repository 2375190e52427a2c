"""A file that cannot be cut is read in slices of whole records, the same ones whatever is wanted of it."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.reading import Read, collect, files_of, source_of

from packline.fingerprint import hash_bytes
from packline.recipe import Source
from packline.sources import reader
from packline.sources.reader import FileEnd, delimiter_of, read_slices


def sliced(
    source: Source, size: int, wanted: frozenset[int] | None = None
) -> tuple[dict[int, Read], FileEnd]:
    """Slices of the one file of a source by number, those that are wanted, and its end."""
    (file,) = files_of(source)
    found: dict[int, Read] = {}
    asked: list[int] = []

    def want(number: int) -> bool:
        asked.append(number)
        return wanted is None or number in wanted

    for part in read_slices(file, source, slice_bytes=size, max_document_bytes=30, wanted=want):
        if isinstance(part, FileEnd):
            assert asked == list(range(part.slices))
            return found, part
        found[part.number] = collect(part.batches)
    raise AssertionError("a file has an end")


@given(
    st.lists(st.sampled_from([b"", b"a", b"bb\r", b"\xff" * 9, b"d" * 200]), max_size=25),
    st.booleans(),
    st.sampled_from(["", ".gz"]),
    st.integers(1, 120),
    st.integers(1, 64),
    st.frozensets(st.integers(0, 6)),
)
def test_slices_are_the_file_cut_behind_records(
    lines: list[bytes], ended: bool, ending: str, size: int, block: int, wanted: frozenset[int]
) -> None:
    data = b"\n".join(lines) + (b"\n" if ended else b"")
    with tempfile.TemporaryDirectory() as name, mock.patch.object(reader, "CUT_BYTES", block):
        path = Path(name) / f"x.txt{ending}"
        path.write_bytes(gzip.compress(data) if ending else data)
        source = source_of(path, format="text", documents="line")
        found, end = sliced(source, size)
        assert sorted(found) == list(range(end.slices)) and end.checksum == hash_bytes(path.read_bytes())
        # Each record is in one slice, in order; where they begin in the file is known by counting bytes.
        records = data.split(b"\n")
        records = records if records[-1] else records[:-1]
        starts = [sum(len(one) + 1 for one in records[:number]) for number in range(len(records))]
        placed = [place for number in sorted(found) for place in found[number].places()]
        assert placed == starts
        firsts = [min(found[number].places(), default=len(data)) for number in sorted(found)]
        for number, (first, following) in enumerate(zip(firsts, [*firsts[1:], len(data)], strict=True)):
            assert following - first >= size or number == end.slices - 1
        some, again = sliced(source, size, wanted)
        assert again == end and some == {number: one for number, one in found.items() if number in wanted}


def test_a_truncated_file_ends_with_a_slice_that_names_the_problem(tmp_path: Path) -> None:
    data = b"".join(b'{"text": "%d"}\n' % number for number in range(4000))
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(data)[:-2000])
    source = source_of(path, format="jsonl", text="text")
    with mock.patch.object(reader, "CUT_BYTES", 4000):
        found, end = sliced(source, 9000)
    *whole, last = (found[number] for number in range(end.slices))
    assert whole and not any(one.rejects for one in whole)
    assert [reject.reason for reject in last.rejects] == ["truncated_stream"]
    texts = [text for one in (*whole, last) for text in one.texts]
    assert texts == [str(number) for number in range(len(texts))] and 1000 < len(texts) < 4000


@pytest.mark.parametrize("documents", ["file", "line", "separator"])
def test_only_sections_of_text_end_with_the_separator(tmp_path: Path, documents: str) -> None:
    (tmp_path / "x.txt").write_text("a--b")
    (tmp_path / "x.jsonl").write_text('{"text": "a"}')
    source = source_of(tmp_path, documents=documents, separator="--" if documents == "separator" else None)
    found = {file.format: delimiter_of(file, source) for file in files_of(source)}
    assert found == {"text": b"--" if documents == "separator" else b"\n", "jsonl": b"\n"}
