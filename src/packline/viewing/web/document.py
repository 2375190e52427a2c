"""Page of one document: a range of its tokens, its origin, and its neighbors in the store or in a list.

/document/7?at=831&q=function&by=text      token 831, and all hits of a search in this document
/document/7?where=score >= 3&place=2       the third document of a list
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from packline.errors import PacklineError
from packline.packing.options import RowOptions
from packline.packing.rows import Rows
from packline.store.reader import document_number
from packline.viewing.page import Block, CopyText, KeyValues, Link, Links, Page, Panel, TokenStrip, Value
from packline.viewing.text import cut, percent, plural, size
from packline.viewing.token_pages import document_facts, loss_share
from packline.viewing.tokens import document_strip
from packline.viewing.turns import with_loss_links, with_turns
from packline.viewing.web.choosing import open_rows
from packline.viewing.web.documents import document_list
from packline.viewing.web.finding import OF_TOKENS, token_query
from packline.viewing.web.pages import PAGE_ITEMS, default_seq_len, neighbors, split_param
from packline.viewing.web.search import Hit, Part
from packline.viewing.web.site import View, choice, number, uses_of

PAGE_TOKENS = 1024
BEFORE = 64
MOST_MARKED = 10_000
"""Maximum hits of a search in a document that are counted."""
LONGEST_SHOWN = 24


def document(view: View, wanted: int) -> Page:
    store = view.store
    wanted = document_number(store, wanted)
    count = len(store.documents[wanted])
    at = number(view.params, "at", -1, least=-1, most=count - 1, what="token")
    first = number(view.params, "first", max(at - BEFORE, 0), most=count - 1, what="first token")
    provenance = store.provenance(wanted)
    strip = document_strip(store, wanted, first=first, most=PAGE_TOKENS, provenance=provenance)
    hits, query = _hits(view, wanted)
    strip = _marked(replace(strip, headings=False), at, hits)
    facts: list[tuple[str, Value]] = [*document_facts(provenance)]
    seq_len = default_seq_len(view, provenance.split)
    if seq_len is not None:
        found = _row_with(open_rows(store, seq_len, RowOptions(split=provenance.split)), wanted, first)
        if found is not None:
            href = view.href(f"/row/{found}", seq_len=seq_len, split=split_param(provenance.split))
            facts.append(("in row", Link(f"{found:,}, rows of {seq_len:,} tokens", href)))
    facts += uses_of(view.site.runs, view.store.place, wanted)
    turned, learned = with_loss_links(with_turns(strip, wanted))
    path = f"/document/{wanted}"
    content: list[Block] = []
    if count > PAGE_TOKENS or first:
        before, after = max(first - PAGE_TOKENS, 0), first + PAGE_TOKENS
        ways: tuple[str | Link, ...] = (
            Link("‹ tokens before", view.href(path, first=before or None, **query))
            if first
            else "first tokens",
            f"tokens {first:,} to {min(after, count) - 1:,} of {count:,}",
            Link("tokens after ›", view.href(path, first=after, **query)) if after < count else "last tokens",
        )
        content.append(Links("Parts of the document", ways))
    if hits:
        starts = [hit.start for hit in hits]
        here = int(np.searchsorted(starts, at if at >= 0 else first, "right")) - 1
        words = f"hit {here + 1:,} of {len(hits):,}" if here >= 0 else plural(len(hits), "hit")
        content.append(
            neighbors(
                "Hits",
                here,
                len(hits) - 1,
                lambda target: view.href(path, at=starts[target], **query) + "#at",
                ("‹ hit before", f"{words}: {cut(query['q'], LONGEST_SHOWN)}", "next hit ›"),
            )
        )
    content += [*learned, turned]
    compare = view.href("/compare/tokenizers", document=wanted)
    content.append(Links("More", (Link("compare with another tokenizer", compare),)))
    shown = [one for cell in strip.cells for one in cell.ids]
    text = b"".join(cell.data for cell in strip.cells).decode("utf-8", "backslashreplace")
    python = f"packline.open({str(store.place)!r}).documents[{wanted}][{first}:{first + len(shown)}]"
    content += [
        CopyText("Text without control tokens", text),
        CopyText("Ids", " ".join(map(str, shown))),
        CopyText("The same in Python", python),
    ]
    blocks = (_beside(view, wanted), Panel("facts", ((KeyValues(tuple(facts)),), tuple(content))))
    share = loss_share(store, wanted)
    loss = "" if share is None else f", {percent(share)} in the loss"
    summary = f"{plural(count, 'token')}, {size(provenance.text_bytes)} of text{loss}"
    return Page(f"Document {wanted:,}", blocks, summary=summary)


def _hits(view: View, wanted: int) -> tuple[tuple[Hit, ...], dict[str, str]]:
    """Hits in the document of the search that led to it, and the parameters of that search."""
    by = choice(view.params, "by", [name for name, _ in OF_TOKENS], "text")
    if not view.params.get("q"):
        return (), {}
    shard, inner = view.store.locate(wanted)
    number_of_shard = int(view.store.firsts.searchsorted(wanted, "right")) - 1
    begin = int(view.store.token_firsts[number_of_shard]) + int(shard.places(slice(inner, inner + 1))[0])
    part = Part(begin, begin + len(view.store.documents[wanted]), MOST_MARKED, MOST_MARKED)
    query = {"q": view.params["q"], "by": by}
    return token_query(view, by, query["q"]).find(part).hits, query


def _marked(strip: TokenStrip, at: int, hits: tuple[Hit, ...]) -> TokenStrip:
    """Strip with marks at the hits of a search, or at the token that an address names."""
    ranges = [(at, at + 1), *((hit.start, hit.start + hit.length) for hit in hits)]
    found = {place for start, stop in ranges for place in range(start, stop)}
    cells = tuple(
        replace(cell, mark="here" if cell.position <= at < cell.position + len(cell.ids) else "found")
        if not found.isdisjoint(range(cell.position, cell.position + len(cell.ids)))
        else cell
        for cell in strip.cells
    )
    return replace(strip, cells=cells)


def _row_with(rows: Rows, document: int, token: int) -> int | None:
    """Row of concatenated documents with a token of a document, or the last that has any."""
    found = rows.rows_of(document)
    if not len(found):
        return None
    spans = rows.spans(found[:1])
    beyond = token - int(spans.lengths[spans.documents == document][0])
    return min(int(found[0]) + (1 + beyond // rows.seq_len if beyond >= 0 else 0), int(found[-1]))


def _beside(view: View, wanted: int) -> Links:
    place = number(view.params, "place", -1, least=-1)
    if place >= 0:
        try:
            listed = document_list(view)
            if place < len(listed) and listed.numbers(place, place + 1) == [wanted]:
                back = view.href("/documents", **listed.params, page=place // PAGE_ITEMS or None)
                here = Link(f"{place + 1:,} of {len(listed):,}", back)
                texts = ("‹ document before", here, "next document ›")
                return neighbors("Neighbors", place, len(listed) - 1, listed.link, texts)
        except PacklineError:  # an address of another store: its list does not matter here
            pass

    every = Link("all documents", view.href("/documents", page=wanted // PAGE_ITEMS or None))
    texts = ("‹ document before", every, "next document ›")
    return neighbors("Neighbors", wanted, len(view.store.documents) - 1, view.document, texts)
