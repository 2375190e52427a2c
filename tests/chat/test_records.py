"""Records of conversations: JSON arrays, and lone surrogates and numbers out of range in any file."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chat import talks
from tests.chat.talks import CHATML, CHATML_TOKENS, PLAIN

import packline
from packline.errors import RecipeError
from packline.facade import Store
from packline.sources import json_array, sandbox
from packline.sources.files import plain_name
from packline.sources.json_array import Element, read_array
from packline.sources.jsonl import decode_odd, has_raw, is_utf8

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def cut(data: bytes, size: int, max_bytes: int = 1 << 20) -> list[Element]:
    """The elements, where no more than `size` bytes are given at once."""
    stream = io.BytesIO(data)
    return list(read_array(lambda most: stream.read(min(size, most)), max_bytes))


@given(st.lists(VALUES, max_size=6), st.sampled_from([None, 1]), st.booleans(), st.integers(1, 40))
def test_elements_are_those_of_the_standard_library(
    values: list[Any], indent: int | None, ascii_only: bool, size: int
) -> None:
    data = ("\ufeff" + json.dumps(values, indent=indent, ensure_ascii=ascii_only) + "\n").encode("utf-8")
    found = cut(data, size)
    assert [json.loads(one.data) for one in found] == values
    assert all(data[one.position :].startswith(one.data) and not one.problem for one in found)


@given(st.lists(VALUES, min_size=1, max_size=5), st.integers(1, 40), st.data())
def test_an_array_that_breaks_off_gives_what_is_before_and_says_so(
    values: list[Any], size: int, data: st.DataObject
) -> None:
    whole = json.dumps(values).encode()
    end = data.draw(st.integers(1, len(whole) - 1))
    *found, last = cut(whole[:end], size)
    assert last.problem == ("malformed_json", "the JSON array is not closed")
    assert [json.loads(one.data) for one in found] == values[: len(found)]
    assert whole[last.position : end] == last.data


@given(st.lists(st.text(max_size=60), min_size=1, max_size=6), st.integers(1, 30), st.integers(8, 40))
def test_an_element_that_is_too_long_comes_in_pieces_and_takes_no_other_with_it(
    texts: list[str], size: int, most: int
) -> None:
    data = json.dumps(texts).encode()
    found: list[tuple[bytes, bool]] = []
    for one in cut(data, size, most):
        assert len(one.data) <= most + size
        if one.continued:
            found[-1] = (found[-1][0] + one.data, True)
        else:
            found.append((one.data, one.problem is not None))
    assert [json.loads(data) for data, _ in found] == texts
    for data, long in found:
        assert long or len(data) <= most


def test_what_stands_behind_the_end_is_reported() -> None:
    *_, last = cut(b'[1, 2]\n{"a": 1}', 4)
    assert last.problem and "behind the end" in last.problem[1]
    assert last.data.strip() == b'{"a": 1}'


def build(path: Path, out: Path, tokenizer: Path) -> Store:
    store = packline.sft(path, tokenizer, out=out, workers=0)
    assert store.verify().ok
    return store


def test_an_array_gives_the_tokens_of_json_lines(chatml: Path, tmp_path: Path) -> None:
    sharegpt = [
        {
            "id": f"c{number}",
            "conversations": [
                {"from": "human", "value": f'Say {number} "[,{{" \\ '},
                {"from": "gpt", "value": "日本\n]"},
            ],
        }
        for number in range(100)
    ]
    lines = talks.write(tmp_path / "chat.jsonl", sharegpt)
    (tmp_path / "chat.json").write_text(json.dumps(sharegpt, indent=2), "utf-8")
    (tmp_path / "chat2.json.gz").write_bytes(gzip.compress(json.dumps(sharegpt).encode()))
    (tmp_path / "lists.json").write_text(json.dumps([PLAIN] * 3), "utf-8")
    wanted = build(lines, tmp_path / "lines", chatml)
    for name in ("chat.json", "chat2.json.gz"):
        store = build(tmp_path / name, tmp_path / f"store of {name}", chatml)
        assert [one.tolist() for one in store.documents] == [one.tolist() for one in wanted.documents]
        found = store.provenance(7)
        assert found.id == "c7"
    raw = (tmp_path / "chat.json").read_bytes()
    position = Store(tmp_path / "store of chat.json").provenance(7).position
    assert json.JSONDecoder().raw_decode(raw[position:].decode())[0] == sharegpt[7]
    assert build(tmp_path / "lists.json", tmp_path / "lists", chatml).manifest.documents == 3


def test_bad_elements_are_kept_with_their_place_and_good_ones_are_read(
    chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_array, "BLOCK_BYTES", 64)
    good = json.dumps({"messages": PLAIN}).encode()
    long = b'["' + b"x" * 500 + b'"]'
    bad = [b'{"messages": nope}', json.dumps(PLAIN[:1]).encode(), long, b'["\xff"]']
    monkeypatch.setattr("packline.chat.sft_unit.MAX_RECORD_BYTES", 300)
    path = tmp_path / "chat.json"
    path.write_bytes(
        b"[" + b",\n".join(one for pair in zip([good] * 4, bad, strict=True) for one in pair) + b"]"
    )
    store = packline.sft(path, chatml, out=tmp_path / "store", workers=0)
    assert store.manifest.documents == 4
    assert store.manifest.ledger.rejected == dict.fromkeys(
        ("invalid_utf8", "malformed_json", "nothing_to_train", "too_large"), 1
    )
    assert store.verify().ok
    kept, raw = talks.rejects(store)
    assert [one.strip() for one in raw] == bad
    assert [one["file"] for one in kept] == ["chat.json"] * 4
    assert [
        path.read_bytes()[one["position"] :].lstrip().find(b) for one, b in zip(kept, bad, strict=True)
    ] == [0] * 4
    assert [one["detail"].split(":")[0] for one in kept] == [f"element {n}" for n in (1, 3, 5, 7)]


def test_json_lines_named_json_are_read(chatml: Path, tmp_path: Path) -> None:
    talks.write(tmp_path / "lines.json", [{"messages": PLAIN}] * 2)
    assert build(tmp_path / "lines.json", tmp_path / "store", chatml).manifest.documents == 2
    assert plain_name("A/b.JSON.gz") == "a/b.json"


def test_a_template_that_does_not_end_stops_the_job_with_the_place_of_the_conversation(
    tokenizer_json: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops = "{% for i in range(99999) %}{% for j in range(9) %}{{ '' if i == j }}{% endfor %}{% endfor %}"
    template = "{% if messages[0].content == 'loop' %}" + loops + "{% endif %}" + CHATML
    tokenizer = talks.with_tokens(tokenizer_json, tmp_path / "tokenizer", CHATML_TOKENS, template)
    loop = [{"role": "user", "content": "loop"}, PLAIN[1]]
    path = talks.write(tmp_path / "chat.jsonl", [PLAIN, loop])
    monkeypatch.setattr(sandbox, "MOST_SECONDS", 0.1)
    position = path.read_bytes().index(b"\n") + 1
    with pytest.raises(RecipeError, match=f"chat.jsonl, byte {position}: the template took 0.1 seconds"):
        packline.sft(path, tokenizer, out=tmp_path / "store", workers=0)


ASKED, SAID = '{"role": "user", "content": "Who?"}', '{"role": "assistant", "content": "Me."}'
OUTPUT = '{"role": "tool", "tool_call_id": "c0", "content": "4"}'


def talk(*messages: str, more: str = "") -> str:
    """A record as text, since not every one of these can be written by a library."""
    return '{"messages": [' + ", ".join(messages) + "]" + (f", {more}" if more else "") + "}"


def called(arguments: str) -> str:
    call = '{"id": "c0", "function": {"name": "add", "arguments": ' + arguments + "}}"
    return talk(ASKED, '{"role": "assistant", "tool_calls": [' + call + "]}", OUTPUT)


GOOD = [
    talk(ASKED, SAID),
    talk(ASKED, SAID, more=r'"title": "cut \ud83d", "id": "a"'),
    talk(ASKED, SAID, more=r'"\udc00": "a name", "id": "b\ud800"'),
    talk(ASKED, SAID, more='"score": 1e400, "id": 1e400'),
    talk(ASKED, SAID, more=r'"rows": [[-1e999, "\ud800"]], "id": ["\ud800"]'),
    talk(ASKED, SAID, more=f'"count": {"9" * 5000}, "id": 7'),
    talk(ASKED[:-1] + r', "mood": "\ud83d"}', SAID),
]
IDS = [None, "a", None, "1e400", None, "7", None]
BAD = [
    (talk(ASKED, SAID[:-2] + r' \ud83d"}'), "lone_surrogate"),
    (talk(ASKED, SAID[:-1] + r', "reasoning_content": "\ud83d"}'), "lone_surrogate"),
    (called(r'{"a": "\ud800"}'), "lone_surrogate"),
    (called(r'{"\ud800": 1}'), "lone_surrogate"),
    (called('{"a": 1e400}'), "malformed_json"),
    (talk(ASKED, SAID, more='"tools": [{"a": [1e400]}]'), "malformed_json"),
    (talk(ASKED, SAID, more=r'"tools": [{"a": "\ud800"}]'), "lone_surrogate"),
    (r'{"\ud800": 1}', "not_a_conversation"),
    (talk(r'{"role": "\ud800", "content": "a"}'), "unknown_role"),
    (talk(ASKED, SAID, more='"score": NaN'), "malformed_json"),
    (talk(ASKED, SAID, more='"score": 1e400,'), "malformed_json"),
]


@pytest.mark.parametrize("array", [False, True])
def test_what_nobody_asks_for_costs_no_conversation(array: bool, chatml: Path, tmp_path: Path) -> None:
    lines = [*GOOD, *(text for text, _ in BAD)]
    path = tmp_path / ("chat.json" if array else "chat.jsonl")
    path.write_text(f"[{', '.join(lines)}]" if array else "\n".join(lines), "utf-8")
    store = packline.sft(path, chatml, out=tmp_path / "store", workers=0)
    assert talks.trained_texts(store) == [["Me.<|im_end|>"]] * len(GOOD)
    assert [store.provenance(number).id for number in range(len(GOOD))] == IDS
    kept, raw = talks.rejects(store)
    assert [one["reason"] for one in kept] == [reason for _, reason in BAD]
    assert [one.decode() for one in raw] == [text for text, _ in BAD]
    assert store.manifest.ledger.imbalance() == []
    assert store.manifest.ledger.lost_ids == 2
    assert store.verify().ok


def test_an_odd_value_in_a_row_costs_at_most_that_row(chatml: Path, tmp_path: Path) -> None:
    raw = pa.array([b"good", b"\xff\xfe", b"good"], pa.binary())
    columns = {
        "prompt": pa.Array.from_buffers(pa.string(), 3, raw.buffers()),
        "response": pa.array(["a", "b", "c"]),
        "day": pa.array([0, 1, 10**7], pa.date32()),
        "id": pa.Array.from_buffers(pa.string(), 3, raw.buffers()).take(pa.array([1, 0, 2])),
    }
    pq.write_table(pa.table(columns), tmp_path / "chat.parquet")
    store = packline.sft(
        tmp_path / "chat.parquet",
        chatml,
        out=tmp_path / "store",
        workers=0,
    )
    assert store.manifest.ledger.rejected == {"invalid_utf8": 1} and store.verify().ok
    assert [(one.position, one.id) for one in map(store.provenance, range(2))] == [(0, None), (2, "good")]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
    max_leaves=6,
)


PUT = [*'"\\,:{}[]0-+.eN\n\x00u', r"\ud800", "1e400", "NaN"]


@given(JSON, st.integers(0, 200), st.sampled_from(PUT))
def test_only_what_is_unclean_is_read_a_second_time(value: object, place: int, put: str) -> None:
    text = json.dumps(value).replace("Infinity", "1e999")
    for one in (text, text[:place] + put + text[place:]):
        data = one.encode("utf-8")
        try:
            found = decode_odd(data)
        except ValueError:
            with pytest.raises(msgspec.MsgspecError):
                msgspec.json.decode(data)
            continue
        if is_utf8(found) and not has_raw(found):
            assert msgspec.json.decode(data) == found
