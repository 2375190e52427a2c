"""Lone surrogates and numbers out of range: fields that nobody asks for cost no conversation."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chat import talks

import packline
from packline.sources.jsonl import decode_odd, has_raw, is_utf8

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
