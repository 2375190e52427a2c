"""Charts as HTML: histograms, bars, comparisons; the flow of a ledger is in `flow_chart`.

    Histogram   SVG         vertical bars, with ticks, marks and a table of the numbers
    Bars        a table     a bar in each row, next to its number
    Comparison  a table     a column for each measure, a bar below each number

Horizontal lengths are shares of the width (`x="12.5%"`), vertical lengths are pixels. A chart therefore fills
a window of 400 or of 1600 pixels while its letters keep their size, without a script and without inline
styles, which a content security policy would refuse. Colors are variables of the page's style; a shape or a
word always carries the same information. An SVG chart has a title, a description and its numbers as a table
for readers who cannot see it; where the table is the chart, its bars are decoration.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from packline.viewing.figures import figure, numbers
from packline.viewing.flow_chart import flow as flow
from packline.viewing.markup import Markup, element, joined
from packline.viewing.page import Bars, Comparison, Histogram
from packline.viewing.text import percent, scaled

PLOT_LEFT = 9.5
"""Percent of the width that the numbers at the left take."""
PLOT_HEIGHT = 180
MARK_HEIGHT = 20
TICKS_HEIGHT = 26
NARROW, WIDE = 320, 620
"""Pixels of a plot in a narrow and in a wide window, used to choose the number of ticks."""
TICK = 56
BAR_HEIGHT = 14
LEAST_BAR = 0.4
"""Shortest bar of a value above zero, in percent of the width, so that it remains visible."""


def histogram(block: Histogram) -> Markup:
    """Vertical bars, one for each class.

    >>> drawn = histogram(Histogram("Lengths", ("1", "2 to 3"), (5, 0), "documents"))
    >>> drawn.count("<rect"), "<td class=\\"r\\">5</td>" in drawn
    (1, True)
    """
    top = nice_top(max(block.counts, default=0))
    marks = sorted(block.marks, key=lambda mark: mark[1])
    above = MARK_HEIGHT * len(marks) + 8
    height = above + PLOT_HEIGHT + TICKS_HEIGHT
    drawing = element(
        "svg",
        element("title", block.caption),
        element("desc", _described(block)),
        _grid(top, above),
        _columns(block, top, above),
        _marks(marks, len(block.counts), above),
        _ticks(block.labels, above + PLOT_HEIGHT),
        role="img",
        width="100%",
        height=height,
        class_="plot",
    )
    whole = sum(block.counts)
    rows = [
        (label, f"{count:,}", percent(count / whole) if whole else "")
        for label, count in zip(block.labels, block.counts, strict=True)
    ]
    return figure(block.caption, drawing, numbers(block.caption, ("class", block.unit, "share"), rows))


def bars(block: Bars) -> Markup:
    """Horizontal bars, each next to its value.

    >>> from packline.viewing.page import Bar
    >>> drawn = bars(Bars("Tokens", (Bar("web", 3, "3 tokens"), Bar("books", 1, "1 token"))))
    >>> ">web</th>" in drawn, "width=\\"100%\\"" in drawn
    (True, True)
    """
    top = max((bar.value for bar in block.rows), default=0.0)
    rows = [
        element(
            "tr",
            element("th", bar.label, scope="row", role="rowheader"),
            element("td", lying(bar.value, top, bar.part), class_="drawn", role="cell"),
            element("td", bar.shown, class_="r", role="cell"),
            role="row",
        )
        for bar in block.rows
    ]
    key = (
        element("p", element("span", class_="key part"), " ", block.part, class_="keys") if block.part else ""
    )
    return element(
        "figure",
        element("figcaption", block.caption),
        key,
        element("table", element("tbody", rows, role="rowgroup"), class_="bars", role="table")
        if rows
        else _nothing(),
        class_="chart",
    )


def comparison(block: Comparison) -> Markup:
    """Table with a row for each item, a column for each measure and a bar below each number.

    >>> from packline.viewing.page import Bar
    >>> bar = Bar("best_fit", 0.25, "25%")
    >>> drawn = comparison(Comparison("Prices", "packing", ("padding",), (("best_fit", (bar,)),), top=1.0))
    >>> "width=\\"25%\\"" in drawn
    True
    """
    head = [element("th", text, scope="col") for text in (block.noun, *block.measures)]
    largest = [
        max((row[1][place].value for row in block.rows), default=0.0) for place in range(len(block.measures))
    ]
    rows = [
        element(
            "tr",
            element("th", label, scope="row"),
            [
                element("td", element("span", bar.shown), lying(bar.value, block.top or top, bar.part))
                for bar, top in zip(measured, largest, strict=True)
            ],
        )
        for label, measured in block.rows
    ]
    table = element(
        "table", element("thead", element("tr", head)), element("tbody", rows), class_="comparison"
    )
    inner: Markup = table if rows else _nothing()
    box = element("div", inner, class_="scroll", tabindex=0, role="region", aria_label=block.caption)
    return element("figure", element("figcaption", block.caption), box, class_="chart")


def lying(value: float, top: float, part: float = 0.0) -> Markup:
    """Horizontal bar of length `value` out of `top`, with its last `part` marked."""
    whole = share(value, top)
    marked = whole * min(part / value, 1.0) if value > 0 else 0.0
    plain = whole - marked
    pieces = []
    if plain:
        pieces.append(element("rect", width=_percent(plain), height="100%", rx=2, class_="fill"))
    if marked:
        pieces.append(
            element(
                "rect", x=_percent(plain), y=1, width=_percent(marked), height=BAR_HEIGHT - 2, class_="part"
            )
        )
    return element("svg", pieces, class_="bar", width="100%", height=BAR_HEIGHT, aria_hidden="true")


def share(value: float, top: float) -> float:
    """Percent of `top`, at least `LEAST_BAR` for a value above zero.

    >>> share(1, 4), share(1, 1_000_000), share(0, 4)
    (25.0, 0.4, 0.0)
    """
    if value <= 0 or top <= 0:
        return 0.0
    return max(min(100 * value / top, 100.0), LEAST_BAR)


def nice_top(largest: int) -> int:
    """End of an axis: the next number that divides well into four.

    >>> nice_top(0), nice_top(3), nice_top(61), nice_top(1234)
    (4, 4, 80, 1600)
    """
    quarters = (step * 10**power for power in itertools.count() for step in (1, 2, 3, 4, 5, 6, 8))
    return 4 * next(quarter for quarter in quarters if 4 * quarter >= largest)


def tick_label(label: str) -> str:
    """Number at which a class begins.

    >>> tick_label("131,072 to 262,143"), tick_label("none")
    ('131,072', 'none')
    """
    return label.partition(" ")[0]


def _nothing() -> Markup:
    return element("p", "nothing to show", class_="more")


def _percent(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") + "%"


def _described(block: Histogram) -> str:
    whole = sum(block.counts)
    if not whole:
        return f"no {block.unit}"
    largest = max(range(len(block.counts)), key=block.counts.__getitem__)
    marked = "".join(f"; {name} is in {block.labels[place]}" for name, place in block.marks)
    return (
        f"{whole:,} {block.unit} in {len(block.counts)} classes from {block.labels[0]} to {block.labels[-1]}"
        f"; most of them, {block.counts[largest]:,}, in {block.labels[largest]}{marked}"
    )


def _across(place: float, classes: int) -> str:
    """Horizontal position in percent, from a place counted in classes from the left."""
    return _percent(PLOT_LEFT + (100 - PLOT_LEFT) * place / classes)


def _grid(top: int, above: int) -> Markup:
    lines = []
    for quarter in range(5):
        y = above + PLOT_HEIGHT - PLOT_HEIGHT * quarter // 4
        kind = "axis" if not quarter else "grid"
        lines.append(element("line", x1=_percent(PLOT_LEFT), x2="100%", y1=y, y2=y, class_=kind))
        text = scaled(top * quarter // 4).replace(".0 ", " ")
        lines.append(element("text", text, x=_percent(PLOT_LEFT - 1.2), y=y + 4, text_anchor="end"))
    return joined(lines)


def _columns(block: Histogram, top: int, above: int) -> Markup:
    classes = len(block.counts)
    wide = _percent((100 - PLOT_LEFT) / max(classes, 1) * 0.84)
    found = []
    for place, (label, count) in enumerate(zip(block.labels, block.counts, strict=True)):
        if not count:
            continue
        high = max(PLOT_HEIGHT * count / top, 1.5)
        found.append(
            element(
                "rect",
                element("title", f"{label}: {count:,} {block.unit}"),
                x=_across(place + 0.08, classes),
                y=f"{above + PLOT_HEIGHT - high:.1f}",
                width=wide,
                height=f"{high:.1f}",
                rx=2,
                class_="fill",
            )
        )
    return joined(found)


def _marks(marks: Sequence[tuple[str, int]], classes: int, above: int) -> Markup:
    """Names of marked places, each on a separate line of text, with a line down to its class."""
    lines, texts = [], []
    for line, (name, place) in enumerate(marks):
        x, y = _across(place + 0.5, classes), MARK_HEIGHT * (line + 1) - 4
        left = place + 0.5 > classes / 2
        lines.append(element("line", x1=x, x2=x, y1=y + 4, y2=above + PLOT_HEIGHT, class_="mark"))
        texts.append(element("circle", cx=x, cy=y + 1, r=3, class_="mark"))
        anchor = "end" if left else "start"
        texts.append(
            element("text", name, x=x, y=y + 5, dx=-8 if left else 8, text_anchor=anchor, class_="name")
        )
    return joined(lines, texts)


def _ticks(labels: Sequence[str], bottom: int) -> Markup:
    """As many ticks as there is room for, some of them only in a wide window."""
    if not labels:
        return Markup()
    wide = -(-TICK * len(labels) // WIDE)
    narrow = wide * -(-TICK * len(labels) // (NARROW * wide))
    last = len(labels) - 1 if len(labels) > 4 else -1  # its text ends at the edge
    return joined(
        element(
            "text",
            tick_label(label),
            x=_across(place + (0.9 if place == last else 0.5), len(labels)),
            y=bottom + 18,
            text_anchor="end" if place == last else "middle",
            class_=None if place % narrow == 0 else "wide",
        )
        for place, label in enumerate(labels)
        if place % wide == 0
    )
