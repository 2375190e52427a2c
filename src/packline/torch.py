"""Rows and batches for torch: datasets for its `DataLoader`, tensors, and masks on the device.

    from torch.utils.data import DataLoader
    import packline.torch

    dataset = packline.torch.LoaderDataset(loader)                     # the loader decides order and batches
    for batch in DataLoader(dataset, batch_size=None, num_workers=2, pin_memory=True):
        batch = packline.torch.to_tensors(batch, device="cuda", non_blocking=True, int64=["targets"])
        mask = packline.torch.block_mask(batch["segment_ids"])         # or sdpa_mask, or varlen

    packline.torch.check_packing(model, batch)                         # once: are documents isolated?

The loader alone decides the order: with n workers, worker w makes the steps first + w, first + w + n and
so on, and `DataLoader` takes from its workers in turn, which restores the loader's order. So neither the
number of workers nor their start method (fork, spawn) can change a batch.

Cost: arrays become tensors without a copy. Workers pay off only if the trainer's process is busy: making a
batch takes well under a millisecond, and sending it between processes about as long. Order, sharding for
ranks and state are the loader's.

Importing this module imports torch.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from packline.errors import MixedDocuments, RecipeError
from packline.loading.loader import Keys, Loader, chosen_fields, named
from packline.packing.row_reader import RowSource

try:
    import torch
    from torch.utils.data import Dataset, IterableDataset, get_worker_info
except ImportError as error:
    raise ImportError("packline.torch needs torch, which is not installed: pip install torch") from error

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


class RowsDataset(Dataset):  # type: ignore[misc]
    """Map-style dataset of rows: for torch's samplers, evaluation, trainers with their own shuffling.

        DataLoader(RowsDataset(rows), batch_size=8, shuffle=True, num_workers=2)

    A batch is one read, not one per row. If torch shuffles, torch must also resume; otherwise use `Loader`.

    Args:
        rows: result of `store.rows(...)`.
        fields: arrays to include, as for `Loader`.
        keys: "packline", or "huggingface" for models that shift labels themselves; as for `Loader`. The
            trainer of transformers accepts such a dataset directly: `Trainer(train_dataset=...)`.

    Raises:
        RecipeError: unknown `fields` or `keys`.
    """

    def __init__(
        self, rows: RowSource, *, fields: Sequence[str] | None = None, keys: Keys = "packline"
    ) -> None:
        self.rows, self.fields, self.keys = rows, chosen_fields(fields, keys), keys

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int | np.integer[Any]) -> dict[str, torch.Tensor]:
        """Row by number: tensors `[L]`. Negative numbers count from the end.

        Raises:
            IndexError: no such row.
        """
        try:
            place = range(len(self))[operator.index(index)]
        except IndexError:
            raise IndexError(f"row {index:,} of {len(self):,}") from None
        batch = named(self.rows.read(np.array([place]), self.fields), self.keys)
        return to_tensors({name: values[0] for name, values in batch.items()})

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """Several rows in one read; `DataLoader` calls this for a batch."""
        everything = range(len(self))
        try:
            places = np.array([everything[index] for index in indices], np.int64)
        except IndexError:
            raise IndexError(f"rows {list(indices)} of {len(self):,}") from None
        batch = to_tensors(named(self.rows.read(places, self.fields), self.keys))
        columns = [values.unbind() for values in batch.values()]
        return [dict(zip(batch, row, strict=True)) for row in zip(*columns, strict=True)]

    def __repr__(self) -> str:
        return f"<RowsDataset of {self.rows!r}>"


class LoaderDataset(IterableDataset):  # type: ignore[misc]
    """Iterable dataset of a loader's batches, exact for any number of workers.

        DataLoader(LoaderDataset(loader), batch_size=None, num_workers=2)

    Items are complete batches, hence `batch_size=None`. They start at the loader's step when iteration
    begins; iterating does not advance the loader, so a second iteration gives the same batches.

    To resume, either let torchdata's `StatefulDataLoader` keep its own state (same number of workers), or
    save the loader's, which works with any number of workers and ranks:

        state = dataset.state_after(taken)           # number of batches that the trainer has consumed
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
        """Number of batches left."""
        return len(self.loader) - self.loader.step

    def _left(self) -> int | None:
        """Number of batches left; None while a store that is followed has no end."""
        try:
            return len(self)
        except TypeError:
            return None

    def state_after(self, taken: int) -> dict[str, Any]:
        """State of the loader after a trainer has consumed `taken` batches of an iteration that begins now.

        Batches prefetched by workers do not count. The loader itself does not advance.

        Raises:
            RecipeError: `taken` is negative, or more than the batches left.
        """
        left = self._left()
        if taken < 0 or (left is not None and taken > left):
            raise RecipeError(f"taken={taken}: expected 0 to {left or 0:,}, the batches that are left")
        return self.loader.state_at(self.loader.step + taken)

    def __repr__(self) -> str:
        return f"<LoaderDataset of {self.loader!r}>"


