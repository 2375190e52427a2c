"""Selections: which documents of a store take part, and in which order.

    store.documents    0 1 2 3 4 5 6 7 8 9     train train train train | val val val | train train train
    split="train"      0 1 2 3 7 8 9           whole shards: a ShardRange
    min_tokens=100     0   2   7   9           a list of numbers, made in one pass
    shuffle            9   2   0   7

The position of a document in the last line is its place; packings and all behind them know places alone.
Split, labels and sources choose whole shards; such a selection, in stored order, is closed form. Any other is
one list, 4 bytes per document, of a large selection a plan on disk (`cache`). Filters apply one after
another, and a document is counted under the first that removes it; of a condition `a and b`, under the first
term that fails.

Cost: a pass over the lengths at memory speed. Only columns that a condition names are decoded, in as many
threads as there are cores, which end with the pass, so that nothing runs when a process forks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from packline.errors import RecipeError, StoreError
from packline.fingerprint import hash_value
from packline.packing.cache import Plan, Plans, find_plan, place_type
from packline.packing.offsets import ShardPlaces, ShardRange, all_shards
from packline.packing.options import DocumentFilter, check_options
from packline.permutation import Permutation
from packline.storage.places import refuse_remote
from packline.storage.requests import in_threads
from packline.store.lookup import check_names, read_group, stored_types
from packline.store.reader import StoreReader, shard_labels
from packline.where.conditions import Condition, Joined, conjunction, fields_of, in_words, parse_where

if TYPE_CHECKING:
    from packline.packing.exclusions import ExclusionList

TRAIN = DocumentFilter()
SHUFFLE_KEY = 1
"""Separates the shuffle of documents from other permutations with the same seed."""
BLOCK = 1 << 20
MOST_TERMS = 100
"""Terms of a condition that are counted separately."""
COLUMN_COST = 32
"""A pass over columns takes as long as one over this many times as many lengths: smaller plans are kept."""


class LeftOut(msgspec.Struct, frozen=True):
    by: str
    """The filter in words: `where score >= 3`, `exclude leaked.parquet`, `duplicates`."""
    documents: int
    tokens: int


class Selection:
    """Selected documents of a store, D of them, in their order.

    >>> Selection("no store", DocumentFilter(min_tokens=9, max_tokens=5))
    Traceback (most recent call last):
    packline.errors.RecipeError: max_tokens is 5: expected at least min_tokens, 9
    """

    def __init__(
        self,
        store: StoreReader,
        choice: DocumentFilter = TRAIN,
        *,
        plans: Plans = None,
    ) -> None:
        choice = check_options(choice).canonical()
        if isinstance(plans, str | Path):
            refuse_remote(plans, "a plan")
        self.store, self.plans = store, plans
        self.settings: dict[str, Any] = msgspec.structs.asdict(choice)
        """Requested settings in a canonical form: equal settings choose equal documents."""
        self._terms, self._lists = _terms(choice.where), _lists(choice.exclude)
        check_names(store, [name for term in self._terms for name in fields_of(term)])
        others = choice.unique if isinstance(choice.unique, tuple) else ()
        self._others = [StoreReader(path) for path in others]
        self.identity: dict[str, Any] = selection_identity(choice) | {
            "exclude": sorted({one.checksum for one in self._lists}),
            "unique": sorted({one.manifest.checksum for one in self._others}) if choice.unique else None,
        }
        """The settings with the contents of files and other stores in place of their paths."""
        contents = {
            "exclude": [f"{one.name} ({one.checksum[:8]})" for one in self._lists],
            "unique": [f"{Path(one.place).name} ({one.manifest.checksum[:8]})" for one in self._others],
        }
        contents = {name: words for name, words in contents.items() if words}
        self.contents: tuple[str, ...] = tuple(contents)
        """Settings whose meaning is the content of files or other stores."""
        self.described: dict[str, Any] = {
            name: value
            for name, value in (self.settings | contents).items()
            if value not in (None, False, "train")
        }
        """Settings that are not the default, in words; lists and other stores with checksums."""
        self.fingerprint: str = hash_value({"store": store.manifest.checksum, "selection": self.identity})
        losses: dict[str, int] = {}
        self._range = ShardRange(store, _choose_shards(store, self.settings, losses))
        self.tokens: int = self._range.tokens
        self.left_out: tuple[LeftOut, ...] = ()
        """Documents of these splits, labels and sources that a filter removed, by filter."""
        self.notes: tuple[str, ...] = ()
        self._listed: np.ndarray | None = None
        """Numbers of the documents in their order; None for whole shards in stored order."""
        self._reads_columns = bool(self._terms or self._lists or choice.unique)
        """True if provenance is read, and not lengths alone."""
        lengths = choice.min_tokens is not None or choice.max_tokens is not None
        self._is_filtered = lengths or self._reads_columns
        if len(self._range) and (self._is_filtered or choice.shuffle_documents is not None):
            self._listed = self._list_documents(losses)
        self._count = len(self._range) if self._listed is None else len(self._listed)
        if not self._count:
            taken = ", ".join(f"{count:,} {reason}" for reason, count in losses.items() if count)
            raise StoreError(
                f"{store.place}: no document is left of {store.manifest.documents:,}: {taken}",
                hint="loosen a filter; packline info shows sources, splits and lengths",
            )

    def __len__(self) -> int:
        return self._count

    @property
    def stored(self) -> ShardRange | None:
        """The selection as a run of whole shards, if it is one: then everything about it is closed form."""
        return self._range if self._listed is None else None

    def documents(self, places: np.ndarray) -> np.ndarray:
        if self._listed is None:
            return self._range.documents(places)
        return self._listed[places].astype(np.int64)

    def places(self, documents: np.ndarray) -> np.ndarray:
        """Places of these documents, int64 `[N]` to int64 `[N]`; -1 for a document that is not selected."""
        if self._listed is None:
            return self._range.places(np.asarray(documents, np.int64))
        wanted, sorter = documents.astype(self._listed.dtype), self._sorter
        at = np.minimum(self._listed.searchsorted(wanted, sorter=sorter), self._count - 1)
        at = at if sorter is None else sorter[at]
        return np.where(self._listed[at] == wanted, at, -1)

    def at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Facts of the documents at these places, int64 `[N]` each: numbers, begins, sizes; see `Spans`."""
        documents = self.documents(places)
        return documents, *self._range.at(documents)

    def lengths(self, start: int, stop: int) -> np.ndarray:
        if self._listed is None:
            return self._range.lengths(start, min(stop, self._count))
        return self.at(np.arange(start, min(stop, self._count)))[2]

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[np.ndarray]:
        """Lengths of the documents at places `start` to `stop` in order, in blocks, int64."""
        end = self._count if stop is None else stop
        for first in range(start, end, BLOCK):
            yield self.lengths(first, min(first + BLOCK, end))

    def units(self) -> Iterator[tuple[str, int]]:
        """Name of the unit of each selected shard, and the number of documents selected before it.

        Only for documents in stored order.
        """
        firsts, shards = self._range.first_places, self._range.numbers
        if self._listed is not None:
            firsts = self._listed.searchsorted(self.store.firsts[shards].astype(self._listed.dtype))
        for number, first in zip(shards, firsts.tolist(), strict=True):
            yield self.store.shards[number].entry.name.partition("-")[2], first

    def __repr__(self) -> str:
        chosen = [f"{name}={value!r}" for name, value in self.settings.items() if value not in (None, False)]
        return (
            f"<{self._count:,} documents, {self.tokens:,} tokens of {self.store.place}: {', '.join(chosen)}>"
        )

    @cached_property
    def _sorter(self) -> np.ndarray | None:
        """Places of the list in the order of documents; None if they are in order."""
        if self.settings["shuffle_documents"] is None or self._listed is None:
            return None
        return self._listed.argsort()

    def _list_documents(self, losses: dict[str, int]) -> np.ndarray:
        size = 4 * len(self._range) * (COLUMN_COST if self._reads_columns else 1)
        settings = {"documents": self.identity}
        plan = find_plan(self.store, self.plans, settings, self._make_list, size=size)
        self.left_out = tuple(LeftOut(*counts) for counts in plan.facts["left_out"] if counts[1])
        losses |= {one.by: one.documents for one in self.left_out}
        self.notes, self.tokens = tuple(plan.facts["notes"]), plan.facts["tokens"]
        return plan.arrays["documents"]

    def _make_list(self) -> Plan:
        parts, seed = self._range.parts(), self.settings["shuffle_documents"]
        places = np.arange(len(self._range), dtype=place_type(len(self._range)))
        facts: dict[str, Any] = {"tokens": self._range.tokens, "left_out": [], "notes": []}
        if self._is_filtered:
            places, facts = self._filter(parts)
        documents = self._range.documents(places).astype(place_type(self.store.manifest.documents))
        if seed is not None and len(documents):
            documents = documents[Permutation(len(documents), SHUFFLE_KEY, seed)(np.arange(len(documents)))]
        return Plan({"documents": documents}, facts)

    def _filter(self, every: Sequence[ShardPlaces]) -> tuple[np.ndarray, dict[str, Any]]:
        """Places of the documents that are left, sorted integers; and counts by reason, as JSON values."""
        least, most = self.settings["min_tokens"] or 0, self.settings["max_tokens"] or 0
        reasons = np.zeros(every[-1].stop, np.uint8)
        # Only the new shards of a growing store are filtered; the reasons of earlier ones are kept.
        memory = self.plans if isinstance(self.plans, dict) else {}
        known = memory.get(key := hash_value(self.identity), reasons[:0])
        reasons[: len(known)] = known
        parts = [part for part in every if part.start >= len(known)]
        names = [f"shorter than min_tokens {least:,}", f"longer than max_tokens {most:,}"]
        for part in parts:
            lengths, here = part.shard.lengths, reasons[part.start : part.stop]
            if least:
                here[lengths < least] = 1
            if most:
                here[lengths > most] = 2
        names += [f"where {in_words(term)}" for term in self._terms]
        if self._terms:
            for _ in in_threads(lambda part: self._by_columns(part, reasons), parts):
                pass
        for one in self._lists:
            names.append(f"exclude {one.name}")
            places = self._range.places(one.documents_in(self.store))
            places = places[places >= 0]
            reasons[places[reasons[places] == 0]] = len(names)
        if self.settings["unique"]:
            from packline.packing.exclusions import repeated_texts

            others = [part for store in self._others for part in all_shards(store).parts()]
            repeated = repeated_texts(others, every, reasons)
            names.append("duplicates")
            reasons[repeated.own] = len(names)
            if self._others:
                names.append(f"texts of {', '.join(str(one.place) for one in self._others)}")
                reasons[repeated.foreign] = len(names)
        memory[key] = reasons
        return self._kept(every, reasons, names)

    def _by_columns(self, part: ShardPlaces, reasons: np.ndarray) -> None:
        from packline.where.columns import check_columns, column_mask

        file = part.shard.open_provenance()
        types = stored_types(file, [name for term in self._terms for name in fields_of(term)])
        for term in self._terms:
            check_columns(term, types, str(file.path))
        start = part.start
        for group, rows in enumerate(file.rows):
            here = reasons[start : start + rows]
            columns: dict[str, Any] = {}
            for code, term in enumerate(self._terms, 3):
                if here.all():
                    break
                needed = [name for name in fields_of(term) if name not in columns]
                columns |= read_group(file, group, {name: types[name] for name in needed})
                failed = ~column_mask(term, columns)
                failed &= here == 0
                here[failed] = code
            start += rows

    def _kept(
        self, parts: Sequence[ShardPlaces], reasons: np.ndarray, names: list[str]
    ) -> tuple[np.ndarray, dict[str, Any]]:
        documents, tokens = np.zeros((2, len(names) + 1), np.int64)
        for part in parts:
            here = reasons[part.start : part.stop]
            documents += np.bincount(here, minlength=len(documents))
            tokens += np.bincount(here, part.shard.lengths, len(documents)).astype(np.int64)
        dtype = place_type(len(reasons))
        kept = [
            (np.flatnonzero(reasons[start : start + BLOCK] == 0) + start).astype(dtype)
            for start in range(0, len(reasons), BLOCK)
        ]
        left_out = [list(one) for one in zip(names, documents[1:].tolist(), tokens[1:].tolist(), strict=True)]
        notes = [note for one in self._lists if (note := one.note)]
        facts = {"tokens": int(tokens[0]), "left_out": left_out, "notes": notes}
        return np.concatenate([np.empty(0, dtype), *kept]), facts


