"""Documents of a source that two stores do not share: matched by file and position, compared by hash.

    shards with equal checksums ── equal, not read
    other shards ── files of each ── parts of about a million documents ── sort, match, compare

A part is some whole files, or a range of positions of one large file, so memory is bounded whatever the order
and the division of the files. Each shard is read once to find its files, and once for each part that it has
documents of: mostly one or two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from packline.store.reader import StoreReader
from packline.store.shard import Shard

if TYPE_CHECKING:
    import pyarrow as pa

PART = 1 << 20
"""Documents of both stores that are compared at a time."""
MOST_LISTED = 5
"""Documents of each kind and source that are listed."""
KINDS = ("added", "removed", "changed", "otherwise")


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
        Counts, and a few documents of each kind.

    Raises:
        CorruptStore: provenance is damaged.
    """
    counts = DocumentCounts()
    shards = _different_shards(stores, source, counts)
    listed: dict[str, list[DocumentChange]] = {kind: [] for kind in KINDS}
    for part in _parts(shards):
        sides = [_read(own, part) for own in shards]
        _match(sides[0], sides[1], part, source, counts, listed)
    return counts, [one for kind in KINDS for one in listed[kind]]


class _Extent(NamedTuple):
    """Documents of one file in a shard."""

    first: int
    """Smallest position."""
    last: int
    documents: int


class _Listed(NamedTuple):
    """A shard, and the files that it has documents of."""

    shard: Shard
    files: dict[str, _Extent]


def _different_shards(
    stores: tuple[StoreReader, StoreReader], source: str, counts: DocumentCounts
) -> list[list[_Listed]]:
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
    return [
        [_listed(store.shards[number]) for number in numbers]
        for store, numbers in zip(stores, left, strict=True)
    ]


def _keys(store: StoreReader) -> list[tuple[str, ...]]:
    """Split and checksum of provenance of each shard, then checksums of its tokens and of its loss mask."""
    rows = store.manifest.shards
    columns = (rows.names(name) for name in ("split", "docs_checksum", "bin_checksum"))
    losses = (checksum or "" for checksum in rows.names("loss_checksum"))
    return list(zip(*columns, losses, strict=True))


def _listed(shard: Shard) -> _Listed:
    files: dict[str, _Extent] = {}
    for _, table in shard.open_provenance().groups(["file", "position"]):
        names, numbers = _file_numbers(table)
        order = np.argsort(numbers, kind="stable")
        starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
        positions = table["position"].to_numpy()[order]
        for number, first, last, count in zip(
            numbers[order][starts].tolist(),
            np.minimum.reduceat(positions, starts).tolist(),
            np.maximum.reduceat(positions, starts).tolist(),
            np.diff(starts, append=len(order)).tolist(),
            strict=True,
        ):
            before = files.get(names[number], _Extent(first, last, 0))
            files[names[number]] = _Extent(
                min(first, before.first), max(last, before.last), count + before.documents
            )
    return _Listed(shard, files)


def _file_numbers(table: pa.Table) -> tuple[list[str], np.ndarray]:
    """Names of files, and for each document the number of its file among them, int64 `[D]`."""
    column = table.select(["file"]).unify_dictionaries().combine_chunks()["file"]
    if not column.num_chunks:
        return [], np.empty(0, np.int64)
    piece = column.chunk(0)
    return piece.dictionary.to_pylist(), piece.indices.to_numpy().astype(np.int64)


class _Part(NamedTuple):
    """Documents to be compared at a time: those of some files, or of a range of positions of one."""

    files: tuple[str, ...]
    start: int = -(2**63)
    stop: int = 2**63 - 1

    def has(self, listed: _Listed) -> bool:
        """True if a shard may have such documents."""
        extents = (listed.files[file] for file in self.files if file in listed.files)
        return any(one.first < self.stop and one.last >= self.start for one in extents)


def _parts(shards: Sequence[Sequence[_Listed]]) -> Iterator[_Part]:
    """Parts of about `PART` documents; one of a large file has at least those of a shard."""
    extents: dict[str, list[_Extent]] = {}
    for own in shards:
        for one in own:
            for file, extent in one.files.items():
                extents.setdefault(file, []).append(extent)
    files: list[str] = []
    held = 0
    for file, found in extents.items():
        size = sum(extent.documents for extent in found)
        if size > PART:
            yield from _ranges(file, found)
            continue
        if held and held + size > PART:
            yield _Part(tuple(files))
            files, held = [], 0
        files.append(file)
        held += size
    if files:
        yield _Part(tuple(files))


def _ranges(file: str, extents: list[_Extent]) -> Iterator[_Part]:
    start, held = _Part(()).start, 0
    for extent in sorted(extents):
        if held and held + extent.documents > PART and extent.first > start:
            yield _Part((file,), start, extent.first)
            start, held = extent.first, 0
        held += extent.documents
    yield _Part((file,), start)


class _Side(NamedTuple):
    """Documents of a part in one store, in the order of file, position and hash."""

    files: np.ndarray
    """int64 `[D]`: number of the file in the part."""
    positions: np.ndarray
    hashes: np.ndarray
    hashed: np.ndarray
    """bool `[D]`: False where the hash is null."""
    repeats: np.ndarray
    """int64 `[D]`: earlier documents at the same place."""
    table: pa.Table
    """All other columns."""


