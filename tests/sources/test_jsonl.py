"""JSON lines against the standard library's own decoder, and every kind of bad line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.sources.reading import Read, collect, read_file, read_sliced, set_block_bytes, source_of

from packline.sources.jsonl import JsonlDecoder
from packline.sources.lines import read_lines

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
value: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
record = st.fixed_dictionaries({"text": text}, optional={"id": value, "other": value, "text2": value})
ends = st.sampled_from([b"\n", b"\r\n", b" \n", b"\n\n", b"\n \t\r\n"])


def decode(data: bytes, text: str = "text", id: str | None = "id", block_bytes: int = 64) -> Read:
    import io

    decoder = JsonlDecoder(text, id)
    blocks = read_lines(io.BytesIO(data).readinto, 0, max_bytes=1 << 20, block_bytes=block_bytes)
    return collect(decoder.decode(0, block) for block in blocks)


def as_id(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def same_id(found: str | None, expected: Any) -> bool:
    """Equal strings; what is no string is JSON for an equal value."""
    if expected is None or isinstance(expected, str):
        return found == expected
    return found is not None and json.loads(found) == expected


@given(st.lists(st.tuples(record, st.booleans(), ends), max_size=8), st.booleans(), st.integers(8, 400))
@example([({"text": "a", "id": 10**30}, True, b"\n")], True, 99)
def test_records_are_those_of_the_standard_library(
    records: list[tuple[dict[str, Any], bool, bytes]], mark: bool, block_bytes: int
) -> None:
    data = b"\xef\xbb\xbf" if mark else b""
    expected: list[tuple[str, Any, int]] = []
    for fields, ascii, end in records:
        line = json.dumps(fields, ensure_ascii=ascii).encode()
        # The mark is white space before the first line.
        expected.append((fields["text"], fields.get("id"), 0 if not expected else len(data)))
        data += line + end
    read = decode(data, block_bytes=block_bytes)
    assert read.texts == [text for text, _, _ in expected]
    assert read.positions == [position for _, _, position in expected]
    assert all(same_id(found, id) for found, (_, id, _) in zip(read.ids, expected, strict=True))
    assert not read.rejects


BAD_LINES: dict[bytes, str] = {
    b"nonsense": "malformed_json",
    b'{"text": "a"': "malformed_json",
    b'{"text": "a"} {"text": "b"}': "malformed_json",
    b'{"text": "a"}{"text": "b"}': "malformed_json",
    b'{"text": "raw nul \x00"}': "malformed_json",
    b'{"text": "a", "other": NaN}': "malformed_json",
    b"\x00": "malformed_json",
    b"{}": "missing_field",
    b'{"Text": "a"}': "missing_field",
    b'{"text": null}': "not_a_string",
    b'{"text": ["a"]}': "not_a_string",
    b'{"text": 7}': "not_a_string",
    b'["text"]': "not_a_string",
    b"7": "not_a_string",
    b'{"text": "\xff"}': "invalid_utf8",
    b'{"text": "cut \xe2\x82"}': "invalid_utf8",
    b'{"text": "\xed\xa0\x80"}': "invalid_utf8",
    b'{"text": "\\ud800"}': "lone_surrogate",
    b'{"text": "b\\udc00a"}': "lone_surrogate",
    b'{"text": "swapped \\udc00\\ud800"}': "lone_surrogate",
    b'{"text": "a", "other": ' + b"[" * 200_000: "malformed_json",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: repr(line[:40]))
def test_a_bad_line_costs_itself_only_and_says_why(line: bytes) -> None:
    before, after = b'{"text": "before", "id": 1}\n', b'{"text": "after", "id": 2}\n'
    read = decode(before + line + b"\n" + after, block_bytes=1 << 20)
    assert read.texts == ["before", "after"] and read.ids == ["1", "2"]
    assert read.positions == [0, len(before) + len(line) + 1]
    (reject,) = read.rejects
    assert (reject.reason, reject.position, reject.raw) == (BAD_LINES[line], len(before), line)
    assert reject.detail


def test_an_object_over_two_lines_is_two_bad_lines() -> None:
    # The decoder would take all three lines as three records: 1 over two lines, and 2 in the last.
    data = b'{"text":\n"a"}\n{"text": "b"} {"text": "c"}\n'
    read = decode(data, block_bytes=1 << 20)
    assert read.texts == []
    assert [reject.raw for reject in read.rejects] == data.splitlines()


@given(
    st.lists(st.one_of(record.map(lambda one: json.dumps(one).encode()), st.binary(max_size=20)), max_size=9)
)
@example([b"\xef\xbb\xbf"])
def test_any_lines_at_all_are_documents_or_rejects_at_their_places(lines: list[bytes]) -> None:
    lines = [line.replace(b"\n", b"") for line in lines]
    data = b"\n".join(lines)
    read = decode(data)
    places = dict(zip([sum(map(len, lines[:n])) + n for n in range(len(lines))], lines, strict=True))
    # A byte order mark belongs to the file, so a line of nothing else is a blank one.
    blank = {0} if data.startswith(b"\xef\xbb\xbf") and not lines[0][3:].strip() else set()
    given_lines = {place: line for place, line in places.items() if line.strip() and place not in blank}
    assert sorted(read.positions + [reject.position for reject in read.rejects]) == sorted(given_lines)
    for place, found in zip(read.positions, read.texts, strict=True):
        assert json.loads(places[place].removeprefix(b"\xef\xbb\xbf"), strict=False)["text"] == found
    for reject in read.rejects:
        assert reject.raw == places[reject.position]


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("a.b", "id"),
        ("a.b.c", "a.b.id"),
        ("a.b.c", "a.x.y"),
        ("text", "m.id"),
        ("a.b", "a.b"),
    ],
)
def test_dotted_fields_reach_into_objects(text: str, id: str) -> None:
    def nest(path: str, value: Any, into: dict[str, Any]) -> None:
        *outer, last = path.split(".")
        for name in outer:
            into = into.setdefault(name, {})
        into[last] = value

    lines, expected = [], []
    for number in range(5):
        fields: dict[str, Any] = {"other": [number]}
        if number != 3 and id != text:
            nest(id, number, fields)
        nest(text, f"text {number}", fields)
        lines.append(json.dumps(fields).encode() + b"\n")
        expected.append(f"text {number}" if id == text else None if number == 3 else str(number))
    read = decode(b"".join(lines), text, id)
    assert read.texts == [f"text {number}" for number in range(5)]
    assert read.ids == expected


def test_a_missing_object_on_the_way_to_the_text_is_told() -> None:
    read = decode(b'{"a": {"b": "good"}}\n{"a": null}\n{"a": {}}\n{"b": 1}\n', "a.b", None)
    assert read.texts == ["good"]
    assert [reject.reason for reject in read.rejects] == ["not_a_string", "missing_field", "missing_field"]
    assert all("'a.b'" in reject.detail for reject in read.rejects)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    cuts=st.lists(st.integers(1, 2500), max_size=4),
    slice_bytes=st.integers(1, 900),
    block=st.integers(20, 300),
)
def test_ranges_and_slices_of_a_file_give_the_same_documents(
    tmp_path: Path, cuts: list[int], slice_bytes: int, block: int
) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": "é" * (n % 37), "id": n}, ensure_ascii=n % 2 == 0) for n in range(40)]
    lines[7] = "bad"
    path.write_text("\n".join(lines), encoding="utf-8")
    source = source_of(path)
    whole = read_file(source)
    assert len(whole.texts) == 39 and len(whole.rejects) == 1
    with pytest.MonkeyPatch.context() as patch:
        set_block_bytes(patch, block)
        assert read_file(source, cuts) == whole
        sliced, count = read_sliced(source, slice_bytes)
        assert sliced == whole
        assert count > 1 or slice_bytes > 300
