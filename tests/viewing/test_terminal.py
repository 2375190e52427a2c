"""Pages as lines: nothing in them acts, tokens keep to the width, and none is missing."""

from __future__ import annotations

import re
from typing import get_args

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.viewing.parsed import text_of
from tests.viewing.strips import a_page, a_strip, acts, any_text, byte_strips

from packline.viewing.html import render_fragment
from packline.viewing.page import (
    Bar,
    Block,
    Cell,
    Form,
    Links,
    Note,
    Page,
    Panel,
    Table,
    TokenStrip,
)
from packline.viewing.terminal import GUTTER, render_lines, strip_lines
from packline.viewing.text import Line, cells, plain
from packline.viewing.tokens import Vocabulary, cells_of, visible_pieces


def joined(line: Line) -> str:
    return "".join(piece if isinstance(piece, str) else piece[0] for piece in line)


def test_no_block_is_forgotten() -> None:
    """The page that is drawn on both surfaces holds every block that there is, and each alone is seen."""
    page = a_page("text", TokenStrip("text", (Cell("text", (1,), b"text", 0),)))
    assert {type(block) for block in page.blocks} == set(get_args(Block))
    for block in page.blocks:
        drawn = [plain(line) for line in render_lines(Page("title", (block,)), 80, color=False)]
        assert isinstance(block, Links | Form) != any("text" in line for line in drawn), block
        for whole in (Page("title", (block,)), Page("title", (Panel("beside", ((block,), (block,))),))):
            assert "text" in render_fragment(whole), block


@given(any_text, byte_strips(), st.booleans(), st.integers(40, 120))
def test_no_page_acts_on_a_terminal(
    text: str, made: tuple[Vocabulary, np.ndarray, np.ndarray], color: bool, width: int
) -> None:
    for line in render_lines(a_page(text, a_strip(*made, text)), width, color):
        assert not acts(plain(line)) and "\n" not in plain(line)


@given(byte_strips(), st.booleans(), st.integers(40, 120))
def test_tokens_keep_to_the_width_and_none_is_missing(
    made: tuple[Vocabulary, np.ndarray, np.ndarray], color: bool, width: int
) -> None:
    vocabulary, ids, segments = made
    found = cells_of(vocabulary, ids, segment_ids=segments)
    lines = [joined(line) for line in strip_lines(TokenStrip("", found), width, color)]
    body = [line[GUTTER + 2 :] for line in lines if not line.endswith("  padding")]
    assert all(cells(line) <= width - GUTTER - 2 for line in body)
    wanted = "".join(text for cell in found if not cell.padding for text, _ in visible_pieces(cell))
    for mark in "│⟦⟧":
        wanted = wanted.replace(mark, "")
    assert re.sub("[│⟦⟧]", "", "".join(body)) == wanted
    counts = [line for line in lines if line.endswith("  padding")]
    said = [re.findall(r"×([\d,]+)", line)[0].replace(",", "") for line in counts]
    assert sum(map(int, said)) == (segments < 0).sum()


def test_marks_say_without_color_what_styles_say_with_it() -> None:
    tokens = (
        Cell("a", (1,), b"a", 0, loss=False, starts=True),
        Cell(" b", (2,), b" b", 1, loss=False),
        Cell(" c", (3,), b" c", 2, loss=True),
        Cell("</s>", (0,), b"", 3, special=True, loss=True),
        Cell("", (0,), b"", 4, -1, padding=True, loss=False),
        Cell("", (0,), b"", 5, -1, padding=True, loss=False),
    )
    without = [plain(line) for line in strip_lines(TokenStrip("", tokens), 80, color=False)]
    assert without == ["        0  ⟨a│ b⟩│ c│⟦</s>⟧", "      ·×2  padding"]
    first, second = strip_lines(TokenStrip("", tokens), 80, color=True)
    styles = [piece[1] for piece in first if isinstance(piece, tuple)]
    assert styles == ["quiet", "unlearned", "unlearned", "token-2", "control"]
    assert [piece[1] for piece in second if isinstance(piece, tuple)] == ["padding"]


def test_line_ends_of_the_text_end_lines_and_positions_stand_before_them() -> None:
    vocabulary = Vocabulary("lines", [b"one\n", b"two", b"\n\n"], {})
    strip = TokenStrip("", cells_of(vocabulary, np.array([0, 1, 2, 1]), first=1000), more=4)
    assert [plain(line) for line in strip_lines(strip, 80, color=False)] == [
        "    1,000  one↵",
        "    1,001  two│↵",
        "    1,002  ↵",
        "    1,003  two",
        "           and 4 more tokens",
    ]


def test_charts_have_their_numbers_and_lengths() -> None:
    rows = (("concat", Bar("2.0", 0.5)), ("pad", Bar("4.0", 1.0)), ("none", Bar("0", 0.0)))
    bars = Table("packings", (), rows, "lr")
    several = Table(
        "costs", ("packing", "padding", "lost"), (("pad", Bar("9%", 1.0), Bar("1%", 1.0)),), "lrr"
    )
    text = text_of(Page("charts", (bars, several)))
    assert f"concat  2.0  {'━' * 20}\n" in text
    assert f"pad     4.0  {'━' * 40}\n" in text
    assert "none      0  ·\n" in text
    assert "pad           9%    1%\n" in text, "of several columns the numbers alone"


def test_a_table_wider_than_the_terminal_wraps_its_headings() -> None:
    table = Table("", ("source", "tokens per document", "bytes per token"), (("web", "1,000", "4.5"),), "lrr")
    page = Page("store", (table,))
    assert all(len(plain(line)) <= 40 for line in render_lines(page, 40, color=False))
    assert max(len(plain(line)) for line in render_lines(page, 40, color=False, wrap=False)) > 40


def test_warnings_come_first_and_tables_are_straight() -> None:
    table = Table("by source", ("source", "tokens"), (("web", "1,000"), ("books", "5")), "lr")
    text = text_of(Page("store", (Note("fine"), table), warnings=("look out",)))
    assert text.splitlines() == [
        "  store",
        "",
        "  warning: look out",
        "",
        "  fine",
        "",
        "  by source",
        "  source  tokens",
        "  web      1,000",
        "  books        5",
    ]
