"""Origins: source and label of the documents of each shard.

A shard belongs to one unit and a unit to one source, so this is recorded once per shard instead of once per
document. It comes from the receipt of the unit; if the store has only one source, not even that is read.

Cost: one small file per shard, about 50 microseconds each, and only when labels or sources are requested.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from packline.errors import CorruptStore
from packline.store.files import HINT, read_file, reading
from packline.store.ledger import source_names
from packline.store.manifest import RECEIPTS, FileEntry
from packline.store.reader import Store


class Origin(NamedTuple):
    """Origin of a shard's documents."""

    number: int
    """Number of the source in the recipe."""
    source: str
    """Name of the source."""
    label: str | None


def origins(store: Store) -> list[Origin]:
    """Source and label of each shard, in the order of `store.shards`.

    Raises:
        CorruptStore: a receipt is missing or damaged.
    """
    recipe = store.manifest.recipe
    known = [
        Origin(number, name, recipe.sources[number].label) for number, name in enumerate(source_names(recipe))
    ]
    if len(known) == 1:
        return known * len(store.shards)
    files = {entry.name: entry for entry in store.manifest.receipts}
    units = [shard.entry.name.partition("-")[2] for shard in store.shards]
    by_unit = {unit: known[_source_of(store, unit, files, len(known))] for unit in dict.fromkeys(units)}
    return [by_unit[unit] for unit in units]


class _Source(msgspec.Struct):
    """The one field of a receipt that is needed."""

    source: int


def _source_of(store: Store, unit: str, files: dict[str, FileEntry], sources: int) -> int:
    name = f"{RECEIPTS}/{unit}.json"
    path = store.path / name
    if name not in files:
        raise CorruptStore(f"the manifest of {store.path} does not list {name}", hint=HINT)
    data = read_file(store.path, files[name])
    with reading(path):
        source = msgspec.json.decode(data, type=_Source).source
    if not 0 <= source < sources:
        raise CorruptStore(f"{path}: expected the number of one of {sources} sources, found {source}")
    return source
