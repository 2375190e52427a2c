"""Page that compares two stores, by their numbers and document by document."""

from __future__ import annotations

from packline.viewing.describe import length_facts, store_facts
from packline.viewing.page import (
    Block,
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
from packline.viewing.tokens import document_strip
from packline.viewing.web.site import ServedStore, View, choice, number

SHOWN_TOKENS = 512


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
    blocks: list[Block] = [Form("What to compare", "/compare/stores", fields, "Compare")]
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
    blocks += [Heading("Facts"), _facts(pair), Heading("Sources"), _sources(pair)]
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
    return Table("", ("fact", pair[0].name, pair[1].name, "compared"), rows, "llll", form="wrapped")


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