def _read(shards: Sequence[_Listed], part: _Part) -> _Side:
    import pyarrow as pa
    import pyarrow.compute as pc

    found: list[pa.Table] = []
    numbers: list[np.ndarray] = []
    places = {file: number for number, file in enumerate(part.files)}
    for one in filter(part.has, shards):
        for _, group in one.shard.open_provenance().groups():
            names, own = _file_numbers(group)
            of_file = [places.get(name, -1) for name in names]
            files = np.array([*of_file, -1], np.int64)[own]
            positions = group["position"].to_numpy()
            chosen = (files >= 0) & (positions >= part.start) & (positions < part.stop)
            kept = group.filter(pa.array(chosen)).drop_columns(["source", "file"])
            split = pa.repeat(pa.scalar(one.shard.entry.split), len(kept))
            label = pc.cast(kept["label"], pa.string())
            kept = kept.set_column(kept.column_names.index("label"), "label", label)
            found.append(kept.append_column("split", split))
            numbers.append(files[chosen])
    if not found:
        none = np.empty(0, np.int64)
        return _Side(none, none, none.astype(np.uint64), none.astype(bool), none, pa.table({}))
    table = pa.concat_tables(found, promote_options="permissive")
    files = np.concatenate(numbers)
    positions = table["position"].to_numpy()
    hashes = table["hash"].fill_null(0).to_numpy()
    hashed = table["hash"].is_valid().to_numpy()
    others = table.drop_columns(["position", "hash"])
    same_file = files[1:] == files[:-1]
    if bool(((files[1:] > files[:-1]) | (same_file & (positions[1:] > positions[:-1]))).all()):
        return _Side(files, positions, hashes, hashed, np.zeros(len(files), np.int64), others)
    order = np.lexsort((hashes, positions, files))
    files, positions = files[order], positions[order]
    first = np.ones(len(order), bool)
    first[1:] = (files[1:] != files[:-1]) | (positions[1:] != positions[:-1])
    starts = np.flatnonzero(first)
    repeats = np.arange(len(order)) - starts[np.cumsum(first) - 1]
    return _Side(files, positions, hashes[order], hashed[order], repeats, others.take(pa.array(order)))


def _match(
    one: _Side,
    other: _Side,
    part: _Part,
    source: str,
    counts: DocumentCounts,
    listed: dict[str, list[DocumentChange]],
) -> None:
    """Match documents by file, position and repeat, and count those that differ."""
    mine, theirs = _pairs(one, other)
    removed, added = np.ones(len(one.files), bool), np.ones(len(other.files), bool)
    removed[mine] = added[theirs] = False

    def note(kind: str, found: _Side, chosen: np.ndarray) -> None:
        setattr(counts, kind, getattr(counts, kind) + len(chosen))
        known = listed[kind]
        for place in chosen[: MOST_LISTED - len(known)].tolist():
            file, position = part.files[int(found.files[place])], int(found.positions[place])
            known.append(DocumentChange(kind, source, file, position))

    note("removed", one, np.flatnonzero(removed))
    note("added", other, np.flatnonzero(added))
    if not len(mine):
        return
    hashed = one.hashed[mine] & other.hashed[theirs]
    tokens = _equal(one, other, "tokens", mine, theirs)
    changed = np.where(hashed, one.hashes[mine] != other.hashes[theirs], ~tokens)
    values = np.ones(len(mine), bool)
    for name in one.table.column_names:
        if name in other.table.column_names:
            values &= _equal(one, other, name, mine, theirs)
    note("changed", other, theirs[changed])
    note("otherwise", other, theirs[~changed & ~values])
    counts.unchecked += int(np.count_nonzero(~changed & values & ~hashed))
    counts.same += int(np.count_nonzero(~changed & values & hashed))


def _pairs(one: _Side, other: _Side) -> tuple[np.ndarray, np.ndarray]:
    """Places in both sides of the documents that both have, int64 `[N]` each."""
    columns = [(one.files, other.files), (one.positions, other.positions), (one.repeats, other.repeats)]
    if all(np.array_equal(*pair) for pair in columns):
        places = np.arange(len(one.files))
        return places, places
    files, positions, repeats = (np.concatenate(pair) for pair in columns)
    side = np.repeat([0, 1], [len(one.files), len(other.files)])
    order = np.lexsort((side, repeats, positions, files))
    paired = np.ones(max(len(order) - 1, 0), bool)
    for column in (files, positions, repeats):
        key = column[order]
        paired &= key[1:] == key[:-1]
    return order[:-1][paired], order[1:][paired] - len(one.files)


def _equal(one: _Side, other: _Side, name: str, mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """bool `[N]`: whether matched documents have equal values in a column; null equals null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    left, right = one.table[name].take(pa.array(mine)), other.table[name].take(pa.array(theirs))
    if left.type != right.type:
        return np.zeros(len(mine), bool)
    same = pc.or_(pc.fill_null(pc.equal(left, right), False), pc.and_(left.is_null(), right.is_null()))
    if pa.types.is_floating(left.type):  # unlike null, NaN is a value
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(left), pc.is_nan(right)), False))
    found: np.ndarray = same.to_numpy()
    return found
