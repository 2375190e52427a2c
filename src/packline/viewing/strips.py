"""Documents and rows as strips of tokens, each document with its origin.

    document_strip(store, 7)     one document, with its loss mask if there is one
    row_strip(rows, 12)          one row: documents, their edges, padding, learned tokens
    batch_strip(...)             a row of arrays from any source

A strip has at most `most` tokens, so its cost does not grow with the document. Provenance is read one row
group at a time (`finding.provenance_of`), unless the caller passes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from packline.packing.rows import RowReader, RowSource
from packline.store.lookup import document_number, provenance_of
from packline.store.reader import StoreReader
from packline.store.shard import Provenance
from packline.viewing.cells import cells_of, learned_of
from packline.viewing.page import Origin, Strip
from packline.viewing.vocabulary import Vocabulary

MOST = 2048
"""Maximum number of tokens in a strip."""

AnyRows: TypeAlias = RowReader | RowSource
Href = Callable[[int], str]
"""Function from the number of a document to the address of its page."""


def describe_origin(provenance: Provenance) -> str:
    """Origin of a document, in one line.

    >>> describe_origin(Provenance("web", "a.jsonl", 1234, "x7", None, "train", 10, 3))
    'web/a.jsonl at 1,234, id x7'
    """
    named = f", id {provenance.id}" if provenance.id is not None else ""
    label = f", label {provenance.label}" if provenance.label is not None else ""
    return f"{provenance.source}/{provenance.file} at {provenance.position:,}{named}{label}"


def document_strip(
    store: StoreReader,
    document: int,
    *,
    first: int = 0,
    most: int = MOST,
    provenance: Provenance | None = None,
    href: Href | None = None,
) -> Strip:
    """Strip of the tokens of a document.

    Args:
        document: its number in `store.documents`.
        first: the first token to show.
        most: maximum number of tokens to show.
        provenance: origin of the document, if already known.

    Raises:
        StoreError: the document does not exist.
        TokenizerError: a token is outside the vocabulary.
    """
    document = document_number(store, document)
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
    """Strip of the tokens of a row, with the edges of its documents.

    Args:
        index: number of the row.
        caption: default: `row` and its number.
        provenances: origins of the documents of its spans, if already known.

    Raises:
        IndexError: the row does not exist.
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
    """Strip of a row of arrays from any source; see `cells_of`. Padding beyond `most` is not counted."""
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
    """Convert positions within spans to positions within documents."""
    firsts = np.append(starts, 0)  # the last entry is for padding, segment -1
    return position_ids + firsts[segment_ids]
