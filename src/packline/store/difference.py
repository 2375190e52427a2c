"""Difference between two stores: settings, inputs, tokens by source, and documents.

Shards with equal checksums are not read. The row groups of others are sorted by their first place, matched
about a million documents at a time: memory is bounded where documents are stored in about the order of their
files, as builds do. What was not compared is counted and never called equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
KINDS = ("added", "removed", "changed", "otherwise")

Place = tuple[int, int]


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


def _different_shards(
    stores: tuple[StoreReader, StoreReader], counts: dict[str, DocumentCounts]
) -> dict[str, tuple[list[Shard], list[Shard]]]:
    """Shards of each store that are not in the other, by source; documents of the others are counted."""
    mine, theirs = map(_shards_by_contents, stores)
    left: dict[str, tuple[list[Shard], list[Shard]]] = {name: ([], []) for name in counts}
    for side, own, others in ((0, mine, theirs), (1, theirs, mine)):
        for key in (key for key in own if key not in others):
            left[key[0]][side].append(stores[side].shards[own[key][0]])
    documents = stores[0].manifest.shards.numbers("documents").tolist()
    for key in mine.keys() & theirs.keys():
        kind = "same" if mine[key][1:] == theirs[key][1:] else "other_tokens"
        setattr(counts[key[0]], kind, getattr(counts[key[0]], kind) + documents[mine[key][0]])
    return left


def _shards_by_contents(store: StoreReader) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Number of each shard and checksums of its tokens and loss mask.

    By source, split, checksum of provenance, and the number of earlier shards with the same.
    """
    names = ("source", "split", "docs_checksum", "bin_checksum", "loss_checksum")
    rows = zip(*map(store.manifest.shards.names, names), strict=True)
    seen: Counter[tuple[str, ...]] = Counter()
    found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for number, row in enumerate(rows):
        found[*row[:3], seen[row[:3]]] = (number, *row[3:])
        seen[row[:3]] += 1
    return found


def _compare_documents(
    source: str, shards: tuple[list[Shard], list[Shard]], counts: DocumentCounts
) -> list[DocumentChange]:
    """Compare the documents of a source in the shards that two stores do not share, and count them."""
    import pyarrow as pa

    files: dict[str, int] = {}
    listed: dict[str, list[Place]] = {kind: [] for kind in KINDS}
    carried = [{pair for shard in own for pair in shard.open_provenance().carried} for own in shards]
    # Columns of one store alone differ in the recipes; values of another type are never equal.
    columns = {
        name: len({pair for own in carried for pair in own if pair[0] == name}) == 1
        for name in dict(carried[0]).keys() & dict(carried[1]).keys()
    }
    groups: list[tuple[Place, int, int, Shard]] = []
    for side, own in enumerate(shards):
        for shard in own:
            for number, (_, table) in enumerate(shard.open_provenance().groups(["file", "position"])):
                numbers, positions = _numbers(table, files), table["position"].to_numpy()
                if len(table):
                    first = int(numbers.min())
                    place = first, int(positions[numbers == first].min())
                    groups.append((place, side, number, shard))
    groups.sort(key=itemgetter(0))
    waiting: list[pa.Table] = []
    for (_, side, number, shard), following in zip_longest(groups, groups[1:]):
        waiting.append(_read(shard, number, side, files, columns))
        if following is not None and sum(map(len, waiting)) < PART:
            continue
        table = pa.concat_tables(waiting, promote_options="default")
        file, position = (len(files), 0) if following is None else following[0]
        numbers, positions = table["file"].to_numpy(), table["position"].to_numpy()
        below = (numbers < file) | (numbers == file) & (positions < position)  # no later group has others
        waiting = [table.filter(pa.array(~below))]
        for kind, places in _compare(table.filter(pa.array(below)), counts).items():
            listed[kind] = sorted([*listed[kind], *places])[:MOST_LISTED]
    names = list(files)
    return [
        DocumentChange(kind, source, names[file], position)
        for kind in KINDS
        for file, position in listed[kind]
    ]


def _numbers(table: pa.Table, files: dict[str, int]) -> np.ndarray:
    column = table["file"].combine_chunks().dictionary_encode()
    numbers = [files.setdefault(name, len(files)) for name in column.dictionary.to_pylist()]
    return np.array(numbers, np.int64)[column.indices.to_numpy()]


def _read(shard: Shard, group: int, side: int, files: dict[str, int], columns: dict[str, bool]) -> pa.Table:
    """Documents of a row group, with `side`, `split` and the number of the file."""
    import pyarrow as pa

    table = shard.open_provenance().read(group)
    found = {"side": pa.array(np.full(len(table), side)), "file": pa.array(_numbers(table, files))}
    for name in ("position", "hash", "id", "text_bytes", "tokens"):
        found[name] = table[name]
    found["label"] = table["label"].cast(pa.string())
    found["split"] = pa.repeat(shard.entry.split, len(table))
    for name, comparable in columns.items():
        if not comparable:
            found[name] = found["side"]
        elif name not in table.column_names:
            found[name] = pa.nulls(len(table))
        else:  # NaN equals itself as a string
            floating = pa.types.is_floating(table[name].type)
            found[name] = table[name].cast(pa.string()) if floating else table[name]
    return pa.table(found)


