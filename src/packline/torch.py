"""Rows and batches for torch: datasets for its `DataLoader`, tensors, and masks on the device.

    from torch.utils.data import DataLoader
    import packline.torch

    dataset = packline.torch.LoaderDataset(loader)                     # the loader decides order and batches
    for batch in DataLoader(dataset, batch_size=None, num_workers=2, pin_memory=True):
        batch = packline.torch.to_tensors(batch, device="cuda", non_blocking=True, int64=["targets"])
        mask = packline.torch.block_mask(batch["segment_ids"])         # or sdpa_mask, or varlen

The order belongs to the loader, never to the workers: with n of them, worker w makes the steps first + w,
first + w + n and so on, and `DataLoader` takes from its workers in turn, which is the loader's own order
again. So neither the number of workers nor the way they are started (fork, spawn) can change a batch.

Cost: arrays become tensors without a copy. Workers pay for themselves only where the trainer's process
is busy: a batch is made in well under a millisecond, and sending one between processes costs about as
much. Nothing here chooses an order, shards for ranks (the loader does) or keeps a state of its own.

Importing this imports torch.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from packline.errors import RecipeError
from packline.loading.loader import Keys, Loader, chosen_fields, named
from packline.packing.rows import RowSource

try:
    import torch
    from torch.utils.data import Dataset, IterableDataset, get_worker_info
except ImportError as error:
    raise ImportError("packline.torch needs torch, which is not installed: pip install torch") from error

# What torch can compute with. Its unsigned types beyond 8 bits exist but index no embedding.
_SIGNED = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}


def to_tensors(
    batch: Mapping[str, Any],
    *,
    device: str | torch.device | None = None,
    pin_memory: bool = False,
    non_blocking: bool = False,
    int64: Collection[str] = (),
) -> dict[str, torch.Tensor]:
    """A batch of arrays, or of tensors, as tensors where they are needed.

    Args:
        batch: arrays or tensors by name. A tensor shares the memory of its array, unless that is read-only
            or of an unsigned type that torch cannot compute with: uint16 becomes int32, uint32 int64.
        device: where to; None leaves the tensors where they are.
        pin_memory: page-locked memory on the way, so that the copy to a device can overlap. Does nothing
            where torch has no accelerator.
        non_blocking: do not wait for that copy.
        int64: fields to widen. `cross_entropy` wants int64 targets, while embeddings take int32. Widened on
            the device, so only half the bytes travel.

    Raises:
        RecipeError: a field in `int64` that the batch does not have.

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


