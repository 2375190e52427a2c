"""Charts: lengths are those of the values, every number can be read, and no name can act."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.viewing import html
from packline.viewing.html import render_fragment, style
from packline.viewing.page import Bar, Block, Page, Table

names = st.text(min_size=1, max_size=30)


def rows_of(block: Table) -> list[ElementTree.Element]:
    """Rows of a table as XML."""
    (found,) = re.findall(r"<tbody>.*?</tbody>", render_fragment(Page("page", (block,))), re.DOTALL)
    return list(ElementTree.fromstring(found))


def drawn(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    """Elements whose first class is this one."""
    return [one for one in root.iter() if (one.get("class") or "").split()[:1] == [kind]]


def share(text: str | None) -> float:
    """A length in percent."""
    assert text is not None and text.endswith("%")
    return float(text[:-1])


@given(st.lists(st.tuples(names, st.integers(0, 10**9), st.floats(0, 1)), max_size=12))
def test_bars_are_as_long_as_their_values(rows: list[tuple[str, int, float]]) -> None:
    top = max((count for _, count, _ in rows), default=0) or 1
    bars = [Bar(f"{count:,}", count / top, part) for _, count, part in rows]
    table = Table(
        "Tokens", (), tuple((name, bar) for (name, _, _), bar in zip(rows, bars, strict=True)), "lr"
    )
    for row, (_, count, part) in zip(rows_of(table), rows, strict=True):
        plain = sum(share(one.get("width")) for one in drawn(row, "fill"))
        marked = sum(share(one.get("width")) for one in drawn(row, "part"))
        whole = max(100 * count / top, html.LEAST_BAR) if count else 0
        assert plain + marked == pytest.approx(whole, abs=0.01)
        assert marked == pytest.approx(whole * part, abs=0.01)
        assert [share(one.get("x")) for one in drawn(row, "part") if plain] == [
            pytest.approx(plain, abs=0.01) for _ in drawn(row, "part") if plain
        ], "the marked part is the last"
        assert row.findtext("td/span") == f"{count:,}"


def test_charts_use_no_style_of_their_own_and_only_classes_that_the_page_knows() -> None:
    blocks: tuple[Block, ...] = (
        Table("b", (), (("x", Bar("2", 1.0, 0.5, "warning")),), "lr", "part"),
        Table("c", ("x", "m", "n"), (("a", Bar("1", 1.0), Bar("2", 0.5)),), "lrr"),
    )
    fragment = render_fragment(Page("p", blocks))
    assert "style=" not in fragment and "fill=" not in fragment
    known = set(re.findall(r"\.([a-z][a-z-]*)", style()))
    used = {name for group in re.findall(r'class="([^"]*)"', fragment) for name in group.split()}
    assert used - known <= {"note", "quiet", "plain"}, used - known
    assert "--accent" in style() and "light-dark(" in style()
