"""Carried columns on every surface: their counts are those of one loop, and documents are found by them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packline
from packline.cli.main import main
from packline.facade import Store
from packline.recipe import Recipe, Source
from packline.store.lookup import column_names
from packline.viewing import columns as columns_module
from packline.viewing.columns import ColumnCounts, count_columns, value_text

VALUES: dict[str, tuple[st.SearchStrategy[Any], pa.DataType]] = {
    "string": (st.sampled_from("abcdefg"), pa.string()),
    "integer": (st.integers(-5, 5), pa.int64()),
    "float": (st.floats(-9, 9), pa.float64()),
    "boolean": (st.booleans(), pa.bool_()),
    "timestamp": (st.datetimes(timezones=st.just(UTC)), pa.timestamp("us", "UTC")),
}


@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data())
def test_counts_of_pieces_are_those_of_the_whole(kind: str, data: st.DataObject) -> None:
    values, type = VALUES[kind]
    pieces = data.draw(st.lists(st.lists(st.none() | values, max_size=8), max_size=4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns_module, "MOST_VALUES", 3)
        counts = ColumnCounts("c", kind)
        for piece in pieces:
            counts.add(pa.chunked_array([pa.array(piece, type)]))
        described = counts.described
    whole = [value for piece in pieces for value in piece]
    known = [value for value in whole if value is not None]
    assert (counts.documents, counts.nulls) == (len(whole), len(whole) - len(known))
    if not known:
        assert described == "null only"
        return
    assert counts.first == known[0]
    if kind in ("string", "boolean"):
        different = {value: known.count(value) for value in set(known)}
        assert counts.values == (different if len(different) <= 3 else None)
        words = {1: f"{value_text(known[0])} only", 2: "2 different", 3: "3 different"}
        assert described.startswith(words.get(len(different), "over 3 different"))
    else:
        assert (counts.lowest, counts.highest) == (min(known), max(known))
    if kind in ("integer", "float"):
        assert counts.mean == pytest.approx(fmean(known), abs=1e-9)


def test_values_are_one_line() -> None:
    assert value_text("a\nb\x1b[2J") == "a↵b␛[2J"
    assert value_text(datetime(2026, 11, 22, 8, 30, tzinfo=UTC)) == "2026-11-22 08:30:00 UTC"
    assert [value_text(one) for one in (1234567, 0.1, False)] == ["1,234,567", "0.1", "false"]


def records(count: int) -> list[dict[str, Any]]:
    return [
        {"id": f"d{n}", "text": f"text {n}", "score": n % 5, "url": f"https://{'ab'[n % 2]}.org/{n}"}
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tokenizer_json: Path) -> Store:
    folder = tmp_path_factory.mktemp("columns")
    for name, count in (("a", 40), ("b", 10)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records(count)))
    sources = (
        Source(inputs=(str(folder / "a.jsonl"),), columns=("score", "url")),
        Source(inputs=(str(folder / "b.jsonl"),)),
    )
    recipe = Recipe(sources=sources, tokenizer=str(tokenizer_json))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packline.store.writer.ROW_GROUP", 7)
        return packline.build(recipe, out=folder / "out", workers=0)


def test_pages_show_columns(built: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert column_names(built)[-2:] == ["score", "url"]
    assert main(["info", str(built.path)]) == 0
    shown = capsys.readouterr().out
    assert "0 to 4, mean 2" in shown and "40 different: " in shown
    assert main(["info", str(built.path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(one["name"], one["type"], one["documents"]) for one in facts["columns"]] == [
        ("score", "integer", 40),
        ("url", "string", 40),
    ]
    assert facts["first_documents"][1]["columns"] == {"score": 1, "url": "https://b.org/1"}
    assert main(["view", str(built.path), "--document", "1", "--json"]) == 0
    viewed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (
        viewed["facts"]["url"] == "https://b.org/1" and "score 1" in viewed["strips"][0]["origins"][0]["text"]
    )
    packline.report(built, out=tmp_path / "report.html", workers=0)
    assert "0 to 4, mean 2" in (tmp_path / "report.html").read_text()


def test_counts_of_a_large_store_are_a_sample(
    built: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tokenizer_json: Path
) -> None:
    monkeypatch.setattr(columns_module, "MOST_DOCUMENTS", 1)
    (table,) = columns_module.column_table(built, count_columns(built))
    assert table.caption == "Columns"  # one shard of each source is always counted
    for name, count in (("large", 60), ("small", 50)):
        lines = [json.dumps({"text": f"{name} {number}", name: number}) for number in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    large = Source(inputs=(str(tmp_path / "large.jsonl"),), name="large", columns=("large",), split="train")
    small = Source(inputs=(str(tmp_path / "small.jsonl"),), name="small", columns=("small",))
    recipe = Recipe(sources=(large, small), tokenizer=str(tokenizer_json), val_fraction=0.5)
    store = packline.build(recipe, out=tmp_path / "store", workers=0, eod="<|endoftext|>")
    counts = count_columns(store)
    assert [(one.name, one.documents == 60, one.sampled) for one in counts] == [
        ("large", True, False),
        ("small", False, True),
    ]
    (table,) = columns_module.column_table(store, counts)
    assert table.caption == "Columns, of a sample of the documents"
    assert [one.as_json()["sampled"] for one in counts] == [False, True]


def test_a_choice_of_documents_is_listed(built: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(built.path), "--where", "score == 3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    (table,) = found["tables"]
    assert table["head"] == ["document", "begins", "tokens", "bytes", "source", "score", "url"]
    numbers = [number for number, one in enumerate(records(40)) if one["score"] == 3]
    assert [(int(row[0]), row[5], row[6]) for row in table["rows"]] == [
        (number, "3", f"https://{'ab'[number % 2]}.org/{number}") for number in numbers
    ]
    assert main(["view", str(built.path), "--where", "score == 3", "--first", "6"]) == 0
    shown = capsys.readouterr().out
    assert "6 to 7 of 8 documents" in shown and "https://a.org/38" in shown
    assert main(["view", str(built.path), "--where", "score > 9"]) == 1
    assert "no document is left of 50" in capsys.readouterr().err
    assert main(["view", str(built.path), "--where", "score == 3", "--first", "8"]) == 2
    assert main(["view", str(built.path), "--where", "score == 3", "--document", "1"]) == 2
    assert main(["view", str(built.path), "--seq-len", "8"]) == 2
