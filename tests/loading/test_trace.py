"""Trace is true: what it says of a batch is what is in the batch, and the way back is its exact inverse.

A whole small run is walked through, so nothing rests on a chosen step: two stages of different row lengths,
a mixture of two stores with several packings, more than one epoch, worlds of one, two and three ranks.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from packline.errors import RecipeError, StoreError
from packline.facade import Store
from packline.loading.loader import Loader
from packline.loading.mixture import Mixture, Stage
from packline.loading.trace import Occurrence, store_of, stores_of, trace_document, trace_step
from packline.testing import make_store

SEQ_LEN, BATCH = 12, 6


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Store]:
    """Short and long documents in several shards; some of one token, some of many rows."""
    folder = tmp_path_factory.mktemp("stores")
    rng = np.random.default_rng(11)
    web = make_store(
        folder / "web",
        [rng.integers(1, 20, 25).tolist(), [1, 100, 1, 13], rng.integers(1, 40, 20).tolist()],
        splits=["train", "val", "train"],
    )
    code = make_store(folder / "code", [[1, 12, 24, 7, 90, 3], rng.integers(1, 15, 30).tolist()])
    return web, code


def make_loader(stores: tuple[Store, Store], *, rank: int = 0, world_size: int = 1, seed: int = 3) -> Loader:
    """Two stages; the second goes on with rows of the first, and through more than one epoch."""
    web, code = stores
    concat = web.rows(SEQ_LEN, shuffle_documents=5)
    packed = code.rows(SEQ_LEN, packing="best_fit")
    padded = code.rows(SEQ_LEN, packing="pad", overflow="split", min_tokens=3)
    longer = web.rows(4 * SEQ_LEN, split="all").split_to(2 * SEQ_LEN)
    short = Mixture([(concat, 0.5, 3), (packed, 0.3, 4), (padded, 0.2, None)])
    stages = [
        Stage(short, tokens=BATCH * SEQ_LEN * 10),
        Stage(Mixture([(longer, 1, 2)]), tokens=2 * BATCH * 2 * SEQ_LEN * 3, batch_size=2 * BATCH),
        Stage(short, tokens=BATCH * SEQ_LEN * 5),
    ]
    return Loader(stages, batch_size=BATCH, seed=seed, rank=rank, world_size=world_size, prefetch=0)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_spans_of_a_step_are_the_tokens_of_its_batch(
    stores: tuple[Store, Store], world_size: int
) -> None:
    loaders = [make_loader(stores, rank=rank, world_size=world_size) for rank in range(world_size)]
    seen: set[int] = set()
    for step in range(len(loaders[0])):
        found = trace_step(loaders[0], step)
        batches = [loader.batch(step) for loader in loaders]
        assert len(found.rows) == found.batch_size == sum(len(batch["tokens"]) for batch in batches)
        assert [row.index for row in found.rows] == list(range(found.batch_size))
        for row in found.rows:
            batch = {name: array[row.place] for name, array in batches[row.rank].items()}
            store = store_of(loaders[0], found.stage, row.source)
            assert row.store == str(store.path)
            column = 0
            for number, span in enumerate(row.spans):
                tokens = store.documents[span.document][span.start : span.start + span.tokens]
                assert span.column == column and len(tokens) == span.tokens > 0
                assert np.array_equal(batch["tokens"][column : column + span.tokens], tokens)
                assert set(batch["segment_ids"][column : column + span.tokens].tolist()) == {number}
                assert span.provenance == store.provenance(span.document)
                column += span.tokens
            assert column + row.padding == found.seq_len == len(batch["tokens"])
            assert set(batch["segment_ids"][column:].tolist()) <= {-1}
        seen.add(found.stage)
    assert seen == {0, 1, 2}


def test_a_document_is_used_exactly_where_steps_say_so(stores: tuple[Store, Store]) -> None:
    world_size = 3
    loader = make_loader(stores, world_size=world_size)
    forward: dict[tuple[str, int], list[Occurrence]] = defaultdict(list)
    for step in range(len(loader)):
        found = trace_step(loader, step)
        for row in found.rows:
            for span in row.spans:
                forward[row.store, span.document].append(
                    Occurrence(
                        step=step,
                        index=row.index,
                        column=span.column,
                        tokens=span.tokens,
                        start=span.start,
                        stage=found.stage,
                        source=row.source,
                        epoch=row.epoch,
                        rank=row.rank,
                        place=row.place,
                        row=row.row,
                    )
                )
    used = 0
    for store in stores:
        for document in range(len(store.documents)):
            uses = trace_document(loader, document, store=store)
            assert uses == sorted(forward[str(store.path), document])
            used += bool(uses)
    assert used > 60
    everything = [use for uses in forward.values() for use in uses]
    assert len({use.epoch for use in everything}) > 1
    assert {use.stage for use in everything} == {0, 1, 2}
    assert {use.rank for use in everything} == set(range(world_size))


def test_a_part_of_a_step_is_that_part(stores: tuple[Store, Store]) -> None:
    loader = make_loader(stores, world_size=3)
    whole = trace_step(loader, 4)
    assert whole.fingerprint == loader.state_dict()["fingerprint"]
    parts = [trace_step(loader, 4, rank=rank).rows for rank in range(3)]
    assert [row for part in parts for row in part] == list(whole.rows)
    assert all(row.rank == rank for rank, part in enumerate(parts) for row in part)
    for index in range(BATCH):
        assert trace_step(loader, 4, row=index).rows == (whole.rows[index],)


def test_a_store_that_was_copied_is_the_same(stores: tuple[Store, Store], tmp_path: Path) -> None:
    import shutil

    web, _ = stores
    copy = Store(shutil.copytree(web.path, tmp_path / "copy"))
    loader = make_loader(stores)
    assert trace_document(loader, 2, store=copy) == trace_document(loader, 2, store=web) != []


def test_what_is_not_there_is_refused(stores: tuple[Store, Store], tmp_path: Path) -> None:
    loader = make_loader(stores, world_size=2)
    assert [store.path.name for store in stores_of(loader)] == ["web", "code"]
    count = len(loader)
    for step in (-1, count):
        with pytest.raises(RecipeError, match=f"step {step}: expected 0 to {count - 1}"):
            trace_step(loader, step)
    with pytest.raises(RecipeError, match="rank 2: expected 0 to 1"):
        trace_step(loader, 0, rank=2)
    with pytest.raises(RecipeError, match=f"row {BATCH}: expected 0 to {BATCH - 1}"):
        trace_step(loader, 0, row=BATCH)
    with pytest.raises(RecipeError, match="of which store"):
        trace_document(loader, 0)
    with pytest.raises(StoreError, match="no document 10,000"):
        trace_document(loader, 10_000, store=stores[0])
    other = make_store(tmp_path / "other", [[5, 6]])
    with pytest.raises(RecipeError, match="does not read"):
        trace_document(loader, 0, store=other)
