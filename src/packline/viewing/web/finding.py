"""Page of a search: hits of a text or of token ids; other searches lead to the table of documents.

Each page covers a part of the store; a small script requests the next ones until there is a page of hits.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from packline.errors import RecipeError
from packline.store.lookup import column_names
from packline.viewing.page import (
    Block,
    Form,
    FormField,
    Link,
    Links,
    Note,
    Page,
    Panel,
    Table,
    Value,
    choice_field,
)
from packline.viewing.text import duration, plural, whole_characters
from packline.viewing.view import SHOWN_CHARACTERS, plain_bytes
from packline.viewing.web.pages import store_field
from packline.viewing.web.search import MOST_IDS, Found, Hit, Part, find_tokens
from packline.viewing.web.site import InvalidForm, Moved, View, choice, number
from packline.where.conditions import canonical_where

OF_TOKENS = (("text", "text"), ("ids", "token ids"))
SEARCHES = (*OF_TOKENS, ("id", "document id"), ("file", "file"), ("where", "condition on columns"))
AROUND = 12
LONGEST_QUERY = 2000


@dataclass(frozen=True)
class Query:
    """A search of tokens, as it was understood."""

    find: Callable[[Part], Found]
    how: str
    size: int | None = None
    """Bytes of the text to find; None: whole tokens."""


def search_page(view: View) -> Page:
    params = view.params
    by = choice(params, "by", [name for name, _ in SEARCHES], "text")
    query = params.get("q", "")
    form = Form(
        "Search",
        "/search",
        (
            FormField("q", "Search for", query, "text"),
            choice_field("by", "as", by, SEARCHES),
            *store_field(view),
        ),
        "Search",
    )
    if not query:
        return Page("Search", (form, _help(view)))
    try:
        if by in dict(OF_TOKENS):
            asked = token_query(view, by, query)
            blocks, summary = _in_tokens(view, asked), asked.how
        else:
            where = canonical_where(query if by == "where" else f"{by} == {query!r}")
            raise Moved(view.href("/documents", where=where))
    except RecipeError as error:
        raise InvalidForm.of("Search", form, error) from error
    return Page("Search", (form, *blocks), summary=summary)


def _help(view: View) -> Table:
    def link(by: str, text: str) -> Value:
        return Link(text, view.href("/search", q=text, by=by)) if text else ""

    store = view.store
    first = store.provenance(0) if len(store.documents) else None
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


def token_query(view: View, by: str, query: str) -> Query:
    if len(query) > LONGEST_QUERY:
        raise RecipeError(f"{len(query):,} characters to search for: expected at most {LONGEST_QUERY:,}")
    if by == "ids":
        words = re.split(r"[\s,]+", query.strip(" ,[]()\t"))
        vocab_size = len(view.vocabulary)
        if not all(re.fullmatch(r"[0-9]{1,9}", word) and int(word) < vocab_size for word in words):
            raise RecipeError(
                f"token ids: expected numbers from 0 to {vocab_size - 1:,} with spaces between them"
            )
        if len(words) > MOST_IDS:
            raise RecipeError(f"{plural(len(words), 'token')} to search for: expected 1 to {MOST_IDS}")
        return Query(partial(find_tokens, view.store, [int(word) for word in words]), "token ids")
    texts = view.opened.texts
    wanted = texts.spell(query)
    spelled = wanted.decode("utf-8", "replace")
    how = "text, exactly as typed" if spelled == query else f"text, as the tokenizer writes it: {spelled}"
    return Query(partial(texts.find, view.store, wanted), how, len(wanted))


def _in_tokens(view: View, asked: Query) -> list[Block]:
    """Hits of this part of the store, and what is left to search."""
    total = max(view.store.manifest.tokens, 1)
    after = number(view.params, "after", 0, most=total - 1)
    start = time.monotonic()
    found = asked.find(Part(after=after))
    if found.after is None:
        nothing = "Nothing was found" + (" to the end of the store." if after else ".")
        ways: tuple[str | Link, ...] = ("The store has been searched to its end.",)
    else:
        nothing = "Nothing was found so far."
        spent = time.monotonic() - start
        left = duration(spent * (1 - found.done) / max(found.done - after / total, 1e-9))
        query = {name: view.params[name] for name in ("q", "by") if name in view.params}
        more = Link("continue from there", view.href("/search", **query, after=found.after))
        ways = (f"{100 * found.done:.0f}% of the store has been searched, the rest takes about {left}:", more)
    hits = _places(view, found.hits, asked.size) if found.hits else Note(nothing)
    blocks: list[Block] = [Panel("live", ((hits, Links("Search", ways)),))]
    if asked.size is not None and not view.opened.texts.kept:
        text = "The tokenizer of this store does not keep texts unchanged: case, accents, white space or "
        blocks.append(Note(text + "unknown characters may be lost, and cannot be found then."))
    return blocks


def _places(view: View, hits: tuple[Hit, ...], size: int | None) -> Table:
    query = {name: view.params[name] for name in ("q", "by") if name in view.params}
    rows: list[tuple[Value, ...]] = []
    for hit in hits:
        tokens = view.store.documents[hit.document]
        stop = hit.start + hit.length
        before, within, after = (
            plain_bytes(view.vocabulary, tokens[max(begin, 0) : end].tolist())
            for begin, end in ((hit.start - AROUND, hit.start), (hit.start, stop), (stop, stop + AROUND))
        )
        end = len(within) if size is None else hit.skip + size
        href = view.href(f"/document/{hit.document}", at=hit.start, **query) + "#at"
        rows.append(
            (
                Link(f"{hit.document:,}", href),
                f"{hit.start:,}",
                whole_characters(before + within[: hit.skip], last=False)[-SHOWN_CHARACTERS:],
                within[hit.skip : end].decode("utf-8", "backslashreplace"),
                whole_characters(within[end:] + after, first=False)[:SHOWN_CHARACTERS],
                Link(f"and {hit.more:,} more in it", href) if hit.more else "",
            )
        )
    head = ("document", "token", "before", "found", "after", "")
    return Table("", head, tuple(rows), "lrrlll", form="stacked")
