"""Sources for grain, which orders, shards, batches and resumes what it takes from them by number.

    import grain
    import packline.grain

    batches = packline.grain.BatchSource(loader)           # element n is the loader's batch of step n
    iterator = iter(grain.MapDataset.source(batches).to_iter_dataset())
    state = iterator.get_state()                           # iterator.set_state(state) continues exactly

    rows = packline.grain.RowsSource(rows)                 # element n is row n
    dataset = grain.MapDataset.source(rows).shuffle(seed=1).batch(8)

`BatchSource` leaves order, mixture, stages and ranks to the loader, so grain's state is the step (the
loader's own stays), and each batch is one read. With `RowsSource` they are grain's. Elements are dicts of
NumPy arrays. Worker processes of grain get a source as path and settings.

grain is not imported here: a source is any object with a length and elements by number.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np

from packline.loading.loader import Batch, Loader, chosen_fields, named
from packline.packing.options import Keys
from packline.packing.rows import Rows


class BatchSource:
    """Batches of a loader by step, as a source for grain.

    Args:
        loader: decides order, fields and keys; in a run of several processes, with the `rank` of this one.

    >>> import packline
    >>> source = BatchSource(packline.Loader(store.rows(seq_len=5), batch_size=2, shuffle=False))
    >>> len(source), source[1]["tokens"].tolist()
    (2, [[1, 0, 0, 1, 0], [0, 1, 0, 0, 1]])
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        """Number of steps of the run, whatever the loader's own step."""
        return len(self.loader)

    def __getitem__(self, step: int) -> Batch:
        """Arrays `[B / world_size, L]` of a step.

        Raises:
            IndexError: no such step.
            CorruptStore: a store is damaged there.
        """
        return self.loader.batch(step)

    def __repr__(self) -> str:
        """The same for equal data and order alone: `grain.DataLoader` compares it before it resumes."""
        loader = self.loader
        return f"<BatchSource of run {loader.fingerprint}, rank {loader.rank} of {loader.world_size}>"


class RowsSource:
    """Rows by number, as a source for grain.

    Args:
        rows: result of `store.rows(...)`.
        fields: arrays to include, as for `Loader`.
        keys: "packline" or "huggingface", as for `Loader`.

    Raises:
        RecipeError: unknown `fields` or `keys`.

    >>> source = RowsSource(store.rows(seq_len=5), fields=("tokens", "targets"))
    >>> len(source), source[4]["tokens"].tolist()
    (5, [0, 0, 1, 0, 2])
    """

    def __init__(self, rows: Rows, *, fields: Sequence[str] | None = None, keys: Keys = "packline") -> None:
        self.rows, self.fields, self.keys = rows, chosen_fields(fields, keys), keys

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Batch:
        """Arrays `[L]` of a row.

        Raises:
            IndexError: no such row.
            CorruptStore: the store is damaged there.
        """
        return {name: values[0] for name, values in self._read([operator.index(row)]).items()}

    def _getitems(self, rows: Sequence[int]) -> list[Batch]:
        """Several rows in one read, for releases of grain that read batches; 0.2.18 reads row by row."""
        batch = self._read(rows)
        return [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]

    def _read(self, rows: Sequence[int]) -> Batch:
        return named(self.rows.read(np.array(rows, np.int64), self.fields), self.keys)

    def __repr__(self) -> str:
        """The same for equal rows alone: `grain.DataLoader` compares it before it resumes."""
        return f"<RowsSource of rows {self.rows.fingerprint}, {', '.join(self.fields)}>"
