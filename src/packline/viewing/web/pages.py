"""The overview of a store, and what pages of lists share."""

from __future__ import annotations

from collections.abc import Callable

from packline.viewing.columns import column_table
from packline.viewing.describe import (
    group_table,
    length_facts,
    length_table,
    store_facts,
    store_warnings,
)
from packline.viewing.page import Block, FormField, Heading, KeyValues, Link, Links, Note, Page, Table, Value
from packline.viewing.text import plural
from packline.viewing.web.site import View, number

PAGE_ITEMS = 25
ALL = "all"


def overview(view: View) -> Page:
    store, manifest, lengths = view.store, view.store.manifest, view.opened.lengths
    facts: list[tuple[str, Value]] = [("folder", str(store.place)), *store_facts(store)]
    facts[1] = ("documents", Link(f"{manifest.documents:,}", view.href("/documents")))
    facts += length_facts(lengths) if lengths is not None else ()
    blocks: list[Block] = [KeyValues(tuple(facts))]
    if manifest.documents:
        pending = Note("Lengths are being counted; reload this page to see them.")
        groups = group_table(
            view.opened.groups,
            lambda group: view.href("/documents", split=group.split, source=group.source),
        )
        blocks += [Heading("Sources"), groups, *column_table(store, view.opened.columns)]
        blocks += [Heading("Lengths"), pending if lengths is None else length_table(lengths)]
    if manifest.inputs:
        blocks += [Heading("Files"), *_files(view)]
    summary = f"{plural(manifest.documents, 'document')}, {plural(manifest.tokens, 'token')}"
    return Page(view.opened.name, tuple(blocks), store_warnings(store), summary)


def _files(view: View) -> list[Block]:
    inputs = view.store.manifest.inputs
    page = number(view.params, "page", 0, most=(len(inputs) - 1) // PAGE_ITEMS)
    first = page * PAGE_ITEMS
    rows = tuple(
        (
            Link(entry.name, view.href("/search", by="file", q=entry.name)),
            entry.format,
            entry.compression or "none",
            f"{entry.bytes:,}",
        )
        for entry in map(inputs.__getitem__, range(first, min(first + PAGE_ITEMS, len(inputs))))
    )
    caption = f"Files {first:,} to {first + len(rows) - 1:,} of {len(inputs):,}, as they were read"
    table = Table(caption, ("file", "format", "compression", "bytes"), rows, "lllr")
    return [table, *steps(view, "/", page, len(inputs), {})]


def default_seq_len(view: View, split: str) -> int | None:
    """Row length if the address has none; None for a split that is too small for rows."""
    by_split = view.store.manifest.shards.by_split("tokens")
    tokens = sum(count for name, count in by_split.items() if split in (ALL, name))
    return min(2048, tokens) if tokens >= 2 else None


def split_param(split: str) -> str | None:
    """Parameter for a split in an address; None for the default split."""
    return None if split == "train" else split


def store_field(view: View) -> tuple[FormField, ...]:
    return (FormField("store", "store", str(view.number), "hidden"),) if view.number else ()


def steps(view: View, path: str, page: int, count: int, params: dict[str, str]) -> tuple[Links, ...]:
    """Links to the neighbouring pages of a list; none if there is only one page."""
    last = max((count - 1) // PAGE_ITEMS, 0)
    if last == 0 and page == 0:
        return ()

    def href(target: int) -> str:
        return view.href(path, page=target or None, **params)

    here = f"page {page:,} of {last:,}"
    return (neighbors("Pages", page, last, href, ("‹ before", here, "next ›"), ends=True),)


def neighbors(
    label: str,
    at: int,
    last: int,
    href: Callable[[int], str],
    texts: tuple[str, str | Link, str],
    *,
    ends: bool = False,
) -> Links:
    """Links from one of several pages to those before and after it."""

    def to(text: str, target: int) -> str | Link:
        return Link(text, href(target)) if 0 <= target <= last and target != at else text

    before, here, after = texts
    links = (to(before, at - 1), here, to(after, at + 1))
    return Links(label, (to("« first", 0), *links, to("last »", last)) if ends else links)
