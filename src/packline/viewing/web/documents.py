"""Documents as a table with all columns: chosen by split, source and condition, sorted by any column."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from packline.errors import RecipeError, StoreError
from packline.packing.options import DocumentFilter
from packline.packing.selection import Selection
from packline.store.lookup import column_names
from packline.store.provenance import documents_schema
from packline.store.reader import provenance_of
from packline.viewing.columns import EACH_ONCE, OF_A_SAMPLE, ColumnBars, value_text
from packline.viewing.describe import left_out_facts
from packline.viewing.page import (
    Block,
    ColumnHead,
    Form,
    FormField,
    KeyValues,
    Link,
    Links,
    Note,
    Page,
    Table,
    choice_field,
)
from packline.viewing.text import cut, plural
from packline.viewing.token_pages import CHAT_COLUMNS, document_table, has_loss
from packline.viewing.web.choosing import chosen, sorted_places
from packline.viewing.web.pages import ALL, PAGE_ITEMS, steps, store_field
from packline.viewing.web.site import InvalidForm, View, choice, number
from packline.where.grammar import canonical_where

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
