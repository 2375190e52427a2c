"""Whole records: in every file format the same values, each at its place, whatever the ranges."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.errors import InputError
from packline.sources.batch import Reject
from packline.sources.files import InputFile
from packline.sources.records import MAX_RECORD_BYTES, Record, files_of, read_records, records_of

names = st.sampled_from(["a", "b", "c"])
plain = st.one_of(st.text(max_size=5), st.integers(-(2**40), 2**40), st.booleans())
records = st.dictionaries(names, plain | st.dictionaries(names, plain, max_size=2), max_size=3)


def file_at(path: Path, format: Any = "jsonl", compression: Any = "") -> InputFile:
    return InputFile(3, 0, path.name, str(path), path.stat().st_size, "", format, compression)


@given(st.lists(records | st.just(None), max_size=9), st.booleans(), st.integers(0, 400))
def test_lines_and_arrays_give_each_record_once_at_its_byte(
    lines: list[dict[str, Any] | None], packed: bool, cut: int
) -> None:
    parts = [b" " if one is None else json.dumps(one, ensure_ascii=False).encode() for one in lines]
    data = b"\n".join(parts)
    given_ = [one for one in lines if one is not None]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "x.jsonl"
        path.write_bytes(gzip.compress(data) if packed else data)
        file = file_at(path, compression="gzip" if packed else "")
        cuts = [0, file.size] if packed else [0, min(cut, file.size), file.size]
        found = [
            one for start, stop in pairwise(cuts) for one in read_records(file, start, stop, MAX_RECORD_BYTES)
        ]
        path = Path(name) / "x.json"
        array = b"[" + b",\n".join(part for part in parts if part.strip()) + b"]"
        path.write_bytes(gzip.compress(array) if packed else array)
        file = file_at(path, "text", "gzip" if packed else "")
        elements = list(read_records(file, 0, file.size, MAX_RECORD_BYTES))
    for whole, read in ((data, found), (array, elements)):
        assert [one.value for one in read if isinstance(one, Record)] == given_
        assert len(read) == len(given_)
        for one in read:
            assert one.raw and whole[one.position : one.position + len(one.raw)] == one.raw


@given(st.lists(records, min_size=1, max_size=6))
def test_rows_are_the_records_without_what_arrow_fills_in(lines: list[dict[str, Any]]) -> None:
    texts = [{name: json.dumps(value) for name, value in one.items()} for one in lines]
    nested = [{"id": number, "in": one, "list": [one, None]} for number, one in enumerate(texts)]
    kind = pa.struct([(name, pa.string()) for name in "abc"])
    schema = pa.schema({"id": pa.int64(), "in": kind, "list": pa.list_(kind)})
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "x.parquet"
        pq.write_table(pa.Table.from_pylist(nested, schema), path, row_group_size=2)
        found = list(read_records(file_at(path, "parquet"), 0, 1, MAX_RECORD_BYTES))
    assert [(one.position, one.value) for one in found if isinstance(one, Record)] == list(enumerate(nested))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": }', "malformed_json"),
        (b'{"a": "\xff"}', "invalid_utf8"),
        (b"[" * 100_000, "malformed_json"),
        (b'{"a": "' + b"x" * 300 + b'"}', "too_large"),
    ],
)
def test_a_bad_line_is_kept_verbatim_and_costs_no_other(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"n": 1}\n' + line + b'\n{"n": 2}\n')
    most = 200 if reason == "too_large" else MAX_RECORD_BYTES
    first, *bad, last = read_records(file_at(path), 0, path.stat().st_size, most)
    assert isinstance(first, Record) and isinstance(last, Record)
    assert (first.value, last.value) == ({"n": 1}, {"n": 2}) and last.position == 10 + len(line)
    rejects = [one for one in bad if isinstance(one, Reject)]
    assert len(rejects) == len(bad) and b"".join(one.raw for one in rejects).rstrip(b"\n") == line
    assert (rejects[0].file, rejects[0].position, rejects[0].reason) == (3, 9, reason)


def test_evaluation_records_are_the_same_from_every_file_and_name_their_place(tmp_path: Path) -> None:
    rows = [{"q": 'naïve, "x"\n', "n": "1"}, {"q": "日", "n": "2"}]
    lines = "\n\n".join(json.dumps(one) for one in rows)
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    table = io.StringIO()
    csv.writer(table).writerows([list(one.values()) for one in rows])
    (tmp_path / "a.csv").write_text(table.getvalue(), newline="")
    for name, units in (("a.jsonl", ("line 1", "line 3")), ("a.jsonl.gz", ("line 1", "line 3")),
                        ("a.parquet", ("row 0", "row 1"))):  # fmt: skip
        expected = [(f"{tmp_path / name}, {unit}", row) for unit, row in zip(units, rows, strict=True)]
        assert list(records_of(str(tmp_path / name))) == expected
    assert [row for _, row in records_of(str(tmp_path / "a.csv"))] == [list(one.values()) for one in rows]
    for name, data in (("a.jsonl", b"{"), ("a.parquet", b"PAR1"), ("a.csv", b'"open')):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=f"{name}.* not "):
            list(records_of(str(tmp_path / name)))


def test_a_compressed_file_that_ends_early_is_refused_not_read_in_part(tmp_path: Path) -> None:
    for name, row in (("a.csv.gz", b"%d,x\n"), ("a.jsonl.gz", b"[%d]\n")):
        rows = b"".join(row % (number * number) for number in range(100_000))
        packed = gzip.compress(rows)
        (tmp_path / name).write_bytes(packed[: len(packed) // 2])
        with pytest.raises(InputError, match=f"{name}: the gzip stream ends inside a frame"):
            list(records_of(str(tmp_path / name)))


def test_of_several_files_only_the_test_split_is_taken(tmp_path: Path) -> None:
    for name in ("train-0.jsonl", "test-0.jsonl", "latest.jsonl", "sub/test/b.csv", "notes.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert [Path(one).name for one in files_of(str(tmp_path))] == ["b.csv", "test-0.jsonl"]
    (tmp_path / "test-0.jsonl").unlink()
    (tmp_path / "sub/test/b.csv").unlink()
    assert [Path(one).name for one in files_of(str(tmp_path))] == ["latest.jsonl", "train-0.jsonl"]
    with pytest.raises(InputError, match="found no such file"):
        files_of(str(tmp_path / "sub"))