def _choose_shards(store: StoreReader, settings: dict[str, Any], losses: dict[str, int]) -> list[int]:
    """Numbers of the shards with the requested split, labels and sources; counts the other documents."""
    if not store.manifest.documents:
        raise StoreError(f"{store.place} is empty: expected at least one document, found none")
    split, labels, sources = settings["split"], settings["labels"], settings["sources"]
    splits = store.manifest.shards.names("split")
    if split not in ("all", *splits):
        raise RecipeError(
            f"split is {split!r}: expected one of {', '.join(sorted(set(splits)))}, all in {store.place}",
            hint=""
            if split not in ("val", "test")
            else f"{split}_fraction in the recipe of a build makes a split {split}",
        )
    whence = shard_labels(store)
    check_known(str(store.place), "label", labels, {origin.label for origin in whence})
    check_known(str(store.place), "source", sources, {origin.source for origin in whence})
    chosen = [
        number
        for number, (found, origin) in enumerate(zip(splits, whence, strict=True))
        if split in ("all", found)
        and (labels is None or origin.label in labels)
        and (sources is None or origin.source in sources)
    ]
    counts = np.diff(store.firsts)
    losses["of another split, label or source"] = int(counts.sum() - counts[np.array(chosen, np.int64)].sum())
    return chosen


