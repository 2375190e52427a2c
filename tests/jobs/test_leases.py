"""Leases: every unit is done once, whatever nodes do, and none waits while a node is idle."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from packline.jobs.leases import AHEAD, MOST_DEATHS, Leases
from packline.jobs.plan import Unit

UNITS = st.lists(st.booleans(), max_size=30)
"""True for a stream."""


def units_of(streams: list[bool]) -> list[Unit]:
    return [Unit(f"u{place}", place, slice_bytes=int(stream)) for place, stream in enumerate(streams)]


@given(UNITS, st.integers(1, 3), st.integers(1, 5), st.data())
def test_every_unit_is_done_once_whatever_nodes_do(
    streams: list[bool], workers: int, count: int, data: st.DataObject
) -> None:
    leases = Leases(units_of(streams))
    running: dict[str, list[str]] = {f"n{number}": [] for number in range(count)}
    new, done, steps = count, list[str](), 0
    while leases.left:
        node = data.draw(st.sampled_from(sorted(running)))
        running[node] += [unit.name for unit in leases.take(node, workers)]
        assert len(running[node]) <= AHEAD * workers
        assert len(set(running[node])) == len(running[node])
        assert sum(streams[int(name[1:])] for name in running[node]) <= 1
        event = data.draw(st.sampled_from(["done", "done", "lost"])) if steps < 50 else "done"
        if event == "done" and running[node]:
            name = running[node].pop(0)
            if leases.done(node, name):
                done.append(name)
        elif event == "lost":  # and another node takes its place
            assert leases.lost(node) is None
            del running[node]
            running[f"n{new}"], new = [], new + 1
        steps += 1
    assert sorted(done) == sorted(unit.name for unit in units_of(streams))


@given(UNITS)
def test_units_start_in_order_where_that_matters(streams: list[bool]) -> None:
    leases, order = Leases(units_of(streams), in_order=True), list[str]()
    while leases.left:
        for unit in leases.take("a", 2):
            order.append(unit.name)
            leases.done("a", unit.name)
    assert order == [unit.name for unit in units_of(streams)]


@given(st.integers(1, 20), st.integers(1, 4), st.integers(1, 4))
def test_an_idle_node_helps_with_what_others_hold(units: int, slow: int, fast: int) -> None:
    leases = Leases(units_of([False] * units))
    held = {unit.name for unit in leases.take("slow", slow)}
    while helped := leases.take("fast", fast):
        for unit in helped:
            assert leases.done("fast", unit.name)
    assert leases.left == 0
    assert leases.held("slow") == len(held)
    assert not any(leases.done("slow", name) for name in held), "each is counted once"


def test_a_unit_that_kills_workers_is_named() -> None:
    leases = Leases(units_of([False]))
    for death in range(1, MOST_DEATHS + 1):
        leases.take(f"n{death}", 1)
        assert leases.lost(f"n{death}", charged=True) == ("u0" if death == MOST_DEATHS else None)


def test_a_lost_node_is_no_units_fault() -> None:
    leases = Leases(units_of([False]))
    for death in range(100):
        leases.take(f"n{death}", 1)
        assert leases.lost(f"n{death}") is None
    assert leases.waiting == leases.left == 1
