"""Stores of sources with templates and filters are those of the texts that they make, however built."""

from __future__ import annotations

import datetime as dt
import json
import random
from pathlib import Path
from typing import Any

import jinja2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.jobs.builds import build, digests, rejects, set_sizes
from tests.sources.reading import write_records

import packline
from packline.errors import InputError, RecipeError
from packline.facade import Store
from packline.jobs.build_job import run_build
from packline.recipe import Recipe, RunOptions, Source

TEMPLATE = "# {{ title }}\n\n{% for part in parts %}{{ part.text }} {% endfor %}{{ meta.n * 2 }}"
KINDS = ("jsonl", "jsonl.gz", "two.parquet")


def some_records(count: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    words = ["alpha", "beta", "gamma", "delta", "日本", "é"]
    return [
        {
            "id": f"r{number}",
            "title": " ".join(rng.choices(words, k=2)),
            "parts": [
                {"text": " ".join(rng.choices(words, k=rng.randint(0, 9)))} for _ in range(rng.randint(0, 4))
            ],
            "meta": {"n": number},
            "score": rng.choice([1, 2, 3, 4.5]),
            "unused": "x" * rng.randint(0, 50),
        }
        for number in range(count)
    ]


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    return write_records(path, records, len(records) // (5 if path.name.endswith("two.parquet") else 1))


def expected_texts(records: list[dict[str, Any]], least: float | None = None) -> list[tuple[str, str]]:
    plain = jinja2.Environment().from_string(TEMPLATE)
    return [
        (record["id"], plain.render(record))
        for record in records
        if least is None or record["score"] >= least
    ]


def found_texts(store: Store) -> list[tuple[str | None, str]]:
    ids = [store.provenance(index).id for index in range(len(store.documents))]
    texts = [store.tokenizer.decode(tokens[:-1].tolist()) for tokens in store.documents]
    return list(zip(ids, texts, strict=True))


def recipe_of(path: Path, tokenizer: Path, **source: Any) -> Recipe:
    given = Source(inputs=(str(path),), name="in", **source)
    return Recipe(sources=(given,), tokenizer=str(tokenizer))


def run(recipe: Recipe, out: Path, **options: Any) -> Store:
    settings: dict[str, Any] = {"workers": 0, "engine": "tokenizers"} | options
    run_build(recipe, out, RunOptions(**settings))
    return Store(out)


@pytest.mark.parametrize("kind", KINDS)
def test_documents_are_what_plain_jinja_makes_whatever_the_batches_and_workers(
    tmp_path: Path, tokenizer_json: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / f"in/a.{kind}", some_records(120))
    recipe = recipe_of(path, tokenizer_json, template=TEMPLATE, where="score != 1")
    whole = digests(run(recipe, tmp_path / "a").path)
    expected = [one for one in some_records(120) if one["score"] != 1]
    assert found_texts(Store(tmp_path / "a")) == expected_texts(expected)
    ledger = Store(tmp_path / "a").manifest.ledger
    assert ledger.rejected == {} and (ledger.documents_in, ledger.filtered) == (120, 120 - len(expected))
    assert digests(run(recipe, tmp_path / "b", workers=2).path) == whole
    set_sizes(monkeypatch, 1 << 12, 1 << 9)
    small = run(recipe, tmp_path / "c")
    assert len(small.manifest.shards) > 1
    assert found_texts(small) == expected_texts(expected)
    report = small.verify(deep=True)
    assert report.ok and report.deep is not None and report.deep.documents > 10 and not report.deep.notes


@pytest.mark.parametrize("limit", [7, 33])
def test_a_limit_ends_at_the_same_record_with_filters(
    tmp_path: Path, tokenizer_json: Path, limit: int
) -> None:
    records = some_records(40)
    records[10]["title"] = None
    path = write(tmp_path / "a.jsonl", records)
    source = Source(inputs=(str(path),), template=TEMPLATE, where="score > 1")
    store = run(
        Recipe(sources=(source,), tokenizer=str(tokenizer_json), limit_documents=limit), tmp_path / "out"
    )
    good = [record for record in records if record["title"]]
    expected = expected_texts(good, 1.5)[:limit]
    assert found_texts(store) == expected
    ledger = store.manifest.ledger
    last = next(index for index, record in enumerate(records) if record["id"] == expected[-1][0])
    after = next(
        (i for i in range(last + 1, 40) if records[i]["title"] and records[i]["score"] > 1), len(records)
    )
    assert ledger.imbalance() == [] and ledger.documents_in == after  # up to the first one left out
    assert store.verify(deep=True).ok


def test_lines_that_are_no_records_are_bad(tmp_path: Path, tokenizer_json: Path) -> None:
    lines = [
        b'{"a": "good", "b": 1}',
        b"nonsense",
        b"",
        b"[1, 2]",
        b'{"a": "\\ud800", "b": 1}',
        b'{"a": "\xff", "b": 1}',
        b'{"a": "x", "b": "1"}',
        b'{"b": 1}',
        b'{"a": "left out", "b": 0}',
        b'{"a": {}, "b": 1}',
        b'{"a": "last", "b": 1}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))
    where = "b > 0"
    reasons = {"filter": 1, "invalid_utf8": 1, "lone_surrogate": 1, "malformed_json": 2}
    made = run(
        recipe_of(tmp_path / "a.jsonl", tokenizer_json, template="{{ a }}", where=where), tmp_path / "t"
    )
    assert made.manifest.ledger.rejected == reasons | {"template": 1}
    plain = run(recipe_of(tmp_path / "a.jsonl", tokenizer_json, text="a", where=where), tmp_path / "p")
    assert plain.manifest.ledger.rejected == reasons | {"missing_field": 1, "not_a_string": 1}
    assert [text for _, text in found_texts(plain)] == ["good", "last"]
    assert [text for _, text in found_texts(made)] == ["good", "{}", "last"]
    for store in (made, plain):
        assert store.manifest.ledger.imbalance() == [] and store.verify(deep=True).ok
        starts = {3 + sum(len(one) + 1 for one in lines[:index]): line for index, line in enumerate(lines)}
        starts[0] = lines[0]
        assert all(starts[bad["position"]] == bad["raw"] for bad in rejects(store.path))


def test_verify_deep_renders_again_and_notices_another_template(tmp_path: Path, tokenizer_json: Path) -> None:
    """A store whose manifest claims another template than made it does not verify."""
    import msgspec
    from tests.store.stores import reseal

    path = write(tmp_path / "a.jsonl", some_records(20))
    store = run(recipe_of(path, tokenizer_json, template=TEMPLATE), tmp_path / "out")
    assert store.verify(deep=True).ok

    def claim(manifest: Any) -> Any:
        sources = (msgspec.structs.replace(manifest.recipe.sources[0], template=TEMPLATE + "!"),)
        recipe = msgspec.structs.replace(manifest.recipe, sources=sources)
        return msgspec.structs.replace(manifest, recipe=recipe)

    reseal(tmp_path / "out", change_manifest=claim)
    report = Store(tmp_path / "out").verify(deep=True)
    assert Store(tmp_path / "out").verify().ok and not report.ok
    assert any("text_bytes" in problem.what for problem in report.problems)


def test_parquet_values_are_what_json_has(tmp_path: Path, tokenizer_json: Path) -> None:
    from decimal import Decimal

    table = pa.table(
        {
            "when": pa.array([dt.datetime(2024, 1, 2, 3, 4, 5)], pa.timestamp("us")),
            "day": pa.array([dt.date(2024, 1, 2)]),
            "price": pa.array([Decimal("1.50")]),
            "raw": pa.array([b"ab"]),
            "list": pa.array([[1, 2]]),
            "word": pa.array(["x"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    template = "{{ when }} {{ day }} {{ price }} {{ raw }} {{ list }} {{ word }}"
    store = run(recipe_of(tmp_path / "a.parquet", tokenizer_json, template=template), tmp_path / "out")
    assert found_texts(store) == [(None, "2024-01-02T03:04:05 2024-01-02 1.50 YWI= [1, 2] x")]


def test_an_odd_value_costs_its_row_only_where_the_template_wants_it(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    strings = pa.array([b"a", b"\xff", b"c", b"d"], pa.binary())
    columns = {
        "day": pa.array([0, 1, 10**7, 3], pa.date32()),
        "name": pa.Array.from_buffers(pa.string(), 4, strings.buffers()),
        "id": pa.array([10**18, 1000, 2000, 3000], pa.timestamp("ms")),
    }
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path)
    day = ["1970-01-01", "1970-01-02", None, "1970-01-04"]
    ids = [str(10**18), "1970-01-01T00:00:01", "1970-01-01T00:00:02", "1970-01-01T00:00:03"]
    for template, bad in (("{{ day }}", [2]), ("{{ day }} {{ name }}", [1, 2])):
        store = run(recipe_of(path, tokenizer_json, template=template), tmp_path / f"store{len(bad)}")
        kept = [number for number in range(4) if number not in bad]
        assert [store.text(place).split()[0] for place in range(len(kept))] == [
            day[number] for number in kept
        ]
        assert [store.provenance(place).id for place in range(len(kept))] == [ids[number] for number in kept]
        found = rejects(store.path)
        assert [one["position"] for one in found] == bad and store.verify(deep=True).ok
        assert all(json.loads(one["raw"]) for one in found)


def test_what_cannot_work_is_refused_before_any_work(tmp_path: Path, tokenizer_json: Path) -> None:
    (tmp_path / "a.txt").write_text("plain")
    with pytest.raises(InputError, match="plain text"):
        run(recipe_of(tmp_path / "a.txt", tokenizer_json, template="{{ a }}"), tmp_path / "out")
    with pytest.raises(RecipeError, match=r"in: the template, line 1: '__class__'"):
        run(recipe_of(tmp_path / "a.txt", tokenizer_json, template="{{ a.__class__ }}"), tmp_path / "out")
    write(tmp_path / "a.parquet", [{"b": 1}])
    with pytest.raises(RecipeError, match="no record has the field 'a' of the template"):
        run(recipe_of(tmp_path / "a.parquet", tokenizer_json, template="{{ a }}"), tmp_path / "out")
    with pytest.raises(RecipeError, match="both a text field and a template"):
        packline.build(
            tmp_path / "a.parquet", tokenizer_json, out=tmp_path / "out", text="b", template="{{ b }}"
        )
    times = pa.table({"t": pa.array([1], pa.timestamp("ns")), "a": ["x"]})
    pq.write_table(times, tmp_path / "t.parquet")
    with pytest.raises(InputError, match="nanoseconds"):
        run(recipe_of(tmp_path / "t.parquet", tokenizer_json, template="{{ t }}"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert len(
        run(recipe_of(tmp_path / "t.parquet", tokenizer_json, template="{{ a }}"), tmp_path / "out").documents
    )


def test_an_exported_test_split_comes_back(tmp_path: Path, tokenizer_json: Path) -> None:
    from packline.formats.import_ import ImportRequest, run_import

    path = write(tmp_path / "a.jsonl", [{"text": f"text {number}"} for number in range(60)])
    store = build(tmp_path / "out", path, tokenizer_json, val_fraction=0.3, test_fraction=0.3)
    packline.export(store, to="datatrove", out=tmp_path / "there", workers=0)
    request = ImportRequest(
        path=str(tmp_path / "there"),
        format="datatrove",
        tokenizer=str(tokenizer_json),
        out=str(tmp_path / "back"),
    )
    run_import(request)
    back = Store(tmp_path / "back")

    def sizes(one: Store) -> dict[str, int]:
        return {
            split: sum(s.tokens for s in one.manifest.shards if s.split == split)
            for split in ("train", "val", "test")
        }

    assert sizes(back) == sizes(store) and min(sizes(store).values()) > 0
    assert back.verify().ok


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_source_may_be_a_split_of_its_own(tmp_path: Path, tokenizer_json: Path, split: Any) -> None:
    one, two = write(tmp_path / "a.jsonl", [{"text": f"a {n}"} for n in range(50)]), tmp_path / "b.jsonl"
    write(two, [{"text": f"b {n}"} for n in range(50)])
    sources = (Source(inputs=(str(one),)), Source(inputs=(str(two),), split=split))
    store = run(Recipe(sources=sources, tokenizer=str(tokenizer_json), val_fraction=0.5), tmp_path / "out")
    splits = [store.provenance(index).split for index in range(100)]
    names = [store.provenance(index).source for index in range(100)]
    assert {s for s, name in zip(splits, names, strict=True) if name == "b"} == {split}
    assert {s for s, name in zip(splits, names, strict=True) if name == "a"} == {"train", "val"}
    assert store.verify(deep=True).ok


def test_names_that_json_escapes_are_read_by_templates(tmp_path: Path, tokenizer_json: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{'a "b"': "x", "n": 1}, {'a "b"': "y", "n": 2}])
    source = {"template": "{{ record['a \"b\"'] }}", "where": """field('a "b"') != 'x'"""}
    store = run(recipe_of(path, tokenizer_json, **source), tmp_path / "out")
    assert [text for _, text in found_texts(store)] == ["y"]
    store = run(recipe_of(path, tokenizer_json, template="{{ n }}", where=source["where"]), tmp_path / "two")
    assert [text for _, text in found_texts(store)] == ["2"]
    with pytest.raises(RecipeError, match="quotes"):
        run(recipe_of(path, tokenizer_json, text='a "b"'), tmp_path / "no")
