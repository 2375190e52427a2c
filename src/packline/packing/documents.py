"""Documents that rows are made of: which ones, in which order, and which of them holds a token.

    store.documents    0 1 2 3 4 5 6 7 8 9     train train train train | val val val | train train train
    split="train"      0 1 2 3 7 8 9           whole shards: a ShardRange
    min_tokens=100     0   2   7   9           their lengths, one pass
    shuffle            9   2   0   7           a permutation, computed: a Selection

The position of a document in the last line is its place. Split, labels and sources choose whole shards, since
a shard holds one source; such a selection, in stored order, is closed form: nothing is read or kept.
Shuffling keeps nothing either. A filter (`filtering`) takes a pass over the lengths (4 bytes per document, at
memory speed) or columns of provenance, and keeps the numbers of the remaining documents (4 bytes each; from a
size on as a plan on disk, mapped). Tokens are never read here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from packline.errors import CorruptStore, RecipeError, StoreError
from packline.fingerprint import hash_value
from packline.packing.cache import LARGE, Filtered, PlanMemory, cached_table
from packline.packing.filtering import COLUMN_COST, Filters, LeftOut, ShardPlaces
from packline.packing.offsets import DocumentOffsets, document_offsets
from packline.packing.options import DocumentFilter, check_options
from packline.permutation import Permutation
from packline.ragged import offsets_of
from packline.storage.places import refuse_remote
from packline.store.reader import StoreReader, shard_labels
from packline.store.shard import Shard
from packline.store.tables import Picked

AHEAD = 32
"""Indexes of a remote store that are brought at once in a pass over lengths."""


class ShardRange:
    """Selected shards of a store, in their order."""

    def __init__(self, store: StoreReader, numbers: Sequence[int]) -> None:
        chosen = np.array(numbers, np.int64)
        self.numbers = list(numbers)
        """Number of each shard in the store."""
        self.shards: Sequence[Shard] = Picked(store.shards, self.numbers)
        tokens = store.manifest.shards.numbers("tokens")[chosen]
        self.tokens = int(tokens.sum())
        documents = np.diff(store.firsts)[chosen]
        self.offsets: DocumentOffsets = document_offsets(
            self.shards, documents, tokens, remote=store.mirror is not None
        )
        self._remote = store.mirror is not None
        self._firsts = store.firsts[chosen]
        """int64 `[P]`: number of the first document of each shard."""
        self._lasts = store.firsts[chosen + 1]
        self._places = offsets_of(self._lasts - self._firsts)
        """int64 `[P+1]`: place of the first document of each shard."""
        self._shifts = self._firsts - self.first_places
        self._token_shifts = store.token_firsts[chosen] - offsets_of(tokens)[:-1]
        # If no shard in between is left out, numbers and places differ by a constant.
        unbroken = len(self.shards) > 0 and bool((self._shifts == self._shifts[0]).all())
        self._shift = int(self._shifts[0]) if unbroken else None

    def __len__(self) -> int:
        return int(self._places[-1])

    @property
    def first_places(self) -> np.ndarray:
        """int64 `[P]`: place of the first document of each shard."""
        return self._places[:-1]

    def parts(self) -> list[ShardPlaces]:
        """Each shard, and the places of its documents."""
        ranges = pairwise(self._places.tolist())
        return [
            ShardPlaces(shard, number, start, stop)
            for shard, number, (start, stop) in zip(self.shards, self.numbers, ranges, strict=True)
        ]

    def documents(self, places: np.ndarray) -> np.ndarray:
        """Numbers in the store of the documents at these places, int64 `[N]`."""
        if self._shift is not None:
            return places + self._shift
        return places + self._shifts[self._places.searchsorted(places, "right") - 1]

    def at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `Selection.at`."""
        begins, sizes = self.offsets.at(places)
        if self._shift is not None:
            return places + self._shift, begins + self._token_shifts[0], sizes
        part = self._places.searchsorted(places, "right") - 1
        return places + self._shifts[part], begins + self._token_shifts[part], sizes

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
            if self._remote and not part % AHEAD:
                from packline.store.shard import bring_indexes

                bring_indexes(self.shards[part : part + AHEAD])
            block = self.shards[part].lengths[inner : inner + len(lengths) - done]
            lengths[done : done + len(block)] = block
            done, part = done + len(block), part + 1
        return lengths