class Steps(Iterator[dict[str, torch.Tensor]]):
    """Every `stride`-th batch of a loader from a given step: the batches of one worker.

    `StatefulDataLoader` saves and restores its state for each worker.
    """

    def __init__(self, loader: Loader, step: int, stride: int) -> None:
        self._loader, self._step, self._stride = loader, step, stride

    def __next__(self) -> dict[str, torch.Tensor]:
        if not self._loader.has_step(self._step):
            raise StopIteration
        batch = to_tensors(self._loader.next_batch(self._step))
        self._step += self._stride
        return batch

    def state_dict(self) -> dict[str, Any]:
        """State of the loader with the next step of this iterator."""
        try:
            steps = min(self._step, len(self._loader))
        except TypeError:  # a follower may not know its length
            steps = self._step
        return self._loader.state_at(steps)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state.

        Raises:
            RecipeError: the state of another run, as reported by the loader.
        """
        judge = copy.copy(self._loader)
        judge.load_state_dict(dict(state))
        self._step = judge.step


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


NOT_INPUTS = ("labels", "targets", "loss_mask")
"""Fields of a batch for the loss, not for the model."""
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Maximum difference of logits by rounding alone, relative to the largest logit."""


def check_packing(
    model: Callable[..., Any], batch: Mapping[str, Any], *, tolerance: float | None = None, **settings: Any
) -> float:
    """Check that a model isolates the documents of packed rows.

    Calls the model with the batch as a trainer would, then with each document alone, and compares the logits.
    Cost: one forward pass of the batch and one of each of its documents, so a few rows are enough. No
    gradient is computed; the model is in evaluation mode meanwhile, then in its previous mode again.

    Args:
        model: called as `model(**inputs, **settings)`; returns logits `[B, L, V]`, or an object with
            `.logits`.
        batch: arrays or tensors `[B, L]` by name, with either set of `keys`: with `position_ids` or
            `segment_ids`, and a row of two documents or more. Labels, targets and the loss mask are not
            passed to the model, nor are the segments of a batch for Hugging Face. Values of another shape,
            such as `cu_seq_lens_q`, are passed with the batch, but not with a document alone.
        tolerance: maximum difference of logits, relative to the largest; None: by the least precise
            dtype of the computation, 1e-4 for float32 and 0.1 for bfloat16.
        settings: further arguments of the trainer's call: `use_cache=False` for Hugging Face.

    Returns:
        Largest difference found, relative to the largest logit.

    Raises:
        MixedDocuments: logits of a document depend on the other documents of its row.
        RecipeError: the batch lacks document boundaries, or has no row of several documents.

    >>> weights = torch.eye(4)
    >>> batch = {"tokens": np.array([[3, 1, 2, 1]]), "segment_ids": np.array([[0, 0, 1, 1]])}
    >>> check_packing(lambda tokens, segment_ids: weights[tokens], batch)
    0.0
    >>> check_packing(lambda tokens, segment_ids: weights[tokens].cumsum(1), batch)
    Traceback (most recent call last):
    packline.errors.MixedDocuments: documents of a row see each other: row 0, document 1 (places 2 to 4): ...
    """
    given = to_tensors(batch)
    shape = next((values.shape for values in given.values() if values.ndim == 2), None)
    segments = _segments(given)
    if shape is None or segments is None:
        raise RecipeError(
            "check_packing: expected position_ids or segment_ids [B, L], "
            f"found {', '.join(batch) or 'an empty batch'}",
            hint="a batch of Loader has them unless its `fields` leave them out",
        )
    documents = list(_documents(segments))
    if all(number == 0 for _, number, _, _ in documents):
        raise RecipeError(
            "check_packing: expected a row of two documents or more, found none in this batch",
            hint="take another batch, or rows packed by concat or best_fit",
        )
    unused = (*NOT_INPUTS, *(("segment_ids",) if "input_ids" in given else ()))
    if isinstance(model, torch.nn.Module) and (parameter := next(model.parameters(), None)) is not None:
        given = to_tensors(given, device=parameter.device)
    inputs = {name: values for name, values in given.items() if name not in unused}
    with torch.no_grad(), _evaluating(model):
        packed = _logits(model(**inputs, **settings))
        allowed = _tolerance(model, packed) if tolerance is None else tolerance
        largest = 0.0
        for row, number, begin, end in documents:
            alone = {
                name: values[row : row + 1, begin:end]
                for name, values in inputs.items()
                if values.shape == shape
            }
            right = _logits(model(**alone, **settings))[0].double()
            difference = (packed[row, begin:end].double() - right).abs().max() / right.abs().max()
            found = float(difference.nan_to_num(nan=float("inf")))
            largest = max(largest, found)
            if found > allowed:
                raise MixedDocuments(
                    f"documents of a row see each other: row {row}, document {number} (places {begin:,} to "
                    f"{end:,}): expected the logits of the document alone, to {allowed:.1e} of the largest, "
                    f"found a difference of {found:.1e}",
                    hint=_advice(given, settings),
                )
    return largest


