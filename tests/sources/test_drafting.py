"""What `packline init` writes builds as it stands, and says what it saw."""

from __future__ import annotations

import gzip
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from tests.cli.command import result, run

import packline
from packline.errors import InputError, RecipeError
from packline.facade import Store
from packline.recipe import load_recipe, load_shares
from packline.sources.drafting import draft_recipe, quoted, survey
from packline.sources.listing import expand

SHAPES: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"id": "a", "text": "some text", "title": "T", "score": 3}, "some text"),
    "nested": ({"data": {"body": "deep inside of it"}, "n": 1}, "deep inside of it"),
    "instruction": ({"instruction": "Do", "input": "this", "output": "Done"}, "Do\n\nthis\n\nDone"),
    "messages": (
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]},
        "user: Hi\n\nassistant: Ho",
    ),
    "odd": ({'we"ird\n': "odd name, and the longest", "x\x7f": "1"}, "1"),
}


def texts(store: Store) -> list[str]:
    return [store.tokenizer.decode(tokens[:-1].tolist()) for tokens in store.documents]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_recipe_for_any_shape_of_records_builds_as_it_stands(
    tmp_path: Path, tokenizer_json: Path, shape: str, kind: str
) -> None:
    record, text = SHAPES[shape]
    path = tmp_path / f"in/data.{kind}"
    path.parent.mkdir()
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist([record] * 20), path)
    else:
        path.write_text((json.dumps(record) + "\n") * 20)
    drafted = draft_recipe(survey(str(path)), tokenizer=str(tokenizer_json), eod=None, folder=tmp_path)
    (tmp_path / "recipe.toml").write_text(drafted, encoding="utf-8")
    store = packline.build(tmp_path / "recipe.toml", out=tmp_path / "out", workers=0, engine="tokenizers")
    assert texts(store) == [text] * 20
    for name in record:
        shown = name if name.isprintable() else quoted(name)
        assert re.search(rf"(?m)^#   {re.escape(shown)} +(string|number|list|object)", drafted), name


def test_commented_choices_are_choices_that_work(tmp_path: Path, tokenizer_json: Path) -> None:
    """Each commented line, taken alone, still makes a recipe that loads."""
    path = tmp_path / "a.jsonl"
    rows = [
        {"id": f"{n}", "title": "T", "text": "x" * n, "score": n, "lang": "de" if n % 3 else "en"}
        for n in range(1, 40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    drafted = draft_recipe(survey(str(path)), tokenizer=str(tokenizer_json), eod=None, folder=tmp_path)
    lines = drafted.splitlines()
    choices = [n for n, line in enumerate(lines) if re.match(r"# [a-z_]+ = ", line)]
    assert len(choices) >= 10
    for number in choices:
        chosen = lines[number][2:]
        name = chosen.split(" = ")[0]
        gone = "text = " if name == "template" else f"{name} = "
        changed = [line for line in lines[:number] if not line.startswith(gone)]
        changed += [chosen, *(line for line in lines[number + 1 :] if not line.startswith(gone))]
        (tmp_path / "recipe.toml").write_text("\n".join(changed), encoding="utf-8")
        recipe, options = load_recipe(tmp_path / "recipe.toml")
        said = load_shares(tmp_path / "recipe.toml")[0]
        values = [getattr(one, name, None) for one in (recipe, recipe.sources[0], options, said)]
        assert any(values) or name == "memory", lines[number]


def test_what_it_saw_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows: list[dict[str, Any]] = [{"text": "abc", "n": n} for n in range(9)] + [{"text": None, "n": 5}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "nonsense\n")
    drafted = draft_recipe(survey(str(path)), tokenizer="t", eod=None, folder=tmp_path)
    assert "# 10 records were looked at, 1 more were bad. Fields:" in drafted
    assert '#   text  string, in 9 of 10, "abc"' in drafted and "#   n     number, 0 to 8" in drafted
    assert "# 1 of the 10 records have no string there" in drafted


def test_data_without_a_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n' * 5)
    with pytest.raises(InputError, match=r"no field is a string in most records: found n"):
        draft_recipe(survey(str(path)), tokenizer="t", eod=None, folder=tmp_path)
    path.write_text('{"id": "a", "n": 1}\n' * 5)
    with pytest.raises(InputError, match=r"found id \(string"):  # an id is no text, even where it is all
        draft_recipe(survey(str(path)), tokenizer="t", eod=None, folder=tmp_path)
    path.write_text("nonsense\n" * 5)
    with pytest.raises(InputError, match="no record could be read"):
        survey(str(path))


def write_sources(folder: Path, sizes: dict[str, int], **shares: Any) -> Path:
    """A recipe with a source each, of so many documents."""
    lines = []
    for name, size in sizes.items():
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps({"text": f"{name} number {n} of many"}) + "\n" for n in range(size))
        )
        said = "".join(
            f"{key} = {json.dumps(values[name])}\n" for key, values in shares.items() if name in values
        )
        lines.append(f'[[sources]]\nname = "{name}"\ninputs = ["{name}.jsonl"]\n{said}')
    path = folder / "recipe.toml"
    path.write_text('tokenizer = "tokenizer.json"\n' + "\n".join(lines))
    return path


