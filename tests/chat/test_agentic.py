"""examples/agentic builds and is read in its three stages, from small files and from real ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import zstandard

import packline
from packline.facade import Store
from packline.loading.run_file import read_run
from packline.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[2]
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
