"""A store's documents as a format needs them: which ones, in which order, with which boundary tokens.

    view = DocumentView(store, edges="bos")
    view.splits                       # ["train", "val"], those that have documents
    stream = view.stream("train")
    stream.blocks(0, stream.documents, np.uint16)         # whole documents
    stream.tokens_between(0, 1 << 20, np.uint16)          # tokens, wherever documents end

A stream is the documents of one split back to back. Its tokens, documents, lengths and ends are counted as
in the output, after `edges` has added, removed or moved boundary tokens (see `boundaries`).

Cost: with the store's own edges and no filter or shuffle, the arrays are views of the mapped files, so
writing them is a plain copy; moving a boundary to the front costs nothing more. Otherwise tokens are copied
once, one range of consecutive documents at a time. Memory is one block, whatever the size of the store.
Every id is checked against the vocabulary on the way. Provenance is decoded one row group of a shard at a
time, about 0.1 microseconds per document; for a shuffled order all row groups stay in memory, about 30 bytes
per document plus its id.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packline.errors import CorruptStore, RecipeError, StoreError
from packline.formats.boundaries import BoundaryPolicy
from packline.formats.token_stream import TokenStream
from packline.formats.types import DocumentBlock, Edges, NotPreserved, TokenizerProperties
from packline.packing.options import DocumentFilter
from packline.packing.selection import Selection
from packline.ragged import offsets_of
from packline.recipe import SPLITS
from packline.store.files import FileEntry, StoreFiles
from packline.store.manifest import TokenizerEntry
from packline.store.provenance import ProvenanceFile
from packline.store.reader import StoreReader
from packline.store.tables import ShardEntry

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_TOKENS = 1 << 20
"""Tokens per block, unless a single document is longer."""
BLOCK_DOCUMENTS = 1 << 17
"""Documents per block, where documents are very short."""


@dataclass(frozen=True, slots=True)
class SharedShard:
    """A stored shard that appears unchanged in the output."""

    name: str
    entry: ShardEntry
    files: StoreFiles
    """Files of the store."""
    first_document: int
    """Number of its first document in the stream."""
    first_token: int
    documents: int
    tokens: int

    def file(self, ending: str) -> FileEntry | None:
        """`.bin`, `.idx`, `.docs.parquet` or `.loss` with its size and checksum; None if lacking."""
        return next((entry for entry in self.entry.files if entry.name == f"{self.name}{ending}"), None)


class DocumentView(TokenizerProperties):
    """Selected documents of a store, by split.

    Args:
        store: an opened store.
        edges: boundary tokens of documents in the output.
        split: `train`, `val`, or `all`.
        **settings: other fields of `DocumentFilter`, as for `store.rows`; lengths are the stored ones. Each
            split is shuffled, and made unique, separately.

    Raises:
        RecipeError: a setting that is invalid for this store.
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
        store: StoreReader,
        *,
        edges: Edges,
        split: str = "all",
        **settings: Any,
    ) -> None:
        self.store, self.edges = store, edges
        self.tokenizer: TokenizerEntry = store.manifest.tokenizer
        entry = self.tokenizer
        self.boundaries = BoundaryPolicy(edges, entry.eod_id, entry.bos_id, entry.vocab_size)
        there = {split for split, count in store.manifest.shards.by_split("documents").items() if count}
        chosen = [split] if split != "all" else [name for name in SPLITS if name in there]
        self._streams: dict[str, DocumentStream] = {}
        refused: StoreError | None = None
        for name in chosen or ["all"]:  # for an empty store, let the selection raise
            try:
                self._streams[name] = DocumentStream(
                    self, Selection(store, DocumentFilter(split=name, **settings))
                )
            except CorruptStore:
                raise
            except StoreError as error:  # one split may have none of the selected documents
                refused = error
        if not self._streams and refused is not None:
            raise refused

    @property
    def splits(self) -> list[str]:
        """Splits that have documents; train before val."""
        return list(self._streams)

    def stream(self, split: str) -> DocumentStream:
        """Documents of a split."""
        return self._streams[split]

    @property
    def contents(self) -> dict[str, str]:
        """Lists and other stores that the selection refers to, by the checksums of their contents."""
        selection = next(iter(self._streams.values())).selection
        return {name: ", ".join(selection.identity[name] or ()) for name in selection.contents}

    @property
    def documents(self) -> int:
        """Number of documents in all splits."""
        return sum(stream.documents for stream in self._streams.values())

    @property
    def tokens(self) -> int:
        """Number of tokens in all splits, counted as in the output."""
        return sum(stream.tokens for stream in self._streams.values())

    @property
    def marker_id(self) -> int:
        """Token in front of a document, if any: begin-of-document, or the end-of-document moved there."""
        return self.eod_id if self.bos_id is None else self.bos_id

    @cached_property
    def has_loss(self) -> bool:
        """True if a selected shard has a loss mask."""
        return any(stream.stored.has_loss for stream in self._streams.values())

    def not_preserved(
        self, format: str, *, keeps_loss: bool = False, keeps_provenance: bool = False
    ) -> tuple[NotPreserved, ...]:
        """Boundary tokens that the edges leave out, and the loss mask and provenance unless kept.

        Args:
            format: name of the format, for the reasons.

        >>> view = DocumentView(store, edges="none")
        >>> [one.what for one in view.not_preserved("some format")]
        ['end-of-document tokens', 'provenance']
        """
        lost = []
        why = f"documents have the edges {self.edges!r} in the output"
        if self.boundaries.drop_first:
            lost.append(NotPreserved("begin-of-document tokens", self.documents, "tokens", why))
        if self.boundaries.drop_last:
            lost.append(NotPreserved("end-of-document tokens", self.documents, "tokens", why))
        if self.has_loss and not keeps_loss:
            lost.append(NotPreserved("loss mask", self.tokens, "tokens", f"{format} has no place for one"))
        if not keeps_provenance:
            lost.append(
                NotPreserved("provenance", self.documents, "documents", f"{format} has no place for it")
            )
        return tuple(lost)


