"""JSON that is unusual and right: no text is lost for what stands in another field, by any way of reading."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cli.command import run
from tests.jobs.builds import build
from tests.sources.reading import (
    Read,
    bytes_as_strings,
    collect,
    read_file,
    read_sliced,
    source_of,
    write_records,
)

from packline.recipe import Source
from packline.sources.files import InputFile
from packline.sources.jsonl import JsonlDecoder
from packline.sources.lines import read_lines
from packline.sources.record_text import JsonlRecords, RecordText

ODD_VALUES = (
    '"cut \\ud83d"',
    '{"\\ud800": [1, "\\udc00"]}',
    "1e400",
    "-1E+999",
    "[" + "9" * 5000 + "]",
    '{"deep": [1e400]}',
    "[" * 40 + "]" * 40,
)
PLAIN_VALUES = ('"title"', "7", "null", "[1.5, true]", '{"a": "b"}')
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def records_decoder(id: str | None) -> JsonlRecords:
    source = Source(inputs=("x",), template="{{ text }}")
    return JsonlRecords(RecordText(source, "", 1 << 20), id)


def decode(data: bytes, records: bool, id: str | None = "id", block_bytes: int = 1 << 20) -> Read:
    import io

    decoder = records_decoder(id) if records else JsonlDecoder("text", id)
    blocks = read_lines(io.BytesIO(data).readinto, 0, max_bytes=1 << 20, block_bytes=block_bytes)
    file: Any = InputFile(0, 0, "x.jsonl", "x.jsonl", 0, "", "jsonl", "", "", id) if records else 0
    return collect(decoder.decode(file, block) for block in blocks)


@pytest.mark.parametrize("records", [False, True], ids=["field", "template"])
@given(
    st.lists(st.tuples(text, st.sampled_from(ODD_VALUES + PLAIN_VALUES)), max_size=8), st.integers(40, 400)
)
@example([("good", ODD_VALUES[0]), ("good", ODD_VALUES[2])], 400)
def test_an_odd_field_that_nobody_wants_costs_nothing(
    records: bool, lines: list[tuple[str, str]], block_bytes: int
) -> None:
    data = "".join(f'{{"other": {odd}, "text": {json.dumps(one)}, "id": "x"}}\n' for one, odd in lines)
    read = decode(data.encode(), records, block_bytes=block_bytes)
    assert read.texts == [one for one, _ in lines] and not read.rejects
    assert read.ids == ["x"] * len(lines)


ODD_IDS: dict[bytes, str | None] = {
    b'"cut \\ud83d"': None,
    b'{"a": "\\ud800"}': None,
    b'"\xff"': None,
    b"1e400": "1e400",
    b"[1e400]": "[1e400]",
    b"9" * 5000: "9" * 5000,
    b"null": None,
    b"1000000000000000000000000000000": "1000000000000000000000000000000",
}


@pytest.mark.parametrize("records", [False, True], ids=["field", "template"])
@pytest.mark.parametrize("value", ODD_IDS, ids=lambda value: repr(value[:20]))
def test_an_odd_id_never_loses_its_text(value: bytes, records: bool) -> None:
    data = b'{"text": "a", "id": 1}\n{"text": "good", "id": ' + value + b'}\n{"text": "b", "id": 2}\n'
    read = decode(data, records)
    assert read.texts == ["a", "good", "b"] and not read.rejects
    assert read.ids == ["1", ODD_IDS[value], "2"]


RECORDS = [
    rb'{"text": "a", "id": "1"}',
    rb'{"text": "b", "id": "\ud800"}',
    b'{"text": "c", "id": "\xff"}',
    rb'{"text": "d", "id": null}',
    rb'{"text": "", "id": "\ud800"}',
    rb'{"text": "e", "id": ["\udc00"]}',
]


@pytest.mark.parametrize("template", [None, "{{ text }}"], ids=["field", "template"])
@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_documents_whose_id_cannot_be_kept_are_counted(
    kind: str, template: str | None, tokenizer_json: Path, tmp_path: Path
) -> None:
    path, texts = tmp_path / f"in.{kind}", ["a", "b", "c", "d", "", "e"]
    if kind == "parquet":
        ids = bytes_as_strings([b"1", b"\xed\xa0\x80", b"\xff", None, b"\xff", b"\xfe"])
        pq.write_table(pa.table({"text": texts, "id": ids}), path)
    else:
        joined = b"[" + b", ".join(RECORDS) + b"]" if kind == "json" else b"\n".join(RECORDS)
        path.write_bytes(joined)
    more: dict[str, Any] = {} if template is None else {"template": template}
    store = build(tmp_path / "store", path, tokenizer_json, **more)
    assert [store.provenance(place).id for place in range(5)] == ["1", None, None, None, None]
    assert store.manifest.ledger.lost_ids == 3 and store.verify().ok
    for most, lost in ((1, msgspec.UNSET), (2, 1)):
        part = build(tmp_path / f"{most}", path, tokenizer_json, limit_documents=most, **more)
        assert part.manifest.ledger.lost_ids == lost
    assert b"lost_ids" not in (tmp_path / "1/manifest.json").read_bytes()


def test_lost_ids_are_told_at_the_end_of_a_build_and_by_info(tokenizer_json: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(RECORDS))
    done = run("build", "in.jsonl", "--tokenizer", tokenizer_json, "--out", "store", cwd=tmp_path)
    told = re.compile(r"without their id +3 .*no valid Unicode")
    assert told.search(done.stdout) and told.search(run("info", "store", cwd=tmp_path).stdout)


BAD: dict[bytes, tuple[str, str]] = {
    b'{"text": "a\\ud800", "title": "\\ud83d"}': ("lone_surrogate", "d800"),
    b'{"title": "\\ud83d", "text": "\xff"}': ("invalid_utf8", "0xff"),
    b'{"title": "\\ud83d"}': ("missing_field|template", "text"),
    b'{"title": "\\ud83d", "text": 7}': ("not_a_string|", "text"),
    b'{"text": "a", "n": 1e400, "m": NaN}': ("malformed_json", ""),
    b'{"text": "a", "t": "\\ud83d"} x': ("malformed_json", ""),
}


@pytest.mark.parametrize("records", [False, True], ids=["field", "template"])
@pytest.mark.parametrize("line", BAD, ids=repr)
def test_what_is_wrong_with_the_text_is_told(line: bytes, records: bool) -> None:
    read = decode(b'{"text": "a"}\n' + line + b"\n", records)
    reasons, part = BAD[line]
    if records and reasons.endswith("|"):
        assert read.texts == ["a", "7"]  # a template prints numbers
        return
    (reject,) = read.rejects
    assert reject.reason in reasons.split("|") and part in reject.detail
    assert (reject.raw, reject.position) == (line, 14)


@pytest.mark.parametrize("records", [False, True], ids=["field", "template"])
def test_a_bad_first_line_keeps_its_byte_order_mark(records: bool) -> None:
    for first in (b"\xef\xbb\xbf{bad", b'\xef\xbb\xbf{"text": "\xff"}', b"\xef\xbb\xbf  [1]"):
        read = decode(first + b'\n{"text": "a"}\n', records)
        assert read.texts == ["a"]
        assert [(reject.position, reject.raw) for reject in read.rejects] == [(0, first)]


def test_ids_that_begin_late_in_a_file_are_taken(tmp_path: Path) -> None:
    fields: list[dict[str, Any]] = [{"text": f"t{n}"} for n in range(40)]
    fields += [{"text": f"t{n}", "id": n} for n in range(40, 50)]
    source = source_of(write_records(tmp_path / "a.jsonl", fields))
    for read in (read_file(source), read_sliced(source, 200)[0]):
        assert read.ids == [None] * 40 + [str(n) for n in range(40, 50)]


def test_a_carriage_return_between_values_hides_no_field(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"content":\r"a",\r"id": 1}\n{"content":\r"b",\r"id": 2}\n')
    read = read_file(source_of(path))
    assert read.texts == ["a", "b"] and read.ids == ["1", "2"]


def test_a_text_below_the_default_id_has_no_id(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"id": {"body": "a"}}\n')
    read = read_file(source_of(path, text="id.body"))
    assert read.texts == ["a"] and read.ids == [None]
