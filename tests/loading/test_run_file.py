"""A run file: the loader that one would write by hand, or an error that names the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packline.errors import RecipeError, StoreError, StoreNotFound
from packline.facade import Store
from packline.loading.loader import Loader
from packline.loading.mixture import Mixture, Stage
from packline.loading.run_file import (
    PACKING_FIELDS,
    RunFile,
    SourceSettings,
    StageSettings,
    load_run,
    parse_run,
    read_run,
)
from packline.packing.options import LoaderOptions
from packline.testing import make_store

PLAN = """
[loader]
batch_size = 4
seed = 7
prefetch = 0

[[stages]]
tokens = 640
seq_len = 16
packing = "concat"

[[stages.sources]]
store = "stores/web"
weight = 0.75
max_epochs = 3

[[stages.sources]]
store = "stores/code"
weight = "1/4"
packing = "best_fit"
max_epochs = "unlimited"
min_tokens = 3

[[stages]]
tokens = 512
seq_len = 32
split_to = 8
batch_size = 8

[[stages.sources]]
store = "stores/web"
split = "val"
max_epochs = 9
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two stores and a run file beside their folder."""
    rng = np.random.default_rng(5)
    (tmp_path / "stores").mkdir()
    lengths = [rng.integers(1, 40, 30).tolist() for _ in range(3)]
    make_store(tmp_path / "stores/web", lengths, splits=["train", "val", "train"])
    make_store(tmp_path / "stores/code", [rng.integers(1, 30, 40).tolist()])
    (tmp_path / "run.toml").write_text(PLAN, "utf-8")
    return tmp_path


def same_batches(one: Loader, other: Loader) -> bool:
    return len(one) == len(other) and all(
        set(a) == set(b) and all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in zip(one, other, strict=True)
    )


def test_a_run_file_is_the_loader_that_one_would_write_by_hand(folder: Path) -> None:
    web, code = Store(folder / "stores/web"), Store(folder / "stores/code")
    first = Mixture(
        [
            (web.rows(seq_len=16, packing="concat"), 0.75, 3),
            (code.rows(seq_len=16, packing="best_fit", min_tokens=3), "1/4", None),
        ]
    )
    second = Mixture([(web.rows(seq_len=32, split="val").split_to(8), 1, 9)])
    by_hand = Loader(
        [Stage(first, tokens=640), Stage(second, tokens=512, batch_size=8)], batch_size=4, seed=7, prefetch=0
    )
    loader = Loader.from_file(folder / "run.toml")
    assert loader.state_dict() == by_hand.state_dict()
    assert same_batches(loader, by_hand)
    assert len(loader) == 640 // (4 * 16) + 512 // (8 * 8)


def test_a_store_is_opened_once(folder: Path) -> None:
    stages, _ = load_run(folder / "run.toml")
    stores = [rows.store for stage in stages for rows in stage.mixture.rows]
    assert stores[0] is stores[2]


def test_plans_lie_where_the_file_says(folder: Path) -> None:
    path = folder / "run.toml"
    path.write_text(PLAN.replace("prefetch = 0", 'prefetch = 0\nplans = "packed"'), "utf-8")
    assert read_run(path).loader.plans == str(folder / "packed")
    Loader.from_file(path)
    assert (folder / "packed").is_dir()
    assert not (folder / "stores/code/plans").exists()


def table(**changes: Any) -> dict[str, Any]:
    """A run file as tables, with changes by place: `stages_0_tokens`."""
    run: dict[str, Any] = {
        "loader": {"batch_size": 4},
        "stages": [{"tokens": 64, "seq_len": 16, "sources": [{"store": "s"}]}],
    }
    for place, value in changes.items():
        inner: Any = run
        *way, last = (int(word) if word.isdigit() else word for word in place.split("__"))
        for word in way:
            inner = inner[word]
        inner[last] = value
    return run


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("", RunFile),
        ("loader__", LoaderOptions),
        ("stages__0__", StageSettings),
        ("stages__0__sources__0__", SourceSettings),
    ],
)
def test_an_unknown_setting_is_named_with_its_place_and_with_what_there_is(place: str, kind: Any) -> None:
    with pytest.raises(RecipeError, match="has no setting 'wieght'") as caught:
        parse_run(table(**{f"{place}wieght": 1}), "run.toml")
    where = place.strip("_").replace("stages__0", "stages[0]").replace("__sources__0", ".sources[0]")
    assert str(caught.value).startswith(f"run.toml: {where} has" if where else "run.toml has")
    assert all(name in caught.value.hint for name in kind.__struct_fields__)
    if "weight" in kind.__struct_fields__:
        assert "did you mean 'weight'?" in caught.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": []}, r"stages is \[\]: expected a list of tables"),
        ({"stages__0__sources": []}, r"stages\[0\].sources is \[\]: expected a list"),
        ({"stages__0__tokens": "many"}, r"stages\[0\]: tokens: 'many' is not a number"),
        ({"loader": 3}, "loader is 3: expected a table"),
        ({"stages__0__sources__0": 3}, r"stages\[0\].sources\[0\] is 3: expected a table"),
        ({"stages__0__sources__0__labels": 3}, r"sources\[0\].labels is 3: expected text or a list"),
        ({"stages__0__sources__0__max_epochs": "forever"}, "forever"),
    ],
)
def test_a_run_file_that_makes_no_sense_is_refused_with_its_place(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        parse_run(table(**changes))


def test_what_rows_and_loader_refuse_is_refused_when_the_run_file_is_loaded(folder: Path) -> None:
    path = folder / "run.toml"
    for old, new, message in (
        ('"best_fit"', '"worst_fit"', "worst_fit"),
        ("weight = 0.75", "weight = -1", "above 0"),
        ("weight = 0.75", "weight = nan", "above 0"),
        ("weight = 0.75", "", r"sources\[[01]\]: no weight: expected one"),
        ("max_epochs = 3", "max_epochs = 0", "max_epochs"),
        ("split_to = 8", "split_to = 7", "7"),
        ("seed = 7", 'seed = 7\nkeys = "torch"', "torch"),
    ):
        path.write_text(PLAN.replace(old, new), "utf-8")
        assert new in path.read_text("utf-8")
        with pytest.raises(RecipeError, match=message):
            Loader.from_file(path)


def test_a_file_that_is_no_run_file(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(RecipeError, match="cannot read the run file"):
        read_run(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_bytes(b"tokens = ")
    with pytest.raises(RecipeError, match=r"bad.toml is not TOML"):
        read_run(tmp_path / "bad.toml")
    (tmp_path / "bad.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(RecipeError, match=r"bad.toml is not TOML"):
        read_run(tmp_path / "bad.toml")
    (folder / "run.toml").write_text(PLAN.replace("stores/code", "stores/cdoe"), "utf-8")
    with pytest.raises(StoreNotFound, match="cdoe"):
        Loader.from_file(folder / "run.toml")


def test_a_cutting_of_the_source_wins_over_that_of_the_stage(folder: Path) -> None:
    path = folder / "run.toml"
    path.write_text(PLAN.replace('packing = "concat"', "min_tail_fraction = 0.0\npad_id = 7"), "utf-8")
    (first, _), _ = load_run(path)
    web, code = first.mixture.rows
    assert (web.packing, code.packing) == ("concat", "best_fit")
    assert (web.pad_id, code.pad_id) == (7, 7)
    lower = Store(folder / "stores/web").rows(16, min_tail_fraction=0.0, pad_id=7)
    assert web.fingerprint == lower.fingerprint
    assert set(PACKING_FIELDS) <= set(SourceSettings.__struct_fields__)


def test_a_source_that_gives_no_rows_is_named(folder: Path) -> None:
    path = folder / "run.toml"
    path.write_text(PLAN.replace("min_tokens = 3", "min_tokens = 300"), "utf-8")
    with pytest.raises(StoreError, match=r"run\.toml: stages\[0\]\.sources\[1\]: "):
        Loader.from_file(path)