def _compare(table: pa.Table, counts: DocumentCounts) -> dict[str, list[Place]]:
    """Match documents of two sides by file and position, and count those that differ.

    Several documents at one place are matched in the order of their hashes.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    table = table.sort_by([(name, "ascending") for name in ("file", "position", "side", "hash")])
    files, positions, sides = (table[name].to_numpy() for name in ("file", "position", "side"))
    order = np.arange(len(table))
    new = np.append(True, (np.diff([files, positions, sides]) != 0).any(axis=0))[: len(table)]
    repeats = order - np.maximum.accumulate(np.where(new, order, 0))
    order = np.lexsort((sides, repeats, positions, files))
    table, keys = table.take(pa.array(order)), np.stack([files, positions, repeats])[:, order]
    both = np.flatnonzero((np.diff(keys) == 0).all(axis=0))
    alone = np.ones(len(table), bool)
    alone[both] = alone[both + 1] = False
    one, other = table.take(pa.array(both)), table.take(pa.array(both + 1))

    def same(name: str) -> np.ndarray:
        mine, theirs = one[name], other[name]
        equal = pc.fill_null(pc.equal(mine, theirs), False)
        return np.asarray(pc.or_(equal, pc.and_(mine.is_null(), theirs.is_null())))

    hashed = np.asarray(pc.and_(one["hash"].is_valid(), other["hash"].is_valid()))
    changed = ~np.where(hashed, same("hash"), same("tokens"))
    equal = ~changed
    for name in set(table.column_names) - {"side", "hash"}:
        equal &= same(name)
    counts.same += int(np.count_nonzero(equal & hashed))
    counts.unchecked += int(np.count_nonzero(equal & ~hashed))
    found = {
        "added": np.flatnonzero(alone & (sides[order] == 1)),
        "removed": np.flatnonzero(alone & (sides[order] == 0)),
        "changed": both[changed],
        "otherwise": both[~changed & ~equal],
    }
    for kind, places in found.items():
        setattr(counts, kind, getattr(counts, kind) + len(places))
    return {kind: list(zip(*keys[:2, at[:MOST_LISTED]].tolist(), strict=True)) for kind, at in found.items()}


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
    recipe = changes_of(_recipe_facts(mine), _recipe_facts(theirs))
    tokenizer = changes_of(_tokenizer_facts(mine), _tokenizer_facts(theirs))
    tokens = [_tokens_by_split(manifest) for manifest in (mine, theirs)]
    sources: list[SourceDifference] = []
    equal: list[str] = []
    listed: list[DocumentChange] = []
    unchecked = 0
    names = [*source_names(mine.recipe), *source_names(theirs.recipe)]
    by_source = {name: DocumentCounts() for name in (*mine.sources, *theirs.sources, *names)}
    different = _different_shards(stores, by_source)
    for name, counts in by_source.items():
        found = _compare_documents(name, different[name], counts)
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


def changes_of(one: dict[str, Any], other: dict[str, Any]) -> list[Change]:
    """Settings by name that have another value."""
    changes = []
    for name in dict.fromkeys([*one, *other]):
        source, between, _ = name.rpartition(": ")
        # A source that only one store has is reported once, by `sources`.
        alone = between and not all(source in facts.get("sources", ()) for facts in (one, other))
        if one.get(name) != other.get(name) and not alone:
            changes.append(Change(name, one.get(name), other.get(name)))
    return changes


def _input_changes(one: InputRows, other: InputRows, equal_sources: Sequence[str]) -> list[InputChange]:
    """Inputs that were added, removed or changed.

    The checksum of an input depends on how it was cut into units, which other files decide too. So one of the
    same size has not changed if all documents of its source are equal.
    """
    mine, theirs = ({(one.source, one.name): one for one in rows} for rows in (one, other))
    changes = []
    for key in dict.fromkeys([*mine, *theirs]):
        before, after = mine.get(key), theirs.get(key)
        sizes = before.bytes if before else None, after.bytes if after else None
        if before != after and not (key[0] in equal_sources and sizes[0] == sizes[1]):
            kind = "added" if before is None else "removed" if after is None else "changed"
            changes.append(InputChange(kind, *key, sizes))
    return changes


def _tokens_by_split(manifest: Manifest) -> dict[str, dict[str, int]]:
    table = manifest.shards.table.group_by(["source", "split"], use_threads=False)
    found: dict[str, dict[str, int]] = {}
    for row in table.aggregate([("tokens", "sum")]).to_pylist():
        found.setdefault(row["source"], {})[row["split"]] = row["tokens_sum"]
    return {source: dict(sorted(splits.items())) for source, splits in found.items()}
