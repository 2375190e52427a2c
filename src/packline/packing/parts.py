"""The chosen shards of a store as one run of documents.

    shard      train-0 (7 documents)    train-2 (4 documents)
    document   0 1 2 3 4 5 6            12 13 14 15               number in `store.documents`
    place      0 1 2 3 4 5 6             7  8  9 10               number in this run

Cost: arithmetic on a few numbers per shard. Nothing is read until a length is requested.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packline.packing.bounds import Bounds, bounds_of
from packline.ragged import offsets_of
from packline.store.reader import StoreReader


class Parts:
    """Selected shards of a store, in their order."""

    def __init__(self, store: StoreReader, numbers: Sequence[int]) -> None:
        chosen = np.array(numbers, np.int64)
        self.shards = [store.shards[number] for number in numbers]
        self.tokens = sum(shard.entry.tokens for shard in self.shards)
        self.bounds: Bounds = bounds_of(self.shards)
        self._firsts = store.firsts[chosen]
        """int64 `[P]`: number of the first document of each shard."""
        self._lasts = store.firsts[chosen + 1]
        self._places = offsets_of(self._lasts - self._firsts)
        """int64 `[P+1]`: place of the first document of each shard."""
        self._shifts = self._firsts - self._places[:-1]
        # If no shard in between is left out, numbers and places differ by a constant.
        unbroken = len(self.shards) > 0 and bool((self._shifts == self._shifts[0]).all())
        self._shift = int(self._shifts[0]) if unbroken else None

    def __len__(self) -> int:
        return int(self._places[-1])

    def documents(self, places: np.ndarray) -> np.ndarray:
        """Numbers in the store of the documents at these places, int64 `[N]`."""
        if self._shift is not None:
            return places + self._shift
        return places + self._shifts[self._places.searchsorted(places, "right") - 1]

    def places(self, documents: np.ndarray) -> np.ndarray:
        """Places of these documents, int64 `[N]`; -1 for a document of another shard."""
        part = np.maximum(self._firsts.searchsorted(documents, "right") - 1, 0)
        inside = (documents >= self._firsts[part]) & (documents < self._lasts[part])
        return np.where(inside, documents - self._shifts[part], -1)

    def lengths(self, start: int, stop: int) -> np.ndarray:
        """Tokens of the documents at places start to stop, int64: a range of the index, copied."""
        lengths = np.empty(max(min(stop, len(self)) - start, 0), np.int64)
        part = max(int(self._places.searchsorted(start, "right")) - 1, 0)
        done = 0
        while done < len(lengths):
            inner = start + done - int(self._places[part])
            block = self.shards[part].lengths[inner : inner + len(lengths) - done]
            lengths[done : done + len(block)] = block
            done, part = done + len(block), part + 1
        return lengths
