"""Odd values in records of conversations: beside a conversation they cost nothing, in it they are told."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tests.chat.test_sft import PLAIN, make_tokenizer

import packline


def test_odd_json_beside_a_conversation_costs_nothing_and_within_it_is_told(
    tokenizer_json: Path, tmp_path: Path
) -> None:
    talk, cut = json.dumps(PLAIN), "\\ud83d"
    call = '{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"x": %s}}}]}'
    called = '[{"role": "user", "content": "go"}, %s, {"role": "tool", "content": "ok"}]'
    odd_call, odd_number = called % (call % f'"{cut}"'), called % (call % "1e400")
    lines = {
        f'{{"title": "cut \\ud83d", "messages": {talk}}}': "",
        f'{{"score": 1e400, "id": "\\ud800", "messages": {talk}}}': "",
        f'{{"id": 1e400, "messages": {talk}}}': "",
        f'{{"messages": {talk.replace("Say", f"Say {cut}")}}}': "lone_surrogate",
        f'{{"messages": {odd_call}}}': "lone_surrogate",
        f'{{"messages": {odd_number}}}': "malformed_json",
        f'{{"messages": {talk.replace("user", cut)}}}': "unknown_role",
    }
    path = tmp_path / "chat.jsonl"
    path.write_text("\n".join(lines))
    store = packline.sft(
        path,
        make_tokenizer(tokenizer_json, tmp_path / "tokenizer", "chatml"),
        out=tmp_path / "store",
        workers=0,
    )
    assert store.manifest.ledger.rejected == Counter(filter(None, lines.values()))
    assert store.manifest.ledger.documents == 3 and store.verify().ok
    assert [store.provenance(number).id for number in range(3)] == [None, None, "1e400"]
    raw = (store.path / "rejects" / "chat-000000.raw").read_text()
    assert raw == "".join(line for line, reason in lines.items() if reason)


def test_an_odd_value_in_a_row_costs_at_most_that_row(tokenizer_json: Path, tmp_path: Path) -> None:
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
        make_tokenizer(tokenizer_json, tmp_path / "tokenizer", "chatml"),
        out=tmp_path / "store",
        workers=0,
    )
    assert store.manifest.ledger.rejected == {"invalid_utf8": 1} and store.verify().ok
    assert [(one.position, one.id) for one in map(store.provenance, range(2))] == [(0, None), (2, "good")]
