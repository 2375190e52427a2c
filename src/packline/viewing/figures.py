"""Common parts of SVG charts: a caption, the drawing, and its numbers as a collapsible table."""

from __future__ import annotations

from collections.abc import Sequence

from packline.viewing.markup import Content, Markup, element


def figure(caption: str, drawing: Markup, *more: Content) -> Markup:
    """SVG chart with its caption and the content below it."""
    return element("figure", element("figcaption", caption), drawing, *more, class_="chart")


def numbers(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """Numbers of a chart as a collapsible table; the first column names the rows."""
    table = element(
        "table",
        element(
            "thead",
            element(
                "tr",
                [
                    element("th", text, scope="col", class_="r" if place else None)
                    for place, text in enumerate(head)
                ],
            ),
        ),
        element(
            "tbody",
            [
                element(
                    "tr",
                    element("th", row[0], scope="row"),
                    [element("td", text, class_="r") for text in row[1:]],
                )
                for row in rows
            ],
        ),
    )
    box = element("div", table, class_="scroll", tabindex=0, role="region", aria_label=f"Numbers: {caption}")
    return element("details", element("summary", "Numbers"), box)
