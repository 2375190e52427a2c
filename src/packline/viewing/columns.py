"""Columns of documents: their values as text, summaries, distributions for the heads of tables.

    url                 string        0   over 1,000 different: 'https://a.org/1', ...
    score               float        12   0.02 to 4.99, mean 2.51
    metadata.language   string        0   3 different: 'en' 60%, 'de' 20%, 'fr' 20%

Summaries read at most `MOST_DOCUMENTS` documents and distributions `MOST_COUNTED`, from shards spread evenly
over each source; of a larger store they are a sample, and say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from packline.store.reader import StoreReader, shard_labels
from packline.viewing.page import Table, table_of
from packline.viewing.text import cut, percent, visible

if TYPE_CHECKING:
    import pyarrow as pa

    from packline.store.provenance import Provenance


MOST_DOCUMENTS = 1 << 20
MOST_SHARDS = 256
MOST_VALUES = 1000
SHOWN_VALUES = 5
LONGEST_VALUE = 60


def value_text(value: Any, most: int | None = None) -> str:
    """A value of a carried column as text, in one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat(" ").removesuffix("+00:00") + " UTC"
    text = value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else repr(value)
    text = visible(text) if isinstance(value, str) else text
    return text if most is None or len(text) <= most else f"{text[: most - 1]}…"


def column_facts(provenance: Provenance) -> tuple[tuple[str, str], ...]:
    facts = [] if provenance.hash is None else [("hash", f"{provenance.hash:016x}")]
    facts += [(name, value_text(value)) for name, value in provenance.columns.items()]
    return tuple(facts)


@dataclass(slots=True)
class ColumnCounts:
    """Summary of one column: all values of one name and type."""

    name: str
    type: str
    sources: list[str] = field(default_factory=list)
    documents: int = 0
    nulls: int = 0
    lowest: Any = None
    highest: Any = None
    mean: float | None = None
    values: dict[Any, int] | None = field(default_factory=dict)
    """Documents by value; None for more than `MOST_VALUES` different ones."""
    first: Any = None
    sampled: bool = False
    """True if some documents of its sources were left out."""

    def add(self, column: pa.ChunkedArray) -> None:
        import pyarrow.compute as pc

        known = len(column) - column.null_count
        before = self.documents - self.nulls
        self.documents += len(column)
        self.nulls += column.null_count
        if not known:
            return
        if self.first is None:
            self.first = pc.drop_null(column)[0].as_py()
        if self.type in ("integer", "float", "timestamp"):
            edges = pc.min_max(column).as_py()
            self.lowest = edges["min"] if self.lowest is None else min(self.lowest, edges["min"])
            self.highest = edges["max"] if self.highest is None else max(self.highest, edges["max"])
        if self.type in ("integer", "float"):
            mean = pc.mean(column).as_py()
            self.mean = (
                mean if self.mean is None else self.mean + (mean - self.mean) * known / (before + known)
            )
        elif self.type != "timestamp" and self.values is not None:
            self._tally(column)

    def _tally(self, column: pa.ChunkedArray) -> None:
        import pyarrow.compute as pc

        assert self.values is not None
        counts = pc.value_counts(pc.drop_null(column))
        if len(counts) <= MOST_VALUES:
            for one in counts.to_pylist():
                self.values[one["values"]] = self.values.get(one["values"], 0) + one["counts"]
        if len(counts) > MOST_VALUES or len(self.values) > MOST_VALUES:
            self.values = None

    @property
    def described(self) -> str:
        if self.nulls == self.documents:
            return "null only"
        if self.lowest is not None:
            mean = "" if self.mean is None else f", mean {self.mean:,.4g}"
            return f"{value_text(self.lowest)} to {value_text(self.highest)}{mean}"
        if self.values is None:
            return f"over {MOST_VALUES:,} different: {value_text(self.first, LONGEST_VALUE)}, …"
        ordered = sorted(self.values.items(), key=lambda item: (-item[1], str(item[0])))
        if len(ordered) == 1:
            return f"{value_text(ordered[0][0], LONGEST_VALUE)} only"
        known = self.documents - self.nulls
        shown = [
            f"{value_text(value, 24)} {percent(count / known)}" for value, count in ordered[:SHOWN_VALUES]
        ]
        more = ", …" if len(ordered) > SHOWN_VALUES else ""
        return f"{len(ordered):,} different: {', '.join(shown)}{more}"

    def as_json(self) -> dict[str, Any]:
        values = None if self.values is None or self.lowest is not None else len(self.values)
        edges = [
            value.isoformat() if isinstance(value, datetime) else value
            for value in (self.lowest, self.highest)
        ]
        return {
            "name": self.name,
            "type": self.type,
            "sources": self.sources,
            "documents": self.documents,
            "sampled": self.sampled,
            "nulls": self.nulls,
            "lowest": edges[0],
            "highest": edges[1],
            "mean": self.mean,
            "different": values,
        }


