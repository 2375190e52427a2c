"""Documents, names, ids and labels that try to be more than text are shown as text, policy or not.

Every page is opened twice: once with its content security policy, whose breach would be an error on the
console, and once without, so that nothing but the escaping stands between the data and the browser.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.viewing.browser.harness import VIEWER_OWN, Chrome, Watch, assert_inert, fits, picture, until
from tests.viewing.browser.hostile import NAME, TEXTS
from tests.viewing.strips import a_page

from packline.facade import Store
from packline.viewing.describe import store_page
from packline.viewing.html import render_file, render_notebook
from packline.viewing.page import Cell, CopyText, DocumentOrigin, Form, Links, Note, Page, TokenStrip
from packline.viewing.view import document_page, row_page, rows_page

ACTIVE = [
    text for text in TEXTS if any(mark in text.lower() for mark in ("<script", "<img", "<svg", "<iframe"))
]


def text_pages(store: Store) -> list[Page]:
    """Every page of a file whose words come from a store."""
    rows = store.rows(seq_len=512, packing="best_fit")
    return [
        *(document_page(store, number) for number in range(len(store.documents))),
        row_page(rows, 0),
        row_page(rows, len(rows) - 1),
        rows_page(rows),
        store_page(store),
    ]


VIEWERS = Form | Links | CopyText


def every_block(text: str) -> Page:
    """A page in which everything that a string can be is this one, without those of the viewer alone."""
    cell = Cell(text, (1, 2), text.encode(), 0, starts=True)
    control = Cell(text, (0,), b"", 1, special=True, loss=False)
    page = a_page(text, TokenStrip(text, (cell, control), (DocumentOrigin(0, 1, text, text),), 3))
    return replace(page, blocks=tuple(block for block in page.blocks if not isinstance(block, VIEWERS)))


@pytest.mark.parametrize("text", ACTIVE, ids=range(len(ACTIVE)))
def test_the_texts_would_act_as_markup(chrome: Chrome, text: str) -> None:
    """What the other tests look for does happen where a text is taken for markup."""
    page = chrome.open(strict=False)
    watch = Watch(page)
    watch.start()
    page.set_content(f"<!doctype html><title>x</title><textarea></textarea>{text}")
    until(page, lambda: watch.problems() != [])


@pytest.mark.slow
@pytest.mark.parametrize("policy", [True, False], ids=["policy", "escaping alone"])
def test_pages_of_a_hostile_store_are_inert(
    chrome: Chrome, hostile: Store, tmp_path: Path, policy: bool
) -> None:
    page = chrome.open(policy=policy, width=400)
    watch = chrome.watch_of(page)
    for number, one in enumerate(text_pages(hostile)):
        path = tmp_path / f"{number}.html"
        path.write_text(render_file(one), "utf-8")
        page.goto(path.as_uri())
        assert_inert(watch)
        assert fits(page) == "", one.title


@pytest.mark.slow
def test_markup_is_read_as_it_was_written(chrome: Chrome, hostile: Store, tmp_path: Path) -> None:
    """The text on the page, token after token, is the document's."""
    page = chrome.open()
    plain = [text for text in TEXTS if text.isascii() and text.isprintable() and len(text) < 1000]
    shown = []
    for number in range(len(hostile.documents)):
        path = tmp_path / f"{number}.html"
        path.write_text(render_file(document_page(hostile, number)), "utf-8")
        page.goto(path.as_uri())
        shown.append(page.locator(".tokens").inner_text().replace("\xb7", " ").replace("\u2423", " "))
    assert len(plain) > 15
    for text in plain:
        assert any(text in one for one in shown), text


@pytest.mark.slow
@pytest.mark.parametrize("policy", [True, False], ids=["policy", "escaping alone"])
def test_every_block_takes_every_text(chrome: Chrome, tmp_path: Path, policy: bool) -> None:
    page = chrome.open(policy=policy, width=400, height=2400)
    watch = chrome.watch_of(page)
    for number, text in enumerate((*TEXTS, NAME)):
        path = tmp_path / f"{number}.html"
        path.write_text(render_file(every_block(text)), "utf-8")
        page.goto(path.as_uri())
        assert_inert(watch)
        assert fits(page) == "", text[:80]
        if policy:
            picture(page, f"hostile-block-{number:02}", whole=False)


