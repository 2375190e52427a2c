"""Documents of a source that two stores do not share: matched by file and position, compared by hash.

    shards with equal checksums ── equal, not read
    other shards ── extents of row groups ── parts of about a million documents ── join, compare

A part is a range of files and positions. Memory is bounded where documents are stored in about the order of
their files, as builds do: each row group is read once for its extent, and once or twice for parts.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from packline.store.reader import StoreReader
from packline.store.shard import Shard

if TYPE_CHECKING:
    import pyarrow as pa

PART = 1 << 20
"""Documents of both stores that are compared at a time, about."""
MOST_LISTED = 5
"""Documents of each kind and source that are listed."""
KINDS = ("added", "removed", "changed", "otherwise")

Place = tuple[int, int]
"""Number of a file, and a position in it."""


class DocumentCounts(msgspec.Struct):
    """Documents of a source, by how they differ."""

    added: int = 0
    """In the second store only."""
    removed: int = 0
    """In the first store only."""
    changed: int = 0
    """With another text; of imports, with another number of tokens."""
    otherwise: int = 0
    """With the same text, and another split, number of tokens, id, label or value of a column."""
    other_tokens: int = 0
    """In shards with the same documents, of which some have other tokens or another loss mask."""
    unchecked: int = 0
    """Without a hash in one of the stores, so that their contents were not compared."""
    same: int = 0

    @property
    def equal(self) -> bool:
        """True if all documents are the same."""
        found: dict[str, int] = msgspec.structs.asdict(self)
        return not any(count for name, count in found.items() if name != "same")


class DocumentChange(msgspec.Struct, frozen=True):
    """A document that differs."""

    kind: str
    """`added`, `removed`, `changed` or `otherwise`, as in `DocumentCounts`."""
    source: str
    file: str
    position: int


def compare_documents(
    stores: tuple[StoreReader, StoreReader], source: str
) -> tuple[DocumentCounts, list[DocumentChange]]:
    """Compare the documents of a source in two stores.

    Returns:
        Counts, and the first documents of each kind.

    Raises:
        CorruptStore: provenance is damaged.
    """
    counts = DocumentCounts()
    shards = _different_shards(stores, source, counts)
    files: dict[str, int] = {}
    listed: dict[str, list[Place]] = {kind: [] for kind in KINDS}
    groups = [[group for shard in own for group in _groups(shard, files)] for own in shards]
    cuts = [(-1, 0), *_cuts([*groups[0], *groups[1]]), (len(files), 0)]
    for start, stop in itertools.pairwise(cuts):
        one, other = (_read(own, files, start, stop) for own in groups)
        for kind, places in _compare(one, other, counts).items():
            listed[kind] = sorted([*listed[kind], *places])[:MOST_LISTED]
    names = list(files)
    return counts, [
        DocumentChange(kind, source, names[file], position)
        for kind in KINDS
        for file, position in listed[kind]
    ]


def _different_shards(
    stores: tuple[StoreReader, StoreReader], source: str, counts: DocumentCounts
) -> list[list[Shard]]:
    """Shards of each store that are not in the other."""
    own = [
        [number for number, name in enumerate(store.manifest.shards.names("source")) if name == source]
        for store in stores
    ]
    keys = [_keys(store) for store in stores]
    waiting: dict[tuple[str, ...], list[int]] = {}
    for number in own[0]:
        waiting.setdefault(keys[0][number][:2], []).append(number)
    left: list[list[int]] = [[], []]
    for number in own[1]:
        key = keys[1][number]
        if found := waiting.get(key[:2]):
            earlier = keys[0][found.pop()]
            documents = len(stores[1].shards[number])
            if earlier == key:
                counts.same += documents
            else:
                counts.other_tokens += documents
        else:
            left[1].append(number)
    left[0] = sorted(number for numbers in waiting.values() for number in numbers)
    return [[store.shards[number] for number in numbers] for store, numbers in zip(stores, left, strict=True)]


def _keys(store: StoreReader) -> list[tuple[str, ...]]:
    """Split and checksum of provenance of each shard, then checksums of its tokens and of its loss mask."""
    rows = store.manifest.shards
    columns = (rows.names(name) for name in ("split", "docs_checksum", "bin_checksum"))
    losses = (checksum or "" for checksum in rows.names("loss_checksum"))
    return list(zip(*columns, losses, strict=True))


class _Group(NamedTuple):
    """A row group, and the first and last place of its documents."""

    first: Place
    last: Place
    documents: int
    number: int
    shard: Shard


def _groups(shard: Shard, files: dict[str, int]) -> Iterator[_Group]:
    """Row groups of a shard.

    Args:
        files: numbers of files by name, to which new names are added.
    """
    for number, (_, table) in enumerate(shard.open_provenance().groups(["file", "position"])):
        if len(table):
            numbers, positions = _places(table, files)
            order = np.lexsort((positions, numbers))[[0, -1]]
            first, last = zip(numbers[order].tolist(), positions[order].tolist(), strict=True)
            yield _Group(first, last, len(table), number, shard)


def _places(table: pa.Table, files: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of files, and positions, int64 `[D]` each."""
    column = table["file"].combine_chunks().dictionary_encode()
    names = [files.setdefault(name, len(files)) for name in column.dictionary.to_pylist()]
    return np.array(names, np.int64)[column.indices.to_numpy()], table["position"].to_numpy()


