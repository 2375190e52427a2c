"""Draft a run file: a store's sources with the shares that a recipe gives them.

    recipe.toml: weight, tokens, max_epochs   ┐
    store: sources, tokens of train           ┴──>  run.toml: one stage, one [[stages.sources]] per source

Shares are relative and count rows. All rows have the same number of tokens, so a budget of tokens is a share
too: the stage lasts for the sum of the budgets. Without shares the store is read as is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packline.errors import RecipeError
from packline.recipe import Share

if TYPE_CHECKING:
    from packline.store.reader import StoreReader


def draft_run(
    store: StoreReader,
    shares: Sequence[Share],
    *,
    seq_len: int,
    batch_size: int,
    folder: Path,
    tokens: int | None = None,
) -> str:
    """Draft a run file for a store.

    Args:
        shares: share of each source of the store, in its order; empty for shares by size.
        seq_len: tokens per row.
        batch_size: rows per global batch.
        folder: folder that the file will be in: the store is named relative to it.
        tokens: length of the stage; by default the sum of budgets, or until a source is used up.

    Raises:
        RecipeError: a number below 1; shares for another number of sources, or a source with a share and
            without a document to train on.
    """
    for said, number in (("seq_len", seq_len), ("batch_size", batch_size), ("tokens", tokens)):
        if number is not None and number < 1:
            raise RecipeError(f"{said} is {number}: expected at least 1")
    names = list(store.manifest.sources)
    sizes = _train_tokens(store)
    if shares and len(shares) != len(names):
        raise RecipeError(
            f"the recipe has {len(shares)} sources, the store {len(names)}: {', '.join(names)}",
            hint="give the recipe that the store was built from",
        )
    given = [share.weight if share.tokens is None else share.tokens for share in shares]
    lasts = tokens or sum(share.tokens or 0 for share in shares)
    lines = [
        "# A packline run: packline trace THIS --step 0 shows a batch of it, packline.load(THIS) reads it.",
        "# docs/reading.md has all settings.",
        "",
        "[loader]",
        f"batch_size = {batch_size}                  # rows of the global batch",
        "seed = 0",
        "",
        "[[stages]]",
        f"seq_len = {seq_len}",
        'packing = "concat"               # "best_fit": no document is cut that fits into a row',
        f"tokens = {lasts}" if lasts else "# tokens = 1_000_000_000         # else until a source is used up",
    ]
    place = json.dumps(_placed(store.path, folder))
    if all(one is None for one in given):
        lines += ["", "[[stages.sources]]", f"store = {place}"]
        lines += [f"#   {name}: {size:,} tokens for training" for name, size in sizes.items()]
        lines += [
            "# sources = [...]                # some of them only; then each [[stages.sources]] has a weight"
        ]
    else:
        for name, weight, share in zip(names, given, shares, strict=True):
            lines += _source(place, name, sizes[name], weight, share)
    return "\n".join([*lines, ""])


def _source(store: str, name: str, size: int, weight: int | float | str | None, share: Share) -> list[str]:
    if not size:
        raise RecipeError(f"source {name!r} has a share, and no document in the split train")
    lines = ["", "[[stages.sources]]", f"store = {store}", f"sources = {json.dumps(name)}"]
    lines += [f"weight = {json.dumps(weight)}", f"# {size:,} tokens for training"]
    if share.max_epochs is not None:
        return [*lines, f"max_epochs = {json.dumps(share.max_epochs)}"]
    return [
        *lines,
        "# max_epochs = 2                 # more than 1 where its share asks for more than there is",
    ]


def _train_tokens(store: StoreReader) -> dict[str, int]:
    """Tokens of the split train by source; a shard holds one source."""
    sizes = dict.fromkeys(store.manifest.sources, 0)
    for shard in store.shards:
        if shard.entry.split == "train" and len(shard):
            sizes[shard.provenance(0).source] += shard.entry.tokens
    return sizes


def _placed(store: Path, folder: Path) -> str:
    return str(store) if store.is_absolute() else os.path.relpath(store, folder)
