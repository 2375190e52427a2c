"""Documents of a store by their columns: the fixed ones of provenance and those that sources carry along.

A column that the source of a shard lacks is null there. Only the columns that a condition names are decoded.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from packline.errors import StoreError
from packline.recipe import parse_columns
from packline.store.provenance import ProvenanceFile, documents_schema
from packline.store.reader import StoreReader, shard_labels
from packline.where.conditions import fields_of, parse_where

if TYPE_CHECKING:
    import pyarrow as pa


def column_names(store: StoreReader) -> list[str]:
    """Names of all columns of documents, those of any source."""
    names = dict.fromkeys(documents_schema().names)
    for source in store.manifest.recipe.sources:  # a source may have no shard
        names |= dict.fromkeys(name for name, _ in parse_columns(source.columns or (), ""))
    first: dict[int, int] = {}
    for number, origin in enumerate(shard_labels(store)):
        first.setdefault(origin.number, number)
    for number in first.values():
        names |= dict.fromkeys(name for name, _ in store.shards[number].open_provenance().carried)
    return list(names)


def matching(store: StoreReader, where: str) -> Iterator[tuple[int, np.ndarray]]:
    """Test a condition on the documents of a store, one row group at a time, in order.

    Yields:
        The number of the first document, and bool `[N]`, True where the condition holds.
    """
    from packline.where.columns import check_columns, column_mask

    condition = parse_where(where)
    names = fields_of(condition)
    check_names(store, names)
    for shard, first in zip(store.shards, store.firsts.tolist(), strict=False):
        file = shard.open_provenance()
        types = stored_types(file, names)
        check_columns(condition, types, str(file.path))
        for group, rows in enumerate(file.rows):
            yield first, column_mask(condition, read_group(file, group, types))
            first += rows


def check_names(store: StoreReader, names: Sequence[str]) -> None:
    """Refuse a column that no source of a store has."""
    from packline.where.columns import refuse_unknown

    if set(names) - set(documents_schema().names):
        refuse_unknown(names, column_names(store), str(store.place))


def stored_types(file: ProvenanceFile, names: Sequence[str]) -> dict[str, pa.DataType]:
    """Types of columns in a shard; null where its source lacks one."""
    import pyarrow as pa

    schema = documents_schema(file.carried)
    return {name: schema.field(name).type if name in schema.names else pa.null() for name in names}


def read_group(file: ProvenanceFile, group: int, types: dict[str, pa.DataType]) -> dict[str, Any]:
    """Columns of a row group, by name: those of `stored_types`, or some of them."""
    import pyarrow as pa

    there = [name for name, kind in types.items() if not pa.types.is_null(kind)]
    columns: dict[str, Any] = {name: pa.nulls(file.rows[group]) for name in types if name not in there}
    if there:
        table = file.read(group, there, ahead=True)
        columns |= {name: table[name] for name in there}
    return columns


def find_by_id(store: StoreReader, id: str) -> list[int]:
    """Numbers of all documents with an id; ids come from the data and need not be unique."""
    if found := _numbers(store, f"id == {id!r}"):
        return found
    hint = "the documents of this store have no ids; name a file and a position"
    for shard in store.shards:
        for _, table in shard.open_provenance().groups(["id"]):
            if some := table["id"].drop_null().slice(0, 3).to_pylist():
                hint = f"ids of this store look like {', '.join(map(repr, some))}"
                raise StoreError(f"{store.place}: no document has the id {id!r}", hint=hint)
    raise StoreError(f"{store.place}: no document has the id {id!r}", hint=hint)


def find_by_place(store: StoreReader, file: str, position: int) -> list[int]:
    """Numbers of the documents that start at a position of a file, one for each source that has one.

    Args:
        file: path as in provenance, below the source's common folder; or that after the name of the source,
            as pages show it.
        position: byte offset in the decompressed file, or row number in a Parquet file.
    """
    where, known = f"file == {file!r}", set(store.manifest.inputs.names("name"))
    for name in store.manifest.sources:
        if file.startswith(f"{name}/"):
            where += f" or source == {name!r} and file == {file.removeprefix(f'{name}/')!r}"
    if found := _numbers(store, f"position == {position} and ({where})"):
        return found
    hint = "a position is a byte offset, or a row number in a Parquet file; packline view shows them"
    if not known & {file, *(file.removeprefix(f"{name}/") for name in store.manifest.sources)}:
        some = sorted(known)[: 1 << 14]
        ends = [name for name in some if name.rpartition("/")[2] == file.rpartition("/")[2]]
        near = difflib.get_close_matches(file, some, 3)
        hint = f"files of this store: {', '.join(map(repr, (ends or near or some)[:3]))}, ..."
    raise StoreError(f"{store.place}: no document of {file!r} begins at {position:,}", hint=hint)


def _numbers(store: StoreReader, where: str) -> list[int]:
    return [
        first + place for first, found in matching(store, where) for place in np.flatnonzero(found).tolist()
    ]
