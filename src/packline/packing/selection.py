"""Selection: the documents that a packing packs, and their order.

    store.documents    0 1 2 3 4 5 6 7 8 9     train train train train | val val val | train train train
    split="train"      0 1 2 3 7 8 9           whole shards
    min_tokens=100     0   2   7   9           their lengths, one pass
    shuffle            9   2   0   7           a permutation, computed

The position of a document in the last line is its place. Split, labels and sources choose whole shards, since
a shard holds one source; such a selection, in stored order, is closed form: nothing is read or kept.
Shuffling keeps nothing either. A filter by length takes a pass over the lengths (4 bytes per document, at
memory speed) and keeps the numbers of the remaining documents (4 bytes each; above 8 MB as a plan on disk,
mapped). Tokens are never read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packline.errors import CorruptStore, RecipeError, StoreError
from packline.fingerprint import hash_value
from packline.packing.parts import Parts
from packline.packing.tables import keep_table
from packline.permutation import Permutation
from packline.store.reader import StoreReader, shard_labels

SHUFFLE_KEY = 1
"""Separates the shuffle of documents from other permutations with the same seed."""
BLOCK = 1 << 20
"""Documents per step of a pass: 8 MB of lengths."""


class Selection:
    """Selected documents of a store, D of them, in their order.

    Args:
        store: an opened store.
        split: `train`, `val`, or `all`.
        labels: only documents with one of these labels; one label or several.
        sources: only documents of these sources; one name or several.
        min_tokens: only documents with at least n tokens, including boundary tokens.
        max_tokens: only documents with at most n tokens.
        shuffle_documents: seed for a permutation of all of them; None keeps the stored order.
        plans: folder for tables too large for memory; default below the store.

    Raises:
        RecipeError: an invalid setting, or a split, label or source that the store does not have.
        StoreError: the store is empty, or no document is left; reports how many each filter removed.
        CorruptStore: lengths that no store can have.

    >>> Selection("no store", split="train", min_tokens=9, max_tokens=5)
    Traceback (most recent call last):
    packline.errors.RecipeError: max_tokens is 5: expected at least min_tokens, 9
    """

    def __init__(
        self,
        store: StoreReader,
        *,
        split: str = "train",
        labels: str | Sequence[str] | None = None,
        sources: str | Sequence[str] | None = None,
        min_tokens: int | None = None,
        max_tokens: int | None = None,
        shuffle_documents: int | None = None,
        plans: str | Path | None = None,
    ) -> None:
        _check_numbers(min_tokens, max_tokens, shuffle_documents)
        self.store, self.plans = store, plans
        self.settings: dict[str, Any] = {
            "split": split,
            "labels": _names(labels),
            "sources": _names(sources),
            "min_tokens": min_tokens if min_tokens is not None and min_tokens > 1 else None,
            "max_tokens": max_tokens,
            "shuffle_documents": shuffle_documents,
        }
        """Requested settings in a canonical form: equal settings choose equal documents."""
        self.fingerprint: str = hash_value({"store": store.manifest.checksum, "selection": self.settings})
        losses: dict[str, int] = {}
        self._parts = Parts(store, _choose_shards(store, self.settings, losses))
        self.tokens: int = self._parts.tokens
        """Tokens of all its documents, including boundary tokens."""
        self._kept: np.ndarray | None = None
        """Places of the documents that passed a filter by length, sorted; None if all passed."""
        if len(self._parts) and (self.settings["min_tokens"] or max_tokens is not None):
            self._kept = self._filter(losses)
        self._count = len(self._parts) if self._kept is None else len(self._kept)
        if not self._count:
            taken = ", ".join(f"{count:,} {reason}" for reason, count in losses.items() if count)
            raise StoreError(
                f"{store.path}: no document is left of {store.manifest.documents:,}: {taken}",
                hint="loosen a filter; packline info shows sources, splits and lengths",
            )
        self._order: Permutation | None = None
        if shuffle_documents is not None:
            self._order = Permutation(self._count, SHUFFLE_KEY, shuffle_documents)

    def __len__(self) -> int:
        return self._count

    @property
    def stored(self) -> Parts | None:
        """The selection as a run of whole shards, if it is one: then everything about it is closed form."""
        return self._parts if self._order is None and self._kept is None else None

    def documents(self, places: np.ndarray) -> np.ndarray:
        """Numbers in `store.documents` of the documents at these places, int64 `[N]` to int64 `[N]`."""
        return self._parts.documents(self._places_in_parts(places))

    def places(self, documents: np.ndarray) -> np.ndarray:
        """Places of these documents, int64 `[N]` to int64 `[N]`; -1 for a document that is not selected."""
        places = self._parts.places(np.asarray(documents, np.int64))
        if self._kept is not None:
            at = np.minimum(self._kept.searchsorted(places), self._count - 1)
            places = np.where(self._kept[at] == places, at, -1)
        if self._order is not None:
            found = places >= 0
            places[found] = self._order.invert(places[found])
        return places

    def lengths_at(self, places: np.ndarray) -> np.ndarray:
        """Tokens of the documents at these places, int64 `[N]` to int64 `[N]`."""
        return self._parts.bounds.lengths_at(self._places_in_parts(places))

    def at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers and lengths of the documents at these places, int64 `[N]` each."""
        inner = self._places_in_parts(places)
        return self._parts.documents(inner), self._parts.bounds.lengths_at(inner)

    def lengths(self, start: int, stop: int) -> np.ndarray:
        """Tokens of the documents at places start to stop, int64: for a pass in blocks."""
        if self.stored is not None:
            return self._parts.lengths(start, min(stop, self._count))
        return self.lengths_at(np.arange(start, min(stop, self._count)))

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[int, np.ndarray]]:
        """All lengths in order: the place of the first document of a block, and the block, int64.

        Raises:
            CorruptStore: a document without tokens, which no store has.
        """
        for start in range(0, self._count, size):
            lengths = self.lengths(start, start + size)
            _check_lengths(self.store, lengths)
            yield start, lengths

    def __repr__(self) -> str:
        chosen = [f"{name}={value!r}" for name, value in self.settings.items() if value is not None]
        return (
            f"<{self._count:,} documents, {self.tokens:,} tokens of {self.store.path}: {', '.join(chosen)}>"
        )

    def _places_in_parts(self, places: np.ndarray) -> np.ndarray:
        if self._order is not None:
            places = self._order(places)
        return places if self._kept is None else self._kept[places].astype(np.int64)

    def _filter(self, losses: dict[str, int]) -> np.ndarray:
        """Places of documents with the requested lengths; counts the others by reason."""
        parts, least, most = self._parts, self.settings["min_tokens"] or 0, self.settings["max_tokens"]
        dtype = np.dtype("<u4" if len(parts) < 2**32 else "<i8")

        def passed() -> tuple[np.ndarray, dict[str, int]]:
            kept: list[np.ndarray] = []
            facts = {"short": 0, "long": 0, "tokens": 0}
            for start in range(0, len(parts), BLOCK):
                lengths = parts.lengths(start, start + BLOCK)
                _check_lengths(self.store, lengths)
                short = lengths < least
                long = lengths > most if most is not None else np.zeros(len(lengths), bool)
                wanted = np.flatnonzero(~(short | long))
                kept.append((wanted + start).astype(dtype))
                facts["short"] += int(np.count_nonzero(short))
                facts["long"] += int(np.count_nonzero(long))
                facts["tokens"] += int(lengths[wanted].sum())
            return np.concatenate(kept), facts

        settings = {"kept": self.settings | {"shuffle_documents": None}}
        kept, facts = keep_table(self.store, self.plans, settings, passed, large=len(parts) * dtype.itemsize)
        losses[f"shorter than min_tokens {least:,}"] = facts["short"]
        losses[f"longer than max_tokens {most or 0:,}"] = facts["long"]
        self.tokens = facts["tokens"]
        return kept


