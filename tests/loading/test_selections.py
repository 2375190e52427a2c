"""Selections in runs: part of the state, named when they change, the same from a run file and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.cli.command import result, run

import packline
from packline.errors import RecipeError
from packline.facade import Store
from packline.loading.loader import Loader
from packline.loading.trace import trace_document
from packline.packing.exclusions import write_list

RECIPE = """tokenizer = "{tokenizer}"
eod = "<|endoftext|>"
[[sources]]
name = "web"
inputs = ["web.jsonl"]
columns = ["score", "meta.lang"]
[[sources]]
name = "code"
inputs = ["code.jsonl"]
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer_json: Path) -> Store:
    folder = tmp_path_factory.mktemp("selections")
    web = [
        {
            "text": f"page {number % 20} of many words",
            "score": number % 5,
            "meta": {"lang": "de" if number % 3 else "en"},
        }
        for number in range(60)
    ]
    code = [{"text": f"page {number} of many words"} for number in range(15, 30)]
    for name, records in (("web", web), ("code", code)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    (folder / "recipe.toml").write_text(RECIPE.format(tokenizer=tokenizer_json))
    return packline.build(folder / "recipe.toml", out=folder / "store", workers=0, engine="tokenizers")


def loader(store: Store, **settings: Any) -> Loader:
    return Loader(store.rows(seq_len=8, **settings), batch_size=2, seed=1)


def test_the_state_of_another_selection_is_refused_with_the_difference(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "gone.parquet"
    write_list(path, [(store, np.array([1]), "why")])
    settings: dict[str, Any] = {"where": "score >= 3", "unique": True, "exclude": path}
    state = json.loads(json.dumps(loader(store, **settings).state_at(1)))
    loader(store, **settings).load_state_dict(state)
    loader(store, **settings | {"where": "3 <= score"}).load_state_dict(state)

    def refused(**changed: Any) -> str:
        with pytest.raises(RecipeError) as caught:
            loader(store, **settings | changed).load_state_dict(state)
        return caught.value.message

    assert "source 0: where: 'score >= 3' -> 'score >= 3.5'" in refused(where="score >= 3.5")
    assert "source 0: unique: True -> None" in refused(unique=False)
    assert "exclude: ['gone.parquet (" in refused(exclude=None)
    write_list(path, [(store, np.array([2]), "why")])
    first, _, second = refused().partition(" -> ")
    assert "exclude: ['gone.parquet (" in first and "gone.parquet (" in second and first[-12:] != second[-12:]
    plain = loader(store).state_at(1)
    assert "selections" not in plain
    with pytest.raises(RecipeError, match="where: None -> 'score >= 3'"):
        loader(store, where="score >= 3").load_state_dict(plain)


def test_a_run_file_selects_as_arguments_do(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_list(tmp_path / "gone.parquet", [(store, np.array([0, 5]), "why")])
    (tmp_path / "run.toml").write_text(f"""
[loader]
batch_size = 2
seed = 1
[[stages]]
seq_len = 8
[[stages.sources]]
store = "{store.path}"
where = "meta.lang == 'de' or source == 'code'"
unique = true
exclude = "gone.parquet"
""")
    monkeypatch.chdir(store.path)
    read = Loader.from_file(tmp_path / "run.toml")
    choice: dict[str, Any] = {"where": "meta.lang == 'de' or source == 'code'", "unique": True}
    given = loader(store, **choice, exclude=tmp_path / "gone.parquet")
    assert read.state_dict() == given.state_dict()
    rows = given.schedule.stages[0].mixture.rows[0]
    assert [one.by for one in rows.left_out] == [
        "where meta.lang == 'de' or source == 'code'",
        "exclude gone.parquet",
        "duplicates",
    ]
    assert trace_document(given, 0, store=given.schedule.stages[0].mixture.rows[0].store) == []
    words: list[str | Path] = ["--where", choice["where"], "--unique", "--exclude", tmp_path / "gone.parquet"]
    done = result(run("info", store.path, "--seq-len", "8", *words, "--json"))
    assert done["documents"] == len(rows.selection)
    assert sum(one["documents"] for one in done["left_out"]) + done["documents"] == len(store.documents)


def test_lists_of_searches_and_analyses_are_left_out(store: Store, tmp_path: Path) -> None:
    done = run("analyze", store.path, "--write", tmp_path / "duplicates.parquet", "--workers", "0", "--json")
    assert done.returncode == 0, done.stderr
    assert result(done)["written"]["documents"] == 40 + 5
    rows = pq.read_table(tmp_path / "duplicates.parquet").to_pylist()
    assert rows[0]["reason"] == "same text as document 0" and rows[0]["source"] == "web"
    one = store.rows(seq_len=8, exclude=tmp_path / "duplicates.parquet").selection
    other = store.rows(seq_len=8, unique=True).selection
    every = np.arange(len(one))
    assert one.documents(every).tolist() == other.documents(every).tolist() and len(one) == len(other) == 30
    questions = tmp_path / "set.jsonl"
    questions.write_text('{"text": "page 29 of many words"}\n')
    leaked = tmp_path / "leaked.parquet"
    words: list[str | Path] = [
        "verify",
        store.path,
        "--against",
        questions,
        "--ngram",
        "5",
        "--write",
        leaked,
    ]
    found = run(*words)
    assert found.returncode == 1 and "leave them out" in found.stdout
    (row,) = pq.read_table(leaked).to_pylist()
    assert row["source"] == "code" and row["reason"] == "set question 0: 5 words in a row"
    assert len(store.rows(seq_len=8, exclude=[leaked, str(tmp_path / "duplicates.parquet")]).selection) == 29
    questions.write_text('{"text": "nothing like this is in any of them"}\n')
    assert run(*words).returncode == 0
    assert len(store.rows(seq_len=8, exclude=leaked).selection) == len(store.documents)
    assert "belong to --against" in run("verify", store.path, "--write", leaked).stderr
    assert "ends in .parquet" in run("analyze", store.path, "--write", "a.csv").stderr
    assert "is for a store" in run("analyze", questions, "--write", leaked).stderr
