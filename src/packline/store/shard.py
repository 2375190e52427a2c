"""One shard of a store: tokens, index, checksums, loss mask and provenance, each opened on first use.

Opened data is an ordinary attribute, so a second access costs nothing. It is closed when too much is open in
the process (`files.Recent`) and opened again on next use; arrays that were returned stay valid.

A document is returned only if the index is consistent and every id is in the vocabulary. A token that became
another one of the same vocabulary is not detected: `packline verify` compares its checksum.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np
import xxhash

from packline.errors import CorruptStore
from packline.ragged import offsets_of
from packline.store.files import (
    HINT,
    MAPS,
    TABLES,
    FileEntry,
    NumberRanges,
    StoreFiles,
    check_bytes,
    map_file,
    opened,
)
from packline.store.provenance import Provenance, ProvenanceFile, to_provenance
from packline.store.tables import SHARD_FILES, ShardEntry

if TYPE_CHECKING:
    import pyarrow as pa


MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
CODES: dict[str, int] = {"uint16": 8, "int32": 4}
DTYPES: dict[int, np.dtype] = {8: np.dtype("<u2"), 4: np.dtype("<i4")}


N = TypeVar("N", int, np.ndarray)


def index_size(documents: N) -> N:
    """Size of an index in bytes."""
    return HEADER.size + 20 * documents + 8


def write_index(file: BinaryIO, lengths: np.ndarray, dtype: np.dtype) -> None:
    """Write the index of documents with these lengths, int32 `[D]`."""
    count, offsets = len(lengths), offsets_of(lengths) * dtype.itemsize
    file.write(HEADER.pack(MAGIC, 1, CODES[dtype.name], count, count + 1))
    file.write(np.ascontiguousarray(lengths, "<i4").data)
    file.write(offsets[:-1].astype("<i8").data)
    file.write(np.arange(count + 1, dtype="<i8").data)


class Index:
    """An index: `lengths` int32 `[D]`, `offsets` int64 `[D]` in bytes, both views, read-only.

    Args:
        data: its bytes, uint8 `[N]`; by default it is mapped.
    """

    def __init__(self, path: Path | str, data: np.ndarray | None = None) -> None:
        self.path = path
        self.bytes: np.ndarray = map_file(Path(path)) if data is None else data
        """uint8 `[N]`: the whole file."""
        head = self.bytes[: HEADER.size].tobytes()
        if len(head) < HEADER.size or not head.startswith(MAGIC):
            raise CorruptStore(f"{path} is not an index: expected {MAGIC[:7]!r}, found {head[:7]!r}")
        _, version, code, count, entries = HEADER.unpack(head)
        if version != 1 or code not in DTYPES or entries != count + 1:
            raise CorruptStore(
                f"{path}: expected version 1, dtype code 4 or 8 and one sequence per document, "
                f"found version {version}, code {code}, {count} sequences and {entries} document entries"
            )
        if len(self.bytes) != index_size(count):
            raise CorruptStore(f"{path}: expected {index_size(count):,} bytes, found {len(self.bytes):,}")
        self.dtype = DTYPES[code]
        ends = [HEADER.size, HEADER.size + 4 * count, HEADER.size + 12 * count]
        self.lengths: np.ndarray = self.bytes[ends[0] : ends[1]].view("<i4")
        self.offsets: np.ndarray = self.bytes[ends[1] : ends[2]].view("<i8")
        self.document_indices: np.ndarray = self.bytes[ends[2] :].view("<i8")

    def __len__(self) -> int:
        return len(self.lengths)


BLOCK_BYTES = 1 << 16
"""Bytes of a block, of which `NAME.sums` has a checksum. Blocks are small because every byte of an object
store that reaches a batch is compared: in global order a row of 4,096 tokens costs 64 or 128 KiB."""


class BlockSums:
    """Checksums of the blocks of a file that is written or read in pieces of any size."""

    def __init__(self) -> None:
        self._hasher = xxhash.xxh3_64()
        self._held = 0
        self._sums: list[int] = []

    def update(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while len(rest):
            part = rest[: BLOCK_BYTES - self._held]
            self._hasher.update(part)
            self._held += len(part)
            if self._held == BLOCK_BYTES:
                self._end_block()
            rest = rest[len(part) :]

    def _end_block(self) -> None:
        self._sums.append(self._hasher.intdigest())
        self._hasher.reset()
        self._held = 0

    def finish(self) -> np.ndarray:
        """Checksums of all blocks, uint64 `[N]`; nothing can be added afterwards."""
        if self._held:
            self._end_block()
        return np.array(self._sums, "<u8")


def block_sums(data: np.ndarray) -> np.ndarray:
    """Checksums of all blocks of a file's bytes, uint8 `[N]`."""
    parts = (data[start : start + BLOCK_BYTES] for start in range(0, len(data), BLOCK_BYTES))
    return np.array([xxhash.xxh3_64_intdigest(part.data) for part in parts], "<u8")


