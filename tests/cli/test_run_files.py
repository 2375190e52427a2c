"""Run files and recipes as arguments: commands that can read them do, and the others say what they are."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import result, run
from tests.cli.runs import mixture, write_runs

import packline
from packline.loading.loader import Loader

RUN = mixture("batch_size = 2\nseed = 3", 640, one="weight = 3", two="weight = 1\nmax_epochs = 2")
LATER = """
[[stages]]
from_step = 4
seq_len = 32

[[stages.sources]]
store = "both"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer_json: Path, documents: list[str]) -> Path:
    texts = [text[:300] for text in documents[:60]]
    parts = {"one": texts[:40], "two": texts[40:]}
    folder = write_runs(tmp_path_factory.mktemp("runs"), tokenizer_json, parts, RUN)
    packline.merge([folder / "one", folder / "two"], out=folder / "both")
    (folder / "recipe.toml").write_text(
        f'tokenizer = "{tokenizer_json}"\n[[sources]]\ninputs = ["one.jsonl"]\n'
    )
    (folder / "changed.toml").write_text(RUN + LATER)
    (folder / "after.toml").write_text(f'{RUN}{LATER}exclude = "seen.parquet"\n')
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "verify FILE",
        "analyze FILE",
        "merge FILE two --out x",
        "diff FILE one",
        "pull FILE x",
        "push FILE hf://datasets/a/b",
        "status FILE",
        "import FILE --from llmc --tokenizer TOKENIZER --out x",
        "sft FILE --tokenizer TOKENIZER --out x",
        "init FILE",
        "init --run FILE --out x.toml",
    ],
)
@pytest.mark.parametrize("name", ["run.toml", "recipe.toml"])
def test_a_command_for_something_else_says_what_the_file_is(
    folder: Path, tokenizer_json: Path, tmp_path: Path, command: str, name: str
) -> None:
    words = command.replace("FILE", name).replace("TOKENIZER", str(tokenizer_json)).split()
    done = run(*words, cwd=folder)
    assert done.returncode in (1, 2) and not (folder / "x").exists()
    if name == "run.toml":
        assert "run.toml is a run file" in done.stderr
        known = "trace, view, serve, export, info and diff read a run file"
        assert known in done.stderr or command.startswith("diff")
    else:
        assert "recipe.toml is a recipe" in done.stderr
        assert "packline build recipe.toml --out store" in done.stderr


@pytest.mark.parametrize(
    "command", ["info FILE", "view FILE", "trace FILE --step 0", "serve FILE --port 0", "diff run.toml FILE"]
)
def test_a_recipe_in_place_of_a_run_file_is_to_be_built(folder: Path, command: str) -> None:
    done = run(*command.replace("FILE", "recipe.toml").split(), cwd=folder)
    assert done.returncode in (1, 2)
    assert "recipe.toml is a recipe" in done.stderr or command.startswith("diff")
    assert "packline build recipe.toml --out store" in done.stderr or command.startswith("diff")


def test_a_run_file_in_place_of_a_recipe_is_named(folder: Path) -> None:
    for words in (
        ["build", "run.toml", "--out", "x"],
        ["build", "run.toml", "--dry-run"],
        ["build", "run.toml", "one.jsonl"],
    ):
        done = run(*words, *(() if "--out" in words else ("--out", "x")), cwd=folder)
        assert done.returncode == 2 and "run.toml is a run file: expected" in done.stderr
    assert not (folder / "x").exists()


def test_info_of_a_run_file_shows_what_it_reads(folder: Path) -> None:
    facts = result(run("info", "run.toml", "--json", cwd=folder))
    loader = Loader.from_file(folder / "run.toml", prefetch=0)
    assert (facts["steps"], facts["tokens"], facts["seed"]) == (len(loader), 640, 3)
    (stage,) = facts["stages"]
    counts = [0, 0]
    for step in range(len(loader)):
        for source in loader.rows_of_step(step).sources.tolist():
            counts[source] += 1
    rows = [len(one) for one in loader.schedule.stages[0].mixture.rows]
    for source, count, size in zip(stage["sources"], counts, rows, strict=True):
        assert (source["rows"], source["used"], source["missing"]) == (size, count, 0)
        assert source["epochs"] == pytest.approx(count / size)
    assert [source["share"] for source in stage["sources"]] == [0.75, 0.25]
    assert facts["warnings"] == []
    page = run("info", "run.toml", cwd=folder).stdout
    assert "10 steps, 640 tokens, 1 stage" in page and "epochs at its end" in page and "75.0%" in page


