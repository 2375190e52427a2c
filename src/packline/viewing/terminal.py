"""A page as lines: for a terminal with colors, and for a pipe without a control character.

    render(page, width, color)  ──>  lines of (text, style), which `cli.output` prints

Warnings come first. Tables have aligned columns, charts consist of block characters, and tokens are rendered
by `terminal_strip`. `cli.output` prints the lines and defines the styles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from packline.viewing.lines import Line, plain, table, wrapped
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
from packline.viewing.terminal_strip import strip_lines
from packline.viewing.text import columns

MOODS = {"plain": "", "good": "good", "warning": "warning", "bad": "bad"}
LONGEST_BAR = 40
MARKED = "┄"
"""Character for the marked part of a bar."""


def render(page: Page, width: int, color: bool) -> list[Line]:
    """Lines of a page.

    Args:
        width: columns of the terminal.
        color: True if styles are visible; otherwise marks replace them.

    >>> page = Page("Store", (Facts((("documents", "12"),)), Note("All is well.", "good")))
    >>> for line in render(page, 80, color=False):
    ...     print(plain(line))
      Store
    <BLANKLINE>
      documents  12
    <BLANKLINE>
      All is well.
    """
    lines: list[Line] = [["  ", (page.title, "title")]]
    if page.summary:
        lines += [["  ", (text, "quiet")] for text in wrapped(page.summary, width - 2)]
    if page.warnings:
        lines.append([])
    for warning in page.warnings:
        first, *more = wrapped(warning, width - 11)
        lines.append(["  ", ("warning: ", "warning"), first])
        lines += [[" " * 11, text] for text in more]
    return lines + render_blocks(page.blocks, width, color)


def render_blocks(blocks: Sequence[Block], width: int, color: bool) -> list[Line]:
    """Lines of blocks, each block after an empty line. Links and forms are omitted."""
    lines: list[Line] = []
    for block in blocks:
        if not isinstance(block, Links | Form):
            lines += [[], *_block_lines(block, width, color)]
    return lines


def render_text(page: Page, width: int = 100) -> str:
    """Render a page as plain text.

    >>> render_text(Page("Store", ()))
    '  Store\\n'
    """
    return "".join(f"{plain(line)}\n" for line in render(page, width, color=False))


def _block_lines(block: Block, width: int, color: bool) -> list[Line]:
    if isinstance(block, Strip):
        return strip_lines(block, width, color)
    if isinstance(block, Beside):
        parts = [render_blocks(part, width, color) for part in block.parts]
        return [line for part in parts for line in part][1:]
    return _DRAWN[type(block)](block, width)


def _heading(block: Heading, width: int) -> list[Line]:
    return [["  ", (block.text, "heading" if block.level == 2 else "title")]]


def _note(block: Note, width: int) -> list[Line]:
    return [["  ", (text, MOODS[block.mood])] for text in wrapped(block.text, width - 2)]


def _facts(block: Facts, width: int) -> list[Line]:
    return table([[(name, "quiet"), _text(value)] for name, value in block.rows], "ll", width=width)


def _table(block: Table, width: int) -> list[Line]:
    head: Line = [(word, "quiet") for word in block.head]
    rows: list[Line] = [[_text(value) for value in row] for row in block.rows]
    caption: list[Line] = [["  ", (block.caption, "title")]] if block.caption else []
    return [*caption, *table([head, *rows], block.align, width=width)]


def _bars(block: Bars, width: int) -> list[Line]:
    top = max((bar.value for bar in block.rows), default=0.0) or 1.0
    rows: list[Line] = []
    for bar in block.rows:
        whole = round(LONGEST_BAR * bar.value / top)
        marked = min(round(LONGEST_BAR * bar.part / top), whole)
        drawn = "━" * (whole - marked) + MARKED * marked
        rows.append([bar.label, (bar.shown, ""), (drawn or "·", "number")])
    lines: list[Line] = [["  ", (block.caption, "title")], *table(rows, "lrl")]
    if block.part:
        lines.append(["  ", (f"{MARKED}{MARKED} {block.part}", "quiet")])
    return lines


def _comparison(block: Comparison, width: int) -> list[Line]:
    rows = tuple((label, *(bar.shown for bar in bars)) for label, bars in block.rows)
    head = (block.noun, *block.measures)
    return _table(Table(block.caption, head, rows, "l" + "r" * len(block.measures)), width)


def _histogram(block: Histogram, width: int) -> list[Line]:
    lines: list[Line] = [["  ", (block.caption, "title")]]
    if not sum(block.counts):
        return [*lines, ["  ", (f"no {block.unit}", "quiet")]]
    wide = max(1, min(4, (width - 4) // len(block.counts)))
    drawn = columns([count for count in block.counts for _ in range(wide)], height=5)
    lines += [["  ", (line, "number")] for line in drawn]
    ends = f"{block.labels[0]} … {block.labels[-1]}"
    lines.append(
        ["  ", (f"{ends}; {sum(block.counts):,} {block.unit}, at most {max(block.counts):,}", "quiet")]
    )
    lines += [["  ", (f"{name}: {block.labels[place]}", "quiet")] for name, place in block.marks]
    return lines


def _flow(block: Flow, width: int) -> list[Line]:
    rows: list[Line] = []
    for stage in block.stages:
        rows.append([(stage.label, "title"), f"{stage.count:,}", stage.unit])
        for stream in stage.lost:
            rows.append([(f"  - {stream.label}", MOODS[stream.mood]), f"{stream.count:,}", stream.note])
        rows.append([f"  = {stage.kept.label}", f"{stage.kept.count:,}", stage.kept.note])
    return [["  ", (block.caption, "title")], *table(rows, "lrl", width=width)]


def _text(value: Value) -> str:
    return value.text if isinstance(value, Link) else value


_DRAWN: dict[type, Callable[[Any, int], list[Line]]] = {
    Heading: _heading,
    Note: _note,
    Facts: _facts,
    Table: _table,
    Bars: _bars,
    Comparison: _comparison,
    Histogram: _histogram,
    Flow: _flow,
}
