"""Wrong command lines: what is missing or unknown, and a command line that works."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import FunctionType
from typing import TYPE_CHECKING

from packline.cli.main import GLOBAL, load_command, page_of
from packline.errors import did_you_mean

if TYPE_CHECKING:
    from cyclopts import App, CycloptsError
    from cyclopts.argument import Argument

NOW = {
    "bake": "packline export --to baked",
    "cp": "packline push, or packline pull",
    "convert": "packline import, then packline export",
    "finalize": "packline build --join",
    "pack": "packline info STORE --seq-len N",
    "plan": "packline build --dry-run",
    "report": "packline info STORE --html FILE",
    "slurm": "packline build --slice i/n, in an array script",
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
VARIABLES = {
    "--scratch": "PACKLINE_SCRATCH=FOLDER",
    "--one-writer": "PACKLINE_ONE_WRITER=1",
    "--address": "RAY_ADDRESS=HOST:6379",
}
"""Options that are environment variables."""
PLACEHOLDERS = {"--out": "FOLDER", "--to": "FORMAT", "--tokenizer": "TOKENIZER", "--from": "FORMAT"}
"""Names of values in messages; else the type, as in help pages."""


def describe(error: CycloptsError, words: Sequence[str]) -> tuple[str, str]:
    """Message and hint for a wrong command line.

    Args:
        error: what the parser found.
        words: command line after `packline`.
    """
    from cyclopts import CoercionError, MissingArgumentError, UnknownOptionError
    from cyclopts.exceptions import (
        RepeatArgumentError,
        UnknownCommandError,
        UnusedCliTokensError,
    )

    chain = list(error.command_chain or ())
    command = " ".join(["packline", *chain])
    if isinstance(error, UnknownCommandError):
        return _unknown_command(error, command)
    if isinstance(error, UnknownOptionError):
        option = (error.token.keyword or error.token.value).partition("=")[0]
        names = [*GLOBAL, *(name for one in error.argument_collection if one.parse for name in one.names)]
        hint = _place_of_setting(option, chain) or _see(_near_option(option, names), command)
        return f"{command} has no option {option}", hint
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        argument = error.argument
        given = error.keyword or next((token.keyword for token in argument.tokens if token.keyword), None)
        if given is not None:
            return f"{given} needs a value: expected {_value_of(argument)}", _see("", command)
        return f"{command} needs {_name_of(argument)}", sample_line(chain)
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        more = " ".join(error.unused_tokens)
        return f"{command} has no use for {more!r}", sample_line(chain)
    if isinstance(error, RepeatArgumentError):
        return f"{error.token.keyword} is given twice", _see("", command)
    if isinstance(error, CoercionError) and error.token is not None:
        return _wrong_value(error, command)
    return str(error).strip(), _see("", command)


def _place_of_setting(option: str, chain: Sequence[str]) -> str:
    """Place of a setting that is no option: a variable, a recipe or a run file; empty if there is none."""
    from packline.packing.options import RowOptions
    from packline.recipe import Recipe, Source

    name = option.removeprefix("--").replace("-", "_")
    if option in VARIABLES:
        return f"it is an environment variable: {VARIABLES[option]}"
    if chain == ["build"] and name in {*Recipe.__struct_fields__, *Source.__struct_fields__}:
        return f"write {name} = ... in a recipe: packline init drafts one"
    of_runs = {*RowOptions.__struct_fields__, "order", "block_rows", "window_blocks"}
    if chain and chain[0] in ("export", "info", "trace", "view") and name in of_runs:
        return f"write {name} = ... in a run file: packline init --run STORE drafts one"
    return ""


def _near_option(word: str, names: Sequence[str]) -> str:
    """Suggestion of an option; dashes do not count as similar."""
    known = [name.removeprefix("--") for name in names if name.startswith("--")]
    near = did_you_mean(word.lstrip("-"), known)
    return near.replace("'", "'--", 1) if near else ""


def _unknown_command(error: CycloptsError, command: str) -> tuple[str, str]:
    app: App | None = error.app
    words = error.unused_tokens or []
    word = words[0] if words else ""
    known = [name for name in app or () if not name.startswith("-")]
    if word.startswith("-"):
        options = [name for name in app or () if name.startswith("--")]
        return f"{command} has no option {word}", _see(_near_option(word, options), command)
    if command == "packline" and word in NOW:
        return f"packline has no command {word!r}", f"{NOW[word]} does it"
    return f"{command} has no command {word!r}", _see(did_you_mean(word, known), command)


def _wrong_value(error: CycloptsError, command: str) -> tuple[str, str]:
    """A value of the wrong type. Converters of numbers raise a message and a hint, on two lines."""
    token = error.token  # type: ignore[attr-defined]
    name = token.keyword or (error.argument.name if error.argument else "")
    if "\n" in (own := str(error.msg or error.__context__ or "")):
        message, _, hint = own.partition("\n")
        return f"{name}: {message}", hint
    choices = re.search(r"Choose from: (.*?)\.?(?: Did you mean|$)", str(error).strip())
    if error.argument is not None and error.argument.hint in (bool, bool | None):
        return f"{name} takes no value, and {token.value!r} is given", _see("", command)
    if choices is None:
        return f"{name} is {token.value!r}: expected {_value_of(error.argument)}", _see("", command)
    known = [one.strip('" ') for one in choices[1].replace(" or ", ",").split(",") if one.strip()]
    expected = f"{name} is {token.value!r}: expected {', '.join(known)}"
    return expected, _see(did_you_mean(token.value, known), command)


def _name_of(argument: Argument) -> str:
    """`STORE`, or `--out FOLDER`."""
    name = str(argument.name)
    return f"{name} {_value_of(argument)}" if name.startswith("-") else name


def _value_of(argument: Argument | None) -> str:
    if argument is None:
        return "another value"
    name = str(argument.name)
    is_number = re.search(r"\b(int|float)\b", str(argument.hint)) is not None
    return PLACEHOLDERS.get(name) or ("NUMBER" if is_number else "VALUE")


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


def _see(suggestion: str, command: str) -> str:
    return f"{suggestion}{command} --help shows what there is"