def count_columns(store: StoreReader) -> list[ColumnCounts]:
    """Count the values of all carried columns, in the order of sources and recipe."""
    if not any(source.columns for source in store.manifest.recipe.sources):
        return []
    found: dict[tuple[str, str], ColumnCounts] = {}
    chosen = list(chosen_shards(store, MOST_DOCUMENTS))
    sampled = sampled_sources(store, chosen)
    for source, number in chosen:
        file = store.shards[number].open_provenance()
        for name, type in file.carried:
            counts = found.setdefault((name, type), ColumnCounts(name, type))
            if source not in counts.sources:
                counts.sources.append(source)
                counts.sampled |= source in sampled
        for _, table in file.groups([name for name, _ in file.carried]) if file.carried else ():
            for name, type in file.carried:
                found[name, type].add(table[name])
    return list(found.values())


def chosen_shards(store: StoreReader, most_documents: int) -> Iterator[tuple[str, int]]:
    """Source and number of shards, spread evenly over each source, up to about a number of documents."""
    by_source: dict[str, list[int]] = {}
    for number, origin in enumerate(shard_labels(store)):
        by_source.setdefault(origin.source, []).append(number)
    for source, numbers in by_source.items():
        most, documents = max(MOST_SHARDS // len(by_source), 1), 0
        places = np.unique(np.linspace(0, len(numbers) - 1, min(most, len(numbers))).astype(np.int64))
        for place in places.tolist():
            if documents and documents + len(store.shards[numbers[place]]) > most_documents // len(by_source):
                break
            documents += len(store.shards[numbers[place]])
            yield source, numbers[place]


def sampled_sources(store: StoreReader, chosen: Sequence[tuple[str, int]]) -> set[str]:
    """Sources of which some shards are not among the chosen ones."""
    left = Counter(origin.source for origin in shard_labels(store))
    left.subtract(source for source, _ in chosen)
    return set(+left)


def column_table(store: StoreReader, counts: Sequence[ColumnCounts]) -> list[Table]:
    if not counts:
        return []
    several = len(store.manifest.sources) > 1
    table = table_of(
        "Columns, of a sample of the documents" if any(one.sampled for one in counts) else "Columns",
        ("column", "l", [one.name for one in counts]),
        ("type", "l", [one.type for one in counts]),
        ("sources", "l", [cut(", ".join(one.sources), LONGEST_VALUE) if several else "" for one in counts]),
        ("documents", "r", [f"{one.documents:,}" for one in counts]),
        ("null", "r", [f"{one.nulls:,}" if one.nulls else "none" for one in counts]),
        ("values", "l", [one.described for one in counts]),
    )
    return [table]


MOST_COUNTED = 1 << 18
BINS = 12
SKEWED = 20
"""Ratio of the largest number to the median from which a scale of powers of two is used."""
TOP_VALUES = 3
EACH_ONCE = "each value once"
OF_A_SAMPLE = ", of a sample"
"""End of the description where documents were left out."""
LONGEST_NAME = 16


@dataclass(frozen=True, slots=True)
class ColumnBars:
    """Distribution of one column."""

    counts: tuple[int, ...]
    described: str
    top: tuple[tuple[Any, str], ...] = ()
    """The most frequent of few values, and their shares."""


def measure_columns(store: StoreReader, documents: np.ndarray | None = None) -> dict[str, ColumnBars]:
    """Distributions of the columns of a store's documents, fixed and carried, by name."""
    found: dict[str, list[pa.Array]] = {}
    chosen = list(chosen_shards(store, MOST_COUNTED))
    note = OF_A_SAMPLE if sampled_sources(store, chosen) else ""
    for _, number in chosen:
        first = int(store.firsts[number])
        for _, table in store.shards[number].open_provenance().groups():
            last = first + len(table)
            if documents is not None:
                start, stop = documents.searchsorted((first, last))
                table = table.take(documents[start:stop] - first)
            first = last
            for name in table.column_names:
                found.setdefault(name, []).extend(table[name].chunks)
    measured = {name: bars for name, chunks in found.items() if (bars := bars_of(chunks)) is not None}
    return {name: replace(bars, described=bars.described + note) for name, bars in measured.items()}


def bars_of(chunks: Sequence[pa.Array]) -> ColumnBars | None:
    """Distribution of values; None without a value, or if its parts have several types."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chunks = [one.dictionary_decode() if pa.types.is_dictionary(one.type) else one for one in chunks]
    if len({str(one.type) for one in chunks}) != 1:
        return None
    column = pc.drop_null(pa.chunked_array(chunks))
    if not len(column):
        return None
    if pa.types.is_timestamp(column.type):
        return _of_numbers(column.cast(pa.int64()).to_numpy(), _ends(column))
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return _of_numbers(column.to_numpy(), _ends(column))
    counts = pc.value_counts(column.combine_chunks())
    if len(counts) > MOST_VALUES:
        lengths = _of_numbers(pc.utf8_length(column).to_numpy(), "")
        return ColumnBars(lengths.counts, f"over {MOST_VALUES:,} values; lengths of texts{lengths.described}")
    ordered = sorted(counts.to_pylist(), key=lambda one: (-one["counts"], str(one["values"])))
    top = tuple((one["values"], percent(one["counts"] / len(column))) for one in ordered[:TOP_VALUES])
    shown = ", ".join(f"{value_text(value, LONGEST_NAME)} {share}" for value, share in top)
    more = ", …" if len(ordered) > TOP_VALUES else ""
    noun = "value" if len(ordered) == 1 else "values"
    few = top if len(ordered) < len(column) else ()  # ids, each of which occurs once, are no choice
    described = f"{len(ordered):,} {noun}: {shown}{more}" if few or len(column) == 1 else EACH_ONCE
    return ColumnBars(tuple(one["counts"] for one in ordered[:BINS]), described, few)


def _ends(column: pa.ChunkedArray) -> str:
    import pyarrow.compute as pc

    ends = pc.min_max(column).as_py()
    low, high = value_text(ends["min"]), value_text(ends["max"])
    return f"{low} to {high}" if low != high else f"{low} only"


def _of_numbers(values: np.ndarray, described: str) -> ColumnBars:
    """Histogram of numbers: each value if there are few, powers of two if skewed, else equal ranges."""
    values = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if not len(values):
        return ColumnBars((), "no finite number")
    low, high = values.min(), values.max()
    if low == high:
        return ColumnBars((len(values),), described)
    if values.dtype.kind in "iu" and high - low < BINS:
        return ColumnBars(tuple(np.bincount((values - low).astype(np.int64)).tolist()), described)
    if low >= 0 and high > SKEWED * max(float(np.median(values)), 1.0):
        edges = np.concatenate([[0.0], np.geomspace(1, float(high), BINS)])
        return ColumnBars(
            tuple(np.histogram(values, edges)[0].tolist()), f"{described}, log scale".lstrip(", ")
        )
    return ColumnBars(tuple(np.histogram(values, BINS)[0].tolist()), described)
