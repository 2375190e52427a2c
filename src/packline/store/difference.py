"""Difference between two stores: settings, inputs, tokens by source, and documents.

    recipe, tokenizer, imports    settings that differ
    inputs                        added, removed, changed: by source and name
    sources                       tokens by split; documents added, removed, changed

A document is identified by its source, file and position, and compared by the hash of its text. Shards whose
files have equal checksums are not read (`document_difference`). What was not compared is counted and never
called equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from packline.recipe import Recipe
from packline.store.document_difference import (
    DocumentChange,
    DocumentCounts,
    compare_documents,
)
from packline.store.ledger import source_names
from packline.store.manifest import Manifest
from packline.store.reader import StoreReader
from packline.store.tables import InputRows


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


def compare_stores(one: str | Path, other: str | Path) -> StoreDifference:
    """Compare two finished stores.

    Cost: nothing for shards that are equal; provenance is read for the others. Memory is bounded.

    Raises:
        StoreNotFound: there is no finished store.
        CorruptStore: one is damaged.
    """
    stores = StoreReader(one), StoreReader(other)
    mine, theirs = (store.manifest for store in stores)
    if mine.checksum == theirs.checksum:
        return _difference(stores, [], [], [], [], list(mine.sources), [], [])
    recipe = _changes(_recipe_facts(mine), _recipe_facts(theirs))
    tokenizer = _changes(_tokenizer_facts(mine), _tokenizer_facts(theirs))
    tokens = [_tokens_by_split(manifest) for manifest in (mine, theirs)]
    sources: list[SourceDifference] = []
    equal: list[str] = []
    listed: list[DocumentChange] = []
    unchecked = 0
    for name in dict.fromkeys([*mine.sources, *theirs.sources]):
        counts, found = compare_documents(stores, name)
        by_split = tokens[0].get(name, {}), tokens[1].get(name, {})
        there = name in mine.sources and name in theirs.sources
        if there and counts.equal and by_split[0] == by_split[1]:
            equal.append(name)
            continue
        documents = [
            manifest.sources[name].documents if name in manifest.sources else 0 for manifest in (mine, theirs)
        ]
        sources.append(SourceDifference(name, by_split, (documents[0], documents[1]), counts))
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
    return _difference(stores, recipe, tokenizer, inputs, sources, equal, listed, notes)


def _difference(
    stores: tuple[StoreReader, StoreReader],
    recipe: list[Change],
    tokenizer: list[Change],
    inputs: list[InputChange],
    sources: list[SourceDifference],
    equal_sources: list[str],
    listed: list[DocumentChange],
    notes: list[str],
) -> StoreDifference:
    one, other = stores
    return StoreDifference(
        str(one.place),
        str(other.place),
        not (recipe or tokenizer or inputs or sources or notes),
        recipe,
        tokenizer,
        inputs,
        sources,
        equal_sources,
        listed,
        notes,
        (one.manifest.documents, other.manifest.documents),
        (one.manifest.tokens, other.manifest.tokens),
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
    facts: dict[str, Any] = msgspec.to_builtins(manifest.tokenizer)
    return {**facts, "dtype": manifest.dtype}


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
