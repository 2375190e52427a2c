"""The public names as a type checker sees them: correct calls pass, mistakes are errors where they are."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import traceback
import typing
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

import packline
from packline import settings
from packline.errors import RecipeError
from packline.packing.options import PACKINGS, DocumentFilter, ExportChoice, LoaderOptions, RowOptions
from packline.recipe import Recipe, RunOptions, Source

CORRECT = """\
from pathlib import Path

import packline

store = packline.build("in.jsonl", "tokenizer.json", out="store", eod="</s>", val_fraction=0.01, workers=2)
recipe = packline.Recipe(sources=(packline.Source(inputs=("in.jsonl",)),), tokenizer="tokenizer.json")
store = packline.build(recipe, out=Path("store"), memory="4GiB")
opened: packline.Store = packline.open("store", verify=True)
rows: packline.Rows = opened.rows(4096, packing="best_fit", labels=["web"], min_tokens=10)
short = rows.split_to(1024)
mixture = packline.Mixture([(rows, 0.7), (store.rows(4096), "1/3", None)])
stages = [packline.Stage(mixture, tokens=1_000_000), packline.Stage(short)]
loader = packline.Loader(stages, batch_size=8, seed=1)
loader = packline.Loader.from_file("run.toml", rank=0, world_size=2, prefetch=0)
for batch in loader:
    print(batch["tokens"].shape)
print(packline.estimate(["a.jsonl", "b.jsonl"], "tokenizer.json").documents)
packline.export(store, out="out", to="npz", seq_len=512, packing="pad", overflow="split")
packline.export("in.jsonl", out="out", to="llmc", tokenizer="tokenizer.json", eod=0)
packline.write_rows(loader, out="rows", on_event=print)
packline.import_("shards", out="back", tokenizer="tokenizer.json", options={"edges": "eod"})
packline.sft("chat.jsonl", "tokenizer.json", out="chat", overflow="truncate", max_tokens=4096)
for row in rows[10:20]:
    print(row.text, rows.read(0)["tokens"].shape, rows[10:20].read()["targets"].shape)
print(store.sources["web"].tokens, store.labels, len(store), store.decode([1, 2]))
assert packline.verify("store").ok
print(packline.trace(loader, 3).rows[0].spans, packline.trace("run.toml", document=7, store="store")[0].step)
try:
    packline.open("nowhere")
except packline.PacklineError as error:
    print(error.hint)
packline.analyze(store, seq_len=512)
packline.report(store, out="report.html")
"""

MISTAKES = """\
import packline

store = packline.build("in.jsonl", "tokenizer.json", out="store", val_fracton=0.01)  # call-arg
store = packline.build("in.jsonl", "tokenizer.json", out="store", workers="two")  # arg-type
store = packline.build("in.jsonl", "tokenizer.json")  # call-arg
store.rows(4096, packing="best-fit")  # arg-type
store.rows(4096, window=3)  # call-arg
store.rows("4096")  # arg-type
rows = store.rows(4096).rechunk(1024)  # attr-defined
packline.Loader(store.rows(512), batch_size=8, sead=1)  # call-arg
packline.Loader.from_file("run.toml", batchsize=8)  # call-arg
packline.Mixture([(store.rows(512), None)])  # list-item
packline.Stage(store.rows(512), from_step="many")  # arg-type
packline.export(store, out="out", to="npz", seqlen=512)  # call-arg
packline.export(store, out="out", to="npz", packing=3)  # arg-type
packline.estimate("in.jsonl", "tokenizer.json", engine="fast")  # arg-type
packline.sft("chat.jsonl", "tokenizer.json", out="chat", overflow="drop")  # arg-type
packline.import_("shards", out="back", tokenizer="t", format="llmc")  # call-arg
packline.load("run.toml")  # attr-defined
"""


MYPY = """[mypy]
strict = true
ignore_missing_imports = true
[mypy-packline.*]
ignore_errors = true
"""
"""Not the settings of this repository; what is inside of packline's functions is not looked at."""