STEP = 16
"""Most documents per kept sum; small, since each search of a shuffled order reads as many lengths."""
SHUFFLED_BYTES = 32 << 20
"""Bytes up to which a shuffled order is held (8 million documents); its look-ups take a tenth of the time."""

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
        table, facts = cached_table(selection.store, selection.plans, settings, self._pass, large=size)
        self._table = table
        self.total: int = facts["total"]

    def _pass(self) -> tuple[np.ndarray, dict[str, Any]]:
        sums: list[np.ndarray] = []
        total = 0
        for _, lengths in self._selection.blocks():  # whole steps, but for the last
            weights = self._weigh(lengths)
            steps = np.add.reduceat(weights, np.arange(0, len(weights), self._step))
            ends = np.cumsum(steps) + total
            sums.append(ends - steps)
            total = int(ends[-1])
        return np.concatenate(sums).astype("<i8"), {"total": total}

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


TRAIN = DocumentFilter()
"""All documents of the split train, in stored order."""
SHUFFLE_KEY = 1
"""Separates the shuffle of documents from other permutations with the same seed."""
BLOCK = 1 << 20
"""Documents per step of a pass: 8 MB of lengths."""


class Selection:
    """Selected documents of a store, D of them, in their order.

    Args:
        store: an opened store.
        choice: documents and their order.
        plans: folder for tables too large for memory; default below the store. A `PlanMemory` keeps them in
            memory.

    Raises:
        RecipeError: an invalid setting, or a split, label or source that the store does not have.
        StoreError: the store is empty, or no document is left; reports how many each filter removed.
        CorruptStore: lengths that no store can have.

    >>> Selection("no store", DocumentFilter(min_tokens=9, max_tokens=5))
    Traceback (most recent call last):
    packline.errors.RecipeError: max_tokens is 5: expected at least min_tokens, 9
    """

    def __init__(
        self,
        store: StoreReader,
        choice: DocumentFilter = TRAIN,
        *,
        plans: str | Path | PlanMemory | None = None,
    ) -> None:
        choice = check_options(choice).canonical()
        if isinstance(plans, str | Path):
            refuse_remote(plans, "a plan")
        self.store, self.plans = store, plans
        self.settings: dict[str, Any] = selection_settings(choice)
        """Requested settings in a canonical form: equal settings choose equal documents."""
        self._filters = Filters(store, choice)
        self.identity: dict[str, Any] = self.settings | self._filters.identity
        """The settings with the contents of files and other stores in place of their paths."""
        self.contents: tuple[str, ...] = tuple(self._filters.described)
        """Settings whose meaning is the content of files or other stores."""
        self.described: dict[str, Any] = {
            name: value
            for name, value in (self.settings | self._filters.described).items()
            if value not in (None, False, "train")
        }
        """Settings that are not the default, in words; lists and other stores with checksums."""
        self.fingerprint: str = hash_value({"store": store.manifest.checksum, "selection": self.identity})
        losses: dict[str, int] = {}
        self._range = ShardRange(store, _choose_shards(store, self.settings, losses))
        self.tokens: int = self._range.tokens
        """Tokens of all its documents, including boundary tokens."""
        self._kept: np.ndarray | None = None
        """Places of the documents that passed all filters, sorted; None if there are none."""
        self.left_out: tuple[LeftOut, ...] = ()
        """Documents of these splits, labels and sources that a filter removed, by filter."""
        self.notes: tuple[str, ...] = ()
        """Remarks about lists that do not fit the store in part."""
        if len(self._range) and self._filters:
            self._kept = self._filter(losses)
        self._count = len(self._range) if self._kept is None else len(self._kept)
        if not self._count:
            taken = ", ".join(f"{count:,} {reason}" for reason, count in losses.items() if count)
            raise StoreError(
                f"{store.place}: no document is left of {store.manifest.documents:,}: {taken}",
                hint="loosen a filter; packline info shows sources, splits and lengths",
            )
        self._order: Permutation | None = None
        if choice.shuffle_documents is not None:
            self._order = Permutation(self._count, SHUFFLE_KEY, choice.shuffle_documents)

    def __len__(self) -> int:
        return self._count

    @property
    def stored(self) -> ShardRange | None:
        """The selection as a run of whole shards, if it is one: then everything about it is closed form."""
        return self._range if self._order is None and self._kept is None else None

    def documents(self, places: np.ndarray) -> np.ndarray:
        """Numbers in `store.documents` of the documents at these places, int64 `[N]` to int64 `[N]`."""
        return self._range.documents(self._places_in_range(places))

    def places(self, documents: np.ndarray) -> np.ndarray:
        """Places of these documents, int64 `[N]` to int64 `[N]`; -1 for a document that is not selected."""
        places = self._range.places(np.asarray(documents, np.int64))
        if self._kept is not None:
            at = np.minimum(self._kept.searchsorted(places), self._count - 1)
            places = np.where(self._kept[at] == places, at, -1)
        if self._order is not None:
            found = places >= 0
            places[found] = self._order.invert(places[found])
        return places

    def lengths_at(self, places: np.ndarray) -> np.ndarray:
        """Tokens of the documents at these places, int64 `[N]` to int64 `[N]`."""
        return self._range.offsets.lengths_at(self._places_in_range(places))

    def at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Facts of the documents at these places, int64 `[N]` each: numbers, begins, sizes; see `Spans`."""
        return self._range.at(self._places_in_range(places))

    def lengths(self, start: int, stop: int) -> np.ndarray:
        """Tokens of the documents at places start to stop, int64: for a pass in blocks."""
        if self.stored is not None:
            return self._range.lengths(start, min(stop, self._count))
        return self.lengths_at(np.arange(start, min(stop, self._count)))

    def blocks(
        self, size: int = BLOCK, *, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, np.ndarray]]:
        """All lengths in order: the place of the first document of a block, and the block, int64.

        Args:
            size: documents of a block.
            start: place of the first document.
            stop: one past the last place; None: all.

        Raises:
            CorruptStore: a document without tokens, which no store has.
        """
        end = self._count if stop is None else stop
        for first in range(start, end, size):
            lengths = self.lengths(first, min(first + size, end))
            _check_lengths(self.store, lengths)
            yield first, lengths

    def units(self) -> Iterator[tuple[str, int]]:
        """Name of the unit of each selected shard, and the number of documents selected before it.

        Only for documents in stored order.
        """
        firsts = self._range.first_places
        before = firsts if self._kept is None else self._kept.searchsorted(firsts)
        for shard, first in zip(self._range.shards, before.tolist(), strict=True):
            yield shard.entry.name.partition("-")[2], first

    def __repr__(self) -> str:
        chosen = [f"{name}={value!r}" for name, value in self.settings.items() if value not in (None, False)]
        return (
            f"<{self._count:,} documents, {self.tokens:,} tokens of {self.store.place}: {', '.join(chosen)}>"
        )

    @cached_property
    def _shuffled(self) -> np.ndarray | None:
        """Images of all places under the shuffle, uint32 `[D]`; None if there is none, or it is too large."""
        if self._order is None or 4 * self._count > SHUFFLED_BYTES:
            return None
        return self._order(np.arange(self._count)).astype(np.uint32)

    def _places_in_range(self, places: np.ndarray) -> np.ndarray:
        if self._shuffled is not None:
            places = self._shuffled[places].astype(np.int64)
        elif self._order is not None:
            places = self._order(places)
        return places if self._kept is None else self._kept[places].astype(np.int64)

    def _filter(self, losses: dict[str, int]) -> np.ndarray:
        """Places of the documents that pass the filters; counts the others by reason."""
        size = 4 * len(self._range) * (COLUMN_COST if self._filters.reads_columns else 1)
        settings = {"kept": self.identity | {"shuffle_documents": None}}
        parts = self._range.parts()
        if isinstance(self.plans, PlanMemory):
            kept, facts = self._filter_new(self.plans, hash_value(settings), parts)
        else:
            kept, facts = cached_table(
                self.store, self.plans, settings, lambda: self._filters.apply(parts), large=size
            )
        self.left_out = tuple(LeftOut(*one) for one in facts["left_out"] if one[1])
        self.notes = tuple(facts["notes"])
        losses |= {one.by: one.documents for one in self.left_out}
        self.tokens = facts["tokens"]
        return kept

    def _filter_new(
        self, memory: PlanMemory, key: str, parts: list[ShardPlaces]
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """The same for a store that grows: only the shards that are new since the last time are filtered."""
        seen = memory.filtered.get(key)
        shards, before = (seen.shards, seen.documents) if seen is not None else (0, 0)
        if seen is None or shards < len(parts):
            new = [one._replace(start=one.start - before, stop=one.stop - before) for one in parts[shards:]]
            kept, facts = self._filters.apply(new)
            if seen is not None:
                kept = np.concatenate([seen.kept, kept + seen.kept.dtype.type(before)])
                facts = _added(seen.facts, facts)
            seen = memory.filtered[key] = Filtered(len(parts), len(self._range), kept, facts)
        return seen.kept, seen.facts


def _added(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Counts of two runs of the same filters together."""
    pairs = zip(first["left_out"], second["left_out"], strict=True)
    left_out = [
        [name, *(sum(two) for two in zip(one, other, strict=True))] for (name, *one), (_, *other) in pairs
    ]
    return {**first, "tokens": first["tokens"] + second["tokens"], "left_out": left_out}


