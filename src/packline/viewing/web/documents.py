"""Documents as a table with all their columns: chosen by split, source and condition, sorted by any column.

    /documents?where=score >= 3&sort=tokens&desc=1     heads sort and show distributions

The choice (`where`, `unique`, `exclude`) means what it means for `packline info --seq-len` and for training,
and the pages of rows take the same.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np

from packline.errors import RecipeError, StoreError
from packline.packing.options import DocumentFilter
from packline.store.lookup import column_names
from packline.store.provenance import Provenance, documents_schema
from packline.viewing.columns import EACH_ONCE, OF_A_SAMPLE, ColumnBars
from packline.viewing.describe import left_out_facts
from packline.viewing.page import (
    Block,
    ColumnHead,
    DataTable,
    Form,
    FormField,
    KeyValues,
    Link,
    Links,
    Note,
    Page,
    Value,
)
from packline.viewing.text import cut, plural
from packline.viewing.token_pages import SHOWN_CHARACTERS, beginning, shown_value
from packline.viewing.web.pages import ALL, PAGE_ITEMS, steps, store_field
from packline.viewing.web.site import InvalidForm, View, choice, number
from packline.where.grammar import canonical_where

Params = dict[str, str | int | None]
READING = 0.4
"""Seconds of reading for a page of documents from all over the store."""
LONGEST_CONDITION = 2000
NUMBERS = ("tokens", "text_bytes", "position")


def chosen_documents(view: View) -> tuple[DocumentFilter, Params]:
    """Filters that an address requests, without split and source; and their parameters for other addresses.

    Raises:
        RecipeError: an invalid condition, or an unknown list.
    """
    params, lists = view.params, view.site.exclusions
    where = params.get("where", "").strip()
    if len(where) > LONGEST_CONDITION:
        raise RecipeError(f"a condition of {len(where):,} characters: expected at most {LONGEST_CONDITION:,}")
    unique = choice(params, "unique", ("", "1"), "")
    exclude = choice(params, "exclude", ("", *lists), "")
    found = DocumentFilter(
        where=canonical_where(where) if where else None,
        unique=bool(unique),
        exclude=lists[exclude] if exclude else None,
    )
    return found, {"where": where, "unique": unique, "exclude": exclude}


def choice_fields(view: View, *, minor: bool = True) -> tuple[FormField, ...]:
    """Fields of a form for filters, filled in from the address.

    Args:
        minor: True to show the condition on request, as the others.
    """
    params, lists = view.params, view.site.exclusions
    equal = (("", "keep all"), ("1", "keep the first"))
    fields = [
        FormField(
            "where",
            "Condition on columns",
            params.get("where", ""),
            "text",
            hint="tokens >= 100",
            minor=minor,
        ),
        FormField("unique", "Equal texts", params.get("unique", ""), "choice", equal, minor=True),
    ]
    if lists:
        names = (("", "nothing"), *((name, name) for name in lists))
        fields.append(
            FormField("exclude", "Leave out", params.get("exclude", ""), "choice", names, minor=True)
        )
    return tuple(fields)


def documents_table(view: View) -> Page:
    """Page of a table of documents."""
    params = view.params
    split = choice(params, "split", (ALL, *view.opened.splits), ALL)
    known = tuple(dict.fromkeys(group.source for group in view.opened.groups))
    source = choice(params, "source", (ALL, *known), ALL)
    form = Form(
        "Which documents",
        "/documents",
        (
            FormField("source", "Source", source, "choice", tuple((one, one) for one in (ALL, *known))),
            FormField(
                "split", "Split", split, "choice", tuple((one, one) for one in (ALL, *view.opened.splits))
            ),
            *choice_fields(view, minor=False),
            *(FormField(name, name, params[name], "hidden") for name in ("sort", "desc") if params.get(name)),
            *store_field(view),
        ),
    )
    if not len(view.store.documents):
        return Page("Documents", (Note("This store is empty: there are no documents to show.", "warning"),))
    try:
        wanted, chosen = chosen_documents(view)
        wanted = DocumentFilter(
            split=split,
            sources=None if source == ALL else source,
            where=wanted.where,
            unique=wanted.unique,
            exclude=wanted.exclude,
        )
        selection = view.opened.selection(wanted)
        sort, descending = params.get("sort", ""), bool(choice(params, "desc", ("", "1"), ""))
        count = len(selection)
        page = number(params, "page", 0, most=(count - 1) // PAGE_ITEMS)
        places = np.arange(page * PAGE_ITEMS, min((page + 1) * PAGE_ITEMS, count), dtype=np.int64)
        if sort:
            places = view.opened.sorted_places(wanted, sort, descending)[places]
    except (RecipeError, StoreError) as error:
        raise InvalidForm.of("Documents", form, error) from error
    chosen |= {"source": "" if source == ALL else source, "split": "" if split == ALL else split}
    ordered: Params = chosen | {"sort": sort, "desc": "1" if descending else ""}
    numbers = selection.documents(places).tolist()
    first = page * PAGE_ITEMS
    order = f", sorted by {sort}" if sort else ""
    caption = f"{first:,} to {first + len(numbers) - 1:,} of {plural(count, 'document')}{order}"
    filtered: tuple[Block, ...] = (KeyValues(facts),) if (facts := left_out_facts(selection)) else ()
    kept = {name: str(value) for name, value in ordered.items() if value}
    way = Links("More", (Link("rows of these documents", view.href("/rows", **_of_rows(chosen))),))
    blocks = (
        form,
        *filtered,
        _table(view, numbers, caption, ordered),
        *steps(view, "/documents", page, count, kept),
        *((way,) if count and not chosen["source"] else ()),
    )
    every = plural(len(view.store.documents), "document")
    summary = every if count == len(view.store.documents) else f"{count:,} of {every}"
    return Page("Documents", blocks, summary=summary)


def _of_rows(chosen: Params) -> Params:
    """Parameters of rows of the same documents."""
    return chosen | {"source": None, "split": chosen["split"] or "all"}


def _table(view: View, documents_page: list[int], caption: str, params: Params) -> DataTable:
    store, vocabulary = view.store, view.vocabulary
    known = view.opened.provenance.of(documents_page, budget=READING)
    fixed = documents_schema().names
    shown = ["tokens", *(name for name in column_names(store) if name not in fixed), "text_bytes", "source"]
    shown += ["split", *(["label"] if any(group.label for group in view.opened.groups) else [])]
    shown += [name for name in ("id", "file", "position", "hash") if name not in shown]
    head = (ColumnHead("document"), ColumnHead("begins"), *(_head(view, name, params) for name in shown))
    rows: list[tuple[Value, ...]] = []
    for document in documents_page:
        one = known.get(document)
        rows.append(
            (
                Link(f"{document:,}", view.document(document)),
                beginning(vocabulary, store.documents[document]),
                *("" if one is None else cut(_value(one, name), SHOWN_CHARACTERS) for name in shown),
            )
        )
    return DataTable(caption, head, tuple(rows), "ll" + "".join(_side(name) for name in shown))


def _side(name: str) -> str:
    return "r" if name in NUMBERS else "l"


def _value(one: Provenance, name: str) -> str:
    """Value of a fixed or carried column as text."""
    if name in one.columns:
        return shown_value(one, name)
    if name == "hash":
        return "" if one.hash is None else f"{one.hash:016x}"
    value = getattr(one, name, None)
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _head(view: View, name: str, params: Params) -> ColumnHead:
    """Head of a column: a link that sorts by it, its distribution, and links that filter by its values."""
    if name == "split":
        return ColumnHead(name)
    sorted_by = params["sort"] == name
    descending = bool(params["desc"]) if sorted_by else False
    turned = "" if descending or not sorted_by else "1"
    href = view.href("/documents", **(params | {"sort": name, "desc": turned}))
    order = ("descending" if descending else "ascending") if sorted_by else ""
    head = ColumnHead(name, href, order)  # type: ignore[arg-type]
    bars = view.opened.bars.get(name)
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
        text = f"{cut(str(value), 14)} {share}"
        links.append(Link(text, view.href("/documents", **(params | {"where": where}))))
    if links and bars.described.endswith(OF_A_SAMPLE):
        links.append(Link(OF_A_SAMPLE.lstrip(", "), ""))
    return tuple(links)
