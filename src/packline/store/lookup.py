"""Look documents up by the names their source gives them: an id, or a file and a position in it.

    find_by_id(store, "a1b2")                  every document with this id
    find_by_place(store, "web/a.jsonl", 1234)  the document that starts there

Provenance has no index: it would be as large as the data it points into, for an occasional query. A search
reads one or two columns of every shard's `docs.parquet`, one row group at a time, about 0.1 microseconds per
document, and memory does not grow with the store. A search that fails reads them once more, to report the
closest matches. Does not search texts.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from packline.errors import StoreError
from packline.ragged import offsets_of
from packline.store.reader import StoreReader
from packline.store.shard import Provenance, to_provenance

if TYPE_CHECKING:
    import pyarrow as pa


NEAR = 3
"""Largest number of near matches that an error names."""


def find_by_id(store: StoreReader, id: str) -> list[int]:
    """Numbers of all documents with an id; ids come from the data and need not be unique.

    Raises:
        StoreError: no document has it; lists similar ids.
    """
    import pyarrow.compute as pc

    found: list[int] = []
    for first, table in _row_groups(store, ["id"]):
        found += (first + np.flatnonzero(pc.fill_null(pc.equal(table["id"], id), False).to_numpy())).tolist()
    if not found:
        raise StoreError(f"{store.path}: no document has the id {id!r}", hint=_near_ids(store, id))
    return found


def find_by_place(store: StoreReader, file: str, position: int, *, source: str | None = None) -> list[int]:
    """Numbers of the documents that start at a position of a file.

    Args:
        file: path as in provenance, below the source's common folder.
        position: byte offset in the decompressed file, or row number in a Parquet file.
        source: limit to this source, if several have a file of this name.

    Returns:
        One number for each source that has such a document: one, unless file names repeat.

    Raises:
        StoreError: no such file, or no document starts there; lists the closest matches.
    """
    found: list[int] = []
    below: tuple[int, int] | None = None
    above: tuple[int, int] | None = None
    for first, table in _row_groups(store, ["source", "file", "position"]):
        chosen = _chosen(table, file, source)
        if not len(chosen):
            continue
        positions = table["position"].to_numpy()[chosen]
        found += (first + chosen[positions == position]).tolist()
        # The nearest one on either side, as (position, document).
        if len(lower := np.flatnonzero(positions < position)):
            place = lower[np.argmax(positions[lower])]
            below = max(below or (-1, -1), (int(positions[place]), first + int(chosen[place])))
        if len(upper := np.flatnonzero(positions > position)):
            place = upper[np.argmin(positions[upper])]
            candidate = (int(positions[place]), first + int(chosen[place]))
            above = candidate if above is None else min(above, candidate)
    if found:
        return found
    where = f"{source}/{file}" if source is not None else file
    if below is None and above is None:
        raise StoreError(f"{store.path} has no document of a file {where!r}", hint=_near_files(store, file))
    near = " and ".join(
        f"{place:,} (document {document:,})" for place, document in filter(None, (below, above))
    )
    raise StoreError(
        f"{store.path}: no document of {where} begins at {position:,}",
        hint=f"the nearest begin at {near}; a position is a byte offset, or a row number in a Parquet file",
    )


def provenance_of(store: StoreReader, documents: np.ndarray) -> list[Provenance]:
    """Provenance of several documents, in their order.

    `store.provenance` keeps the tables that it has read, which suits interactive use; this keeps none, so it
    can handle documents of a thousand shards.

    Args:
        documents: integers `[N]`, each a number in `store.documents`.
    """
    numbers = np.asarray(documents, np.int64)
    found: dict[int, Provenance] = {}
    shards: dict[int, list[int]] = {}
    unique = np.unique(numbers)
    for shard, number in zip(
        (store.firsts.searchsorted(unique, "right") - 1).tolist(), unique.tolist(), strict=True
    ):
        shards.setdefault(shard, []).append(number)
    for place, wanted in shards.items():
        shard = store.shards[place]
        file = shard.open_provenance()
        edges = offsets_of(file.rows) + store.firsts[place]
        groups = (edges.searchsorted(wanted, "right") - 1).tolist()
        for group in dict.fromkeys(groups):
            here = [number for number, one in zip(wanted, groups, strict=True) if one == group]
            rows = file.read(group).take([number - int(edges[group]) for number in here])
            for number, one in zip(here, to_provenance(rows, shard.entry.split, file.path), strict=True):
                found[number] = one
    return [found[number] for number in numbers.tolist()]


def document_number(store: StoreReader, document: int) -> int:
    """Number of an existing document; negative ones count from the end.

    Raises:
        StoreError: no such document.
    """
    count = len(store.documents)
    if not -count <= document < count:
        raise StoreError(f"{store.path} has no document {document:,}: expected 0 to {count - 1:,}")
    return document % count


def _row_groups(store: StoreReader, columns: list[str]) -> Iterator[tuple[int, pa.Table]]:
    """Columns of provenance in blocks, each with the number of its first document."""
    for number, shard in enumerate(store.shards):
        for first, table in shard.open_provenance().groups(columns):
            yield int(store.firsts[number]) + first, table


def _chosen(table: pa.Table, file: str, source: str | None) -> np.ndarray:
    """Rows of a file, compared through the few dictionary values instead of a string per row."""
    mask = _equal(table["file"], file)
    return np.flatnonzero(mask if source is None else mask & _equal(table["source"], source))


def _equal(column: pa.ChunkedArray, value: str) -> np.ndarray:
    import pyarrow.compute as pc

    return np.concatenate(
        [
            pc.equal(piece.dictionary, value).to_numpy(zero_copy_only=False)[piece.indices.to_numpy()]
            for piece in column.chunks
        ]
        or [np.empty(0, bool)]
    )


def _near_ids(store: StoreReader, id: str) -> str:
    import pyarrow.compute as pc

    alike: list[str] = []
    some: list[str] = []
    for _, table in _row_groups(store, ["id"]):
        ids = pc.drop_null(table["id"])
        some += ids.slice(0, NEAR - len(some)).to_pylist()
        if id:
            mask = pc.match_substring(ids, id, ignore_case=True)
            alike += ids.filter(mask).slice(0, NEAR - len(alike)).to_pylist()
        if len(alike) == NEAR:
            break
    if alike:
        return f"ids that contain it: {', '.join(map(repr, alike))}"
    if some:
        return f"ids of this store look like {', '.join(map(repr, some))}"
    return "the documents of this store have no ids; name a file and a position"


def _near_files(store: StoreReader, file: str) -> str:
    names: list[Any] = sorted({entry.name for entry in store.manifest.inputs})
    ends = [name for name in names if name.rpartition("/")[2] == file.rpartition("/")[2]]
    near = ends[:NEAR] or difflib.get_close_matches(file, names[: 1 << 14], NEAR) or names[:NEAR]
    return f"files of this store: {', '.join(map(repr, near))}" + (", ..." if len(names) > len(near) else "")
