"""Documents of a store by their columns: the fixed ones of provenance and those that sources carry along.

    matching(store, "score >= 3 and language == 'de'")  ->  documents of each row group

A column that the source of a shard lacks is null there. Only the columns that a condition names are decoded,
one row group at a time; selections for training are in `packing.selection`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from packline.recipe import parse_columns
from packline.store.provenance import ProvenanceFile, documents_schema
from packline.store.reader import StoreReader, shard_labels
from packline.where.conditions import fields_of
from packline.where.grammar import parse_where

if TYPE_CHECKING:
    import pyarrow as pa


def column_names(store: StoreReader) -> list[str]:
    """Names of all columns of documents, those of any source.

    Raises:
        CorruptStore: provenance cannot be read.
    """
    names = dict.fromkeys(documents_schema().names)
    for source in store.manifest.recipe.sources:  # a source may have no shard
        names |= dict.fromkeys(name for name, _ in parse_columns(source.columns or (), ""))
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
    names = fields_of(condition)
    check_names(store, names)
    for number in range(max(int(store.firsts.searchsorted(after, "right")) - 1, 0), len(store.shards)):
        file, first = store.shards[number].open_provenance(), int(store.firsts[number])
        types = stored_types(file, names)
        check_columns(condition, types, str(file.path))
        for group, rows in enumerate(file.rows):
            if first + rows > after:
                yield first, column_mask(condition, read_group(file, group, types))
            first += rows


def check_names(store: StoreReader, names: Sequence[str]) -> None:
    """Refuse a column that no source of a store has.

    Raises:
        RecipeError: with the name that was probably meant.
    """
    from packline.where.columns import refuse_unknown

    if set(names) - set(documents_schema().names):
        refuse_unknown(names, column_names(store), str(store.place))


def stored_types(file: ProvenanceFile, names: Sequence[str]) -> dict[str, pa.DataType]:
    """Types of columns in a shard; null where its source lacks one."""
    import pyarrow as pa

    schema = documents_schema(file.carried)
    return {name: schema.field(name).type if name in schema.names else pa.null() for name in names}


def read_group(file: ProvenanceFile, group: int, types: dict[str, pa.DataType]) -> dict[str, Any]:
    """Columns of a row group, by name: those of `stored_types`, or some of them.

    Raises:
        CorruptStore: they cannot be read.
    """
    import pyarrow as pa

    there = [name for name, kind in types.items() if not pa.types.is_null(kind)]
    columns: dict[str, Any] = {name: pa.nulls(file.rows[group]) for name in types if name not in there}
    if there:
        table = file.read_values(group, there)
        columns |= {name: table[name] for name in there}
    return columns
