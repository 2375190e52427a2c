"""HTML from data: the one place where text becomes markup, so that text can never act as markup.

`element` escapes every text and attribute value, except content that is already `Markup`. Code that builds
HTML with it cannot forget to escape.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from functools import cache

from packline.viewing.text import visible

VOID = frozenset({"br", "col", "hr", "input", "link", "meta", "wbr"})


class Markup(str):
    """HTML made by this module, which needs no escaping.

    >>> element("p", "1 < 2", element("b", "!"))
    '<p>1 &lt; 2<b>!</b></p>'
    """

    __slots__ = ()


Content = str | Markup | Iterable["str | Markup"]


def escaped(text: str) -> Markup:
    """Escape a text as HTML that shows it, with control and bidirectional characters made visible.

    >>> escaped("<script>\\u202e&")
    '&lt;script&gt;\\\\u202e&amp;'
    """
    if isinstance(text, Markup):
        return text
    if text.isascii() and text.isalnum():  # most tokens, and nothing to escape
        return Markup(text)
    return Markup(html.escape(visible(text)))


def joined(*contents: Content) -> Markup:
    """Concatenate contents, escaping those that are not `Markup`.

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
    """Make an element of HTML or SVG.

    Args:
        tag: name of the element; a constant, never data.
        *contents: texts and `Markup`.
        **attributes: `class_` is `class`, `aria_label` is `aria-label`; True gives an attribute without a
            value, None and False omit it.

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
    """Return an address within the site or the page, or on the web; None for any other.

    >>> safe_href("/document/7"), safe_href("#tokens"), safe_href("javascript:alert(1)")
    ('/document/7', '#tokens', None)
    """
    lower = href.lower()
    inside = href.startswith(("/", "#", "?")) and not href.startswith(("//", "/\\"))
    return href if inside or lower.startswith(("https://", "http://")) else None
