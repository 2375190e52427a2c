"""`packline info`: a store, from its manifest, its indexes and its first documents; or a run file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Group, Parameter

from packline.cli.arguments import ROWS, Count, DocumentArguments, Length, option
from packline.cli.main import DONE
from packline.cli.output import output
from packline.errors import RecipeError
from packline.store.reader import StoreReader
from packline.toml import kind_of
from packline.viewing.columns import ColumnCounts, count_columns
from packline.viewing.describe import store_page
from packline.viewing.store_counts import DocumentLengths, group_shards, measure_lengths

_DOCUMENTS = DocumentArguments()
REPORT = Group("Report", sort_key=5)
_HTML = "packline info {} --html report.html --seq-len 4096"
CHARACTERS = 1000
"""Maximum characters of a document's text in JSON output."""
MARGIN = 8
"""Characters at the end of a truncated text that may change with the next token."""
UNKNOWN = "\ufffd"


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
    packing: Annotated[
        Literal["concat", "best_fit", "pad"] | None, option("Only this packing. Default: all.", ROWS)
    ] = None,
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
        from packline.cli.html_report import write_report

        return write_report(
            store,
            html,
            seq_len=seq_len[0] if seq_len else None,
            packing=packing,
            against=against or (),
            rows=rows,
            workers=workers,
        )
    settings = choice.settings(store, rows=True)
    row_lengths = seq_len or ([settings["seq_len"]] if "seq_len" in settings else [])
    if row_lengths:
        from packline.cli.packings import show_packings

        return show_packings(store, row_lengths, packing, write=write, settings=settings)
    if chosen or packing is not None or write:
        raise RecipeError(
            "the choice of documents and packing is for rows: expected --seq-len NUMBER",
            hint=f"packline info {store} --seq-len 4096",
        )
    opened = StoreReader(store)
    lengths = measure_lengths(opened)
    shown = range(min(max(documents, 0), len(opened.documents)))
    columns = count_columns(opened)
    output.page(store_page(opened, lengths, documents=shown, columns=columns))
    if output.mode == "json":
        output.result(_as_json(opened, lengths, columns, list(shown)))
    return DONE


def show_run(path: str) -> int:
    """Show the stages of a run file."""
    from packline.loading.run_summary import summarize_run
    from packline.viewing.run_summary import run_summary_page

    run = summarize_run(path)
    output.page(run_summary_page(path, run))
    output.result({"command": "info", "run": path, "exit_code": DONE, **msgspec.to_builtins(run)})
    return DONE


def _as_json(
    store: StoreReader, lengths: DocumentLengths, columns: list[ColumnCounts], shown: list[int]
) -> dict[str, Any]:
    """Contents of the page as values for JSON output."""
    manifest = store.manifest
    groups: list[dict[str, Any]] = msgspec.to_builtins(group_shards(store))
    return {
        "command": "info",
        "store": str(store.place),
        "exit_code": DONE,
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "text_bytes": manifest.ledger.text_bytes,
        "store_bytes": manifest.store_bytes,
        "dtype": manifest.dtype,
        "shards": len(manifest.shards),
        "tokenizer": msgspec.to_builtins(manifest.tokenizer),
        "recipe": msgspec.to_builtins(manifest.recipe),
        "imported": msgspec.to_builtins(manifest.imported) if manifest.imported else None,
        "groups": [{name: one[name] for name in one if name != "text_bytes"} for one in groups],
        "lengths": msgspec.to_builtins(lengths),
        "columns": [one.as_json() for one in columns],
        "ledger": msgspec.to_builtins(manifest.ledger),
        "sources": msgspec.to_builtins(manifest.sources),
        "first_documents": [
            {**msgspec.to_builtins(store.provenance(number)), "text": first_characters(store, number)}
            for number in shown
        ],
    }


def first_characters(store: StoreReader, number: int) -> str:
    """First characters of a document's text, decoding little more than needed.

    A cut may fall within a character, and some decoders then also lose what precedes it, so more tokens are
    taken until the characters are complete or no tokens are left.
    """
    start = 0 if store.manifest.tokenizer.bos_id is None else 1
    tokens, taken = store.documents[number][start:-1], CHARACTERS
    while True:
        text = str(store.tokenizer.decode(tokens[:taken].tolist(), skip_special_tokens=False))
        found = text[:CHARACTERS]
        if taken >= len(tokens) or (len(text) > CHARACTERS + MARGIN and UNKNOWN not in found):
            return found
        taken *= 4
