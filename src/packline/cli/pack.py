"""`packline pack`: the cost of every packing on the documents of a store; optionally writes a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from packline.cli.arguments import Flags, option
from packline.cli.choice import ROWS, DocumentArguments
from packline.cli.main import DONE
from packline.cli.output import Line, output, table
from packline.errors import RecipeError
from packline.packing.documents import Selection
from packline.packing.packer import PACKINGS, DocumentFilter
from packline.packing.stats import PackingStats, compare_packings
from packline.store.reader import StoreReader
from packline.viewing.text import percent, plural, size

_FLAGS, _DOCUMENTS = Flags(), DocumentArguments()
HEAD = ("packing", "rows", "padding", "tokens lost", "documents split", "rows shared")


def pack(
    store: Annotated[str, Parameter(help="Folder of a finished store.")],
    *,
    seq_len: Annotated[list[int], option("Tokens of a row. May be given several times.", ROWS)],
    packing: Annotated[
        Literal["concat", "best_fit", "pad"] | None, option("Price this one only. Default: all.", ROWS)
    ] = None,
    write: Annotated[
        bool, option("With --packing best_fit: write the plan, or check the one that is there.", ROWS)
    ] = False,
    plans: Annotated[str | None, option("Folder of plans. Default: in the store.", ROWS)] = None,
    documents: DocumentArguments = _DOCUMENTS,
    flags: Flags = _FLAGS,
) -> int:
    """Show the cost of every packing; see `pages`."""
    if write and packing != "best_fit":
        raise RecipeError(
            "--write goes with --packing best_fit: other packings are computed when rows are opened",
            hint="packline pack STORE --seq-len N --packing best_fit --write",
        )
    chosen = {name: value for name, value in documents.settings().items() if value is not None}
    selection = Selection(StoreReader(store), DocumentFilter(**chosen), plans=plans)
    lengths = list(dict.fromkeys(seq_len))
    prices = {
        length: compare_packings(selection, length, [packing] if packing else PACKINGS) for length in lengths
    }
    output.lines(choice_lines(selection))
    for length, priced in prices.items():
        output.line()
        output.lines(price_lines(length, priced))
        if packing is None:
            output.lines(verdict_lines(priced))
    written = [write_plan(selection, length, plans) for length in lengths] if write else []
    if written:
        output.line()
        output.lines(plan_lines(written))
    output.result(
        {
            "command": "pack",
            "store": store,
            "exit_code": DONE,
            "documents": len(selection),
            "tokens": selection.tokens,
            "selection": selection.settings,
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
        **msgspec.to_builtins(price.counts),
        "padding_share": price.padding,
        "lost_share": price.lost,
        "split_share": price.split,
        "shared_share": price.shared,
    }


def choice_lines(selection: Selection) -> list[Line]:
    """Lines on the choice of documents."""
    given = {name: value for name, value in selection.settings.items() if value is not None}
    chosen = ", ".join(f"{name} {_said(value)}" for name, value in given.items())
    rows: list[Line] = [
        [("store", "quiet"), (str(selection.store.path), "title")],
        [("packs", "quiet"), f"{plural(len(selection), 'document')}, {plural(selection.tokens, 'token')}"],
        [("chosen", "quiet"), chosen],
    ]
    return table(rows, "ll", width=output.wrap)


def _said(value: Any) -> str:
    if isinstance(value, tuple):
        return " or ".join(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def price_lines(seq_len: int, prices: list[PackingStats]) -> list[Line]:
    """Prices for one length as a table."""
    rows: list[Line] = [[(word, "quiet") for word in HEAD]]
    for price in prices:
        rows.append(
            [
                price.name,
                f"{price.counts.rows:,}",
                percent(price.padding),
                percent(price.lost),
                percent(price.split),
                percent(price.shared),
            ]
        )
    return [["  ", (f"rows of {seq_len:,} tokens", "title")], *table(rows, "lrrrrr")]


def verdict_lines(prices: list[PackingStats]) -> list[Line]:
    """The cheapest packings by each of the three prices."""
    lost = {price.name: price.lost for price in prices}
    whole = [price for price in prices if price.lost == min(lost.values())]
    rows: list[Line] = [
        [("loses fewest tokens", "quiet"), _cheapest(lost)],
        [
            ("of these, splits fewest documents", "quiet"),
            _cheapest({price.name: price.split for price in whole}),
        ],
        [("pads least", "quiet"), _cheapest({price.name: price.padding for price in prices})],
    ]
    return table(rows, "ll", width=output.wrap)


def _cheapest(shares: dict[str, float]) -> str:
    """Names of all packings with the lowest share, and the share."""
    least = min(shares.values())
    names = [name.replace(",", "") for name, share in shares.items() if share == least]
    several = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return f"{several}: {percent(least) if least else 'none'}"


def write_plan(selection: Selection, seq_len: int, plans: str | None) -> dict[str, Any]:
    """Write the plan of best_fit, or check every byte of an existing one.

    Raises:
        CorruptStore: the existing plan is damaged.
        StoreError: the plan cannot be written.
    """
    from packline.packing.best_fit import make_plan, plan_fingerprint
    from packline.packing.cache import cached_arrays, plan_folder

    fingerprint = plan_fingerprint(selection, seq_len)
    folder = plan_folder(selection.store, fingerprint, plans)
    there = folder.exists()
    cached_arrays(folder, fingerprint, lambda: make_plan(selection, seq_len), check=True)
    return {
        "seq_len": seq_len,
        "folder": str(folder),
        "bytes": sum(path.stat().st_size for path in Path(folder).iterdir()),
        "state": "was there, and is whole" if there else "written",
    }


def plan_lines(written: list[dict[str, Any]]) -> list[Line]:
    """Lines with the paths of plans."""
    rows: list[Line] = [
        [("plan", "quiet"), f"{one['folder']}: {size(one['bytes'])}, {one['state']}"] for one in written
    ]
    return table(rows, "ll", width=output.wrap)
