"""Splits of a finished store: those that its recipe wants, and those that got no document.

A build with a missing split or without documents followed its recipe, but the result is rarely intended: a
trainer stops at the missing validation set, and a misspelled field leaves nothing. So both are reported.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from packline.errors import NoDocuments
from packline.recipe import SPLITS, Recipe, Split
from packline.store.ledger import losses
from packline.store.manifest import Manifest


def splits_of(recipe: Recipe) -> list[Split]:
    """Splits that a recipe's documents can be in.

    >>> from packline.recipe import Source
    >>> splits_of(Recipe(sources=(Source(inputs=("a",)),), tokenizer="t", test_fraction=0.1))
    ['train', 'test']
    """
    there: set[Split] = {source.split or "train" for source in recipe.sources}
    if any(source.split is msgspec.UNSET for source in recipe.sources):
        there |= {"val"} if recipe.val_fraction or recipe.val_documents else set()
        there |= {"test"} if recipe.test_fraction else set()
    return [split for split in SPLITS if split in there]


def split_warnings(manifest: Manifest) -> list[str]:
    """One line for each split that differs from the recipe: empty, or another number of documents."""
    recipe = manifest.recipe
    there = {shard.split for shard in manifest.shards if shard.documents}
    fractions = {"val": recipe.val_fraction, "test": recipe.test_fraction or 0.0}
    lines = []
    for split in splits_of(recipe):
        if split == "val" and recipe.val_documents:
            lines += _other_number(manifest, recipe.val_documents)
        elif split not in there:
            share = fractions.get(split, 0.0)
            of = f": {split}_fraction is {share:g} of {manifest.documents:,} documents" if share else ""
            lines.append(f"the split {split} has no documents{of}")
    return lines


def _other_number(manifest: Manifest, expected: int) -> list[str]:
    """A line if val has another number of documents than requested, unless it contains a whole source."""
    found = sum(shard.documents for shard in manifest.shards if shard.split == "val")
    given = [source.split for source in manifest.recipe.sources]
    if manifest.imported:  # conversations
        given += [source.get("split") for source in manifest.imported.options.get("sources", ())]
    if found == expected or any(given):
        return []
    return [
        f"the split val has {found:,} documents instead of {expected:,}: equal texts are in one split, and "
        "the next text is there so often that it would be more"
    ]


def refuse_empty(path: Path, manifest: Manifest) -> None:
    """Refuse a finished store without documents.

    Raises:
        NoDocuments: with the losses of each source's records.
    """
    if manifest.documents:
        return
    sources = "; ".join(
        f"source {name}: "
        + (", ".join(f"{count:,} {what}" for what, count in losses(ledger)) or "no records")
        for name, ledger in manifest.sources.items()
    )
    recipe = manifest.recipe
    limited = recipe.limit_documents is not None or recipe.limit_tokens is not None
    first = "raise the limit, or " if limited else ""
    raise NoDocuments(
        f"{path} has no documents ({sources})",
        hint=f"{first}correct the field of the text or the filters, and build into the same folder",
    )
