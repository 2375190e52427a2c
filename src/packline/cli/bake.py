"""`packline bake`: rows in training order as native shards."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from packline.cli.arguments import (
    MAIN,
    RUNNING,
    DocumentArguments,
    Flags,
    PlaceArguments,
    RowArguments,
    option,
)
from packline.cli.export import write_export
from packline.cli.exporting import options_of

_FLAGS, _PLACE, _ROWS, _DOCUMENTS = Flags(), PlaceArguments(), RowArguments(), DocumentArguments()


def bake(
    source: Annotated[str, Parameter(help="Folder of a store, or a run file (.toml).")],
    /,  # `--source` chooses documents
    *,
    out: Annotated[str, Parameter(help="Output folder, or URI: new, empty, or with these rows.")],
    set: Annotated[list[str] | None, option("file_rows=N: rows per file.", MAIN)] = None,
    rows: RowArguments = _ROWS,
    documents: DocumentArguments = _DOCUMENTS,
    workers: Annotated[
        int | None, option("Number of threads or processes. Default: one per usable core.", RUNNING)
    ] = None,
    place: PlaceArguments = _PLACE,
    flags: Flags = _FLAGS,
) -> int:
    """Write rows in training order; see `help_texts`."""
    return write_export(
        "bake",
        [source],
        to="baked",
        out=out,
        options=options_of(set),
        settings={**documents.settings(), **rows.settings()},
        link="auto",
        workers=workers,
        on=place.place(),
    )
