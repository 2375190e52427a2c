"""Pages as HTML: text is text, whatever it says, and a file needs and does nothing."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.viewing.parsed import Parsed
from tests.viewing.strips import HOSTILE, a_page, a_strip, acts, any_text, byte_strips

from packline.errors import OutOfSpace, PacklineError, StoreError
from packline.viewing.html import (
    LEAST_BAR,
    check_place,
    macro,
    render_file,
    render_fragment,
    render_notebook,
    safe_href,
    style,
    write_page,
)
from packline.viewing.page import (
    Bar,
    Cell,
    DocumentOrigin,
    Heading,
    KeyValues,
    Link,
    Note,
    Page,
    Table,
    TokenStrip,
)
from packline.viewing.text import MARKS_MOST, visible
from packline.viewing.tokens import Vocabulary, cells_of, visible_pieces

PAGE_TAGS = """html head meta title style body a main h1 h2 h3 p ul li section strong dl div dt dd table
    caption thead tbody tr th td figure figcaption span i nav header details summary aside pre"""
CHART_TAGS = "svg g rect path text tspan line desc circle polyline polygon defs"
FORM_TAGS = "form label input select option textarea button"
TAGS = {*PAGE_TAGS.split(), *CHART_TAGS.split(), *FORM_TAGS.split()}
ACTIVE = re.compile(r"on|style$|srcdoc|formaction|src$")
"""Attributes that can act; nothing here has one."""


@given(any_text, byte_strips())
def test_no_text_becomes_anything_but_text(
    text: str, made: tuple[Vocabulary, np.ndarray, np.ndarray]
) -> None:
    page = a_page(text, a_strip(*made, text))
    for interactive in (False, True):
        found = Parsed(render_fragment(page, interactive=interactive))
        assert {tag for tag, _ in found.tags} <= TAGS
        for tag, attributes in found.tags:
            assert not any(ACTIVE.match(name) for name in attributes), (tag, attributes)
            for name in ("href", "action"):
                href = attributes.get(name) or "#"
                assert href.startswith(("/", "#", "?", "http://", "https://")), href
        for path, data in found.data:  # a tab in a text that is to be edited stays one
            assert not acts(data.replace("\t", "") if path[-1] == "textarea" else data)
        assert not any(acts(value or "") for _, attributes in found.tags for value in attributes.values())


@given(byte_strips())
def test_the_text_of_tokens_is_that_of_their_cells(made: tuple[Vocabulary, np.ndarray, np.ndarray]) -> None:
    vocabulary, ids, segments = made
    found = cells_of(vocabulary, ids, segment_ids=segments)
    parsed = Parsed(macro("strip")(TokenStrip("", found), interactive=True))
    wanted = "".join(text for cell in found if not cell.padding for text, _ in visible_pieces(cell))
    shown = parsed.tokens.replace("↵\n", "↵")
    # A mark is drawn on the letter of another token, unless that has marks enough already.
    assert _bare(shown) == _bare(wanted)
    assert not re.search(rf"(?:[\u0300-\u036f]\u200d*){{{MARKS_MOST + 1},}}", shown)
    spans = [attributes for tag, attributes in parsed.tags if "data-ids" in attributes]
    cells = [cell for cell in found if not cell.padding]
    assert [span["data-ids"] for span in spans] == [" ".join(map(str, cell.ids)) for cell in cells]
    assert [bytes.fromhex(span.get("data-bytes") or "") for span in spans] == [cell.data for cell in cells]
    assert [int(span["data-position"] or "") for span in spans] == [cell.position for cell in cells]
    padding = sum(int(one.replace(",", "")) for _, text in parsed.data for one in _paddings(text))
    assert padding == (segments < 0).sum()


def _bare(text: str) -> str:
    """A text without dotted circles and without escapes of combining marks."""
    text = re.sub(r"\\\\(?:u[0-9a-f]{4}|U[0-9a-f]{8})", lambda found: _character(found[0]), text)
    return text.replace("◌", "")


def _character(escape: str) -> str:
    character = chr(int(escape[2:], 16))
    return character if unicodedata.category(character)[0] == "M" else escape


@pytest.mark.parametrize("text", ["दुख", "สวัสดี", "தமிழ்", "e\u0301", "كِتَاب"])
def test_marks_are_on_the_letters_of_the_token_before(text: str) -> None:
    """Each character is a token, as where a tokenizer knows no more of a script."""
    vocabulary = Vocabulary("characters", [one.encode() for one in text], {})
    parsed = Parsed(macro("strip")(TokenStrip("", cells_of(vocabulary, np.arange(len(text))))))
    assert parsed.tokens == text
    alone = Parsed(
        macro("strip")(TokenStrip("", cells_of(Vocabulary("mark", [b"\xcc\x81"], {}), np.arange(1))))
    )
    assert alone.tokens == "◌\u0301"


def test_a_character_of_several_tokens_has_a_tick_for_each() -> None:
    data = "漢".encode()
    vocabulary = Vocabulary("bytes", [data[:1], data[1:2], data[2:]], {})
    text = macro("strip")(TokenStrip("", cells_of(vocabulary, np.arange(3))))
    assert '<span class="t m3" title="id 0 1 2, position 0">漢</span>' in text
    assert "a character of several tokens" in text


def _paddings(text: str) -> list[str]:
    return re.findall(r"^padding, ([\d,]+) tokens?$", text)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_is_on_the_page_to_be_read(text: str) -> None:
    parsed = Parsed(render_fragment(Page("page", (Note(text), KeyValues(((text, text),))))))
    assert [data for path, data in parsed.data if path[-1:] == ("p",)] == [visible(text)]
    assert [data for path, data in parsed.data if path[-1:] in (("dt",), ("dd",))] == [visible(text)] * 2


def test_a_file_loads_and_runs_nothing_and_its_policy_says_so() -> None:
    text = render_file(Page("page", tuple(Heading(f"part {number}") for number in range(4))))
    parsed = Parsed(text)
    policy = next(
        attributes["content"] or ""
        for tag, attributes in parsed.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    css = next(data for path, data in parsed.data if path[-1:] == ("style",))
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert "script-src" not in policy and "unsafe" not in policy
    assert {tag for tag, _ in parsed.tags}.isdisjoint({"script", "link", "iframe", "object", "img"})
    assert "url(" not in css and "@import" not in css and "</" not in css
    html_tag, main = parsed.tags[0], next(attributes for tag, attributes in parsed.tags if tag == "main")
    assert html_tag == ("html", {"lang": "en"}) and main["id"] == "main"
    links = [attributes["href"] for tag, attributes in parsed.tags if tag == "a"]
    names = {attributes.get("id") for _, attributes in parsed.tags}
    assert links == ["#main", "#part-0", "#part-1", "#part-2", "#part-3"]
    assert all((link or "")[1:] in names for link in links)


def test_headings_of_one_name_have_places_of_their_own() -> None:
    page = Page("page", (Heading("Main"), Heading("a b"), Heading("a b"), Heading("日本"), Heading("!")))
    names = [attributes["id"] for tag, attributes in Parsed(render_fragment(page)).tags if tag == "h2"]
    assert len(set(names)) == 5 and "main" not in names


def test_marks_are_in_the_classes_and_the_legend_names_those_that_are_there() -> None:
    tokens = (
        Cell("a", (1,), b"a", 0, loss=False, starts=True),
        Cell("\\xff", (2,), b"\xff", 1, loss=True),
        Cell("</s>", (0,), b"", 2, special=True, loss=True),
        Cell("b", (3,), b"b", 0, 1, loss=True, starts=True),
    )
    origins = (
        DocumentOrigin(0, 7, "web/a.jsonl at 0", "/document/7"),
        DocumentOrigin(1, 8, "web/b.jsonl at 0", "data:x"),
    )
    text = macro("strip")(TokenStrip("row 1", tokens, origins))
    assert '<span class="t n" title="id 1, position 0, no loss">a</span>' in text
    assert '<span class="t" title="id 2, position 1"><i class="e">\\xff</i></span>' in text
    assert '<span class="t x" title="id 0, position 2">&lt;/s&gt;</span>' in text
    assert '<a href="/document/7">document 7</a>' in text and "<strong>document 8</strong>" in text
    assert text.count("<li>") == 3
    plain = macro("strip")(TokenStrip("row 1", tokens[3:], ()))
    assert "<li>" not in plain and "edge" not in plain


def test_a_notebook_gets_style_that_touches_nothing_else() -> None:
    text = render_notebook(Page("page", (Note("hello"),)))
    assert text.startswith(f'<style>{style()}</style><div class="packline notebook"') and "<p " in text
    selectors = re.findall(r"(?:^|[{}])\s*([^{}@]+)\{", re.sub(r"/\*.*?\*/", "", style(), flags=re.DOTALL))
    assert len(selectors) > 50
    for selector in (one.strip() for group in selectors for one in re.split(r",(?![^(]*\))", group)):
        assert re.match(r"(body|:is\([^)]*\) )?\.packline", selector), selector


@given(st.floats(0, 1))
def test_bars_are_as_long_as_their_values(share: float) -> None:
    text = render_fragment(Page("page", (Table("", (), (("name", Bar("7", share)),), "lr"),)))
    widths = [float((one["width"] or "").rstrip("%")) for one in Parsed(text).all("rect")]
    assert widths == ([pytest.approx(max(100 * share, LEAST_BAR), abs=0.001)] if share else [])


@pytest.mark.parametrize(
    "href", ["javascript:x", " javascript:x", "data:,x", "//host", "/\\host", "JAVASCRIPT:x", "x"]
)
def test_a_link_that_could_act_is_none(href: str) -> None:
    assert safe_href(href) is None
    assert "<a" not in render_fragment(Page("page", (KeyValues((("name", Link("text", href)),)),)))


PAGE = Page("Store", (Note("two & two"),))


@pytest.mark.parametrize(
    ("number", "expected"), [(errno.ENOSPC, OutOfSpace), (errno.EIO, StoreError), (errno.EROFS, StoreError)]
)
def test_a_page_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[PacklineError]
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    out = tmp_path / "page.html"
    write_page(PAGE, out)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(expected) as error:
        write_page(Page("Later", ()), out)
    assert error.value.hint
    assert out.read_text("utf-8") == render_file(PAGE)


def test_a_link_stays_and_the_file_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "page.html").symlink_to("deep/real.html")
    for page in (Page("Before", ()), PAGE):
        write_page(page, tmp_path / "page.html")
        assert (tmp_path / "page.html").is_symlink()
        assert (tmp_path / "deep/real.html").read_text("utf-8") == render_file(page)


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_page(PAGE, pipe)
        assert os.read(reading, 1 << 16).decode("utf-8") == render_file(PAGE)
        assert pipe.is_fifo()
    finally:
        os.close(reading)


def test_no_place_for_a_file_is_told(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "page.html"
    with pytest.raises(StoreError, match=f"cannot write {missing}: No such file or directory") as error:
        write_page(PAGE, missing)
    assert error.value.hint
    with pytest.raises(StoreError, match=f"expected a place for a file, found no folder {missing.parent}"):
        check_place(missing)
    for ask in (check_place, lambda path: write_page(PAGE, path)):
        with pytest.raises(StoreError, match=f"cannot write {tmp_path}: ") as error:
            ask(tmp_path)
        assert error.value.hint
