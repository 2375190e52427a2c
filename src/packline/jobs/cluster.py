"""Time and cost of a build on a cluster, from what a dry run measured on a sample of the inputs.

    Demand (bytes, core-seconds, requests, memory) ──┐
    Cluster (nodes, cores, Gbit/s, memory) ──────────┴──> seconds of each resource; the largest is the time

Reading, encoding and writing overlap, so the time is that of the slowest resource:

    network    (bytes read + bytes written) / (nodes x Gbit/s)
    cores      core-seconds of the sample, scaled, and of the object store's client / busy workers
    requests   the larger of writes / 3,500 and reads / 5,500 a second: one prefix of an object store

Memory is not a time: it limits the workers of a node. Limits: rates are those of the machine that measured
them; a cluster that starts, waits for machines or loses them takes longer.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from packline.errors import RecipeError
from packline.jobs.estimate import Estimate
from packline.quantities import parse_bytes
from packline.recipe import Recipe
from packline.store.manifest import splits_of
from packline.toml import read_toml

READ_CORE_SECONDS = 0.6e-9
"""Core-seconds of the object store's client per byte read."""
WRITE_CORE_SECONDS = 0.2e-9
READ_PIECE_BYTES = 16 << 20
"""Bytes of one request that reads inputs."""
WRITES_A_SECOND, READS_A_SECOND = 3_500, 5_500
"""Requests that a prefix of an object store takes, once it has been divided for the load."""
FILES_OF_A_SHARD = 4
EXAMPLE = '"64 nodes x 32 cores, 25 Gbit/s, 128 GiB"'


class Cluster(msgspec.Struct, frozen=True):
    """Equal machines."""

    nodes: int
    cores: int
    """Cores of each node."""
    gbit: float
    """Network of each node, in Gbit/s."""
    memory: int | None = None
    """Bytes of each node; None if it does not limit."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """All that a build needs, on however many machines."""

    units: int
    input_bytes: int
    """As stored, compressed or not."""
    output_bytes: int
    core_seconds: float
    reads: int
    writes: int
    worker_bytes: int
    """Memory of one worker."""


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Prices as the user gives them; those that are not given cost nothing."""

    currency: str = "USD"
    date: str = ""
    """Date of the prices, to show with them."""
    node_hour: float = 0.0
    put_1000: float = 0.0
    get_1000: float = 0.0
    gb_in: float = 0.0
    """Transfer of 1e9 bytes from the inputs."""
    gb_out: float = 0.0
    """Transfer of 1e9 bytes to the store."""
    gb_month: float = 0.0
    """Keeping 1e9 bytes of the store for a month."""


class ClusterEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Estimate of a build on a cluster."""

    cluster: Cluster
    demand: Demand
    workers_a_node: int
    """Fewer than its cores if memory does not suffice for more."""
    seconds: dict[str, float]
    """Time of each resource: `network`, `cores`, `requests`."""
    slowest: str
    total_seconds: float
    costs: dict[str, float]
    """By kind; empty without prices."""
    currency: str = ""
    prices_date: str = ""
    warnings: tuple[str, ...] = ()


def parse_cluster(text: str) -> Cluster:
    """Parse the description of a cluster, in any order and with any separators.

    Raises:
        RecipeError: nodes, cores or Gbit/s are missing or not positive, or something else is named.

    >>> parse_cluster("64 nodes x 32 cores, 25 Gbit/s")
    Cluster(nodes=64, cores=32, gbit=25.0, memory=None)
    >>> parse_cluster("1 node, 8 cores, 10 Gbit/s, 32 GiB").memory
    34359738368
    """
    found: dict[str, str] = {}
    rest = text
    for name, pattern in (
        ("gbit", r"([\d.]+)\s*Gbit(?:/s)?"),
        ("memory", r"([\d.]+\s*[KMGT]i?B)"),
        ("nodes", r"([\d,_]+)\s*nodes?"),
        ("cores", r"([\d,_]+)\s*cores?"),
    ):
        if match := re.search(pattern, rest, re.IGNORECASE):
            found[name] = match[1]
            rest = rest[: match.start()] + rest[match.end() :]
    hint = f"for example --cluster {EXAMPLE}"
    if strange := re.sub(r"[\s,;x×+]|each|of|with|and", "", rest):
        raise RecipeError(f"the cluster {text!r} has an unknown part {strange!r}", hint=hint)
    for name, word in (("nodes", "nodes"), ("cores", "cores"), ("gbit", "Gbit/s")):
        if name not in found:
            raise RecipeError(f"the cluster {text!r} does not name its {word}", hint=hint)
    try:
        made = Cluster(
            int(re.sub("[,_]", "", found["nodes"])),
            int(re.sub("[,_]", "", found["cores"])),
            float(found["gbit"]),
            parse_bytes(found["memory"]) if "memory" in found else None,
        )
    except ValueError as error:
        raise RecipeError(f"the cluster {text!r} has a number that cannot be read", hint=hint) from error
    if min(made.nodes, made.cores, made.gbit) <= 0:
        raise RecipeError(f"the cluster {text!r} is empty: expected positive numbers", hint=hint)
    return made


def load_prices(path: str | Path) -> Prices:
    """Read a table of prices (TOML).

    Raises:
        RecipeError: it cannot be read, or has an unknown key.
    """
    table = read_toml(Path(path), "table of prices")
    try:
        return msgspec.convert(table, Prices)
    except msgspec.ValidationError as error:
        known = ", ".join(Prices.__struct_fields__)
        raise RecipeError(f"{path}: {error}", hint=f"a table of prices has: {known}") from error


def demand_of(estimate: Estimate, recipe: Recipe) -> Demand:
    """Demand of the build that was estimated."""
    shards = estimate.units * len(splits_of(recipe))
    client = estimate.input_bytes * READ_CORE_SECONDS + estimate.store_bytes * WRITE_CORE_SECONDS
    return Demand(
        units=estimate.units,
        input_bytes=estimate.input_bytes,
        output_bytes=estimate.store_bytes,
        core_seconds=estimate.core_seconds + client,
        reads=-(-estimate.input_bytes // READ_PIECE_BYTES),
        writes=shards * FILES_OF_A_SHARD + estimate.units,
        worker_bytes=estimate.memory_a_worker,
    )


def estimate_cluster(demand: Demand, cluster: Cluster, prices: Prices | None = None) -> ClusterEstimate:
    """Time and cost of a build on a cluster.

    Raises:
        RecipeError: a node has no memory for a single worker.

    >>> demand = Demand(units=400, input_bytes=10**11, output_bytes=10**11, core_seconds=1200.0, reads=6000,
    ...                 writes=2000, worker_bytes=2**30)
    >>> found = estimate_cluster(demand, parse_cluster("2 nodes x 8 cores, 10 Gbit/s"))
    >>> found.slowest, found.total_seconds
    ('network', 80.0)
    """
    workers = cluster.cores
    if cluster.memory is not None:
        workers = min(workers, cluster.memory // max(demand.worker_bytes, 1))
    if workers < 1:
        raise RecipeError(
            f"a node has {cluster.memory:,} bytes: expected at least {demand.worker_bytes:,} for one worker",
            hint="name larger nodes, or give workers less with --memory and --workers",
        )
    busy = min(cluster.nodes * workers, max(demand.units, 1))
    seconds = {
        "network": (demand.input_bytes + demand.output_bytes) / (cluster.nodes * cluster.gbit * 1e9 / 8),
        "cores": demand.core_seconds / busy,
        "requests": max(demand.writes / WRITES_A_SECOND, demand.reads / READS_A_SECOND),
    }
    slowest = max(seconds, key=seconds.__getitem__)
    total = seconds[slowest]
    costs = {} if prices is None else _costs(demand, cluster, prices, total)
    return ClusterEstimate(
        cluster=cluster,
        demand=demand,
        workers_a_node=workers,
        seconds=seconds,
        slowest=slowest,
        total_seconds=total,
        costs=costs,
        currency=prices.currency if prices else "",
        prices_date=prices.date if prices else "",
        warnings=tuple(_warnings(demand, cluster, workers)),
    )


def _costs(demand: Demand, cluster: Cluster, prices: Prices, seconds: float) -> dict[str, float]:
    return {
        "machines": cluster.nodes * seconds / 3600 * prices.node_hour,
        "requests": (demand.writes * prices.put_1000 + demand.reads * prices.get_1000) / 1000,
        "transfer": (demand.input_bytes * prices.gb_in + demand.output_bytes * prices.gb_out) / 1e9,
        "storage a month": demand.output_bytes * prices.gb_month / 1e9,
    }


def _warnings(demand: Demand, cluster: Cluster, workers: int) -> list[str]:
    found = []
    if workers < cluster.cores:
        found.append(f"memory suffices for {workers} of {cluster.cores} cores of a node")
    if demand.units < cluster.nodes * workers:
        idle = cluster.nodes * workers - demand.units
        found.append(f"{idle:,} of {cluster.nodes * workers:,} workers have nothing to do: too few units")
    return found
