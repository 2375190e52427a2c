"""Small simulated builds: whatever is lost, slow or late, every unit is there once."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulated_store import receipt_of
from benchmarks.simulation import How, Result, World, _Simulation, simulate
from packline.jobs.folder import StoreFolder, names_of
from packline.storage import requests
from packline.storage.clients import obstore
from packline.storage.objects import ObjectFolder
from packline.store.manifest import Receipt

pytest.importorskip("obstore")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "FIRST_PAUSE", 0.0)


SMALL = World(nodes=10, workers=5, units=600, replace_seconds=(5.0, 60.0))
worlds = st.builds(
    World,
    nodes=st.integers(1, 6),
    workers=st.integers(1, 4),
    units=st.integers(1, 60),
    losses_a_node_hour=st.sampled_from([0.0, 30.0, 300.0]),
    together=st.sampled_from([0.0, 0.9]),
    cut_off=st.sampled_from([0.0, 0.5]),
    notice_seconds=st.sampled_from([0.0, 15.0]),
    replace_seconds=st.just((1.0, 60.0)),
    lost_replies=st.sampled_from([0.0, 0.2]),
    refusals=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 1 << 32),
)


def run(world: World, how: How) -> Result:
    with tempfile.TemporaryDirectory() as scratch:
        found = simulate(world, how, Path(scratch))
        found.check()
    return found


@pytest.mark.parametrize("how", ["ray", "slices"])
@given(world=worlds)
@settings(max_examples=5)
def test_no_unit_is_lost_or_doubled(how: How, world: World) -> None:
    run(world, how)


@pytest.mark.parametrize("how", ["ray", "slices"])
def test_losses_cost_little_but_the_wait_for_machines(how: How) -> None:
    calm = run(replace(SMALL, losses_a_node_hour=0.0, lost_replies=0.0, refusals=0.0), how)
    assert calm.losses == 0 and calm.interrupted == 0
    rough = run(replace(SMALL, losses_a_node_hour=20.0), how)
    assert rough.losses > 0 and rough.interrupted > 0
    assert calm.ideal == rough.ideal <= calm.makespan
    # The last unit may take 30 s, and a lost node is away for a minute.
    assert calm.makespan < calm.ideal + 60
    assert rough.makespan < calm.ideal * 3 + 120


def test_the_same_seed_gives_the_same_world() -> None:
    one, other = (run(replace(SMALL, units=200), "ray") for _ in range(2))
    assert (one.makespan, one.puts, one.losses) == (other.makespan, other.puts, other.losses)


def forget(simulation: Any, node: Any) -> None:
    """A task whose node is lost is not run again."""


def receipt_first(folder: StoreFolder, receipt: Receipt, tmp: Any = None) -> None:
    folder.commit_record(receipt.unit, receipt)
    folder.storage.put_files({name: folder.tmp / name for name in names_of(receipt)})


def believe_a_conflict(store: ObjectFolder, name: str, data: bytes, checksum: str) -> bool:
    with suppress(obstore().exceptions.BaseError):
        store._put(name, data, checksum)
    return True


@pytest.mark.parametrize(
    ("how", "owner", "name", "wrong", "message"),
    [
        ("ray", _Simulation, "notice", forget, "never run"),
        ("slices", StoreFolder, "commit", receipt_first, "never run"),
        ("ray", ObjectFolder, "_create", believe_a_conflict, "receipt"),
    ],
)
def test_a_fault_in_the_code_is_noticed(
    how: How, owner: type, name: str, wrong: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, wrong)
    monkeypatch.setattr("benchmarks.simulation.LONGEST_SECONDS", 1500.0)
    rough = replace(SMALL, units=300, losses_a_node_hour=100.0, refusals=0.05, put_seconds=0.3)
    with pytest.raises(AssertionError, match=message):
        run(rough, how)


def test_a_lost_unit_and_a_stray_file_are_noticed() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        found = simulate(replace(SMALL, units=20), "ray", Path(scratch))
        found.folder.storage.delete(["receipts/000007.json"])
        with pytest.raises(AssertionError, match="without a receipt"):
            found.check()
        found.folder.commit(receipt_of(found.units[7]))
        found.folder.storage.put_new("train-000099.bin", b"stray")
        with pytest.raises(AssertionError, match="no receipt names"):
            found.check()
