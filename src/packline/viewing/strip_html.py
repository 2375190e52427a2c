"""Strips of tokens as HTML: one block per document, one span per token.

    cells ──group by document──> block: heading, <p class="tokens"> ── <span class="t"> per cell

No information depends on color alone. Neighboring tokens have grounds of different lightness (`style.css`),
special tokens have a frame, tokens without loss a gray ground and a line where they begin and end,
escapes are slanted, a character of several tokens has a tick for each of them, and padding is a hatched block
with its count. The ground of a token depends on its position among its siblings, so it needs no class.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Sequence

from markupsafe import Markup

from packline.viewing.escaping import escaped, safe_href
from packline.viewing.page import Cell, DocumentOrigin, TokenStrip
from packline.viewing.text import JOINERS, plural
from packline.viewing.tokens import Kind, visible_pieces

PIECES = {
    "text": Markup("{}"),
    "space": Markup('<i class="s">{}</i>'),
    "break": Markup('<i class="s">{}</i>\n'),
    "escape": Markup('<i class="e">{}</i>'),
}
LEGEND = (
    ("t x", "special", "a control token"),
    ("t n", "no loss", "never a target"),
    ("t m3", "字", "one character of several tokens, a tick for each"),
    ("t e", "\\x9f", "not text: a byte or a character that acts"),
)
SHORT = 48
"""Maximum tokens of a document that shares a line with its neighbors."""
TICKS_MOST = 6
"""Most ticks below a character."""


def strip_figure(strip: TokenStrip, *, interactive: bool = False) -> Markup:
    """Render a strip with its caption, documents and legend.

    Size: 70 to 110 bytes per token. Cost: 3 microseconds per token.

    Args:
        interactive: True to attach the facts that a script shows on hover (`data-ids`, `data-bytes`,
            `data-position`, `data-segment`, `data-loss`); otherwise they are in a title.

    >>> cell = Cell("<b>", (7,), b"<b>", 0, starts=True)
    >>> '<span class="t" title="id 7, position 0">&lt;b&gt;</span>' in strip_figure(TokenStrip("", (cell,)))
    True
    """
    origins = {origin.segment: origin for origin in strip.origins}
    groups = [
        (number, list(cells))
        for number, cells in itertools.groupby(strip.cells, lambda cell: -1 if cell.padding else cell.segment)
    ]
    several = len(groups) > 1
    segments = Markup("").join(
        _segment(cells, origins.get(number), interactive, strip.headings, several) for number, cells in groups
    )
    caption = Markup("<figcaption>{}</figcaption>").format(escaped(strip.caption)) if strip.caption else ""
    more = f"and {plural(strip.more, 'more token')}" if strip.more else "" if strip.cells else "no tokens"
    end = Markup('<p class="more">{}</p>').format(more) if more else ""
    legend = _legend(strip.cells, segments, interactive)
    return Markup('<figure class="strip">{}<div class="segments">{}</div>{}{}</figure>').format(
        caption, segments, end, legend
    )


def _legend(cells: Sequence[Cell], segments: Markup, interactive: bool) -> Markup:
    """Legend of the marks that are there."""
    learned = interactive and any(cell.loss for cell in cells) and any(cell.loss is False for cell in cells)
    marks = (
        any(cell.special for cell in cells),
        any(cell.loss is False and not cell.padding for cell in cells),
        any(len(cell.ids) > 1 and not cell.padding for cell in cells),
        '<i class="e">' in segments,
    )
    items = Markup("").join(
        Markup('<li><span class="{}">{}</span> {}</li>').format(*entry)
        for entry, there in zip(LEGEND, marks, strict=True)
        if there
    )
    if learned:
        items += Markup(
            "<li><kbd>n</kbd> and <kbd>p</kbd> go to the next and previous stretch in the loss</li>"
        )
    return Markup('<ul class="legend" aria-label="Legend">{}</ul>').format(items) if items else items


def _segment(
    cells: list[Cell], origin: DocumentOrigin | None, interactive: bool, headings: bool, several: bool
) -> Markup:
    count = sum(len(cell.ids) for cell in cells)
    if cells[0].padding:
        return Markup('<div class="segment padding">padding, {}</div>').format(plural(count, "token"))
    data = heading = Markup("")
    if origin is not None:
        if interactive:
            number = "" if origin.document is None else Markup(' data-document="{}"').format(origin.document)
            turn = Markup(' data-turn="{}"').format(escaped(origin.title)) if origin.title else ""
            data = Markup('{}{} data-origin="{}"').format(number, turn, escaped(origin.text))
        if origin.anchor:
            data += Markup(' id="{}"').format(escaped(origin.anchor))
        heading = _heading(cells[0], origin, count) if headings else heading
    kind = " short" if several and heading and count <= SHORT and not (origin and origin.title) else ""
    spans: list[Markup] = []
    marks = -1
    for cell in cells:
        pieces = visible_pieces(cell, marks)
        spans.append(_span(cell, pieces, interactive))
        marks = _marks_after(cell, pieces, marks)
    return Markup('<div class="segment{}"{}>{}<p class="tokens" translate="no">{}</p></div>').format(
        kind, data, heading, Markup("").join(spans)
    )


def _heading(first: Cell, origin: DocumentOrigin, count: int) -> Markup:
    """Line above the tokens of a document: its number, its origin, and its part of the strip."""
    name = origin.title or ("tokens" if origin.document is None else f"document {origin.document:,}")
    href = safe_href(origin.href) if origin.href else None
    title = (
        Markup('<a href="{}">{}</a>').format(escaped(href), escaped(name))
        if href
        else Markup("<strong>{}</strong>").format(escaped(name))
    )
    shown = escaped(origin.note if origin.title else origin.text)
    text = Markup('<span class="origin" title="{0}">{0}</span>').format(shown) if shown else ""
    part = f"from token {first.position:,}, " if first.position and not origin.title else ""
    return Markup('<p class="edge">{}{}<span class="count">{}{}</span></p>').format(
        title, text, part, plural(count, "token")
    )


def _marks_after(cell: Cell, pieces: list[tuple[str, Kind]], before: int) -> int:
    """Combining marks on the letter that a cell ends with; -1 if a mark could not follow.

    Marks are counted over several cells, since the browser puts them on one letter.
    """
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


def _span(cell: Cell, pieces: list[tuple[str, Kind]], interactive: bool) -> Markup:
    """Span of a cell, built from strings for speed: texts are escaped, the rest is numbers."""
    marks = ("t x n" if cell.special else "t n") if cell.loss is False else "t x" if cell.special else "t"
    if len(cell.ids) > 1:
        marks += f" m{min(len(cell.ids), TICKS_MOST)}"
    facts = _data(cell) if interactive else _title(cell)
    if len(pieces) == 1 and pieces[0][1] == "text":
        content = escaped(pieces[0][0])
    else:
        content = Markup("").join(PIECES[kind].format(escaped(text)) for text, kind in pieces)
    return Markup(f'<span class="{marks}"{facts}>{content}</span>')


def _title(cell: Cell) -> str:
    ids = " ".join(map(str, cell.ids))
    return f' title="id {ids}, position {cell.position}{", no loss" if cell.loss is False else ""}"'


def _data(cell: Cell) -> str:
    ids = cell.ids[0] if len(cell.ids) == 1 else " ".join(map(str, cell.ids))
    found = f' data-ids="{ids}" data-position="{cell.position}" data-segment="{cell.segment}"'
    if cell.data:
        found += f' data-bytes="{cell.data.hex(" ")}"'
    return found if cell.loss is None else f'{found} data-loss="{int(cell.loss)}"'
