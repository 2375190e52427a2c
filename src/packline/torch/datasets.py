"""Datasets for torch's `DataLoader`, and what its workers send.

    worker      tokens in the dtype of the store, ends of documents ──pipe──> trainer    all tensors

Tensors are sent by one file descriptor each, which costs several times as much as the bytes; a pickled array
of uint16 goes through the pipe that carries the message anyway.
Masks are made on the device that uses them.
"""

from __future__ import annotations

import operator
from collections import UserDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from packline.errors import RecipeError
from packline.loading.loader import Loader, chosen_fields, named
from packline.packing.batch import BatchPart, CompactBatch
from packline.packing.options import Keys
from packline.packing.rows import Rows

# Dtypes that torch can compute with. Its unsigned types beyond 8 bits exist but index no embedding.
_SIGNED = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}


def to_tensors(
    batch: Mapping[str, Any],
    *,
    device: str | torch.device | None = None,
    pin_memory: bool = False,
    non_blocking: bool = False,
    int64: Collection[str] = (),
) -> dict[str, torch.Tensor]:
    """Convert a batch of arrays or tensors to tensors on a device.

    Args:
        batch: arrays or tensors by name. A tensor shares the memory of its array, unless that is read-only
            or of an unsigned type that torch cannot compute with: uint16 becomes int32, uint32 int64.
        pin_memory: go through page-locked memory, so that the copy to a device can overlap, if there is one.
        non_blocking: return before the copy is complete.
        int64: fields to convert to int64, on the device: `cross_entropy` wants int64 targets, while
            embeddings take int32.

    >>> batch = to_tensors({"tokens": np.array([[3, 4]], np.uint16)}, int64=["tokens"])
    >>> batch["tokens"].dtype, batch["tokens"].tolist()
    (torch.int64, [[3, 4]])
    """
    for name in int64:
        if name not in batch:
            raise RecipeError(f"no field {name!r} in the batch: it has {', '.join(batch)}")
    pinned = pin_memory and torch.accelerator.is_available()
    found = {}
    for name, values in batch.items():
        tensor = values if isinstance(values, torch.Tensor) else _tensor(values)
        if pinned and tensor.device.type == "cpu":
            tensor = tensor.pin_memory()
        if device is not None:
            tensor = tensor.to(device, non_blocking=non_blocking)
        found[name] = tensor.long() if name in int64 else tensor
    return found


def _tensor(array: np.ndarray) -> torch.Tensor:
    array = np.ascontiguousarray(array, _SIGNED.get(array.dtype, array.dtype))
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def sdpa_mask(segment_ids: torch.Tensor) -> torch.Tensor:
    """Mask for `scaled_dot_product_attention(..., attn_mask=mask)`: causal, within a document.

    Segments are integers `[B, L]`, -1 at padding, on the device where attention runs; the mask is bool
    `[B, 1, L, L]`, `B*L*L` bytes: for long rows use `block_mask` or `varlen`.

    >>> sdpa_mask(torch.tensor([[0, 0, 1]]))[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    same = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    return same.tril_()


def block_mask(segment_ids: torch.Tensor, *, block_size: int = 128) -> Any:
    """`BlockMask` for `torch.nn.attention.flex_attention`: fully masked blocks are not computed.

    >>> block_mask(torch.zeros(1, 256, dtype=torch.int32)).shape
    (1, 1, 256, 256)
    """
    from torch.nn.attention.flex_attention import create_block_mask

    def visible(row: Any, head: Any, query: Any, key: Any) -> Any:
        return (segment_ids[row, query] == segment_ids[row, key]) & (query >= key)

    rows, length = segment_ids.shape
    return create_block_mask(
        visible, rows, None, length, length, device=segment_ids.device, BLOCK_SIZE=block_size
    )


def varlen(segment_ids: torch.Tensor) -> tuple[torch.Tensor, int]:
    """`cu_seqlens` and `max_seqlen` for attention kernels of variable lengths, over the flattened batch.

    int32 `[N+1]` on the same device, padding as a separate segment, and the length of the longest segment,
    which synchronizes with the device.

    >>> varlen(torch.tensor([[0, 0, 1], [0, 0, -1]]))
    (tensor([0, 2, 3, 5, 6], dtype=torch.int32), 2)
    """
    begins = torch.ones_like(segment_ids, dtype=torch.bool)
    begins[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    end = begins.new_tensor([segment_ids.numel()], dtype=torch.int32)
    boundaries = torch.cat([begins.flatten().nonzero().flatten().int(), end])
    return boundaries, int(boundaries.diff().max()) if len(boundaries) > 1 else 0


class WorkerBatch:
    """A batch in a worker process of `DataLoader`: used like a dict of tensors, and received as a dict.

    As long as nothing in the worker looks at it, it is sent as tokens and a layout, and its tensors are
    made where it is received. A `collate_fn` may read and change it; then all tensors are sent. It is not a
    `Mapping`, since `DataLoader` would look into each of them.
    """

    def __init__(self, compact: CompactBatch, keys: Keys) -> None:
        self._compact, self._keys = compact, keys
        self._made: dict[str, torch.Tensor] | None = None

    def _tensors(self) -> dict[str, torch.Tensor]:
        if self._made is None:
            self._made = _received(self._compact, self._keys)
        return self._made

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors()[name]

    def __setitem__(self, name: str, values: torch.Tensor) -> None:
        self._tensors()[name] = values

    def __delitem__(self, name: str) -> None:
        del self._tensors()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors())

    def __len__(self) -> int:
        return len(self._tensors())

    def __contains__(self, name: object) -> bool:
        return name in self._tensors()

    def __getattr__(self, name: str) -> Any:
        """The methods of a dict."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._tensors(), name)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return (_received, (self._compact, self._keys)) if self._made is None else (dict, (self._made,))