def check_known(where: str, what: str, wanted: Sequence[str] | None, known: Iterable[str | None]) -> None:
    """Refuse a label or source that is not known."""
    names = sorted(name for name in known if name is not None)
    for name in wanted or ():
        if name not in names:
            raise RecipeError(
                f"{where} has no {what} {name!r}: expected {' or '.join(map(repr, names)) or 'none'}"
            )


def selection_identity(choice: DocumentFilter) -> dict[str, Any]:
    """Everything that a choice without lists and other stores depends on, apart from the store."""
    choice = choice.canonical()
    return msgspec.structs.asdict(choice) | {
        "min_tokens": choice.min_tokens or 0,
        "where": [str(term) for term in _terms(choice.where)],
        "exclude": [],
        "unique": None,
    }


def _lists(paths: str | Sequence[str] | None) -> list[ExclusionList]:
    if not paths:
        return []
    from packline.packing.exclusions import ExclusionList  # with Parquet, which most selections do not need

    return [ExclusionList(path) for path in paths]


def _terms(where: str | None) -> list[Condition]:
    if where is None:
        return []
    terms = list(conjunction(parse_where(where)))
    if len(terms) > MOST_TERMS:
        terms = [*terms[: MOST_TERMS - 1], Joined("and", tuple(terms[MOST_TERMS - 1 :]))]
    return terms
