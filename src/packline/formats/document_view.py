"""A store's documents as a format needs them: which ones, in which order, with which boundary tokens.

A stream is the documents of one split back to back. Its tokens, documents, lengths and ends are counted as
in the output, after `edges` has added, removed or moved boundary tokens (see `boundaries`). With the store's
own edges and no filter or shuffle, arrays are views of the mapped files; otherwise tokens are copied once.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packline.errors import CorruptStore, RecipeError, StoreError
from packline.formats.boundaries import BoundaryPolicy
from packline.formats.types import DocumentBlock, Edges, NotPreserved, TokenizerProperties
from packline.packing.batch import PlannedRows
from packline.packing.offsets import ShardRange, Sums, sums_of
from packline.packing.options import DocumentFilter
from packline.packing.packer import Spans
from packline.packing.selection import Selection
from packline.ragged import offsets_of
from packline.recipe import SPLITS
from packline.store.files import FileEntry, StoreFiles
from packline.store.manifest import TokenizerEntry
from packline.store.reader import StoreReader
from packline.store.shard import wrong_id
from packline.store.tables import ShardEntry

if TYPE_CHECKING:
    import pyarrow as pa

    from packline.formats.export_folder import Target
    from packline.store.writer import HashedFile

Piece = tuple[int, np.ndarray, np.ndarray | None]
"""Position of its first token in the stored stream; tokens in the store's dtype; uint8 loss mask, if any."""

BLOCK_TOKENS = 1 << 20
"""Tokens per block, unless a single document is longer."""
BLOCK_DOCUMENTS = 1 << 17
"""Documents per block, where documents are very short."""


@dataclass(frozen=True, slots=True)
class SharedShard:
    """A stored shard that appears unchanged in the output."""

    entry: ShardEntry
    files: StoreFiles
    first_document: int
    """Number of its first document in the stream."""

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def documents(self) -> int:
        return self.entry.documents

    def file(self, ending: str) -> FileEntry | None:
        """`.bin`, `.idx`, `.docs.parquet` or `.loss` with its size and checksum; None if lacking."""
        return next((entry for entry in self.entry.files if entry.name == f"{self.name}{ending}"), None)

    def share(self, target: Target, name: str, ending: str) -> bool:
        """Add a file of the shard to an export, if it exists; return True if it does."""
        if (found := self.file(ending)) is not None:
            target.share(self.files, found, name)
        return found is not None


