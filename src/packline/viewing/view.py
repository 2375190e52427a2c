"""The tokens of a document, a row or a batch of a store or a run, or a list of documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

import msgspec

from packline.errors import RecipeError, unknown_name
from packline.formats.choice import make_choice, option_name
from packline.loading.loader import Loader
from packline.packing.options import DocumentFilter, ExportChoice, RowOptions
from packline.packing.rows import Rows
from packline.packing.selection import Selection
from packline.settings import RowKeywords
from packline.store.reader import StoreReader
from packline.toml import is_toml, kind_of
from packline.viewing.page import Page
from packline.viewing.token_pages import document_page, documents_page, row_page, step_page
from packline.viewing.tokens import MOST

BATCH_TOKENS = 512
"""Tokens of each row of a batch."""
OF_LOADER = ("batch_size", "seed", "epochs", "in_order")


def view(
    target: str | Path,
    *,
    document: int | None = None,
    row: int | None = None,
    step: int | None = None,
    rank: int | None = None,
    world_size: int = 1,
    first: int = 0,
    tokens: int | None = None,
    **settings: Unpack[RowKeywords],
) -> Page:
    """Show the tokens of a document, a row or a batch, or list documents.

    The page is HTML in a notebook, and text by `str` and `print`.

    Args:
        target: folder or URI of a store, or a run file (`.toml`), which is viewed one step at a time.
        document: document by its number; by default the first.
        row: row by its number, with `seq_len`; with `step` row of the batch.
        step: batch of this step, counted from 0.
        rank: with `step`: only the rows of this rank.
        world_size: ranks that share a batch.
        first: first token of the document, or first document of a list.
        tokens: maximum tokens.
        **settings: choice of documents, such as `where`, `split`, `labels`, which alone lists them, and
            settings of rows; see `packline.settings.RowKeywords`.

    Raises:
        RecipeError: settings contradict each other, or there is no such row or step.
        StoreError: no store, or no such document.

    >>> print(view(store.path, document=0, tokens=2))
      Document 0
    ...
    """
    choice, rest = make_choice(dict(settings))
    if rest:
        raise unknown_name(f"no setting {min(rest)!r}", min(rest), ExportChoice.__struct_fields__)
    given: dict[str, Any] = msgspec.to_builtins(choice)
    given = {name: value for name, value in given.items() if value is not None}
    if first < 0 or (tokens is not None and tokens < 1):
        raise RecipeError("expected --first of 0 or more and --tokens of 1 or more")
    if step is not None:
        if document is not None:
            raise RecipeError("expected one of --document, --row and --step, found several")
        loader = open_run(target, world_size, given)
        most = tokens or (BATCH_TOKENS if row is None else MOST)
        return step_page(loader, step, rank=rank, row=row, most=most)
    if kind_of(target) == "run file":
        raise RecipeError("--step is missing: a run file is viewed one batch at a time", hint="--step 0")
    of_step = [name for name in OF_LOADER if name in given]
    of_step += ["rank"] * (rank is not None) + ["world_size"] * (world_size != 1)
    if of_step:
        raise RecipeError(f"{option_name(of_step[0])} belongs to --step, the batch of a step")
    store = StoreReader(target)
    if row is not None:
        if document is not None:
            raise RecipeError("expected one of --document, --row and --step, found several")
        if "seq_len" not in given:
            raise RecipeError(
                "--seq-len is missing: it is the length of the rows",
                hint=f"packline view STORE --row {row} --seq-len 4096 --packing best_fit",
            )
        rows = Rows(store, given.pop("seq_len"), RowOptions(**given))
        if not -len(rows) <= row < len(rows):
            raise RecipeError(f"row {row:,}: expected 0 to {len(rows) - 1:,}, the rows of {target}")
        return row_page(rows, row, most=tokens or MOST)
    if of_rows := sorted(set(given) - set(DocumentFilter.__struct_fields__)):
        raise RecipeError(f"{option_name(of_rows[0])} belongs to --row, which is missing", hint="--row 0")
    if not given:
        return document_page(store, document or 0, first=first, most=tokens or MOST)
    if document is not None:
        raise RecipeError(f"{option_name(min(given))} lists documents, and excludes --document")
    return documents_page(Selection(store, DocumentFilter(**{"split": "all", **given})), first=first)


def open_run(target: str | Path, world_size: int, given: dict[str, Any]) -> Loader:
    """Loader of a training run: of a run file, or of a store with the settings of a run.

    Raises:
        RecipeError: settings are missing, or also made by the run file.
    """
    if is_toml(target):
        if given:
            raise RecipeError(f"{option_name(min(given))} is for a store: {target} has its own settings")
        return Loader.from_file(target, world_size=world_size, prefetch=0)
    for name in ("seq_len", "batch_size"):
        if name not in given:
            raise RecipeError(
                f"{option_name(name)} is required: a store alone does not determine the batches",
                hint="give the settings of the training run, or its run file (run.toml)",
            )
    of_rows = {name: value for name, value in given.items() if name in RowOptions.__struct_fields__}
    of_loader = {name: given[name] for name in ("batch_size", "seed", "epochs") if name in given}
    rows = Rows(StoreReader(target), given["seq_len"], RowOptions(**of_rows))
    shuffle = not given.get("in_order", False)
    return Loader(rows, world_size=world_size, shuffle=shuffle, prefetch=0, **{"seed": 0, **of_loader})
