"""Text and addresses of data, made harmless as HTML."""

from __future__ import annotations

from markupsafe import Markup, escape

from packline.viewing.text import visible


def make_visible(value: object) -> object:
    """Make a text visible before it is escaped; `Markup` is left as it is."""
    return visible(value) if type(value) is str else value


def escaped(text: str) -> Markup:
    """Escape a text as HTML that shows it, with control and bidirectional characters made visible.

    >>> str(escaped("<script>\\u202e&"))
    '&lt;script&gt;\\\\u202e&amp;'
    """
    return escape(make_visible(text))


def safe_href(href: str) -> str | None:
    """Return an address within the site or the page, or on the web; None for any other.

    >>> safe_href("/document/7"), safe_href("#tokens"), safe_href("javascript:alert(1)")
    ('/document/7', '#tokens', None)
    """
    inside = href.startswith(("/", "#", "?")) and not href.startswith(("//", "/\\"))
    return href if inside or href.lower().startswith(("https://", "http://")) else None
