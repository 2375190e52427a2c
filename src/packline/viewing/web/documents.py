"""Documents as a table with all columns, chosen by split, source and condition, sorted; and one of them.

/document/7?at=831&q=function&by=text      token 831, and all hits of a search in this document
/document/7?where=score >= 3&place=2       the third document of a list
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from packline.errors import PacklineError, RecipeError, StoreError
from packline.packing.options import DocumentFilter, RowOptions
from packline.packing.rows import Rows
from packline.packing.selection import Selection
from packline.store.lookup import column_names
from packline.store.provenance import documents_schema
from packline.store.reader import document_number, provenance_of
from packline.viewing.columns import EACH_ONCE, OF_A_SAMPLE, ColumnBars, value_text
from packline.viewing.describe import left_out_facts
from packline.viewing.page import (
    Block,
    ColumnHead,
    CopyText,
    Form,
    FormField,
    KeyValues,
    Link,
    Links,
    Note,
    Page,
    Panel,
    Table,
    TokenStrip,
    Value,
    choice_field,
)
from packline.viewing.text import cut, percent, plural, size
from packline.viewing.tokens import document_strip
from packline.viewing.turns import with_loss_links, with_turns
from packline.viewing.view import CHAT_COLUMNS, document_facts, document_table, has_loss, loss_share
from packline.viewing.web.choosing import chosen, open_rows, sorted_places
from packline.viewing.web.finding import OF_TOKENS, token_query
from packline.viewing.web.pages import (
    ALL,
    PAGE_ITEMS,
    default_seq_len,
    neighbors,
    split_param,
    steps,
    store_field,
)
from packline.viewing.web.search import Hit, Part
from packline.viewing.web.site import InvalidForm, View, choice, number, uses_of
from packline.where.conditions import canonical_where

Params = dict[str, str | int | None]
LONGEST_CONDITION = 2000


def chosen_documents(view: View) -> tuple[DocumentFilter, Params]:
    """Filters that an address requests, without split and source; their parameters for other addresses."""
    where = view.params.get("where", "").strip()
    if len(where) > LONGEST_CONDITION:
        raise RecipeError(f"a condition of {len(where):,} characters: expected at most {LONGEST_CONDITION:,}")
    unique = choice(view.params, "unique", ("", "1"), "")
    found = DocumentFilter(where=canonical_where(where) if where else None, unique=bool(unique))
    return found, {"where": where, "unique": unique}


def choice_fields(view: View, *, minor: bool = True) -> tuple[FormField, ...]:
    """Fields of a form for filters, filled in from the address."""
    equal, params = (("", "keep all"), ("1", "keep the first")), view.params
    where = FormField(
        "where", "Condition on columns", params.get("where", ""), hint="tokens >= 100", minor=minor
    )
    return where, choice_field("unique", "Equal texts", params.get("unique", ""), equal, minor=True)


@dataclass(frozen=True)
class DocumentList:
    """Documents that an address lists, in its order."""

    view: View
    selection: Selection
    order: np.ndarray | None
    """Places of the selection, sorted; None: in the order of the store."""
    params: Params

    def __len__(self) -> int:
        return len(self.selection)

    def numbers(self, start: int, stop: int) -> list[int]:
        places = np.arange(start, min(stop, len(self)), dtype=np.int64)
        return self.selection.documents(places if self.order is None else self.order[places]).tolist()

    def link(self, place: int) -> str:
        """Address of the document at a place, with the way back to the list."""
        return self.view.href(f"/document/{self.numbers(place, place + 1)[0]}", **self.params, place=place)


def document_list(view: View) -> DocumentList:
    params = view.params
    split = choice(params, "split", (ALL, *view.opened.splits), ALL)
    source = choice(params, "source", (ALL, *view.opened.sources), ALL)
    filters, given = chosen_documents(view)
    wanted = msgspec.structs.replace(filters, split=split, sources=None if source == ALL else source)
    sort, descending = params.get("sort", ""), choice(params, "desc", ("", "1"), "")
    selection = chosen(view.store, wanted)
    order = sorted_places(selection, sort, bool(descending)) if sort else None
    given |= {"source": "" if source == ALL else source, "split": "" if split == ALL else split}
    return DocumentList(view, selection, order, given | {"sort": sort, "desc": descending})


def documents_table(view: View) -> Page:
    params = view.params
    fields = (
        choice_field(name, name.capitalize(), params.get(name) or ALL, known)
        for name, known in (("source", (ALL, *view.opened.sources)), ("split", (ALL, *view.opened.splits)))
    )
    form = Form(
        "Which documents",
        "/documents",
        (
            *fields,
            *choice_fields(view, minor=False),
            *(FormField(name, name, params[name], "hidden") for name in ("sort", "desc") if params.get(name)),
            *store_field(view),
        ),
    )
    if not len(view.store.documents):
        return Page("Documents", (Note("This store is empty: there are no documents to show.", "warning"),))
    try:
        listed = document_list(view)
        page = number(params, "page", 0, most=(len(listed) - 1) // PAGE_ITEMS)
    except (RecipeError, StoreError) as error:
        raise InvalidForm.of("Documents", form, error) from error
    first = page * PAGE_ITEMS
    last = min(first + PAGE_ITEMS, len(listed)) - 1
    order = f", sorted by {listed.params['sort']}" if listed.params["sort"] else ""
    caption = f"{first:,} to {last:,} of {plural(len(listed), 'document')}{order}"
    filtered = (KeyValues(facts),) if (facts := left_out_facts(listed.selection)) else ()
    kept = {name: str(value) for name, value in listed.params.items() if value}
    rows: Params = {**kept, "source": None, "sort": None, "desc": None, "split": kept.get("split") or "all"}
    way = Links("More", (Link("rows of these documents", view.href("/rows", **rows)),))
    blocks: tuple[Block, ...] = (
        form,
        *filtered,
        data_table(view, listed, first, caption),
        *steps(view, "/documents", page, len(listed), kept),
        *(() if "source" in kept else (way,)),
    )
    every = plural(len(view.store.documents), "document")
    summary = every if len(listed) == len(view.store.documents) else f"{len(listed):,} of {every}"
    return Page("Documents", blocks, summary=summary)


def data_table(view: View, listed: DocumentList, first: int, caption: str) -> Table:
    documents = listed.numbers(first, first + PAGE_ITEMS)
    fixed, labels = documents_schema().names, any(group.label for group in view.opened.groups)
    names = [
        *(CHAT_COLUMNS if has_loss(view.store) else ()),
        "tokens",
        "source",
        "id",
        *(name for name in column_names(view.store) if name not in fixed),
    ]
    names += ["text_bytes", "split", *(["label"] if labels else []), "file", "position", "hash"]
    names = list(dict.fromkeys(names))
    bars = view.opened.bars_of(listed.selection)
    if not any(listed.params.values()):
        hrefs = [view.document(one) for one in documents]
    else:
        hrefs = [listed.link(first + place) for place in range(len(documents))]
    known = provenance_of(view.store, np.array(documents, np.int64))
    table = document_table(view.store, documents, known, caption, names, hrefs)
    heads = (_head(listed, name, bars.get(name)) for name in names)
    return replace(table, head=(*table.head[:2], *heads))


def _head(listed: DocumentList, name: str, bars: ColumnBars | None) -> ColumnHead:
    """Head of a column: a link that sorts by it, its distribution, and links that filter by its values."""
    if name in ("split", *CHAT_COLUMNS):
        return ColumnHead(name)
    view, params = listed.view, listed.params
    sorted_by = params["sort"] == name
    descending = bool(params["desc"]) if sorted_by else False
    turned = "" if descending or not sorted_by else "1"
    href = view.href("/documents", **(params | {"sort": name, "desc": turned}))
    order = ("descending" if descending else "ascending") if sorted_by else ""
    head = ColumnHead(name, href, order)  # type: ignore[arg-type]
    if bars is None or not bars.counts or name in ("position", "hash"):
        return head
    if bars.described.startswith(EACH_ONCE):
        return replace(head, described=bars.described)
    # Square roots, so that classes of few documents can be seen.
    top = math.sqrt(max(bars.counts))
    heights = tuple(math.sqrt(count) / top for count in bars.counts) if len(bars.counts) > 1 else ()
    return replace(head, bars=heights, described=bars.described, values=_values(view, name, bars, params))


def _values(view: View, name: str, bars: ColumnBars, params: Params) -> tuple[Link, ...]:
    """Links to the documents with each of the most frequent values."""
    links = []
    for value, share in bars.top:
        field = name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", name) else ""
        field = field or f"field({name!r})"
        before = str(params["where"] or "")
        try:
            where = canonical_where(f"{field} == {value!r}")
            where = canonical_where(f"({before}) and {where}") if before and where not in before else where
        except RecipeError:  # a name or a value that the grammar cannot write
            continue
        text = f"{cut(value_text(value), 14)} {share}"
        links.append(Link(text, view.href("/documents", **(params | {"where": where}))))
    if links and bars.described.endswith(OF_A_SAMPLE):
        links.append(Link(OF_A_SAMPLE.lstrip(", "), ""))
    return tuple(links)


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
