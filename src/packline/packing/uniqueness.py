"""Documents whose text an earlier document has, in bounded memory.

    document   0     1     2     3     4
    hash       a     b     a     c     b        xxh3-64 of the text
    bytes      5     9     5     4     7        documents 1 and 4 differ
    repeated               2

Two texts are equal if their hashes and sizes are. The first document in order counts; documents of other
stores come before all, so a text that one of them has is left out altogether.

    hashes ── sort ──> values that occur twice ──> table of bits ──> candidates ── sort by hash ──> repeated

Cost: for 100 million documents two passes over two columns, each with a sort of half the hashes. Memory: 30
bytes per document of a pass, at most 2 GB besides mapped files; a pass handles the hashes of one range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from packline.errors import RecipeError
from packline.packing.passes import ShardPlaces
from packline.storage.threads import in_threads

PASS_DOCUMENTS = 1 << 26
"""Documents per pass, about."""
TABLE_BITS = 27
"""Bits of a hash that the table of candidates is indexed by: 128 MB."""
COLUMNS = ("hash", "text_bytes")

Texts = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Places, hashes and sizes of some documents, `[N]` each: 64 bits, or 32 where that is enough."""
Columns = tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]


class Repeated(NamedTuple):
    """Documents whose text occurs earlier, by their places in the selection, int64; in no order."""

    own: np.ndarray
    """Documents whose text an earlier document of the selection has."""
    firsts: np.ndarray
    """Place of the first document with each of these texts."""
    foreign: np.ndarray
    """Documents whose text one of the other stores has."""


def repeated_texts(
    others: Sequence[ShardPlaces], parts: Sequence[ShardPlaces], reasons: np.ndarray
) -> Repeated:
    """Find documents whose text occurs earlier.

    Args:
        others: shards of other stores, all of whose documents come first.
        parts: shards of the selection, in order.
        reasons: uint8 by place in the selection; only documents with 0 take part.

    Raises:
        RecipeError: a document without the hash of its text.
    """
    count = sum(len(part.shard) for part in others) + int(np.count_nonzero(reasons == 0))
    bits = max(-(-count // PASS_DOCUMENTS) - 1, 0).bit_length()
    empty = np.empty(0, np.int64)
    own, firsts, foreign = [empty], [empty], [empty]
    for number in range(1 << bits):
        columns: Columns = ([], [], [])
        _gather(columns, others, None, bits, number)
        before = sum(map(len, columns[0]))
        _gather(columns, parts, reasons, bits, number)
        places, hashes, sizes = map(_joined, columns)
        repeated, heads = _repeated(hashes, sizes)
        mine = repeated >= before
        repeated, heads = repeated[mine], heads[mine]
        own.append(places[repeated[heads >= before]].astype(np.int64))
        firsts.append(places[heads[heads >= before]].astype(np.int64))
        foreign.append(places[repeated[heads < before]].astype(np.int64))
    return Repeated(np.concatenate(own), np.concatenate(firsts), np.concatenate(foreign))


def _gather(
    columns: Columns, parts: Sequence[ShardPlaces], reasons: np.ndarray | None, bits: int, number: int
) -> None:
    """Append places, hashes and sizes of some documents, shard by shard."""
    for found in in_threads(lambda part: _texts(part, reasons, bits, number), parts):
        for column, one in zip(columns, found, strict=True):
            column.append(one)


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    """One array of many, which are released."""
    joined = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
    arrays.clear()
    return joined


def _texts(part: ShardPlaces, reasons: np.ndarray | None, bits: int, number: int) -> Texts:
    """Texts of a shard whose hashes begin with these bits."""
    found = list(_groups(part, reasons, bits, number))
    empty = np.empty(0, np.int64)
    places, hashes, sizes = zip(*found, strict=True) if found else ((empty,), (empty.view("<u8"),), (empty,))
    return np.concatenate(places), np.concatenate(hashes), np.concatenate(sizes)


def _groups(part: ShardPlaces, reasons: np.ndarray | None, bits: int, number: int) -> Iterator[Texts]:
    file = part.shard.open_provenance()
    for first, table in file.groups(COLUMNS):
        if table["hash"].null_count:
            raise RecipeError(
                f"unique: {file.path} has documents without the hash of their text",
                hint="an import has tokens and no text: choose other sources, or build the store from text",
            )
        hashes = table["hash"].to_numpy()
        start = part.start + first
        wanted = None if reasons is None else reasons[start : start + len(hashes)] == 0
        if bits:
            inside = hashes >> np.uint64(64 - bits) == number
            wanted = inside if wanted is None else wanted & inside
        inner = np.arange(len(hashes)) if wanted is None else np.flatnonzero(wanted)
        sizes = table["text_bytes"].to_numpy()[inner]
        yield _narrow(inner + start), hashes[inner], _narrow(sizes)


def _narrow(numbers: np.ndarray) -> np.ndarray:
    fits = not len(numbers) or int(numbers.max()) < 2**32
    return numbers.astype(np.uint32) if fits else numbers.astype(np.uint64)


def _repeated(hashes: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of texts that occur earlier, and of the first text equal to each; int64 of the same shape."""
    empty = np.empty(0, np.int64)
    if not len(hashes):
        return empty, empty
    values = np.sort(hashes)
    twice = values[1:][values[1:] == values[:-1]]
    if not len(twice):
        return empty, empty
    mask = np.uint64((1 << TABLE_BITS) - 1)
    table = np.zeros(1 << TABLE_BITS, bool)
    table[twice & mask] = True
    candidates = np.flatnonzero(table[hashes & mask])
    del values, table
    alike, size = hashes[candidates], sizes[candidates]
    order = np.lexsort((size, alike))  # stable: equal texts stay in order
    alike, size = alike[order], size[order]
    new = np.ones(len(order), bool)
    new[1:] = (alike[1:] != alike[:-1]) | (size[1:] != size[:-1])
    heads = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    found = candidates[order]
    return found[~new], found[heads[~new]]