def selection_settings(choice: DocumentFilter) -> dict[str, Any]:
    """Settings of a choice by name, in a canonical form: equal settings choose equal documents."""
    canonical = choice.canonical()
    return {name: getattr(canonical, name) for name in DocumentFilter.__struct_fields__}


def _choose_shards(store: StoreReader, settings: dict[str, Any], losses: dict[str, int]) -> list[int]:
    """Numbers of the shards with the requested split, labels and sources; counts the others by reason."""
    if not store.manifest.documents:
        raise StoreError(f"{store.place} is empty: expected at least one document, found none")
    split, labels, sources = settings["split"], settings["labels"], settings["sources"]
    splits = sorted(store.manifest.shards.by_split("documents"))
    if split not in ("all", *splits):
        raise RecipeError(
            f"split is {split!r}: expected one of {', '.join([*splits, 'all'])} in {store.place}",
            hint=""
            if split not in ("val", "test")
            else f"{split}_fraction in the recipe of a build makes a split {split}",
        )
    whence = shard_labels(store) if labels is not None or sources is not None else []
    for what, wanted, found in (
        ("label", labels, {origin.label for origin in whence}),
        ("source", sources, {origin.source for origin in whence}),
    ):
        known = sorted(name for name in found if name is not None)
        for name in wanted or ():
            if name not in known:
                raise RecipeError(
                    f"no document of {store.place} has the {what} {name!r}:"
                    f" expected {' or '.join(map(repr, known)) or f'none, for no {what} was given'}"
                )
    chosen: list[int] = []
    counts = np.diff(store.firsts).tolist()
    for number, found_split in enumerate(store.manifest.shards.names("split")):
        if split not in ("all", found_split):
            reason = f"not of split {split}"
        elif labels is not None and whence[number].label not in labels:
            reason = f"without the label {' or '.join(labels)}"
        elif sources is not None and whence[number].source not in sources:
            reason = f"not of source {' or '.join(sources)}"
        else:
            chosen.append(number)
            continue
        losses[reason] = losses.get(reason, 0) + counts[number]
    return chosen


def _check_lengths(store: StoreReader, lengths: np.ndarray) -> None:
    if len(lengths) and int(lengths.min()) < 1:
        raise CorruptStore(
            f"{store.place}: expected documents of at least 1 token, found one of {int(lengths.min()):,}",
            hint="an index is damaged; packline verify reports which",
        )
