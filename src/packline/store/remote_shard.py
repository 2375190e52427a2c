"""One shard of a remote store.

    shard.tokens, .loss, .lengths, ...     as of a local shard: the file is brought whole
    shard.token_ranges, .loss_ranges       read by pieces of a MiB, for batches
    shard.document(i)                      read by pieces
    shard.open_provenance()                read by pieces, if it is long: the columns and rows that are used

An index is brought whole when its shard is first used: 12 bytes per document.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from packline.errors import CorruptStore
from packline.store.mirror import Mirror
from packline.store.paths import RemotePath
from packline.store.pieces import PieceRanges, Ranges
from packline.store.provenance import Provenance, ProvenanceFile, to_provenance
from packline.store.remote_file import RemoteFile
from packline.store.shard import (
    CHECKED_BYTES,
    Shard,
    wrong_id,
    wrong_place,
)
from packline.store.tables import ShardEntry

if TYPE_CHECKING:
    import pyarrow as pa


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

    @cached_property
    def _provenance_file(self) -> ProvenanceFile:
        ranges = Ranges(self.mirror.pieces, self.remote_file("docs.parquet"), np.dtype(np.uint8))
        return ProvenanceFile(self.path("docs.parquet"), self.entry, self.file("docs.parquet"), ranges)

    def _reads_ranges(self) -> bool:
        """True if the provenance is long enough to be read by ranges, and the cache has room for it."""
        file = self.file("docs.parquet")
        return (
            file is not None
            and not self.mirror.fresh
            and (CHECKED_BYTES < file.bytes <= self.mirror.cache.most)
        )

    def open_provenance(self, *, whole: bool = False) -> ProvenanceFile:
        """Open its provenance: of a long one, only what is read is fetched; see `Shard.open_provenance`."""
        if whole or not self._reads_ranges():
            return super().open_provenance(whole=whole)
        return self._provenance_file

    def provenance(self, index: int) -> Provenance:
        """Provenance of a document; see `Shard.provenance`."""
        if not self._reads_ranges():
            return super().provenance(index)
        file = self._provenance_file
        group = bisect_right(ends := list(accumulate(file.rows)), index)
        row = index - (ends[group] - file.rows[group])
        (found,) = to_provenance(_group_of(file, group).slice(row, 1), self.entry.split, file.path)
        return found

    def will_need(self, first: int, last: int) -> None:
        """Do nothing: what is due is fetched by the loader (`loading.fetch_ahead`)."""


@lru_cache(maxsize=4)
def _group_of(file: ProvenanceFile, group: int) -> pa.Table:
    """A row group of provenance, kept for the next document."""
    return file.read(group)


def bring_indexes(shards: Iterable[Shard]) -> None:
    """Bring the indexes of remote shards at once; nothing for local ones."""
    todo = [
        shard
        for shard in shards
        if isinstance(shard, RemoteShard) and "offset_of" not in shard.__dict__ and len(shard)
    ]
    if len(todo) > 1:
        todo[0].mirror.bring([shard.index_file for shard in todo])


class CutRanges(NamedTuple):
    """Ranges of tokens, cut into N parts where the pieces of their files end."""

    ranges: np.ndarray
    """int64 `[N]`: range that each part is of."""
    starts: np.ndarray
    """int64 `[N]`: first token of each part in its shard."""
    lengths: np.ndarray
    """int64 `[N]`: tokens."""
    pieces: PieceRanges


def cut_ranges(shards: Sequence[Shard], starts: Sequence[int], lengths: Sequence[int]) -> CutRanges:
    """Cut ranges of tokens, each at least one token, where the pieces of their files end.

    Raises:
        CorruptStore: a range is outside of its shard.
    """
    distinct, of_ranges = _numbered(shards)
    ranges = [_of_remote(shard).token_ranges for shard in distinct]
    per_piece = ranges[0].per_piece if ranges else 1
    begins = np.array(starts, np.int64)
    sizes = np.array([len(one) for one in ranges], np.int64)[of_ranges]
    ends = begins + np.array(lengths, np.int64)
    _check_places(shards, begins, ends, sizes)
    first = begins // per_piece
    counts = (ends - 1) // per_piece - first + 1
    which = np.arange(len(counts)).repeat(counts)
    of_cuts = of_ranges[which]
    piece = first[which] + np.arange(len(which)) - (counts.cumsum() - counts)[which]
    begins = np.maximum(begins[which], piece * per_piece)
    ends = np.minimum(ends[which], (piece + 1) * per_piece)
    numbers = np.array([one.first for one in ranges], np.int64)[of_cuts] + piece
    masks = None
    losses = [_of_remote(shard).loss_ranges for shard in distinct]
    if any(one is not None for one in losses):
        # A shard without a mask needs no other pieces than its tokens'.
        firsts = np.array([-1 if one is None else one.first for one in losses], np.int64)[of_cuts]
        places = np.stack([begins, np.minimum(ends, sizes[which] - 1)], axis=1)
        size = _of_remote(distinct[0]).mirror.pieces.size
        masks = np.where(firsts < 0, numbers, firsts + places.T // size).T
    found = PieceRanges(numbers.tolist(), (begins - piece * per_piece).tolist(), masks)
    return CutRanges(which, begins, ends - begins, found)


def find_pieces(shards: Sequence[Shard], places: Sequence[int]) -> tuple[list[int], list[int]]:
    """Pieces that hold single tokens, and the places of the tokens in their pieces.

    Raises:
        CorruptStore: a place is outside of its shard.
    """
    distinct, of_places = _numbered(shards)
    ranges = [_of_remote(shard).token_ranges for shard in distinct]
    per_piece = ranges[0].per_piece if ranges else 1
    begins = np.array(places, np.int64)
    _check_places(shards, begins, begins + 1, np.array([len(one) for one in ranges], np.int64)[of_places])
    pieces = np.array([one.first for one in ranges], np.int64)[of_places] + begins // per_piece
    return pieces.tolist(), (begins % per_piece).tolist()


def _numbered(shards: Sequence[Shard]) -> tuple[list[Shard], np.ndarray]:
    """Shards, each once, and the number of each given one among them, int64 `[N]`."""
    numbers = {shard: number for number, shard in enumerate(dict.fromkeys(shards))}
    return list(numbers), np.array([numbers[shard] for shard in shards], np.int64)


def _check_places(shards: Sequence[Shard], begins: np.ndarray, ends: np.ndarray, sizes: np.ndarray) -> None:
    """Refuse ranges outside of their shards.

    Raises:
        CorruptStore: there is one.
    """
    if (wrong := np.flatnonzero((begins < 0) | (ends > sizes))).size:
        place = int(wrong[0])
        raise wrong_place(shards[place], int(begins[place]), int(ends[place]))


def _of_remote(shard: Shard) -> RemoteShard:
    assert isinstance(shard, RemoteShard)
    return shard
