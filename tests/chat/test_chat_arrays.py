"""Arrays of conversations: their records are those of JSON lines, wherever the bytes are cut."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chat import talks
from tests.chat.talks import PLAIN
from tests.chat.templates import CHATML, CHATML_TOKENS

import packline
from packline.errors import RecipeError
from packline.facade import Store
from packline.sources import json_array, sandbox
from packline.sources.files import plain_name
from packline.sources.json_array import Element, read_array

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
