"""TOML files that people write: reading, unknown settings, and numbers such as "4k"."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from packline.errors import RecipeError, unknown_name
from packline.quantities import read_quantities

Kind = Literal["recipe", "run file"]


def is_toml(path: str | Path) -> bool:
    """True if the name of a path is that of a recipe or run file."""
    return str(path).endswith(".toml")


def kind_of(path: str | Path) -> Kind | None:
    """Kind of a local TOML file, by its tables; None for anything else."""
    if not (is_toml(path) and Path(path).is_file()):
        return None
    return _kind(read_toml(Path(path), "recipe or run file"))


def refuse_toml(path: str | Path, expected: str) -> None:
    """Refuse a recipe or a run file where something else is expected."""
    if kind := kind_of(path):
        raise RecipeError(f"{path} is a {kind}: expected {expected}", hint=kind_hint(path, kind))


def _kind(table: dict[str, Any]) -> Kind | None:
    if "stages" in table or "loader" in table:
        return "run file"
    return "recipe" if "sources" in table or "tokenizer" in table else None


def kind_hint(path: str | Path, kind: Kind) -> str:
    """Hint to what a file of this kind is for."""
    if kind == "recipe":
        return f"packline build {path} --out store makes the store of a recipe"
    return "trace, view, serve, export, info and diff read a run file; its [[stages.sources]] name stores"


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Read a TOML file."""
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except OSError as error:
        raise RecipeError(f"cannot read the {what} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not TOML: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path} is not TOML: {error}", hint=_hint_of_line(text, str(error))) from error
    kind = _kind(table)
    if kind is not None and what in get_args(Kind) and kind != what:
        raise RecipeError(f"{path} is a {kind}: expected a {what}", hint=kind_hint(path, kind))
    return table


def _hint_of_line(text: str, error: str) -> str:
    """Hint for the line that an error names: how to write it or, where that is not known, the line."""
    number = re.search(r"at line (\d+)", error)
    line = text.splitlines()[int(number[1]) - 1].strip() if number else ""
    bare = re.fullmatch(r"([\w.-]+)\s*=\s*([A-Za-z][\w./-]*)\s*(?:#.*)?", line)
    if bare and bare[2] not in ("true", "false"):
        return f'text has quotes: {bare[1]} = "{bare[2]}"'
    return f"the line is: {line}" if line else ""


def read_table(
    table: Any,
    kind: type[msgspec.Struct],
    where: str,
    *,
    more: Sequence[str] = (),
    elsewhere: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """Settings of a table: unknown ones are refused, and texts such as "4k" become numbers.

    Args:
        table: the table; anything else is returned unchanged, for conversion to refuse.
        kind: Struct with the settings.
        where: file and table, for messages.
        more: further known settings.
        elsewhere: settings that belong to other tables, by what to say of them.
    """
    if not isinstance(table, dict):
        return table
    known = (*kind.__struct_fields__, *more)
    for word in table:
        if word not in known:
            for place, words in (elsewhere or {}).items():
                if word in words:
                    raise RecipeError(f"{where}: {word!r} {place}")
            raise unknown_name(f"{where} has no setting {word!r}", word, known)
    return read_quantities(table, kind, where)
