"""Whole shards in stored order, and sums over any other documents: which document holds a token.

    place     0   1   2     3       4            documents of the run, shard after shard
    begins    0   5   6    15      19            tokens before each
    find      token 14 -> place 2, which begins at 6

About whole shards everything is closed form. Up to `IN_MEMORY_BYTES` (4 million documents) all starts are
held in one array: then the number of shards does not matter, and a hundred searches take 5 microseconds.
Above that the mapped indexes themselves are searched, and nothing is held whatever the number of documents:
30 microseconds per hundred searches, and 15 for every further shard involved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from packline.packing.cache import Plan, find_plan
from packline.ragged import offsets_of
from packline.store.reader import StoreReader
from packline.store.shard import Shard, bring_indexes

if TYPE_CHECKING:
    from packline.packing.selection import Selection

IN_MEMORY_BYTES = 32 << 20
"""Bytes that a process may hold, as does every worker process of a loader."""
REMOTE_SHARDS = 1 << 6
"""The same of a remote store, whose indexes are requests."""
IN_MEMORY_SHARDS = 1 << 12
"""Shards whose indexes are read for that; reading one takes 60 microseconds."""
AHEAD = 32


class Sums:
    """Sums of the weights of D documents before each: which document holds the n-th unit of weight.

    Args:
        sums: int64 `[D+1]`, ascending from 0; the last is the total.
    """

    def __init__(self, sums: np.ndarray) -> None:
        self._sums = sums
        self.total = int(sums[-1])

    def find(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places of these values, each from 0 to the total, whose place is D, and the sums before each."""
        places = self._sums.searchsorted(values, "right") - 1
        return places, self._sums[places]

    def before(self, places: np.ndarray) -> np.ndarray:
        return self._sums[places]


def sums_of(selection: Selection, weigh: Callable[[np.ndarray], np.ndarray], name: str) -> Sums:
    """Sums over the documents of a selection, in its order, where no closed form exists.

    Cost: one pass over the lengths: at memory speed in stored order, at the speed of random reads of the
    index for a shuffled one (measured: 100 million documents in 20 s). 8 bytes per document, above 8 MB a
    plan on disk.

    Args:
        weigh: lengths to weights, int64 to int64 of the same shape, elementwise.
        name: name of the weight, including what it depends on, so that plans of other weights are not
            confused with it.
    """

    def make() -> Plan:
        sums = np.zeros(len(selection) + 1, np.int64)
        done = 0
        for lengths in selection.blocks():
            here = sums[done + 1 : done + 1 + len(lengths)]
            np.add.accumulate(weigh(lengths), out=here)
            here += sums[done]
            done += len(lengths)
        return Plan({"sums": sums}, {})

    settings = {"sums": name, "selection": selection.identity}
    plan = find_plan(selection.store, selection.plans, settings, make, size=8 * len(selection))
    return Sums(plan.arrays["sums"])


class ShardPlaces(NamedTuple):
    shard: Shard
    start: int
    stop: int


