"""`packline info --seq-len`: the cost of every packing on the documents of a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from packline.cli.main import DONE
from packline.cli.output import output
from packline.errors import RecipeError
from packline.packing.documents import Selection
from packline.packing.packer import PACKINGS, DocumentFilter
from packline.packing.stats import PackingStats, compare_packings
from packline.store.reader import StoreReader
from packline.viewing.describe import cheapest_facts, left_out_facts, packing_tables
from packline.viewing.page import Block, KeyValues
from packline.viewing.text import plural, size


def show_packings(
    store: str,
    lengths: Sequence[int],
    packing: str | None,
    *,
    write: bool,
    settings: dict[str, Any],
) -> int:
    """Show the cost of packings on selected documents, and write the plan of best_fit on request."""
    if write and packing != "best_fit":
        raise RecipeError(
            "--write belongs to --packing best_fit: other packings are computed when rows are opened",
            hint="packline info STORE --seq-len N --packing best_fit --write",
        )
    chosen = {name: value for name, value in settings.items() if name in DocumentFilter.__struct_fields__}
    pack_window = settings.get("pack_window")
    selection = Selection(StoreReader(store), DocumentFilter(**chosen))
    lengths = list(dict.fromkeys(lengths))
    prices = {
        length: compare_packings(
            selection, length, [packing] if packing else PACKINGS, pack_window=pack_window
        )
        for length in lengths
    }
    blocks: list[Block] = [KeyValues(_selection_facts(selection))]
    for found in prices.values():
        blocks += packing_tables(found)
        blocks += [KeyValues(cheapest_facts(found))] if packing is None else []
    written = [write_plan(selection, length, pack_window) for length in lengths] if write else []
    if written:
        plan_facts = (f"{one['folder']}: {size(one['bytes'])}, {one['state']}" for one in written)
        blocks.append(KeyValues(tuple(("plan", text) for text in plan_facts)))
    output.blocks(*blocks)
    output.result(
        {
            "command": "info",
            "store": store,
            "exit_code": DONE,
            "documents": len(selection),
            "tokens": selection.tokens,
            "selection": selection.settings,
            "left_out": msgspec.to_builtins(selection.left_out),
            "notes": list(selection.notes),
            "prices": [price_facts(price) for priced in prices.values() for price in priced],
            "plans": written,
        }
    )
    return DONE


def price_facts(price: PackingStats) -> dict[str, Any]:
    """A price as values for JSON output: counts, and the shares of the table."""
    return {
        "seq_len": price.seq_len,
        "packing": price.packing,
        "overflow": price.overflow,
        "pack_window": price.pack_window,
        **msgspec.to_builtins(price.counts),
        "padding_share": price.padding,
        "lost_share": price.lost,
        "split_share": price.split,
        "shared_share": price.shared,
        "untrained_rows": price.untrained_rows,
    }


def _selection_facts(selection: Selection) -> tuple[tuple[str, str], ...]:
    """The selected documents in words."""
    given = {name: value for name, value in selection.settings.items() if value not in (None, False)}
    chosen = ", ".join(f"{name} {_in_words(value)}" for name, value in given.items())
    counts = f"{plural(len(selection), 'document')}, {plural(selection.tokens, 'token')}"
    return (
        ("store", str(selection.store.place)),
        ("packs", counts),
        ("selection", chosen),
        *left_out_facts(selection),
    )


def _in_words(value: Any) -> str:
    if isinstance(value, tuple):
        return " or ".join(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def write_plan(selection: Selection, seq_len: int, pack_window: int | None) -> dict[str, Any]:
    """Write the plan of best_fit, or check every byte of an existing one.

    Raises:
        CorruptStore: the existing plan is damaged.
        StoreError: the plan cannot be written.
    """
    from packline.packing.best_fit import make_plan, plan_fingerprint
    from packline.packing.cache import CachedArrays, cached_arrays, plan_folder
    from packline.packing.windows import make_windows

    fingerprint = plan_fingerprint(selection, seq_len, pack_window)
    folder = plan_folder(selection.store, fingerprint, None)
    there = folder.exists()

    def make() -> CachedArrays:
        if pack_window is None:
            return make_plan(selection, seq_len)
        return make_windows(selection, seq_len, pack_window)

    cached_arrays(folder, fingerprint, make, check=True)
    return {
        "seq_len": seq_len,
        "folder": str(folder),
        "bytes": sum(path.stat().st_size for path in Path(folder).iterdir()),
        "state": "already exists, and is complete" if there else "written",
    }
