"""The viewer with the keyboard alone: nothing in these tests points at anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.viewing.browser.harness import Chrome, picture
from tests.viewing.browser.test_browse import card_of

from packline.facade import Store

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOCUSED = """() => {
    const one = document.activeElement, style = getComputedStyle(one);
    return {
        name: (one.innerText || one.value || one.getAttribute("aria-label") || "").trim(),
        tag: one.tagName.toLowerCase(),
        id: one.id,
        ring: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
        onScreen: one.getBoundingClientRect().bottom > 0 &&
            one.getBoundingClientRect().top < innerHeight,
    };
}"""
MOST_STEPS = 120


def press_to(page: Page, *, tag: str, name: str = "", key: str = "Tab") -> None:
    """Press Tab until something has the focus; everything on the way must show that it has it."""
    for _ in range(MOST_STEPS):
        page.keyboard.press(key)
        here = page.evaluate(FOCUSED)
        if here["tag"] == "body":
            continue
        assert here["ring"], f"{here} does not show that it has the focus"
        assert here["onScreen"], f"{here} is out of sight"
        if here["tag"] == tag and name in (here["name"], ""):
            return
    raise AssertionError(f"{MOST_STEPS} times {key} did not lead to {tag} {name!r} on {page.url}")


def title(page: Page) -> str:
    return page.locator("h1").inner_text()


def enter(page: Page) -> None:
    with page.expect_event("load"):  # a rewritten address is a navigation, but no page
        page.keyboard.press("Enter")


def test_the_first_stop_leads_past_the_navigation(chrome: Chrome, site: str) -> None:
    page = chrome.open(f"{site}/documents")
    page.keyboard.press("Tab")
    skip = page.evaluate(FOCUSED)
    assert skip["name"] == "Skip to the content" and skip["onScreen"]
    picture(page, "serve-skip", whole=False)
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")


def test_from_the_overview_to_a_token(chrome: Chrome, site: str, store: Store) -> None:
    page = chrome.open(site)
    press_to(page, tag="a", name="Documents")
    enter(page)
    press_to(page, tag="a", name="3")
    enter(page)
    assert title(page) == "Document 3"
    press_to(page, tag="p")
    tokens = store.documents[3].tolist()
    cells = page.locator(".tokens .t")
    first = card_of(page)
    assert first["id"].split(", ")[0] == str(tokens[0])
    picture(page, "serve-card-keyboard", whole=False)
    page.keyboard.press("ArrowRight")
    assert card_of(page)["id"] == str(cells.nth(1).get_attribute("data-ids")).replace(" ", ", ")
    page.keyboard.press("ArrowLeft")
    assert card_of(page) == first
    page.keyboard.press("End")
    last = card_of(page)
    assert last["id"] == str(cells.last.get_attribute("data-ids")).replace(" ", ", ")
    assert {"id", "position", "segment"} <= last.keys()
    page.keyboard.press("Home")
    assert card_of(page) == first
    page.keyboard.press("Escape")
    page.locator(".card").wait_for(state="hidden")


def test_jumping_with_a_key(chrome: Chrome, site: str) -> None:
    page = chrome.open(f"{site}/documents")
    page.keyboard.press("/")
    assert page.evaluate(FOCUSED)["id"] == "jump-number"
    page.keyboard.type("17")
    enter(page)
    assert title(page) == "Document 17"
    page.keyboard.press("/")
    page.keyboard.type("4/2")
    assert page.locator("#jump-number").input_value() == "4/2", "in a field, / is a character"


def test_forms(chrome: Chrome, site: str) -> None:
    page = chrome.open(site)
    press_to(page, tag="a", name="Rows")
    enter(page)
    press_to(page, tag="select", name="")
    while page.evaluate("document.activeElement.name") != "packing":
        page.keyboard.press("Tab")
    page.keyboard.press("b")
    press_to(page, tag="button", name="Show")
    enter(page)
    assert "best fit" in page.locator(".summary").inner_text()


def test_searching(chrome: Chrome, site: str) -> None:
    page = chrome.open(site)
    press_to(page, tag="a", name="Search")
    enter(page)
    while page.evaluate("document.activeElement.name") != "q":
        page.keyboard.press("Tab")
    page.keyboard.type("import sys")
    enter(page)
    assert page.locator("main tbody tr").count() > 0
    press_to(page, tag="a", name=page.locator("main tbody th a").first.inner_text())
    enter(page)
    assert title(page).startswith("Document ")


def test_backwards(chrome: Chrome, site: str) -> None:
    """Shift and Tab lead back the way that Tab led forth."""
    page = chrome.open(f"{site}/document/3")
    where = "[...document.querySelectorAll('*')].indexOf(document.activeElement)"
    forth = []
    for _ in range(12):
        page.keyboard.press("Tab")
        forth.append(page.evaluate(where))
    back = []
    for _ in range(11):
        page.keyboard.press("Shift+Tab")
        back.append(page.evaluate(where))
    assert back[::-1] == forth[:-1]
    assert len(set(forth)) == len(forth)
