"""`packline info`: a store or a run file, the cost of packings with `--seq-len`, and a report with `--html`.

A store is described from its manifest, its indexes and its first documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from cyclopts import Group, Parameter

from packline.cli.arguments import ROWS, Count, DocumentArguments, Length, option
from packline.cli.main import DONE
from packline.cli.output import output
from packline.conversion import kind_of
from packline.errors import RecipeError
from packline.packing.options import PACKINGS, DocumentFilter, Packing
from packline.packing.selection import Selection
from packline.packing.stats import PackingStats, compare_packings
from packline.store.reader import StoreReader
from packline.viewing.columns import count_columns
from packline.viewing.describe import cheapest_facts, left_out_facts, packing_tables, store_page
from packline.viewing.info import info as store_info
from packline.viewing.info import measure_lengths
from packline.viewing.page import Block, KeyValues, Note
from packline.viewing.text import plural, size

_DOCUMENTS = DocumentArguments()
REPORT = Group("Report", sort_key=5)
_HTML = "packline info {} --html report.html --seq-len 4096"


def info(
    store: Annotated[str, Parameter(help="Folder of a finished store, or a run file (run.toml).")],
    /,
    *,
    documents: Annotated[Count, Parameter(help="Number of first documents to show.")] = 3,
    html: Annotated[
        str | None, option("Write all this and more into one HTML file; replaced if it exists.", REPORT)
    ] = None,
    against: Annotated[
        list[str] | None, option("Tokenizer to compare with, for --html. May be repeated.", REPORT)
    ] = None,
    rows: Annotated[Count | None, option("Number of rows to show, for --html. Default: 3.", REPORT)] = None,
    workers: Annotated[
        int | None, option("Number of processes, for --html. Default: one per usable core.", REPORT)
    ] = None,
    seq_len: Annotated[
        list[Length] | None, option("Cost of packings in rows of N tokens. May be repeated.", ROWS)
    ] = None,
    packing: Annotated[Packing | None, option("Only this packing. Default: all.", ROWS)] = None,
    write: Annotated[
        bool, option("With --packing best_fit: write the plan, or check an existing one.", ROWS)
    ] = False,
    choice: DocumentArguments = _DOCUMENTS,
) -> int:
    r"""Show the contents of a store, or what a run reads.

    Of a store: tokens by split, source and label, ledger, lengths and the first
    documents. Of a run: stages, shares, epochs at their ends, missing rows.

    With --seq-len the cost of every packing in rows of N tokens: rows, padding,
    lost tokens, documents that are split, rows with several. It is counted from
    lengths alone, for documents chosen by --where, a condition on their columns,
    --unique and --exclude; what each leaves out is counted.

    With --html one file that any browser opens without a network: the same, the
    ledger, costs of packings, rows with their tokens, odd documents, and other
    tokenizers to compare with.

    Examples:

      packline info store --documents 10
      packline info run.toml
      packline info store --html report.html --against Qwen/Qwen3-8B
      packline info store --seq-len 4096 --seq-len 32768 --min-tokens 512
      packline info store --seq-len 4096 --unique --exclude leaked.parquet \
          --where "score >= 3 and language in ['de', 'en']"
      packline info store --seq-len 4096 --packing best_fit --write
    """
    of_report, of_rows = (html, against, rows, workers), (seq_len, packing, write or None)
    chosen = choice.given()
    if kind_of(store) == "run file":
        if chosen or any(value is not None for value in (*of_report, *of_rows)):
            raise RecipeError(
                "--html, --seq-len and their options are for a store, and this is a run file",
                hint=f"packline info {store}",
            )
        return show_run(store)
    if html is None and any(value is not None for value in of_report):
        raise RecipeError("--against, --rows and --workers are for --html FILE", hint=_HTML.format(store))
    if html is not None:
        if chosen or write or len(seq_len or ()) > 1:
            raise RecipeError(
                "--html describes the whole store: expected one --seq-len, and no choice of documents",
                hint=_HTML.format(store),
            )
        how: dict[str, Any] = {"against": against or (), "workers": workers, "packing": packing or "concat"}
        how |= {"seq_len": seq_len[0] if seq_len else None} | ({} if rows is None else {"rows": rows})
        return write_report(store, html, how)
    settings = choice.settings(store, rows=True)
    row_lengths = seq_len or ([settings["seq_len"]] if "seq_len" in settings else [])
    if row_lengths:
        return show_packings(store, row_lengths, packing, write=write, settings=settings)
    if chosen or packing is not None or write:
        raise RecipeError(
            "the choice of documents and packing is for rows: expected --seq-len NUMBER",
            hint=f"packline info {store} --seq-len 4096",
        )
    if output.mode == "json":
        values = msgspec.to_builtins(store_info(store, documents=documents))
        for group in values["groups"]:
            del group["text_bytes"]  # they are not counted
        return output.result("info", values)
    opened = StoreReader(store)
    shown = range(min(max(documents, 0), len(opened.documents)))
    output.page(store_page(opened, measure_lengths(opened), documents=shown, columns=count_columns(opened)))
    return DONE


def write_report(store: str, out: str, how: dict[str, Any]) -> int:
    from packline.cli.analyze import watching
    from packline.viewing.html import check_place, write_page
    from packline.viewing.report import report_page

    path = check_place(out)
    with watching() as on_progress:
        page = report_page(store, on_event=on_progress, **how)
    write_page(page, path)
    written = path.stat().st_size
    facts = (
        ("report", str(path)),
        ("store", f"{store}: {page.summary}"),
        ("size", f"{size(written)}, opens in any browser"),
    )
    output.blocks(KeyValues(facts), *(Note(f"warning: {text}", "warning") for text in page.warnings))
    return output.result("info", store=store, out=str(path), bytes=written, warnings=page.warnings)


def show_run(path: str) -> int:
    from packline.loading.run_summary import summarize_run
    from packline.viewing.summaries import run_summary_page

    run = summarize_run(path)
    output.page(run_summary_page(path, run))
    return output.result("info", run, run=path)


def show_packings(
    store: str,
    lengths: Sequence[int],
    packing: Packing | None,
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
    return output.result(
        "info",
        store=store,
        documents=len(selection),
        tokens=selection.tokens,
        selection=selection.settings,
        left_out=selection.left_out,
        notes=selection.notes,
        prices=[price_facts(price) for priced in prices.values() for price in priced],
        plans=written,
    )


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
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def write_plan(selection: Selection, seq_len: int, pack_window: int | None) -> dict[str, Any]:
    """Write the plan of best_fit, or check every byte of an existing one."""
    from packline.packing.best_fit import BestFit, planned_folder

    there = planned_folder(selection, seq_len, pack_window) is not None
    folder = BestFit(selection, seq_len, pack_window, write=True).plan.folder
    assert folder is not None
    return {
        "seq_len": seq_len,
        "folder": str(folder),
        "bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "state": "already exists, and is complete" if there else "written",
    }