def test_info_of_a_run_that_is_refused_says_why_and_what_is_missing(folder: Path, tmp_path: Path) -> None:
    (folder / "short.toml").write_text(RUN.replace("tokens = 640", 'tokens = "20k"'))
    facts = result(run("info", "short.toml", "--json", cwd=folder))
    (stage,) = facts["stages"]
    missing = [source["missing"] for source in stage["sources"]]
    (warning,) = facts["warnings"]
    assert missing[0] and f"{missing[0]:,} are missing" in warning and "max_epochs = " in warning
    for source in stage["sources"]:
        assert source["missing"] == max(source["used"] - source["max_epochs"] * source["rows"], 0)
    (warning,) = result(run("info", "changed.toml", "--json", cwd=folder))["warnings"]
    assert "would train again" in warning and "--steps 0:4 --write seen.parquet" in warning


def test_trace_writes_the_list_that_the_refusal_names(folder: Path) -> None:
    done = run("trace", "changed.toml", "--step", "0", cwd=folder)
    assert done.returncode == 2
    command = done.stderr.partition("packline ")[2].partition(" lists them")[0]
    assert command == "trace run.toml --steps 0:4 --write seen.parquet"
    facts: dict[str, Any] = {}
    for target in ("run.toml", "changed.toml", "after.toml"):  # the list is not needed for its own making
        (folder / "seen.parquet").unlink(missing_ok=True)
        words = command.replace("run.toml", target).split()
        facts = result(run(*words, "--json", cwd=folder))
        assert facts["steps"] == [0, 4] and facts["written"]["path"] == "seen.parquet"
        assert facts["written"]["documents"] > 0
    page = run(*command.split(), cwd=folder).stdout
    assert "wrote  seen.parquet: " in page and 'exclude = "seen.parquet"' in page
    assert run("trace", "after.toml", "--step", "4", cwd=folder).returncode == 0
    store = ["trace", "one", "--seq-len", "32", "--batch-size", "2", "--steps", "0:3", "--write", "b.parquet"]
    assert result(run(*store, "--json", cwd=folder))["written"]["documents"] > 0
    for words, message in (
        (["--steps", "0:3"], "--steps and --write go together"),
        (["--step", "0", "--write", "c.parquet"], "--steps and --write go together"),
        (["--steps", "3", "--write", "c.parquet"], "--steps 3: expected A:B"),
        (["--steps", "3:99", "--write", "c.parquet"], "expected some of the 10 steps"),
        (["--steps", "0:3", "--write", "c.txt"], "ends in .parquet"),
    ):
        done = run("trace", "run.toml", *words, cwd=folder)
        assert done.returncode == 2 and message in done.stderr


def test_diff_of_two_run_files_lists_the_settings_that_changed(folder: Path, tmp_path: Path) -> None:
    done = run("diff", "changed.toml", "after.toml", "--json", cwd=folder)
    assert done.returncode == 1
    (change,) = result(done)["settings"]
    assert change["name"] == "stages[1].sources[0].exclude" and change["one"] is None
    (folder / "other.toml").write_text(
        RUN.replace("weight = 3", "weight = 5").replace("seed = 3", "seed = 0")
    )
    page = run("diff", "run.toml", "other.toml", cwd=folder).stdout
    assert "stages[0].sources[0].weight" in page and "loader.seed" in page and "2 settings" in page
    shutil.copy(folder / "run.toml", folder / "copy.toml")
    done = run("diff", "run.toml", "copy.toml", cwd=folder)
    assert done.returncode == 0 and "equal" in done.stdout
    shutil.copy(folder / "run.toml", tmp_path / "run.toml")  # its stores are others
    names = [
        one["name"]
        for one in result(run("diff", folder / "run.toml", "run.toml", "--json", cwd=tmp_path))["settings"]
    ]
    assert names == ["stages[0].sources[0].store", "stages[0].sources[1].store"]
    done = run("diff", "run.toml", "one", cwd=folder)
    assert done.returncode == 2 and "expected two stores or two run files" in done.stderr


def test_a_folder_in_which_nothing_can_be_made_is_no_question_of_permissions(
    folder: Path, tokenizer_json: Path
) -> None:
    if not Path("/proc/self").exists():
        pytest.skip("needs /proc")
    done = run("build", "one.jsonl", "--tokenizer", tokenizer_json, "--out", "/proc/foo", cwd=folder)
    assert done.returncode == 1 and "cannot write into /proc" in done.stderr
    assert "choose another --out" in done.stderr and "permissions" not in done.stderr
    done = run("pull", "one", "/proc/foo", cwd=folder)
    assert done.returncode == 1 and "this should not happen" not in done.stderr
