"""HTML of stores, rows and loaders in a notebook: the page of each, with its style.

`packline.notebook.Notebook` imports this module on demand, so that no module below depends on this one.
"""

from __future__ import annotations

from functools import singledispatch

from packline.loading.loader import Loader
from packline.packing.rows import Row, Rows
from packline.store.reader import StoreReader
from packline.viewing.describe import store_page
from packline.viewing.html import render_notebook
from packline.viewing.page import Page
from packline.viewing.token_pages import NOTEBOOK_TOKENS, loader_page, row_page, rows_page


def to_html(value: object) -> str:
    """HTML of a value whose type has a page.

    Raises:
        TypeError: it has none.
    """
    return str(render_notebook(page_of(value)))


@singledispatch
def page_of(value: object) -> Page:
    """Page of a value for a notebook, by its type."""
    raise TypeError(f"no page for {type(value).__name__}")


page_of.register(StoreReader, store_page)
page_of.register(Rows, rows_page)
page_of.register(Loader, loader_page)


@page_of.register
def _(row: Row) -> Page:
    return row_page(row.source, row.index, most=NOTEBOOK_TOKENS)
