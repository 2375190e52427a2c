"""Pages fit any window, axe-core finds nothing on them but would find what is wrong; boundaries are seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.viewing.browser.harness import PAGES, SCHEMES, Chrome, Scheme, axe, fits

from packline.facade import Store
from packline.viewing.describe import store_page
from packline.viewing.html import render_file
from packline.viewing.view import document_page, row_page

BOUNDARY = 1.2
"""Least contrast of neighboring grounds."""
POOR = """<!doctype html><title>x</title><main><p style="color:#999">pale</p><img src="data:,"><input>
<a href="#"></a></main>"""

NEIGHBORS = """() => {
    const byte = (one) => (+one).toString(16).padStart(2, "0");
    const hex = (color) => "#" + color.match(/\\d+/g).slice(0, 3).map(byte).join("");
    const ground = (one) => {
        const color = getComputedStyle(one).backgroundColor;
        return color === "rgba(0, 0, 0, 0)" ? ground(one.parentElement) : hex(color);
    };
    const marked = (one) => getComputedStyle(one).boxShadow !== "none" || one.matches(".x");
    const pairs = [...document.querySelectorAll(".tokens .t + .t")]
        .filter((one) => !marked(one) && !marked(one.previousElementSibling))
        .map((one) => ground(one.previousElementSibling) + " " + ground(one));
    return [...new Set(pairs)].map((pair) => pair.split(" "));
}"""
"""Grounds of neighbors, each pair once; without tokens that have a frame or a line between them."""


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(color: str) -> float:
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_axe_finds_what_is_wrong(chrome: Chrome) -> None:
    page = chrome.open(strict=False)
    page.set_content(POOR)
    found = " ".join(axe(page))
    for rule in ("color-contrast", "html-has-lang", "image-alt", "label", "link-name"):
        assert rule in found


@pytest.mark.parametrize("scheme", SCHEMES)
def test_files(chrome: Chrome, store: Store, tmp_path: Path, scheme: Scheme) -> None:
    rows = store.rows(seq_len=512, packing="pad")
    page = chrome.open(scheme=scheme)
    for number, one in enumerate((store_page(store), document_page(store, 7), row_page(rows, 3))):
        path = tmp_path / f"{number}.html"
        path.write_text(render_file(one), "utf-8")
        page.goto(path.as_uri())
        assert axe(page) == [], one.title


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 400)])
def test_the_report(chrome: Chrome, report: Path, scheme: Scheme, width: int) -> None:
    page = chrome.open(report.as_uri(), scheme=scheme, width=width)
    assert axe(page) == []


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES)
def test_pages_of_the_viewer(chrome: Chrome, site: str, path: str) -> None:
    """Colors are a matter of the scheme and sizes one of the width, so two pairs of them show both."""
    for scheme, widths in zip(SCHEMES, ((1280, 1600), (400, 800)), strict=True):
        page = chrome.open(site + path, scheme=scheme, width=widths[0])
        assert axe(page, impacts=None) == [], scheme
        assert page.title().partition(" · ")[0] == page.locator("h1").inner_text()
        for width in widths:
            page.set_viewport_size({"width": width, "height": 900})
            assert fits(page) == "", (scheme, width)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_boundaries_of_tokens_are_seen_without_hue(chrome: Chrome, site: str, scheme: Scheme) -> None:
    for path in ("/document/3", "/row/2?seq_len=512&packing=pad"):
        pairs = chrome.open(site + path, scheme=scheme).evaluate(NEIGHBORS)
        assert len(pairs) > 3
        for left, right in pairs:
            assert contrast(left, right) >= BOUNDARY, (path, left, right)
