"""HTML from data: the one place where text becomes markup, so that no text can be anything but text.

`element` escapes every text and every attribute that it is given, and joins only what is `Markup` already.
Whoever writes HTML with it cannot forget to escape.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from functools import cache

from packline.viewing.text import visible

VOID = frozenset({"br", "col", "hr", "input", "link", "meta", "wbr"})


class Markup(str):
    """HTML that was made here, and needs no escaping.

    >>> element("p", "1 < 2", element("b", "!"))
    '<p>1 &lt; 2<b>!</b></p>'
    """

    __slots__ = ()


Content = str | Markup | Iterable["str | Markup"]


def escaped(text: str) -> Markup:
    """Any text as HTML that shows it: markup, control characters and changes of direction as characters.

    >>> escaped("<script>\\u202e&")
    '&lt;script&gt;\\\\u202e&amp;'
    """
    if isinstance(text, Markup):
        return text
    if text.isascii() and text.isalnum():  # most tokens, and nothing in them acts
        return Markup(text)
    return Markup(html.escape(visible(text)))


def joined(*contents: Content) -> Markup:
    """Contents one after another, escaped where they are not `Markup`.

    >>> joined("a<", Markup("<br>"), ["b", "c"])
    'a&lt;<br>bc'
    """
    parts: list[str] = []
    for content in contents:
        if isinstance(content, str):
            parts.append(escaped(content))
        else:
            parts += map(escaped, content)
    return Markup("".join(parts))


def element(tag: str, /, *contents: Content, **attributes: str | int | float | bool | None) -> Markup:
    """An element of HTML or SVG.

    Args:
        tag: its name, written by a programmer.
        *contents: texts, and `Markup`.
        **attributes: `class_` is `class`, `aria_label` is `aria-label`; True is an attribute without value,
            None and False are none.

    >>> element("a", "next", href="/?q=a&b", class_="link", hidden=None)
    '<a href="/?q=a&amp;b" class="link">next</a>'
    """
    start = "".join([tag, *(_attribute(key, value) for key, value in attributes.items())])
    if tag in VOID:
        return Markup(f"<{start}>")
    return Markup(f"<{start}>{joined(*contents)}</{tag}>")


def _attribute(key: str, value: str | int | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = _attribute_name(key)
    if value is True:
        return f" {name}"
    return f' {name}="{value if type(value) is int else escaped(str(value))}"'


@cache
def _attribute_name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def safe_href(href: str) -> str | None:
    """A link within the site or the page, or to the web; anything that could act is none.

    >>> safe_href("/document/7"), safe_href("#tokens"), safe_href("javascript:alert(1)")
    ('/document/7', '#tokens', None)
    """
    lower = href.lower()
    inside = href.startswith(("/", "#", "?")) and not href.startswith(("//", "/\\"))
    return href if inside or lower.startswith(("https://", "http://")) else None
