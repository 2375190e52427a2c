"""An evaluation of a tokenizer (`encoders.evaluating`) as a page, and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from packline.encoders.parity import RoundTrip
from packline.viewing.page import Block, Heading, KeyValues, Note, Page, Table
from packline.viewing.text import percent
from packline.vocabulary.evaluating import ComparisonRow, Evaluation, Measured, TokenizerComparison

OURS = ("Text Type", "Bytes", "Tokens", "Ratio", "Fertility")
LEGEND = (
    "Ratio: bytes per token, more is better. Relative Diff: how many fewer tokens ours needs"
    " than the other. Fertility: tokens per word, of words between white space."
)
ROUND_TRIPS: dict[RoundTrip, str] = {
    "exact": "exact, checked on every text",
    "normalized": "exact for the normalized text, checked on every text",
    "lossy": "lossy: white space, case or letters are changed",
}


def evaluation_page(found: Evaluation) -> Page:
    blocks: list[Block] = [
        KeyValues(
            (
                ("vocabulary", f"{found.vocab_size:,} tokens"),
                ("unused by these texts", _unused(found.unused, found.vocab_size)),
                ("round trip", ROUND_TRIPS[found.round_trip]),
            )
        ),
        Note(LEGEND),
    ]
    if not found.comparisons:
        rows = tuple(
            (name, f"{found.texts[name]:,}", *_measured(one)) for name, one in found.measured.items()
        )
        blocks.append(Table("Ours", OURS, rows, "lrrrr"))
        languages = tuple((name, *_measured(one)) for name, one in found.languages.items())
        blocks.append(
            Table("The same sentences in several languages", ("Language", *OURS[2:]), languages, "lrrr")
        )
    blocks += _unknown(found.tokenizer, found.measured | found.languages)
    for one in found.comparisons:
        blocks += [Heading(f"Compared with {one.base}"), _facts(one)]
        blocks.append(Table("By kind of text", head(one), _cells([*one.rows, one.whole]), "lrrrrrrl"))
        blocks.append(
            Table(
                "The same sentences in several languages",
                ("Language", *head(one)[1:]),
                _cells(one.languages),
                "lrrrrrrl",
            )
        )
        blocks += _unknown(one.base, {row.text: row.base for row in [*one.rows, *one.languages]})
    blocks += [Note(f"{one.base} is not available: {one.reason}", "warning") for one in found.absent]
    return Page(f"Tokenizer {found.tokenizer}", tuple(blocks))


def head(one: TokenizerComparison) -> tuple[str, ...]:
    base = one.base.rstrip("/").rpartition("/")[2]
    return (
        "Text Type",
        "Bytes",
        f"{base} Tokens",
        "Ratio",
        "Ours Tokens",
        "Ratio",
        "Relative Diff %",
        "Better",
    )


def _unknown(name: str, texts: Mapping[str, Measured]) -> list[Block]:
    """Warnings about text that a vocabulary has no tokens for, where a low token count means nothing."""
    counts = {text: one.unknown for text, one in texts.items() if one.unknown}
    if not counts:
        return []
    listed = ", ".join(f"{text} {count:,}" for text, count in counts.items())
    return [
        Note(
            f"{name} has no tokens for parts of these texts, so low counts there mean nothing."
            f" Unknown tokens: {listed}.",
            "warning",
        )
    ]


def _measured(one: Measured) -> tuple[str, str, str]:
    return f"{one.tokens:,}", f"{one.bytes_per_token:.2f}", f"{one.fertility:.2f}"


def _unused(count: int, whole: int) -> str:
    return f"{count:,} tokens, {percent(count / max(whole, 1))}"


def _facts(one: TokenizerComparison) -> KeyValues:
    return KeyValues(
        (
            ("vocabulary", f"{one.base_vocab_size:,} tokens"),
            ("unused by these texts", _unused(one.base_unused, one.base_vocab_size)),
            ("round trip", ROUND_TRIPS[one.base_round_trip]),
            ("tokens per word", f"{one.whole.base.fertility:.2f}, ours {one.whole.ours.fertility:.2f}"),
        )
    )


def _cells(rows: Sequence[ComparisonRow]) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (
            row.text,
            f"{row.bytes:,}",
            f"{row.base.tokens:,}",
            f"{row.base.bytes_per_token:.2f}",
            f"{row.ours.tokens:,}",
            f"{row.ours.bytes_per_token:.2f}",
            f"{row.diff_percent:+.1f}%" if row.better != "neither" else "-",
            row.better,
        )
        for row in rows
    )


def evaluation_markdown(found: Evaluation) -> str:
    lines = [f"# Tokenizer {_safe(found.tokenizer)}"]
    for block in evaluation_page(found).blocks:
        lines.append("")
        if isinstance(block, Heading):
            lines.append(f"## {_safe(block.text)}")
        elif isinstance(block, Note):
            lines.append(_safe(block.text))
        elif isinstance(block, KeyValues):
            lines += [f"- {name}: {_safe(str(value))}" for name, value in block.rows]
        elif isinstance(block, Table):
            lines += [f"### {block.caption}", "", _line(block.head_texts)]
            lines.append("|" + "|".join("---:" if side == "r" else "---" for side in block.align) + "|")
            lines += [_line(tuple(map(str, row))) for row in block.rows]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_safe(cell) for cell in cells) + " |"


def _safe(text: str) -> str:
    """Escape a text, such as a file name, so that it cannot act as Markdown."""
    return "".join(f"\\{letter}" if letter in "\\`|<>[]*_#" else letter for letter in text).replace("\n", " ")
