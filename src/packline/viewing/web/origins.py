"""Origins of documents for pages that must be quick: row groups of provenance are cached.

A row group of provenance has 65,536 documents and takes 10 ms to read. Neighbouring documents are in one or
two row groups, but a row packed by best_fit has documents from all over the store. Reading is therefore
limited by a budget: once it is spent, only cached origins are returned, and pages show the other documents by
number alone.

Memory: 4 MB per row group with ids, for at most `HELD` of them.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from packline.ragged import offsets_of
from packline.store.reader import StoreReader
from packline.store.shard import Provenance, ProvenanceFile, to_provenance

if TYPE_CHECKING:
    import pyarrow as pa

HELD = 24
FILES = 64
BUDGET = 0.03
"""Seconds of reading per page."""


class Origins:
    """Provenance of a store's documents; safe for use by several threads."""

    def __init__(self, store: StoreReader) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._files: OrderedDict[int, ProvenanceFile] = OrderedDict()
        self._tables: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()

    def of(self, documents: Iterable[int], *, budget: float = BUDGET) -> dict[int, Provenance]:
        """Provenance of documents, without those that would take longer than the budget.

        Args:
            documents: existing numbers in `store.documents`.
            budget: seconds; the first row group is read however long it takes.

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
        """Provenance file of a shard, kept open for a while."""
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