class ShardRange:
    """Documents of P chosen shards of a store, in stored order."""

    def __init__(self, store: StoreReader, numbers: Sequence[int]) -> None:
        chosen = np.array(numbers, np.int64)
        self.store, self.numbers = store, list(numbers)
        tokens = store.manifest.shards.numbers("tokens")[chosen]
        self._firsts, self._lasts = store.firsts[chosen], store.firsts[chosen + 1]
        self._places = offsets_of(self._lasts - self._firsts)
        """int64 `[P+1]`: place of the first document of each shard."""
        self._tokens = offsets_of(tokens)
        """int64 `[P+1]`: tokens before each shard."""
        self.first_places, self.tokens = self._places[:-1], int(self._tokens[-1])
        self._shifts = self._firsts - self.first_places
        self._token_shifts = store.token_firsts[chosen] - self._tokens[:-1]
        # If no shard in between is left out, numbers and places differ by a constant.
        self._unbroken = len(numbers) > 0 and bool((self._shifts == self._shifts[0]).all())
        self._remote = not store.files.is_local
        most = REMOTE_SHARDS if self._remote else IN_MEMORY_SHARDS
        self._held = len(numbers) <= most and 8 * len(self) <= IN_MEMORY_BYTES

    def __len__(self) -> int:
        return int(self._places[-1])

    def shard(self, part: int) -> Shard:
        return self.store.shards[self.numbers[part]]

    def parts(self) -> list[ShardPlaces]:
        edges, shards = self._places.tolist(), self.store.shards
        return [
            ShardPlaces(shards[number], start, stop)
            for number, start, stop in zip(self.numbers, edges, edges[1:], strict=False)
        ]

    def documents(self, places: np.ndarray) -> np.ndarray:
        return places + self._shifts[0 if self._unbroken else self._places.searchsorted(places, "right") - 1]

    def places(self, documents: np.ndarray) -> np.ndarray:
        """Places of these documents, int64 `[N]`; -1 for a document of another shard."""
        part = np.maximum(self._firsts.searchsorted(documents, "right") - 1, 0)
        inside = (documents >= self._firsts[part]) & (documents < self._lasts[part])
        return np.where(inside, documents - self._shifts[part], -1)

    def at(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First tokens of documents of these shards, counted through the store, and their lengths."""
        if self._held:
            part = 0 if self._unbroken else self._firsts.searchsorted(documents, "right") - 1
            places = documents - self._shifts[part]
            begins = self._begins[places]
            return begins + self._token_shifts[part], self._begins[places + 1] - begins
        begins, lengths = np.empty(len(documents), np.int64), np.empty(len(documents), np.int64)
        for part, group, inner in self._by_part(self._firsts, documents):
            shard = self.shard(part)
            begins[group] = shard.places(inner) + self.store.token_firsts[self.numbers[part]]
            lengths[group] = shard.lengths[inner]
        return begins, lengths

    def find(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places that hold these tokens, counted through these shards, and the tokens before each place.

        A token is from 0 to T; T is past the end: its place is D.
        """
        if self._held:
            return self._sums.find(tokens)
        places, before = np.full_like(tokens, len(self)), tokens.copy()
        inside = np.flatnonzero(tokens < self.tokens)
        for part, group, inner in self._by_part(self._tokens, tokens[inside]):
            shard = self.shard(part)
            found = shard.search(inner) - 1
            places[inside[group]] = found + self._places[part]
            before[inside[group]] = shard.places(found) + self._tokens[part]
        return places, before

    def before(self, places: np.ndarray) -> np.ndarray:
        part = self._places.searchsorted(places, "right") - 1
        return self.at(self.documents(places))[0] - self._token_shifts[part]

    def lengths(self, start: int, stop: int) -> np.ndarray:
        """Tokens of the documents at places start to stop, int64: a range of the index, copied."""
        lengths = np.empty(max(min(stop, len(self)) - start, 0), np.int64)
        part = max(int(self._places.searchsorted(start, "right")) - 1, 0)
        done = 0
        while done < len(lengths):
            inner = start + done - int(self._places[part])
            if self._remote and not part % AHEAD:
                bring_indexes([self.store.shards[one] for one in self.numbers[part : part + AHEAD]])
            block = self.shard(part).lengths[inner : inner + len(lengths) - done]
            lengths[done : done + len(block)] = block
            done, part = done + len(block), part + 1
        return lengths

    @cached_property
    def _begins(self) -> np.ndarray:
        begins = np.zeros(len(self) + 1, np.int64)
        parts = self.parts()
        bring_indexes([part.shard for part in parts])
        for (shard, start, stop), before in zip(parts, self._tokens.tolist(), strict=False):
            inner = begins[start + 1 : stop + 1]
            np.add.accumulate(shard.lengths, out=inner)
            inner += before
        return begins

    @cached_property
    def _sums(self) -> Sums:
        return Sums(self._begins)

    def _by_part(
        self, edges: np.ndarray, values: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray | slice, np.ndarray]]:
        """Values by the edges they lie between: part, positions in `values`, distances from the edge."""
        parts = edges.searchsorted(values, "right") - 1
        if self._remote:
            bring_indexes([self.shard(part) for part in np.unique(parts).tolist()])
        if len(values) and int(parts.min()) == int(parts.max()):
            part = int(parts[0])
            yield part, slice(None), values - edges[part]
            return
        order = parts.argsort(kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(parts[order])) + 1):
            if len(group):
                part = int(parts[group[0]])
                yield part, group, values[group] - edges[part]


def all_shards(store: StoreReader) -> ShardRange:
    return ShardRange(store, range(len(store.shards)))
