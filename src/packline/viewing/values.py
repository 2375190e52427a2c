"""A page as values: JSON for `packline view --json` and the viewer."""

from __future__ import annotations

import dataclasses
from typing import Any

from packline.viewing.page import KeyValues, Page, Table, TokenStrip, value_shown


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
                "head": one.head_texts,
                "rows": [list(map(value_shown, row)) for row in one.rows],
            }
            for one in blocks
            if isinstance(one, Table)
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
