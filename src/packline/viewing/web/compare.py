"""Pages that compare: two tokenizers on one text, two stores.

The tokenizers are those of the stores and those named when the viewer was started. An address selects them
by number, so it cannot make the viewer read anything else.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from packline.errors import RecipeError
from packline.store.reader import document_number
from packline.viewing.describe import length_facts, store_facts
from packline.viewing.html import LONGEST_TEXT
from packline.viewing.page import (
    Block,
    Cell,
    Form,
    FormField,
    Heading,
    Link,
    Links,
    Note,
    Page,
    SideBySide,
    Table,
    TokenStrip,
)
from packline.viewing.tokens import cells_of, document_strip
from packline.viewing.web.pages import plain_text, store_field
from packline.viewing.web.site import ServedStore, SiteTokenizer, View, choice, number

SPECIAL = (("text", "are text, as in a build"), ("control", "are control tokens"))
"""Meaning of a name such as `<|endoftext|>` in the text."""
SHOWN_TOKENS = 512
TOKENS_OF_DOCUMENT = 400
"""Tokens of a document whose text is compared, at most."""


def tokenizers(view: View) -> Page:
    """Page of a text as two tokenizers split it."""
    known = view.site.tokenizers
    names = tuple((str(place), one.name) for place, one in enumerate(known))
    numbers = [value for value, _ in names]
    left = choice(view.params, "left", numbers, "0")
    right = choice(view.params, "right", numbers, "1" if len(known) > 1 else "0")
    special = choice(view.params, "special", [value for value, _ in SPECIAL], "text")
    text, of = _text(view)
    form = Form(
        "What to compare",
        "/compare/tokenizers",
        (
            FormField("text", "Text", text, "area"),
            FormField("left", "Left", left, "choice", names),
            FormField("right", "Right", right, "choice", names),
            FormField("special", "Names of control tokens", special, "choice", SPECIAL),
            *store_field(view),
        ),
        "Compare",
    )
    blocks: list[Block] = [form]
    if len(known) == 1:
        blocks.append(
            Note(
                "There is only one tokenizer, that of the store. To compare it with others, name them when "
                "the viewer is started: packline serve STORE --tokenizer OTHER."
            )
        )
    if text:
        chosen = [known[int(left)]] if left == right else [known[int(left)], known[int(right)]]
        cut = [_cut(one, text, control=special == "control") for one in chosen]
        blocks.append(_table(text, chosen, cut))
        blocks.append(
            SideBySide(
                tuple(
                    (
                        TokenStrip(
                            one.name,
                            cells[:SHOWN_TOKENS],
                            more=sum(len(cell.ids) for cell in cells[SHOWN_TOKENS:]),
                        ),
                    )
                    for one, cells in zip(chosen, cut, strict=True)
                )
            )
        )
    elif not of:
        blocks.append(Note("Type or paste a text to see where each tokenizer cuts it."))
    return Page("Compare tokenizers", tuple(blocks), summary=of)


def _text(view: View) -> tuple[str, str]:
    """Text to compare, and its origin.

    Raises:
        RecipeError: the text is too long.
        StoreError: the document does not exist.
    """
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
    text = plain_text(view.vocabulary, tokens[:TOKENS_OF_DOCUMENT].tolist())
    return text[:LONGEST_TEXT], f"the text of document {wanted:,}{part}"


def _cut(one: SiteTokenizer, text: str, *, control: bool) -> tuple[Cell, ...]:
    ids = one.encode(text, control=control)
    return cells_of(one.vocabulary, np.array(ids, np.int64))


def _table(text: str, chosen: list[SiteTokenizer], cut: list[tuple[Cell, ...]]) -> Table:
    """Table that compares the token sequences in numbers."""
    size = len(text.encode("utf-8", "surrogatepass"))
    edges = [_edges(cells) for cells in cut]
    shared = set.intersection(*edges)
    rows = tuple(
        (
            one.name,
            f"{len(one.vocabulary):,}",
            f"{_count(cells):,}",
            f"{size / max(_count(cells), 1):.2f}",
            f"{100 * len(shared) / max(len(own), 1):.0f}%",
        )
        for one, cells, own in zip(chosen, cut, edges, strict=True)
    )
    head = ("tokenizer", "vocabulary", "tokens", "bytes/token", "shared boundaries")
    return Table(f"A text of {size:,} bytes", head, rows, "lrrrr")


def _count(cells: tuple[Cell, ...]) -> int:
    return sum(len(cell.ids) for cell in cells)


def _edges(cells: tuple[Cell, ...]) -> set[int]:
    """Byte offsets of the ends of tokens."""
    return set(accumulate(len(cell.data) for cell in cells))


def stores(view: View) -> Page:
    """Page of two stores side by side."""
    known = view.site.stores
    if len(known) == 1:
        text = "There is only one store. To compare two, name both when the viewer is started: "
        text += "packline serve ONE TWO."
        return Page("Compare stores", (Note(text),))
    default = "0" if view.number else "1"
    other = known[int(choice(view.params, "other", [str(place) for place in range(len(known))], default))]
    names = tuple((str(place), f"{place}: {one.name}") for place, one in enumerate(known))
    fields = (
        FormField("store", "Store", str(view.number), "choice", names),
        FormField("other", "Other store", view.params.get("other") or default, "choice", names),
        FormField("document", "Document", view.params.get("document", ""), "number"),
    )
    pair = (view.opened, other)
    blocks: list[Block] = [Form("What to compare", "/compare/stores", fields, "Compare"), _facts(pair)]
    blocks += [Heading("Sources"), _sources(pair)]
    if view.params.get("document"):
        most = min(len(one.store.documents) for one in pair) - 1
        wanted = number(view.params, "document", 0, most=most)
        blocks += [
            Heading(f"Document {wanted:,}"),
            SideBySide(tuple((_document(one, wanted),) for one in pair)),
        ]
        ways = (
            Link(
                f"document {place:,}",
                view.href("/compare/stores", other=str(known.index(other)), document=place),
            )
            for place in (wanted - 1, wanted + 1)
            if 0 <= place <= most
        )
        blocks.append(Links("Neighbors", tuple(ways)))
    return Page("Compare stores", tuple(blocks), summary=f"{pair[0].name} and {pair[1].name}")


def _document(opened: ServedStore, wanted: int) -> TokenStrip:
    provenance = opened.provenance.of([wanted])[wanted]
    strip = document_strip(opened.store, wanted, most=SHOWN_TOKENS, provenance=provenance)
    return TokenStrip(opened.name, strip.cells, strip.origins, strip.more)


def _facts(pair: tuple[ServedStore, ServedStore]) -> Table:
    def values(opened: ServedStore) -> dict[str, str]:
        lengths = () if opened.lengths is None else length_facts(opened.lengths)
        fingerprint = opened.store.manifest.tokenizer.fingerprint[:12]
        return dict((*store_facts(opened.store), ("tokenizer fingerprint", fingerprint), *lengths))

    left, right = map(values, pair)
    rows = tuple(
        (
            name,
            left.get(name, ""),
            right.get(name, ""),
            "same" if left.get(name) == right.get(name) else "differs",
        )
        for name in dict.fromkeys([*left, *right])
    )
    return Table("Facts", ("", pair[0].name, pair[1].name, "compared"), rows, "llll")


def _sources(pair: tuple[ServedStore, ServedStore]) -> Table:
    """Table of the tokens of each source in both stores."""
    found: dict[str, list[int]] = {}
    for place, opened in enumerate(pair):
        for group in opened.groups:
            counts = found.setdefault(group.source, [0, 0, 0, 0])
            counts[2 * place] += group.documents
            counts[2 * place + 1] += group.tokens
    rows = tuple((source, *(f"{count:,}" for count in counts)) for source, counts in sorted(found.items()))
    left, right = (opened.name for opened in pair)
    head = ("source", f"documents of {left}", "tokens", f"documents of {right}", "tokens")
    return Table("Documents and tokens by source, all splits", head, rows, "lrrrr")
