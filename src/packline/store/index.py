"""The `.idx` of a shard: Megatron's MMIDIDX, version 1, one sequence per document.

    0   9 bytes  MMIDIDX\\0\\0
    9   uint64   version, 1
    17  uint8    dtype code of the .bin: 8 uint16, 4 int32
    18  uint64   S, sequences
    26  uint64   N, entries of document_indices (documents + 1)
    34  int32    [S] tokens per sequence
    ..  int64    [S] byte offset of each sequence in the .bin
    ..  int64    [N] first sequence of each document, then S

All little-endian. With one sequence per document, S is the number of documents D and `document_indices` is
0..D. Source: the reader in megatron-core's `indexed_dataset.py`, which the tests run. A document of 2**31
tokens or more does not fit. Opening maps the file; nothing is read until it is used.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from packline.errors import CorruptStore
from packline.store.files import map_file

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
CODES: dict[str, int] = {"uint16": 8, "int32": 4}
DTYPES: dict[int, np.dtype] = {8: np.dtype("<u2"), 4: np.dtype("<i4")}
BLOCK = 1 << 16


def index_size(documents: int) -> int:
    """Size of an index in bytes.

    >>> index_size(0), index_size(10)
    (42, 242)
    """
    return HEADER.size + 20 * documents + 8


def write_index(file: BinaryIO, lengths: np.ndarray, dtype: np.dtype) -> None:
    """Write the index of documents with these lengths, int32 `[D]`."""
    count = len(lengths)
    file.write(HEADER.pack(MAGIC, 1, CODES[dtype.name], count, count + 1))
    file.write(np.ascontiguousarray(lengths, "<i4").data)
    offset = 0
    for start in range(0, count, BLOCK):
        block = lengths[start : start + BLOCK].astype("<i8") * dtype.itemsize
        ends = np.cumsum(block) + offset
        file.write((ends - block).astype("<i8").data)
        offset = int(ends[-1])
    for start in range(0, count + 1, BLOCK):
        file.write(np.arange(start, min(start + BLOCK, count + 1), dtype="<i8").data)


class Index:
    """An index on disk: `lengths` int32 `[D]`, `offsets` int64 `[D]` in bytes, both mapped, read-only.

    Raises:
        CorruptStore: not an index, another version, or a size that contradicts its header.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes: np.ndarray = map_file(path)
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
