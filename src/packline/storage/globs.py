"""Globs over names with `/`, for places that are listed instead of searched.

The rules are those of `glob.glob(..., recursive=True)`: `*`, `?` and `[...]` do not match a slash, `**` as a
whole part matches any number of folders, and hidden names are left out.
"""

from __future__ import annotations

import re

MAGIC = re.compile("[*?[]")


def fixed_folder(glob: str) -> str:
    """Folder of a glob up to its first part with a wildcard, without a slash at its end.

    >>> fixed_folder("a/b/*.txt"), fixed_folder("*/x"), fixed_folder("a/b*/c")
    ('a/b', '', 'a')
    """
    magic = MAGIC.search(glob)
    end = len(glob) if magic is None else magic.start()
    return glob[: max(glob.rfind("/", 0, end), 0)]


def is_hidden(path: str) -> bool:
    """True if a part of a relative path begins with a dot.

    >>> is_hidden("a/.b/c"), is_hidden("a/b.c")
    (True, False)
    """
    return path.startswith(".") or "/." in path


def glob_pattern(glob: str) -> re.Pattern[str] | None:
    """Pattern of the names that a glob matches; None without a wildcard.

    >>> [bool(glob_pattern("a/**/*.txt").fullmatch(name)) for name in ("a/x.txt", "a/b/c/x.txt", "a/x.md")]
    [True, True, False]
    >>> [bool(glob_pattern("a/[!x]?/*").fullmatch(name)) for name in ("a/bc/d", "a/xc/d", "a/bc/d/e")]
    [True, False, False]
    """
    if not MAGIC.search(glob):
        return None
    parts = glob.split("/")
    found = []
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == "**":
            found.append(".*" if last else "(?:[^/]+/)*")
        else:
            found.append(_part(part) + ("" if last else "/"))
    return re.compile("".join(found), re.DOTALL)


def _part(part: str) -> str:
    """Pattern of one part of a glob."""
    found, at = "", 0
    while at < len(part):
        letter, at = part[at], at + 1
        if letter == "*":
            found += "[^/]*"
        elif letter == "?":
            found += "[^/]"
        elif letter == "[" and (end := part.find("]", at + 1 + (part[at : at + 1] == "!"))) > 0:
            inner = part[at:end].replace("\\", r"\\").replace("[", r"\[").replace("^", r"\^")
            found += f"[^/{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
            at = end + 1
        else:
            found += re.escape(letter)
    return found
