"""Rows and batches for torch: datasets for its `DataLoader`, tensors, and masks on the device.

    from torch.utils.data import DataLoader
    import packline.torch

    dataset = packline.torch.LoaderDataset(loader)                     # the loader decides order and batches
    for batch in DataLoader(dataset, batch_size=None, num_workers=2, pin_memory=True):
        batch = packline.torch.to_tensors(batch, device="cuda", non_blocking=True, int64=["targets"])
        mask = packline.torch.block_mask(batch["segment_ids"])         # or sdpa_mask, or varlen

    packline.torch.check_packing(model, batch)                         # once: are documents kept apart?

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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from packline.errors import MixedDocuments, RecipeError
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
        keys: "packline", or "huggingface" for models that shift labels by themselves; as for `Loader`. A
            trainer of transformers takes such a data set as it is: `Trainer(train_dataset=...)`.

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
        try:
            place = range(len(self))[operator.index(index)]
        except IndexError:
            raise IndexError(f"row {index:,} of {len(self):,}") from None
        batch = named(self.rows.read(np.array([place]), self.fields), self.keys)
        return to_tensors({name: values[0] for name, values in batch.items()})

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """Several rows in one read; `DataLoader` asks like this for a batch."""
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


NOT_INPUTS = ("labels", "targets", "loss_mask")
"""What a batch has for the loss, not for the model."""
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""How much logits may differ by rounding alone, as a share of the largest."""


def check_packing(
    model: Callable[..., Any], batch: Mapping[str, Any], *, tolerance: float | None = None, **settings: Any
) -> float:
    """Check that a model keeps the documents of packed rows apart.

    Calls the model with the batch as a trainer would, then with each document alone, and compares the logits.
    Costs one forward of the batch and one of each of its documents, so a batch of a few rows is enough. No
    gradient is taken; the model is in evaluation mode meanwhile, and afterwards in the mode that it was in.

    Args:
        model: is called as `model(**inputs, **settings)` and returns logits `[B, L, V]`, or something that
            has them as `.logits`.
        batch: arrays or tensors `[B, L]` by name, of any `keys`: with `position_ids` or `segment_ids`, and a
            row of two documents or more. Labels, targets and the loss mask are not given to the model, nor
            are the segments of a batch for Hugging Face. Anything of another shape, such as `cu_seq_lens_q`,
            is given with the batch, but not with a document alone.
        tolerance: how much logits may differ, as a share of the largest; None: by the least precise dtype
            that they are computed in, 1e-4 for float32 and 0.1 for bfloat16.
        settings: what the trainer calls the model with besides: `use_cache=False` for Hugging Face.

    Returns:
        The largest difference found, as a share of the largest logit.

    Raises:
        MixedDocuments: logits of a document depend on what else is in its row.
        RecipeError: the batch does not say where documents are, or has no row of several.

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
    """What to change in a call that lets documents see each other."""
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
    """The number of the document at each place, int64 `[B, L]`; -1 at padding, where that is known."""
    if "segment_ids" in given:
        return given["segment_ids"].long().cpu()
    if "position_ids" not in given:
        return None
    positions = given["position_ids"].long().cpu()
    begins = torch.zeros_like(positions)
    begins[:, 1:] = positions[:, 1:] != positions[:, :-1] + 1
    return begins.cumsum(1)


def _documents(segments: torch.Tensor) -> Iterator[tuple[int, int, int, int]]:
    """Row, number in the row, first place and the one behind the last of every document; no padding."""
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
    """Every part of a model in evaluation mode, and then each in its own again."""
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
    """By the least precise of the dtypes that logits are computed in."""
    kinds = {logits.dtype}
    if isinstance(model, torch.nn.Module):
        kinds |= {parameter.dtype for parameter in model.parameters()}
    device = logits.device.type
    if torch.is_autocast_enabled(device):
        kinds.add(torch.get_autocast_dtype(device))
    if device == "cuda" and torch.get_float32_matmul_precision() != "highest":
        kinds.add(torch.float16)  # TF32 has as many bits
    return max(TOLERANCES.get(kind, 0.0) for kind in kinds) or TOLERANCES[torch.float32]