def count_blocks(size: int) -> int:
    """Number of blocks of a file."""
    return -(-size // BLOCK_BYTES)


def split_sums(data: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray] | None:
    """Checksums of the blocks of each file of a shard, uint64; None if they are not as many as its blocks.

    Args:
        data: contents of its `NAME.sums`, uint8 `[N]`.
        sizes: bytes of its other files, in order.
    """
    counts = list(map(count_blocks, sizes))
    return np.split(data.view("<u8"), np.cumsum(counts)[:-1]) if 8 * sum(counts) == len(data) else None


def block_ranges(wrong: np.ndarray) -> str:
    """Byte ranges of some blocks of a file, of which the first three are named.

    >>> block_ranges(np.array([0, 1, 2, 9]))
    '0 KiB to 192 KiB and 576 KiB to 640 KiB'
    """
    size = BLOCK_BYTES >> 10
    runs = np.split(wrong, np.flatnonzero(np.diff(wrong) != 1) + 1)
    shown = [f"{run[0] * size:,} KiB to {(run[-1] + 1) * size:,} KiB" for run in runs[:3]]
    return " and ".join(shown) + (f" and {len(runs) - 3:,} more" if len(runs) > 3 else "")


ID_BLOCK = 15
"""Log2 of the ids per block. A block is checked once, on first use, in 5 microseconds."""
RANGED_BYTES = 4 << 20
"""Bytes beyond which of the provenance in an object store only the row groups that are read are brought."""


class Shard:
    """One shard. Creating one reads nothing; its arrays are opened on first use."""

    def __init__(self, files: StoreFiles, entry: ShardEntry, dtype: np.dtype, vocab_size: int) -> None:
        self.files, self.entry = files, entry
        self.itemsize = dtype.itemsize
        """Bytes per token."""
        self._dtype, self._vocab_size = dtype, vocab_size
        self._valid = bytearray(-(-entry.tokens >> ID_BLOCK))
        """1 for a block whose tokens are all in the vocabulary."""
        self._all_valid = False

    def __len__(self) -> int:
        return self.entry.documents

    def __repr__(self) -> str:
        entry = self.entry
        return f"<Shard {entry.name}: {entry.documents:,} documents, {entry.tokens:,} tokens, {entry.split}>"

    def path(self, ending: str) -> str:
        """Path or URI of one of its files, by the end of its name."""
        return self.files.path(f"{self.entry.name}.{ending}")

    def document(self, index: int) -> np.ndarray:
        """Tokens of a document, a read-only view."""
        begin = self.offset_of(index) // self.itemsize
        end = begin + self.length_of(index)
        if not self._all_valid and self._valid.find(0, begin >> ID_BLOCK, (end - 1 >> ID_BLOCK) + 1) >= 0:
            self._check_ids(begin, end)
        return self.token_ranges[begin:end]

    def _check_ids(self, begin: int, end: int) -> None:
        """Check the ids of tokens, one block at a time, so that each is checked once."""
        # Viewed as unsigned, negative ids are the largest of all: one pass finds both kinds of wrong id.
        kind, most = f"<u{self.itemsize}", self._vocab_size - 1
        for block in range(begin >> ID_BLOCK, (end - 1 >> ID_BLOCK) + 1):
            first, stop = block << ID_BLOCK, block + 1 << ID_BLOCK
            if int(self.token_ranges[first:stop].view(kind).max()) <= most:
                self._valid[block] = 1
                self._all_valid = 0 not in self._valid
                continue
            first, stop = max(first, begin), min(stop, end)
            if len(wrong := np.flatnonzero(self.token_ranges[first:stop].view(kind) > most)):
                raise wrong_id(self, most + 1, first + int(wrong[0]))

    def places(self, documents: np.ndarray | slice) -> np.ndarray:
        """Place in `tokens` of the first token of these documents, int64 of their shape."""
        return self.offsets[documents] // self.itemsize

    def search(self, tokens: np.ndarray) -> np.ndarray:
        """Number of documents that begin at or before each of these places in `tokens`, int64 `[N]`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        values = tokens * self.itemsize
        if not hasattr(pc, "search_sorted"):  # an earlier version of Arrow
            return self.offsets.searchsorted(values, "right")
        # Unlike NumPy's, Arrow's search does not copy numbers that are not aligned.
        data = pa.py_buffer(self.offsets)
        offsets = pa.Array.from_buffers(pa.int64(), len(self), [None, data], null_count=0)
        options = pc.SearchSortedOptions(side="right")
        return pc.search_sorted(offsets, pa.array(values), options=options).to_numpy().astype(np.int64)

    def will_need(self, first: int, last: int) -> None:
        """Ask the system to read documents `first` to `last` into the page cache, without waiting."""
        begin = self.offset_of(first) // self.itemsize
        tokens = self.offset_of(last) // self.itemsize + self.length_of(last) - begin
        name = self.entry.name
        self.files.will_need(f"{name}.bin", begin * self.itemsize, tokens * self.itemsize)
        if self.has_loss:
            self.files.will_need(f"{name}.loss", begin, tokens)

    @property
    def has_loss(self) -> bool:
        """True if it has a `NAME.loss`."""
        return len(self.entry.files) == len(SHARD_FILES)

    def file(self, ending: str) -> FileEntry:
        """Entry of one of its files in the manifest: all but `loss` are there."""
        name = f"{self.entry.name}.{ending}"
        return next(file for file in self.entry.files if file.name == name)

    def open_provenance(self) -> ProvenanceFile:
        """Open its provenance, to be read one row group at a time."""
        file, files = self.file("docs.parquet"), self.files
        if not RANGED_BYTES < file.bytes <= files.room:
            data: NumberRanges = files.map(file)
        else:
            data = files.numbers(file, np.dtype(np.uint8), file.bytes, "provenance", whole=False)
        return ProvenanceFile(files.path(file.name), self.entry, file, data)

    def provenance(self, index: int) -> Provenance:
        """Provenance of a document."""
        file = self._documents
        group = bisect_right(ends := list(accumulate(file.rows)), index)
        row = index - (ends[group] - file.rows[group])
        (found,) = to_provenance(_row_group(file, group).slice(row, 1), self.entry.split, file.path)
        return found

    def _open_index(self) -> dict[str, Any]:
        index = Index(self.path("idx"), self.files.map(self.file("idx")))
        if index.dtype != self._dtype or len(index) != self.entry.documents:
            raise CorruptStore(
                f"{index.path}: expected {self.entry.documents:,} documents of {self._dtype.name}, "
                f"found {len(index):,} of {index.dtype.name}",
                hint=HINT,
            )
        check_bytes(index.path, self.file("idx"), index.bytes.data)
        ends = np.cumsum(index.lengths, dtype=np.int64) * self.itemsize
        right = (index.offsets == ends - index.lengths * np.int64(self.itemsize)) & (index.lengths > 0)
        if not right.all() or ends[-1:].sum() != self.entry.tokens * self.itemsize:
            where = "" if right.all() else f" at document {int(right.argmin()):,}"
            raise CorruptStore(
                f"{index.path}{where}: expected an index whose lengths agree with its offsets, "
                "found one in which they do not",
                hint="packline verify shows which document; build the store again",
            )
        return {
            "lengths": index.lengths,
            "offsets": index.offsets,
            "length_of": index.lengths.item,
            "offset_of": index.offsets.item,
        }

    def _numbers(self, ending: str, *, whole: bool) -> Any:
        """Numbers of `NAME.bin` or `NAME.loss`, one per token; None where the shard has no such file."""
        if ending == "loss" and not self.has_loss:
            return None
        dtype = np.dtype(np.uint8) if ending == "loss" else self._dtype
        holds = f"{self.entry.tokens:,} tokens"
        return self.files.numbers(self.file(ending), dtype, self.entry.tokens, holds, whole=whole)

    lengths: np.ndarray = opened(_open_index, MAPS)
    """int32 `[D]`: tokens per document."""
    offsets: np.ndarray = opened(_open_index, MAPS)
    """int64 `[D]`: byte offset of each document's first token in the `.bin`."""
    length_of: Callable[[int], int] = opened(_open_index, MAPS)
    """Length of one document as an int, in 60 nanoseconds: for batches with few documents per shard."""
    offset_of: Callable[[int], int] = opened(_open_index, MAPS)
    tokens: np.ndarray = opened(lambda self: {"tokens": self._numbers("bin", whole=True)}, MAPS)
    """`[T]`, in the store's dtype."""
    token_ranges: NumberRanges = opened(
        lambda self: {"token_ranges": self._numbers("bin", whole=False)}, MAPS
    )
    """The tokens for ranges and single ones, which are all that is brought of a remote store."""
    loss: np.ndarray | None = opened(lambda self: {"loss": self._numbers("loss", whole=True)}, MAPS)
    """uint8 `[T]`, 1 where a token is trained on; None where the shard has no `NAME.loss`."""
    loss_ranges: NumberRanges | None = opened(
        lambda self: {"loss_ranges": self._numbers("loss", whole=False)}, MAPS
    )
    """The same, as `token_ranges`."""
    _documents: ProvenanceFile = opened(lambda self: {"_documents": self.open_provenance()}, TABLES)


@lru_cache(maxsize=16)
def _row_group(file: ProvenanceFile, group: int) -> pa.Table:
    """A row group of provenance, kept for the next document; a few megabytes."""
    return file.read(group)


def bring_indexes(shards: Iterable[Shard]) -> None:
    """Bring indexes that are not open yet at once; nothing where they are mapped."""
    todo = [shard for shard in shards if "offset_of" not in shard.__dict__ and len(shard)]
    if len(todo) > 1:
        todo[0].files.bring([shard.file("idx") for shard in todo])


def wrong_id(shard: Shard, vocab_size: int, place: int) -> CorruptStore:
    """Error for a token of a shard that is outside of the vocabulary."""
    return CorruptStore(
        f"{shard.files.place}: token {place:,} of {shard.entry.name}.bin is "
        f"{int(shard.token_ranges[place : place + 1][0]):,}: expected an id from 0 to {vocab_size - 1:,}",
        hint=HINT,
    )
