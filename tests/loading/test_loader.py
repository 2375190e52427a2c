"""The loader: the same global batches whatever the ranks, threads and interruptions; small exact state."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loading.numbered import NumberedRows, rows_in

from packline.errors import CorruptStore, RecipeError
from packline.loading.loader import Loader
from packline.loading.mixture import Mixture, Stage

Where = list[tuple[int, int]]


def stages(kind: str) -> Any:
    """A run of 12 rows a batch: plain rows, a mixture, or a curriculum of stages."""
    short, long = NumberedRows(90), NumberedRows(40, 32, source=1)
    if kind == "rows":
        return short
    mixture = Mixture([(short, 0.7, 2), (NumberedRows(50, source=2), 0.3, None)])
    if kind == "mixture":
        return mixture
    return [
        Stage(short, tokens=12 * 4 * 3),
        Stage(mixture, tokens=12 * 4 * 4),
        Stage(long, seq_len=8, tokens=24 * 8 * 2, batch_size=24),
        Stage(long),
    ]


KINDS = st.sampled_from(["rows", "mixture", "stages"])
WORLDS = st.sampled_from([1, 2, 3, 4, 6, 12])


def loader(kind: str = "rows", **settings: Any) -> Loader:
    return Loader(stages(kind), **{"batch_size": 12, "seed": 5, "prefetch": 0} | settings)


def global_batches(kind: str, **settings: Any) -> list[Where]:
    return [rows_in(batch) for batch in loader(kind, **settings)]


ORDERS = st.sampled_from(
    [{}, {"shuffle": False}, {"order": "blocks"}, {"order": "blocks", "block_rows": 3, "window_blocks": 4}]
)


@given(KINDS, st.integers(0, 3), ORDERS, st.data())
def test_the_same_global_batches_whatever_the_world_prefetch_and_interruptions(
    kind: str, seed: int, order: dict[str, Any], data: st.DataObject
) -> None:
    run = {"seed": seed, **order}
    expected = global_batches(kind, **run)
    found: list[Where] = []
    state: dict[str, Any] | None = None
    while len(found) < len(expected):
        world = data.draw(WORLDS, label="world size")
        prefetch = data.draw(st.integers(0, 3), label="prefetch")
        ranks = [loader(kind, **run, rank=r, world_size=world, prefetch=prefetch) for r in range(world)]
        if state is not None:
            for one in ranks:
                one.load_state_dict(state)
        stop = data.draw(st.integers(1, len(expected) - len(found)), label="batches until it ends")
        for batches in itertools.islice(zip(*ranks, strict=True), stop):
            found.append([where for batch in batches for where in rows_in(batch)])
        states = [json.dumps(one.state_dict()) for one in ranks]
        assert len(set(states)) == 1
        state = json.loads(states[0])
    assert found == expected


@given(KINDS, st.data())
def test_any_batch_is_what_iterating_gives(kind: str, data: st.DataObject) -> None:
    made = loader(kind, prefetch=2)
    batches = list(made)
    assert len(batches) == len(made)
    for step in data.draw(st.lists(st.integers(0, len(made) - 1), max_size=6)):
        alone, drawn = made.batch(step), made.rows_of_step(step)
        assert set(alone) == {"tokens", "targets", "position_ids", "segment_ids"}
        assert all(np.array_equal(alone[name], batches[step][name]) for name in alone)
        sources = made.schedule.stages[drawn.stage].mixture.rows
        names = [sources[number].source for number in drawn.sources.tolist()]
        assert rows_in(alone) == list(zip(names, drawn.rows.tolist(), strict=True))


@given(KINDS, st.data())
def test_steps_are_indexed_as_a_list_of_batches_is(kind: str, data: st.DataObject) -> None:
    made = loader(kind)
    batches = [batch["tokens"].tolist() for batch in made]
    ends = st.none() | st.integers(-len(made) - 2, len(made) + 2)
    chosen = slice(data.draw(ends), data.draw(ends), data.draw(st.sampled_from([None, 1, 2, -1])))
    assert [batch["tokens"].tolist() for batch in made[chosen]] == batches[chosen]
    assert made[-1]["tokens"].tolist() == batches[-1] and made.step == len(made)
    for step in (len(made), -len(made) - 1):
        with pytest.raises(IndexError):
            made[step]


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 3), st.integers(0, 5))
def test_each_row_comes_once_an_epoch_and_what_is_left_over_is_said(
    count: int, size: int, epochs: int, seed: int
) -> None:
    if count * epochs < size:
        return
    made = Loader(NumberedRows(count), batch_size=size, seed=seed, epochs=epochs, prefetch=0)
    rows = [row for batch in made for _, row in rows_in(batch)]
    assert len(rows) == len(made) * size
    assert made.left_over_rows == count * epochs - len(rows) < size
    for start in range(0, len(rows), count):
        epoch = rows[start : start + count]
        assert len(set(epoch)) == len(epoch)
    assert (f"{made.left_over_rows:,} rows left over" in repr(made)) == bool(made.left_over_rows)


# ------------------------------------------------------------------------------------- state


def test_the_state_counts_batches_handed_out_not_those_made_ahead() -> None:
    rows = NumberedRows(120)
    made = Loader(rows, batch_size=12, prefetch=5)
    batches = iter(made)
    assert made.state_dict()["step"] == 0
    for step in range(1, 4):
        next(batches)
        assert made.state_dict()["step"] == made.step == step
    assert list(map(type, made.state_dict().values())) == [int, int, int, str, list, list]
    assert len(json.dumps(made.state_dict())) < 250
    assert sum(1 for _ in batches) == 7
    assert made.state_dict()["step"] == 10


def test_of_the_state_only_the_step_changes() -> None:
    made = loader("stages")
    first = made.state_dict()
    next(iter(made))
    assert made.state_dict() == {**first, "step": 1}
    assert first["fingerprint"] == loader("stages").fingerprint != loader("mixture").fingerprint


def test_a_pass_after_the_resumed_one_begins_at_the_beginning() -> None:
    made = loader()
    first = [rows_in(batch) for batch in made]
    assert [rows_in(batch) for batch in made] == first  # as for an evaluation that is run again
    made.load_state_dict({**made.state_dict(), "step": 3})
    assert made.step == 3
    assert [rows_in(batch) for batch in made] == first[3:]
    assert [rows_in(batch) for batch in made] == first
    done = made.state_dict()
    assert done["step"] == len(made)
    made.load_state_dict(done)
    assert list(made) == []  # a run that was finished is not run again


def test_the_state_follows_the_newest_iterator() -> None:
    made = loader()
    old = iter(made)
    next(old)
    new = iter(made)
    assert made.step == 0
    next(old)
    assert made.step == 0
    next(new)
    assert made.step == 1
    made.load_state_dict({**made.state_dict(), "step": 4})
    next(new)
    assert made.step == 4


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {"rows": NumberedRows(90, source=9)},
            r"before its step 3, stage 0: source 0: expected the store \w{12}, found \w{12}",
        ),
        ({"rows": NumberedRows(91)}, r"stage 0: source 0: rows \(seq_len, packing, selection\)"),
        (
            {"rows": Mixture([(NumberedRows(90), 1), (NumberedRows(60, source=1), 1)])},
            "stage 0: expected weights 1, found 1 : 1",
        ),
        ({"batch_size": 6}, "stage 0: expected a batch_size of 12, found 6"),
        ({"seed": 6}, r"differs in seed \(expected 6, found 5\)"),
        ({"shuffle": False}, r"differs in order \(expected stored, found global\)"),
        (
            {"order": "blocks"},
            r"differs in order \(expected blocks of 256 rows in windows of 256,",
        ),
        ({"seed": 4, "shuffle": False}, r"seed \(expected 4, found 5\), order"),
    ],
)
def test_the_state_of_another_run_is_refused_and_the_difference_named(
    changed: dict[str, Any], says: str
) -> None:
    state = loader().state_at(3)
    settings: dict[str, Any] = {"rows": NumberedRows(90), "batch_size": 12, "seed": 5}
    settings |= changed
    other = Loader(settings.pop("rows"), **settings)
    with pytest.raises(RecipeError, match=says):
        other.load_state_dict(state)
    assert other.step == 0


def test_weights_and_earlier_stages_are_part_of_the_run_but_its_length_is_not() -> None:
    def run(weight: float, *tokens: int, epochs: int = 2) -> Loader:
        mixture = Mixture([(NumberedRows(90), weight, epochs), (NumberedRows(50, source=2), 1, None)])
        return Loader([Stage(mixture, tokens=tokens_of) for tokens_of in tokens], batch_size=12, seed=5)

    state = run(1, 480, 480).state_at(11)
    for other, says in (
        (run(2, 480, 480), "stage 0: expected weights 1 : 1, found 2 : 1"),
        (run(1, 528, 480), "stage 1: expected it to begin at step 10, found 11"),
        (run(1, 432, 480, 480), "stage 1: expected it to begin at step 10, found 9"),
        (run(1, 960), "stage 1: expected it to begin at step 10, found no such stage"),
        (run(1, 480, 48, 480), None),
    ):
        if says is None:
            other.load_state_dict(state)
            continue
        with pytest.raises(RecipeError, match=says) as error:
            other.load_state_dict(state)
        assert "from_step = 11" in error.value.hint
    longer = run(1, 480, 960, epochs=3)
    longer.load_state_dict({**state, "step": 20})
    assert len(list(longer)) == 10
    shorter = run(1, 480, 96)
    with pytest.raises(RecipeError, match="at step 20: expected 0 to 12"):
        shorter.load_state_dict({**state, "step": 20})


def test_what_is_no_state_is_refused() -> None:
    made = loader()
    state = made.state_dict()
    with pytest.raises(RecipeError, match="not a loader's state: version, seed missing"):
        made.load_state_dict({"step": 1, "fingerprint": ""})
    with pytest.raises(RecipeError, match="version 2: expected version 1") as newer:
        made.load_state_dict({**state, "version": 2})
    assert "newer packline" in newer.value.hint
    for name, value in (("stages", 3), ("stages", [[0, 12]]), ("sources", [1]), ("sources", ["a"])):
        with pytest.raises(RecipeError, match=r"not a loader's state|different run"):
            made.load_state_dict({**state, "step": 1, name: value})
    for step in (-1, len(made) + 1, 1.5, "3", True, None):
        with pytest.raises(RecipeError, match="a loader's state at step"):
            made.load_state_dict({**state, "step": step})
    assert made.state_dict() == state


# ---------------------------------------------------------------------------- fields and errors


def test_hugging_face_models_shift_labels_to_our_targets() -> None:
    ours, theirs = loader("mixture").batch(0), loader("mixture", keys="huggingface").batch(0)
    assert set(theirs) == {"input_ids", "labels", "position_ids"}
    assert np.array_equal(theirs["input_ids"], ours["tokens"])
    assert theirs["labels"].dtype == np.int64  # their loss takes no other
    # What such a model compares logits of place t with is `labels[t + 1]`.
    assert np.array_equal(theirs["labels"][:, 1:], ours["targets"][:, :-1])
    assert (theirs["labels"][:, 0] == -100).all()
    learned = theirs["labels"] != -100
    assert learned.any()
    assert np.array_equal(theirs["labels"][learned], theirs["input_ids"][learned])


def test_fields_are_chosen_and_checked() -> None:
    assert set(loader(fields=["tokens", "loss_mask"]).batch(0)) == {"tokens", "loss_mask"}
    both = loader(fields=["tokens", "segment_ids"], keys="huggingface").batch(0)
    assert set(both) == {"input_ids", "segment_ids"}
    for fields in ([], ["token"], "tokens", ["input_ids"]):
        with pytest.raises(RecipeError, match="expected fields of tokens, targets"):
            loader(fields=fields)
    with pytest.raises(RecipeError, match="keys of packline or huggingface, found 'hf'"):
        loader(keys="hf")


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 1), (1, 1), (4, 4), (0, 0), (0, -2)])
def test_a_rank_outside_the_world_is_refused(rank: int, world_size: int) -> None:
    with pytest.raises(RecipeError, match="expected a rank from 0"):
        loader(rank=rank, world_size=world_size)


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(RecipeError, match="stage 0: expected a batch_size that 5 ranks can share, found 12"):
        loader(world_size=5)
    with pytest.raises(RecipeError, match="stage 2: expected a batch_size that 12 ranks can share, found 30"):
        Loader([*stages("stages")[:2], Stage(NumberedRows(60), batch_size=30)], batch_size=12, world_size=12)
    with pytest.raises(RecipeError, match="prefetch is -1: expected at least 0"):
        loader(prefetch=-1)
    with pytest.raises(RecipeError, match="epochs=2 is for plain rows"):
        loader("mixture", epochs=2)
    for wrong in ("store", 7, None, [NumberedRows(9)], [(NumberedRows(9), 1)]):
        with pytest.raises(RecipeError, match="expected rows, a Mixture, a Stage or a list of stages"):
            Loader(wrong, batch_size=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_a_damaged_row_stops_at_its_batch_and_the_state_is_the_one_before(prefetch: int) -> None:
    rows = NumberedRows(100, damaged=[57])
    made = Loader(rows, batch_size=10, shuffle=False, prefetch=prefetch)
    taken = 0
    with pytest.raises(CorruptStore, match="row 57 is damaged"):
        for _ in made:
            taken += 1
    assert (taken, made.state_dict()["step"]) == (5, 5)
    rows.damaged = ()
    made.load_state_dict(made.state_dict())
    assert rows_in(next(iter(made))) == [(0, row) for row in range(50, 60)]
