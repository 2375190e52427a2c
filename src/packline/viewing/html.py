"""A page as HTML: a fragment for notebooks, a file that opens offline, or a page of the web viewer.

    Page ── html(page) ──> fragment ──┬── notebook(page)   with its style, for `_repr_html_`
                                      ├── document(page)   one file: style included, no script, no requests
                                      └── document(page, assets=...)   style and script from the viewer

Text from data is escaped by `markup.element`, and only there. A content security policy in the file forbids
loading or running anything; its style is allowed by hash. Charts are rendered by `charts`, tokens by
`html_strip`. Every rule of the style is scoped to `.packline`, so it changes nothing else in a notebook.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from packline.viewing import charts
from packline.viewing.html_controls import form, links
from packline.viewing.html_strip import strip_figure
from packline.viewing.markup import Markup, element, escaped, joined, safe_href
from packline.viewing.page import (
    Bars,
    Beside,
    Block,
    Comparison,
    Facts,
    Flow,
    Form,
    Heading,
    Histogram,
    Link,
    Links,
    Note,
    Page,
    Strip,
    Table,
    Value,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTENTS_FROM = 4
"""Minimum number of sections for a list of contents."""
MOODS = {"plain": "", "good": "Good: ", "warning": "Warning: ", "bad": "Problem: "}


@dataclass(frozen=True, slots=True)
class Assets:
    """Addresses of the style and script of a page of the viewer."""

    style: str
    script: str


@cache
def style() -> str:
    """Style sheet of the package."""
    folder = resources.files("packline.viewing").joinpath("static")
    return "".join(folder.joinpath(name).read_text("utf-8") for name in ("style.css", "charts.css"))


def html(page: Page, *, interactive: bool = False) -> Markup:
    """Render a page as a fragment: title, warnings, blocks in sections.

    Args:
        interactive: True to attach the facts of tokens for a script; see `html_strip.strip_figure`.

    >>> html(Page("Store", (Note("two & two"),)))
    '<h1>Store</h1><p class="note">two &amp; two</p>'
    """
    return joined(
        element("h1", page.title),
        element("p", page.summary, class_="summary") if page.summary else "",
        _warnings(page.warnings),
        _sections(page.blocks, interactive),
    )


def notebook(page: Page) -> Markup:
    """Render a page for a notebook: with its style, in a separate box."""
    return joined(
        element("style", Markup(style())), element("div", html(page), class_="packline notebook", lang="en")
    )


def document(
    page: Page,
    *,
    assets: Assets | None = None,
    header: Markup | str = "",
    title: str = "",
    interactive: bool | None = None,
) -> str:
    """Render a whole HTML document.

    Args:
        assets: addresses of style and script; None: include the style, without a script.
        header: content above the page, such as the viewer's navigation.
        title: title of the window; default: the page's.
        interactive: see `html`; default: True if there is a script.

    >>> text = document(Page("Store", (Note("hello"),)))
    >>> text.startswith("<!doctype html>"), "<script" in text
    (True, False)
    """
    if assets is None:
        policy = f"default-src 'none'; style-src '{_hash(style())}'; img-src data:; base-uri 'none'; "
        head = joined(
            element("meta", http_equiv="Content-Security-Policy", content=policy + "form-action 'none'"),
            element("style", Markup(style())),
        )
    else:
        head = joined(
            element("link", rel="stylesheet", href=assets.style),
            element("script", src=assets.script, defer=True),
        )
    if interactive is None:
        interactive = assets is not None
    body = joined(
        element("a", "Skip to the content", href="#main", class_="skip"),
        element("header", header, class_="top") if header else "",
        _contents(page) if assets is None else "",
        element("main", html(page, interactive=interactive), id="main", tabindex=-1),
    )
    whole = element(
        "html",
        element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("meta", name="referrer", content="no-referrer"),
            element("title", title or page.title),
            head,
        ),
        element("body", body, class_="packline"),
        lang="en",
    )
    return f"<!doctype html>\n{whole}\n"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _warnings(warnings: Sequence[str]) -> Markup:
    if not warnings:
        return Markup()
    items = [element("li", text) for text in warnings]
    title = element("h2", "Warning" if len(items) == 1 else "Warnings", id="warnings")
    return element("section", title, element("ul", items), class_="warnings", aria_labelledby="warnings")


def _sections(blocks: Sequence[Block], interactive: bool) -> Markup:
    """Render blocks; each heading of level 2 begins a section."""
    names = iter(_names(blocks))
    sections: list[Markup] = []
    current: list[Markup] = []
    name = ""
    for block in [*blocks, None]:
        if block is None or (isinstance(block, Heading) and block.level == 2):
            sections.append(element("section", current, aria_labelledby=name) if name else joined(current))
            current, name = [], ""
        if isinstance(block, Heading):
            found = next(names)
            name = found if block.level == 2 else name
            current.append(_heading(block, found))
        elif block is not None:
            current.append(_block(block, interactive))
    return joined(sections)


def _names(blocks: Sequence[Block]) -> list[str]:
    """Anchor of each heading."""
    names: list[str] = []
    for block in blocks:
        if isinstance(block, Heading):
            name = re.sub(r"[^a-z0-9]+", "-", block.text.lower()).strip("-")[:40] or "section"
            names.append(name if name not in (*names, "main", "warnings") else f"{name}-{len(names)}")
    return names


def _contents(page: Page) -> Markup:
    headings = [block for block in page.blocks if isinstance(block, Heading)]
    links = [
        element("li", element("a", heading.text, href=f"#{name}"))
        for heading, name in zip(headings, _names(page.blocks), strict=True)
        if heading.level == 2
    ]
    if len(links) < CONTENTS_FROM:
        return Markup()
    return element("nav", element("ul", links), class_="contents", aria_label="Contents")


def _block(block: Block, interactive: bool) -> Markup:
    if isinstance(block, Strip):
        return strip_figure(block, interactive=interactive)
    if isinstance(block, Beside):
        parts = [element("div", [_block(one, interactive) for one in part]) for part in block.parts]
        return element("div", parts, class_="beside")
    return _DRAWN[type(block)](block)


def _heading(block: Heading, name: str | None = None) -> Markup:
    return element("h2" if block.level == 2 else "h3", block.text, id=name)


def _note(block: Note) -> Markup:
    if block.mood == "plain":
        return element("p", block.text, class_="note")
    return element("p", element("strong", MOODS[block.mood]), block.text, class_=f"note {block.mood}")


def _facts(block: Facts) -> Markup:
    pairs = [element("div", element("dt", name), element("dd", _value(value))) for name, value in block.rows]
    return element("dl", pairs, class_="facts")


def data_table(block: Table) -> Markup:
    """Table that scrolls separately if it is wider than the window.

    >>> "<th scope=\\"row\\">web</th>" in data_table(Table("By source", ("source",), (("web",),), "l"))
    True
    """
    number = {place for place, side in enumerate(block.align) if side == "r"}
    head = [
        element("th", text, scope="col", class_="r" if place in number else None)
        for place, text in enumerate(block.head)
    ]
    rows = [
        element(
            "tr",
            [
                element(
                    "td" if place else "th",
                    _value(value),
                    scope=None if place else "row",
                    class_="r" if place in number else None,
                )
                for place, value in enumerate(row)
            ],
        )
        for row in block.rows
    ]
    table = element(
        "table",
        element("caption", block.caption) if block.caption else "",
        element("thead", element("tr", head)),
        element("tbody", rows),
    )
    label = block.caption or "Table"
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=label)


def _value(value: Value) -> Markup:
    if isinstance(value, Link):
        href = safe_href(value.href)
        return element("a", value.text, href=href) if href else escaped(value.text)
    return escaped(value)


_DRAWN: dict[type, Callable[[Any], Markup]] = {
    Heading: _heading,
    Note: _note,
    Facts: _facts,
    Table: data_table,
    Bars: charts.bars,
    Comparison: charts.comparison,
    Histogram: charts.histogram,
    Flow: charts.flow,
    Links: links,
    Form: form,
}