def _choose_shards(store: StoreReader, settings: dict[str, Any], losses: dict[str, int]) -> list[int]:
    """Numbers of the shards with the requested split, labels and sources; counts the others by reason."""
    if not store.manifest.documents:
        raise StoreError(f"{store.path} is empty: expected at least one document, found none")
    split, labels, sources = settings["split"], settings["labels"], settings["sources"]
    splits = sorted({shard.entry.split for shard in store.shards})
    if split not in ("all", *splits):
        raise RecipeError(
            f"split is {split!r}: expected one of {', '.join([*splits, 'all'])} in {store.path}",
            hint=""
            if split not in ("val", "test")
            else f"a build with --{split}-fraction makes a split {split}",
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
                    f"no document of {store.path} has the {what} {name!r}:"
                    f" expected {' or '.join(map(repr, known)) or f'none, for no {what} was given'}"
                )
    chosen: list[int] = []
    for number, shard in enumerate(store.shards):
        if split not in ("all", shard.entry.split):
            reason = f"not of split {split}"
        elif labels is not None and whence[number].label not in labels:
            reason = f"without the label {' or '.join(labels)}"
        elif sources is not None and whence[number].source not in sources:
            reason = f"not of source {' or '.join(sources)}"
        else:
            chosen.append(number)
            continue
        losses[reason] = losses.get(reason, 0) + len(shard)
    return chosen


def _names(names: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """One name or several, deduplicated and sorted, so that equal choices are equal."""
    if names is None:
        return None
    return (names,) if isinstance(names, str) else tuple(sorted(set(names)))


def _check_numbers(least: int | None, most: int | None, seed: int | None) -> None:
    if least is not None and least < 0:
        raise RecipeError(f"min_tokens is {least}: expected 0 or more")
    if most is not None and most < 1:
        raise RecipeError(f"max_tokens is {most}: expected at least 1")
    if least is not None and most is not None and most < least:
        raise RecipeError(f"max_tokens is {most}: expected at least min_tokens, {least}")
    if seed is not None and (isinstance(seed, bool) or not 0 <= seed < 2**63):
        raise RecipeError(f"shuffle_documents is {seed}: expected a seed, 0 <= seed < 2**63, or None")


def _check_lengths(store: StoreReader, lengths: np.ndarray) -> None:
    if len(lengths) and int(lengths.min()) < 1:
        raise CorruptStore(
            f"{store.path}: expected documents of at least 1 token, found one of {int(lengths.min()):,}",
            hint="an index is damaged; packline verify says which",
        )
