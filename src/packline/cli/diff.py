"""`packline diff`: what differs between two stores, or two run files."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from packline.cli.main import DONE, FAILED
from packline.cli.output import output
from packline.conversion import kind_of
from packline.errors import RecipeError
from packline.store.difference import diff as diff_stores
from packline.viewing.summaries import difference_blocks, run_difference_blocks


def diff(
    one: Annotated[str, Parameter(help="Folder of a finished store, or a run file.")],
    other: Annotated[str, Parameter(help="Store or run file to compare with it.")],
    /,
) -> int:
    """Show what differs between two stores, or between two run files.

    Settings, tokenizer, inputs, tokens by source and split, and the documents that
    were added, removed or changed: matched by source, file and position, compared
    by the hash of their text. Of run files: the settings that differ.

    Examples:

      packline diff monday friday
      packline diff run.toml changed.toml

    Exit codes: 0 equal, 1 different, partly compared or an error, 2 wrong usage.
    """
    runs = [path for path in (one, other) if kind_of(path) == "run file"]
    if len(runs) == 2:
        from packline.loading.run_summary import compare_runs

        changes = compare_runs(one, other)
        output.blocks(*run_difference_blocks(changes))
        return output.result("diff", changes, code=DONE if changes.equal else FAILED)
    if runs:
        raise RecipeError(
            f"{runs[0]} is a run file: expected two stores or two run files",
            hint=f"packline info {runs[0]} shows the stores that it reads",
        )
    found = diff_stores(one, other)
    output.blocks(*difference_blocks(found))
    return output.result("diff", found, code=DONE if found.equal else FAILED)