def check_types(tmp_path: Path, **scripts: str) -> dict[tuple[str, int], set[str]]:
    """Errors of mypy in strict mode by script and line."""
    for name, script in scripts.items():
        (tmp_path / f"{name}.py").write_text(script, "utf-8")
    (tmp_path / "mypy.ini").write_text(MYPY, "utf-8")
    files = [f"{name}.py" for name in scripts]
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--no-error-summary", *files]
    source = str(Path(packline.__file__).parents[1])
    environment = {"MYPYPATH": source, "PATH": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    found: dict[tuple[str, int], set[str]] = {}
    for line in done.stdout.splitlines():
        match = re.match(r"(\w+)\.py:(\d+): error: .*\[([a-z-]+)\]$", line)
        if match:
            found.setdefault((match[1], int(match[2])), set()).add(match[3])
    assert not done.stderr, done.stderr
    return found


@pytest.mark.slow
def test_a_type_checker_accepts_what_is_right_and_finds_what_is_wrong(tmp_path: Path) -> None:
    expected = {
        ("mistakes", number): set(line.rpartition("# ")[2].split())
        for number, line in enumerate(MISTAKES.splitlines(), 1)
        if "  # " in line
    }
    found = check_types(tmp_path, correct=CORRECT, mistakes=MISTAKES)
    assert set(found) == set(expected)
    assert {line: kinds for line, kinds in found.items() if not kinds & expected[line]} == {}


def public_callables() -> dict[str, Any]:
    """Public functions, classes and the public methods of those classes."""
    found: dict[str, Any] = {}
    for name in packline._HOMES:
        value = getattr(packline, name)
        found[name] = value
        if inspect.isclass(value):
            for inner, method in inspect.getmembers(value, inspect.isroutine):
                if not inner.startswith("_") and (getattr(method, "__module__", "") or "").startswith(
                    "packline"
                ):
                    found[f"{name}.{inner}"] = method
    return found


def with_options() -> dict[str, Any]:
    """Those with keywords of their own, for users: structs have fields, and packline itself makes errors and
    rows."""
    found: dict[str, Any] = {}
    for name, value in public_callables().items():
        kinds = {one.kind for one in inspect.signature(value).parameters.values()}
        is_struct = inspect.isclass(value) and issubclass(value, msgspec.Struct)
        is_ours = name.startswith(("PacklineError", "Rows"))
        if (
            not is_ours
            and inspect.Parameter.KEYWORD_ONLY in kinds
            and inspect.Parameter.VAR_KEYWORD not in kinds
        ):
            found |= {} if is_struct else {name: value}
    return found


@pytest.mark.parametrize("name", sorted(with_options()))
def test_an_unknown_name_is_an_error_of_packline_with_the_nearest_one(name: str) -> None:
    value = with_options()[name]
    known = max((one for one in inspect.signature(value).parameters if one != "self"), key=len)
    with pytest.raises(RecipeError, match=f"has no setting '{known}s'") as caught:
        value(**{f"{known}s": 1})
    assert f"did you mean {known!r}?" in caught.value.hint
    assert f"hint: {caught.value.hint}" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("name", sorted(public_callables()))
def test_every_parameter_has_a_name_and_a_type(name: str) -> None:
    for parameter in inspect.signature(public_callables()[name]).parameters.values():
        assert parameter.kind is not parameter.VAR_POSITIONAL
        if parameter.kind is parameter.VAR_KEYWORD:
            assert re.fullmatch(r"Unpack\[\w+Keywords\]", str(parameter.annotation)), parameter
        elif parameter.name != "self":
            assert parameter.annotation not in (parameter.empty, "Any"), parameter


def test_the_keywords_are_the_fields_of_the_settings() -> None:
    of_source = set(Source.__struct_fields__) - {"inputs", "name", "label"}
    of_recipe = set(Recipe.__struct_fields__) - {"sources", "tokenizer"}
    of_run = set(RunOptions.__struct_fields__) - {"memory_bytes"} | {"memory"}
    build = set(get_type_hints(settings.BuildKeywords))
    assert build == of_source | of_recipe | of_run
    rows = set(get_type_hints(settings.RowKeywords))
    order = set(LoaderOptions.__struct_fields__) & rows
    own = {"seq_len", "epochs", "stage", "in_order", "keep_untrained"}
    assert rows == set(RowOptions.__struct_fields__) | order | own
    assert order == {"seed", "order", "block_rows", "window_blocks", "batch_size"}
    assert set(get_type_hints(settings.LoaderKeywords)) == set(LoaderOptions.__struct_fields__) - {"plans"}
    assert set(get_type_hints(settings.ExportKeywords)) == build - {"workers"} | rows
    given = inspect.signature(packline.Store.rows).parameters
    assert set(given) == {"self", "seq_len", "plans", *RowOptions.__struct_fields__}
    for name, default in zip(RowOptions.__struct_fields__, RowOptions.__struct_defaults__, strict=True):
        assert given[name].default == default
    packings = typing.get_args(typing.get_args(get_type_hints(settings.RowKeywords)["packing"])[0])
    assert packings == PACKINGS
    assert set(DocumentFilter.__struct_fields__) < set(RowOptions.__struct_fields__)


def test_exports_have_the_row_settings_of_python() -> None:
    rows = set(get_type_hints(settings.RowKeywords))
    assert set(ExportChoice.__struct_fields__) == rows


def test_the_table_for_type_checkers_is_the_table_of_names() -> None:
    tree = ast.parse(Path(packline.__file__).read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    listed = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert listed == packline._HOMES
    assert dir(packline) == sorted([*packline.__all__, "open", "__version__"])
    assert typing.TYPE_CHECKING is False
