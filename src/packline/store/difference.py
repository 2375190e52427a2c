"""Difference between two stores: settings, inputs, tokens by source, and documents.

    recipe, tokenizer, imports    settings that differ
    inputs                        added, removed, changed: by source and name
    sources                       tokens by split; documents added, removed, changed

A document is identified by its source, file and position, and compared by the hash of its text. Shards whose
files have equal checksums are not read (`document_difference`). What was not compared is counted and never
called equal.

Documents of a source that two stores do not share: matched by file and position, compared by hash.

    shards with equal checksums ── equal, not read
    other shards ── extents of row groups ── parts of about a million documents ── join, compare

A part is a range of files and positions. Memory is bounded where documents are stored in about the order of
their files, as builds do: each row group is read once for its extent, and once or twice for parts.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from packline.recipe import Recipe
from packline.store.ledger import Ledger, source_names
from packline.store.manifest import Manifest
from packline.store.reader import StoreReader
from packline.store.shard import Shard
from packline.store.tables import InputRows

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
    source: str, shards: tuple[list[Shard], list[Shard]], counts: DocumentCounts
) -> list[DocumentChange]:
    """Compare the documents of a source in the shards that two stores do not share, and count them.

    Returns:
        The first documents of each kind.

    Raises:
        CorruptStore: provenance is damaged.
    """
    files: dict[str, int] = {}
    listed: dict[str, list[Place]] = {kind: [] for kind in KINDS}
    groups = [[group for shard in own for group in _groups(shard, files)] for own in shards]
    cuts = [(-1, 0), *_cuts([*groups[0], *groups[1]]), (len(files), 0)]
    for start, stop in itertools.pairwise(cuts):
        one, other = (_read(own, files, start, stop) for own in groups)
        for kind, places in _compare(one, other, counts).items():
            listed[kind] = sorted([*listed[kind], *places])[:MOST_LISTED]
    names = list(files)
    return [
        DocumentChange(kind, source, names[file], position)
        for kind in KINDS
        for file, position in listed[kind]
    ]


def _different_shards(
    stores: tuple[StoreReader, StoreReader], counts: dict[str, DocumentCounts]
) -> dict[str, tuple[list[Shard], list[Shard]]]:
    """Shards of each store that are not in the other, by source; documents of the others are counted."""
    left: dict[str, tuple[list[Shard], list[Shard]]] = {name: ([], []) for name in counts}
    waiting: dict[tuple[str, ...], list[tuple[int, tuple[str, ...]]]] = {}
    for number, (documents, tokens) in enumerate(_keys(stores[0])):
        waiting.setdefault(documents, []).append((number, tokens))
    for number, (documents, tokens) in enumerate(_keys(stores[1])):
        source, shard = documents[0], stores[1].shards[number]
        if found := waiting.get(documents):
            kind = "same" if found.pop()[1] == tokens else "other_tokens"
            setattr(counts[source], kind, getattr(counts[source], kind) + len(shard))
        else:
            left[source][1].append(shard)
    for number, documents in sorted((number, key) for key, own in waiting.items() for number, _ in own):
        left[documents[0]][0].append(stores[0].shards[number])
    return left


def _keys(store: StoreReader) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Source, split and checksum of provenance of each shard; checksums of its tokens and its loss mask."""
    rows = store.manifest.shards
    documents = zip(*(rows.names(name) for name in ("source", "split", "docs_checksum")), strict=True)
    losses = (checksum or "" for checksum in rows.names("loss_checksum"))
    return zip(documents, zip(rows.names("bin_checksum"), losses, strict=True), strict=True)


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


class Change(msgspec.Struct, frozen=True):
    """A setting with another value; None where a store does not have it."""

    name: str
    one: Any
    other: Any


class InputChange(msgspec.Struct, frozen=True):
    """An input file that is in one store only, or differs."""

    kind: str
    """`added`, `removed` or `changed`."""
    source: str
    name: str
    bytes: tuple[int | None, int | None]
    """Size in each store; None where it is not there."""


class SourceDifference(msgspec.Struct, frozen=True):
    """A source that differs."""

    name: str
    tokens: tuple[dict[str, int], dict[str, int]]
    """Tokens by split in each store; empty where the source is not there."""
    documents: tuple[int, int]
    """Documents in each store."""
    counts: DocumentCounts


class StoreDifference(msgspec.Struct, frozen=True):
    """Difference between two stores; `equal` if there is none."""

    one: str
    other: str
    equal: bool
    """True if recipe, tokenizer, inputs and all documents are equal; false if any was not compared."""
    recipe: list[Change]
    tokenizer: list[Change]
    inputs: list[InputChange]
    sources: list[SourceDifference]
    """Sources that differ, in the order of the recipes."""
    equal_sources: list[str]
    listed: list[DocumentChange]
    """The first documents of each source that differ, a few of each kind."""
    notes: list[str]
    """Notes on contents that were not compared, with the reason."""
    documents: tuple[int, int]
    """Documents of each store."""
    tokens: tuple[int, int]
    """Tokens of each store."""


