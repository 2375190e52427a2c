"""Boundary tokens of documents, in both directions: from a store to files, and from files to a store.

    edges      in the file                of a store with EOD      of a store with BOS and EOD
    eod        a b EOD                    as it is                 without BOS
    bos        EOD a b  or  BOS a b       EOD moved to the front   without EOD
    both       BOS a b EOD                (needs BOS)              as it is
    none       a b                        without EOD              without both

Moving the end to the front shifts the whole stream by one token: `EOD`, then all but the last stored token.
Each token keeps its byte of the loss mask; the very first, which ends no document, is not trained on. On
reading, a beginning that was not in the file is not trained on, and an end is if the token before it is.
Every document must have its boundary tokens, except where the data begins or ends (`truncated`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import numpy as np

from packline.errors import RecipeError
from packline.formats.types import DocumentBlock, Edges
from packline.ragged import Ragged, offsets_of


@dataclass(frozen=True, slots=True)
class BoundaryProblem:
    """Problem with tokens of a block: the first position, and how many there are."""

    what: str
    count: int
    document: int
    """Document number within the block."""
    token: int
    """Token number within the document."""
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True, slots=True)
class BoundaryPolicy:
    """Difference between the boundary tokens of documents in files and in a store.

    Args:
        edges: boundary tokens in the files.
        bos_id: begin-of-document token of the store, if it has one.

    >>> block = DocumentBlock(np.array([9, 5, 9], np.uint16), np.array([0, 2, 3], np.int64))
    >>> policy = BoundaryPolicy("bos", eod_id=9, bos_id=None, vocab_size=10)
    >>> ragged, loss = policy.restore(block)
    >>> ragged.tokens.tolist(), ragged.offsets.tolist(), policy.moved
    ([5, 9, 9], [0, 2, 3], True)
    """

    edges: Edges
    eod_id: int
    bos_id: int | None
    vocab_size: int

    def __post_init__(self) -> None:
        if self.edges not in get_args(Edges):
            raise RecipeError(f"edges are {self.edges!r}: expected {', '.join(get_args(Edges))}")
        if self.edges == "both" and self.bos_id is None:
            raise RecipeError(
                "edges 'both' need a begin-of-document token, and only an end of document is known",
                hint="name it with --bos (build, import); edges = bos puts the end of document in front",
            )

    @property
    def drop_first(self) -> bool:
        """True if the stored begin-of-document token is not in the files."""
        return self.bos_id is not None and self.edges in ("eod", "none")

    @property
    def drop_last(self) -> bool:
        """True if the stored end-of-document token is not in the files."""
        return self.edges == "none" or (self.edges == "bos" and self.bos_id is not None)

    @property
    def moved(self) -> bool:
        """True if the end-of-document token is in front: that before a document ends the previous one."""
        return self.edges == "bos" and self.bos_id is None

    @property
    def unchanged(self) -> bool:
        """True if documents have the same tokens in the files as in the store."""
        return not (self.drop_first or self.drop_last or self.moved)

    @property
    def dropped(self) -> int:
        """Number of stored tokens that every document lacks in the files."""
        return self.drop_first + self.drop_last

    def kept(self, begins: np.ndarray, ends: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Mask of the tokens to keep in a range of the stored stream, bool `[stop - start]`.

        Args:
            begins: int64 `[D]`, start offsets of all documents in the range, counted like `start`.
            ends: int64 `[D]`, their end offsets.
        """
        kept = np.ones(stop - start, np.bool_)
        for drops, places in ((self.drop_first, begins), (self.drop_last, ends - 1)):
            if drops:
                kept[places[(places >= start) & (places < stop)] - start] = False
        return kept

    @property
    def first(self) -> int | None:
        """Token at the beginning of documents in the file."""
        if self.edges not in ("bos", "both"):
            return None
        return self.eod_id if self.bos_id is None else self.bos_id

    @property
    def last(self) -> int | None:
        """Token at the end of documents in the file."""
        return self.eod_id if self.edges in ("eod", "both") else None

    def problems(self, block: DocumentBlock) -> Iterator[BoundaryProblem]:
        """Ids outside the vocabulary, and documents without their boundary tokens."""
        tokens, starts, ends = block.tokens, block.offsets[:-1], block.offsets[1:]
        if tokens.dtype.kind not in "iu":
            yield BoundaryProblem("tokens of another kind", len(tokens), 0, 0, "integers", tokens.dtype.name)
            return
        if len(tokens):
            # As unsigned integers, so that a negative id is a large one.
            ids = np.ascontiguousarray(tokens).view(f"u{tokens.dtype.itemsize}")
            if int(ids.max()) >= self.vocab_size:
                places = np.flatnonzero(ids >= self.vocab_size)
                document = int(np.searchsorted(block.offsets, places[0], side="right")) - 1
                place, below = int(places[0]) - int(starts[document]), f"below {self.vocab_size:,}"
                found = f"{int(tokens[places[0]]):,}"
                yield BoundaryProblem(
                    "an id outside the vocabulary", len(places), document, place, below, found
                )
        whole = np.ones(len(block), bool) if block.truncated is None else ~block.truncated
        both = self.edges == "both"
        for token, at, what in ((self.first, starts, "beginning"), (self.last, ends - 1, "end")):
            if token is None or not len(block):
                continue
            good = ~whole | (ends - starts > both)
            good[ends > starts] &= ~whole[ends > starts] | (tokens[at[ends > starts]] == token)
            good[ends == starts] = ~whole[ends == starts]
            if not good.all():
                document = int(np.argmin(good))
                length = int(ends[document] - starts[document])
                found = f"{int(tokens[at[document]]):,}" if length else "no token"
                place = 0 if what == "beginning" or not length else length - 1
                count = int(np.count_nonzero(~good))
                yield BoundaryProblem(
                    f"no boundary token at the {what}", count, document, place, f"{token:,}", found
                )

    def restore(self, block: DocumentBlock, next_loss: int | None = None) -> tuple[Ragged, np.ndarray | None]:
        """Convert the documents of a block without problems to stored ones.

        Args:
            next_loss: first byte of the loss mask after this block, if documents continue there.

        Returns:
            Tokens in their original dtype, and uint8 0 or 1 per token, if the block has a mask.
        """
        if block.truncated is None and self.unchanged:
            return Ragged(block.tokens, block.offsets), block.loss
        if block.truncated is None and self.moved and len(block):
            tokens = np.concatenate([block.tokens[1:], block.tokens[:1]])  # all markers are the same
            loss = block.loss
            if loss is not None:
                text = int(block.offsets[-1] - block.offsets[-2]) > 1
                final = next_loss if next_loss is not None else int(loss[-1]) if text else 0
                loss = np.append(loss[1:], np.uint8(final))
            return Ragged(tokens, block.offsets), loss
        return self._rebuild(block, next_loss)

    def _rebuild(self, block: DocumentBlock, next_loss: int | None) -> tuple[Ragged, np.ndarray | None]:
        tokens, starts, ends = block.tokens, block.offsets[:-1], block.offsets[1:]
        has_first = self._has(tokens, self.first, starts, ends > starts)
        # A single token that matches at both ends is one boundary token, not two.
        has_last = self._has(tokens, self.last, ends - 1, ends - starts > has_first)
        kept = np.ones(len(tokens), bool)
        kept[starts[has_first]] = False
        kept[ends[has_last] - 1] = False
        bodies = ends - starts - has_first - has_last
        before = self.bos_id is not None
        offsets = offsets_of(bodies + 1 + before)
        filled = np.ones(int(offsets[-1]), bool)
        filled[offsets[1:] - 1] = False
        if before:
            filled[offsets[:-1]] = False
        built = np.empty(len(filled), tokens.dtype)
        built[filled] = tokens[kept]
        built[offsets[1:] - 1] = self.eod_id
        if before:
            built[offsets[:-1]] = self.bos_id
        if block.loss is None:
            return Ragged(built, offsets), None
        loss = np.zeros(len(filled), np.uint8)
        loss[filled] = block.loss[kept]
        final = np.zeros(len(block), np.uint8)
        texts = bodies > 0
        final[texts] = loss[offsets[1:][texts] - 2]  # an added end: same as the token before
        final[has_last] = block.loss[ends[has_last] - 1]
        if self.moved and len(block):
            moved = np.flatnonzero(has_first[1:])
            final[moved] = block.loss[starts[moved + 1]]
            if next_loss is not None:
                final[-1] = next_loss
        loss[offsets[1:] - 1] = final
        if before:
            loss[offsets[:-1][has_first]] = block.loss[starts[has_first]]
        return Ragged(built, offsets), loss

    @staticmethod
    def _has(tokens: np.ndarray, token: int | None, places: np.ndarray, possible: np.ndarray) -> np.ndarray:
        """Mask of documents that have this token at their position, bool `[D]`."""
        found = np.zeros(len(places), bool)
        if token is not None:
            found[possible] = tokens[places[possible]] == token
        return found
