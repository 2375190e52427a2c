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

from packline.errors import CorruptStore
from packline.store.reader import Provenance, Store

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

HELD = 24
FILES = 64
BUDGET = 0.03
"""Seconds of reading for one page."""


class Origins:
    """The provenance of a store's documents. For use by several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._footers: OrderedDict[int, tuple[pq.FileMetaData, list[int]]] = OrderedDict()
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
                if found and time.monotonic() - start > budget and shard not in self._footers:
                    continue
                _, firsts = self._footer(shard)
                for document, inner in held:
                    group = max(number for number, first in enumerate(firsts) if first <= inner)
                    groups.setdefault((shard, group), []).append((document, inner - firsts[group]))
                for key in [key for key in groups if key[0] == shard]:
                    spent = time.monotonic() - start > budget
                    if found and spent and key not in self._tables:
                        continue
                    table, split = self._table(key), self._store.shards[shard].entry.split
                    rows = table.take([place for _, place in groups[key]]).to_pylist()
                    for (document, _), row in zip(groups[key], rows, strict=True):
                        found[document] = Provenance(split=split, **row)
        return found

    def _footer(self, shard: int) -> tuple[pq.FileMetaData, list[int]]:
        """What a shard's file says of itself, and the first document of each row group."""
        if shard not in self._footers:
            import pyarrow as pa
            import pyarrow.parquet as pq

            path = self._path(shard)
            try:
                footer = pq.read_metadata(path)
            except (OSError, pa.ArrowException) as error:
                raise _unreadable(path, error) from error
            expected = len(self._store.shards[shard])
            if footer.num_rows != expected:
                raise CorruptStore(f"{path}: expected {expected:,} documents, found {footer.num_rows:,}")
            firsts, total = [], 0
            for group in range(footer.num_row_groups):
                firsts.append(total)
                total += footer.row_group(group).num_rows
            self._footers[shard] = footer, firsts
            if len(self._footers) > FILES:
                self._footers.popitem(last=False)
        return self._footers[shard]

    def _table(self, key: tuple[int, int]) -> pa.Table:
        if key in self._tables:
            self._tables.move_to_end(key)
            return self._tables[key]
        import pyarrow as pa
        import pyarrow.parquet as pq

        shard, group = key
        path = self._path(shard)
        try:
            with pq.ParquetFile(path, metadata=self._footer(shard)[0]) as file:
                table = file.read_row_group(group, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(path, error) from error
        self._tables[key] = table
        if len(self._tables) > HELD:
            self._tables.popitem(last=False)
        return table

    def _path(self, shard: int) -> str:
        return str(self._store.path / f"{self._store.shards[shard].entry.name}.docs.parquet")


def _unreadable(path: str, error: Exception) -> CorruptStore:
    return CorruptStore(f"cannot read {path}: {error}", hint="packline verify shows what is damaged")
