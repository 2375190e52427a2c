"""The search page: by text, token ids, document id or file; each page searches a part of the store.

Hits are shown with the text before and after them.
"""

from __future__ import annotations

import re

from packline.errors import RecipeError
from packline.viewing.page import Block, Field, Form, Link, Links, Note, Page, Table, Value
from packline.viewing.text import plural, whole_characters
from packline.viewing.web.pages import plain_bytes, store_field
from packline.viewing.web.params import choice, number
from packline.viewing.web.search import MOST_IDS, Found, Hit, find_origins, find_tokens
from packline.viewing.web.site import Unclear, View

WAYS = (
    ("text", "text"),
    ("ids", "token ids"),
    ("id", "document id"),
    ("file", "file"),
)
AROUND = 12
"""Tokens before and after a hit."""
SHOWN = 60
LOSSY = (
    "The tokenizer of this store does not keep texts as they were: case, accents, white space or characters "
    "that it does not know may be lost. What is lost cannot be found."
)
LONGEST = 2000
BEFORE_HIT = 64
"""Tokens shown before a hit on the page of its document."""


def search(view: View) -> Page:
    """Page of the search form, with the hits in this part of the store."""
    params = view.params
    by = choice(params, "by", [name for name, _ in WAYS], "text")
    asked = params.get("q", "")
    form = Form(
        "Search",
        "/search",
        (
            Field("q", "Search for", asked, "text"),
            Field("by", "as", by, "choice", WAYS),
            *store_field(view),
        ),
        "Search",
    )
    if not asked:
        text = (
            "Text is found letter for letter wherever it is, also inside of tokens. Control tokens are not "
            "text: search for their ids. Token ids are numbers with spaces between them. Ids and names of "
            "files are looked for as a whole."
        )
        return Page("Search", (form, Note(text)))
    try:
        found, how, size = _find(view, by, asked)
    except RecipeError as error:
        raise Unclear.of("Search", form, error) from error
    return Page("Search", (form, *_blocks(view, by, found, size)), summary=how)


def _find(view: View, by: str, asked: str) -> tuple[Found, str, int | None]:
    """Search for one page: the result, how the query was understood, and the number of bytes of a text.

    Raises:
        RecipeError: the query cannot be understood.
    """
    if len(asked) > LONGEST:
        raise RecipeError(f"{len(asked):,} characters to search for: expected at most {LONGEST:,}")
    store = view.store
    if by in ("id", "file"):
        after = number(view.params, "after", 0, most=max(len(store.documents) - 1, 0))
        found = find_origins(store, by, asked, after=after)
        return found, "documents with this id" if by == "id" else "documents of this file", None
    after = number(view.params, "after", 0, most=max(store.manifest.tokens - 1, 0))
    if by == "ids":
        words = re.split(r"[\s,]+", asked.strip(" ,[]()\t"))
        vocab_size = len(view.vocabulary)
        if not all(re.fullmatch(r"[0-9]{1,9}", word) and int(word) < vocab_size for word in words):
            raise RecipeError(
                f"token ids: expected numbers from 0 to {vocab_size - 1:,} with spaces between them"
            )
        if len(words) > MOST_IDS:
            raise RecipeError(f"{plural(len(words), 'token')} to search for: expected 1 to {MOST_IDS}")
        return find_tokens(store, [[int(word) for word in words]], after=after), "token ids", None
    texts = view.opened.texts
    wanted = texts.spell(asked)
    spelled = wanted.decode("utf-8", "replace")
    how = "text, letter for letter" if spelled == asked else f"text, as the tokenizer writes it: {spelled}"
    return texts.find(store, wanted, after=after), how, len(wanted)


def _blocks(view: View, by: str, found: Found, size: int | None) -> list[Block]:
    blocks: list[Block] = []
    percent = f"{100 * found.done:.0f}%"
    if found.hits:
        origin = by in ("id", "file")
        blocks.append(_places(view, found.hits) if origin else _contexts(view, found.hits, size))
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
        blocks.append(Note(LOSSY))
    return blocks


def _contexts(view: View, hits: tuple[Hit, ...], size: int | None) -> Table:
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
                whole_characters(before + within[: hit.skip], last=False)[-SHOWN:],
                within[hit.skip : end].decode("utf-8", "backslashreplace"),
                whole_characters(within[end:] + after, first=False)[:SHOWN],
            )
        )
    head = ("document", "token", "before", "found", "after")
    return Table(f"{plural(len(rows), 'place')} in this part of the store", head, tuple(rows), "lrrll")


def _places(view: View, hits: tuple[Hit, ...]) -> Table:
    """Table of documents with their origins."""
    found = view.opened.origins.of([hit.document for hit in hits])
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
            )
        )
    head = ("document", "source", "file", "position", "id", "tokens")
    return Table(plural(len(rows), "document"), head, tuple(rows), "lllrlr")
