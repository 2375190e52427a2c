"""An HTML page, read by Python's own parser: what a reader would find in it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from packline.viewing.page import Page
from packline.viewing.terminal import render_lines
from packline.viewing.text import plain

VOID = {"br", "col", "hr", "input", "link", "meta", "wbr"}


class Parsed(HTMLParser):
    """Elements, texts, tables and facts of a page; refuses one whose elements do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        """Elements with their attributes."""
        self.data: list[tuple[tuple[str, ...], str]] = []
        """Texts, with the elements that they stand in."""
        self.tokens = ""
        """Text within tokens."""
        self.tables: list[tuple[str, list[list[str]]]] = []
        """The figure's or the table's caption, and rows of cells."""
        self.facts: dict[str, str] = {}
        self._open: list[tuple[str, bool]] = []
        self._caption = self._cell = self._term = ""
        self.feed(str(text))
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        assert len(attributes) == len(attrs)
        self.tags.append((tag, attributes))
        if tag not in VOID:
            self._open.append((tag, attributes.get("class") == "tokens"))
        if tag == "table":
            self.tables.append((self._caption.strip(), []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("th", "td", "caption", "figcaption", "dt", "dd"):
            self._cell = ""

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag
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
        self.data.append((tuple(tag for tag, _ in self._open), data))
        self._cell += data
        if any(inside for _, inside in self._open):
            self.tokens += data

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(data)

    handle_comment = handle_pi = unknown_decl

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def texts(self, tag: str) -> list[str]:
        return [data for path, data in self.data if tag in path]

    def of(self, tag: str) -> str:
        return "".join(self.texts(tag))

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


def ids_shown(page: Parsed) -> list[int]:
    cells = [one for one in page.all("span") if one.get("data-ids") is not None]
    return [int(number) for one in cells for number in (one["data-ids"] or "").split()]


def text_of(page: Page, width: int = 100) -> str:
    return "".join(f"{plain(line)}\n" for line in render_lines(page, width, color=False))