def _received(compact: CompactBatch, keys: Keys) -> dict[str, torch.Tensor]:
    return to_tensors(named(compact.arrays(), keys))


class BatchRow(UserDict[str, torch.Tensor]):
    """A row as tensors `[L]` by name, made when something looks at it.

    torch's default collate leaves rows that nobody has looked at as they were read: nothing is stacked, and a
    worker sends tokens and a layout.
    """

    batch: WorkerBatch | dict[str, torch.Tensor]
    """All rows that were read at once: in a worker as they are sent, else as tensors."""
    place = rows = 0
    """Number of this one among them, and their number; none of a row that was made of others."""

    @classmethod
    def of(cls, batch: WorkerBatch | dict[str, torch.Tensor], place: int, rows: int) -> BatchRow:
        row = cls.__new__(cls)
        row.batch, row.place, row.rows = batch, place, rows
        return row

    @cached_property
    def data(self) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return {name: self.batch[name][self.place] for name in self.batch}

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return dict, (dict(self),)


def _collate_rows(
    batch: list[BatchRow], *, collate_fn_map: Any = None
) -> WorkerBatch | dict[str, torch.Tensor]:
    """Rows as a batch: as they were read, if they are all of one read, in order and untouched."""
    first = batch[0]
    if len(batch) == first.rows and all(
        "data" not in vars(row) and row.batch is first.batch and row.place == place
        for place, row in enumerate(batch)
    ):
        return first.batch
    found: dict[str, torch.Tensor] = default_collate([dict(row) for row in batch])
    return found


default_collate_fn_map[BatchRow] = _collate_rows


