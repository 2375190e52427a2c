"""Filters of documents: by length, by a condition on columns, by lists, and by equal texts.

    documents      0    1    2    3    4    5
    min_tokens     .    short                            lengths, mapped
    where          .         score .    .    .           columns of docs.parquet, shard by shard
    exclude        .              list  .    .           places that a list names
    unique         .                    .    same        hash and size of texts, in the order of documents
    kept           0                    4

A document is counted under the first filter that removes it, in this order; of a condition `a and b`, under
the first term that fails. The result is the places that are left, 4 bytes each: kept as a plan for larger
stores (`packing.cache`), found by the checksums of the store, of the lists and of the other stores, and so
made again as soon as one of them changes.

Cost: only columns that a condition names are decoded, and of a carried column only row groups that its least
and greatest value do not decide; in as many threads as there are cores, which end with the pass, so that
nothing runs when a process forks. A file of provenance is compared with its checksum first, at memory speed.
Memory: one byte per document, one row group per thread, and what `uniqueness` needs.

Passes over the provenance of many shards: their documents as ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from packline.errors import CorruptStore
from packline.packing.options import DocumentFilter
from packline.storage.requests import in_threads
from packline.store.lookup import check_names, read_group, stored_types
from packline.store.provenance import ProvenanceFile
from packline.store.reader import StoreReader
from packline.store.shard import Shard
from packline.where.conditions import Condition, Joined, conjunction, fields_of, in_words
from packline.where.grammar import parse_where


class ShardPlaces(NamedTuple):
    """A shard, and the range of its documents among those of a pass."""

    shard: Shard
    number: int
    """Number of the shard in its store."""
    start: int
    stop: int


if TYPE_CHECKING:
    from packline.packing.exclusions import ExclusionList

MOST_TERMS = 100
"""Terms of a condition that are counted separately."""
COLUMN_COST = 32
"""A pass over columns takes as long as one over this many times as many lengths: smaller plans are kept."""
BLOCK = 1 << 20
"""Documents per step of a pass: 8 MB of lengths."""


class LeftOut(msgspec.Struct, frozen=True):
    """Documents that a filter removed."""

    by: str
    """The filter in words: `where score >= 3`, `exclude leaked.parquet`, `duplicates`."""
    documents: int
    tokens: int


def filter_identity(choice: DocumentFilter) -> dict[str, Any]:
    """Everything that the result depends on, of filters without lists and other stores."""
    least = choice.min_tokens or 0
    return {
        "min_tokens": least if least > 1 else 0,
        "max_tokens": choice.max_tokens,
        "where": [str(term) for term in _terms(choice.where)],
        "exclude": [],
        "unique": None,
    }


class Filters:
    """Filters of a choice, with everything opened that they refer to.

    Args:
        store: an opened store.
        choice: documents of it.

    Raises:
        RecipeError: an invalid condition, or a column that the store does not have.
        StoreError: another store, or a list, cannot be read.
    """

    def __init__(self, store: StoreReader, choice: DocumentFilter) -> None:
        self._store = store
        self._least, self._most = choice.min_tokens or 0, choice.max_tokens
        if self._least <= 1:
            self._least = 0
        self._terms = _terms(choice.where)
        check_names(store, [name for term in self._terms for name in fields_of(term)])
        self._lists = _lists(choice.exclude)
        self._unique = bool(choice.unique)
        others = choice.unique if isinstance(choice.unique, tuple) else ()
        self._others = [StoreReader(path) for path in others]
        self.identity: dict[str, Any] = filter_identity(choice) | {
            "exclude": sorted({one.checksum for one in self._lists}),
            "unique": sorted({one.manifest.checksum for one in self._others}) if self._unique else None,
        }
        """Everything that the result depends on, apart from the store: contents in place of paths."""
        self.described: dict[str, Any] = {}
        """Lists and other stores in words: name and the first digits of the checksum."""
        if self._lists:
            self.described["exclude"] = [f"{one.name} ({one.checksum[:8]})" for one in self._lists]
        if self._others:
            stores = [f"{Path(one.place).name} ({one.manifest.checksum[:8]})" for one in self._others]
            self.described["unique"] = stores

    def __bool__(self) -> bool:
        return bool(self._least or self._most is not None or self.reads_columns)

    @property
    def reads_columns(self) -> bool:
        """True if provenance is read, and not lengths alone."""
        return bool(self._terms or self._lists or self._unique)

    @property
    def _reasons(self) -> list[str]:
        """Reasons in words, in the order in which filters apply."""
        least, most = self._least, self._most or 0
        return [
            f"shorter than min_tokens {least:,}",
            f"longer than max_tokens {most:,}",
            *(f"where {in_words(term)}" for term in self._terms),
            *(f"exclude {one.name}" for one in self._lists),
            *(("duplicates",) if self._unique else ()),
            *((f"texts of {', '.join(str(one.place) for one in self._others)}",) if self._others else ()),
        ]

    def apply(self, parts: Sequence[ShardPlaces]) -> tuple[np.ndarray, dict[str, Any]]:
        """Places of the documents that are left, sorted integers; and counts by reason, as JSON values.

        Raises:
            RecipeError: a comparison that the type of a column does not have; a list that does not fit.
            CorruptStore: damaged lengths or provenance.
        """
        reasons = np.zeros(parts[-1].stop if parts else 0, np.uint8)
        self._by_length(parts, reasons)
        if self._terms:
            for _ in in_threads(lambda part: self._by_columns(part, reasons), parts):
                pass
        code = 3 + len(self._terms)
        for number, one in enumerate(self._lists):
            self._by_list(parts, reasons, one.documents_in(self._store), code + number)
        if self._unique:
            self._by_text(parts, reasons, code + len(self._lists))
        return self._kept(parts, reasons)

    def _by_length(self, parts: Sequence[ShardPlaces], reasons: np.ndarray) -> None:
        for part in parts:
            lengths = part.shard.lengths
            if len(lengths) and int(lengths.min()) < 1:
                raise CorruptStore(
                    f"{self._store.place}: expected documents of at least 1 token,"
                    f" found one of {int(lengths.min()):,}",
                    hint="an index is damaged; packline verify reports which",
                )
            here = reasons[part.start : part.stop]
            if self._least:
                here[lengths < self._least] = 1
            if self._most is not None:
                here[lengths > self._most] = 2

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
                answer = _answer(file, group, term)
                if answer is False:
                    here[here == 0] = code
                if answer is not None:
                    continue
                needed = [name for name in fields_of(term) if name not in columns]
                columns |= read_group(file, group, {name: types[name] for name in needed})
                failed = ~column_mask(term, columns)
                failed &= here == 0
                here[failed] = code
            start += rows

    def _by_list(
        self, parts: Sequence[ShardPlaces], reasons: np.ndarray, documents: np.ndarray, code: int
    ) -> None:
        """Mark documents by their numbers in the store."""
        for part in parts:
            first = int(self._store.firsts[part.number])
            inside = documents[slice(*documents.searchsorted([first, first + len(part.shard)]).tolist())]
            places = inside - first + part.start
            reasons[places[reasons[places] == 0]] = code

    def _by_text(self, parts: Sequence[ShardPlaces], reasons: np.ndarray, code: int) -> None:
        others = [
            ShardPlaces(shard, number, 0, len(shard))
            for store in self._others
            for number, shard in enumerate(store.shards)
        ]
        from packline.packing.exclusions import repeated_texts

        repeated = repeated_texts(others, parts, reasons)
        reasons[repeated.own] = code
        reasons[repeated.foreign] = code + 1

    def _kept(self, parts: Sequence[ShardPlaces], reasons: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        names = self._reasons
        documents = np.zeros(len(names) + 1, np.int64)
        tokens = np.zeros(len(names) + 1, np.int64)
        for part in parts:
            here = reasons[part.start : part.stop]
            documents += np.bincount(here, minlength=len(documents))
            tokens += np.bincount(here, part.shard.lengths, len(documents)).astype(np.int64)
        dtype = np.dtype("<u4" if len(reasons) < 2**32 else "<i8")
        kept = [
            (np.flatnonzero(reasons[start : start + BLOCK] == 0) + start).astype(dtype)
            for start in range(0, len(reasons), BLOCK)
        ]
        left_out = [
            [name, count, lost]
            for name, count, lost in zip(names, documents[1:].tolist(), tokens[1:].tolist(), strict=True)
        ]
        notes = [note for one in self._lists if (note := one.note)]
        facts = {"tokens": int(tokens[0]), "left_out": left_out, "notes": notes}
        return np.concatenate([np.empty(0, dtype), *kept]), facts


def _answer(file: ProvenanceFile, group: int, term: Condition) -> bool | None:
    """Answer for a whole row group, if the statistics of its column decide it."""
    from packline.where.columns import known_answer

    names = fields_of(term)
    if len(names) > 1 or names[0] not in dict(file.carried):
        return None
    bounds = file.bounds(group, names[0])
    return None if bounds is None else known_answer(term, *bounds)


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
