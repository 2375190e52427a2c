"""The arithmetic of a cluster: its laws, an example by hand, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.errors import RecipeError
from packline.jobs.cluster import (
    Cluster,
    Demand,
    Prices,
    demand_of,
    estimate_cluster,
    load_prices,
    parse_cluster,
)
from packline.jobs.estimate import estimate_build
from packline.recipe import Recipe, Source

HUGE = 1 << 40
demands = st.builds(
    Demand,
    units=st.integers(1_000_000, HUGE),
    input_bytes=st.integers(1, HUGE),
    output_bytes=st.integers(1, HUGE),
    core_seconds=st.floats(1, 1e9),
    reads=st.integers(1, HUGE),
    writes=st.integers(1, HUGE),
    worker_bytes=st.integers(1 << 20, 1 << 32),
)
clusters = st.builds(Cluster, nodes=st.integers(1, 500), cores=st.integers(1, 500), gbit=st.floats(0.1, 400))


@given(demands, clusters)
def test_twice_the_nodes_halve_network_and_cores_and_leave_requests(demand: Demand, cluster: Cluster) -> None:
    once = estimate_cluster(demand, cluster).seconds
    twice = estimate_cluster(demand, msgspec.structs.replace(cluster, nodes=2 * cluster.nodes)).seconds
    assert twice["network"] == pytest.approx(once["network"] / 2)
    assert twice["cores"] == pytest.approx(once["cores"] / 2)
    assert twice["requests"] == once["requests"]


@given(demands, clusters)
def test_the_time_is_that_of_the_slowest(demand: Demand, cluster: Cluster) -> None:
    found = estimate_cluster(demand, cluster)
    assert found.total_seconds == max(found.seconds.values()) == found.seconds[found.slowest]


@given(demands, clusters, st.integers(2, 9))
def test_twice_the_work_takes_twice_the_time(demand: Demand, cluster: Cluster, times: int) -> None:
    names = ("input_bytes", "output_bytes", "core_seconds", "reads", "writes")
    more = msgspec.structs.replace(demand, **{name: times * getattr(demand, name) for name in names})
    once, found = estimate_cluster(demand, cluster), estimate_cluster(more, cluster)
    assert found.slowest == once.slowest
    assert found.total_seconds == pytest.approx(times * once.total_seconds)


@given(demands, clusters, st.integers(0, 64))
def test_memory_limits_workers_and_nothing_else(demand: Demand, cluster: Cluster, fitting: int) -> None:
    limited = msgspec.structs.replace(cluster, memory=fitting * demand.worker_bytes)
    if fitting == 0:
        with pytest.raises(RecipeError, match="one worker"):
            estimate_cluster(demand, limited)
        return
    found, free = estimate_cluster(demand, limited), estimate_cluster(demand, cluster)
    assert found.workers_a_node == min(cluster.cores, fitting)
    assert found.seconds["network"] == free.seconds["network"]
    assert bool(found.warnings) == (fitting < cluster.cores)


@given(demands, clusters, st.floats(0, 100), st.floats(0, 100))
def test_machines_cost_their_time_and_requests_their_number(
    demand: Demand, cluster: Cluster, node_hour: float, put: float
) -> None:
    found = estimate_cluster(demand, cluster, Prices(node_hour=node_hour, put_1000=put))
    assert found.costs["machines"] == pytest.approx(cluster.nodes * node_hour * found.total_seconds / 3600)
    assert found.costs["requests"] == pytest.approx(put * demand.writes / 1000)
    assert found.costs["transfer"] == found.costs["storage a month"] == 0
    assert not estimate_cluster(demand, cluster).costs


def test_100_tb_by_hand() -> None:
    # 100 TB of plain English at 83 MB/s a core; int32 tokens of 4 bytes of text each: as much out as in.
    rate, units = 83e6, 372_529  # units of 256 MiB
    demand = Demand(
        units=units,
        input_bytes=10**14,
        output_bytes=10**14,
        core_seconds=1e14 / rate,
        reads=-(-(10**14) // (16 << 20)),
        writes=5 * units,  # bin, idx, docs.parquet, sums, receipt
        worker_bytes=1 << 30,
    )
    assert demand.core_seconds / 3600 == pytest.approx(335, abs=0.5)  # core-hours
    assert demand.reads == pytest.approx(6e6, rel=0.01) and demand.writes == pytest.approx(1.86e6, rel=0.01)
    found = estimate_cluster(demand, parse_cluster("16 nodes x 64 cores, 25 Gbit/s"))
    assert found.seconds["cores"] == pytest.approx(1e14 / rate / 1024)  # 20 minutes
    assert found.seconds["network"] == pytest.approx(2e14 / (16 * 25e9 / 8))  # 67 minutes
    assert found.slowest == "network"
    # A node of 64 cores wants 42.5 Gbit/s in and as much out; with 85 Gbit/s, network and cores are equal.
    faster = estimate_cluster(demand, parse_cluster("16 nodes x 64 cores, 84.992 Gbit/s"))
    assert faster.seconds["network"] == pytest.approx(faster.seconds["cores"])
    # Inputs of zstd (4:1) and uint16 tokens move it to the cores.
    small = msgspec.structs.replace(demand, input_bytes=10**14 // 4, output_bytes=10**14 // 2)
    assert estimate_cluster(small, parse_cluster("16 nodes x 64 cores, 40 Gbit/s")).slowest == "cores"
    prices = Prices(put_1000=0.005, get_1000=0.0004)
    costs = estimate_cluster(demand, parse_cluster("16 nodes x 64 cores, 25 Gbit/s"), prices).costs
    assert costs["requests"] == pytest.approx(9.31 + 2.38, abs=0.02)


def test_few_units_keep_few_workers_busy() -> None:
    demand = Demand(
        units=3, input_bytes=1, output_bytes=1, core_seconds=30.0, reads=1, writes=1, worker_bytes=1
    )
    found = estimate_cluster(demand, Cluster(10, 10, 10.0))
    assert found.seconds["cores"] == 10.0 and "97 of 100 workers" in found.warnings[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not name its nodes"),
        ("64 nodes x 32 cores", "Gbit/s"),
        ("32 cores, 25 Gbit/s", "nodes"),
        ("0 nodes x 32 cores, 25 Gbit/s", "empty"),
        ("4 nodes x 2 cores, 2.5.1 Gbit/s", "cannot be read"),
        ("4 nodes x 2 cores, 25 Gbit/s, 8 GPUs", "unknown part"),
    ],
)
def test_a_cluster_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse_cluster(text)


@given(clusters)
def test_a_cluster_is_read_back(cluster: Cluster) -> None:
    text = f"{cluster.nodes:,} nodes x {cluster.cores} cores, {cluster.gbit:f} Gbit/s"
    found = parse_cluster(text)
    assert (found.nodes, found.cores) == (cluster.nodes, cluster.cores)
    assert found.gbit == pytest.approx(cluster.gbit, abs=1e-6)


def test_prices_are_a_table_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text('currency = "EUR"\ndate = "2026-11-22"\nnode_hour = 1\nput_1000 = 0.005\n')
    assert load_prices(path) == Prices(currency="EUR", date="2026-11-22", node_hour=1.0, put_1000=0.005)
    path.write_text("gpu_hour = 3\n")
    with pytest.raises(RecipeError, match="gpu_hour") as caught:
        load_prices(path)
    assert "node_hour" in caught.value.hint


def test_the_demand_is_that_of_the_estimate(tmp_path: Path, tokenizer_json: Path) -> None:
    (tmp_path / "a.txt").write_text("some text of a file " * 5000)
    source = Source(inputs=(str(tmp_path / "a.txt"),))
    recipe = Recipe(sources=(source,), tokenizer=str(tokenizer_json), val_fraction=0.5)
    found = estimate_build(recipe)
    demand = demand_of(found, recipe)
    assert demand.input_bytes == (tmp_path / "a.txt").stat().st_size and demand.units == found.units == 1
    assert demand.writes == 2 * 4 + 1 and demand.reads == 1  # two splits, and the receipt
    assert demand.core_seconds >= found.core_seconds > 0
