"""Checked parameters of the address of a page: numbers within bounds, choices from a list.

Wrong input raises an error that states what was expected; it is never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from packline.errors import RecipeError

NUMBER = re.compile(r"-?[0-9]{1,18}")


def number(
    params: Mapping[str, str],
    name: str,
    default: int,
    *,
    least: int = 0,
    most: int | None = None,
    what: str = "",
) -> int:
    """Parse a whole number; spaces and thousands separators are ignored.

    Args:
        default: value if the parameter is missing or empty.
        most: largest valid number; None: unlimited.
        what: noun for the numbered item, for the error.

    Raises:
        RecipeError: the value is not a number, or out of bounds.

    >>> number({"row": "12,345"}, "row", 0), number({}, "row", 7)
    (12345, 7)
    """
    given = re.sub(r"[\s,_]", "", params.get(name, ""))
    if not given:
        return default
    title = what or name.replace("_", " ")
    expected = f"{least:,} or more" if most is None else f"{least:,} to {most:,}"
    if not NUMBER.fullmatch(given):
        raise RecipeError(f"{title} is {params[name][:40]!r}: expected a whole number, {expected}")
    found = int(given)
    if found < least or (most is not None and found > most):
        raise RecipeError(f"{title} is {found:,}: expected {expected}")
    return found


def choice(params: Mapping[str, str], name: str, known: Sequence[str], default: str) -> str:
    """Parse one of several words.

    Raises:
        RecipeError: the word is not one of them.

    >>> choice({"packing": "pad"}, "packing", ("concat", "pad"), "concat")
    'pad'
    """
    given = params.get(name, "") or default
    if given not in known:
        raise RecipeError(f"{name} is {given[:40]!r}: expected one of {', '.join(known)}")
    return given