@pytest.fixture
def folder(tmp_path: Path, tokenizer_json: Path) -> Path:
    """A folder with a tokenizer.json, in which commands are run."""
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json.read_bytes())
    return tmp_path


def test_init_and_build_as_commands(folder: Path) -> None:
    (folder / "data/sub").mkdir(parents=True)
    (folder / "data/a.jsonl").write_text('{"question": "Why?", "answer": "So."}\n' * 10)
    (folder / "data/sub/b.jsonl").write_text('{"question": "Who?", "answer": "I."}\n' * 10)
    (folder / "notes.txt").write_text("plain text")
    (folder / "recipes").mkdir()
    words = ("data", "notes.txt", "--tokenizer", "tokenizer.json", "--out", "recipes/r.toml")
    done = run("init", *words, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert result(done) == {
        "command": "init",
        "exit_code": 0,
        "path": "recipes/r.toml",
        "next": "packline build recipes/r.toml --out store",
    }
    built = run("build", "recipes/r.toml", "--out", "store", "--json", cwd=folder)
    assert built.returncode == 0, built.stderr
    assert sorted(texts(Store(folder / "store"))) == ["Who?\n\nI."] * 10 + ["Why?\n\nSo."] * 10 + [
        "plain text"
    ]
    again = run("init", *words, cwd=folder)
    assert again.returncode == 1 and "--force" in again.stderr
    assert run("init", *words, "--force", cwd=folder).returncode == 0
    for wrong in (
        "",
        "data --preset tinystories",
        "--preset nothing",
        "data --seq-len 512",
        "--run store --seq-len 0",
        "--run store --tokens -5",
    ):
        assert run("init", *wrong.split(), "--out", "x.toml", cwd=folder).returncode == 2, wrong
    assert not (folder / "x.toml").exists()


def write_kinds(folder: Path) -> None:
    """A folder of six kinds of files, some of them compressed, none of which needs a recipe of its own."""

    def lines(field: str) -> bytes:
        return "".join(json.dumps({field: f"{field} {n}", "n": n}) + "\n" for n in range(3)).encode()

    (folder / "sub/[deep]").mkdir(parents=True)
    (folder / "en.jsonl").write_bytes(lines("text"))
    (folder / "sub/de.jsonl.gz").write_bytes(gzip.compress(lines("text"), mtime=0))
    (folder / "ru.jsonl").write_bytes(lines("body"))
    (folder / "sub/[deep]/fr.jsonl.zst").write_bytes(zstandard.compress(lines("body")))
    (folder / "none.jsonl").touch()
    pq.write_table(pa.table({"content": ["content 0", "content 1"], "n": [0, 1]}), folder / "sub/a.parquet")
    (folder / "array.json").write_text('[{"text": "array 0"}, {"text": "array 1"}]')
    (folder / "talk.json").write_text(json.dumps(SHAPES["messages"][0]) + "\n")
    (folder / "notes.txt").write_text("plain 0")
    (folder / "sub/README").write_text("plain 1")


KINDS_OF_TEXT = sorted(
    [f"{field} {n}" for field in ("text", "body") for n in range(3) for _ in range(2)]
    + [f"{kind} {n}" for kind in ("content", "array", "plain") for n in range(2)]
    + ["user: Hi\n\nassistant: Ho"]
)


@pytest.mark.parametrize("given", ["data/", "data/**/*", "{tmp}/data"])
def test_a_folder_of_mixed_files_is_a_source_for_each_kind_and_builds(
    tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    write_kinds(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    surveys = survey(given.format(tmp=tmp_path))
    (tmp_path / "recipe.toml").write_text(
        draft_recipe(surveys, tokenizer=str(tokenizer_json), eod=None, folder=Path())
    )
    recipe, _ = load_recipe("recipe.toml")
    by_source = [{file.path for given in one.inputs for file in expand(given)} for one in recipe.sources]
    everything = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    found = sorted(str(Path(path).absolute()) for paths in by_source for path in paths)
    assert found == sorted(map(str, everything))  # each file is in one source
    assert len(by_source) == 6 and {one.text for one in recipe.sources} == {"text", "body", "content", None}
    store = packline.build("recipe.toml", out="store", workers=0, engine="tokenizers", strict=True)
    assert sorted(texts(store)) == KINDS_OF_TEXT


def test_of_many_files_that_end_alike_some_are_looked_at_and_all_if_these_differ(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"{number:03}.json").write_text('{"text": "a"}\n')
        (tmp_path / f"{number:03}.jsonl").write_text('{"body": "a"}\n' if number % 3 else '{"text": "a"}\n')
        (tmp_path / f"{number:03}.ndjson").write_text("nonsense\n")
    (tmp_path / "100.json").write_text('[{"text": "a"}]')
    text, body, array = survey(str(tmp_path))
    numbers = {"json": set(range(200)) - {100}, "jsonl": set(range(0, 200, 3))}
    assert set(text.inputs) == {f"{tmp_path}/{n:03}.{end}" for end, own in numbers.items() for n in own}
    assert array.inputs == [f"{tmp_path}/100.json"] and len(body.inputs) == 200 - len(numbers["jsonl"])
    assert len(text.left_out) == 200 and len({str(one) for one in text.left_out}) == 200
    drafted = draft_recipe([text, array, body], tokenizer="t", eod=None, folder=tmp_path)
    assert drafted.count("# left out: ") == 21 and "# left out: and 180 more" in drafted


def test_the_error_of_mixed_files_names_init_which_leaves_out_what_is_no_text(folder: Path) -> None:
    write_kinds(folder / "data")
    (folder / "notes.txt").write_text("plain text")
    (folder / "data/table.csv").write_text("text,n\na,1\n")
    (folder / "data/picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\xff")
    (folder / "data/broken.jsonl").write_text("nonsense\n")
    (folder / "data/numbers.jsonl").write_text('{"n": 1}\n')
    assert (
        "looking at the inputs"
        in run("build", "--dry-run", "notes.txt", "--tokenizer", "tokenizer.json", cwd=folder).stderr
    )
    for words in (("build", "data", "--dry-run"), ("build", "data", "--out", "o", "--text", "body")):
        refused = run(*words, "--tokenizer", "tokenizer.json", cwd=folder)
        assert refused.returncode == 1 and "packline init data" in refused.stderr, refused.stderr
    done = run("init", "data", "--tokenizer", "tokenizer.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(
        "looking at the first records of data\nwarning: 4 files of data are left out"
    )
    drafted = (folder / "recipe.toml").read_text()
    for name in ("table.csv", "picture.png", "broken.jsonl", "numbers.jsonl"):
        assert re.search(rf"(?m)^# left out: data/{name}", drafted), drafted
    built = run("build", "recipe.toml", "--out", "store", cwd=folder)
    assert built.returncode == 0, built.stderr
    assert sorted(texts(Store(folder / "store"))) == KINDS_OF_TEXT
    assert run("init", "data/table.csv", "--out", "x.toml", cwd=folder).returncode == 1


def test_a_run_file_hands_out_the_shares_of_the_recipe(folder: Path) -> None:
    shares = {"weight": {"a": "1/2", "b": 0.25, "c": 0.25}, "max_epochs": {"c": "unlimited"}}
    recipe = write_sources(folder, {"a": 400, "b": 400, "c": 20}, **shares)
    store = packline.build(recipe, out=folder / "store", workers=0, engine="tokenizers")
    assert b"weight" not in (folder / "store/manifest.json").read_bytes()
    words = "init --run store --recipe recipe.toml --seq-len 16 --batch-size 8 --tokens 4096"
    done = run(*words.split(), cwd=folder)
    assert done.returncode == 0, done.stderr
    loader = packline.Loader.from_file(folder / "run.toml")
    counts = {"a": 0, "b": 0, "c": 0}
    first = {name: store.tokenizer.encode(name).ids[0] for name in counts}
    for batch in loader:
        for row in batch["tokens"]:
            (name,) = [name for name, id in first.items() if id in row.tolist()]
            counts[name] += 1
    assert counts == {"a": 128, "b": 64, "c": 64}


def test_budgets_are_shares_and_without_shares_the_store_is_read_as_it_is(folder: Path) -> None:
    recipe = write_sources(folder, {"a": 400, "b": 400}, tokens={"a": 2304, "b": 768})
    store = packline.build(recipe, out=folder / "store", workers=0, engine="tokenizers")
    common = ("init", "--run", "store", "--seq-len", "16", "--batch-size", "4")
    for shares in (("--recipe", recipe), ("--force",)):
        done = run(*common, *shares, cwd=folder)
        assert done.returncode == 0, done.stderr
        (stage,) = tomllib.loads((folder / "run.toml").read_text())["stages"]
        rows = sum(len(batch["tokens"]) for batch in packline.Loader.from_file(folder / "run.toml"))
        if shares == ("--force",):
            assert rows == len(store.rows(seq_len=16)) // 4 * 4
            continue
        assert stage["tokens"] == 3072 and rows == 3072 // 16
        assert [(one["sources"], one["weight"]) for one in stage["sources"]] == [("a", 2304), ("b", 768)]


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"weight": {"a": 1}}, "1 of 2 sources have 'weight'"),
        ({"tokens": {"a": 0, "b": 1}}, "tokens is 0"),
        ({"max_epochs": {"a": 2}}, "has max_epochs, but neither"),
        ({"weight": {"a": 1, "b": 0}}, r"sources\[1\]: weight is 0"),
        ({"weight": {"a": "1/0", "b": 1}}, "weight is '1/0'"),
    ],
)
def test_shares_that_make_no_sense_are_refused(tmp_path: Path, shares: dict[str, Any], message: str) -> None:
    recipe = write_sources(tmp_path, {"a": 1, "b": 1}, **shares)
    with pytest.raises(RecipeError, match=message):
        load_recipe(recipe)
