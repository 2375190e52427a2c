"""Documents that an earlier stage has trained on: refused in a later one, listed by `trace`, and left out."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import packline
from packline.errors import RecipeError
from packline.facade import Store
from packline.loading.loader import Loader
from packline.loading.mixture import Mixture, Stage
from packline.loading.trace import trace

Write = Callable[..., Path]
STEPS = 12
"""Steps of the first stage."""


@pytest.fixture(scope="module")
def stores(
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer_json: Path,
    documents: list[str],
    write_jsonl: Write,
) -> tuple[Store, Store]:
    """A store, and the one that is built with `reuse` after another source has come."""
    folder = tmp_path_factory.mktemp("days")
    (folder / "web").mkdir()
    texts = [text[:400] for text in documents]
    write_jsonl(folder / "web" / "1.jsonl", [{"text": text, "day": 1} for text in texts[:80]])
    recipe, source = f'tokenizer = "{tokenizer_json}"\n', '[[sources]]\ncolumns = ["day: integer"]\n'
    recipe += f'{source}name = "web"\ninputs = ["{folder}/web/*.jsonl"]\n'
    (folder / "recipe.toml").write_text(recipe)
    build: dict[str, Any] = {"workers": 0, "engine": "tokenizers"}
    one = packline.build(folder / "recipe.toml", out=folder / "monday", **build)
    new = folder / "2.jsonl"
    (folder / "recipe.toml").write_text(f'{recipe}{source}name = "news"\ninputs = ["{new}"]\n')
    write_jsonl(new, [{"text": text, "day": 2} for text in texts[80:120]])
    two = packline.build(folder / "recipe.toml", out=folder / "tuesday", reuse=folder / "monday", **build)
    return one, two


def rows(store: Store, **settings: Any) -> Any:
    return store.rows(seq_len=32, **settings)


def changed(monday: Store, then: Any, step: int = STEPS, **settings: Any) -> Loader:
    return Loader([Stage(rows(monday)), Stage(then, from_step=step)], batch_size=4, seed=1, **settings)


def places(loader: Loader, steps: range) -> set[tuple[str, int]]:
    """File and position of all documents in these steps, from the batches themselves."""
    return {
        (span.provenance.file, span.provenance.position)
        for step in steps
        for row in trace(loader, step).rows
        for span in row.spans
    }


def test_a_rebuilt_store_is_refused_until_what_was_trained_on_is_left_out(
    stores: tuple[Store, Store], tmp_path: Path
) -> None:
    monday, tuesday = stores
    with pytest.raises(
        RecipeError, match=r"stage 1: source 0 \(tuesday\).* before step 12.* monday"
    ) as error:
        changed(monday, rows(tuesday))
    assert f"packline trace run.toml --steps 0:{STEPS} --write seen.parquet" in error.value.hint
    assert "exclude" in error.value.hint and "max_epochs = 2" in error.value.hint
    before = Loader(Stage(rows(monday)), batch_size=4, seed=1)
    path = tmp_path / "seen.parquet"
    assert trace(before, steps=range(STEPS), write=path) == len(places(before, range(STEPS)))
    loader = changed(monday, rows(tuesday, exclude=path))
    seen, later = places(loader, range(STEPS)), places(loader, range(STEPS, len(loader)))
    assert seen == places(before, range(STEPS)) and later and not seen & later
    whole = Loader(rows(tuesday), batch_size=1, seed=1)
    assert seen | later >= {place for place in places(whole, range(len(whole))) if place[0] == "2.jsonl"} - {
        max(places(whole, range(len(whole))))
    }
    reasons = pq.read_table(path)["reason"].to_pylist()
    assert set(reasons) == {f"read in steps 0 to {STEPS - 1}"}


def test_a_list_of_fewer_steps_is_not_enough(stores: tuple[Store, Store], tmp_path: Path) -> None:
    monday, tuesday = stores
    before = Loader(Stage(rows(monday)), batch_size=4, seed=1)
    trace(before, steps=range(STEPS - 1), write=tmp_path / "fewer.parquet")
    with pytest.raises(RecipeError, match="before step 12"):
        changed(monday, rows(tuesday, exclude=tmp_path / "fewer.parquet"))
    changed(monday, rows(tuesday, exclude=tmp_path / "fewer.parquet"), step=STEPS - 1)


def test_every_choice_that_leaves_the_documents_out_is_accepted(stores: tuple[Store, Store]) -> None:
    monday, tuesday = stores
    for choice in ({"where": "day >= 2"}, {"unique": [monday.path]}):
        loader = changed(monday, rows(tuesday, **choice))
        assert not places(loader, range(STEPS)) & places(loader, range(STEPS, len(loader)))


def test_the_same_store_with_another_choice_or_packing_is_refused_too(stores: tuple[Store, Store]) -> None:
    monday, _ = stores
    for then in (
        rows(monday, where="day >= 1"),
        rows(monday, packing="best_fit"),
        monday.rows(seq_len=64),
        rows(monday).split_to(16),
    ):
        with pytest.raises(RecipeError, match=r"before step 12.* monday"):
            changed(monday, then)
    changed(monday, Mixture([(rows(monday), 1, 2)]))  # the same rows continue


def test_a_source_that_allows_one_pass_more_than_were_begun_may_use_them_again(
    stores: tuple[Store, Store],
) -> None:
    monday, tuesday = stores
    passed = len(rows(monday)) // 4 + 1  # steps, with the first rows of a second pass
    first = Stage(Mixture([(rows(monday), 1, 2)]))
    for epochs in (3, None):
        again = Stage(Mixture([(rows(tuesday), 1, epochs)]), tokens=4 * 32 * 3, from_step=passed)
        assert len(Loader([first, again], batch_size=4)) == passed + 3
    for epochs in (1, 2):
        with pytest.raises(RecipeError, match="would train again") as error:
            Loader([first, Stage(Mixture([(rows(tuesday), 1, epochs)]), from_step=passed)], batch_size=4)
        assert "max_epochs = 3" in error.value.hint
    changed(monday, Mixture([(rows(tuesday), 1, 2)]))


def test_stages_of_one_plan_and_stores_without_common_units_are_as_ever(
    stores: tuple[Store, Store], tmp_path: Path, tokenizer_json: Path, write_jsonl: Write
) -> None:
    monday, tuesday = stores
    planned = [Stage(rows(monday), tokens=STEPS * 4 * 32), Stage(rows(tuesday))]
    assert Loader(planned, batch_size=4, seed=1).schedule.stages[1].first_step == STEPS
    write_jsonl(tmp_path / "other.jsonl", [{"text": f"another text, number {n}"} for n in range(90)])
    other = packline.build(
        tmp_path / "other.jsonl", tokenizer=tokenizer_json, out=tmp_path / "other", workers=0
    )
    assert changed(monday, rows(other)).schedule.stages[1].first_step == STEPS
    moved = shutil.copytree(tuesday.path, tmp_path / "moved")
    with pytest.raises(RecipeError, match=r"source 0 \(moved\)"):
        changed(monday, rows(packline.open(moved)))


def test_the_list_of_a_run_file_needs_no_stage_behind_its_steps(
    stores: tuple[Store, Store], tmp_path: Path
) -> None:
    monday, tuesday = stores
    run = tmp_path / "run.toml"
    run.write_text(f"""
