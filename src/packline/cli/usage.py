"""Wrong command lines: what is missing or unknown, and a command line that works."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import FunctionType
from typing import TYPE_CHECKING

from packline.cli.main import load_command, page_of

if TYPE_CHECKING:
    from cyclopts import CycloptsError

NOW = {
    "dedup": "packline analyze, and --unique where rows are made",
    "decontaminate": "packline verify --against",
    "inspect": "packline view",
    "preprocess": "packline build",
    "tokenize": "packline build",
    "prepare": "packline build",
    "stats": "packline analyze",
    "ls": "packline info",
}
"""Commands that people look for, and what does it."""


def describe(error: CycloptsError, words: Sequence[str]) -> tuple[str, str]:
    """Message and hint for a wrong command line."""
    from cyclopts import CoercionError, MissingArgumentError, UnknownOptionError
    from cyclopts.exceptions import UnknownCommandError, UnusedCliTokensError

    chain = list(error.command_chain or ())
    message, hint = " ".join(str(error).split()), ""
    if isinstance(error, UnknownCommandError) and not chain and words[0] in NOW:
        message, hint = f"packline has no command {words[0]!r}", f"{NOW[words[0]]} does it"
    elif isinstance(error, UnknownOptionError):
        hint = _place_of_setting((error.token.keyword or error.token.value).partition("=")[0], chain)
    elif isinstance(error, MissingArgumentError | UnusedCliTokensError):
        hint = sample_line(chain)
    elif isinstance(error, CoercionError) and (own := str(error.__context__ or "").partition("\n"))[2]:
        message, hint = f"{error.token.keyword if error.token else ''}: {own[0]}", own[2]  # of a converter
    return message, hint or f"{' '.join(['packline', *chain])} --help shows what there is"


def _place_of_setting(option: str, chain: Sequence[str]) -> str:
    """Place of a setting that is no option: a recipe or a run file; empty if there is none."""
    from packline.packing.options import RowOptions
    from packline.recipe import Recipe, Source

    name = option.removeprefix("--").replace("-", "_")
    if chain == ["build"] and name in {*Recipe.__struct_fields__, *Source.__struct_fields__}:
        return f"write {name} = ... in a recipe: packline init drafts one"
    of_runs = {*RowOptions.__struct_fields__, "order", "block_rows", "window_blocks"}
    if chain and chain[0] in ("export", "info", "trace", "view") and name in of_runs:
        return f"write {name} = ... in a run file: packline init --run STORE drafts one"
    return ""


def sample_line(chain: Sequence[str]) -> str:
    """First example of the command's help page."""
    if not chain:
        return "packline --help"
    command = load_command(chain[0])
    page = (
        page_of(command)["help_epilogue"] if isinstance(command, FunctionType) else str(command.help_epilogue)
    )
    lines = page.replace(" \\\n     ", "")
    line = re.search(rf"^ +(packline {' '.join(chain)} .*)$", lines, re.MULTILINE)
    return f"for example: {line[1]}" if line else f"{' '.join(['packline', *chain])} --help"
