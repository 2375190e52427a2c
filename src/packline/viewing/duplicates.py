"""Documents with identical tokens, found by hash; exact, in bounded memory.

    document ── xxh3-128 of its tokens ──> (hash, number) 24 bytes ──> files by the first bits of the hash
    a file ── sort by hash ──> equal neighbours ──> groups

Boundary tokens are ignored. Near duplicates are not found. A file of two million records is sorted in 100 MB.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from packline.errors import OutOfSpace

DOCUMENTS_A_FILE = 1 << 21
WAITING = 1 << 20
"""Records buffered before they are written, if there are several files."""
SHOWN = 4
RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("document", "<i8")])


class DuplicateGroup(msgspec.Struct, frozen=True):
    """A group of identical documents."""

    copies: int
    tokens: int
    """Tokens of each document, boundary tokens included."""
    documents: list[int]


class Duplicates(msgspec.Struct, frozen=True):
    """Totals of all groups, and the largest groups."""

    groups: int
    documents: int
    """Duplicate documents, not counting the first of each group."""
    tokens: int
    across_splits: int
    """Groups whose documents are in several splits."""
    largest: list[DuplicateGroup]
    """Groups with the most duplicate tokens."""


class HashFiles:
    """Writes the hashes of documents."""

    def __init__(self, folder: Path, files: int, writer: int) -> None:
        self._folder, self._files, self._writer = folder, files, writer
        self._waiting: list[np.ndarray] = []
        self._count = 0

    def add(self, first: int, tokens: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> None:
        """Hash documents.

        Args:
            tokens: contiguous `[T]`.
            starts, ends: int64 `[D]`, offsets in `tokens` of the documents without their boundary tokens.
        """
        view, size, digest = tokens.data.cast("B"), tokens.itemsize, xxhash.xxh3_128_digest
        places = zip((starts * size).tolist(), (ends * size).tolist(), strict=True)
        hashes = b"".join([digest(view[start:end]) for start, end in places])
        records = np.empty(len(starts), RECORD)
        halves = np.frombuffer(hashes, "<u8").reshape(-1, 2)
        records["high"], records["low"] = halves[:, 0], halves[:, 1]
        records["document"] = np.arange(first, first + len(starts))
        self._waiting.append(records)
        self._count += len(records)
        if self._count >= WAITING:
            self.flush()

    def flush(self) -> None:
        records = np.concatenate([np.empty(0, RECORD), *self._waiting])
        self._waiting, self._count = [], 0
        bits = self._files.bit_length() - 1
        numbers = (records["high"] >> np.uint64(64 - bits)).astype(np.int64) if bits else None
        if numbers is not None:
            order = np.argsort(numbers, kind="stable")
            records, numbers = records[order], numbers[order]
        try:
            for number in range(self._files):
                part = records
                if numbers is not None:
                    part = records[slice(*np.searchsorted(numbers, [number, number + 1]).tolist())]
                if len(part):
                    with open(self._folder / f"{number}-{self._writer}.bin", "ab") as file:
                        file.write(part.tobytes())
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OutOfSpace(
                    f"{self._folder}: no room for the hashes of documents",
                    hint="set TMPDIR to a folder with more room, 24 bytes per document",
                ) from error
            raise


def count_files(documents: int) -> int:
    """Number of hash files for a number of documents, a power of two.

    >>> count_files(100), count_files(5_000_000)
    (1, 4)
    """
    return 1 << max(-(-documents // DOCUMENTS_A_FILE) - 1, 0).bit_length()


def find_duplicates(
    folder: Path,
    files: int,
    tokens_of: Callable[[np.ndarray], np.ndarray],
    split_of: Callable[[np.ndarray], np.ndarray],
    most: int,
) -> Duplicates:
    """Find groups in the files of all writers.

    Args:
        tokens_of: function from document numbers to their lengths, int64 of the same shape.
        split_of: function from document numbers to the numbers of their splits, int64 of the same shape.
    """
    groups = documents = tokens = across = 0
    largest: list[DuplicateGroup] = []
    for number in range(files):
        numbers, sizes = _groups(_read(folder, number))
        if not len(sizes):
            continue
        firsts = np.cumsum(sizes) - sizes
        lengths = tokens_of(numbers[firsts])
        saved = lengths * (sizes - 1)
        groups, documents = groups + len(sizes), documents + int((sizes - 1).sum())
        tokens += int(saved.sum())
        splits = split_of(numbers)
        across += int((np.minimum.reduceat(splits, firsts) != np.maximum.reduceat(splits, firsts)).sum())
        for place in np.lexsort((numbers[firsts], -saved))[:most].tolist():
            first, size = int(firsts[place]), int(sizes[place])
            named = numbers[first : first + min(size, SHOWN)].tolist()
            largest.append(DuplicateGroup(size, int(lengths[place]), named))
        largest.sort(key=lambda group: (-group.tokens * (group.copies - 1), group.documents))
        del largest[most:]
    return Duplicates(groups, documents, tokens, across, largest)


def _read(folder: Path, number: int) -> np.ndarray:
    """Records of one file of all writers, sorted by hash, then by document."""
    found = [np.fromfile(path, RECORD) for path in sorted(folder.glob(f"{number}-*.bin"))]
    records = np.concatenate([np.empty(0, RECORD), *found])
    return records[np.lexsort((records["document"], records["low"], records["high"]))]


def _groups(records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    high, low = records["high"], records["low"]
    changes = np.flatnonzero((high[1:] != high[:-1]) | (low[1:] != low[:-1])) + 1
    sizes = np.diff(np.concatenate([[0], changes, [len(records)]]))
    several = sizes > 1
    return records["document"][np.repeat(several, sizes)], sizes[several]
