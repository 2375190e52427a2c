"""`packline diff`: what differs between two stores, or two run files."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter

from packline.cli.main import DONE, FAILED
from packline.cli.output import output
from packline.errors import RecipeError
from packline.store.difference import diff as diff_stores
from packline.toml import kind_of
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
        return diff_runs(one, other)
    if runs:
        raise RecipeError(
            f"{runs[0]} is a run file: expected two stores or two run files",
            hint=f"packline info {runs[0]} shows the stores that it reads",
        )
    found = diff_stores(one, other)
    code = DONE if found.equal else FAILED
    output.blocks(*difference_blocks(found))
    output.result({"command": "diff", "exit_code": code, **msgspec.to_builtins(found)})
    return code


def diff_runs(one: str, other: str) -> int:
    from packline.loading.run_summary import compare_runs

    found = compare_runs(one, other)
    code = DONE if found.equal else FAILED
    output.blocks(*run_difference_blocks(found))
    output.result({"command": "diff", "exit_code": code, **msgspec.to_builtins(found)})
    return code
