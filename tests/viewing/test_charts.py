"""Charts: what is drawn is as long as what it stands for, every number can be read, and no name can act."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.viewing.tables import Parsed, number

from packline.viewing import charts
from packline.viewing.flow_chart import LEAST_LOST, flow, kept_share
from packline.viewing.html import document, html, style
from packline.viewing.markup import Markup
from packline.viewing.page import Bar, Bars, Block, Comparison, Flow, Histogram, Page, Stage, Stream
from packline.viewing.terminal import render_text

names = st.text(min_size=1, max_size=30)
counts = st.integers(0, 10**12)
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</svg></figure><style>*{display:none}</style>",
    "javascript:alert(1)",
    "\u202egnp.exe\x00\x1b[2J",
    "]]><!--",
)


def parse(markup: Markup) -> ElementTree.Element:
    """A figure as XML; control characters would already be an error."""
    return ElementTree.fromstring(markup)


def drawn(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    """Elements whose first class is this one."""
    return [one for one in root.iter() if (one.get("class") or "").split()[:1] == [kind]]


def share(text: str | None) -> float:
    """A length in percent."""
    assert text is not None and text.endswith("%")
    return float(text[:-1])


@given(st.lists(counts, max_size=24), st.data())
def test_bars_of_a_histogram_are_as_high_as_their_counts(values: list[int], data: st.DataObject) -> None:
    labels = tuple(data.draw(names) for _ in values)
    marks = ((data.draw(names), data.draw(st.integers(0, len(values) - 1))),) if values else ()
    root = parse(charts.histogram(Histogram("Lengths", labels, tuple(values), "documents", marks)))
    filled = [count for count in values if count]
    bars = drawn(root, "fill")
    assert len(bars) == len(filled)
    heights = [float(bar.get("height", "")) for bar in bars]
    bottoms = {round(float(bar.get("y", "")) + float(bar.get("height", "")), 0) for bar in bars}
    assert len(bottoms) <= 1, "they stand on one line"
    top = charts.nice_top(max(values, default=0))
    assert heights == [
        pytest.approx(max(charts.PLOT_HEIGHT * count / top, 1.5), abs=0.06) for count in filled
    ]
    cells = [row.findall("td")[0].text for row in root.findall(".//tbody/tr")]
    assert cells == [f"{count:,}" for count in values]
    places = [share(bar.get("x")) for bar in bars]
    assert places == sorted(places) and all(charts.PLOT_LEFT <= place <= 100 for place in places)
    assert all(share(bar.get("x")) + share(bar.get("width")) <= 100.01 for bar in bars)


@given(st.integers(0, 10**15))
def test_an_axis_holds_its_largest_count_and_divides_into_four(largest: int) -> None:
    top = charts.nice_top(largest)
    assert top % 4 == 0
    assert max(largest, 1) <= top <= max(4, 2 * largest + 4)


@given(st.lists(st.tuples(names, st.integers(0, 10**9), st.floats(0, 1)), max_size=12))
def test_bars_that_lie_are_as_long_as_their_values(rows: list[tuple[str, int, float]]) -> None:
    block = Bars("Tokens", tuple(Bar(name, n, f"{n:,}", n * part) for name, n, part in rows), "held")
    root = parse(charts.bars(block))
    top = max((count for _, count, _ in rows), default=0)
    for row, (_, count, part) in zip(root.findall(".//tr"), rows, strict=True):
        plain = sum(share(one.get("width")) for one in drawn(row, "fill"))
        marked = sum(share(one.get("width")) for one in drawn(row, "part"))
        whole = max(100 * count / top, charts.LEAST_BAR) if count else 0
        assert plain + marked == pytest.approx(whole, abs=0.01)
        assert marked == pytest.approx(whole * part, abs=0.01)
        assert [share(one.get("x")) for one in drawn(row, "part") if plain] == [
            pytest.approx(plain, abs=0.01) for _ in drawn(row, "part") if plain
        ], "the marked part is the last"
        assert row.findall("td")[-1].text == f"{count:,}"


def test_measures_are_drawn_on_one_scale_or_each_on_its_own() -> None:
    rows = (("a", (Bar("", 1, "1"), Bar("", 20, "20"))), ("b", (Bar("", 4, "4"), Bar("", 40, "40"))))
    own = parse(charts.comparison(Comparison("C", "x", ("small", "large"), rows)))
    assert [share(bar.get("width")) for bar in drawn(own, "fill")] == [25, 50, 100, 100]
    one = parse(charts.comparison(Comparison("C", "x", ("small", "large"), rows, top=40)))
    assert [share(bar.get("width")) for bar in drawn(one, "fill")] == [2.5, 50, 10, 100]
    assert [cell.text for cell in own.findall(".//thead//th")] == ["x", "small", "large"]
    assert [span.text for span in own.findall(".//td/span")] == ["1", "20", "4", "40"]


moods = st.sampled_from(["plain", "good", "warning", "bad"])
streams = st.builds(Stream, names, counts, moods)


@st.composite
def stages(draw: st.DrawFn) -> Stage:
    lost = tuple(draw(st.lists(streams, max_size=6)))
    kept = draw(counts)
    whole = kept + sum(stream.count for stream in lost)
    return Stage(draw(names), whole, "records", Stream(draw(names), kept), lost)


@given(st.lists(stages(), max_size=4))
def test_a_flow_draws_every_loss_twice_and_tells_every_number(found: list[Stage]) -> None:
    root = parse(flow(Flow("Ledger", tuple(found))))
    pictures = [one for one in root.findall("svg") if one.get("role") == "img"]
    assert len(pictures) == (2 if found else 0)
    losses = [stream for stage in found for stream in stage.lost]
    for picture in pictures:
        assert picture.find("title") is not None and picture.find("desc") is not None
        assert len(drawn(picture, "lost")) == len(losses)
        assert len(drawn(picture, "kept")) == len(drawn(picture, "node")) == len(found)
        assert all("nan" not in (path.get("d") or "") for path in picture.iter("path"))
    cells = [number(row.findall("td")[0].text or "") for row in root.findall(".//tbody/tr")]
    expected = [n for stage in found for n in (stage.count, *(s.count for s in stage.lost), stage.kept.count)]
    assert cells == expected


@given(stages())
def test_what_is_kept_is_what_is_not_lost(stage: Stage) -> None:
    lost = sum(stream.count for stream in stage.lost)
    assert kept_share(stage) == pytest.approx(stage.kept.count / stage.count if stage.count else 1)
    assert kept_share(stage) * stage.count + lost == pytest.approx(stage.count)


def test_streams_are_as_wide_as_their_shares_but_never_too_thin_to_see() -> None:
    lost = (Stream("half", 500_000, "bad"), Stream("one", 1, "warning"))
    stage = Stage("input", 1_000_000, "records", Stream("documents", 499_999), lost)
    root = parse(flow(Flow("Ledger", (stage, Stage("text", 7, "bytes", Stream("tokens", 3))))))
    wide, narrow = root.findall("svg")
    first, second = (float(one.get("height", "")) for one in drawn(wide, "kept"))
    assert first == second, "another unit does not change how wide a stream is"
    node = float(drawn(wide, "node")[0].get("height", ""))
    half = 0.5 * 116
    assert first == pytest.approx(half, rel=0.01)
    assert node == pytest.approx(first + half + LEAST_LOST, rel=0.01)
    assert [float(one.get("width", "")) for one in drawn(narrow, "kept")] == [pytest.approx(32, rel=0.01)] * 2


def test_losses_on_their_way_down_do_not_cross() -> None:
    lost = tuple(Stream(f"loss {n}", 10 * n + 1, "warning") for n in range(6))
    stage = Stage("in", 1000, "records", Stream("out", 1000 - sum(s.count for s in lost)), lost)
    wide = parse(flow(Flow("Ledger", (stage,)))).findall("svg")[0]
    downs, levels = [], []
    for path in drawn(wide, "lost"):
        d = path.get("d", "")
        found = re.match(r"M5,([\d.]+) H([\d.]+) Q([\d.]+),.* H([\d.]+) V([\d.]+) H", d)
        assert found, d
        downs.append((float(found[2]), float(found[3])))
        levels.append(float(found[5]))
    assert levels == sorted(levels), "losses are named in their order"
    for (left, _), (_, right) in itertools.pairwise(downs):
        assert right < left, "who ends higher goes down further to the right"


def test_where_nothing_is_kept_no_stream_is_filled() -> None:
    gone = Stage("in", 5, "records", Stream("documents", 0), (Stream("bad", 5, "bad"),))
    root = parse(flow(Flow("Ledger", (gone,))))
    assert {one.get("class") for one in drawn(root, "kept")} == {"kept none"}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_name_becomes_markup_in_any_chart(hostile: str) -> None:
    stream = Stream(hostile, 1, "bad", hostile)
    blocks: list[Block] = [
        Histogram(hostile, (hostile, "2"), (1, 2), hostile, ((hostile, 1),)),
        Bars(hostile, (Bar(hostile, 1, hostile, 0.5),), hostile),
        Comparison(hostile, hostile, (hostile,), ((hostile, (Bar(hostile, 1, hostile),)),)),
        Flow(hostile, (Stage(hostile, 2, hostile, stream, (stream,)),)),
    ]
    for block in blocks:
        text = html(Page("p", (block,)))
        parsed = Parsed(text)
        assert not parsed.tags & {"script", "style", "img", "iframe", "a", "object", "foreignobject"}
        assert not {name for name in parsed.attributes if name.startswith("on")} | (
            parsed.attributes & {"style", "href", "src"}
        )
        assert not parsed.open and not parsed.unbalanced
        assert not set(text) & {"\u202e", "\x00", "\x1b"}
        assert (
            hostile.partition("\u202e")[0][:4]
            .replace("<", "&lt;")
            .replace(">", "&gt;")
            .replace('"', "&quot;")
            in text
        ), "it is shown"
        assert "\x1b" not in render_text(Page("p", (block,)))


def test_charts_use_no_style_of_their_own_and_only_classes_that_the_page_knows() -> None:
    stage = Stage("in", 3, "records", Stream("out", 2), (Stream("bad", 1, "bad"),))
    blocks = (
        Histogram("h", ("1",), (1,), "documents", (("half", 0),)),
        Bars("b", (Bar("x", 2, "2", 1),), "part"),
        Comparison("c", "x", ("m",), (("a", (Bar("", 1, "1"),)),)),
        Flow("f", (stage,)),
    )
    fragment = html(Page("p", blocks))
    assert "style=" not in fragment and "fill=" not in fragment
    known = set(re.findall(r"\.([a-z][a-z-]*)", style()))
    used = {name for group in re.findall(r'class="([^"]*)"', fragment) for name in group.split()}
    assert used - known <= {"note", "axis", "quiet"}, used - known
    assert "--accent" in style() and "prefers-color-scheme: dark" in style()
    assert "@container" in document(Page("p", blocks))
