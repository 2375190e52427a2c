"""A store's documents as a format wants them: which, in which order, between which tokens.

    view = DocumentView(store, edges="bos")
    view.splits                       # ["train", "val"], those that have documents
    stream = view.stream("train")
    stream.blocks(0, stream.documents, np.uint16)         # whole documents
    stream.tokens_between(0, 1 << 20, np.uint16)          # tokens, wherever documents end

A stream is the documents of one split back to back. Its tokens, documents, lengths and ends are counted as
they are in the output: after `edges` have put, taken and moved what stands between documents (see there).

Cost: where the edges are the store's and nothing was filtered or shuffled, what is given out are views of the
mapped files, so writing them is copying them; a boundary moved to the front costs nothing more. Else
tokens are copied once, a stretch of documents that follow one another at a time. Memory is a block, whatever
the store. Every id is held against the vocabulary on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packline.errors import CorruptStore, RecipeError, StoreError
from packline.formats.exporting.edges import EdgeRule
from packline.formats.exporting.stretches import Stretches
from packline.formats.exporting.vocabulary import OfTokenizer
from packline.formats.format import Block, Edges
from packline.packing.selection import Selection
from packline.ragged import offsets_of
from packline.recipe import SPLITS
from packline.store.manifest import FileEntry, ShardEntry, TokenizerEntry
from packline.store.reader import Store

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_TOKENS = 1 << 20
"""Of a block, unless a single document is longer."""
BLOCK_DOCUMENTS = 1 << 17
"""Of a block, where documents are very short."""


@dataclass(frozen=True, slots=True)
class SharedShard:
    """A stored shard that is a stretch of the output as it is."""

    name: str
    entry: ShardEntry
    path: Path
    """Of its `.bin`."""
    first_document: int
    """Of the stream."""
    first_token: int
    documents: int
    tokens: int

    def file(self, ending: str) -> tuple[Path, FileEntry] | None:
        """`.bin`, `.idx`, `.docs.parquet` or `.loss` with its size and checksum; None for one it lacks."""
        for entry in self.entry.files:
            if entry.name == f"{self.name}{ending}":
                return self.path.with_name(entry.name), entry
        return None


class DocumentView(OfTokenizer):
    """The chosen documents of a store, by split.

    Args:
        store: an opened store.
        edges: which boundary tokens documents have in the output.
        split: `train`, `val`, or `all`.
        labels, sources, min_tokens, max_tokens, shuffle_documents: as for `store.rows`; lengths are the
            stored ones. A shuffle is of each split by itself.

    Raises:
        RecipeError: a setting that makes no sense for this store.
        StoreError: no document is left.

    >>> view = DocumentView(store, edges="bos")                # of one document: a b ... end
    >>> view.splits, view.stream("train").tokens == store.manifest.tokens
    (['train'], True)
    >>> stored = store.documents[0].tolist()
    >>> next(view.stream("train").blocks(0, 1, np.int32)).tokens.tolist() == [store.eod_id, *stored[:-1]]
    True
    """

    def __init__(
        self,
        store: Store,
        *,
        edges: Edges,
        split: str = "all",
        labels: str | Sequence[str] | None = None,
        sources: str | Sequence[str] | None = None,
        min_tokens: int | None = None,
        max_tokens: int | None = None,
        shuffle_documents: int | None = None,
    ) -> None:
        self.store, self.edges = store, edges
        self.tokenizer: TokenizerEntry = store.manifest.tokenizer
        self.rule = EdgeRule.of(edges, self.tokenizer.bos_id)
        settings: dict[str, Any] = {
            "labels": labels,
            "sources": sources,
            "min_tokens": min_tokens,
            "max_tokens": max_tokens,
            "shuffle_documents": shuffle_documents,
        }
        there = {shard.entry.split for shard in store.shards if len(shard)}
        wanted = [split] if split != "all" else [name for name in SPLITS if name in there]
        self._streams: dict[str, DocumentStream] = {}
        refused: StoreError | None = None
        for name in wanted or ["all"]:  # of an empty store: let the selection say so
            try:
                self._streams[name] = DocumentStream(self, Selection(store, split=name, **settings))
            except CorruptStore:
                raise
            except StoreError as error:  # one split may well have none of the wanted documents
                refused = error
        if not self._streams and refused is not None:
            raise refused

    @property
    def splits(self) -> list[str]:
        """Those that have documents; train before val."""
        return list(self._streams)

    def stream(self, split: str) -> DocumentStream:
        """The documents of a split."""
        return self._streams[split]

    @property
    def documents(self) -> int:
        """Of all splits."""
        return sum(stream.documents for stream in self._streams.values())

    @property
    def tokens(self) -> int:
        """Of all splits, counted as in the output."""
        return sum(stream.tokens for stream in self._streams.values())

    @property
    def marker_id(self) -> int:
        """What stands in front of a document, where something does: its beginning, or the end moved there."""
        return self.eod_id if self.bos_id is None else self.bos_id

    @cached_property
    def has_loss(self) -> bool:
        """Whether a chosen shard has a loss mask."""
        return any(stream.stretches.has_loss for stream in self._streams.values())


class DocumentStream:
    """The documents of one split, back to back, in their order. `DocumentView.stream` gives it."""

    def __init__(self, view: DocumentView, selection: Selection) -> None:
        self._view, self._rule, self.selection = view, view.rule, selection
        self.stretches = Stretches(selection)
        self.documents = len(selection)
        self.tokens = selection.tokens - self._rule.dropped * self.documents

    @cached_property
    def shards(self) -> list[SharedShard] | None:
        """The whole stored shards that this is, one after another; None where it is no such run."""
        parts = self.selection.stored
        if parts is None or not self._rule.own:
            return None
        shared, document, token = [], 0, 0
        for shard in parts.shards:
            entry = shard.entry
            path = self._view.store.path / f"{entry.name}.bin"
            shared.append(SharedShard(entry.name, entry, path, document, token, len(shard), entry.tokens))
            document, token = document + len(shard), token + entry.tokens
        return shared

    def shard(self, name: str) -> SharedShard | None:
        """The stored shard of this name, where the stream is whole shards and it is one of them."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, SharedShard]:
        return {shard.name: shard for shard in self.shards or ()}

    def lengths(self, start: int, stop: int) -> np.ndarray:
        """Tokens of documents `start` to `stop`, int64 `[stop - start]`."""
        return self.selection.lengths(start, stop) - self._rule.dropped

    def ends(self, start: int, stop: int) -> np.ndarray:
        """Where documents `start` to `stop` end, counted over the whole stream, int64 `[stop - start]`."""
        return self._begin(start) + np.cumsum(self.lengths(start, stop))

    def document_at(self, token: int) -> int:
        """The document that holds a token of the stream; for one behind the last, how many documents."""
        if token >= self.tokens:
            return self.documents
        if not self._rule.dropped:
            return self.stretches.find(token)[0]
        low, high = 0, self.documents  # it begins at or before the token; and this one behind it
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._begin(middle) <= token else (low, middle)
        return low

    def tokens_between(
        self, start: int, stop: int, dtype: npt.DTypeLike, max_tokens: int = BLOCK_TOKENS
    ) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Tokens `start` to `stop` of the stream, and their loss mask (uint8) where there is one.

        Args:
            dtype: any that holds the vocabulary.
            max_tokens: of a piece; pieces are as the files have them, often shorter.

        Raises:
            RecipeError: a dtype that does not hold the vocabulary.
            CorruptStore: an id outside of it, or an index that contradicts itself.
        """
        kind = self._checked(dtype)
        stop = min(stop, self.tokens)
        if start >= stop:
            return
        if self._rule.moved:
            if start == 0:
                first = np.array([self._view.eod_id], kind)
                yield first, np.zeros(1, np.uint8) if self._view.has_loss else None
            start, stop = max(start - 1, 0), stop - 1
        elif self._rule.dropped:
            start, stop = self._stored_place(start), self._stored_place(stop - 1) + 1
        for place, tokens, loss in self.stretches.read(start, stop, max_tokens, self._view.has_loss):
            if self._rule.dropped:
                kept = self._rule.kept(
                    *self.stretches.bounds(place, place + len(tokens)), place, place + len(tokens)
                )
                tokens, loss = tokens[kept], None if loss is None else loss[kept]
            if len(tokens):
                yield _as(tokens, kind), loss

    def blocks(
        self, start: int, stop: int, dtype: npt.DTypeLike, max_tokens: int = BLOCK_TOKENS
    ) -> Iterator[Block]:
        """Documents `start` to `stop`, whole, so many at a time as make `max_tokens`; a longer one alone.

        Raises:
            RecipeError, CorruptStore: see `tokens_between`.
        """
        kind = self._checked(dtype)
        stop = min(stop, self.documents)
        for first, last in self._cuts(start, stop, max_tokens):
            lengths = self.lengths(first, last)
            offsets, begin = offsets_of(lengths), self._begin(first)
            size = int(offsets[-1])
            pieces = list(self.tokens_between(begin, begin + size, kind, max(size, 1)))
            tokens = _joined([piece for piece, _ in pieces], kind)
            loss = None
            if self._view.has_loss:
                loss = _joined([part for _, part in pieces if part is not None], np.dtype(np.uint8))
            yield Block(tokens, offsets, loss)

    def provenance(self, start: int, stop: int) -> pa.Table:
        """Where documents `start` to `stop` came from.

        Returns:
            Columns source, file, position, id, label, text_bytes and tokens (as in the output). Keeps the
            row groups it read last, and of a shuffled stream all of them.
        """
        import pyarrow as pa

        stop = min(stop, self.documents)
        numbers = self.selection.documents(np.arange(start, stop))
        table = self._provenance.take(numbers)
        place = table.column_names.index("tokens")
        return table.set_column(place, "tokens", pa.array(self.lengths(start, stop)))

    @cached_property
    def _provenance(self) -> Any:
        from packline.formats.exporting.provenance import ProvenanceReader

        shuffled = self.selection.settings["shuffle_documents"] is not None
        return ProvenanceReader(self._view.store, keep=None if shuffled else 2)

    def _begin(self, document: int) -> int:
        """Tokens of the stream before a document."""
        return self.stretches.before(document) - self._rule.dropped * document

    def _stored_place(self, token: int) -> int:
        """Where a token of the stream stands in the stored one."""
        return token + self._rule.dropped * self.document_at(token) + self._rule.drop_first

    def _cuts(self, start: int, stop: int, max_tokens: int) -> Iterator[tuple[int, int]]:
        """Documents of each block; where shards are views, no block goes across two."""
        edges = np.append(self.stretches.edges, stop)
        while start < stop:
            limit = min(start + BLOCK_DOCUMENTS, int(edges[edges > start].min()), stop)
            ends = np.cumsum(self.lengths(start, limit))
            first = 0
            while first < len(ends):
                before = int(ends[first - 1]) if first else 0
                last = max(int(ends.searchsorted(before + max_tokens, "right")), first + 1)
                yield start + first, start + last
                first = last
            start = limit

    def _checked(self, dtype: npt.DTypeLike) -> np.dtype:
        kind = np.dtype(dtype)
        if kind.kind not in "iu" or np.iinfo(kind).max < self._view.vocab_size - 1:
            raise RecipeError(
                f"ids of a vocabulary of {self._view.vocab_size:,} do not fit into {kind.name}",
                hint="choose a wider dtype, or a format that has one",
            )
        return kind


def _as(tokens: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Ids in another dtype that holds them; a view where only the sign differs, which none has."""
    if tokens.dtype.itemsize == dtype.itemsize and tokens.dtype.isnative == dtype.isnative:
        return tokens.view(dtype)
    return tokens.astype(dtype)


def _joined(pieces: list[np.ndarray], dtype: np.dtype) -> np.ndarray:
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype)
