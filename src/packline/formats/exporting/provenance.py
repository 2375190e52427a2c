"""Provenance of many documents at once, as a table, one row group of a shard at a time.

Cost: each row group is decoded once if documents are requested in store order, about 0.1 microseconds per
document. For a shuffled order all row groups stay in memory, since any may be needed again: about 30 bytes
per document, plus its id.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from packline.ragged import offsets_of
from packline.store.reader import StoreReader
from packline.store.shard import ProvenanceFile

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("source", "file", "position", "id", "label", "text_bytes", "tokens")


class ProvenanceReader:
    """Reader of `NAME.docs.parquet` by document number.

    Args:
        store: an opened store.
        keep: number of row groups to keep in memory; None: all.
    """

    def __init__(self, store: StoreReader, keep: int | None) -> None:
        self._store, self._keep = store, keep
        self._open: tuple[int, ProvenanceFile] | None = None
        self._firsts: dict[int, np.ndarray] = {}
        """By shard: first document of each row group, and the end of the last, as numbers of the store."""
        self._tables: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()

    def take(self, documents: np.ndarray) -> pa.Table:
        """Rows of these documents, int64 `[N]`, in the given order; columns `COLUMNS`.

        Raises:
            CorruptStore: a file is damaged, or disagrees with the index.
        """
        import pyarrow as pa

        order = np.argsort(documents, kind="stable")
        in_order = documents[order]
        pieces, start = [], 0
        while start < len(in_order):
            first, table = self._group_of(int(in_order[start]))
            stop = int(in_order.searchsorted(first + table.num_rows))
            inner = in_order[start:stop] - first
            if len(inner) == int(inner[-1]) - int(inner[0]) + 1:
                pieces.append(table.slice(int(inner[0]), len(inner)))
            else:
                pieces.append(table.take(pa.array(inner)))
            start = stop
        if not pieces:
            _, table = self._group_of(0)
            return table.slice(0, 0)
        whole = pa.concat_tables(pieces)
        if bool((order[1:] > order[:-1]).all()):
            return whole
        return whole.unify_dictionaries().combine_chunks().take(pa.array(np.argsort(order, kind="stable")))

    def _group_of(self, document: int) -> tuple[int, pa.Table]:
        """The row group that holds a document, and the number of its first document."""
        shard = int(self._store.firsts.searchsorted(document, "right")) - 1
        if shard not in self._firsts:
            self._firsts[shard] = offsets_of(self._file(shard).rows) + self._store.firsts[shard]
        firsts = self._firsts[shard]
        group = int(firsts.searchsorted(document, "right")) - 1
        if (shard, group) not in self._tables:
            while self._keep is not None and len(self._tables) >= self._keep:
                self._tables.popitem(last=False)
            self._tables[shard, group] = self._file(shard).read(group, COLUMNS).select(COLUMNS)
        return int(firsts[group]), self._tables[shard, group]

    def _file(self, shard: int) -> ProvenanceFile:
        """Provenance file of a shard; the last one stays open, since row groups are mostly read in order."""
        if self._open is None or self._open[0] != shard:
            self._open = shard, self._store.shards[shard].open_provenance()
        return self._open[1]