def _advice(given: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Suggested change to a call that lets documents attend to each other."""
    if "input_ids" not in given:
        return "make the attention mask from segment_ids: sdpa_mask, block_mask or varlen"
    if "attention_mask" in given or settings.get("attention_mask") is not None:
        return "leave attention_mask out: with it, Hugging Face models do not look at position_ids"
    if "position_ids" not in given:
        return "give the model position_ids: Hugging Face models find documents by those that restart"
    if settings.get("use_cache") is not False:
        return "call the model with use_cache=False: check_packing(model, batch, use_cache=False)"
    return (
        "this model does not find documents by position_ids: choose another attn_implementation, or give "
        "cu_seq_lens_q and so on for a batch of one row"
    )


def _segments(given: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Number of the document at each position, int64 `[B, L]`; -1 at padding, if known."""
    if "segment_ids" in given:
        return given["segment_ids"].long().cpu()
    if "position_ids" not in given:
        return None
    positions = given["position_ids"].long().cpu()
    begins = torch.zeros_like(positions)
    begins[:, 1:] = positions[:, 1:] != positions[:, :-1] + 1
    return begins.cumsum(1)


def _documents(segments: torch.Tensor) -> Iterator[tuple[int, int, int, int]]:
    """Row, number in the row, start and end (exclusive) of every document; no padding."""
    for row, numbers in enumerate(segments):
        values, lengths = torch.unique_consecutive(numbers, return_counts=True)
        ends = lengths.cumsum(0).tolist()
        for number, (value, length, end) in enumerate(
            zip(values.tolist(), lengths.tolist(), ends, strict=True)
        ):
            if value >= 0:
                yield row, number, end - length, end


@contextmanager
def _evaluating(model: Callable[..., Any]) -> Iterator[None]:
    """Put every module of a model in evaluation mode, and restore each on exit."""
    training = (
        [part for part in model.modules() if part.training] if isinstance(model, torch.nn.Module) else []
    )
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _logits(output: Any) -> torch.Tensor:
    found: torch.Tensor = getattr(output, "logits", output)
    return found


def _tolerance(model: Callable[..., Any], logits: torch.Tensor) -> float:
    """Tolerance for the least precise dtype used to compute logits."""
    kinds = {logits.dtype}
    if isinstance(model, torch.nn.Module):
        kinds |= {parameter.dtype for parameter in model.parameters()}
    device = logits.device.type
    if torch.is_autocast_enabled(device):
        kinds.add(torch.get_autocast_dtype(device))
    if device == "cuda" and torch.get_float32_matmul_precision() != "highest":
        kinds.add(torch.float16)  # TF32 has as many bits of precision
    return max(TOLERANCES.get(kind, 0.0) for kind in kinds) or TOLERANCES[torch.float32]
