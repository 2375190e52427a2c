"""Pages about a store: overview, sources, one document, search.

Each function turns a `View` into a `Page`, in time that does not depend on the number of documents: totals
are sums over shards, documents are found by searching in shards, and each page of a search covers a part of
the store.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from packline.errors import RecipeError
from packline.packing.options import RowOptions
from packline.store.lookup import column_names
from packline.store.reader import document_number
from packline.viewing.columns import column_table
from packline.viewing.describe import (
    group_table,
    length_facts,
    length_table,
    store_facts,
    store_warnings,
)
from packline.viewing.page import (
    Block,
    Form,
    FormField,
    Heading,
    KeyValues,
    Link,
    Links,
    Note,
    Page,
    Table,
    Value,
    WithFacts,
)
from packline.viewing.text import percent, plural, size, whole_characters
from packline.viewing.token_pages import (
    SHOWN_CHARACTERS,
    document_facts,
    loss_share,
    plain_bytes,
    shown_columns,
    shown_value,
)
from packline.viewing.tokens import Vocabulary, document_strip
from packline.viewing.turns import with_loss_links, with_turns
from packline.viewing.web.search import MOST_IDS, Found, Hit, find_page, find_tokens
from packline.viewing.web.site import InvalidForm, View, choice, number, uses_of
from packline.where.grammar import canonical_where

PAGE_ITEMS = 25
"""Items of a list per page."""
PAGE_TOKENS = 1024
"""Tokens of a document per page."""
ALL = "all"
SEARCHES = (
    ("text", "text"),
    ("ids", "token ids"),
    ("id", "document id"),
    ("file", "file"),
    ("where", "condition on columns"),
)
AROUND = 12
"""Tokens before and after a hit."""
LONGEST_QUERY = 2000
BEFORE_HIT = 64
"""Tokens shown before a hit on the page of its document."""


def overview(view: View) -> Page:
    """Overview page of the store."""
    store, manifest, lengths = view.store, view.store.manifest, view.opened.lengths
    facts: list[tuple[str, Value]] = [("folder", str(store.place)), *store_facts(store)]
    facts[1] = ("documents", Link(f"{manifest.documents:,}", view.href("/documents")))
    facts += length_facts(lengths) if lengths is not None else ()
    blocks: list[Block] = [KeyValues(tuple(facts))]
    if manifest.documents:
        pending = Note("Lengths are being counted; reload this page to see them.")
        blocks += [Heading("Sources"), groups(view), *column_table(store, view.opened.columns)]
        blocks.append(Heading("Lengths"))
        blocks.append(pending if lengths is None else length_table(lengths))
    summary = f"{plural(manifest.documents, 'document')}, {plural(manifest.tokens, 'token')}"
    return Page(view.opened.name, tuple(blocks), store_warnings(store), summary)


def groups(view: View) -> Table:
    """Table of documents and tokens by split, source and label, with links to the documents."""
    return group_table(
        view.opened.groups, lambda group: view.href("/documents", split=group.split, source=group.source)
    )


def sources(view: View) -> Page:
    """Page of the sources, and the files that they were read from."""
    manifest = view.store.manifest
    page = number(view.params, "page", 0)
    first, count = page * PAGE_ITEMS, len(manifest.inputs)
    rows = tuple(
        (
            Link(entry.name, view.href("/search", by="file", q=entry.name)),
            entry.format,
            entry.compression or "none",
            f"{entry.bytes:,}",
        )
        for entry in manifest.inputs[first : first + PAGE_ITEMS]
    )
    blocks: list[Block] = [groups(view), Heading("Files")]
    if rows:
        caption = f"Files {first:,} to {first + len(rows) - 1:,} of {count:,}, as they were read"
        blocks.append(Table(caption, ("file", "format", "compression", "bytes"), rows, "lllr"))
    else:
        blocks.append(Note("There are no files on this page."))
    blocks += steps(view, "/sources", page, count, {})
    summary = f"{plural(len(manifest.sources), 'source')}, {plural(count, 'file')}"
    return Page("Sources", tuple(blocks), summary=summary)


def plain_text(vocabulary: Vocabulary, ids: list[int]) -> str:
    """Tokens as text, special ones by name, with bytes that are not UTF-8 as `\\xNN`."""
    return plain_bytes(vocabulary, ids).decode("utf-8", "backslashreplace")


def document(view: View, wanted: int) -> Page:
    """Page of one document: its origin, and one range of its tokens.

    Raises:
        StoreError: the document does not exist.
    """
    store = view.store
    wanted = document_number(store, wanted)
    count = len(store.documents[wanted])
    first = number(view.params, "first", 0, most=count - 1, what="first token")
    provenance = view.opened.provenance.of([wanted])[wanted]
    strip = document_strip(store, wanted, first=first, most=PAGE_TOKENS, provenance=provenance)
    facts: list[tuple[str, Value]] = [*document_facts(provenance)]
    seq_len = default_seq_len(view, provenance.split)
    if seq_len is not None:
        found = view.opened.rows(seq_len, RowOptions(split=provenance.split)).rows_of(wanted)
        if len(found):
            row = int(found[0])
            href = view.href(f"/row/{row}", seq_len=seq_len, split=split_param(provenance.split))
            facts.append(("in row", Link(f"{row:,}, rows of {seq_len:,} tokens", href)))
    facts += uses_of(view.site.runs, view.store.place, wanted)
    beside = (
        _numbered(view, "‹ document", wanted - 1),
        _numbered(view, "document", wanted + 1, " ›"),
    )
    turned, learned = with_loss_links(with_turns(replace(strip, headings=False), wanted))
    content: list[Block] = [*learned, turned]
    if count > PAGE_TOKENS or first:
        path = f"/document/{wanted}"
        before, after = max(first - PAGE_TOKENS, 0), first + PAGE_TOKENS
        ways: tuple[str | Link, ...] = (
            Link("‹ tokens before", view.href(path, first=before or None)) if first else "first tokens",
            f"tokens {first:,} to {min(after, count) - 1:,} of {count:,}",
            Link("tokens after ›", view.href(path, first=after)) if after < count else "last tokens",
        )
        content.append(Links("Parts of the document", ways))
    compare = view.href("/compare/tokenizers", document=wanted)
    content.append(Links("More", (Link("compare with another tokenizer", compare),)))
    blocks = (Links("Neighbors", beside), WithFacts(tuple(content), (KeyValues(tuple(facts)),)))
    share = loss_share(store, wanted)
    loss = "" if share is None else f", {percent(share)} in the loss"
    summary = f"{plural(count, 'token')}, {size(provenance.text_bytes)} of text{loss}"
    return Page(f"Document {wanted:,}", blocks, summary=summary)


def _numbered(view: View, word: str, document: int, end: str = "") -> str | Link:
    if 0 <= document < len(view.store.documents):
        return Link(f"{word} {document:,}{end}", view.document(document))
    return "first document" if document < 0 else "last document"


def default_seq_len(view: View, split: str) -> int | None:
    """Row length if the address has none; None for a split that is too small for rows."""
    by_split = view.store.manifest.shards.by_split("tokens")
    tokens = sum(count for name, count in by_split.items() if split in (ALL, name))
    return min(2048, tokens) if tokens >= 2 else None


def split_param(split: str) -> str | None:
    """Parameter for a split in an address; None for the default split."""
    return None if split == "train" else split


def store_field(view: View) -> tuple[FormField, ...]:
    """Hidden field that keeps the store in a form."""
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
    """Links from one of several pages to those before and after it.

    Args:
        at: number of the page, of 0 to `last`.
        href: function from the number of a page to its address.
        texts: words for the page before, this page, and the next.
        ends: True to link to the first and the last page too.
    """

    def to(text: str, target: int) -> str | Link:
        return Link(text, href(target)) if 0 <= target <= last and target != at else text

    before, here, after = texts
    links = (to(before, at - 1), here, to(after, at + 1))
    return Links(label, (to("« first", 0), *links, to("last »", last)) if ends else links)


def search_page(view: View) -> Page:
    """Page of the search form, with the hits in this part of the store."""
    params = view.params
    by = choice(params, "by", [name for name, _ in SEARCHES], "text")
    query = params.get("q", "")
    form = Form(
        "Search",
        "/search",
        (
            FormField("q", "Search for", query, "text"),
            FormField("by", "as", by, "choice", SEARCHES),
            *store_field(view),
        ),
        "Search",
    )
    if not query:
        return Page("Search", (form, _help(view)))
    try:
        found, how, size = _run_search(view, by, query)
    except RecipeError as error:
        raise InvalidForm.of("Search", form, error) from error
    return Page("Search", (form, *_search_blocks(view, by, found, size)), summary=how)


def _help(view: View) -> Table:
    """Table of the searches, each with a link that tries it."""

    def link(by: str, text: str) -> Value:
        return Link(text, view.href("/search", q=text, by=by)) if text else ""

    store = view.store
    first = view.opened.provenance.of([0]).get(0) if len(store.documents) else None
    ids = store.documents[0][:2].tolist() if len(store.documents) else []
    rows = (
        ("text", "Text exactly as typed, also inside tokens and across them", link("text", " the ")),
        ("token ids", "Tokens in this order, control tokens too", link("ids", " ".join(map(str, ids)))),
        ("document id", "The document with exactly this id", link("id", (first and first.id) or "")),
        ("file", "All documents of a file", link("file", first.file if first else "")),
        (
            "condition on columns",
            f"Documents by {', '.join(column_names(store))}",
            link("where", "tokens >= 100 and tokens < 200"),
        ),
    )
    return Table("", ("search for", "finds", "try"), rows, "lll", form="wrapped")


def _run_search(view: View, by: str, query: str) -> tuple[Found, str, int | None]:
    """Search for one page: the result, how the query was understood, and the number of bytes of a text.

    Raises:
        RecipeError: the query cannot be understood.
    """
    if len(query) > LONGEST_QUERY:
        raise RecipeError(f"{len(query):,} characters to search for: expected at most {LONGEST_QUERY:,}")
    store = view.store
    if by in ("where", "id", "file"):
        after = number(view.params, "after", 0, most=max(len(store.documents) - 1, 0))
        where = canonical_where(query if by == "where" else f"{by} == {query!r}")
        return find_page(store, where, after=after), f"documents where {where}", None
    after = number(view.params, "after", 0, most=max(store.manifest.tokens - 1, 0))
    if by == "ids":
        words = re.split(r"[\s,]+", query.strip(" ,[]()\t"))
        vocab_size = len(view.vocabulary)
        if not all(re.fullmatch(r"[0-9]{1,9}", word) and int(word) < vocab_size for word in words):
            raise RecipeError(
                f"token ids: expected numbers from 0 to {vocab_size - 1:,} with spaces between them"
            )
        if len(words) > MOST_IDS:
            raise RecipeError(f"{plural(len(words), 'token')} to search for: expected 1 to {MOST_IDS}")
        return find_tokens(store, [int(word) for word in words], after=after), "token ids", None
    texts = view.opened.texts
    wanted = texts.spell(query)
    spelled = wanted.decode("utf-8", "replace")
    how = "text, exactly as typed" if spelled == query else f"text, as the tokenizer writes it: {spelled}"
    return texts.find(store, wanted, after=after), how, len(wanted)


def _search_blocks(view: View, by: str, found: Found, size: int | None) -> list[Block]:
    blocks: list[Block] = []
    percent = f"{100 * found.done:.0f}%"
    if found.hits:
        origin = by in ("id", "file", "where")
        blocks.append(_found_documents(view, found.hits) if origin else _found_places(view, found.hits, size))
    elif found.after is None:
        text = "Nothing was found" + (" to the end of the store." if view.params.get("after") else ".")
        blocks.append(Note(text))
    else:
        blocks.append(Note("Nothing was found so far."))
    if found.after is None:
        blocks.append(Links("Search", ("The store has been searched to its end.",)))
    else:
        more = Link("continue from there", view.href("/search", q=view.params["q"], by=by, after=found.after))
        blocks.append(Links("Search", (f"{percent} of the store has been searched:", more)))
    if by == "text" and not view.opened.texts.kept:
        text = "The tokenizer of this store does not keep texts unchanged: case, accents, white space or "
        blocks.append(Note(text + "unknown characters may be lost, and cannot be found then."))
    return blocks


def _found_places(view: View, hits: tuple[Hit, ...], size: int | None) -> Table:
    """Table of hits with the text around them.

    Args:
        view: view of the store.
        hits: places of the hits.
        size: bytes of the text found; None if whole tokens were found.
    """
    rows: list[tuple[Value, ...]] = []
    for hit in hits:
        tokens = view.store.documents[hit.document]
        stop = hit.start + hit.length
        before, within, after = (
            plain_bytes(view.vocabulary, tokens[max(begin, 0) : end].tolist())
            for begin, end in ((hit.start - AROUND, hit.start), (hit.start, stop), (stop, stop + AROUND))
        )
        end = len(within) if size is None else hit.skip + size
        first = max(hit.start - BEFORE_HIT, 0)
        href = view.href(f"/document/{hit.document}", first=first or None)
        rows.append(
            (
                Link(f"{hit.document:,}", href),
                f"{hit.start:,}",
                whole_characters(before + within[: hit.skip], last=False)[-SHOWN_CHARACTERS:],
                within[hit.skip : end].decode("utf-8", "backslashreplace"),
                whole_characters(within[end:] + after, first=False)[:SHOWN_CHARACTERS],
            )
        )
    head = ("document", "token", "before", "found", "after")
    return Table(
        f"{plural(len(rows), 'place')} in this part of the store", head, tuple(rows), "lrrll", form="stacked"
    )


def _found_documents(view: View, hits: tuple[Hit, ...]) -> Table:
    """Table of documents with their origins."""
    found = view.opened.provenance.of([hit.document for hit in hits])
    names = shown_columns(found.values())
    rows: list[tuple[Value, ...]] = []
    for hit in hits:
        origin = found.get(hit.document)
        rows.append(
            (
                Link(f"{hit.document:,}", view.document(hit.document)),
                origin.source if origin else "",
                origin.file if origin else "",
                f"{origin.position:,}" if origin else "",
                (origin.id or "") if origin else "",
                f"{len(view.store.documents[hit.document]):,}",
                *(shown_value(origin, name) for name in names),
            )
        )
    head = ("document", "source", "file", "position", "id", "tokens", *names)
    return Table(plural(len(rows), "document"), head, tuple(rows), "lllrlr" + "l" * len(names))