class DocumentView(TokenizerProperties):
    """Selected documents of a store, by split."""

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
        return self._streams[split]

    @property
    def contents(self) -> dict[str, str]:
        """Lists and other stores that the selection refers to, by the checksums of their contents."""
        selection = next(iter(self._streams.values())).selection
        return {name: ", ".join(selection.identity[name] or ()) for name in selection.contents}

    @property
    def documents(self) -> int:
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
        return any(stream.has_loss for stream in self._streams.values())

    def not_preserved(
        self, format: str, *, keeps_loss: bool = False, keeps_provenance: bool = False
    ) -> tuple[NotPreserved, ...]:
        """Boundary tokens that the edges leave out, and the loss mask and provenance unless kept."""
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
        self._parts = selection.stored
        """The whole shards that are read as views; None for documents that are copied."""
        entries = [part.shard.entry for part in self._parts.parts()] if self._parts is not None else []
        self._firsts = offsets_of([entry.documents for entry in entries])
        self._begins = offsets_of([entry.tokens for entry in entries])
        self.documents = len(selection)
        self.tokens = selection.tokens - self._boundaries.dropped * self.documents

    @property
    def has_loss(self) -> bool:
        """True if a shard that may be read has a loss mask."""
        if self._parts is not None:
            return any(part.shard.has_loss for part in self._parts.parts())
        split = self.selection.settings["split"]
        shards = self._view.store.shards
        return any(shard.has_loss for shard in shards if split in ("all", shard.entry.split))

    @cached_property
    def shards(self) -> list[SharedShard] | None:
        """The stored shards that make up this stream, in order; None if it is not made of whole shards."""
        parts = self._parts
        if parts is None or not self._boundaries.unchanged:
            return None
        files, firsts = self._view.store.files, self._firsts.tolist()
        return [SharedShard(part.shard.entry, files, firsts[n]) for n, part in enumerate(parts.parts())]

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

    def before(self, document: int) -> int:
        """Tokens of the stream before a document."""
        if document <= 0:
            return 0
        if document >= self.documents:
            return self.tokens
        stored = int(self._sums.before(np.array([document], np.int64))[0])
        return stored - self._boundaries.dropped * document

    def document_at(self, token: int) -> int:
        """Number of the document that holds a token; after the last token, the number of documents."""
        if token >= self.tokens:
            return self.documents
        if not self._boundaries.dropped:
            return self._find(token)[0]
        return bisect.bisect_right(range(self.documents), token, key=self.before) - 1

    def tokens_between(
        self, start: int, stop: int, dtype: npt.DTypeLike, max_tokens: int = BLOCK_TOKENS
    ) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Tokens `start` to `stop` of the stream, and their loss mask (uint8) if there is one.

        Args:
            dtype: any integer dtype that holds the vocabulary.
            max_tokens: upper limit per piece; pieces follow the files and are often shorter.
        """
        kind = self._checked(dtype)
        stop = min(stop, self.tokens)
        if start >= stop:
            return
        if self._boundaries.moved:
            if start == 0:
                yield (
                    np.array([self._view.eod_id], kind),
                    np.zeros(1, np.uint8) if self._view.has_loss else None,
                )
            start, stop = max(start - 1, 0), stop - 1
        elif self._boundaries.dropped:
            start, stop = self._stored_place(start), self._stored_place(stop - 1) + 1
        for place, tokens, loss in self._read(start, stop, max_tokens):
            if self._boundaries.dropped:
                end = place + len(tokens)
                (first, before), (last, _) = self._find(place), self._find(end - 1)
                lengths = self.selection.lengths(first, last + 1)
                ends = before + np.cumsum(lengths)
                kept = self._boundaries.kept(ends - lengths, ends, place, end)
                tokens, loss = tokens[kept], None if loss is None else loss[kept]
            if len(tokens):
                yield _as(tokens, kind), loss

    def write(self, file: HashedFile, start: int, stop: int, dtype: np.dtype, target: Target) -> None:
        """Append tokens `start` to `stop` to a file of an export."""
        for tokens, _ in self.tokens_between(start, stop, dtype):
            file.write(tokens)
            target.progress(len(tokens))

    def blocks(
        self, start: int, stop: int, dtype: npt.DTypeLike, max_tokens: int = BLOCK_TOKENS
    ) -> Iterator[DocumentBlock]:
        """Whole documents `start` to `stop`, at most `max_tokens` per block; a longer document alone."""
        kind = self._checked(dtype)
        stop = min(stop, self.documents)
        for first, last in self._cuts(start, stop, max_tokens):
            yield self.block(first, offsets_of(self.lengths(first, last)), kind)

    def groups(
        self, start: int, stop: int, dtype: npt.DTypeLike, most_documents: int, most_tokens: int
    ) -> Iterator[DocumentBlock]:
        """Documents `start` to `stop` in blocks that do not depend on the store's shards."""
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
        """Whole documents from `start` on, whose lengths are those of `offsets`, int64 `[D+1]`."""
        kind, begin, size = self._checked(dtype), self.before(start), int(offsets[-1])
        stored = self._view.store.dtype  # converted by the copy, in one pass
        pieces = list(self.tokens_between(begin, begin + size, stored, max(size, 1)))
        tokens = _joined([piece for piece, _ in pieces], kind)
        loss = None
        if self._view.has_loss:
            loss = _joined([part for _, part in pieces if part is not None], np.dtype(np.uint8))
        return DocumentBlock(tokens, offsets, loss)

    def provenance(self, start: int, stop: int) -> pa.Table:
        """Provenance of documents `start` to `stop`."""
        import pyarrow as pa

        stop = min(stop, self.documents)
        numbers = self.selection.documents(np.arange(start, stop))
        table = self._provenance.take(numbers)
        place = table.column_names.index("tokens")
        return table.set_column(place, "tokens", pa.array(self.lengths(start, stop)))

    @cached_property
    def _provenance(self) -> ProvenanceReader:
        shuffled = self.selection.settings["shuffle_documents"] is not None
        return ProvenanceReader(self._view.store, keep=None if shuffled else 2)

    @cached_property
    def _sums(self) -> ShardRange | Sums:
        if self._parts is not None:
            return self._parts
        return sums_of(self.selection, lambda lengths: lengths, "tokens")

    def _find(self, token: int) -> tuple[int, int]:
        """Document that holds a token of the stored stream, and the number of tokens before that document."""
        places, before = self._sums.find(np.array([token], np.int64))
        return int(places[0]), int(before[0])

    def _read(self, start: int, stop: int, max_tokens: int) -> Iterator[Piece]:
        """Tokens of the stored stream from start to stop, in pieces of at most `max_tokens`."""
        if self._parts is not None:
            yield from self._views(self._parts, start, stop, max_tokens)
            return
        for begin in range(start, stop, max_tokens):
            yield self._copy(begin, min(begin + max_tokens, stop))

    def _views(self, parts: ShardRange, start: int, stop: int, max_tokens: int) -> Iterator[Piece]:
        number = int(self._begins.searchsorted(start, "right")) - 1
        while start < stop:
            first, last = int(self._begins[number]), int(self._begins[number + 1])
            shard = parts.shard(number)
            while start < min(stop, last):
                end = min(start + max_tokens, stop, last)
                inner = slice(start - first, end - first)
                tokens = shard.tokens[inner]
                # As unsigned integers, negative ids are the largest: one pass finds both kinds.
                if int(tokens.view(f"<u{tokens.itemsize}").max()) >= self._view.vocab_size:
                    wrong = np.flatnonzero((tokens < 0) | (tokens >= self._view.vocab_size))[0]
                    raise wrong_id(shard, self._view.vocab_size, inner.start + int(wrong))
                loss = None
                if self._view.has_loss:
                    loss = np.ones(len(tokens), np.uint8) if shard.loss is None else shard.loss[inner]
                yield start, tokens, loss
                start = end
            number += 1

    def _copy(self, start: int, stop: int) -> Piece:
        (first, before), (last, _) = self._find(start), self._find(stop - 1)
        documents, begins, sizes = self.selection.at(np.arange(first, last + 1))
        starts = np.zeros(len(documents), np.int64)
        starts[0] = start - before
        lengths = sizes - starts
        lengths[-1] -= int(lengths.sum()) - (stop - start)
        if int(lengths.min()) < 1:
            raise CorruptStore(
                f"{self._view.store.place}: expected an index whose lengths agree with its offsets, "
                "found one in which they do not",
                hint="packline verify names the document",
            )
        offsets, with_loss = np.array([0, len(documents)], np.int64), self._view.has_loss
        spans = Spans(offsets, documents, starts, lengths, begins, sizes)
        planned = PlannedRows.of(self._view.store, spans, stop - start, pad_id=0, boundary_loss=False)
        whole, layout = planned.read(targets=with_loss)
        assert whole is not None
        if not with_loss:
            return start, whole[0, :-1], None
        loss = layout.trained
        return start, whole[0, :-1], np.ones(stop - start, np.uint8) if loss is None else loss[0, :-1]

    def _stored_place(self, token: int) -> int:
        """Position in the stored stream of a token of this stream."""
        return token + self._boundaries.dropped * self.document_at(token) + self._boundaries.drop_first

    def _cuts(self, start: int, stop: int, max_tokens: int) -> Iterator[tuple[int, int]]:
        """Documents of each block; where shards are views, no block crosses a shard boundary."""
        edges = np.append(self._firsts, stop)
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
    """Reader of `NAME.docs.parquet` by document number."""

    def __init__(self, store: StoreReader, keep: int | None) -> None:
        self._store = store
        # Row groups are mostly read in order, so the last file stays open.
        self._file = lru_cache(1)(lambda shard: store.shards[shard].open_provenance())
        self._firsts = cache(lambda shard: offsets_of(self._file(shard).rows) + store.firsts[shard])
        """By shard: first document of each row group, and the end of the last, as numbers of the store."""
        self._table = lru_cache(keep)(lambda shard, group: self._file(shard).read(group, COLUMNS))

    def take(self, documents: np.ndarray) -> pa.Table:
        """Rows of these documents, int64 `[N]`, in the given order; columns `COLUMNS`."""
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
        firsts = self._firsts(shard)
        group = int(firsts.searchsorted(document, "right")) - 1
        return int(firsts[group]), self._table(shard, group).select(COLUMNS)
