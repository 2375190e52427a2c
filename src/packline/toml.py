"""TOML files that people write: reading, unknown settings, and numbers such as "4k"."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from packline.errors import RecipeError, unknown_name
from packline.quantities import read_quantities


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Read a TOML file.

    Args:
        path: path of the file.
        what: kind of file, for error messages.

    Raises:
        RecipeError: the file cannot be read, or is not TOML; with the line.

    >>> read_toml(Path("missing.toml"), "recipe")
    Traceback (most recent call last):
    packline.errors.RecipeError: cannot read the recipe missing.toml: No such file or directory
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"cannot read the {what} {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not TOML: {error}") from error


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

    Raises:
        RecipeError: an unknown setting, with the most similar known one; a text that is no number.
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