class DocumentStream:
    """Documents of one split, back to back, in order. Made by `DocumentView.stream`."""

    def __init__(self, view: DocumentView, selection: Selection) -> None:
        self._view, self._boundaries, self.selection = view, view.boundaries, selection
        self.stored = TokenStream(selection)
        self.documents = len(selection)
        self.tokens = selection.tokens - self._boundaries.dropped * self.documents

    @cached_property
    def shards(self) -> list[SharedShard] | None:
        """The stored shards that make up this stream, in order; None if it is not made of whole shards."""
        parts = self.selection.stored
        if parts is None or not self._boundaries.unchanged:
            return None
        shared, document, token = [], 0, 0
        for shard, *_ in parts.parts():
            entry = shard.entry
            files = self._view.store.files
            shared.append(SharedShard(entry.name, entry, files, document, token, len(shard), entry.tokens))
            document, token = document + len(shard), token + entry.tokens
        return shared

    def source_runs(self) -> list[tuple[str, int, int]]:
        """Source, first document and end of each run of documents of one source; "" for a mix of them."""
        store = self._view.store
        names = store.manifest.shards.names("source")
        changes = [0, *(number for number in range(1, len(names)) if names[number] != names[number - 1])]
        if len(set(names)) > 1 and self.selection.settings["shuffle_documents"] is not None:
            return [("", 0, self.documents)]

        def number(place: int) -> int:
            return int(self.selection.documents(np.array([place]))[0])

        every = range(self.documents)
        later = [bisect.bisect_left(every, int(store.firsts[change]), key=number) for change in changes[1:]]
        bounds = zip(changes, [0, *later], [*later, self.documents], strict=True)
        return [(names[change], start, stop) for change, start, stop in bounds if start < stop]

    def shard(self, name: str) -> SharedShard | None:
        """The stored shard of this name, if the stream is made of whole shards and this is one of them."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, SharedShard]:
        return {shard.name: shard for shard in self.shards or ()}

    def lengths(self, start: int, stop: int) -> np.ndarray:
        """Tokens of documents `start` to `stop`, int64 `[stop - start]`."""
        return self.selection.lengths(start, stop) - self._boundaries.dropped

    def ends(self, start: int, stop: int) -> np.ndarray:
        """End offsets of documents `start` to `stop` in the whole stream, int64 `[stop - start]`."""
        return self._begin(start) + np.cumsum(self.lengths(start, stop))

    def document_at(self, token: int) -> int:
        """Number of the document that holds a token; after the last token, the number of documents."""
        if token >= self.tokens:
            return self.documents
        if not self._boundaries.dropped:
            return self.stored.find(token)[0]
        low, high = 0, self.documents  # document `low` begins at or before the token, `high` after it
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._begin(middle) <= token else (low, middle)
        return low

    def tokens_between(
        self, start: int, stop: int, dtype: npt.DTypeLike, max_tokens: int = BLOCK_TOKENS
    ) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Tokens `start` to `stop` of the stream, and their loss mask (uint8) if there is one.

        Args:
            dtype: any integer dtype that holds the vocabulary.
            max_tokens: upper limit per piece; pieces follow the files and are often shorter.

        Raises:
            RecipeError: a dtype that does not hold the vocabulary.
            CorruptStore: an id outside the vocabulary, or an inconsistent index.
        """
        kind = self._checked(dtype)
        stop = min(stop, self.tokens)
        if start >= stop:
            return
        if self._boundaries.moved:
            if start == 0:
                first = np.array([self._view.eod_id], kind)
                yield first, np.zeros(1, np.uint8) if self._view.has_loss else None
            start, stop = max(start - 1, 0), stop - 1
        elif self._boundaries.dropped:
            start, stop = self._stored_place(start), self._stored_place(stop - 1) + 1
        for place, tokens, loss in self.stored.read(start, stop, max_tokens, self._view.has_loss):
            if self._boundaries.dropped:
                kept = self._boundaries.kept(
                    *self.stored.bounds(place, place + len(tokens)), place, place + len(tokens)
                )
                tokens, loss = tokens[kept], None if loss is None else loss[kept]
            if len(tokens):
                yield _as(tokens, kind), loss

    def blocks(
        self, start: int, stop: int, dtype: npt.DTypeLike, max_tokens: int = BLOCK_TOKENS
    ) -> Iterator[DocumentBlock]:
        """Whole documents `start` to `stop`, at most `max_tokens` per block; a longer document alone.

        Raises:
            RecipeError, CorruptStore: see `tokens_between`.
        """
        kind = self._checked(dtype)
        stop = min(stop, self.documents)
        for first, last in self._cuts(start, stop, max_tokens):
            yield self.block(first, offsets_of(self.lengths(first, last)), kind)

    def groups(
        self, start: int, stop: int, dtype: npt.DTypeLike, most_documents: int, most_tokens: int
    ) -> Iterator[DocumentBlock]:
        """Documents `start` to `stop` in blocks that do not depend on the store's shards.

        Raises:
            RecipeError, CorruptStore: see `tokens_between`.
        """
        while start < stop:
            lengths = self.lengths(start, min(start + most_documents, stop))
            count = max(int(np.cumsum(lengths).searchsorted(most_tokens, "right")), 1)
            yield self.block(start, offsets_of(lengths[:count]), dtype)
            start += count

    def files(self, size: int) -> list[tuple[int, int]]:
        """First document and end of files of about `size` tokens: each goes on to the end of a document."""
        inner = {self.document_at(token) for token in range(size, self.tokens, size)}
        return list(pairwise(sorted({0, self.documents} | inner)))

    def block(self, start: int, offsets: np.ndarray, dtype: npt.DTypeLike) -> DocumentBlock:
        """Whole documents from `start` on, whose lengths are those of `offsets`, int64 `[D+1]`.

        Raises:
            RecipeError, CorruptStore: see `tokens_between`.
        """
        kind, begin, size = self._checked(dtype), self._begin(start), int(offsets[-1])
        stored = self._view.store.dtype  # converted by the copy, in one pass
        pieces = list(self.tokens_between(begin, begin + size, stored, max(size, 1)))
        tokens = _joined([piece for piece, _ in pieces], kind)
        loss = None
        if self._view.has_loss:
            loss = _joined([part for _, part in pieces if part is not None], np.dtype(np.uint8))
        return DocumentBlock(tokens, offsets, loss)

    def provenance(self, start: int, stop: int) -> pa.Table:
        """Provenance of documents `start` to `stop`.

        Returns:
            Columns source, file, position, id, label, text_bytes and tokens (as in the output). Caches the
            row groups read last; for a shuffled stream, all of them.
        """
        import pyarrow as pa

        stop = min(stop, self.documents)
        numbers = self.selection.documents(np.arange(start, stop))
        table = self._provenance.take(numbers)
        place = table.column_names.index("tokens")
        return table.set_column(place, "tokens", pa.array(self.lengths(start, stop)))

    @cached_property
    def _provenance(self) -> Any:

        shuffled = self.selection.settings["shuffle_documents"] is not None
        return ProvenanceReader(self._view.store, keep=None if shuffled else 2)

    def _begin(self, document: int) -> int:
        """Tokens of the stream before a document."""
        return self.stored.before(document) - self._boundaries.dropped * document

    def _stored_place(self, token: int) -> int:
        """Position in the stored stream of a token of this stream."""
        return token + self._boundaries.dropped * self.document_at(token) + self._boundaries.drop_first

    def _cuts(self, start: int, stop: int, max_tokens: int) -> Iterator[tuple[int, int]]:
        """Documents of each block; where shards are views, no block crosses a shard boundary."""
        edges = np.append(self.stored.edges, stop)
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
    """Ids in another dtype that holds them; a view if only signedness differs, since no id is negative."""
    if tokens.dtype.itemsize == dtype.itemsize and tokens.dtype.isnative == dtype.isnative:
        return tokens.view(dtype)
    return tokens.astype(dtype)


