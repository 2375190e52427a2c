"""The report as a reader has it: one file, opened offline, of any width, light and dark, with a keyboard."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.viewing.browser.harness import SCHEMES, WIDTHS, Chrome, Scheme, assert_inert, fits, picture

LARGEST = 1_000_000


@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_fits_any_window(chrome: Chrome, report: Path, scheme: Scheme) -> None:
    page = chrome.open(report.as_uri(), scheme=scheme)
    for opened in (False, True):
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert fits(page) == "", (width, "with all numbers shown" if opened else "as it opens")
            size = page.evaluate("parseFloat(getComputedStyle(document.querySelector('main p')).fontSize)")
            assert size >= 14
        picture(page, f"report-{scheme}-{'opened' if opened else 'closed'}")
        page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true })")


def test_it_is_one_file_that_asks_for_nothing(chrome: Chrome, report: Path) -> None:
    page = chrome.open(report.as_uri())
    page.wait_for_load_state("networkidle")
    assert chrome.watch_of(page).asked == [report.as_uri()]
    assert report.stat().st_size < LARGEST


def test_it_needs_no_script(chrome: Chrome, report: Path) -> None:
    """With scripts and without the reader sees the same."""
    shown = [
        chrome.open(report.as_uri(), script=script).locator("body").inner_text() for script in (True, False)
    ]
    assert shown[0] == shown[1]
    assert len(shown[0]) > 1000


def test_dark_is_dark_and_light_is_light(chrome: Chrome, report: Path) -> None:
    color = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    light, dark = (sum(chrome.open(report.as_uri(), scheme=scheme).evaluate(color)) for scheme in SCHEMES)
    assert light > 600 > 200 > dark


def test_the_keyboard_reaches_everything(chrome: Chrome, report: Path) -> None:
    """Tab leads from the link past the navigation to all links, tables and folds; each shows its focus."""
    page = chrome.open(report.as_uri())
    wanted = page.locator("a[href], summary, [tabindex='0']").locator("visible=true").count()
    reached = []
    for _ in range(wanted + 2):
        page.keyboard.press("Tab")
        here = page.evaluate(
            """() => {
                const one = document.activeElement, style = getComputedStyle(one);
                const all = [...document.querySelectorAll("*")];
                return one === document.body ? null :
                    [all.indexOf(one), style.outlineStyle, parseFloat(style.outlineWidth)];
            }"""
        )
        if here is None:
            break
        number, kind, thickness = here
        assert kind != "none" and thickness >= 2, page.evaluate(
            "document.activeElement.outerHTML.slice(0, 200)"
        )
        reached.append(number)
    assert len(set(reached)) == wanted
    assert reached == sorted(reached), "in the order of reading"


def test_the_contents_lead_to_the_sections(chrome: Chrome, report: Path) -> None:
    page = chrome.open(report.as_uri(), height=600)
    links = page.locator("nav[aria-label=Contents] a")
    assert links.count() >= 4
    for link in links.all():
        name = link.inner_text()
        link.click()
        page.locator(":target", has_text=name).wait_for()
        assert page.locator(":target").inner_text() == name
        assert page.locator(":target").evaluate("one => one.getBoundingClientRect().top") < 600


@pytest.mark.parametrize("policy", [True, False], ids=["policy", "escaping alone"])
def test_a_hostile_store_has_an_inert_report(chrome: Chrome, hostile_report: Path, policy: bool) -> None:
    page = chrome.open(hostile_report.as_uri(), width=400, policy=policy)
    if policy:
        picture(page, "report-hostile")
    assert_inert(chrome.watch_of(page))
    assert fits(page) == ""
    assert hostile_report.stat().st_size < LARGEST
