"""The manifest of stores merged into one, or the reason why they cannot be.

The merged store is, byte for byte, the one that building the merged recipe anew gives. So what decides the
bytes of every source must be equal: the tokenizer with its boundary tokens, and the common settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from packline.errors import StoreError
from packline.fingerprint import json_form
from packline.recipe import Recipe, recipe_difference
from packline.store.ledger import Ledger, source_names
from packline.store.manifest import ImportEntry, Manifest, with_tables
from packline.store.naming import slug_of
from packline.store.tables import InputRows, ShardRows, UnitRows
from packline.version import __version__

OWN = ("sources", "tokenizer", "encoding", "eod", "bos")
"""Settings of a recipe that are compared in another way: by name, and by what they resolve to."""
SHARED = ("fingerprint", "kind", "vocab_size", "eod_id", "eod", "bos_id", "bos", "round_trip")
"""Facts of the tokenizer that must be equal; its name, as given by the user, need not be."""


def merge_manifests(paths: Sequence[Path | str], manifests: Sequence[Manifest]) -> Manifest:
    """Manifest of several stores merged into one."""
    first = manifests[0]
    for path, other in zip(paths[1:], manifests[1:], strict=True):
        if differences := list(_differences(first, other)):
            raise StoreError(
                f"{paths[0]} and {path} cannot be merged: {'; '.join(differences[:5])}",
                hint="build one of them again with the settings of the other",
            )
    for path, manifest in zip(paths, manifests, strict=True):
        _refuse_whole_settings(path, manifest.recipe)
    _refuse_same_sources(paths, manifests)
    sources = {name: ledger for one in manifests for name, ledger in one.sources.items()}
    merged = msgspec.structs.replace(
        first,
        packline=__version__,
        recipe=merge_recipes([one.recipe for one in manifests]),
        ledger=sum(sources.values(), Ledger()),
        sources=sources,
        imported=_merge_imports([entry for one in manifests for entry in one.imported]),
        checksum="",
    )
    return with_tables(
        merged,
        shards=ShardRows.joined([one.shards for one in manifests]),
        inputs=InputRows.joined([one.inputs for one in manifests]),
        units=UnitRows.joined([one.units for one in manifests]),
    )


def merge_recipes(recipes: Sequence[Recipe]) -> Recipe:
    """The recipe with the sources of all, in order; each source keeps the name that it has."""
    names = [name for recipe in recipes for name in source_names(recipe)]
    sources = [source for recipe in recipes for source in recipe.sources]
    while True:
        merged = msgspec.structs.replace(recipes[0], sources=tuple(sources))
        derived = source_names(merged)
        if derived == names:
            return merged
        # A name derived from its inputs may depend on the other sources: then it is given.
        sources = [
            source if found == name else msgspec.structs.replace(source, name=name)
            for source, found, name in zip(sources, derived, names, strict=True)
        ]


def _differences(one: Manifest, other: Manifest) -> Iterator[str]:
    for name in SHARED:
        mine, theirs = getattr(one.tokenizer, name), getattr(other.tokenizer, name)
        if mine != theirs:
            yield f"{name} of the tokenizer: {mine!r} and {theirs!r}"
    if one.dtype != other.dtype:
        yield f"dtype: {one.dtype} and {other.dtype}"
    settings: Iterator[dict[str, Any]] = (msgspec.to_builtins(manifest.recipe) for manifest in (one, other))
    mine, theirs = ({name: value for name, value in each.items() if name not in OWN} for each in settings)
    for line in recipe_difference(mine, theirs):
        yield line.replace(" -> ", " and ")


def _refuse_whole_settings(path: Path | str, recipe: Recipe) -> None:
    for name in ("limit_documents", "limit_tokens", "val_documents"):
        if found := getattr(recipe, name):
            raise StoreError(
                f"{path} was built with {name} = {found:,}, which applies to all sources together: "
                "a build of the merged recipe would have other documents",
                hint="build it again without it; val_fraction chooses by the text alone",
            )


def _refuse_same_sources(paths: Sequence[Path | str], manifests: Sequence[Manifest]) -> None:
    owners: dict[str, Path | str] = {}
    for path, manifest in zip(paths, manifests, strict=True):
        slugs = list(map(slug_of, source_names(manifest.recipe)))
        for slug in slugs:
            if slug in owners:
                raise StoreError(
                    f"{owners[slug]} and {path} both have a source {slug!r}, as files are named after it: "
                    "expected different names",
                    hint="build one of them again with another name = ... of the source in its recipe; "
                    "files are added to a source with packline build --reuse",
                )
        owners |= dict.fromkeys(slugs, path)


def _merge_imports(entries: Sequence[ImportEntry]) -> tuple[ImportEntry, ...]:
    """Entries of imports; builds of conversations that differ in their sources alone become one."""
    merged: dict[object, ImportEntry] = {}
    for number, entry in enumerate(entries):
        others = {name: value for name, value in entry.options.items() if name != "sources"}
        key = (entry.format, json_form(others)) if "sources" in entry.options else number
        if (earlier := merged.get(key)) is not None:
            listed = [*earlier.options["sources"], *entry.options["sources"]]
            options = {**earlier.options, "sources": listed}
            entry = ImportEntry(entry.format, options, (*earlier.sources, *entry.sources))
        merged[key] = entry
    return tuple(merged.values())
