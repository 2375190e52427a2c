"""A page as values: JSON for `packline view --json` and the viewer, its tables as CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from typing import Any

from packline.viewing.page import KeyValues, Page, TokenStrip, value_shown

NUMBER = re.compile(r"[-+][\d.,]+%?")


def page_values(page: Page) -> dict[str, Any]:
    """A page as values for JSON: its facts, tables, and strips as lists of cells."""
    blocks = list(page.flat_blocks())
    return {
        "title": page.title,
        "summary": page.summary,
        "warnings": list(page.warnings),
        "facts": {
            name: value
            for block in blocks
            if isinstance(block, KeyValues)
            for name, value in block.rows
            if isinstance(value, str)
        },
        "tables": [
            {
                "caption": one.caption,
                "head": one.head,
                "rows": [list(map(value_shown, row)) for row in one.rows],
            }
            for one in page.tables()
        ],
        "strips": [_strip(block) for block in blocks if isinstance(block, TokenStrip)],
    }


def _strip(strip: TokenStrip) -> dict[str, Any]:
    cells = [dataclasses.asdict(cell) | {"data": cell.data.hex()} for cell in strip.cells]
    return {
        "caption": strip.caption,
        "more": strip.more,
        "origins": [dataclasses.asdict(origin) for origin in strip.origins],
        "cells": [{name: value for name, value in cell.items() if name != "mark"} for cell in cells],
    }


def page_csv(page: Page) -> str:
    """Tables of a page as CSV, with an empty line between two.

    A text that a spreadsheet would take for a formula has an apostrophe before it.

    >>> from packline.viewing.page import Table
    >>> page_csv(Page("", (Table("", ("a", "b"), (("-1", "=1+1"),), "ll"),))).splitlines()
    ['a,b', "-1,'=1+1"]
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for place, table in enumerate(page.tables()):
        writer.writerows([[]] * (place > 0))
        for row in (table.head, *(map(value_shown, row) for row in table.rows)):
            writer.writerow([_inert(cell) for cell in row])
    return text.getvalue()


def _inert(text: str) -> str:
    acts = text.startswith(("=", "+", "-", "@", "\t", "\r")) and not NUMBER.fullmatch(text)
    return f"'{text}" if acts else text
