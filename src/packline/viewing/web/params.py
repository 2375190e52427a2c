"""What the address of a page asks for, checked: numbers within bounds, choices of what there is.

Wrong input is an error that says what was expected, and never a guess.
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
    """A whole number; spaces and commas of thousands are left out.

    Args:
        default: where it is not given or empty.
        most: the largest that makes sense; None for none.
        what: what is numbered, for the error.

    Raises:
        RecipeError: not a number, or out of bounds.

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
    """One of several words.

    Raises:
        RecipeError: another one.

    >>> choice({"packing": "pad"}, "packing", ("concat", "pad"), "concat")
    'pad'
    """
    given = params.get(name, "") or default
    if given not in known:
        raise RecipeError(f"{name} is {given[:40]!r}: expected one of {', '.join(known)}")
    return given
