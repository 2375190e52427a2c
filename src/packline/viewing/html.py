"""A page as HTML: a fragment for notebooks, a file that opens offline, or a page of the web viewer.

`static/page.html` is the template of every block. jinja2 and markupsafe escape all that it inserts, after
`text.visible` has made control and bidirectional characters visible, so no text from data can act as markup.
A content security policy in the file forbids loading or running anything; its style is allowed by hash. Every
rule of the style is scoped to `.packline`, so it changes nothing else in a notebook. Horizontal lengths of
charts are shares of the width, without a script and without inline styles, which the policy would refuse.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from packline.errors import OutOfSpace, StoreError
from packline.storage.local import publish_bytes
from packline.storage.places import refuse_remote
from packline.version import __version__
from packline.viewing.page import Bar, Block, Cell, Heading, Link, Page
from packline.viewing.text import JOINERS, plural, visible
from packline.viewing.tokens import Kind, visible_pieces

CONTENTS_FROM = 4
"""Minimum number of sections for a list of contents."""
LONGEST_TEXT = 8000
"""Maximum characters of a text area, limited by the length of an address."""
LEAST_BAR = 0.4
"""Shortest bar of a value above zero, in percent of the width, so that it remains visible."""
SHORT = 48
"""Maximum tokens of a document that shares a line with its neighbors."""
JOINED_MOST = 3
"""Most places of marks of their own below a letter."""
TICKS_MOST = 6
MOODS = {"good": "Good", "warning": "Warning", "bad": "Problem"}
PLACE_HINT = "name a file in an existing folder that is writable"


class Assets(NamedTuple):
    """Addresses of the style and script of a page of the viewer."""

    style: str
    script: str


class _Section(NamedTuple):
    """Blocks below a heading, or before the first."""

    title: str
    name: str
    blocks: list[Block]


def read_static(name: str) -> str:
    return resources.files("packline.viewing").joinpath("static", name).read_text("utf-8")


@cache
def style() -> str:
    return read_static("style.css") + read_static("charts.css")


def render_fragment(page: Page, *, interactive: bool = False) -> Markup:
    """Render a page as a fragment: title, warnings, blocks in sections."""
    return macro("fragment")(page, _sections(page.blocks), interactive)


def render_notebook(page: Page) -> Markup:
    box = Markup('<style>{}</style><div class="packline notebook" lang="en">{}</div>')
    return box.format(Markup(style()), render_fragment(page))


def render_file(
    page: Page,
    *,
    assets: Assets | None = None,
    header: Markup | str = "",
    title: str = "",
) -> str:
    """Render a whole HTML document."""
    digest = base64.b64encode(hashlib.sha256(style().encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; "
    return str(
        macro("whole")(
            page,
            _sections(page.blocks),
            title or page.title,
            header,
            assets,
            policy + "form-action 'none'",
            Markup(style()),
        )
    )


def check_place(out: str | Path) -> Path:
    """Check a path for a file before the work begins."""
    refuse_remote(out, "a page")
    path = Path(out)
    if path.is_dir() or not path.parent.is_dir():
        found = "a folder" if path.is_dir() else f"no folder {path.parent}"
        raise StoreError(f"cannot write {path}: expected a place for a file, found {found}", hint=PLACE_HINT)
    return path


def write_page(page: Page, path: Path) -> None:
    """Write a page as one file that opens offline; an existing file stays until the new one is complete.

    A pipe or a device is written to and never replaced by a file. Does not create folders.
    """
    data = render_file(page).encode("utf-8")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            publish_bytes(path.resolve(), data)  # replaces the target of a symbolic link, not the link
    except OutOfSpace:
        raise
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}", hint=PLACE_HINT) from error


def _sections(blocks: Sequence[Block]) -> list[_Section]:
    sections = [_Section("", "", [])]
    names = ["main", "warnings"]
    for block in blocks:
        if isinstance(block, Heading):
            name = re.sub(r"[^a-z0-9]+", "-", block.text.lower()).strip("-")[:40] or "section"
            names.append(name if name not in names else f"{name}-{len(names)}")
            sections.append(_Section(block.text, names[-1], []))
        else:
            sections[-1].blocks.append(block)
    return sections


def macro(name: str) -> Any:
    return getattr(_template(), name)


@cache
def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        finalize=make_visible,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(read_static),
    )
    environment.globals.update(
        version=__version__,
        moods=MOODS,
        longest_text=LONGEST_TEXT,
        contents_from=CONTENTS_FROM,
        short=SHORT,
        most_ticks=TICKS_MOST,
        plural=plural,
        legend=legend,
        drawn_cells=drawn_cells,
    )
    environment.tests.update(
        link=lambda value: isinstance(value, Link),
        bar=lambda value: isinstance(value, Bar),
        with_bars=lambda table: any(isinstance(value, Bar) for row in table.rows for value in row),
    )
    environment.filters.update(
        kind=lambda block: type(block).__name__,
        safe_href=safe_href,
        bar_width=bar_width,
        pct=lambda value: f"{value:.3f}".rstrip("0").rstrip(".") + "%",
        laid_out=lambda shares: list(itertools.accumulate(shares, initial=0.0)),
        as_typed=_as_typed,
    )
    return environment.get_template("page.html").module


def _as_typed(text: str) -> Markup:
    """Escape a text to be edited: line ends and tabs are kept, all else is escaped as usual."""
    lines = text.replace("\r\n", "\n").split("\n")
    return Markup("\n").join(Markup("\t").join(map(escape, map(visible, line.split("\t")))) for line in lines)


def make_visible(value: object) -> object:
    """Make a text visible before it is escaped; `Markup` is left as it is."""
    return visible(value) if type(value) is str else value


def safe_href(href: str) -> str | None:
    """Return an address within the site or the page, or on the web; None for any other."""
    inside = href.startswith(("/", "#", "?")) and not href.startswith(("//", "/\\"))
    return href if inside or href.lower().startswith(("https://", "http://")) else None


def legend(cells: Sequence[Cell], segments: str) -> list[list[str]]:
    """Classes, a sample and the meaning of each mark that is there."""
    text = [cell for cell in cells if not cell.padding]
    marks = (
        (any(cell.special for cell in cells), "t x", "special", "a control token"),
        (any(cell.loss is False for cell in text), "t n", "no loss", "never a target"),
        (
            any(len(cell.ids) > 1 for cell in text),
            "t m3",
            "字",
            "a character of several tokens, a tick for each",
        ),
        (re.search(r'class="t [^"]*\bz[1-3]', segments), "key z", "", "a token of a mark on a letter"),
        (any(cell.mark for cell in cells), "t h", "found", "what was searched for, or gone to"),
        ('<i class="e">' in segments, "t e", "\\x9f", "an invalid byte or an invisible character"),
    )
    return [mark for there, *mark in marks if there]


def drawn_cells(cells: Sequence[Cell]) -> Iterator[tuple[Cell, str, list[tuple[str, Kind]], int]]:
    """Cells with their ids, their pieces, and for a mark on the letter before it its place there, from 1.

    Combining marks are counted over several cells, since the browser puts them on one letter.
    """
    marks, place = -1, 0
    for cell in cells:
        pieces = visible_pieces(cell, marks)
        joined = marks >= 0 and len(pieces) == 1 and pieces[0][1] == "text"
        joined = joined and all(unicodedata.category(one)[0] == "M" for one in pieces[0][0])
        place = min(place + 1, JOINED_MOST) if joined else 0
        yield cell, " ".join(map(str, cell.ids)), pieces, place
        marks = _marks_after(cell, pieces, marks)


def _marks_after(cell: Cell, pieces: list[tuple[str, Kind]], before: int) -> int:
    """Combining marks on the letter that a cell ends with; -1 if a mark could not follow."""
    text, kind = pieces[-1] if pieces else ("", "escape")
    if kind != "text" or cell.special or text[-1:].isspace():
        return -1
    if text.isascii():
        return 0
    marks = 0
    for character in reversed(text):
        if unicodedata.category(character)[0] == "M":
            marks += 1
        elif character not in JOINERS:
            return marks
    return marks + max(before, 0) if len(pieces) == 1 else marks


def bar_width(bar: Bar) -> float:
    """Percent of the width that a bar takes; at least `LEAST_BAR` above zero."""
    return max(min(100 * bar.share, 100.0), LEAST_BAR) if bar.share > 0 else 0.0
