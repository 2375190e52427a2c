"""Units of a store that a run has read: their number, in the order of the documents, and their receipts.

    uses of a source ──order──> first rows ──packing──> last document ──shard──> unit

An order that follows the stored one needs the rows of the windows up to its place, and no others. The
receipts of the units up to the last of these rows name every byte that was read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from packline.fingerprint import hash_value
from packline.jobs.plan import build_mark
from packline.loading.order import RowOrder
from packline.packing.options import DocumentFilter
from packline.packing.rows import Rows
from packline.recipe import Recipe
from packline.store.ledger import source_names
from packline.store.naming import STREAM, parse_unit
from packline.store.reader import StoreReader

if TYPE_CHECKING:
    from packline.packing.batch import RowSource
    from packline.store.manifest import Manifest

DIGITS = 12


class UnitsRead(NamedTuple):
    """Units of a source that a run has read."""

    build: str
    """Hash of recipe, tokenizer and inputs of the store."""
    units: int
    """Units, in the order of the documents, from the first to the last that holds a row."""
    chain: str
    """Hash of their receipts."""


_UNITS: WeakKeyDictionary[StoreReader, dict[tuple[str, ...], dict[str, str]]] = WeakKeyDictionary()
_BUILDS: WeakKeyDictionary[StoreReader, str] = WeakKeyDictionary()


def units_read(rows: RowSource, order: RowOrder, draws: int) -> UnitsRead | None:
    """Units that the first uses of a source depend on; None for rows without a store."""
    origin = _origin(rows)
    if origin is None:
        return None
    units = 0
    if draws and len(rows):
        packed: Any = rows if isinstance(rows, Rows) else getattr(rows, "parent", None)
        window = order.window_rows
        first = min(-(-draws // window) * window, len(rows)) if draws < len(rows) else len(rows)
        shard, _ = origin.store.locate(packed.last_document(first))
        units = list(_receipts(origin)).index(shard.entry.name.partition("-")[2]) + 1
    chain = chain_of(rows, units)
    assert chain is not None
    return UnitsRead(_build(origin.store), units, chain)


def chain_of(rows: RowSource, units: int) -> str | None:
    """Hash of the receipts of a source's first units; None if there are fewer, for now."""
    origin = _origin(rows)
    if origin is None:
        return None
    receipts = list(_receipts(origin).values())
    return hash_value(receipts[:units])[:DIGITS] if units <= len(receipts) else None


def build_of(rows: RowSource) -> str | None:
    """Identity of the build of a store, finished or not; None for rows without a store."""
    origin = _origin(rows)
    return None if origin is None else _build(origin.store)


def _build(store: StoreReader) -> str:
    if store not in _BUILDS:
        _BUILDS[store] = getattr(store, "build", None) or build_identity(store.manifest)
    return _BUILDS[store]


def build_identity(manifest: Manifest) -> str:
    """Identity of the build that made a store."""
    columns = (manifest.inputs.names("source"), manifest.inputs.names("name"))
    inputs = zip(*columns, manifest.inputs.numbers("bytes").tolist(), strict=True)
    return build_mark(manifest.recipe, manifest.tokenizer.fingerprint, inputs)


def selected_names(recipe: Recipe, options: DocumentFilter) -> tuple[str, ...]:
    """Names of the sources that a choice of documents takes, in the recipe's order."""
    choice = options.canonical()
    named = zip(source_names(recipe), recipe.sources, strict=True)
    return tuple(
        name
        for name, source in named
        if (choice.sources is None or name in choice.sources)
        and (choice.labels is None or source.label in choice.labels)
    )


class _Origin(NamedTuple):
    """Store of some rows, and their choice of documents."""

    store: StoreReader
    options: DocumentFilter


def _origin(rows: Any) -> _Origin | None:
    """Origin of rows of any kind; None if they are of no store."""
    options = getattr(rows, "options", None) or getattr(getattr(rows, "parent", None), "options", None)
    return None if options is None else _Origin(rows.store, options)


def _receipts(origin: _Origin) -> dict[str, str]:
    """Checksum of the receipt of each unit of the selected sources, in the order of the documents."""
    manifest = origin.store.manifest
    sources = selected_names(manifest.recipe, origin.options)
    known = _UNITS.setdefault(origin.store, {})
    if sources not in known:
        places = {name: place for place, name in enumerate(sources)}
        table = manifest.units
        found = []
        for unit, source, checksum in zip(
            table.names("unit"), table.names("source"), table.names("receipt_checksum"), strict=True
        ):
            name = parse_unit(unit)
            if source in places and name is not None and not unit.endswith(STREAM):
                found.append((places[source], name.place, unit, checksum))
        known[sources] = {unit: checksum for _, _, unit, checksum in sorted(found)}
    return known[sources]