def diff(one: str | Path, other: str | Path) -> StoreDifference:
    """Compare two finished stores: settings, tokenizer, inputs, tokens by source, and documents.

    Documents are matched by source, file and position, and compared by the hash of their text. Shards with
    equal checksums are not read, so the cost is proportional to what differs; memory is bounded. Imported
    documents have no text: in shards that differ they are matched, but counted as not compared.

    Args:
        one: folder of the first store.
        other: folder of the second.

    Returns:
        The differences; `equal` is True if there are none and everything was compared.

    Raises:
        StoreNotFound: there is no finished store.
        CorruptStore: one is damaged.

    >>> import tempfile
    >>> from packline.testing import make_store
    >>> folder = Path(tempfile.mkdtemp())
    >>> one = make_store(folder / "one", [[5, 2]], sources=["books"])
    >>> two = make_store(folder / "two", [[5, 2, 3]], sources=["books"])
    >>> found = diff(one.path, two.path)
    >>> found.equal, found.sources[0].counts.added, found.sources[0].counts.same
    (False, 1, 2)
    """
    stores = StoreReader(one), StoreReader(other)
    mine, theirs = (store.manifest for store in stores)
    recipe = _changes(_recipe_facts(mine), _recipe_facts(theirs))
    tokenizer = _changes(_tokenizer_facts(mine), _tokenizer_facts(theirs))
    tokens = [_tokens_by_split(manifest) for manifest in (mine, theirs)]
    sources: list[SourceDifference] = []
    equal: list[str] = []
    listed: list[DocumentChange] = []
    unchecked = 0
    names = [*source_names(mine.recipe), *source_names(theirs.recipe)]
    by_source = {name: DocumentCounts() for name in (*mine.sources, *theirs.sources, *names)}
    different = _different_shards(stores, by_source)
    for name, counts in by_source.items():
        found = compare_documents(name, different[name], counts)
        by_split = tokens[0].get(name, {}), tokens[1].get(name, {})
        there = name in mine.sources and name in theirs.sources
        if there and counts.equal and by_split[0] == by_split[1]:
            equal.append(name)
            continue
        before, after = (one.sources.get(name, Ledger()).documents for one in (mine, theirs))
        sources.append(SourceDifference(name, by_split, (before, after), counts))
        listed += found
        unchecked += counts.unchecked
    inputs = _input_changes(mine.inputs, theirs.inputs, equal)
    notes = []
    if unchecked:
        notes.append(
            f"the contents of {unchecked:,} documents were not compared: they were imported without a text, "
            "and are in shards with other checksums"
        )
    if mine.tokenizer.fingerprint != theirs.tokenizer.fingerprint:
        notes.append("documents were compared by their texts, since the tokenizers differ")
    return StoreDifference(
        one=str(stores[0].place),
        other=str(stores[1].place),
        equal=not (recipe or tokenizer or inputs or sources or notes),
        recipe=recipe,
        tokenizer=tokenizer,
        inputs=inputs,
        sources=sources,
        equal_sources=equal,
        listed=listed,
        notes=notes,
        documents=(mine.documents, theirs.documents),
        tokens=(mine.tokens, theirs.tokens),
    )


def _recipe_facts(manifest: Manifest) -> dict[str, Any]:
    """Settings by name; those of a source after the name of the source."""
    recipe: Recipe = manifest.recipe
    facts: dict[str, Any] = msgspec.to_builtins(recipe)
    sources = dict(zip(source_names(recipe), facts.pop("sources"), strict=True))
    facts["sources"] = list(sources)
    for name, source in sources.items():
        source.pop("name")
        facts |= {f"{name}: {setting}": value for setting, value in source.items()}
    for entry in manifest.imported:
        for name in entry.sources:
            facts[f"{name}: imported from"] = entry.format
            options = {key: value for key, value in entry.options.items() if key != "sources"}
            facts[f"{name}: options"] = options
    return facts


def _tokenizer_facts(manifest: Manifest) -> dict[str, Any]:
    return {**msgspec.to_builtins(manifest.tokenizer), "dtype": manifest.dtype}


def _changes(one: dict[str, Any], other: dict[str, Any]) -> list[Change]:
    return [
        Change(name, one.get(name), other.get(name))
        for name in dict.fromkeys([*one, *other])
        if one.get(name) != other.get(name) and not _of_one_source(name, one, other)
    ]


def _of_one_source(name: str, one: dict[str, Any], other: dict[str, Any]) -> bool:
    """True for a setting of a source that only one store has, which `sources` reports once."""
    source, between, _ = name.rpartition(": ")
    return bool(between) and not all(source in facts.get("sources", ()) for facts in (one, other))


def _input_changes(one: InputRows, other: InputRows, equal_sources: Sequence[str]) -> list[InputChange]:
    """Inputs that were added, removed or changed.

    The checksum of an input depends on how it was cut into units, which other files decide too. So one of the
    same size has not changed if all documents of its source are equal.
    """
    mine, theirs = (_inputs(rows) for rows in (one, other))
    changes = []
    for key in dict.fromkeys([*mine, *theirs]):
        before, after = mine.get(key), theirs.get(key)
        if before == after:
            continue
        kind = "added" if before is None else "removed" if after is None else "changed"
        sizes = None if before is None else before[0], None if after is None else after[0]
        if key[0] in equal_sources and sizes[0] == sizes[1]:
            continue
        changes.append(InputChange(kind, *key, sizes))
    return changes


def _inputs(rows: InputRows) -> dict[tuple[str, str], tuple[int, str, str]]:
    keys = zip(rows.names("source"), rows.names("name"), strict=True)
    facts = zip(rows.numbers("bytes").tolist(), rows.names("checksum"), rows.names("text"), strict=True)
    return dict(zip(keys, facts, strict=True))


def _tokens_by_split(manifest: Manifest) -> dict[str, dict[str, int]]:
    table = manifest.shards.table.group_by(["source", "split"], use_threads=False)
    found: dict[str, dict[str, int]] = {}
    for row in table.aggregate([("tokens", "sum")]).to_pylist():
        found.setdefault(row["source"], {})[row["split"]] = row["tokens_sum"]
    return {source: dict(sorted(splits.items())) for source, splits in found.items()}
