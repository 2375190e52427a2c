"""Arrays to tensors, and masks on the device that uses them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

from packline.errors import RecipeError

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
        device: target device; None leaves the tensors where they are.
        pin_memory: go through page-locked memory, so that the copy to a device can overlap. No effect
            if torch has no accelerator.
        non_blocking: return before the copy is complete.
        int64: fields to convert to int64. `cross_entropy` wants int64 targets, while embeddings take int32.
            Converted on the device, so only half the bytes are copied.

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


def sdpa_mask(segment_ids: torch.Tensor) -> torch.Tensor:
    """Mask for `scaled_dot_product_attention(..., attn_mask=mask)`: causal, within a document.

    Args:
        segment_ids: integers `[B, L]`, -1 at padding, on the device where attention runs.

    Returns:
        bool `[B, 1, L, L]`, True where the position of the third axis attends to that of the fourth.
        `B*L*L` bytes: for long rows use `block_mask` or `varlen`.

    >>> sdpa_mask(torch.tensor([[0, 0, 1]]))[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    same = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    return same.tril_()


def block_mask(segment_ids: torch.Tensor, *, block_size: int = 128) -> Any:
    """`BlockMask` for `torch.nn.attention.flex_attention`: fully masked blocks are not computed.

    Args:
        segment_ids: integers `[B, L]`, -1 at padding, on the device where attention runs.
        block_size: side of a block, in positions.

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
        segment_ids: integers `[B, L]`, -1 at padding, which is a separate segment.

    Returns:
        int32 `[N+1]` on the same device, and the length of the longest segment. The latter synchronizes
        with the device.

    >>> varlen(torch.tensor([[0, 0, 1], [0, 0, -1]]))
    (tensor([0, 2, 3, 5, 6], dtype=torch.int32), 2)
    """
    begins = torch.ones_like(segment_ids, dtype=torch.bool)
    begins[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    end = begins.new_tensor([segment_ids.numel()], dtype=torch.int32)
    boundaries = torch.cat([begins.flatten().nonzero().flatten().int(), end])
    return boundaries, int(boundaries.diff().max()) if len(boundaries) > 1 else 0