def _cuts(groups: Sequence[_Group]) -> Iterator[Place]:
    """Places between parts of about `PART` documents."""
    held, start = 0, (-1, 0)
    for one in sorted(groups, key=lambda group: group.first):
        if held and held + one.documents > PART and one.first > start:
            yield (start := one.first)
            held = 0
        held += one.documents


def _read(groups: Sequence[_Group], files: dict[str, int], start: Place, stop: Place) -> pa.Table:
    """Documents of a part, in the order of file, position and hash.

    Returns:
        The columns of provenance, with `file` as a number, `split`, and `repeat`: the number of earlier
        documents at the same place.
    """
    import pyarrow as pa

    none = pa.table({name: np.empty(0, np.int64) for name in ("file", "position", "tokens")})
    found: list[pa.Table] = [none.append_column("hash", pa.array([], pa.uint64()))]
    for one in groups:
        if one.first < stop and one.last >= start:
            table = one.shard.open_provenance().read(one.number).drop_columns("source")
            numbers, positions = _places(table, files)
            chosen = np.ones(len(table), bool)
            for (file, position), inside in ((start, True), (stop, False)):
                chosen &= ((numbers > file) | (numbers == file) & (positions >= position)) == inside
            label = table["label"].cast(pa.string())
            table = table.set_column(table.column_names.index("file"), "file", pa.array(numbers))
            table = table.set_column(table.column_names.index("label"), "label", label)
            kept = table.filter(pa.array(chosen))
            found.append(kept.append_column("split", pa.repeat(one.shard.entry.split, len(kept))))
    table = pa.concat_tables(found, promote_options="permissive")
    table = table.sort_by([(name, "ascending") for name in ("file", "position", "hash")])
    places = np.stack([table["file"].to_numpy(), table["position"].to_numpy()])
    first = np.append(True, (places[:, 1:] != places[:, :-1]).any(axis=0))[: len(table)]
    order = np.arange(len(table))
    return table.append_column("repeat", pa.array(order - np.maximum.accumulate(np.where(first, order, 0))))


def _compare(one: pa.Table, other: pa.Table, counts: DocumentCounts) -> dict[str, list[Place]]:
    """Join two sides by file, position and repeat, and count the documents that differ.

    Returns:
        File and position of the first documents of each kind.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = ["file", "position", "repeat"]
    sides = [
        side.select(keys).append_column(name, pa.array(np.arange(len(side))))
        for side, name in ((one, "mine"), (other, "theirs"))
    ]
    both = sides[0].join(sides[1], keys, join_type="full outer").sort_by([(key, "ascending") for key in keys])
    kinds = {"removed": both.filter(both["theirs"].is_null()), "added": both.filter(both["mine"].is_null())}
    both = both.filter(pc.and_(both["mine"].is_valid(), both["theirs"].is_valid()))
    mine, theirs = (
        side.drop_columns(keys).take(both[name]) for side, name in ((one, "mine"), (other, "theirs"))
    )
    hashed = pc.and_(mine["hash"].is_valid(), theirs["hash"].is_valid())
    same = {
        name: _equal(mine[name], theirs[name]) for name in mine.column_names if name in theirs.column_names
    }
    changed = pc.invert(pc.if_else(hashed, same.pop("hash"), same["tokens"]))
    equal = functools.reduce(pc.and_, same.values())
    kinds["changed"] = both.filter(changed)
    kinds["otherwise"] = both.filter(pc.invert(pc.or_(changed, equal)))
    for kind, found in kinds.items():
        setattr(counts, kind, getattr(counts, kind) + len(found))
    equal = pc.and_not(equal, changed)
    counts.same += pc.sum(pc.and_(equal, hashed)).as_py() or 0
    counts.unchecked += pc.sum(pc.and_not(equal, hashed)).as_py() or 0
    return {
        kind: [(row["file"], row["position"]) for row in found.slice(0, MOST_LISTED).to_pylist()]
        for kind, found in kinds.items()
    }


def _equal(left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.ChunkedArray:
    """Equality of values, bool `[N]`; null equals null, and NaN itself."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if left.type != right.type:
        return pa.chunked_array([pa.repeat(False, len(left))])
    same = pc.or_(pc.fill_null(pc.equal(left, right), False), pc.and_(left.is_null(), right.is_null()))
    if pa.types.is_floating(left.type):  # unlike null, NaN is a value
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(left), pc.is_nan(right)), False))
    return same
