"""Distributions of the columns of documents, small enough for the head of a table.

    tokens      ▁▃█▇▂▁       2 to 81,230, log scale
    score       ▂▅█▆▃        0.02 to 4.99
    language    █▅▂          3 values: en 60%, de 20%, fr 20%
    url         ▁▂█▃         lengths of texts, 18 to 301 characters

Cost: one pass over at most `MOST_DOCUMENTS` documents, from shards spread evenly over each source; of a
larger store that is a sample, as its descriptions say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from packline.store.reader import StoreReader
from packline.viewing.columns import MOST_VALUES, chosen_shards, sampled_sources, value_text
from packline.viewing.text import percent

if TYPE_CHECKING:
    import pyarrow as pa

MOST_DOCUMENTS = 1 << 18
BINS = 12
SKEWED = 20
"""Ratio of the largest number to the median from which a scale of powers of two is used."""
TOP_VALUES = 3
EACH_ONCE = "each value once"
"""Description of a column without repeated values."""
OF_A_SAMPLE = ", of a sample"
"""End of the description where documents were left out."""
LONGEST_VALUE = 16


@dataclass(frozen=True, slots=True)
class ColumnBars:
    """Distribution of one column."""

    counts: tuple[int, ...]
    """Documents in each class."""
    described: str
    """The distribution in words."""
    top: tuple[tuple[Any, str], ...] = ()
    """The most frequent of few values, and their shares."""


def measure_columns(store: StoreReader) -> dict[str, ColumnBars]:
    """Distributions of the columns of a store's documents, fixed and carried, by name.

    Raises:
        CorruptStore: provenance cannot be read.
    """
    found: dict[str, list[pa.Array]] = {}
    chosen = list(chosen_shards(store, MOST_DOCUMENTS))
    note = OF_A_SAMPLE if sampled_sources(store, chosen) else ""
    for _, number in chosen:
        for _, table in store.shards[number].open_provenance().groups():
            for name in table.column_names:
                found.setdefault(name, []).extend(table[name].chunks)
    measured = {name: bars for name, chunks in found.items() if (bars := bars_of(chunks)) is not None}
    return {name: replace(bars, described=bars.described + note) for name, bars in measured.items()}


def bars_of(chunks: Sequence[pa.Array]) -> ColumnBars | None:
    """Distribution of values; None without a value, or if its parts have several types.

    >>> import pyarrow as pa
    >>> bars_of([pa.array([1, 2, 2, None])])
    ColumnBars(counts=(1, 2), described='1 to 2', top=())
    >>> bars_of([pa.array(["de", "en", "en"])]).described
    '2 values: en 66.7%, de 33.3%'
    """
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
    shown = ", ".join(f"{value_text(value, LONGEST_VALUE)} {share}" for value, share in top)
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
