"""Runs whose stages change in the middle: the past is kept, named where it is not, and the rest is new."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.loading.numbered import NumberedRows, rows_in
from tests.loading.replay import Replay

import packline
from packline.errors import RecipeError, WaitedTooLong
from packline.facade import Store
from packline.loading.follow import follow
from packline.loading.loader import Loader
from packline.loading.mixture import Mixture, Stage
from packline.loading.trace import trace

SIZES = (60, 37, 80, 55)
Described = tuple[tuple[tuple[int, int], ...], int, int]
"""Sources and weights, batch size, and steps of a stage."""

WEIGHTS = st.dictionaries(st.integers(0, 3), st.integers(1, 4), min_size=1, max_size=3).map(
    lambda found: tuple(sorted(found.items()))
)
STAGES = st.tuples(WEIGHTS, st.sampled_from([2, 4, 6]), st.integers(1, 6))
RUNS = st.lists(STAGES, min_size=1, max_size=3)
WORLDS = st.sampled_from([1, 2])


def stage_of(described: Described, *, from_step: int | None = None, longer: int = 0) -> Stage:
    sources, size, steps = described
    mixture = Mixture([(NumberedRows(SIZES[n], source=n), weight, None) for n, weight in sources])
    tokens = (steps + longer) * size * mixture.seq_len
    return Stage(mixture, tokens=tokens, batch_size=size, from_step=from_step)


def loader_of(stages: list[Stage], **settings: Any) -> Loader:
    return Loader(stages, **{"seed": 3, "prefetch": 0} | settings)


def batches_of(loader: Loader, start: int = 0) -> list[list[tuple[int, int]]]:
    return [rows_in(loader.batch(step)) for step in range(start, len(loader))]


@given(RUNS, RUNS, st.data())
def test_a_run_changed_at_a_step_keeps_its_past_and_then_is_what_its_stages_define(
    first: list[Described], then: list[Described], data: st.DataObject
) -> None:
    old = loader_of([stage_of(one) for one in first])
    saved = data.draw(st.integers(1, len(old)), label="step of the state")
    change = data.draw(st.integers(saved, len(old)), label="step of the change")
    kept = [stage for stage in old.schedule.stages if stage.first_step < change]
    past = [stage_of(one) for one in first[: len(kept)]]
    # The same run with its present stage cut by its tokens: a definition of its own, without from_step.
    cut = [*first[: len(kept) - 1], (*first[len(kept) - 1][:2], change - kept[-1].first_step)]
    fresh = loader_of([stage_of(one) for one in (*cut, *then)])
    changed = loader_of([*past, stage_of(then[0], from_step=change), *map(stage_of, then[1:])])
    assert batches_of(changed) == batches_of(fresh)
    assert batches_of(changed)[:change] == batches_of(old)[:change]
    assert changed.fingerprint == fresh.fingerprint
    world = data.draw(WORLDS, label="ranks")
    state = json.loads(json.dumps(old.state_at(saved)))
    ranks = [
        loader_of(
            [*past, stage_of(then[0], from_step=change), *map(stage_of, then[1:])],
            rank=rank,
            world_size=world,
        )
        for rank in range(world)
    ]
    for rank in ranks:
        rank.load_state_dict(state)
    parts = zip(*ranks, strict=True)
    resumed = [[where for batch in step for where in rows_in(batch)] for step in parts]
    assert resumed == batches_of(fresh, saved)
    # The states of the changed run belong to both definitions, whatever the step.
    after = data.draw(st.integers(0, len(fresh)), label="step of a later state")
    fresh.load_state_dict(changed.state_at(after))


@given(RUNS, RUNS, st.data())
def test_a_state_is_accepted_if_and_only_if_the_stages_before_its_step_agree(
    one: list[Described], other: list[Described], data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(["another", "a common beginning", "another length"]))
    if kind == "a common beginning":
        other = [*one[: data.draw(st.integers(1, len(one)))], *other]
    if kind == "another length":  # of one stage; the others are equal
        place, steps = data.draw(st.integers(0, len(one) - 1)), data.draw(st.integers(1, 6))
        other = [*one[:place], (*one[place][:2], steps), *one[place + 1 :], *other]
    old, new = loader_of([stage_of(x) for x in one]), loader_of([stage_of(x) for x in other])
    step = data.draw(st.integers(0, min(len(old), len(new))), label="step")

    def past(run: list[Described]) -> list[Any]:
        """Sources, shares and batch size of every step before `step`, and its place within its stage."""
        shares = [{n: Fraction(weight, sum(dict(one[0]).values())) for n, weight in one[0]} for one in run]
        return [
            (share, size, at)
            for share, (_, size, steps) in zip(shares, run, strict=True)
            for at in range(steps)
        ][:step]

    state = old.state_at(step)
    if past(one) == past(other):
        new.load_state_dict(state)
        assert batches_of(new)[:step] == batches_of(old)[:step]
    else:
        with pytest.raises(RecipeError, match=f"before its step {step:,}, stage ") as error:
            new.load_state_dict(state)
        assert f"from_step = {step} " in error.value.hint


def test_from_step_ends_stages_that_would_run_out_or_have_no_end() -> None:
    rows, other = NumberedRows(10), NumberedRows(50, source=1)
    endless = Mixture([(rows, 1, None)])
    made = loader_of([Stage(endless), Stage(other, from_step=7)], batch_size=2)
    assert [(one.first_step, one.steps) for one in made.schedule.stages] == [(0, 7), (7, 25)]
    # More tokens than the rows have, cut before they are used up.
    made = loader_of([Stage(rows, tokens=4000), Stage(other, from_step=5, tokens=40)], batch_size=2)
    assert (len(made), made.left_over_rows) == (10, 0)
    made = loader_of([Stage(rows), Stage(other, from_step=2)], batch_size=3)
    assert (made.schedule.stages[0].steps, made.left_over_rows) == (2, 2)


def test_numbers_of_numpy_are_numbers() -> None:
    rows = NumberedRows(100)
    numbers: Any = {"from_step": np.int64(3), "batch_size": np.int32(4), "tokens": np.int64(64)}
    size: Any = np.int64(2)
    made = loader_of([Stage(rows), Stage(rows, **numbers)], batch_size=size)
    assert json.loads(json.dumps(made.state_at(2)))["stages"] == [[0, 2, [[0, 1]]], [3, 4, [[0, 1]]]]


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        ([(8, None), (8, 3)], "stage 1: from_step is 3: expected a step after 0, .* and at most 2"),
        ([(None, None), (8, 12)], "stage 0 is longer than its sources"),
        ([(80, None), (8, 2), (8, 2)], "stage 2: from_step is 2: expected a step after 2"),
        ([(80, None), (80, 2), (8, 1)], "stage 2: from_step is 1: expected a step after 2"),
        ([(8, 4)], "stage 0: from_step is 4: expected 0"),
        ([(8, -4)], "from_step of 0 or more, found -4"),
    ],
)
def test_a_from_step_that_does_not_fit_is_refused(
    stages: list[tuple[int | None, int | None]], says: str
) -> None:
    rows = NumberedRows(10)
    with pytest.raises(RecipeError, match=says):
        loader_of([Stage(rows, tokens=tokens, from_step=step) for tokens, step in stages], batch_size=1)


# ------------------------------------------------------------------------------------- run files


def run_text(*stages: str, loader: str = "batch_size = 4") -> str:
    return "\n".join([f"[loader]\n{loader}\nseed = 1\n", *stages])


def stage_text(weights: tuple[float, float], *lines: str) -> str:
    names = zip(("web", "code"), weights, strict=True)
    sources = "".join(
        f'[[stages.sources]]\nstore = "store"\nlabels = "{name}"\nweight = {weight}\nmax_epochs = 40\n'
        for name, weight in names
    )
    return "\n".join(["[[stages]]", 'seq_len = 8\npacking = "concat"', *lines, sources])


@pytest.fixture
def folder(tmp_path: Path, tokenizer_json: Path, documents: list[str], write_jsonl: Any) -> Path:
    """A store of two labels."""
    for number, label in enumerate(("web", "code")):
        write_jsonl(tmp_path / f"{label}.jsonl", documents[number::2])
    sources = "".join(
        f'[[sources]]\nname = "{one}"\ninputs = ["{one}.jsonl"]\nlabel = "{one}"\n' for one in ("web", "code")
    )
    (tmp_path / "recipe.toml").write_text(f'tokenizer = "{tokenizer_json}"\n{sources}', "utf-8")
    packline.build(tmp_path / "recipe.toml", out=tmp_path / "store", workers=0)
    return tmp_path


def test_a_run_file_is_changed_in_the_middle(folder: Path) -> None:
    path = folder / "run.toml"
    first = stage_text((7, 3), 'tokens = "4k"')
    path.write_text(run_text(first), "utf-8")
    old = Loader.from_file(path)
    state = old.state_at(9)
    second = stage_text((1, 1), "from_step = 9", "tokens = 640")
    path.write_text(run_text(first, second), "utf-8")
    new = Loader.from_file(path)
    new.load_state_dict(state)
    assert (new.step, len(new)) == (9, 9 + 20)
    for step, stage in ((8, 0), (9, 1)):
        traced = trace(path, step)
        assert (traced.stage, traced.stages) == (stage, 2)
        used = trace(new, document=traced.rows[0].spans[0].document)
        assert any(use.step == step and use.stage == stage for use in used)


def test_a_followed_run_is_changed_while_its_store_is_built(folder: Path, tmp_path: Path) -> None:
    store, path = Store(folder / "store"), folder / "later" / "run.toml"
    path.parent.mkdir()
    order = 'batch_size = 4\norder = "blocks"\nblock_rows = 2\nwindow_blocks = 2'
    first = stage_text((2, 1), "tokens = 2048").replace("max_epochs = 40", "max_epochs = 1")
    path.write_text(run_text(first, loader=order), "utf-8")
    with Replay(store, folder / "later" / "store") as replay:
        replay.begin()
        replay.commit(replay.receipts[0])
        for name in replay.receipts[1:]:
            replay.commit(name)
        growing = follow(path, timeout=60)
        batches = iter(growing)
        taken = [next(batches) for _ in range(4)]
        state = growing.state_dict()
        second = stage_text((1, 2), "from_step = 4", "tokens = 128").replace("= 40", "= 1")
        path.write_text(run_text(first, second, loader=order), "utf-8")
        changed = follow(path, timeout=60)
        changed.load_state_dict(state)
        rest = [next(iter(changed))]
        replay.finish()
    whole = Loader.from_file(path)
    whole.load_state_dict(state)
    expected = [whole.batch(step) for step in range(5)]
    for one, other in zip([*taken, *rest], expected, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)
    assert whole.fingerprint.split("-")[1:] == changed.fingerprint.split("-")[1:]
    path.write_text(run_text(first.replace("weight = 2", "weight = 5"), second, loader=order), "utf-8")
    with pytest.raises(RecipeError, match="stage 0: expected weights 2 : 1, found 5 : 1"):
        follow(path, timeout=60).load_state_dict(state)


def test_a_later_stage_is_checked_once_the_rows_before_it_are_there(folder: Path) -> None:
    store, path = Store(folder / "store"), folder / "later" / "run.toml"
    path.parent.mkdir()
    order = 'batch_tokens = "32"\norder = "blocks"\nblock_rows = 2\nwindow_blocks = 2'

    def text(label: str, *lines: str) -> str:
        source = f'[[stages.sources]]\nstore = "store"\nlabels = "{label}"\n'
        return "\n".join(["[[stages]]", 'packing = "concat"', *lines, source])

    first = text("web", "seq_len = 8", "tokens = 1024")
    other, same = (text(one, "seq_len = 16", "from_step = 16", "tokens = 128") for one in ("code", "web"))
    with Replay(store, folder / "later" / "store") as replay:
        replay.begin()
        followers = []
        for second in (other, same):
            path.write_text(run_text(first, second, loader=order), "utf-8")
            followers.append(follow(path, timeout=0, batch_size=4))
            assert len(followers[-1]) == 16 + 2
        for name in sorted(replay.receipts):  # those of code are there before the rows of stage 0
            replay.commit(name)
            if name.startswith("code"):
                with pytest.raises(WaitedTooLong):
                    followers[0].batch(0)
        assert len(list(followers[0])) == 18
        with pytest.raises(RecipeError, match=r"stage 1: source 0 .* would train again"):
            list(followers[1])


# ------------------------------------------------------------------------------------- batch_tokens


@given(st.integers(1, 12), st.integers(1, 40), st.integers(-5, 5))
def test_a_batch_in_tokens_is_whole_rows_or_refused_with_the_nearest(
    seq_len: int, rows: int, more: int
) -> None:
    tokens = rows * seq_len + more
    assume(tokens > 0)
    source = NumberedRows(500, seq_len)
    if tokens % seq_len == 0:
        for made in (
            loader_of([Stage(source, batch_tokens=tokens)]),
            loader_of([Stage(source)], batch_tokens=str(tokens)),
        ):
            assert made.batch(0)["tokens"].size == tokens
    else:
        with pytest.raises(RecipeError, match="expected a multiple of the row length") as error:
            loader_of([Stage(source)], batch_tokens=tokens)
        below = tokens // seq_len
        assert f"{(below + 1) * seq_len:,} ({below + 1:,} rows)" in error.value.hint
        assert (f"{below * seq_len:,} ({below:,} rows)" in error.value.hint) == (below > 0)


def test_batches_in_tokens_keep_their_size_where_rows_become_longer(folder: Path) -> None:
    path = folder / "run.toml"
    text = run_text(
        stage_text((1, 1), 'tokens = "1k"'),
        stage_text((1, 1), "tokens = 640").replace("seq_len = 8", "seq_len = 16"),
        loader='batch_tokens = "64"',
    )
    path.write_text(text, "utf-8")
    shapes = {batch["tokens"].shape for batch in Loader.from_file(path, world_size=2)}
    assert shapes == {(4, 8), (2, 16)}
    assert len(Loader.from_file(path, batch_size=2)) == 1000 // 16 + 640 // 32
    with pytest.raises(
        RecipeError, match="stage 1: expected a batch_size that 8 ranks can share, found 4"
    ) as e:
        Loader.from_file(path, world_size=8)
    assert "8 rows (128 tokens)" in e.value.hint
    path.write_text(text.replace('batch_tokens = "64"', 'batch_size = 2\nbatch_tokens = "64"'), "utf-8")
    with pytest.raises(RecipeError, match="expected batch_size or batch_tokens, found both"):
        Loader.from_file(path)
    assert Stage(NumberedRows(9, 4096), batch_tokens="2M").batch_size == 512
    assert Stage(NumberedRows(9, 4096), tokens="2B").tokens == 2_000_000_000
    with pytest.raises(RecipeError, match="found both"):
        Stage(NumberedRows(9), batch_size=2, batch_tokens=8)
