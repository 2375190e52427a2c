"""Random damage to exports, baked rows and pack plans: never silent, never a library's error, never a hang.

A few damages of every layout, with other seeds for each, so that all kinds are among them; `make test-long`
tries more.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.damage import KINDS, Damage, damage, files_of, link_copy
from tests.formats.stores import CASES, EOD, make_store, random_documents, random_loss

import packline
from packline.errors import PacklineError
from packline.facade import Store
from packline.formats.baked import BakedRows
from packline.formats.check import check_dataset
from packline.formats.export_folder import RECORD
from packline.formats.format import ROW_FORMATS

DAMAGES = int(os.environ.get("PACKLINE_DAMAGES", "2"))
pytestmark = pytest.mark.timeout(60 + 20 * DAMAGES)  # a damage takes milliseconds, unless something hangs

Values = Any


@dataclass(frozen=True, slots=True)
class Layout:
    """An export to be damaged."""

    to: str
    store: str = "splits"
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    foreign: dict[str, Any] = field(default_factory=dict)
    """Options that reading takes where no packline.json gives them."""


ROWS = {"seq_len": 16}
FIT = {"seq_len": 16, "packing": "best_fit"}
LAYOUTS = {
    "megatron": Layout("megatron"),
    "megatron single": Layout("megatron", options={"files": "single"}),
    "llmc": Layout("llmc", options={"shard_tokens": 300}),
    "nanogpt": Layout("nanogpt"),
    "npy": Layout("npy", options={"shard_tokens": 300}),
    "datatrove": Layout("datatrove", "bos_loss"),
    "olmo": Layout("olmo", "loss"),
    "forager": Layout("forager", foreign={"dtype": "uint16"}),
    "arrow": Layout("arrow"),
    "arrow loss": Layout("arrow", "loss", options={"provenance": True}),
    "parquet": Layout("parquet", "loss"),
    "stacks": Layout("stacks", "bos_loss", options={"shard_size": 200}),
    "npz": Layout("npz", "loss", settings={**ROWS, "batch_size": 4}),
    "pt": Layout("pt", settings=ROWS),
    "litdata": Layout("litdata", settings=ROWS, options={"shard_bytes": 1000}),
    "litdata best fit": Layout("litdata", settings=FIT),
    "mds": Layout("mds", settings=ROWS),
    "mds zstd": Layout("mds", settings=FIT, options={"compression": "zstd"}),
    "trl": Layout("trl", "loss", settings=FIT),
    "levanter": Layout("levanter", "loss", settings=FIT, options={"compression": "none"}),
    "baked": Layout("baked", "loss", settings={**FIT, "seed": 1}, options={"file_rows": 20}),
}


def seeds(name: str, count: int) -> range:
    """Seeds of a layout: others than every other layout's, so that a few do damages of all kinds."""
    first = 10_000 * list(LAYOUTS).index(name)
    return range(first, first + count)


BASE: list[Path] = []


@pytest.fixture(scope="module", autouse=True)
def base(tmp_path_factory: pytest.TempPathFactory) -> None:
    BASE.append(tmp_path_factory.mktemp("whole"))


def folder() -> Path:
    """Folder with stores and whole exports, for all tests of this file."""
    return BASE[0]


@cache
def store_of(name: str) -> Store:
    return CASES[name].make(folder() / "stores" / name)


@cache
def exported(name: str) -> tuple[Path, Values]:
    """An export, and what reading it gives."""
    layout, out = LAYOUTS[name], folder() / "exports" / name
    source = store_of(layout.store).path
    packline.export(source, to=layout.to, out=out, options=layout.options, workers=0, **layout.settings)
    report = check_dataset(out)
    assert report.ok and report.bytes, report.problems
    return out, read(out, layout, folder() / "read" / name)


def read(path: Path, layout: Layout, out: Path, **more: Any) -> Values:
    """All that a reader gets of an export: documents and loss masks, or the arrays of baked rows."""
    if layout.to in ROW_FORMATS:
        if layout.to != "baked":
            return None
        rows = BakedRows(path)
        fields = ("tokens", "targets", "loss_mask", "position_ids", "segment_ids")
        arrays = rows.read(np.arange(len(rows)), fields)
        return {name: array.tolist() for name, array in arrays.items()}
    tokenizer = store_of(layout.store).path / "tokenizer"
    back = packline.import_(path, from_=layout.to, tokenizer=tokenizer, out=out, workers=0, **more)
    losses = [None if shard.loss is None else shard.loss.tolist() for shard in back.shards]
    return [[document.tolist() for document in back.documents], losses]


def notices(path: Path, layout: Layout, done: Damage) -> bool:
    """True if checking reports a damage."""
    try:
        report = check_dataset(path, layout.to)
    except PacklineError:
        return True
    if not report.ok:
        return True
    gone = done.kind == "delete" and done.file == RECORD and layout.to != "baked"
    return gone and any("checksums" in note for note in report.notes)  # it is as if somebody else had made it


