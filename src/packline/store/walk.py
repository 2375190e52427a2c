"""The walk over a finished store, unit by unit: its shards, its receipt and its rejects.

A slice has every n-th unit, so that several processes check one store without a coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np

from packline.storage.requests import in_threads
from packline.store.files import FileEntry, StoreFiles
from packline.store.manifest import Manifest
from packline.store.report import Findings
from packline.store.tables import ShardEntry, ShardRows

T = TypeVar("T")
Slice = tuple[int, int]
"""Number of a slice, from 0, and the number of slices."""
WHOLE: Slice = (0, 1)


class StoreUnit(NamedTuple):
    """Shards, receipt and rejects of one unit of a store, or the receipt of one stream."""

    name: str
    source: str
    shards: tuple[ShardEntry, ...]
    receipt: FileEntry | None
    """None if the table of units does not list it."""
    rejects: tuple[FileEntry, ...]

    @property
    def files(self) -> list[FileEntry]:
        """All its files but the receipt."""
        return [*(file for shard in self.shards for file in shard.files), *self.rejects]


def units_of(manifest: Manifest, slice: Slice = WHOLE) -> Iterator[StoreUnit]:
    """Units in the order of their first shards, then those without a shard.

    Args:
        slice: only every n-th unit. All slices together have each unit once.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    shards, units = manifest.shards, manifest.units
    names = pa.concat_tables([shards.table.select(["unit"]), units.table.select(["unit"])])["unit"].unique()
    names = names.take(pa.array(range(slice[0], len(names), slice[1]), pa.int64()))
    owners = pc.index_in(shards.table["unit"], names)
    order = pc.sort_indices(owners)[: len(owners) - owners.null_count]  # stable, null at the end
    counts = np.bincount(owners.drop_null().to_numpy(), minlength=len(names)).tolist()
    table = shards.table.take(order)
    rows = zip(table["source"].to_pylist(), ShardRows(table), strict=True)
    places = pc.index_in(names, units.table["unit"]).to_pylist()
    for name, place, count in zip(names.to_pylist(), places, counts, strict=True):
        own = list(islice(rows, count))
        listed = None if place is None else units[place]
        source = own[0][0] if own or listed is None else listed.source
        receipt, rejects = (None, ()) if listed is None else (listed.receipt, listed.rejects)
        yield StoreUnit(name, source, tuple(shard for _, shard in own), receipt, rejects)


def check_units(
    files: StoreFiles,
    manifest: Manifest,
    check: Callable[[StoreUnit, Findings], T],
    findings: Findings,
    slice: Slice = WHOLE,
) -> Iterator[T]:
    """Results of a check of each unit, with what it finds.

    Args:
        check: checks a unit; receives separate findings, so that they do not depend on the number of threads.
    """

    def check_one(unit: StoreUnit) -> tuple[T, Findings]:
        own = Findings()
        return check(unit, own), own

    units = units_of(manifest, slice)
    # One file of a remote store is brought at a time, so that few are kept.
    results = in_threads(check_one, units) if files.is_local else map(check_one, units)
    for found, own in results:
        findings.include(own)
        yield found
