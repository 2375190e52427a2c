"""The flow of a ledger as SVG: the amount that enters each stage, what is kept, and each loss by name.

    wide      stages from left to right, losses branch off downwards
    narrow    stages from the top down, losses branch off to the right

A page contains both drawings and its style shows the one that fits. The width of a stream is its share of
the amount that enters, with a minimum that keeps even a loss of one in a million visible. Stages may count in
different units (documents, then bytes, then tokens): the stream that leaves a stage is as wide as the share
that was not lost.

Horizontal lengths of the wide drawing are shares of the width, so letters keep their size in any window.
"""

from __future__ import annotations

from collections.abc import Sequence

from packline.viewing.figures import figure, numbers
from packline.viewing.markup import Markup, element, joined
from packline.viewing.page import Flow, Stage, Stream
from packline.viewing.text import cut, percent

HEIGHT = 116.0
"""Height of the first stream, in pixels."""
LEAST_KEPT = 56.0
LEAST_LOST = 3.0
LABEL_LINE = 19
HEAD_HEIGHT = 52
LETTER = 7.6
"""Width of a letter in pixels, used to fit text."""
NARROW = 340
"""Width of the narrow drawing, in pixels."""
NODE = 5
"""Width of the bar at which a stage begins, in pixels."""
BETWEEN = 4
"""Pixels between the vertical parts of losses."""
STREAM = 64.0
"""Width of the first stream in the narrow drawing, in pixels."""
BRANCH = 26.0
"""Maximum width of a loss at its end, in pixels."""


def flow(block: Flow) -> Markup:
    """Figure with both drawings and a table of the numbers.

    >>> kept, lost = Stream("documents", 9), Stream("too short", 1, "warning")
    >>> drawn = flow(Flow("Ledger", (Stage("records in", 10, "records", kept, (lost,)),)))
    >>> drawn.count("<svg"), "<td class=\\"r\\">10.0%</td>" in drawn
    (3, True)
    """
    described = "; ".join(map(_described, block.stages)) or "nothing"
    names = [element("title", block.caption), element("desc", described)]
    rows = [row for stage in block.stages for row in _rows(stage)]
    return figure(
        block.caption,
        joined(_wide(block.stages, names), _narrow(block.stages, names)) if block.stages else Markup(),
        numbers(block.caption, ("what", "count", "share"), rows),
    )


def kept_share(stage: Stage) -> float:
    """Share of the entering amount that is not lost, whatever unit the next stage counts in.

    >>> kept_share(Stage("in", 10, "records", Stream("documents", 8), (Stream("empty", 2),)))
    0.8
    """
    lost = sum(stream.count for stream in stage.lost)
    return max(stage.count - lost, 0) / stage.count if stage.count else 1.0


def lost_share(stage: Stage, stream: Stream) -> str:
    """A loss as a share of the entering amount."""
    return percent(stream.count / stage.count) if stage.count else ""


def _described(stage: Stage) -> str:
    losses = ", ".join(f"{stream.count:,} {stream.label}" for stream in stage.lost)
    left = f", of which leave {losses}" if losses else ""
    return f"{stage.label}: {stage.count:,} {stage.unit}{left}; then {stage.kept.count:,} {stage.kept.label}"


def _rows(stage: Stage) -> list[tuple[str, str, str]]:
    rows = [(stage.label, f"{stage.count:,}", "")]
    rows += [
        (f"less {stream.label}", f"{stream.count:,}", lost_share(stage, stream)) for stream in stage.lost
    ]
    return [*rows, (f"then {stage.kept.label}", f"{stage.kept.count:,}", "")]


def _widths(stage: Stage, whole: float, least: float) -> tuple[float, list[float]]:
    """Widths of the kept stream and of each loss, out of `whole` pixels or slightly more."""
    kept = max(whole * kept_share(stage), least)
    lost = [
        max(whole * stream.count / stage.count, LEAST_LOST) if stage.count else 0.0 for stream in stage.lost
    ]
    return kept, lost


def _wide(stages: Sequence[Stage], names: list[Markup]) -> Markup:
    column = 100 / len(stages)
    letters = int(1080 * column / 100 / LETTER)  # for the widest page; a narrower one has the table
    drawn: list[Markup] = []
    whole, lowest = HEIGHT, HEAD_HEIGHT + HEIGHT
    for number, stage in enumerate(stages):
        left = column * number
        kept, lost = _widths(stage, whole, LEAST_KEPT)
        drawn += _head(stage, left, letters)
        drawn.append(
            element(
                "rect",
                x=f"{left:.3f}%",
                y=HEAD_HEIGHT,
                width=f"{column:.3f}%",
                height=f"{kept:.1f}",
                class_=_kept_class(stage),
            )
        )
        drawn += _kept_text(stage.kept, left, HEAD_HEIGHT + kept / 2, letters)
        tall = kept + sum(lost)
        ends = [min(thick, BRANCH) for thick in lost]
        x = NODE + 8 + sum(end + BETWEEN for end in ends)
        tip = x + 14
        y, label = HEAD_HEIGHT + kept, HEAD_HEIGHT + tall + 34
        branches = []
        for stream, thick, end in zip(stage.lost, lost, ends, strict=True):
            x -= end + BETWEEN
            path = _down_and_right(y, thick, x, end, label + 6, tip)
            branches.append(element("path", d=path, class_=f"lost {stream.mood}"))
            drawn += _lost_text(stage, stream, f"{left:.3f}%", tip + 8, label, letters - 8)
            y, label = y + thick, label + 2 * LABEL_LINE + 10
        drawn.append(element("svg", branches, x=f"{left:.3f}%", overflow="visible"))
        drawn.append(
            element(
                "rect", x=f"{left:.3f}%", y=HEAD_HEIGHT, width=NODE, height=f"{tall:.1f}", rx=2, class_="node"
            )
        )
        lowest = max(lowest, label - 10 if stage.lost else HEAD_HEIGHT + tall)
        whole = kept
    return element(
        "svg",
        names,
        drawn,
        role="img",
        width="100%",
        height=f"{lowest + 12:.0f}",
        class_="plot flow wide",
    )


