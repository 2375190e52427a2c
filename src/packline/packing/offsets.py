"""Offsets of documents: the first token of each document of some shards, and the document that holds a token.

    place     0   1   2     3       4            documents of the run, shard after shard
    begins    0   5   6    15      19            tokens before each
    find      token 14 -> place 2, which begins at 6

There are two implementations, with the same results. Up to `IN_MEMORY_BYTES` (4 million documents) all starts
are held in one array, made on first use: then the number of shards does not matter, and a hundred searches
take 5 microseconds. Above that the mapped indexes themselves are searched, and nothing is held whatever the
number of documents: 30 microseconds per hundred searches, and 15 for every further shard involved. Arrow does
that search where it can (since version 23): an index's numbers are not aligned in their file, and NumPy
would copy all of them; else bisection by gathers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from packline.ragged import offsets_of
from packline.store.shard import Shard, contradiction

IN_MEMORY_BYTES = 32 << 20
"""Bytes that a process may hold, as does every worker process of a loader."""
REMOTE_SHARDS = 1 << 6
"""The same of a remote store, whose indexes are requests."""
IN_MEMORY_SHARDS = 1 << 12
"""Shards whose indexes are read for that; reading one takes 60 microseconds."""


class DocumentOffsets(Protocol):
    """Starts and lengths of D documents of T tokens in total."""

    def find(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places that hold these tokens, and the number of tokens before each place.

        Args:
            tokens: token positions, int64 `[N]`, each from 0 to T; T is past the end: its place is D.
        """

    def before(self, places: np.ndarray) -> np.ndarray:
        """Tokens before these places, int64 `[N]`."""

    def lengths_at(self, places: np.ndarray) -> np.ndarray:
        """Tokens of the documents at these places, int64 `[N]`: a new array."""

    def at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both: tokens before these places, and tokens of their documents."""


def document_offsets(
    shards: Sequence[Shard], documents: np.ndarray, tokens: np.ndarray, *, remote: bool = False
) -> DocumentOffsets:
    """Offsets of the documents of these shards, in this order.

    Args:
        shards: P shards; none is opened here.
        documents: number of documents of each, int64 `[P]`.
        tokens: number of tokens of each, int64 `[P]`.
        remote: True if reading every index would be a request for each.
    """
    most = REMOTE_SHARDS if remote else IN_MEMORY_SHARDS
    if len(shards) > most or 8 * int(documents.sum()) > IN_MEMORY_BYTES:
        return MappedOffsets(shards, documents, tokens, remote=remote)
    return InMemoryOffsets(shards, remote=remote)


class InMemoryOffsets:
    """Offsets with all starts in one array.

    Raises:
        CorruptStore: an index is inconsistent; raised on first use.
    """

    def __init__(self, shards: Sequence[Shard], *, remote: bool = False) -> None:
        self._shards, self._remote = shards, remote
        self._array: np.ndarray | None = None

    @property
    def _begins(self) -> np.ndarray:
        """int64 `[D+1]`: start of each document, and the end of the last."""
        if self._array is None:
            begins = np.zeros(sum(len(shard) for shard in self._shards) + 1, np.int64)
            first = before = 0
            if self._remote:
                from packline.store.shard import bring_indexes

                bring_indexes(self._shards)
            for shard in self._shards:
                stop, lengths, offsets = first + len(shard), shard.lengths, shard.offsets
                inner = begins[first + 1 : stop + 1]
                np.add.accumulate(lengths, out=inner)
                if stop > first and (
                    int(lengths.min()) < 1
                    or int(inner[-1]) != shard.entry.tokens
                    or int(offsets[0])
                    or not np.array_equal(inner[:-1] * shard.itemsize, offsets[1:])
                ):
                    raise contradiction(shard)
                inner += before
                first, before = stop, before + shard.entry.tokens
            self._array = begins
        return self._array

    def find(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        begins = self._begins
        places = begins.searchsorted(tokens, "right") - 1
        return places, begins[places]

    def before(self, places: np.ndarray) -> np.ndarray:
        return self._begins[places]

    def lengths_at(self, places: np.ndarray) -> np.ndarray:
        return self.at(places)[1]

    def at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = self._begins[places]
        return found, self._begins[places + 1] - found


class MappedOffsets:
    """Offsets read from the shards' own mapped indexes."""

    def __init__(
        self, shards: Sequence[Shard], documents: np.ndarray, tokens: np.ndarray, *, remote: bool = False
    ) -> None:
        self._shards, self._remote = shards, remote
        self._places = offsets_of(documents)
        """int64 `[P+1]`: place of the first document of each shard."""
        self._tokens = offsets_of(tokens)
        """int64 `[P+1]`: tokens before each shard."""

    def find(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `DocumentOffsets.find`.

        Raises:
            CorruptStore: the index is inconsistent there.
        """
        places, before = np.full_like(tokens, self._places[-1]), tokens.copy()
        inside = np.flatnonzero(tokens < self._tokens[-1])
        for part, group, inner in self._by_part(self._tokens, tokens[inside]):
            found, begins = self._search(part, inner)
            places[inside[group]] = found + self._places[part]
            before[inside[group]] = begins + self._tokens[part]
        return places, before

    def before(self, places: np.ndarray) -> np.ndarray:
        return self.at(places)[0]

    def lengths_at(self, places: np.ndarray) -> np.ndarray:
        return self.at(places)[1]

    def at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        begins, lengths = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
        for part, group, inner in self._by_part(self._places, places):
            shard = self._shards[part]
            shard.check(inner)
            begins[group] = shard.places(inner) + self._tokens[part]
            lengths[group] = shard.lengths_at(inner)
        return begins, lengths

    def _by_part(
        self, edges: np.ndarray, values: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray | slice, np.ndarray]]:
        """As `_by_part`; the indexes of a remote store are brought at once."""
        found = _by_part(edges, values)
        if self._remote:
            from packline.store.shard import bring_indexes

            found = iter(list(found))
            parts = np.unique(edges.searchsorted(values, "right") - 1)
            bring_indexes([self._shards[part] for part in parts.tolist()])
        return found

    def _search(self, part: int, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Documents of a shard that hold these tokens of it, and their starts."""
        shard = self._shards[part]
        behind = shard.search(tokens)
        found = np.maximum(behind - 1, 0)
        begins = shard.places(found)
        # A search in numbers that are not ascending may return anything: check the result.
        ends = shard.places(np.minimum(behind, len(shard) - 1))
        ends[behind == len(shard)] = shard.entry.tokens
        if not ((begins <= tokens) & (tokens < ends) & (ends - begins == shard.lengths_at(found))).all():
            raise contradiction(shard)
        return found, begins


def _by_part(edges: np.ndarray, values: np.ndarray) -> Iterator[tuple[int, np.ndarray | slice, np.ndarray]]:
    """Values by the edges they lie between: part, positions in `values`, distances from the lower edge."""
    parts = edges.searchsorted(values, "right") - 1
    if len(values) and int(parts.min()) == int(parts.max()):
        part = int(parts[0])
        yield part, slice(None), values - edges[part]
        return
    order = parts.argsort(kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(parts[order])) + 1):
        if len(group):
            part = int(parts[group[0]])
            yield part, group, values[group] - edges[part]
