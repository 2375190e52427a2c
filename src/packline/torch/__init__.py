"""Rows and batches for torch: datasets for its `DataLoader`, tensors, and masks on the device.

    from torch.utils.data import DataLoader
    import packline.torch

    dataset = packline.torch.LoaderDataset(loader)                     # the loader decides order and batches
    batches = DataLoader(dataset, batch_size=None, num_workers=2, pin_memory=True)
    for n, batch in enumerate(batches, 1):
        batch = packline.torch.to_tensors(batch, device="cuda", non_blocking=True, int64=["targets"])
        mask = packline.torch.block_mask(batch["segment_ids"])         # or sdpa_mask, or varlen
        checkpoint = dataset.state_after(n)                            # n batches were trained on

    packline.torch.check_packing(model, loader)                        # once: are documents isolated?

With n workers, worker w makes the steps first + w, first + w + n and so on, and `DataLoader` takes from its
workers in turn, which restores the loader's order. A worker sends the tokens once, in the dtype of the store,
and the ends of documents; the trainer's process, or the thread of `pin_memory`, makes the other arrays. So
workers pay off if reading waits for a disk or a network, or if documents are costly to look up.

Importing this module imports torch.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("packline.torch needs torch, which is not installed: pip install torch") from error

from packline.torch.checking import check_packing
from packline.torch.datasets import (
    LoaderDataset,
    RowsDataset,
    WorkerBatch,
    block_mask,
    sdpa_mask,
    to_tensors,
    varlen,
)

__all__ = [
    "LoaderDataset",
    "RowsDataset",
    "WorkerBatch",
    "block_mask",
    "check_packing",
    "sdpa_mask",
    "to_tensors",
    "varlen",
]
