"""Text of others in Markdown: escaped in one place, so that a name can neither format nor break a card."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from packline.viewing.text import visible


class Markdown(str):
    """Text that is Markdown already, and is not escaped again."""


def code(text: str) -> Markdown:
    """Text as code, whatever characters it has.

    >>> code("<|eot|>"), code("a b")
    ('<code>&#60;&#124;eot&#124;&#62;</code>', '<code>a b</code>')
    """
    return Markdown(f"<code>{escape_markdown(text)}</code>")


def fenced(text: str, language: str = "") -> str:
    """Text as a block of code, between fences that it does not contain.

    >>> fenced("a = 1", "toml")
    '```toml\\na = 1\\n```'
    """
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def escape_markdown(text: str) -> str:
    """Text on one line, without anything that Markdown, HTML or a table could read as its own.

    >>> escape_markdown("a_b | [c](d)")
    'a&#95;b &#124; &#91;c&#93;(d)'
    """
    plain = visible(" ".join(text.split()))
    return re.sub(r"[^\w .,:/()%+=-]|_", lambda match: f"&#{ord(match[0])};", plain)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """A table; cells are escaped, except those that are `Markdown`.

    Args:
        align: `l` or `r` for each column; left by default.

    >>> print(markdown_table(("a", "b"), [("x", "1")], "lr"))
    | a | b |
    |:---|---:|
    | x | 1 |
    """
    align = align or "l" * len(heads)
    lines = [
        f"| {' | '.join(heads)} |",
        "|" + "|".join("---:" if each == "r" else ":---" for each in align) + "|",
    ]
    for row in rows:
        cells = [cell if isinstance(cell, Markdown) else escape_markdown(cell) for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
