"""One shard of a remote store.

    shard.tokens, .loss, .lengths, ...     as of a local shard: the file is brought whole
    shard.token_ranges, .loss_ranges       read by pieces of a MiB, for batches
    shard.document(i)                      read by pieces

An index of up to 4 MiB (200,000 documents) is brought whole when its shard is first used. A larger one is
read by pieces too, unless the arrays of all its documents are requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np

from packline.errors import CorruptStore
from packline.store.mirror import Mirror
from packline.store.paths import RemotePath
from packline.store.pieces import Piece, Ranges, read_byte_range
from packline.store.remote_file import RemoteFile
from packline.store.shard import (
    CHECKED_BYTES,
    HEADER,
    Shard,
    contradiction,
    index_size,
    wrong_id,
    wrong_place,
)
from packline.store.tables import ShardEntry


class RemoteShard(Shard):
    """A shard whose files are in an object store; see `Shard`."""

    def __init__(self, folder: RemotePath, entry: ShardEntry, dtype: np.dtype, vocab_size: int) -> None:
        super().__init__(folder, entry, dtype, vocab_size)
        assert isinstance(folder.mirror, Mirror)
        self.mirror = folder.mirror

    def remote_file(self, ending: str) -> RemoteFile:
        """One of its files, by the end of its name.

        Raises:
            CorruptStore: the manifest does not list it.
        """
        name = f"{self.entry.name}.{ending}"
        found = self.file(ending)
        if found is None:
            raise CorruptStore(f"the manifest of {self.mirror.place} does not list {name}")
        return RemoteFile(self.mirror, found, found.checksum, self.mirror.sums_of(self.entry))

    @cached_property
    def token_ranges(self) -> Ranges:  # type: ignore[override]
        """The tokens, read by pieces."""
        return Ranges(self.mirror.pieces, self.remote_file("bin"), self._dtype)

    @cached_property
    def loss_ranges(self) -> Ranges | None:  # type: ignore[override]
        """The bytes of `NAME.loss`, read by pieces; None where there are none."""
        if not self.has_loss:
            return None
        return Ranges(self.mirror.pieces, self.remote_file("loss"), np.dtype(np.uint8))

    @cached_property
    def index_file(self) -> RemoteFile:
        """The index."""
        return self.remote_file("idx")

    def document(self, index: int) -> np.ndarray:
        """Tokens of a document; see `Shard.document`."""
        begin, length = self.offset_of(index) // self.itemsize, self.length_of(index)
        if not self._consistent:
            self._check_length(index, length)
        end = begin + length
        if not 0 <= begin < end <= self.entry.tokens:
            raise wrong_place(self, begin, end)
        tokens = self.token_ranges[begin:end]
        ids = tokens.view(f"<u{self.itemsize}")
        if int(ids.max()) >= self._vocab_size:
            raise wrong_id(self, self._vocab_size, begin + int(np.argmax(ids >= self._vocab_size)))
        return tokens

    def will_need(self, first: int, last: int) -> None:
        """Do nothing: what is due is fetched by the loader (`loading.fetch_ahead`)."""

    def pieces_of(self, start: int, stop: int) -> list[Piece]:
        """Pieces that hold tokens `start` to `stop`, and their bytes of `NAME.loss`."""
        ranges = [self.token_ranges] + ([self.loss_ranges] if self.loss_ranges is not None else [])
        return [(one.file, number) for one in ranges for number in one.pieces_of(start, stop)]


class LongRemoteShard(RemoteShard):
    """A shard whose index is too long to be brought whole for a few documents."""

    def _lengths(self, start: int, stop: int) -> np.ndarray:
        begin = HEADER.size + 4 * start
        return read_byte_range(self.mirror.pieces, self.index_file, begin, begin + 4 * (stop - start)).view(
            "<i4"
        )

    def _offsets(self, start: int, stop: int) -> np.ndarray:
        begin = HEADER.size + 4 * len(self) + 8 * start
        return read_byte_range(self.mirror.pieces, self.index_file, begin, begin + 8 * (stop - start)).view(
            "<i8"
        )

    def length_of(self, index: int) -> int:
        """Length of one document."""
        return int(self._lengths(index, index + 1)[0])

    def offset_of(self, index: int) -> int:
        """Byte offset of one document."""
        return int(self._offsets(index, index + 1)[0])

    def lengths_at(self, documents: np.ndarray) -> np.ndarray:
        """Tokens of these documents, int32 `[N]`."""
        return self._taken(self._lengths, documents)

    def places(self, documents: np.ndarray | slice) -> np.ndarray:
        """Place of the first token of these documents; see `Shard.places`."""
        if isinstance(documents, slice):
            start, stop, _ = documents.indices(len(self))
            return self._offsets(start, stop) // self.itemsize
        return self._taken(self._offsets, documents) // self.itemsize

    def check(self, documents: np.ndarray) -> None:
        """Check the index at these documents; see `Shard.check`."""
        lengths, begins = self.lengths_at(documents), self.places(documents)
        ends = self.places(np.minimum(documents + 1, len(self) - 1))
        ends[documents == len(self) - 1] = self.entry.tokens
        right = (lengths > 0) & (ends - begins == lengths)
        if not right.all():
            raise contradiction(self, int(documents[np.argmin(right)]))

    def search(self, tokens: np.ndarray) -> np.ndarray:
        """Documents up to each token; see `Shard.search`."""
        return np.array([self._search_one(int(token) * self.itemsize) for token in tokens], np.int64)

    def _search_one(self, byte: int) -> int:
        low, high = 0, len(self)
        while high - low > NEAR:
            middle = (low + high) // 2
            low, high = (middle, high) if self.offset_of(middle) <= byte else (low, middle)
        return low + int(self._offsets(low, high).searchsorted(byte, "right")) if high > low else low

    @staticmethod
    def _taken(read: Callable[[int, int], np.ndarray], documents: np.ndarray) -> np.ndarray:
        """Values at these documents: neighbours are read together."""
        if not len(documents):
            return np.empty(0, np.int64)
        low, high = int(documents.min()), int(documents.max()) + 1
        if high - low <= max(4 * len(documents), NEAR):
            return read(low, high)[documents - low]
        return np.concatenate([read(one, one + 1) for one in documents.tolist()])


NEAR = 1 << 10
"""Documents that are read at once, where a few of them are needed."""


def remote_shard(folder: RemotePath, entry: ShardEntry, dtype: np.dtype, vocab_size: int) -> RemoteShard:
    """Shard of a remote store."""
    kind = LongRemoteShard if index_size(entry.documents) > CHECKED_BYTES else RemoteShard
    return kind(folder, entry, dtype, vocab_size)


def bring_indexes(shards: Iterable[Shard]) -> None:
    """Bring the indexes of remote shards at once; nothing for local ones, and for long indexes."""
    todo = [
        shard
        for shard in shards
        if type(shard) is RemoteShard and "offset_of" not in shard.__dict__ and len(shard)
    ]
    if len(todo) > 1:
        todo[0].mirror.bring([shard.index_file for shard in todo])


def bring_tokens(shards: Sequence[Shard], starts: Sequence[int], lengths: Sequence[int]) -> object:
    """Bring the pieces of these ranges of tokens, and of the token after each, at once.

    Returns:
        The pieces, which stay valid as long as this exists.
    """
    pieces = wanted_pieces(shards, starts, lengths)
    return shards[0].mirror.pieces.bring(pieces) if pieces else None  # type: ignore[attr-defined]


def wanted_pieces(shards: Sequence[Shard], starts: Sequence[int], lengths: Sequence[int]) -> list[Piece]:
    """Pieces of these ranges of tokens, and of the token after each."""
    found: list[Piece] = []
    for shard, start, length in zip(shards, starts, lengths, strict=True):
        assert isinstance(shard, RemoteShard)
        found += shard.pieces_of(max(start, 0), start + length + 1)
    return found
