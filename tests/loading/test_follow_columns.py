"""Following a build with streams, splits and columns: conditions are decided document by document."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.jobs.builds import build, set_sizes
from tests.loading.replay import Replay
from tests.loading.test_follow import same, take_turns

from packline.errors import RecipeError, StoreError
from packline.facade import Store
from packline.loading import follow as module
from packline.loading.follow import follow
from packline.loading.loader import Loader
from packline.packing.selection import Selection
from packline.recipe import Recipe, Source


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.0)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer_json: Path) -> Iterator[Store]:
    """Two sources of several units; one is a stream, and only the other one has scores."""
    folder = tmp_path_factory.mktemp("columns")
    random = np.random.default_rng(3)

    def lines(count: int, scored: bool) -> bytes:
        records = []
        for number in range(count):
            text = " ".join(f"word{value}" for value in random.integers(0, 50, random.integers(1, 30)))
            records.append({"text": text} | ({"score": int(random.integers(0, 5))} if scored else {}))
            assert number >= 0
        return b"".join(json.dumps(record).encode() + b"\n" for record in records)

    (folder / "plain").mkdir()
    (folder / "packed").mkdir()
    (folder / "plain" / "one.jsonl").write_bytes(lines(120, scored=True))
    (folder / "packed" / "two.jsonl.gz").write_bytes(gzip.compress(lines(80, scored=False), mtime=0))
    (folder / "packed" / "three.jsonl").write_bytes(lines(20, scored=False))
    recipe = Recipe(
        sources=(
            Source(inputs=(str(folder / "packed" / "*"),), name="packed"),
            Source(inputs=(str(folder / "plain" / "*"),), name="plain", columns=("score",)),
        ),
        tokenizer=str(tokenizer_json),
        val_fraction=0.2,
    )
    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, 3_000, 1 << 10)
        made = build(folder / "store", recipe, None)  # type: ignore[arg-type]
    assert any(unit.endswith(".stream") for unit in made.manifest.units.names("unit"))
    yield made


@settings(max_examples=10)
@given(
    st.sampled_from(
        [
            {},
            {"where": "score >= 2"},
            {"where": "score is None or score < 3", "packing": "pad"},
            {"where": "tokens > 12 and not score == 1", "min_tokens": 9},
            {"where": "score != 4", "packing": "best_fit", "pack_window": 2},
            {"split": "val", "where": "source == 'plain'"},
        ]
    ),
    st.sampled_from([None, "plain", "packed"]),
    st.data(),
)
def test_conditions_streams_and_splits(
    store: Store, options: dict[str, Any], sources: str | None, data: st.DataObject
) -> None:
    options = options | ({} if sources is None else {"sources": sources})
    common: dict[str, Any] = {"batch_size": 2, "order": "blocks", "block_rows": 2, "window_blocks": 3}
    try:
        expected = list(Loader(store.rows(16, **options), **common))
    except (RecipeError, StoreError):
        return
    with TemporaryDirectory() as folder, Replay(store, Path(folder) / "built") as replay:
        order = data.draw(st.permutations(replay.receipts))
        follower = follow(
            replay.folder, seq_len=16, on_wait=take_turns(replay, order), prefetch=0, **options, **common
        )
        step = data.draw(st.integers(0, len(expected)))
        same(list(itertools.islice(follower, step)), expected[:step])
        finished = Loader(store.rows(16, **options), **common)
        finished.load_state_dict(follower.state_dict())
        same(list(finished), expected[step:])
        same([follower.batch(n) for n in range(step, len(expected))], expected[step:])


def test_a_condition_reads_each_shard_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    apply = Selection._by_columns

    def counted(self: Selection, part: Any, reasons: Any) -> Any:
        read.append(part.shard.entry.name)
        return apply(self, part, reasons)

    monkeypatch.setattr(Selection, "_by_columns", counted)
    with Replay(store, tmp_path / "built") as replay:
        plain = sorted(replay.receipts, key=lambda name: not name.startswith("plain"))
        turns = take_turns(replay, plain)
        settings: dict[str, Any] = {"batch_size": 1, "order": "blocks", "block_rows": 1, "window_blocks": 2}
        follower = follow(
            replay.folder, seq_len=16, sources="plain", where="score > 0", on_wait=turns, **settings
        )
        before = len(replay.store.shards)
        batches = list(itertools.islice(follower, 12))
        assert len(batches) == 12 and not follower.finished
    assert len(read) == len(set(read)) < before


def test_a_column_that_no_source_carries_is_refused_at_once(store: Store, tmp_path: Path) -> None:
    with Replay(store, tmp_path / "built") as replay:
        replay.begin()
        with pytest.raises(RecipeError, match=r".*built has no column 'scor'"):
            follow(replay.folder, seq_len=16, batch_size=1, where="scor > 1", timeout=0.0)
        follower = follow(replay.folder, seq_len=16, batch_size=1, where="score > 1", timeout=0.0)
        assert "building" in repr(follower)