def _head(stage: Stage, left: float, letters: int) -> list[Markup]:
    """Label above the stage with the amount that enters."""
    x = f"{left:.3f}%"
    return [
        element("text", cut(stage.label, letters), x=x, y=16, class_="quiet"),
        element("text", cut(f"{stage.count:,} {stage.unit}", letters), x=x, y=38, class_="count"),
    ]


def _kept_text(stream: Stream, left: float, middle: float, letters: int) -> list[Markup]:
    x = f"{left:.3f}%"
    lines = [(f"{stream.count:,} {stream.label}", "name"), *([(stream.note, "quiet")] if stream.note else [])]
    start = middle + 5 - LABEL_LINE * (len(lines) - 1) / 2
    return [
        element("text", cut(text, letters - 4), x=x, dx=20, y=f"{start + LABEL_LINE * line:.1f}", class_=kind)
        for line, (text, kind) in enumerate(lines)
    ]


def _lost_text(stage: Stage, stream: Stream, x: str | int, dx: float, y: float, letters: int) -> list[Markup]:
    more = f", {stream.note}" if stream.note else ""
    share = lost_share(stage, stream)
    return [
        element(
            "text",
            cut(stream.label, letters),
            x=x,
            dx=f"{dx:.1f}",
            y=f"{y:.1f}",
            class_=f"name {stream.mood}",
        ),
        element(
            "text",
            cut(f"−{stream.count:,} ({share}){more}", letters),
            x=x,
            dx=f"{dx:.1f}",
            y=f"{y + LABEL_LINE:.1f}",
        ),
    ]


def _kept_class(stage: Stage) -> str:
    """Class of the kept stream: an empty outline if everything is lost."""
    return "kept" if stage.kept.count or not stage.count else "kept none"


def _down_and_right(y: float, thick: float, x: float, end: float, level: float, tip: float) -> str:
    """Outline of a loss: from the stage to the right, down at `x`, and to the right again up to `tip`.

    Losses that leave higher turn down further to the right and end higher, so none crosses another.
    """
    top, bottom, turn = level - end / 2, level + end / 2, 8.0
    return (
        f"M{NODE},{y:.1f} H{x:.1f} Q{x + end:.1f},{y:.1f} {x + end:.1f},{y + end + turn:.1f} "
        f"V{top - turn:.1f} Q{x + end:.1f},{top:.1f} {x + end + turn:.1f},{top:.1f} H{tip:.1f} "
        f"V{bottom:.1f} H{x + end + turn:.1f} Q{x:.1f},{bottom:.1f} {x:.1f},{top - turn:.1f} "
        f"V{y + thick + turn:.1f} Q{x:.1f},{y + thick:.1f} {x - turn:.1f},{y + thick:.1f} H{NODE} Z"
    )


def _narrow(stages: Sequence[Stage], names: list[Markup]) -> Markup:
    drawn: list[Markup] = []
    whole, y = STREAM, 0.0
    text = STREAM + 34
    letters = int((NARROW - text) / LETTER)
    for stage in stages:
        kept, lost = _widths(stage, whole, 14.0)
        drawn.append(element("text", cut(stage.label, 40), x=0, y=f"{y + 16:.1f}", class_="quiet"))
        drawn.append(
            element("text", cut(f"{stage.count:,} {stage.unit}", 34), x=0, y=f"{y + 38:.1f}", class_="count")
        )
        top = y + HEAD_HEIGHT
        label = top + 26
        x = kept + sum(lost)
        for stream, thick in reversed(list(zip(stage.lost, lost, strict=True))):
            end = min(thick, BRANCH)
            low, high, tip = label + 4 - end / 2, label + 4 + end / 2, text - 8
            path = (
                f"M{x:.1f},{top:.1f} C{x:.1f},{low:.1f} {x:.1f},{low:.1f} {tip:.1f},{low:.1f} V{high:.1f} "
                f"C{x - thick:.1f},{high:.1f} {x - thick:.1f},{high:.1f} {x - thick:.1f},{top:.1f} Z"
            )
            drawn.append(element("path", d=path, class_=f"lost {stream.mood}"))
            drawn += _lost_text(stage, stream, 0, text, label, letters)
            x, label = x - thick, label + 2 * LABEL_LINE + 10
        bottom = label + 2 * LABEL_LINE
        drawn.append(
            element(
                "rect",
                x=0,
                y=f"{top:.1f}",
                width=f"{kept:.1f}",
                height=f"{bottom - top:.1f}",
                class_=_kept_class(stage),
            )
        )
        drawn.append(
            element(
                "rect", x=0, y=f"{top:.1f}", width=f"{kept + sum(lost):.1f}", height=5, rx=2, class_="node"
            )
        )
        lines = [(f"{stage.kept.count:,} {stage.kept.label}", "name")]
        lines += [(stage.kept.note, "quiet")] if stage.kept.note else []
        for line, (words, kind) in enumerate(lines):
            drawn.append(
                element(
                    "text", cut(words, letters), x=text, y=f"{label + 6 + LABEL_LINE * line:.1f}", class_=kind
                )
            )
        y, whole = bottom + 16, kept
    return element(
        "svg", names, drawn, role="img", width="100%", height=f"{y:.0f}", class_="plot flow narrow"
    )
