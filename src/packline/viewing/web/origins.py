"""Where documents are from, for pages that must be quick: row groups that were read stay for a while.

A row group of provenance is 65,536 documents and takes 10 ms to read. Documents that stand together are in
the same one or two; a row that best_fit put together has them from everywhere. So there is a budget: once it
is spent, only what is in memory already is told, and pages say of the others just their number.

Memory: 4 MB a row group with ids, `HELD` of them at most.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from packline.ragged import offsets_of
from packline.store.provenance import ProvenanceFile, to_provenance
from packline.store.reader import Store
from packline.store.shard import Provenance

if TYPE_CHECKING:
    import pyarrow as pa

HELD = 24
FILES = 64
BUDGET = 0.03
"""Seconds of reading for one page."""


class Origins:
    """The provenance of a store's documents. For use by several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._files: OrderedDict[int, ProvenanceFile] = OrderedDict()
        self._tables: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()

    def of(self, documents: Iterable[int], *, budget: float = BUDGET) -> dict[int, Provenance]:
        """Where these documents are from; some are missing where that would take longer than the budget.

        Args:
            documents: numbers in `store.documents`, which exist.
            budget: seconds; the first row group is read whatever it takes.

        Raises:
            CorruptStore: a shard's provenance cannot be read.
        """
        found: dict[int, Provenance] = {}
        groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
        with self._lock:
            start = time.monotonic()
            shards: dict[int, list[tuple[int, int]]] = {}
            for document in dict.fromkeys(documents):
                shard = int(self._store.firsts.searchsorted(document, "right")) - 1
                shards.setdefault(shard, []).append((document, document - int(self._store.firsts[shard])))
            for shard, held in shards.items():
                if found and time.monotonic() - start > budget and shard not in self._files:
                    continue
                file = self._file(shard)
                firsts = offsets_of(file.rows)
                for document, inner in held:
                    group = int(firsts.searchsorted(inner, "right")) - 1
                    groups.setdefault((shard, group), []).append((document, inner - int(firsts[group])))
                for key in [key for key in groups if key[0] == shard]:
                    spent = time.monotonic() - start > budget
                    if found and spent and key not in self._tables:
                        continue
                    table, split = self._table(key), self._store.shards[shard].entry.split
                    rows = table.take([place for _, place in groups[key]])
                    for (document, _), one in zip(
                        groups[key], to_provenance(rows, split, file.path), strict=True
                    ):
                        found[document] = one
        return found

    def _file(self, shard: int) -> ProvenanceFile:
        """A shard's file, held open for a while."""
        if shard not in self._files:
            self._files[shard] = self._store.shards[shard].open_provenance()
            if len(self._files) > FILES:
                self._files.popitem(last=False)
        return self._files[shard]

    def _table(self, key: tuple[int, int]) -> pa.Table:
        if key in self._tables:
            self._tables.move_to_end(key)
            return self._tables[key]
        shard, group = key
        table = self._tables[key] = self._file(shard).read(group)
        if len(self._tables) > HELD:
            self._tables.popitem(last=False)
        return table
