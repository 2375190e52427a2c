"""Stores of sources with carried columns: values, bytes, limits, conversations, and verification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.chat import talks
from tests.chat.talks import CHATML, CHATML_TOKENS
from tests.jobs.builds import build, digests, set_sizes
from tests.sources.reading import write_records
from tests.store.stores import reseal
from tests.store.test_verify import edit_provenance

import packline
from packline.recipe import Recipe, Source


def some_records(count: int) -> list[dict[str, Any]]:
    words = ["alpha", "beta", "gamma"]
    return [
        {
            "id": f"r{number}",
            "text": " ".join(words[(number + place) % 3] for place in range(number % 7 + 1)),
            "url": f"https://{words[number % 3]}.org/{number}" if number % 5 else None,
            "score": number / 4 if number % 2 else number,
            "metadata": {"language": ["de", "en"][number % 2], "n": number},
        }
        for number in range(count)
    ]


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet"])
def test_a_store_has_the_columns_of_its_source_and_bytes_depend_on_neither_batches_nor_workers(
    tmp_path: Path, tokenizer_json: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = some_records(150)
    path = write_records(tmp_path / f"in/a.{kind}", given, 30)
    columns = ["url", "score: float", "metadata.language"]
    settings: dict[str, Any] = {"columns": columns, "val_fraction": 0.3}
    stores = []
    for number, block_bytes in enumerate((1 << 20, 700)):
        with monkeypatch.context() as patch:
            set_sizes(patch, 4000, block_bytes)
            stores.append(build(tmp_path / f"out{number}", path, tokenizer_json, **settings))
    if kind == "jsonl":  # of streams and Parquet batches are a function of the file
        assert digests(stores[0].path) == digests(stores[1].path)
    store = stores[0]
    found = [store.provenance(number) for number in range(len(store.documents))]
    expected = {
        record["id"]: {
            "url": record["url"],
            "score": float(record["score"]),
            "metadata.language": record["metadata"]["language"],
        }
        for record in given
    }
    assert {one.id: one.columns for one in found} == expected and len(found) == len(given)
    assert {one.split for one in found} == {"train", "val"}
    report = store.verify(deep=True)
    assert report.ok and report.deep is not None and not report.deep.notes
    if kind == "jsonl":
        (tmp_path / "one").mkdir()
        two = build(tmp_path / "two", path, tokenizer_json, **settings | {"workers": 2})
        assert digests(two.path) == digests(
            build(tmp_path / "zero", path, tokenizer_json, **settings | {"workers": 0}).path
        )


def test_deep_verification_notices_a_changed_column(tmp_path: Path, tokenizer_json: Path) -> None:
    path = write_records(tmp_path / "in/a.jsonl", some_records(20))
    store = build(tmp_path / "out", path, tokenizer_json, columns=["score: float"])
    edit_provenance(store.path, "score", lambda values: [values[0] + 1, *values[1:]])
    reseal(store.path)
    report = packline.open(store.path).verify(deep=True)
    assert packline.open(store.path).verify().ok and not report.ok
    assert "column 'score' of document 0" in str(report.problems[0])


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_conversations_carry_fields_of_their_records(tmp_path: Path, tokenizer_json: Path, kind: str) -> None:
    tokenizer = talks.with_tokens(tokenizer_json, tmp_path / "tokenizer", CHATML_TOKENS, CHATML)
    given: list[dict[str, Any]] = [
        {
            "prompt": f"p{number}",
            "response": "r",
            "score": number / 2,
            "meta": {"when": f"2024-01-{number + 1:02d}"},
        }
        for number in range(9)
    ]
    bad = [] if kind == "parquet" else [{"prompt": "p", "response": "r", "score": "high"}]
    path = write_records(tmp_path / f"chat.{kind}", [*given, *bad])
    store = packline.sft(
        path, tokenizer, out=tmp_path / "out", columns=["score", "meta.when: timestamp"], workers=0
    )
    found = [store.provenance(number).columns for number in range(len(store.documents))]
    assert [one["score"] for one in found] == [record["score"] for record in given]
    assert [one["meta.when"].date().isoformat() for one in found] == [
        record["meta"]["when"] for record in given
    ]
    assert store.manifest.ledger.rejected == ({"column_type": 1} if bad else {})
    assert store.verify(deep=True).ok


def test_a_file_at_the_end_changes_neither_types_nor_earlier_units(
    tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_sizes(monkeypatch, 4000)
    monday = [{"text": "word " * 50, "score": number} for number in range(100)]
    tuesday = [{"text": "word " * 50, "score": number + 0.5} for number in range(5)]
    write_records(tmp_path / "in/a.jsonl", monday)
    source = Source(inputs=(str(tmp_path / "in/*.jsonl"),), name="web", columns=("score",))
    recipe = Recipe(sources=(source,), tokenizer=str(tokenizer_json))
    one = packline.build(recipe, out=tmp_path / "one", workers=0)
    write_records(tmp_path / "in/b.jsonl", tuesday)
    two = packline.build(recipe, out=tmp_path / "two", workers=0)
    before, after = digests(one.path), digests(two.path)
    kept = [name for name in before if name.startswith(("train-", "receipts/"))]
    assert len(kept) > 3 and {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert two.manifest.ledger.rejected == {"column_type": 5}
    assert two.provenance(99).columns == {"score": 99}


def test_verification_notices_columns_that_the_recipe_does_not_name(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    path = write_records(tmp_path / "in/a.jsonl", some_records(5))
    store = build(tmp_path / "out", path, tokenizer_json, columns=["url", "score: float"])

    def claim(manifest: Any) -> Any:
        (source,) = manifest.recipe.sources
        source = msgspec.structs.replace(source, columns=("url", "score: integer"))
        return msgspec.structs.replace(
            manifest, recipe=msgspec.structs.replace(manifest.recipe, sources=(source,))
        )

    reseal(store.path, change_manifest=claim)
    problems = packline.open(store.path).verify().problems
    assert [problem.what for problem in problems] == ["carried columns"]
