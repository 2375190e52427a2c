"""Documents and rows as strips of tokens, each document with where it comes from.

    document_strip(store, 7)     one document: what carries loss, where there is a mask
    row_strip(rows, 12)          one row: documents, their edges, padding, what is learned
    batch_strip(...)             a row of arrays from elsewhere

A strip is at most `most` tokens, so its cost does not grow with documents. Provenance is read a row group
at a time (`finding.provenance_of`), unless the caller has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from packline.packing.row_reader import RowReader, RowSource
from packline.store.finding import check_document, provenance_of
from packline.store.reader import Provenance, Store
from packline.viewing.cells import cells_of, learned_of
from packline.viewing.page import Origin, Strip
from packline.viewing.vocabulary import Vocabulary

MOST = 2048
"""Tokens of a strip that are shown."""

AnyRows: TypeAlias = RowReader | RowSource
Href = Callable[[int], str]
"""From the number of a document to the page that shows it."""


def describe_origin(provenance: Provenance) -> str:
    """Where a document came from, in one line.

    >>> describe_origin(Provenance("web", "a.jsonl", 1234, "x7", None, "train", 10, 3))
    'web/a.jsonl at 1,234, id x7'
    """
    named = f", id {provenance.id}" if provenance.id is not None else ""
    label = f", label {provenance.label}" if provenance.label is not None else ""
    return f"{provenance.source}/{provenance.file} at {provenance.position:,}{named}{label}"


def document_strip(
    store: Store,
    document: int,
    *,
    first: int = 0,
    most: int = MOST,
    provenance: Provenance | None = None,
    href: Href | None = None,
) -> Strip:
    """Tokens of a document.

    Args:
        document: its number in `store.documents`.
        first: its first token that is shown.
        most: how many are shown.
        provenance: where it is from, if that is known already.

    Raises:
        StoreError: no such document.
        TokenizerError: a token is outside the vocabulary.
    """
    document = check_document(store, document)
    shard, inner = store.locate(document)
    tokens = shard.document(inner)
    learned = None
    if shard.loss is not None:
        place = int(shard.places(slice(inner, inner + 1))[0])
        learned = (shard.loss[place : place + len(tokens)] != 0).astype(np.int8)[first : first + most]
    shown = tokens[first : first + most]
    cells = cells_of(Vocabulary.of_store(store), shown, learned=learned, first=first)
    provenance = provenance or provenance_of(store, np.array([document]))[0]
    origin = Origin(0, document, describe_origin(provenance), href(document) if href else "")
    return Strip("", cells, (origin,), max(len(tokens) - first - len(shown), 0))


def row_strip(
    rows: AnyRows,
    index: int,
    *,
    caption: str | None = None,
    most: int = MOST,
    provenances: Sequence[Provenance] | None = None,
    href: Href | None = None,
) -> Strip:
    """Tokens of a row, with the edges of its documents.

    Args:
        index: number of the row.
        caption: default `row` and its number.
        provenances: where the documents of its spans are from, if that is known already.

    Raises:
        IndexError: no such row.
    """
    spans = rows.spans(np.array([index]))
    arrays = {name: array[0] for name, array in rows.read(np.array([index])).items()}
    if provenances is None:
        provenances = provenance_of(rows.store, spans.documents)
    positions = _in_documents(arrays["position_ids"], arrays["segment_ids"], spans.starts)
    return batch_strip(
        Vocabulary.of_store(rows.store),
        arrays["tokens"],
        learned=learned_of(arrays["targets"], positions),
        position_ids=positions,
        segment_ids=arrays["segment_ids"],
        origins=[
            Origin(segment, document, describe_origin(provenance), href(document) if href else "")
            for segment, (document, provenance) in enumerate(
                zip(spans.documents.tolist(), provenances, strict=True)
            )
        ],
        caption=f"row {index:,}" if caption is None else caption,
        most=most,
    )


def batch_strip(
    vocabulary: Vocabulary,
    tokens: np.ndarray,
    *,
    learned: np.ndarray | None = None,
    position_ids: np.ndarray | None = None,
    segment_ids: np.ndarray | None = None,
    origins: Sequence[Origin] = (),
    caption: str = "",
    most: int = MOST,
) -> Strip:
    """A row of arrays, whatever made them: see `cells_of`. Padding beyond `most` tokens is not counted."""
    count = len(tokens)
    cells = cells_of(
        vocabulary,
        tokens[:most],
        learned=None if learned is None else learned[:most],
        position_ids=None if position_ids is None else position_ids[:most],
        segment_ids=None if segment_ids is None else segment_ids[:most],
    )
    there = {cell.segment for cell in cells}
    return Strip(caption, cells, tuple(one for one in origins if one.segment in there), max(count - most, 0))


def _in_documents(position_ids: np.ndarray, segment_ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Places within documents, from places within spans."""
    firsts = np.append(starts, 0)  # the last is that of padding, segment -1
    return position_ids + firsts[segment_ids]
