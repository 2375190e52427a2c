"""`packline view`: the tokens of a document, a row or a batch, as divided by the tokenizer."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from packline.cli.arguments import Count, DocumentArguments, Given, RowArguments, option
from packline.cli.output import output
from packline.errors import RecipeError
from packline.formats.choice import option_name
from packline.viewing.batch_files import SUFFIXES, batch_page, read_batch
from packline.viewing.html import write_page
from packline.viewing.page import Page, page_values
from packline.viewing.tokens import MOST, Vocabulary
from packline.viewing.view import BATCH_TOKENS
from packline.viewing.view import view as view_page

WHAT = Group("What to view", sort_key=5)
SHOWN = Group("Amount and file", sort_key=10)
BATCH = Group("For a batch file", sort_key=15)

_ROWS, _DOCUMENTS = RowArguments(), DocumentArguments()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ViewTarget:
    """Choice of a document, a row or a batch."""

    document: Annotated[Count | None, option("Document by its number. Default for a store: 0.", WHAT)] = None
    row: Annotated[
        Count | None,
        option("Row by its number, with --seq-len; with --step or a batch file: row of the batch.", WHAT),
    ] = None
    step: Annotated[
        Count | None, option("Batch of this step, counted from 0 as in packline trace.", WHAT)
    ] = None
    rank: Annotated[int | None, option("With --step: only the rows of this rank.", WHAT)] = None
    world_size: Annotated[int, option("Ranks that share a batch. Default: 1.", WHAT)] = 1


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Shown:
    """Amount and position of the output."""

    tokens: Annotated[
        Count | None,
        option(f"Maximum tokens. Default: {MOST}; for each row of a batch {BATCH_TOKENS}.", SHOWN),
    ] = None
    first: Annotated[
        Count, option("First token of the document, or first document of a list. Default: 0.", SHOWN)
    ] = 0
    out: Annotated[
        str | None, option("Write an HTML file that opens offline, instead of printing.", SHOWN, alias="-o")
    ] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BatchFileOptions(Given):
    """Viewing options for a batch file; None for those not given."""

    tokenizer: Annotated[
        str | None, option("Tokenizer that made the ids. Default: none; ids are shown.", BATCH)
    ] = None
    rows: Annotated[Count | None, option("Maximum rows. Default: all.", BATCH)] = None
    tensor_type: Annotated[
        Literal["input", "target", "both"] | None, option("Tensor to show. Default: input.", BATCH)
    ] = None
    pad_id: Annotated[int | None, option("Padding id, if the file has no lengths or mask.", BATCH)] = None


_TARGET, _SHOWN, _BATCH = ViewTarget(), Shown(), BatchFileOptions()


def view(
    target: Annotated[
        str, Parameter(help="Folder of a store, a run file (run.toml), or a batch file (.npz).")
    ],
    /,
    *,
    wanted: ViewTarget = _TARGET,
    shown: Shown = _SHOWN,
    batch: BatchFileOptions = _BATCH,
    rows: RowArguments = _ROWS,
    documents: DocumentArguments = _DOCUMENTS,
) -> int:
    """Show the tokens of a document, a row or a batch, or list documents.

    With a choice of documents (--where, --split, --source, ...) and no --row, the
    documents chosen are listed with their carried columns. Otherwise each token
    is shown as the tokenizer split it: special tokens, the origin and edges of
    documents, padding, and which tokens are learned. Control characters are
    visible and have no effect. Uses a pager in a terminal, plain text in a pipe.

    Examples:

      packline view store --document 7
      packline view store --where "score >= 3 and url.startswith('https://a')"
      packline view store --row 12 --seq-len 2048 --packing best_fit
      packline view run.toml --step 1200 --world-size 8 --rank 3
      packline view store --step 0 --seq-len 2048 --batch-size 32 --out batch.html
      packline view a_batch_0001.npz --tokenizer gpt2/tokenizer.json --rows 4
    """
    given = documents.settings(target, rows=wanted.row is not None) | rows.given()
    if Path(target).suffix in SUFFIXES and not Path(target).is_dir():
        check_batch(wanted, shown, batch, given)
        page = page_of_batch(target, wanted, shown, batch)
    elif unused := batch.given():
        raise RecipeError(f"{option_name(min(unused))} is for a batch file, .npz or .pt; {target} is not one")
    else:
        how = dataclasses.asdict(wanted) | {"first": shown.first, "tokens": shown.tokens}
        page = view_page(target, **how, **given)
    if shown.out is not None:
        write_page(page, Path(shown.out))
        output.line("  ", ("wrote", "quiet"), f"  {shown.out}")
    else:
        output.page(page, pager=True)
    return output.result("view", page_values(page), target=target)


def check_batch(wanted: ViewTarget, shown: Shown, batch: BatchFileOptions, given: dict[str, Any]) -> None:
    """Refuse options that apply to stores only."""
    of_store = [name for name in ("document", "step", "rank") if getattr(wanted, name) is not None]
    of_store += [*given, *["first"] * bool(shown.first), *["world_size"] * (wanted.world_size != 1)]
    if of_store:
        raise RecipeError(f"{option_name(of_store[0])} is for a store or a run file, not for a batch file")
    if shown.first < 0 or (shown.tokens is not None and shown.tokens < 1):
        raise RecipeError("expected --first of 0 or more and --tokens of 1 or more")
    if batch.rows is not None and batch.rows < 1:
        raise RecipeError(f"--rows is {batch.rows}: expected 1 or more")
    if wanted.row is not None and batch.rows is not None:
        raise RecipeError("expected --row N, one row, or --rows N, the first N rows; found both")


def page_of_batch(target: str, wanted: ViewTarget, shown: Shown, batch: BatchFileOptions) -> Page:
    from packline.encoders.tokenizer import load_tokenizer

    tokenizer = None if batch.tokenizer is None else load_tokenizer(batch.tokenizer)
    found = read_batch(target, tokenizer, batch.pad_id)
    chosen = batch.tensor_type or ("input" if "input" in found.tensors else "target")
    return batch_page(
        found,
        None if tokenizer is None else Vocabulary.of_tokenizer(tokenizer),
        ("input", "target") if chosen == "both" else (chosen,),
        first=wanted.row or 0,
        rows=1 if wanted.row is not None else batch.rows,
        most=shown.tokens or BATCH_TOKENS,
    )
