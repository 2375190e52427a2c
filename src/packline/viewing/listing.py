"""Lists of documents: number, beginning, size, source and carried columns, one line for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from packline.errors import RecipeError
from packline.store.provenance import Provenance
from packline.store.reader import StoreReader, provenance_of
from packline.viewing.columns import value_text
from packline.viewing.describe import left_out_facts
from packline.viewing.page import Block, KeyValues, Page, Table, Value
from packline.viewing.text import plural, whole_characters
from packline.viewing.tokens import Vocabulary

if TYPE_CHECKING:
    from packline.packing.documents import Selection

LISTED = 25
"""Documents in a list."""
BEGINNING = 64
"""Most tokens that are shown of each document; a character of rare scripts takes up to four."""
SHOWN_CHARACTERS = 60
SHOWN_COLUMNS = 3
"""Carried columns in a list."""


def documents_page(selection: Selection, *, first: int = 0, most: int = LISTED) -> Page:
    """Page of the documents of a selection, in its order, from the document at place `first`.

    Raises:
        RecipeError: the selection has no such place.
    """
    store, count = selection.store, len(selection)
    if not 0 <= first < count:
        raise RecipeError(f"first is {first:,}: expected 0 to {count - 1:,}, the documents chosen")
    numbers = selection.documents(np.arange(first, min(first + most, count), dtype=np.int64))
    known = dict(zip(numbers.tolist(), provenance_of(store, numbers), strict=True))
    blocks: list[Block] = [KeyValues(facts)] if (facts := left_out_facts(selection)) else []
    caption = f"{first:,} to {first + len(numbers) - 1:,} of {plural(count, 'document')}"
    blocks.append(document_table(store, numbers.tolist(), known, caption))
    summary = f"{count:,} of {plural(len(store.documents), 'document')}, {plural(selection.tokens, 'token')}"
    return Page(f"Documents of {store.place}", tuple(blocks), summary=summary)


def document_table(
    store: StoreReader,
    documents: Sequence[int],
    known: Mapping[int, Provenance],
    caption: str,
) -> Table:
    """Table of documents.

    Args:
        documents: their numbers.
        known: provenance by number; others are shown without it.
    """
    vocabulary, names = Vocabulary.of_store(store), shown_columns(known.values())
    rows: list[tuple[Value, ...]] = []
    for document in documents:
        tokens, one = store.documents[document], known.get(document)
        rows.append(
            (
                f"{document:,}",
                beginning(vocabulary, tokens),
                f"{len(tokens):,}",
                f"{one.text_bytes:,}" if one else "",
                one.source if one else "",
                *(shown_value(one, name) for name in names),
            )
        )
    head = ("document", "begins", "tokens", "bytes", "source", *names)
    return Table(caption, head, tuple(rows), "llrrl" + "l" * len(names))


def shown_columns(documents: Iterable[Provenance]) -> list[str]:
    """Names of the carried columns that a list of documents shows."""
    return list(dict.fromkeys(name for one in documents for name in one.columns))[:SHOWN_COLUMNS]


def shown_value(provenance: Provenance | None, name: str) -> str:
    """Value of a carried column in a list; empty without one."""
    value = None if provenance is None else provenance.columns.get(name)
    return "" if value is None else value_text(value, SHOWN_CHARACTERS)


def beginning(vocabulary: Vocabulary, tokens: np.ndarray) -> str:
    """Beginning of a document, in one line."""
    ids = [one for one in tokens[:BEGINNING].tolist() if one not in vocabulary.special]
    cut = len(tokens) > BEGINNING
    text = " ".join(whole_characters(plain_bytes(vocabulary, ids), last=cut).split())
    more = cut or len(text) > SHOWN_CHARACTERS
    return text[:SHOWN_CHARACTERS] + ("…" if more else "")


def plain_bytes(vocabulary: Vocabulary, ids: list[int]) -> bytes:
    """Tokens as bytes, special ones by name."""
    parts: list[bytes] = []
    for one in ids:
        known = one < len(vocabulary)
        parts.append(vocabulary.special[one].encode() if one in vocabulary.special else b"")
        parts.append(vocabulary.data[one] if known else f"id {one}".encode())
    return b"".join(parts)
