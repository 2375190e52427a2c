"""TokenStream: the stored tokens of a selection as one stream, read from any token to any other.

    selection    document 9    document 2    document 0
    stream       0 1 2 3 4     5 6           7 8 9 10
    read(3, 8)         3 4     5 6           7                whole or cut

A selection of whole shards in stored order is read as views of the mapped files. Any other selection is
copied, with one copy per run of consecutive documents of the store. The document that holds a token is
found from the index, or from sums (`sums_of`) where there is no closed form.

Boundary tokens of the output are handled elsewhere (see `edges`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from packline.errors import CorruptStore
from packline.packing.gather import PlannedRows
from packline.packing.offsets import ShardRange, Sums, sums_of
from packline.packing.packer import Spans
from packline.packing.selection import Selection
from packline.ragged import offsets_of
from packline.store.shard import wrong_id

Piece = tuple[int, np.ndarray, np.ndarray | None]
"""Position of its first token in the stream; tokens in the store's dtype; uint8 loss mask if requested."""


class TokenStream:
    """Token stream of a selection."""

    def __init__(self, selection: Selection) -> None:
        self.selection, self._parts = selection, selection.stored
        self.edges: np.ndarray = np.empty(0, np.int64)
        """int64: first document of each shard, where shards are views."""
        if self._parts is not None:
            entries = [part.shard.entry for part in self._parts.parts()]
            self.edges = offsets_of([entry.documents for entry in entries])
            self._begins = offsets_of([entry.tokens for entry in entries])

    @property
    def has_loss(self) -> bool:
        """True if a shard that may be read has a loss mask."""
        split = self.selection.settings["split"]
        if self._parts is not None:
            return any(part.shard.has_loss for part in self._parts.parts())
        shards = self.selection.store.shards
        return any(shard.has_loss for shard in shards if split in ("all", shard.entry.split))

    def find(self, token: int) -> tuple[int, int]:
        """Position of the document that holds a token, and the number of tokens before that document."""
        places, before = self._sums.find(np.array([token], np.int64))
        return int(places[0]), int(before[0])

    def before(self, place: int) -> int:
        """Number of tokens before a document."""
        if place <= 0:
            return 0
        if place >= len(self.selection):
            return self.selection.tokens
        return int(self._sums.before(np.array([place], np.int64))[0])

    def bounds(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Start and end offsets of all documents with a token from start to stop, int64 `[D]` each."""
        (first, before), (last, _) = self.find(start), self.find(stop - 1)
        lengths = self.selection.lengths(first, last + 1)
        ends = before + np.cumsum(lengths)
        return ends - lengths, ends

    def read(self, start: int, stop: int, max_tokens: int, with_loss: bool) -> Iterator[Piece]:
        """Tokens from start to stop, in pieces of at most `max_tokens`.

        Raises:
            CorruptStore: an id outside the vocabulary, or an inconsistent index.
        """
        if start >= stop:
            return
        if self._parts is not None:
            yield from self._views(self._parts, start, stop, max_tokens, with_loss)
            return
        for begin in range(start, stop, max_tokens):
            yield self._copy(begin, min(begin + max_tokens, stop), with_loss)

    def _views(
        self, parts: ShardRange, start: int, stop: int, max_tokens: int, with_loss: bool
    ) -> Iterator[Piece]:
        number = int(self._begins.searchsorted(start, "right")) - 1
        vocab_size = self.selection.store.manifest.tokenizer.vocab_size
        while start < stop:
            first, last = int(self._begins[number]), int(self._begins[number + 1])
            shard = parts.shard(number)
            while start < min(stop, last):
                end = min(start + max_tokens, stop, last)
                tokens = shard.tokens[start - first : end - first]
                # As unsigned integers, negative ids are the largest: one pass finds both kinds.
                if int(tokens.view(f"<u{tokens.itemsize}").max()) >= vocab_size:
                    wrong = np.flatnonzero((tokens < 0) | (tokens >= vocab_size))[0]
                    raise wrong_id(shard, vocab_size, start - first + int(wrong))
                loss = None
                if with_loss:
                    whole = shard.loss
                    loss = (
                        np.ones(len(tokens), np.uint8)
                        if whole is None
                        else whole[start - first : end - first]
                    )
                yield start, tokens, loss
                start = end
            number += 1

    def _copy(self, start: int, stop: int, with_loss: bool) -> Piece:
        (first, before), (last, _) = self.find(start), self.find(stop - 1)
        documents, begins, sizes = self.selection.at(np.arange(first, last + 1))
        starts = np.zeros(len(documents), np.int64)
        starts[0] = start - before
        lengths = sizes - starts
        lengths[-1] -= int(lengths.sum()) - (stop - start)
        if int(lengths.min()) < 1:
            raise CorruptStore(
                f"{self.selection.store.place}: expected an index whose lengths agree with its offsets, "
                "found one in which they do not",
                hint="packline verify names the document",
            )
        offsets = np.array([0, len(documents)], np.int64)
        spans = Spans(offsets, documents, starts, lengths, begins, sizes)
        planned = PlannedRows.of(self.selection.store, spans, stop - start, pad_id=0, boundary_loss=False)
        whole, layout = planned.read(targets=with_loss)
        assert whole is not None
        if not with_loss:
            return start, whole[0, :-1], None
        loss = layout.trained
        return start, whole[0, :-1], np.ones(stop - start, np.uint8) if loss is None else loss[0, :-1]

    @cached_property
    def _sums(self) -> ShardRange | Sums:
        if self._parts is not None:
            return self._parts
        return sums_of(self.selection, lambda lengths: lengths, "tokens")
