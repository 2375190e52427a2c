"""Partial manifests: how often, by whom, and what a reader makes of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loading.replay import Replay

from packline.errors import CorruptStore, StoreError
from packline.jobs import receipts
from packline.jobs.plan import Plan, Unit, read_plan
from packline.jobs.receipts import (
    PARTIAL,
    CommittedReceipts,
    DocumentOrder,
    ListedUnit,
    PublishedUnits,
    Publisher,
)
from packline.storage.local import LocalFolder
from packline.store.manifest import StreamReceipt
from packline.testing import make_store


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[Replay]:
    store = make_store(
        tmp_path / "whole", [[9, 3], [8], [20], [7], [5, 5], [6]], sources=["web"] * 4 + ["code"] * 2
    )
    with Replay(store, tmp_path / "built") as replay:
        replay.begin()
        yield replay


def plan_of(storage: LocalFolder) -> Plan:
    plan = read_plan(storage)
    assert plan is not None
    return plan


def published(folder: Path) -> dict[str, list[str]]:
    """Names of the units of each source, as a reader that begins now finds them."""
    found: dict[str, list[str]] = {}

    def take(source: str, units: list[ListedUnit]) -> None:
        found.setdefault(source, []).extend(entry.unit for entry, _ in units)

    storage = LocalFolder(folder)
    PublishedUnits(storage, plan_of(storage).build, take).look()
    return found


def test_pauses_double_up_to_the_longest(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(receipts, "time", SimpleNamespace(monotonic=lambda: now))
    storage, times = LocalFolder(replay.folder), list[float]()
    publisher = Publisher(storage, plan_of(storage), CommittedReceipts(storage))
    monkeypatch.setattr(publisher, "publish", lambda: times.append(now))
    for tenth in range(1300):
        now = tenth / 10
        publisher.publish_when_due()
    assert times == [1, 3, 7, 15, 31, 61, 91, 121]


def test_a_slice_publishes_what_others_have_committed(replay: Replay) -> None:
    """It reads the receipts of the units that follow, once; another one continues where it ended."""
    storage = LocalFolder(replay.folder)
    web = [name for name in replay.receipts if name.startswith("web")]
    read: list[str] = []

    class Counted(LocalFolder):
        def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
            read.append(name)
            return super().read(name, start, stop)

    slices = []
    for _ in range(2):
        committed = CommittedReceipts(Counted(replay.folder))
        slices.append((committed, Publisher(storage, plan_of(storage), committed)))
    expected: list[str] = []
    for number, name in enumerate([web[0], web[1], web[3], web[2]]):
        replay.commit(name, publish=False)
        committed, publisher = slices[number % 2]
        committed.look()
        publisher.publish()
        expected = web if number == 3 else web[: min(number + 1, 2)]
        assert published(replay.folder) == {"web": expected}
    assert sorted(read) == sorted(f"receipts/{name}.json" for name in web)
    assert len(storage.list(PARTIAL)) == 3


@pytest.mark.parametrize("turns", [[0, 1, 0, 1], [0, 0, 1, 1], [1, 0, 0, 1]], ids=str)
def test_files_of_processes_that_do_not_see_each_other_overlap(
    replay: Replay, turns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, publishers = LocalFolder(replay.folder), []
    for _ in range(2):
        replay.publisher()
        monkeypatch.setattr(replay._publisher._published, "look", lambda: False)
        publishers.append((replay._committed, replay._publisher))
    web = [name for name in replay.receipts if name.startswith("web")]
    for turn, name in zip(turns, web, strict=True):
        replay.commit(name, publish=False)
        committed, publisher = publishers[turn]
        committed.refresh()
        publisher.publish()
    assert len(storage.list(PARTIAL)) == 4
    assert published(replay.folder) == {"web": web}


def test_what_is_lost_or_damaged_costs_the_reader_alone(replay: Replay) -> None:
    storage = LocalFolder(replay.folder)
    replay.commit(replay.receipts[0])
    [name] = storage.list(PARTIAL)
    path = replay.folder / name
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorruptStore, match="is damaged"):
        published(replay.folder)
    replay.publisher()
    replay._committed.refresh()
    replay._publisher._due = 0.0
    replay._publisher.publish_when_due()  # the build goes on
    path.unlink()
    replay.commit(replay.receipts[1])
    assert published(replay.folder) == {"web": replay.receipts[:2]}


def test_units_of_another_build_are_refused(replay: Replay) -> None:
    replay.commit(replay.receipts[0])
    storage = LocalFolder(replay.folder)
    with pytest.raises(StoreError, match="was begun again, from another recipe"):
        PublishedUnits(storage, "0" * 12, lambda source, units: None).look()


def make_units(shapes: list[int]) -> list[Unit]:
    """A plan: 0 is a plain unit, another number a file of so many slices."""
    return [Unit(f"a-{place:06d}", place, slice_bytes=int(slices > 0)) for place, slices in enumerate(shapes)]


def names_of(shapes: list[int]) -> list[str]:
    """Units and slices in document order."""
    return [
        f"a-{place:06d}-{number:06d}" if slices else f"a-{place:06d}"
        for place, slices in enumerate(shapes)
        for number in range(max(slices, 1))
    ]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_units_are_given_in_order_up_to_the_first_gap(shapes: list[int], order: random.Random) -> None:
    names = names_of(shapes)
    ends = [f"end a-{place:06d}" for place, slices in enumerate(shapes) if slices]
    events = [*names, *ends]
    order.shuffle(events)
    there: set[str] = set()
    streams: dict[str, StreamReceipt] = {}
    walk, given_so_far = DocumentOrder(make_units(shapes), there, streams), list[str]()
    for event in events:
        if event.startswith("end "):
            name = event.removeprefix("end ")
            streams[name] = StreamReceipt("a", "a.txt", shapes[int(name.removeprefix("a-"))], "")
        else:
            there.add(event)
        given_so_far += walk.advance()
        # Counted anew: units without a gap, and none behind a file whose end is not known.
        expected: list[str] = []
        for place, slices in enumerate(shapes):
            own = [name for name in names if name.startswith(f"a-{place:06d}")]
            expected += list(itertools.takewhile(there.__contains__, own))
            if not set(own) <= there or (slices and f"a-{place:06d}" not in streams):
                break
        assert given_so_far == expected
    assert given_so_far == names and walk.unit is None
