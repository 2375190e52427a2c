"""Tables and links of an HTML page, read by Python's own parser: what a reader would find in it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"br", "hr", "input", "link", "meta", "wbr"}


class Parsed(HTMLParser):
    """Elements, tables and addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.addresses: list[tuple[str, str]] = []
        self.tables: list[tuple[str, list[list[str]]]] = []
        """The figure's or the table's caption, and rows of cells."""
        self.open: list[str] = []
        self.unbalanced: list[str] = []
        self.facts: dict[str, str] = {}
        self._caption = self._cell = self._term = ""
        self.feed(str(text))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name in ("href", "src", "srcset", "action", "data", "xlink:href"):
                self.addresses.append((tag, value or ""))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append((self._caption.strip(), []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("th", "td", "caption", "figcaption", "dt", "dd"):
            self._cell = ""

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)
        if tag in ("th", "td"):
            self.tables[-1][1][-1].append(self._cell)
        elif tag == "figcaption":
            self._caption = self._cell
        elif tag == "caption":
            self.tables[-1] = (self._cell, self.tables[-1][1])
        elif tag == "figure":
            self._caption = ""
        elif tag == "dt":
            self._term = self._cell
        elif tag == "dd":
            self.facts[self._term] = self._cell

    def handle_data(self, data: str) -> None:
        self._cell += data

    def table(self, caption: str) -> list[list[str]]:
        """Rows of the only table with this caption, without its head."""
        found = [rows for name, rows in self.tables if name == caption]
        assert len(found) == 1, (caption, [name for name, _ in self.tables])
        return found[0]


def number(text: str) -> int:
    """A count with separators, and nothing else or a share behind it."""
    found = re.match(r"[−-]?([\d,]+)", text)
    assert found, text
    return int(found[1].replace(",", ""))
