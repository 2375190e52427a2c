"""Units of a store that a run has read: their number, in the order of the documents, and their receipts.

An order that follows the stored one needs the rows of the windows up to its place, and no others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from packline.fingerprint import hash_value
from packline.jobs.plan import build_mark
from packline.loading.order import RowOrder
from packline.packing.options import DocumentFilter
from packline.recipe import Recipe
from packline.store.ledger import source_names
from packline.store.naming import STREAM, parse_unit
from packline.store.reader import StoreReader

if TYPE_CHECKING:
    from packline.packing.rows import Rows
    from packline.store.manifest import Manifest

DIGITS = 12

_KNOWN: WeakKeyDictionary[StoreReader, dict[Any, Any]] = WeakKeyDictionary()
"""By store: identity of its build, and receipts by sources; states are saved often."""


def units_read(rows: Rows, order: RowOrder, draws: int) -> list[Any] | None:
    """Units that the first uses of a source depend on, for a state; None for rows without a store.

    Returns:
        Hash of recipe, tokenizer and inputs of the store; number of units, in the order of the documents, up
        to the last that holds a row; and a hash of their receipts.
    """
    if not hasattr(rows, "options"):
        return None
    units = 0
    if draws:
        first = min(-(-draws // order.window_rows) * order.window_rows, len(rows))
        shard, _ = rows.store.locate(rows.last_document(first))
        units = list(_receipts(rows)).index(shard.entry.name.partition("-")[2]) + 1
    return [build_of(rows.store), units, chain_of(rows, units)]


def chain_of(rows: Rows, units: int) -> str | None:
    """Hash of the receipts of a source's first units; None if there are fewer, for now."""
    receipts = list(_receipts(rows).values())
    return hash_value(receipts[:units])[:DIGITS] if units <= len(receipts) else None


def build_of(store: StoreReader) -> str:
    """Identity of the build of a store, finished or not."""
    known = _KNOWN.setdefault(store, {})
    if "build" not in known:
        known["build"] = store.build or build_identity(store.manifest)
    return str(known["build"])


def build_identity(manifest: Manifest) -> str:
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


def _receipts(rows: Any) -> dict[str, str]:
    """Checksum of the receipt of each unit of the selected sources, in the order of the documents."""
    manifest = rows.store.manifest
    sources = selected_names(manifest.recipe, rows.options)
    known: dict[Any, dict[str, str]] = _KNOWN.setdefault(rows.store, {})
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
