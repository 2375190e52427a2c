"""Offsets of documents: the first token of each document of some shards, and the document that holds a token.

    place     0   1   2     3       4            documents of the run, shard after shard
    begins    0   5   6    15      19            tokens before each
    find      token 14 -> place 2, which begins at 6

There are two implementations for whole shards, with the same results. Up to `IN_MEMORY_BYTES` (4 million
documents) all starts are held in one array, made on first use: then the number of shards does not matter,
and a hundred searches take 5 microseconds. Above that the mapped indexes themselves are searched, and
nothing is held whatever the number of documents: 30 microseconds per hundred searches, and 15 for every
further shard involved. Arrow does that search where it can (since version 23): an index's numbers are not
aligned in their file, and NumPy would copy all of them; else bisection by gathers.

Documents in any other order, or other weights than their tokens, have sums that are kept (`SampledOffsets`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from packline.packing.cache import LARGE, Plan, find_plan
from packline.ragged import offsets_of
from packline.store.shard import Shard, bring_indexes

if TYPE_CHECKING:
    from packline.packing.selection import Selection

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


def document_offsets(shards: Sequence[Shard], documents: np.ndarray, tokens: np.ndarray) -> DocumentOffsets:
    """Offsets of the documents of these shards, in this order.

    Args:
        shards: P shards; none is opened here.
        documents: number of documents of each, int64 `[P]`.
        tokens: number of tokens of each, int64 `[P]`.
    """
    most = REMOTE_SHARDS if _are_remote(shards) else IN_MEMORY_SHARDS
    if len(shards) > most or 8 * int(documents.sum()) > IN_MEMORY_BYTES:
        return MappedOffsets(shards, documents, tokens)
    return InMemoryOffsets(shards)


def _are_remote(shards: Sequence[Shard]) -> bool:
    """True if reading every index would be a request for each."""
    return bool(shards) and not shards[0].files.is_local


class InMemoryOffsets:
    """Offsets with all starts in one array.

    Raises:
        CorruptStore: an index is inconsistent; raised on first use.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards

    @cached_property
    def _begins(self) -> np.ndarray:
        """int64 `[D+1]`: start of each document, and the end of the last."""
        begins = np.zeros(sum(len(shard) for shard in self._shards) + 1, np.int64)
        first = before = 0
        bring_indexes(self._shards)
        for shard in self._shards:
            stop = first + len(shard)
            inner = begins[first + 1 : stop + 1]
            np.add.accumulate(shard.lengths, out=inner)
            inner += before
            first, before = stop, before + shard.entry.tokens
        return begins

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

    def __init__(self, shards: Sequence[Shard], documents: np.ndarray, tokens: np.ndarray) -> None:
        self._shards, self._remote = shards, _are_remote(shards)
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
            begins[group] = shard.places(inner) + self._tokens[part]
            lengths[group] = shard.lengths_at(inner)
        return begins, lengths

    def _by_part(
        self, edges: np.ndarray, values: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray | slice, np.ndarray]]:
        """Values by the edges they lie between: part, positions in `values`, distances from the edge."""
        parts = edges.searchsorted(values, "right") - 1
        if self._remote:
            bring_indexes([self._shards[part] for part in np.unique(parts).tolist()])
        if len(values) and int(parts.min()) == int(parts.max()):
            part = int(parts[0])
            yield part, slice(None), values - edges[part]
            return
        order = parts.argsort(kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(parts[order])) + 1):
            if len(group):
                part = int(parts[group[0]])
                yield part, group, values[group] - edges[part]

    def _search(self, part: int, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Documents of a shard that hold these tokens of it, and their starts."""
        shard = self._shards[part]
        found = shard.search(tokens) - 1
        return found, shard.places(found)


STEP = 16
"""Most documents per kept sum; small, since each search of a shuffled order reads as many lengths."""
Weigh = Callable[[np.ndarray], np.ndarray]
"""Lengths to weights, int64 to int64 of the same shape, elementwise."""


class SampledOffsets:
    """Sums of weights over the documents of a selection, in its order, where no closed form exists.

    Each document has a weight (its tokens, its rows), and the sums up to every 16th place are kept, or up to
    every place, every second and so on where that takes at most 8 MB:

        place      0  1  2 ... 15 | 16 17 ... 31 | 32 ...
        weight     5  1  9        |  4  4        |  7
        kept       0              | 61           | 130        int64, half a byte per document

    A search finds the last kept sum that is not above the number, and adds up the weights from there.

    Cost: one pass over the lengths when it is made: at memory speed in stored order, at the speed of random
    reads of the index for a shuffled one (measured: 100 million documents in 20 s). Kept in memory; above 8
    MB (16 million documents) as a plan on disk.

    Args:
        selection: documents and their order.
        weigh: weight of a document as a function of its length.
        name: name of the weight, including what it depends on, so that plans of other weights are not
            confused with it.
    """

    def __init__(self, selection: Selection, weigh: Weigh, name: str) -> None:
        self._selection, self._weigh = selection, weigh
        self._step = next(
            step for step in (1, 2, 4, 8, STEP) if step == STEP or 8 * (len(selection) // step + 1) <= LARGE
        )
        settings = {"cumulative": name, "step": self._step, "selection": selection.identity}
        size = 8 * (len(selection) // self._step + 1)
        plan = find_plan(selection.store, selection.plans, settings, self._pass, size=size)
        self._table = plan.arrays["sums"]
        self.total: int = plan.facts["total"]

    def _pass(self) -> Plan:
        sums: list[np.ndarray] = []
        total = 0
        for lengths in self._selection.blocks():  # whole steps, but for the last
            weights = self._weigh(lengths)
            steps = np.add.reduceat(weights, np.arange(0, len(weights), self._step))
            ends = np.cumsum(steps) + total
            sums.append(ends - steps)
            total = int(ends[-1])
        return Plan({"sums": np.concatenate(sums)}, {"total": total})

    def find(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places of these values, and the sums before each place.

        Args:
            values: int64 `[N]`, each from 0 to the total; the total is past the end: its place is the number
                of documents.

        Returns:
            Places and sums, int64 `[N]` each: sum <= value < sum + weight of the place.
        """
        step = self._table.searchsorted(values, "right") - 1
        if self._step == 1:
            past, before = values >= self.total, self._table[step]
            before[past] = self.total
            return step + past, before
        weights = self._weights(step)
        ends = np.cumsum(weights, axis=1) + self._table[step][:, None]
        passed = ends <= values[:, None]
        places = np.minimum(step * self._step + np.count_nonzero(passed, axis=1), len(self._selection))
        return places, self._table[step] + (weights * passed).sum(axis=1)

    def before(self, places: np.ndarray) -> np.ndarray:
        """Sums of the weights before these places, int64 `[N]`."""
        step = places // self._step
        earlier = np.arange(self._step) < (places % self._step)[:, None]
        return self._table[step] + (self._weights(step) * earlier).sum(axis=1)

    def _weights(self, step: np.ndarray) -> np.ndarray:
        """Weights of the places of these steps, int64 `[N, step]`; 0 beyond the last document."""
        places = step[:, None] * self._step + np.arange(self._step)
        inside = places < len(self._selection)
        lengths = self._selection.lengths_at(np.minimum(places, len(self._selection) - 1).reshape(-1))
        weights = self._weigh(lengths).reshape(places.shape)
        return weights if inside.all() else weights * inside
