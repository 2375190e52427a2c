"""A text as several tokenizers split it, live as one types; without a script the form does the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np

from packline.errors import RecipeError
from packline.store.reader import document_number
from packline.viewing.html import LONGEST_TEXT
from packline.viewing.page import (
    Block,
    Cell,
    CopyText,
    Form,
    FormField,
    Link,
    Links,
    Note,
    Page,
    Panel,
    Table,
    TokenStrip,
    choice_field,
)
from packline.viewing.text import plural
from packline.viewing.tokens import cells_of
from packline.viewing.turns import with_turns
from packline.viewing.view import plain_bytes
from packline.viewing.web.pages import store_field
from packline.viewing.web.site import SiteTokenizer, View, choice, number

SPECIAL = (("text", "are text, as in a build"), ("control", "are control tokens"))
"""Meaning of a name such as `<|endoftext|>` in the text."""
SHOWN_TOKENS = 512
TOKENS_OF_DOCUMENT = 400
CHOSEN = 3
"""Tokenizers that are compared if the address names none."""
SAMPLES = (
    ("English", "The quick brown fox jumps over 13 lazy dogs; naïve café costs €5."),
    ("code", "def mean(numbers):\n    return sum(numbers) / len(numbers)  # Σx ⁄ n\n"),
    ("numbers", "3.14159 1,000,000 2026-11-22 0xdeadbeef 1e-9"),
    ("Chinese", "人人生而自由，在尊严和权利上一律平等。"),
    ("Japanese", "すべての人間は、生まれながらにして自由である。"),
    ("Hindi", "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है।"),
    ("Thai", "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ"),
    ("Arabic", "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق."),
    ("emoji", "👩‍👩‍👧‍👦 👍🏽 🇯🇵 a family, a skin tone, a flag"),
)
CHATS = (
    ("<|start_header_id|>", "<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>"),
    ("<|user_start|>", "<|{role}_start|>{text}<|{role}_end|>"),
    ("<start_of_turn>", "<start_of_turn>{role}\n{text}<end_of_turn>\n"),
    ("<|im_start|>", "<|im_start|>{role}\n{text}<|im_end|>\n"),
)
"""Control token by which a format of conversations is recognized, and its turns; the last is the default."""
TALK = (("user", "What is two plus two?"), ("assistant", "Four."), ("user", "And three?"))


def tokenizers(view: View) -> Page:
    known = view.site.tokenizers
    chosen = [place for place in range(len(known)) if number(view.params, f"t{place}", 0, most=1)]
    chosen = chosen or list(range(min(len(known), CHOSEN)))
    special = choice(view.params, "special", [value for value, _ in SPECIAL], "text")
    text, of = _text(view)
    checks = tuple(
        FormField(f"t{place}", one.name, "1" if place in chosen else "", "check")
        for place, one in enumerate(known)
        if len(known) > 1
    )
    form = Form(
        "What to compare",
        "/compare/tokenizers",
        (
            FormField("text", f"Text, at most {LONGEST_TEXT:,} characters", text, "area"),
            *checks,
            choice_field("special", "Names of control tokens", special, SPECIAL),
            *store_field(view),
        ),
        "Compare",
        live=True,
    )
    blocks: list[Block] = [form, _samples(view, [known[place] for place in chosen])]
    if text:
        shown = _split(text, [known[place] for place in chosen], special == "control")
    else:
        shown = [Note("Type or paste a text, or choose a sample, to see how it is split.")]
    blocks.append(Panel("live", (tuple(shown),)))
    if len(known) == 1:
        blocks.append(
            Note(
                "There is only one tokenizer, that of the store. To compare it with others, name them when "
                "the viewer is started: packline serve STORE --tokenizer OTHER."
            )
        )
    return Page("Compare tokenizers", tuple(blocks), summary=of)


def _split(text: str, chosen: list[SiteTokenizer], control: bool) -> list[Block]:
    cut = [_cut(one, text, control=control) for one in chosen]
    parts: list[tuple[Block, ...]] = []
    for one, cells in zip(chosen, cut, strict=True):
        more = sum(len(cell.ids) for cell in cells[SHOWN_TOKENS:])
        caption = f"{one.name}, {plural(_count(cells), 'token')}"
        strip = with_turns(TokenStrip(caption, cells[:SHOWN_TOKENS], more=more))
        ids = " ".join(str(number) for cell in cells for number in cell.ids)
        parts.append((strip, CopyText(f"ids of {one.name}", ids)))
    return [_table(text, chosen, cut), Panel("beside", tuple(parts))]


def _samples(view: View, chosen: list[SiteTokenizer]) -> Links:
    """Links to sample texts, a conversation in the format of the first tokenizer among them."""
    kept = {f"t{place}": view.params.get(f"t{place}") for place in range(len(view.site.tokenizers))}
    links = [
        Link(name, view.href("/compare/tokenizers", text=text, **kept, special=view.params.get("special")))
        for name, text in SAMPLES
    ]
    known = (turn for one in chosen for begin, turn in CHATS if begin in one.tokenizer.special_tokens)
    turn = next(known, CHATS[-1][1])
    talk = "".join(turn.format(role=role, text=text) for role, text in TALK)
    links.append(Link("conversation", view.href("/compare/tokenizers", text=talk, **kept, special="control")))
    return Links("Samples", ("Samples:", *links))


def _text(view: View) -> tuple[str, str]:
    text = view.params.get("text", "").replace("\r\n", "\n")
    if len(text) > LONGEST_TEXT:
        raise RecipeError(f"a text of {len(text):,} characters: expected at most {LONGEST_TEXT:,}")
    if text or not view.params.get("document"):
        return text, ""
    wanted = document_number(
        view.store, number(view.params, "document", 0, most=len(view.store.documents) - 1)
    )
    entry = view.store.manifest.tokenizer
    tokens = view.store.documents[wanted][0 if entry.bos_id is None else 1 : -1]
    part = "" if len(tokens) <= TOKENS_OF_DOCUMENT else f", its first {TOKENS_OF_DOCUMENT} tokens"
    text = plain_bytes(view.vocabulary, tokens[:TOKENS_OF_DOCUMENT].tolist()).decode(
        "utf-8", "backslashreplace"
    )
    return text[:LONGEST_TEXT], f"the text of document {wanted:,}{part}"


def _cut(one: SiteTokenizer, text: str, *, control: bool) -> tuple[Cell, ...]:
    ids = one.encode(text, control=control)
    return tuple(replace(cell, starts=False) for cell in cells_of(one.vocabulary, np.array(ids, np.int64)))


def _table(text: str, chosen: list[SiteTokenizer], cut: list[tuple[Cell, ...]]) -> Table:
    """Table that compares the token sequences in numbers."""
    size = len(text.encode("utf-8", "surrogatepass"))
    edges = [_edges(cells, text) for cells in cut]
    shared = set.intersection(*([one for one in edges if one is not None] or [set()]))
    rows = tuple(
        (
            one.name,
            f"{len(one.vocabulary):,}",
            f"{_count(cells):,}",
            f"{size / max(_count(cells), 1):.2f}",
            "changes the text" if own is None else f"{100 * len(shared) / max(len(own), 1):.0f}%",
        )
        for one, cells, own in zip(chosen, cut, edges, strict=True)
    )
    head = ("tokenizer", "vocabulary", "tokens", "bytes/token", "shared boundaries")
    return Table(f"A text of {size:,} bytes", head, rows, "lrrrr")


def _count(cells: tuple[Cell, ...]) -> int:
    return sum(len(cell.ids) for cell in cells)


def _edges(cells: tuple[Cell, ...], text: str) -> set[int] | None:
    """Byte offsets of the ends of tokens in a text; None if they are tokens of another text.

    Some tokenizers put a space before the text; some normalize it or lose characters.

    >>> tokens = [Cell(one, (0,), one.encode(), 0) for one in (" hell", "o")]
    >>> sorted(_edges(tuple(tokens), "hello")), _edges(tuple(tokens), "Hello")
    ([4, 5], None)
    """
    written, expected = b"".join(cell.data for cell in cells), text.encode("utf-8", "surrogatepass")
    if written not in (expected, b" " + expected):
        return None
    return set(accumulate((len(cell.data) for cell in cells), initial=len(expected) - len(written))) - {0, -1}
