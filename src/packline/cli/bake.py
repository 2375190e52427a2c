"""`packline bake`: rows in training order as native shards."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Group, Parameter

from packline.cli.arguments import RUNNING, Flags, option
from packline.cli.export import CHOICE, run_export
from packline.cli.exporting import options_of

ROWS = Group("Rows", sort_key=5)
_FLAGS = Flags()


def bake(
    source: Annotated[str, Parameter(help="Folder of a store, or a run file (.toml).")],
    *,
    out: Annotated[str, Parameter(help="Folder of the rows: new, empty, or with these very rows.")],
    seq_len: Annotated[int | None, option("Tokens of a row; a run file says it itself.", ROWS)] = None,
    packing: Annotated[Literal["concat", "best_fit", "pad"] | None, option("Default: concat.", ROWS)] = None,
    batch_size: Annotated[int | None, option("Rows of a global batch; kept with the rows.", ROWS)] = None,
    seed: Annotated[int | None, option("Of the loader's order. Default: rows as packed.", ROWS)] = None,
    epochs: Annotated[int | None, option("How often rows are gone through. Default: once.", ROWS)] = None,
    stage: Annotated[int | None, option("Of a run file: which stage. Default: all.", ROWS)] = None,
    set: Annotated[list[str] | None, option("file_rows=N: rows of a file.", ROWS)] = None,
    split: Annotated[str | None, option("train (default), val or all.", CHOICE)] = None,
    label: Annotated[list[str] | None, option("Only with this label. May be repeated.", CHOICE)] = None,
    only_source: Annotated[
        list[str] | None, option("Only of this source. May be repeated.", CHOICE, name="--source")
    ] = None,
    min_tokens: Annotated[int | None, option("Only documents with so many tokens or more.", CHOICE)] = None,
    max_tokens: Annotated[int | None, option("Only documents with so many or fewer.", CHOICE)] = None,
    shuffle_documents: Annotated[
        int | None, option("Seed of a shuffle of documents. Default: as stored.", CHOICE)
    ] = None,
    workers: Annotated[
        int | None, option("Processes. Default: as many as this process may use.", RUNNING)
    ] = None,
    flags: Flags = _FLAGS,
) -> int:
    """Write rows in training order; see `pages`."""
    settings = {
        "split": split,
        "labels": label,
        "sources": only_source,
        "min_tokens": min_tokens,
        "max_tokens": max_tokens,
        "shuffle_documents": shuffle_documents,
        "seq_len": seq_len,
        "packing": packing,
        "batch_size": batch_size,
        "seed": seed,
        "epochs": epochs,
        "stage": stage,
    }
    return run_export(
        "bake",
        [source],
        to="baked",
        out=out,
        options=options_of(set),
        settings=settings,
        link="auto",
        workers=workers,
    )