class RowsDataset(Dataset):  # type: ignore[misc]
    """Map-style dataset of rows: for torch's samplers, evaluation, trainers with their own shuffling.

        DataLoader(RowsDataset(rows), batch_size=8, shuffle=True, num_workers=2)

    A batch is one read, not one per row, and torch's default collate leaves it as it was read. If torch
    shuffles, torch must also resume; otherwise use `Loader`. Fields and keys are those of `Loader`; with
    keys="huggingface", `Trainer(train_dataset=...)` of transformers accepts it directly.
    """

    def __init__(self, rows: Rows, *, fields: Sequence[str] | None = None, keys: Keys = "packline") -> None:
        self.rows, self.fields, self.keys = rows, chosen_fields(fields, keys), keys

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(
        self, index: int | np.integer[Any] | Sequence[int]
    ) -> dict[str, torch.Tensor] | WorkerBatch:
        """Row by number: tensors `[L]`; or several rows by their numbers: tensors `[B, L]`."""
        if isinstance(index, Sequence):
            try:
                places = np.array([range(len(self))[number] for number in index], np.int64)
            except IndexError:
                raise IndexError(f"rows {list(index)} of {len(self):,}") from None
            if get_worker_info() is not None:
                return WorkerBatch(CompactBatch.read([BatchPart(self.rows, places)], self.fields), self.keys)
            return to_tensors(named(self.rows.read(places, self.fields), self.keys))
        try:
            place = range(len(self))[operator.index(index)]
        except IndexError:
            raise IndexError(f"row {index:,} of {len(self):,}") from None
        batch = named(self.rows.read(np.array([place]), self.fields), self.keys)
        return to_tensors({name: values[0] for name, values in batch.items()})

    def __getitems__(self, indices: Sequence[int]) -> list[BatchRow]:
        found = self[list(indices)]
        return [BatchRow.of(found, place, len(indices)) for place in range(len(indices))]

    def __repr__(self) -> str:
        return f"<RowsDataset of {self.rows!r}>"


class LoaderDataset(IterableDataset):  # type: ignore[misc]
    """Iterable dataset of a loader's batches, exact for any number of workers.

        dataset = LoaderDataset(loader)
        for n, batch in enumerate(DataLoader(dataset, batch_size=None, num_workers=2), 1):
            train(batch)
            checkpoint["loader"] = dataset.state_after(n)      # resume: loader.load_state_dict(...)

    Items are complete batches, hence `batch_size=None`. Every iteration begins at the state that was loaded
    into the loader, else at the beginning. `state_after` is right with any number of workers, and where a
    trainer takes batches ahead of those that it trains on. Without workers `loader.state_dict()` is the state
    after the last batch handed out; with workers it raises. torchdata's `StatefulDataLoader` keeps a state of
    its own, for the same number of workers.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        loader.workers_began = torch.zeros(1, dtype=torch.bool).share_memory_()

    def __iter__(self) -> Steps:
        loader, worker = self.loader, get_worker_info()
        if worker is None:
            return Steps(loader, loader.begins_at, 1, loader.begin_pass(loader.begins_at))
        loader.workers_began[0] = True
        return Steps(loader, loader.begins_at + worker.id, worker.num_workers, None)

    def __len__(self) -> int:
        """Number of batches of an iteration."""
        return len(self.loader) - self.loader.begins_at

    def state_after(self, taken: int) -> dict[str, Any]:
        """State of the loader after a trainer has consumed the first `taken` batches of an iteration.

        Batches prefetched by workers or by the trainer do not count. The loader does not advance.
        """
        first, total = self.loader.begins_at, self.loader.total
        if taken < 0 or (total is not None and taken > total - first):
            most = 0 if total is None else total - first
            raise RecipeError(f"taken={taken}: expected 0 to {most:,}, the batches of an iteration")
        return self.loader.state_at(first + taken)

    def __repr__(self) -> str:
        return f"<LoaderDataset of {self.loader!r}>"


class Steps(Iterator["dict[str, torch.Tensor] | WorkerBatch"]):
    """Every `stride`-th batch of a loader from a given step: the batches of one worker, or all of them.

    `number` is that of the pass, None in a worker. `StatefulDataLoader` saves and restores the state of each.
    """

    def __init__(self, loader: Loader, step: int, stride: int, number: int | None) -> None:
        self._loader, self._step, self._stride, self._number = loader, step, stride, number

    def __next__(self) -> dict[str, torch.Tensor] | WorkerBatch:
        loader, step = self._loader, self._step
        if not loader.has_step(step):
            raise StopIteration
        batch: dict[str, torch.Tensor] | WorkerBatch
        if self._number is None:
            batch = WorkerBatch(loader.compact_batch(step), loader.keys)
        else:
            batch = to_tensors(loader.next_batch(step))
        self._move(step + self._stride)
        return batch

    def _move(self, step: int) -> None:
        self._step = step
        if self._number is not None:
            self._loader.count(step, self._number)

    def state_dict(self) -> dict[str, Any]:
        total = self._loader.total
        return self._loader.state_at(self._step if total is None else min(self._step, total))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._move(self._loader.check(state))
