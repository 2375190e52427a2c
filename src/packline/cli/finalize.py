"""`packline finalize`: publish a store whose units are all committed."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from packline.cli.arguments import Flags
from packline.cli.main import DONE
from packline.cli.output import Line, output, table
from packline.viewing.text import plural

_FLAGS = Flags()


def finalize(
    store: Annotated[str, Parameter(help="The --out of a build, an import or sft.")],
    *,
    flags: Flags = _FLAGS,
) -> int:
    """Publish a store whose units are all committed; see `help_texts`."""
    from packline.jobs.finish import finalize_store

    manifest = finalize_store(store)
    counts = f"{plural(manifest.documents, 'document')}, {plural(manifest.tokens, 'token')}"
    rows: list[Line] = [
        [("store", "quiet"), (store, "title")],
        [("holds", "quiet"), f"{counts} in {plural(manifest.unit_count, 'unit')}"],
        [("check it", "quiet"), f"packline verify {store}"],
    ]
    output.lines(table(rows, "ll", width=output.wrap))
    output.result(
        {
            "command": "finalize",
            "store": store,
            "exit_code": DONE,
            "documents": manifest.documents,
            "tokens": manifest.tokens,
            "units": manifest.unit_count,
        }
    )
    return DONE