[loader]
batch_size = 4
seed = 1
[[stages]]
seq_len = 32
[[stages.sources]]
store = "{monday.path}"
[[stages]]
from_step = {STEPS}
seq_len = 32
[[stages.sources]]
store = "{tuesday.path}"
exclude = "seen.parquet"
""")
    with pytest.raises(packline.PacklineError, match="cannot read the list"):
        Loader.from_file(run)
    found = trace(run, steps=range(STEPS), write=tmp_path / "seen.parquet")
    loader = Loader.from_file(run)
    seen = places(loader, range(STEPS))
    assert len(seen) == found and not seen & places(loader, range(STEPS, len(loader)))
    # Steps of both stages: documents of two stores, each place once in effect.
    both = trace(run, steps=range(STEPS + 2), write=tmp_path / "both.parquet")
    assert both == len(places(loader, range(STEPS + 2)))
    nothing = tuesday.rows(seq_len=32, exclude=tmp_path / "both.parquet")
    left = nothing.selection.documents(np.arange(len(nothing.selection)))
    assert len(left) == len(tuesday.documents) - both


def test_steps_that_the_run_does_not_have_are_refused(stores: tuple[Store, Store], tmp_path: Path) -> None:
    loader = Loader(Stage(rows(stores[0])), batch_size=4, seed=1)
    path = tmp_path / "seen.parquet"
    for steps in (range(0), range(3, 3), range(len(loader) + 1), range(0, 9, 2), range(-1, 3)):
        with pytest.raises(RecipeError, match="steps"):
            trace(loader, steps=steps, write=path)
    for given in ({"steps": range(3)}, {"write": path}, {"steps": range(3), "write": path, "step": 1}):
        with pytest.raises(RecipeError, match="expected"):
            trace(loader, **given)
    assert not path.exists()