def test_a_notebook_is_not_taken_over(chrome: Chrome, hostile: Store, tmp_path: Path) -> None:
    """As in a notebook's cell: no policy at all, and the style reaches nothing outside."""
    page = chrome.open()
    path = tmp_path / "notebook.html"
    cells = "".join(render_notebook(one) for one in (*map(every_block, TEXTS), *text_pages(hostile)))
    path.write_text(
        "<!doctype html><html lang=en><meta charset=utf-8><title>notebook</title>"
        f"<main><p id=mine>mine</p>{cells}</main>",
        "utf-8",
    )
    page.goto(path.as_uri())
    assert_inert(chrome.watch_of(page))
    assert page.locator("#mine").evaluate("one => getComputedStyle(one).fontFamily") != page.locator(
        ".packline p.note"
    ).first.evaluate("one => getComputedStyle(one).fontFamily")


@pytest.mark.parametrize(("theme", "color"), [("true", "rgb(255, 255, 255)"), ("false", "rgb(1, 2, 3)")])
def test_a_notebook_follows_the_theme_of_jupyter(chrome: Chrome, theme: str, color: str) -> None:
    """Whatever the scheme of the system is."""
    page = chrome.open(scheme="dark" if theme == "true" else "light")
    variables = "<style>body { --jp-layout-color0: rgb(1, 2, 3); }</style>" if theme == "false" else ""
    text = render_notebook(Page("page", (Note("hello"),)))
    page.set_content(f"<!doctype html>{variables}<body data-jp-theme-light={theme}>{text}")
    found = page.locator(".packline").evaluate(
        "one => [getComputedStyle(one).backgroundColor, getComputedStyle(one).colorScheme]"
    )
    assert found == [color, "light" if theme == "true" else "dark"]


@pytest.mark.slow
@pytest.mark.parametrize("policy", [True, False], ids=["policy", "escaping alone"])
def test_the_viewer_shows_a_hostile_store(
    chrome: Chrome, hostile: Store, hostile_site: str, policy: bool
) -> None:
    """The same in the viewer, where texts also come in by the address."""
    page = chrome.open(policy=policy, width=400)
    watch = chrome.watch_of(page)
    paths = [f"/document/{number}" for number in range(len(hostile.documents))]
    paths += ["/", "/sources", "/documents", "/rows?seq_len=512", "/row/1?seq_len=512", "/batch?seq_len=512"]
    forms = ["/search?q={}", "/compare/tokenizers?text={}", "/documents?source={}", "/search?by=id&q={}"]
    forms += ["/jump?to={0}&number={0}", "/{}"]
    for number, text in enumerate((*TEXTS[:23], NAME)):  # each text in two places of six
        asked = quote(text[:500])
        paths += [forms[number % 6].format(asked), forms[(number // 6 + number + 1) % 6].format(asked)]
    for path in paths:
        page.goto(hostile_site + path)
        assert_inert(watch, own=VIEWER_OWN)
        assert fits(page) == "", path
    policies = page.request.get(hostile_site).headers["content-security-policy"]
    assert "default-src 'none'" in policies and "unsafe" not in policies


def test_the_card_shows_what_is_hostile(chrome: Chrome, hostile: Store, hostile_site: str) -> None:
    """What a script puts on the page is text as well."""
    page = chrome.open(policy=False)
    watch = chrome.watch_of(page)
    for number in range(0, len(hostile.rows(64)), max(len(hostile.rows(64)) // 6, 1)):
        page.goto(f"{hostile_site}/row/{number}?seq_len=64")
        page.locator(".tokens .t").first.hover()
        page.locator(".card").wait_for(state="visible")
        assert "onerror" in page.locator(".card").inner_text(), "the name of the file"
        assert_inert(watch, own=VIEWER_OWN)
