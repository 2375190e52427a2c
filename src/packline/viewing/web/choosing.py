"""Selections of documents for pages: filtered, sorted and packed in bounded time, and nothing written.

Results are kept for the next pages. Of stores that would take longer than about a second, a page shows what
to run instead.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from packline.errors import RecipeError, did_you_mean
from packline.packing.best_fit import planned_folder
from packline.packing.options import DocumentFilter, RowOptions
from packline.packing.rows import Rows, check_seq_len
from packline.packing.selection import Selection
from packline.store.lookup import column_names
from packline.store.provenance import documents_schema
from packline.store.reader import StoreReader
from packline.viewing.columns import ColumnBars, measure_columns

HELD = 16
FILTERED_MOST = 1 << 23
"""Maximum documents of a store that a page filters."""
SORTED_MOST = 1 << 22
"""Maximum documents of a store that a page sorts."""
PACKED_MOST = 1 << 20
"""Maximum documents for which a page computes best_fit in memory, in a twentieth of a second. For more
documents an existing plan on disk is used; the viewer never writes one."""
FILTERED_PACKED_MOST = 1 << 16
"""The same for filtered documents, whose selection would be written from then on."""


def is_filtered(choice: DocumentFilter) -> bool:
    return bool(choice.where or choice.unique)


def refuse_large(store: StoreReader, choice: DocumentFilter) -> None:
    count = len(store.documents)
    if is_filtered(choice) and count > FILTERED_MOST:
        raise RecipeError(
            f"{count:,} documents are too many to filter for a page: expected at most {FILTERED_MOST:,}",
            hint="packline view and packline info take --where, --unique and --exclude",
        )


@lru_cache(HELD)
def chosen(store: StoreReader, choice: DocumentFilter) -> Selection:
    refuse_large(store, choice)
    return Selection(store, choice, plans={})


@lru_cache(HELD)
def bars_of(selection: Selection) -> dict[str, ColumnBars]:
    documents = selection.documents(np.arange(len(selection), dtype=np.int64))
    return measure_columns(selection.store, documents)


@lru_cache(HELD)
def sorted_places(selection: Selection, column: str, descending: bool) -> np.ndarray:
    """Places of a selection, sorted by a column, int64 `[D]`; equal values in order, null last."""
    import pyarrow as pa
    import pyarrow.compute as pc

    store, count = selection.store, len(selection.store.documents)
    known = column_names(store)
    if column not in known:
        hint = did_you_mean(column, known)
        raise RecipeError(f"no column {column[:40]!r}: expected one of {', '.join(known)}", hint=hint)
    if count > SORTED_MOST:
        raise RecipeError(
            f"{count:,} documents are too many to sort for a page: expected at most {SORTED_MOST:,}",
            hint=f"column {column} is in the files *.docs.parquet of {store.place}",
        )
    chunks: list[pa.Array] = []
    for shard in store.shards:
        file = shard.open_provenance()
        if column in documents_schema(file.carried).names:
            chunks += (chunk for _, table in file.groups([column]) for chunk in table[column].chunks)
        else:
            chunks.append(pa.nulls(len(shard)))
    chunks = [one.dictionary_decode() if pa.types.is_dictionary(one.type) else one for one in chunks]
    types = {one.type for one in chunks} - {pa.null()}
    if len(types) > 1:
        names = " and ".join(sorted(map(str, types)))
        raise RecipeError(f"column {column} is {names} in different sources: choose one source")
    kind = types.pop() if types else pa.int64()
    whole = pa.chunked_array([one.cast(kind) for one in chunks])
    documents = selection.documents(np.arange(len(selection), dtype=np.int64))
    chosen = whole.take(pa.array(documents))
    if pa.types.is_boolean(kind):
        chosen = chosen.cast(pa.int8())
    order = pa.table({"value": chosen, "place": np.arange(len(selection), dtype=np.int64)})
    keys = [("value", "descending" if descending else "ascending"), ("place", "ascending")]
    return np.asarray(pc.sort_indices(order, sort_keys=keys), np.int64)


@lru_cache(HELD)
def open_rows(store: StoreReader, seq_len: int, options: RowOptions) -> Rows:
    refuse_large(store, options)
    if options.packing != "best_fit":
        return Rows(store, seq_len, options, plans={})
    names = DocumentFilter.__struct_fields__
    choice = DocumentFilter(**{name: getattr(options, name) for name in names})
    selection = Selection(store, choice, plans={})
    seq_len = check_seq_len(seq_len, store)
    most = FILTERED_PACKED_MOST if is_filtered(options) else PACKED_MOST
    if len(store.documents) < most or planned_folder(selection, seq_len):
        return Rows(store, seq_len, options)
    words = [f"--seq-len {seq_len}", "--packing best_fit", f"--split {options.split}"]
    words += [f'--where "{options.where}"'] if options.where else []
    raise RecipeError(
        f"no plan of best_fit with rows of {seq_len:,} tokens yet, and {len(selection):,} documents are "
        "too many to pack them for a page",
        hint=f"packline info {store.place} {' '.join(words)} --write",
    )
