"""Targets: the token to be predicted at every place of a batch, -100 where there is none.

    tokens    a  b  c | d  e        document 7 ends with c; document 8 continues with f in another row
    targets   b  c  . | e  f        . is -100; it is d where the loss crosses boundaries

Targets are the tokens shifted by one place, corrected at the last token of every document and of every row:
where a row was cut, the next token of the document is read from the file, so that no target is lost.

Cost: one copy of the batch, and half a microsecond per row. If shards have `NAME.loss`, its bytes are read
and shifted in the same way, which costs as much again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packline.packing.copies import Copies
from packline.packing.layout import Layout
from packline.store.reader import StoreReader
from packline.store.shard import Shard, wrong_id, wrong_place

IGNORED = -100
"""Target that torch's losses ignore by default."""


def fill_targets(
    targets: np.ndarray, layout: Layout, copies: Copies, tokens: np.ndarray, boundary_loss: bool
) -> None:
    """Fill in the targets of a batch.

    Args:
        targets: targets to fill, `[B*L]`.
        layout: layout of the batch.
        copies: copies that its tokens came from.
        tokens: tokens of the batch, `[B*L]`.
        boundary_loss: True if the end of a document predicts the beginning of the next.

    Raises:
        CorruptStore: a token after the end of a row is outside of its file or of the vocabulary.
    """
    ends = RowEnds.of(layout, copies, boundary_loss)
    pads = layout.pads()
    _move(tokens, targets)
    if not boundary_loss:
        targets[layout.begins + layout.spans.lengths - 1] = IGNORED
    targets[ends.places] = ends.tokens(copies.store)
    for begin, end in pads:
        targets[begin:end] = IGNORED
    if copies.store.has_loss:
        trained = np.empty(len(tokens), np.uint8)
        copies.copy_loss(trained)
        for begin, end in pads:
            trained[begin:end] = 0
        _move(trained, trained)
        trained[ends.places] = ends.loss()
        targets[trained == 0] = IGNORED


def _move(values: np.ndarray, into: np.ndarray) -> None:
    """Shift every value to the place before it, with 0 at the last place; `into` may be `values` itself."""
    into[:-1] = values[1:]
    into[-1:] = 0


@dataclass(frozen=True, slots=True)
class RowEnds:
    """The token after the last token of each row, which the batch does not hold."""

    places: np.ndarray
    """int64 `[N]`: last token of each row that has any."""
    next: list[tuple[Shard, int] | None]
    """Shard and place of the token after each; None if its document ends and no other one follows."""

    @classmethod
    def of(cls, layout: Layout, copies: Copies, boundary_loss: bool) -> RowEnds:
        """Look up the documents that continue, and the starts of the following ones."""
        spans, store = layout.spans, copies.store
        rows = (spans.offsets[1:] > spans.offsets[:-1]).nonzero()[0]
        final = spans.offsets[1:][rows] - 1
        documents = spans.documents[final].tolist()
        stops = (spans.starts[final] + spans.lengths[final]).tolist()
        followers = [-1] * len(rows)
        if boundary_loss and spans.following is not None:
            followers = spans.following[rows].tolist()
        # The last copy of a row ends where its last span does.
        last = (copies.rows.searchsorted(rows, "right") - 1).tolist()
        found: list[tuple[Shard, int] | None] = []
        for copy, document, stop, follower in zip(last, documents, stops, followers, strict=True):
            shard = copies.shards[copy]
            if stop < shard.length_of(document - copies.firsts[copy]):
                found.append((shard, copies.sources[copy] + copies.lengths[copy]))
            elif follower >= 0:
                shard, inner = store.locate(follower)
                found.append((shard, shard.offset_of(inner) // store.dtype.itemsize))
            else:
                found.append(None)
        return cls(layout.begins[final] + spans.lengths[final] - 1, found)

    def tokens(self, store: StoreReader) -> list[int]:
        """Tokens after these, -100 where there is none.

        Raises:
            CorruptStore: a token is outside of the file or of the vocabulary.
        """
        vocabulary, found = store.manifest.tokenizer.vocab_size, []
        for after in self.next:
            if after is None:
                found.append(IGNORED)
                continue
            shard, place = after
            if not 0 <= place < len(shard.tokens):
                raise wrong_place(shard, place, place + 1)
            token = shard.tokens.item(place)
            if not 0 <= token < vocabulary:
                raise wrong_id(shard, vocabulary, place)
            found.append(token)
        return found

    def loss(self) -> list[int]:
        """Bytes of `NAME.loss` for these tokens, 1 where a shard has none."""
        return [
            1 if after is None or after[0].loss is None else after[0].loss.item(after[1])
            for after in self.next
        ]
