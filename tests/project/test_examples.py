"""The examples run as their docstrings say, and end as they say."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard
from tests.store.stores import build_store

import packline
from packline.facade import Store
from packline.loading.run_file import read_run
from packline.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
STEPS = 10


def losses(printed: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"step +(\d+) +loss +([\d.]+)", printed)}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_says_how_it_is_run(example: Path) -> None:
    documentation = ast.get_docstring(ast.parse(example.read_text("utf-8"))) or ""
    assert f"python examples/{example.name}" in documentation
    assert example.name in (ROOT / "examples" / "README.md").read_text("utf-8")


@pytest.mark.slow
def test_tiny_gpt_learns_resumes_bit_for_bit_and_would_notice_another_loss(
    tmp_path: Path,
    documents: list[str],
    tokenizer_json: Path,
    write_jsonl: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch = pytest.importorskip("torch", reason="the optional torch is not installed")
    write_jsonl(tmp_path / "in/a.jsonl", documents[:200])
    build_store(tmp_path / "in", tokenizer_json, tmp_path / "store")
    example = str(ROOT / "examples" / "tiny_gpt.py")
    common = [example, str(tmp_path / "store"), "--steps", str(STEPS), "--out", str(tmp_path / "out")]

    def run(*more: str) -> str:
        monkeypatch.setattr(sys, "argv", [*common, *more])
        try:
            runpy.run_path(example, run_name="__main__")
        finally:
            torch.use_deterministic_algorithms(False)
        return capsys.readouterr().out

    first = run()
    printed = losses(first)
    assert printed[STEPS - 1] < printed[0] - 0.2
    assert f"saved after {STEPS // 2} steps" in first

    resumed = run("--resume")
    assert f"resumed after step {STEPS // 2} of" in resumed
    assert f"{STEPS // 2} of {STEPS // 2} losses are those of the first run, bit for bit" in resumed
    assert losses(resumed)[STEPS - 1] == printed[STEPS - 1]

    with np.load(tmp_path / "out" / "weights.npz") as saved:
        arrays = dict(saved)
    arrays["model/tokens.weight"] = arrays["model/tokens.weight"] * np.float32(1.01)
    np.savez(tmp_path / "out" / "weights.npz", **arrays)
    with pytest.raises(SystemExit):
        run("--resume")
    assert f"0 of {STEPS // 2} losses are those of the first run" in capsys.readouterr().out


EXAMPLE = ROOT / "examples" / "agentic"


def check(folder: Path, store: Store) -> None:
    """Three splits, a label each source, templates applied, and every stage gives what it says."""
    recipe, _ = load_recipe(folder / "recipe.toml")
    assert {shard.entry.split for shard in store.shards} == {"train", "val", "test"}
    assert store.verify(deep=True).ok
    labels = {
        store.provenance(index).source: store.provenance(index).label for index in range(len(store.documents))
    }
    assert labels == {source.name: source.label for source in recipe.sources}
    stages = read_run(folder / "run.toml").stages
    assert [(stage.seq_len, stage.split_to) for stage in stages] == [
        (32768, 4096),
        (32768, 4096),
        (32768, None),
    ]


def test_the_stages_are_those_of_the_guide() -> None:
    """The table of stages and purposes of the fourth guide: each purpose in its stage, and long rows last."""
    first, second, third = [
        {
            label
            for source in stage.sources
            for label in ([source.labels] if isinstance(source.labels, str) else source.labels or [])
        }
        for stage in read_run(EXAMPLE / "run.toml").stages
    ]
    assert first == {"grammar", "knowledge", "dialogue"}
    assert second == {"reasoning", "procedural", "debugging", "agentic", "code", "rag_grounding"}
    assert third == set()  # any
    assert first | second == {source.label for source in load_recipe(EXAMPLE / "recipe.toml")[0].sources}


def test_the_example_builds_from_small_files(tmp_path: Path, tokenizer_json: Path) -> None:
    folder = tmp_path / "agentic"
    shutil.copytree(EXAMPLE, folder)
    recipe, _ = load_recipe(folder / "recipe.toml")
    for source in recipe.sources:
        for path in map(folder.joinpath, source.inputs):
            path.parent.mkdir(exist_ok=True)
            rows = [
                {
                    "id": f"repo/it:dir/f{n}.py" if n % 9 else "no-name",
                    "text": f"{path.stem} {n} " * 60,
                    "source": "s",
                }
                for n in range(90)
            ]
            path.write_bytes(zstandard.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    store = packline.build(
        folder / "recipe.toml", tokenizer_json, out=folder / "store", workers=0, engine="tokenizers"
    )
    check(folder, store)
    assert store.manifest.sources["code"].filtered == 10
    texts = {
        store.provenance(index).source: store.tokenizer.decode(store.documents[index][:-1].tolist())
        for index in range(len(store.documents))
    }
    assert texts["code"].startswith("# file: dir/f") and texts["dialogs"].startswith("A conversation.\n\n")
    assert not texts["novels"].startswith("#")


@pytest.mark.slow
def test_the_example_runs_on_real_text(tmp_path: Path, shared: Path) -> None:
    folder = tmp_path / "agentic"
    shutil.copytree(EXAMPLE, folder)
    (folder / "corpora").mkdir()
    for source in load_recipe(folder / "recipe.toml")[0].sources:
        for path in source.inputs:  # the beginning of each is enough for every stage
            with zstandard.open(shared / path, "rb") as file:
                text = file.read(3_000_000 if source.name == "novels" else 800_000)
            (folder / path).write_bytes(zstandard.compress(text[: text.rindex(b"\n") + 1]))
    tokenizer = shared / "tokenizers" / "qwen3"
    store = packline.build(folder / "recipe.toml", tokenizer, out=folder / "store", workers=0)
    check(folder, store)
    assert store.eod_id == 151643
    loader = packline.Loader.from_file(folder / "run.toml")
    shapes = [batch["tokens"].shape for batch in loader]
    assert shapes == [(8, 4096)] * 60 + [(1, 32768)] * 32
