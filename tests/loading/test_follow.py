"""Following a build gives the batches of the finished store, for every order in which units are committed."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loading.replay import Replay

import packline
from packline.errors import BuildStopped, RecipeError, StoreError, StoreNotFound, WaitedTooLong
from packline.facade import Store
from packline.loading import follow as module
from packline.loading.follow import Follower, Waiting, follow
from packline.loading.loader import Loader
from packline.loading.mixture import Mixture
from packline.loading.trace import trace_document, trace_step
from packline.testing import make_store

Batches = list[dict[str, np.ndarray]]

PACKINGS: list[dict[str, Any]] = [
    {"packing": "concat"},
    {"packing": "concat", "boundary_loss": True},
    {"packing": "concat", "min_tokens": 4},
    {"packing": "pad"},
    {"packing": "pad", "overflow": "split"},
    {"packing": "pad", "overflow": "drop", "max_tokens": 20},
    {"packing": "best_fit", "pack_window": 2},
    {"packing": "best_fit", "pack_window": 1, "min_tokens": 3},
]
ORDERS: list[dict[str, Any]] = [
    {"shuffle": False},
    {"order": "blocks", "block_rows": 1, "window_blocks": 3},
    {"order": "blocks", "block_rows": 2, "window_blocks": 2},
    {"order": "blocks"},
]
PUBLISHED = ["at once", "later", "by another process"]
"""Ways in which a committed unit is published."""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.0)


def take_turns(replay: Replay, order: list[str], then: Sequence[str] = ()) -> Callable[[Waiting], None]:
    """Let the build make one step whenever the follower waits."""
    events: Iterator[None] = iter(replay.events(order, then))
    return lambda waiting: next(events)


def same(found: Batches, expected: Batches) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert np.array_equal(one[name], other[name]), name
            assert one[name].dtype == other[name].dtype


@st.composite
def shapes(draw: st.DrawFn) -> tuple[list[list[int]], list[str], list[str]]:
    """Lengths of documents, split and source of the units of a small store."""
    units = draw(st.integers(1, 7))
    lengths = draw(
        st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=8), min_size=units, max_size=units)
    )
    splits = draw(st.lists(st.sampled_from(["train", "train", "val"]), min_size=units, max_size=units))
    cut = draw(st.integers(0, units))
    return lengths, splits, ["web"] * cut + ["code"] * (units - cut)


@settings(max_examples=15)
@given(shapes(), st.sampled_from(PACKINGS), st.sampled_from(ORDERS), st.integers(1, 3), st.data())
def test_every_order_of_units_gives_the_batches_of_the_finished_store(
    shape: tuple[list[list[int]], list[str], list[str]],
    packing: dict[str, Any],
    order: dict[str, Any],
    epochs: int,
    data: st.DataObject,
) -> None:
    lengths, splits, sources = shape
    batch_size, prefetch = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([0, 2]))
    common = {"batch_size": batch_size, "seed": 3, "prefetch": prefetch, **order}
    with TemporaryDirectory() as folder:
        store = make_store(Path(folder) / "whole", lengths, splits=splits, sources=sources)
        try:
            loader = Loader(store.rows(8, **packing), epochs=epochs, **common)
        except (RecipeError, StoreError):
            return  # not enough of anything for a batch
        expected = list(loader)
        with Replay(store, Path(folder) / "built") as replay:
            arrival = data.draw(st.permutations(replay.receipts))
            count = len(arrival)
            then = data.draw(st.lists(st.sampled_from(PUBLISHED), min_size=count, max_size=count))
            follower = follow(
                replay.folder,
                seq_len=8,
                epochs=epochs,
                on_wait=take_turns(replay, arrival, then),
                **packing,
                **common,
            )
            step = data.draw(st.integers(0, len(expected)))
            found = list(itertools.islice(follower, step))
            same(found, expected[:step])
            state = follower.state_dict()
            # The finished store goes on from the state, and so does another follower, and back again.
            loader.load_state_dict(state)
            same(list(loader), expected[step:])
            waits: dict[str, Any] = {"grace": 0} if follower.finished else {"on_wait": follower.on_wait}
            again = follow(replay.folder, seq_len=8, epochs=epochs, **waits, **packing, **common)
            again.load_state_dict(loader.state_at(step))
            same(list(again), expected[step:])
            assert len(again) == len(expected)


@settings(max_examples=8)
@given(st.permutations(range(6)), st.sampled_from(ORDERS[:3]), st.integers(0, 3), st.data())
def test_mixtures_and_stages_follow_too(
    arrival: list[int], order: dict[str, Any], seed: int, data: st.DataObject
) -> None:
    lengths = [[9, 30, 4, 17], [8, 8, 12], [20, 6], [5, 5, 5, 5, 40], [12, 3, 9], [31]]
    with TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        store = make_store(whole, lengths, sources=["web"] * 3 + ["code"] * 3)
        words = "\n".join(
            f"{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}".replace("'", '"')
            for name, value in order.items()
        )
        text = f"""
