"""Documents of a store by their columns: the fixed ones of provenance and those that sources carry along.

    find_where(store, "score >= 3 and language == 'de'")  ->  numbers of documents

A column that the source of a shard lacks is null there. Only the columns that a condition names are decoded,
one row group at a time; selections for training are in `packing.filtering`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from packline.store.provenance import ProvenanceFile, documents_schema
from packline.store.reader import StoreReader, shard_labels
from packline.where.conditions import Condition, fields_of
from packline.where.grammar import parse_where


def column_names(store: StoreReader) -> list[str]:
    """Names of all columns of documents, those of any source.

    Raises:
        CorruptStore: provenance cannot be read.
    """
    names = dict.fromkeys(documents_schema().names)
    if any(source.columns for source in store.manifest.recipe.sources):
        first: dict[int, int] = {}
        for number, origin in enumerate(shard_labels(store)):
            first.setdefault(origin.number, number)
        for number in first.values():
            names |= dict.fromkeys(name for name, _ in store.shards[number].open_provenance().carried)
    return list(names)


def matching(store: StoreReader, where: str, *, after: int = 0) -> Iterator[tuple[int, np.ndarray]]:
    """Test a condition on the documents of a store, one row group at a time, in order.

    Args:
        where: the condition, as in `packline.where.grammar`.
        after: begin with the row group of this document.

    Yields:
        The number of the first document, and bool `[N]`, True where the condition holds.

    Raises:
        RecipeError: it is not a condition, names a column that no source has, or compares one with a value
            of another type.
        CorruptStore: provenance cannot be read.
    """
    from packline.where.columns import check_columns, column_mask

    condition = parse_where(where)
    _check_names(store, condition)
    for number in range(max(int(store.firsts.searchsorted(after, "right")) - 1, 0), len(store.shards)):
        file, first = store.shards[number].open_provenance(), int(store.firsts[number])
        types = _types(file, condition)
        check_columns(condition, types, str(file.path))
        for group, rows in enumerate(file.rows):
            if first + rows > after:
                yield first, column_mask(condition, _read(file, group, types))
            first += rows


def find_where(store: StoreReader, where: str, *, most: int | None = None) -> np.ndarray:
    """Numbers of the documents that meet a condition, int64 `[N]`, sorted; the first `most` of them.

    Raises: as `matching`.
    """
    found: list[np.ndarray] = [np.empty(0, np.int64)]
    count = 0
    for first, mask in matching(store, where):
        found.append(first + np.flatnonzero(mask))
        count += len(found[-1])
        if most is not None and count >= most:
            break
    return np.concatenate(found)[:most]


def _check_names(store: StoreReader, condition: Condition) -> None:
    """Refuse a column that no source has."""
    import pyarrow as pa

    from packline.where.columns import check_columns

    if set(fields_of(condition)) <= set(documents_schema().names):
        return
    known = column_names(store)
    if set(fields_of(condition)) - set(known):
        check_columns(condition, {name: pa.null() for name in known}, str(store.path))


def _types(file: ProvenanceFile, condition: Condition) -> dict[str, Any]:
    """Types of the columns that a condition names; null where the source lacks one."""
    import pyarrow as pa

    schema = documents_schema(file.carried)
    return {
        name: schema.field(name).type if name in schema.names else pa.null() for name in fields_of(condition)
    }


def _read(file: ProvenanceFile, group: int, types: dict[str, Any]) -> dict[str, Any]:
    """Columns of a row group."""
    import pyarrow as pa

    there: Sequence[str] = [name for name, kind in types.items() if not pa.types.is_null(kind)]
    table = file.read(group, there) if there else None
    return {
        name: table[name] if table is not None and name in there else pa.nulls(file.rows[group])
        for name in types
    }