def trial(name: str, seed: int, tmp_path: Path) -> str:
    """Damage an export, check it, read it; what reading came to."""
    layout, (whole, values) = LAYOUTS[name], exported(name)
    hurt = link_copy(whole, tmp_path / f"{seed}" / "hurt")
    done = damage(hurt, seed)
    what = f"{name}, seed {seed}: {done}"
    print(what)
    assert notices(hurt, layout, done), f"{what}: checking calls it whole"
    try:
        found = read(hurt, layout, tmp_path / f"{seed}" / "back")
    except PacklineError as error:
        assert str(error), what
        return "refused"
    if (done.kind, done.file) != ("delete", RECORD):
        assert found == values, f"{what}: read with other values"
    return "the same values"


@pytest.mark.long
@pytest.mark.parametrize("name", LAYOUTS)
def test_no_damage_is_silent_and_none_is_a_library_s_error(name: str, tmp_path: Path) -> None:
    outcomes = Counter(trial(name, seed, tmp_path) for seed in seeds(name, DAMAGES))
    print(f"{name}: {outcomes.total()} damages, {dict(outcomes)}")


def foreign_trial(name: str, seed: int, tmp_path: Path) -> str:
    """The same without any record: nothing tells right values, but there is an answer or a plain error."""
    layout, (whole, _) = LAYOUTS[name], exported(name)
    hurt = link_copy(whole, tmp_path / f"{seed}" / "hurt")
    for own in (RECORD, "tokenizer.json"):
        (hurt / own).unlink()
    kinds = [kind for kind in KINDS if kind != "swap" or len(files_of(hurt)) > 1]
    done = damage(hurt, seed, kinds=kinds)
    tokenizer = store_of(layout.store).path / "tokenizer"
    print(f"{name}, seed {seed}: {done}")
    try:
        ok = check_dataset(hurt, layout.to, tokenizer, layout.foreign, eod=EOD).ok
        outcome = "read" if ok else "refused"
        options = {"eod": EOD, "options": layout.foreign}
        read(hurt, layout, tmp_path / f"{seed}" / "back", **options)
    except PacklineError as error:
        assert str(error)
        outcome = "refused"
    with suppress(PacklineError):
        check_dataset(hurt)  # of whatever format
    return outcome


FOREIGN = [name for name in LAYOUTS if name != "baked"]
"""Layouts that need no packline.json."""


@pytest.mark.long
@pytest.mark.parametrize("name", FOREIGN)
def test_damage_without_a_record_is_never_a_library_s_error(name: str, tmp_path: Path) -> None:
    outcomes = Counter(foreign_trial(name, seed, tmp_path) for seed in seeds(name, DAMAGES))
    print(f"{name} without a record: {outcomes.total()} damages, {dict(outcomes)}")


@cache
def planned() -> tuple[Path, Callable[[Path], list[list[int]]]]:
    """A best_fit plan, and how rows are read by the plans of a folder."""
    documents = random_documents(400, 1000, longest=60, seed=5)
    loss = random_loss(documents)
    store = make_store(folder() / "planned", documents, vocab_size=1000, eod_id=0, loss=loss)
    plans = folder() / "plans"

    def rows(where: Path) -> list[list[int]]:
        made = Store(store.path).rows(48, packing="best_fit", plans=where)
        return [tokens.tolist() for tokens in made.read(np.arange(len(made)), ("tokens",))["tokens"]]

    rows(plans)
    (plan,) = plans.iterdir()
    return plan, rows


def plan_trial(seed: int, tmp_path: Path) -> str:
    plan, rows = planned()
    where = tmp_path / f"{seed}"
    hurt = link_copy(plan, where / plan.name)
    done = damage(hurt, seed, kinds=[kind for kind in KINDS if kind != "swap"])
    print(f"plan, seed {seed}: {done}")
    try:
        found = rows(where)
    except PacklineError as error:
        assert str(error)
        return "refused"
    assert found == rows(plan.parent), f"seed {seed}: {done}: other rows"
    # Nobody looks for other files in a plan, and one without its record is made again.
    unseen = done.kind == "stray" or (done.kind == "delete" and "plan.bin" in str(done))
    assert unseen, f"seed {seed}: {done}: not noticed"
    return "the same values"


@pytest.mark.long
def test_no_damage_to_a_plan_is_silent(tmp_path: Path) -> None:
    plan, rows = planned()
    assert rows(plan.parent)
    outcomes = Counter(plan_trial(seed, tmp_path) for seed in range(10 * DAMAGES))
    print(f"plans: {outcomes.total()} damages, {dict(outcomes)}")
    assert outcomes["refused"]