class RowsDataset(Dataset):  # type: ignore[misc]
    """Rows as a map-style dataset: for samplers of torch, evaluation, trainers that shuffle by themselves.

        DataLoader(RowsDataset(rows), batch_size=8, shuffle=True, num_workers=2)

    A batch is one read, not one a row. What torch shuffles, torch must resume: where that matters, `Loader`.

    Args:
        rows: what `store.rows(...)` gives.
        fields: which arrays; as for `Loader`.
        keys: "packline", or "huggingface" for models that shift labels by themselves; as for `Loader`.

    Raises:
        RecipeError: other `fields` or `keys`.
    """

    def __init__(
        self, rows: RowSource, *, fields: Sequence[str] | None = None, keys: Keys = "packline"
    ) -> None:
        self.rows, self.fields, self.keys = rows, chosen_fields(fields, keys), keys

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int | np.integer[Any]) -> dict[str, torch.Tensor]:
        """A row by number: tensors `[L]`. Negative numbers count from the end.

        Raises:
            IndexError: no such row.
        """
        return self.__getitems__([operator.index(index)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """Several rows in one read; `DataLoader` asks like this for a batch."""
        everything = range(len(self))
        try:
            places = np.array([everything[index] for index in indices], np.int64)
        except IndexError:
            raise IndexError(f"rows {list(indices)} of {len(self):,}") from None
        batch = to_tensors(named(self.rows.read(places, self.fields), self.keys))
        return [{name: values[place] for name, values in batch.items()} for place in range(len(places))]

    def __repr__(self) -> str:
        return f"<RowsDataset of {self.rows!r}>"


class LoaderDataset(IterableDataset):  # type: ignore[misc]
    """The batches of a loader as an iterable dataset, exact for any number of workers.

        DataLoader(LoaderDataset(loader), batch_size=None, num_workers=2)

    Batches come whole, hence `batch_size=None`. They start at the step at which the loader stands when
    iteration begins; iterating does not move the loader, so it gives the same batches a second time.

    To resume, either let torchdata's `StatefulDataLoader` keep its own state (same number of workers), or
    keep the loader's, which fits any number of workers and ranks:

        state = dataset.state_after(taken)           # batches that the trainer has taken from the iteration
        loader.load_state_dict(state)

    Args:
        loader: a `packline.loading.loader.Loader`.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Steps:
        worker = get_worker_info()
        first, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return Steps(self.loader, self.loader.step + first, stride)

    def __len__(self) -> int:
        """Batches that are left."""
        return len(self.loader) - self.loader.step

    def state_after(self, taken: int) -> dict[str, Any]:
        """The loader's state once a trainer has taken this many batches from an iteration that began now.

        What workers have made ahead does not count. The loader itself stays where it is.

        Raises:
            RecipeError: fewer than no batches, or more than are left.
        """
        if not 0 <= taken <= len(self):
            raise RecipeError(f"taken={taken}: expected 0 to {len(self):,}, the batches that are left")
        return {**self.loader.state_dict(), "step": self.loader.step + taken}

    def __repr__(self) -> str:
        return f"<LoaderDataset of {self.loader!r}>"


class Steps(Iterator[dict[str, torch.Tensor]]):
    """Every `stride`-th batch of a loader from a step on: what one worker makes.

    Its state is what `StatefulDataLoader` keeps for each worker and hands back to it.
    """

    def __init__(self, loader: Loader, step: int, stride: int) -> None:
        self._loader, self._step, self._stride = loader, step, stride

    def __next__(self) -> dict[str, torch.Tensor]:
        if self._step >= len(self._loader):
            raise StopIteration
        batch = to_tensors(self._loader.batch(self._step))
        self._step += self._stride
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The loader's state with the step that comes next here."""
        return {**self._loader.state_dict(), "step": min(self._step, len(self._loader))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            RecipeError: the state of another run, as the loader says it.
        """
        judge = copy.copy(self._loader)
        judge.load_state_dict(dict(state))
        self._step = judge.step


def sdpa_mask(segment_ids: torch.Tensor) -> torch.Tensor:
    """The mask for `scaled_dot_product_attention(..., attn_mask=mask)`: causal, within a document.

    Args:
        segment_ids: integers `[B, L]`, -1 at padding, on the device where attention runs.

    Returns:
        bool `[B, 1, L, L]`, True where the place of the third axis sees the place of the fourth.
        `B*L*L` bytes: for long rows, `block_mask` or `varlen`.

    >>> sdpa_mask(torch.tensor([[0, 0, 1]]))[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    same = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    return same.tril_()


def block_mask(segment_ids: torch.Tensor, *, block_size: int = 128) -> Any:
    """The `BlockMask` for `torch.nn.attention.flex_attention`: blocks that no place sees are not computed.

    Args:
        segment_ids: integers `[B, L]`, -1 at padding, on the device where attention runs.
        block_size: places of a side of a block.

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

    Args:
        segment_ids: integers `[B, L]`, -1 at padding, which is a segment of its own.

    Returns:
        int32 `[N+1]` on the same device, and the longest segment. Knowing the latter waits for the device.

    >>> varlen(torch.tensor([[0, 0, 1], [0, 0, -1]]))
    (tensor([0, 2, 3, 5, 6], dtype=torch.int32), 2)
    """
    begins = torch.ones_like(segment_ids, dtype=torch.bool)
    begins[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    end = begins.new_tensor([segment_ids.numel()], dtype=torch.int32)
    boundaries = torch.cat([begins.flatten().nonzero().flatten().int(), end])
    return boundaries, int(boundaries.diff().max()) if len(boundaries) > 1 else 0