[loader]
batch_size = 2
seed = {seed}
{words}
[[stages]]
seq_len = 8
tokens = 64
[[stages.sources]]
store = "STORE"
sources = "web"
weight = 0.7
[[stages.sources]]
store = "STORE"
sources = "code"
weight = 0.3
[[stages]]
seq_len = 8
split_to = 4
packing = "best_fit"
pack_window = 2
[[stages.sources]]
store = "STORE"
sources = "code"
max_epochs = 2
[[stages]]
seq_len = 8
[[stages.sources]]
store = "STORE"
sources = "web"
"""
        for name in ("whole", "built"):
            (Path(folder) / f"{name}.toml").write_text(text.replace("STORE", name))
        expected = list(Loader.from_file(Path(folder) / "whole.toml"))
        with Replay(store, Path(folder) / "built") as replay:
            names = [replay.receipts[place] for place in arrival]
            run = Path(folder) / "built.toml"
            follower = follow(run, on_wait=take_turns(replay, names))
            step = data.draw(st.integers(0, len(expected)))
            same(list(itertools.islice(follower, step)), expected[:step])
            finished = Loader.from_file(Path(folder) / "whole.toml")
            finished.load_state_dict(follower.state_dict())
            same(list(finished), expected[step:])
            same([follower.batch(n) for n in range(step, len(expected))], expected[step:])
            assert follower.has_step(len(expected)) is False


# ------------------------------------------------------------------------------- waiting, and its end


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[Replay]:
    store = make_store(tmp_path / "whole", [[9, 30, 4], [8, 8, 12], [20, 6], [7, 9, 11, 3]])
    with Replay(store, tmp_path / "built") as replay:
        yield replay


ORDER: dict[str, Any] = {"batch_size": 1, "order": "blocks", "block_rows": 1, "window_blocks": 2}
SETTINGS: dict[str, Any] = {"seq_len": 8, **ORDER}


def test_it_says_what_it_waits_for(replay: Replay) -> None:
    heard: list[Waiting] = []
    turns = take_turns(replay, replay.receipts)

    def hear(waiting: Waiting) -> None:
        heard.append(waiting)
        turns(waiting)

    steps = len(list(follow(replay.folder, on_wait=hear, **SETTINGS)))
    assert [one.step for one in heard] == sorted(one.step for one in heard)
    assert heard[0].stores == (str(replay.folder),) and heard[-1].units == 3
    assert steps == 16


def test_a_step_that_does_not_come_in_time_is_an_error(replay: Replay) -> None:
    replay.begin()
    replay.commit(replay.receipts[0])
    follower = follow(replay.folder, timeout=0.05, **SETTINGS)
    batches = iter(follower)
    with pytest.raises(WaitedTooLong, match=r"waited 0 seconds for step \d+ of .*built"):
        list(batches)
    with pytest.raises(TypeError, match="not known before"):
        len(follower)


def test_a_build_that_stops_is_reported_and_goes_on_when_it_is_resumed(replay: Replay) -> None:
    expected = list(Loader(replay.store.rows(8), **ORDER))
    replay.begin()
    replay.commit(replay.receipts[0])
    replay.stop()
    follower = follow(replay.folder, grace=0.05, **SETTINGS)
    found = []
    with pytest.raises(
        BuildStopped, match=r"step \d needs more than the first 1 of its units.*no process"
    ) as stopped:
        for batch in follower:
            found.append(batch)
    assert "run its command again" in stopped.value.hint
    same(found, expected[: len(found)])
    replay.resume()
    for name in replay.receipts[1:]:
        replay.commit(name)
    replay.finish()
    state = follower.state_dict()
    follower.load_state_dict(state)
    same(found + list(follower), expected)


def test_nothing_there_is_reported_after_the_grace(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound, match="no build has begun"):
        follow(tmp_path / "nowhere", grace=0.02, **SETTINGS)


def test_another_store_in_the_place_is_refused(replay: Replay, tmp_path: Path) -> None:
    lengths = [[9, 30, 4], [8, 8, 12], [20, 6], [7, 9, 11, 4]]
    other = make_store(tmp_path / "other", lengths)
    replay.begin()
    replay.commit(replay.receipts[0])
    follower = follow(replay.folder, timeout=0.0, **SETTINGS)
    with Replay(other, replay.folder) as another:
        for name in another.receipts[1:]:
            another.commit(name, publish=False)
        replay.stop()
        another.finish()
    with pytest.raises(StoreError, match="another recipe, tokenizer or inputs"):
        list(follower)


def test_a_store_built_again_with_other_contents_refuses_the_state(tmp_path: Path) -> None:
    """The recipe and the inputs are the same by name and size: only what was read tells them apart."""
    store = make_store(tmp_path / "whole", [[9, 30, 4], [8, 8, 12], [20, 6]])
    with Replay(store, tmp_path / "built") as replay:
        follower = follow(replay.folder, on_wait=take_turns(replay, replay.receipts), **SETTINGS)
        list(itertools.islice(follower, 3))
        state = follower.state_dict()
    build, units, chain = state["units"][0]
    for wrong, problem in (
        ([["0" * 12, units, chain]], "another recipe, tokenizer or inputs"),
        ([[build, units, "0" * 12]], rf"the first {units} units that it read of source 0 differ"),
    ):
        loader = Loader(Store(replay.store.path).rows(8), **ORDER)
        with pytest.raises(RecipeError, match=problem):
            loader.load_state_dict({**state, "units": wrong})


@pytest.mark.parametrize("of_another_build", [False, True])
def test_a_state_ahead_of_the_build_waits_for_its_units(replay: Replay, of_another_build: bool) -> None:
    loader = Loader(replay.store.rows(8), **ORDER)
    expected = list(loader)
    state = loader.state_at(9)
    replay.begin()
    turns = iter([*(lambda name=name: replay.commit(name) for name in replay.receipts), replay.finish])
    follower = follow(replay.folder, on_wait=lambda waiting: next(turns)(), **SETTINGS)
    if of_another_build:
        state["units"][0][2] = "0" * 12
    follower.load_state_dict(state)
    if of_another_build:
        with pytest.raises(RecipeError, match="differ from those"):
            list(follower)
    else:
        same(list(follower), expected[9:])


def test_a_follower_goes_to_another_process_as_its_folder(replay: Replay) -> None:
    replay.begin()
    for name in replay.receipts[:3]:
        replay.commit(name)
    follower = follow(replay.folder, timeout=0.0, **SETTINGS)
    first = next(iter(follower))
    other = pickle.loads(pickle.dumps(follower))
    assert isinstance(other, Follower) and other.step == 1
    same([other.batch(0)], [first])
    assert other.state_dict() == follower.state_dict()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"order": "global", "block_rows": None, "window_blocks": None}, "order is global"),
        ({"shuffle_documents": 1}, "shuffle_documents needs all documents"),
        ({"packing": "best_fit"}, "best_fit without pack_window needs all documents"),
        ({"exclude": "gone.parquet"}, "exclude needs all documents"),
        ({"unique": True}, "unique needs all documents"),
        ({"sources": "other"}, "the recipe has no source 'other': expected 'made'"),
        ({"labels": "web"}, "the recipe has no label 'web': expected none"),
        ({"split": "training"}, "split is 'training'"),
        ({"seq_len": None}, r"stages\[0\].seq_len is not given"),
        ({"weights": {"made": 1}, "sources": "made"}, "expected weights or sources, found both"),
        ({"rank": 1}, "rank from 0 to world_size"),
        ({"stage": 1}, "stage"),
    ],
)
def test_what_needs_the_whole_store_is_refused(replay: Replay, changed: dict[str, Any], problem: str) -> None:
    replay.begin()
    replay.commit(replay.receipts[0])
    with pytest.raises(RecipeError, match=problem):
        follow(replay.folder, timeout=0.0, **{**SETTINGS, **changed})


def test_the_steps_of_a_run_with_tokens_are_known_at_once(replay: Replay) -> None:
    replay.begin()
    follower = follow(replay.folder, tokens=80, on_wait=None, timeout=0.0, **SETTINGS)
    assert len(follower) == 10
    assert "building" in repr(follower)


def test_traces_and_exports_wait_for_the_end(replay: Replay, tmp_path: Path) -> None:
    replay.begin()
    replay.commit(replay.receipts[0])
    follower = follow(replay.folder, timeout=0.0, **SETTINGS)
    with pytest.raises(RecipeError, match=r"cannot trace a run of .*built before"):
        trace_step(follower, 0)
    with pytest.raises(RecipeError, match="cannot trace"):
        trace_document(follower, 0)
    with pytest.raises(RecipeError, match=r"cannot export rows of .*built before"):
        packline.export(follower, out=tmp_path / "rows", to="baked", workers=0)
    for name in replay.receipts[1:]:
        replay.commit(name)
    replay.finish()
    assert len(list(follower)) == 16
    loader = Loader(replay.store.rows(8), **ORDER)
    assert follower.finished and trace_step(follower, 0).rows[0].spans == trace_step(loader, 0).rows[0].spans


@pytest.mark.parametrize("packing", [PACKINGS[0], PACKINGS[4], PACKINGS[6]], ids=str)
def test_sources_that_are_packed_alike_are_not_confused(tmp_path: Path, packing: dict[str, Any]) -> None:
    lengths = [[9, 13, 4], [8, 8, 12], [20, 6, 11], [7, 9, 3], [12, 19, 5], [6, 6, 6, 9]]
    store = make_store(tmp_path / "whole", lengths, sources=["web"] * 3 + ["code"] * 3)
    weights = {"web": 0.75, "code": 0.25}
    mixture = Mixture([(store.rows(8, sources=name, **packing), weight) for name, weight in weights.items()])
    order = ORDER | {"window_blocks": 1}
    expected = list(Loader(mixture, **order))
    with Replay(store, tmp_path / "built") as replay:
        arrival = [
            name for pair in zip(replay.receipts[:3], replay.receipts[3:], strict=True) for name in pair
        ]
        turns = take_turns(replay, arrival)
        same(
            list(follow(replay.folder, seq_len=8, weights=weights, on_wait=turns, **packing, **order)),
            expected,
        )


@pytest.mark.parametrize(
    ("lengths", "packing"),
    [
        # Across a boundary, the last target of a row is the first token of the next unit.
        ([[8], [16], [8]], {"boundary_loss": True}),
        ([[5, 5], [3, 3], [8], [2, 6]], {"packing": "best_fit", "pack_window": 2}),
    ],
)
def test_a_row_waits_for_the_token_after_it_and_a_window_for_its_last_unit(
    tmp_path: Path, lengths: list[list[int]], packing: dict[str, Any]
) -> None:
    store = make_store(tmp_path / "whole", lengths)
    order = ORDER | {"window_blocks": 1}
    expected = list(Loader(store.rows(8, **packing), **order))
    with Replay(store, tmp_path / "built") as replay:
        turns = take_turns(replay, replay.receipts)
        same(list(follow(replay.folder, seq_len=8, on_wait=turns, **packing, **order)), expected)
