"""Pages that compare: two tokenizers on one text, two stores.

The tokenizers are those of the stores and those named when the viewer was started. An address selects them
by number, so it cannot make the viewer read anything else.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from packline.errors import RecipeError
from packline.store.lookup import document_number
from packline.viewing.cells import cells_of
from packline.viewing.html_controls import LONGEST_TEXT
from packline.viewing.page import (
    Beside,
    Block,
    Cell,
    Field,
    Form,
    Heading,
    Link,
    Links,
    Note,
    Page,
    Strip,
    Table,
)
from packline.viewing.strips import document_strip
from packline.viewing.text import plural
from packline.viewing.web.pages import groups, plain_text, store_field
from packline.viewing.web.params import choice, number
from packline.viewing.web.site import Choice, Opened, View

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
            Field("text", "Text", text, "area"),
            Field("left", "Left", left, "choice", names),
            Field("right", "Right", right, "choice", names),
            Field("special", "Names of control tokens", special, "choice", SPECIAL),
            *store_field(view),
        ),
        "Compare",
    )
    blocks: list[Block] = [form]
    if len(known) == 1:
        blocks.append(
            Note(
                "There is one tokenizer only, that of the store. To compare it with others, name them when "
                "the viewer is started: packline serve STORE --tokenizer OTHER."
            )
        )
    if text:
        chosen = [known[int(left)]] if left == right else [known[int(left)], known[int(right)]]
        cut = [_cut(one, text, control=special == "control") for one in chosen]
        blocks.append(_table(text, chosen, cut))
        blocks.append(
            Beside(
                tuple(
                    (
                        Strip(
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


def _cut(one: Choice, text: str, *, control: bool) -> tuple[Cell, ...]:
    ids = one.encode(text, control=control)
    return cells_of(one.vocabulary, np.array(ids, np.int64))


def _table(text: str, chosen: list[Choice], cut: list[tuple[Cell, ...]]) -> Table:
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
        text = "There is one store only. To compare two, name both when the viewer is started: "
        text += "packline serve ONE TWO."
        return Page("Compare stores", (Note(text),))
    default = "0" if view.number else "1"
    other = known[int(choice(view.params, "other", [str(place) for place in range(len(known))], default))]
    names = tuple((str(place), f"{place}: {one.name}") for place, one in enumerate(known))
    fields = (
        Field("store", "Store", str(view.number), "choice", names),
        Field("other", "Other store", view.params.get("other") or default, "choice", names),
        Field("document", "Document", view.params.get("document", ""), "number"),
    )
    pair = (view.opened, other)
    blocks: list[Block] = [Form("What to compare", "/compare/stores", fields, "Compare"), _facts(pair)]
    blocks += [Heading("Sources"), _sources(view, pair)]
    if view.params.get("document"):
        most = min(len(one.store.documents) for one in pair) - 1
        wanted = number(view.params, "document", 0, most=most)
        blocks += [Heading(f"Document {wanted:,}"), Beside(tuple((_document(one, wanted),) for one in pair))]
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


def _document(opened: Opened, wanted: int) -> Strip:
    provenance = opened.origins.of([wanted])[wanted]
    strip = document_strip(opened.store, wanted, most=SHOWN_TOKENS, provenance=provenance)
    return Strip(opened.name, strip.cells, strip.origins, strip.more)


def _facts(pair: tuple[Opened, Opened]) -> Table:
    def values(opened: Opened) -> dict[str, str]:
        manifest, lengths = opened.store.manifest, opened.lengths
        ledger, entry = manifest.ledger, manifest.tokenizer
        found = {
            "documents": f"{manifest.documents:,}",
            "tokens": f"{manifest.tokens:,}",
            "text": f"{ledger.text_bytes:,} bytes",
            "bytes/token": f"{ledger.text_bytes / max(ledger.text_tokens, 1):.3f}",
            "tokenizer": entry.name,
            "tokenizer's fingerprint": entry.fingerprint[:12],
            "vocabulary": f"{entry.vocab_size:,}",
            "end of document": f"{entry.eod} ({entry.eod_id})",
            "type of ids": manifest.dtype,
            "bad records": f"{ledger.bad:,}",
        }
        if lengths is not None:
            found |= {
                "median length": plural(lengths.median, "token"),
                "99% at most": plural(lengths.p99, "token"),
                "longest": plural(lengths.longest, "token"),
            }
        return found

    left, right = map(values, pair)
    rows = tuple(
        (name, value, right.get(name, ""), "same" if value == right.get(name) else "differs")
        for name, value in left.items()
    )
    return Table("What they are", ("", pair[0].name, pair[1].name, "compared"), rows, "llll")


def _sources(view: View, pair: tuple[Opened, Opened]) -> Table:
    """Table of the tokens of each source in both stores."""
    found: dict[str, list[int]] = {}
    for place, opened in enumerate(pair):
        of = View(view.site, view.site.stores.index(opened), {})
        for (_, source, _), (documents, tokens, _, _) in groups(of).items():
            counts = found.setdefault(source, [0, 0, 0, 0])
            counts[2 * place] += documents
            counts[2 * place + 1] += tokens
    rows = tuple((source, *(f"{count:,}" for count in counts)) for source, counts in sorted(found.items()))
    left, right = (opened.name for opened in pair)
    head = ("source", f"documents of {left}", "tokens", f"documents of {right}", "tokens")
    return Table("Documents and tokens by source, all splits", head, rows, "lrrrr")