def _joined(pieces: list[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """Pieces one after another, in a dtype that holds their ids."""
    if len(pieces) == 1:
        return _as(pieces[0], dtype)
    whole, begin = np.empty(sum(map(len, pieces)), dtype), 0
    for piece in pieces:
        whole[begin : begin + len(piece)] = piece
        begin += len(piece)
    return whole


COLUMNS = ("source", "file", "position", "id", "label", "text_bytes", "tokens")


class ProvenanceReader:
    """Reader of `NAME.docs.parquet` by document number.

    Args:
        store: an opened store.
        keep: number of row groups to keep in memory; None: all.
    """

    def __init__(self, store: StoreReader, keep: int | None) -> None:
        self._store, self._keep = store, keep
        self._open: tuple[int, ProvenanceFile] | None = None
        self._firsts: dict[int, np.ndarray] = {}
        """By shard: first document of each row group, and the end of the last, as numbers of the store."""
        self._tables: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()

    def take(self, documents: np.ndarray) -> pa.Table:
        """Rows of these documents, int64 `[N]`, in the given order; columns `COLUMNS`.

        Raises:
            CorruptStore: a file is damaged, or disagrees with the index.
        """
        import pyarrow as pa

        order = np.argsort(documents, kind="stable")
        in_order = documents[order]
        pieces, start = [], 0
        while start < len(in_order):
            first, table = self._group_of(int(in_order[start]))
            stop = int(in_order.searchsorted(first + table.num_rows))
            inner = in_order[start:stop] - first
            if len(inner) == int(inner[-1]) - int(inner[0]) + 1:
                pieces.append(table.slice(int(inner[0]), len(inner)))
            else:
                pieces.append(table.take(pa.array(inner)))
            start = stop
        if not pieces:
            _, table = self._group_of(0)
            return table.slice(0, 0)
        whole = pa.concat_tables(pieces)
        if bool((order[1:] > order[:-1]).all()):
            return whole
        return whole.unify_dictionaries().combine_chunks().take(pa.array(np.argsort(order, kind="stable")))

    def _group_of(self, document: int) -> tuple[int, pa.Table]:
        """The row group that holds a document, and the number of its first document."""
        shard = int(self._store.firsts.searchsorted(document, "right")) - 1
        if shard not in self._firsts:
            self._firsts[shard] = offsets_of(self._file(shard).rows) + self._store.firsts[shard]
        firsts = self._firsts[shard]
        group = int(firsts.searchsorted(document, "right")) - 1
        if (shard, group) not in self._tables:
            while self._keep is not None and len(self._tables) >= self._keep:
                self._tables.popitem(last=False)
            self._tables[shard, group] = self._file(shard).read(group, COLUMNS).select(COLUMNS)
        return int(firsts[group]), self._tables[shard, group]

    def _file(self, shard: int) -> ProvenanceFile:
        """Provenance file of a shard; the last one stays open, since row groups are mostly read in order."""
        if self._open is None or self._open[0] != shard:
            self._open = shard, self._store.shards[shard].open_provenance()
        return self._open[1]
