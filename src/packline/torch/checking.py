"""Check that a model isolates the documents of packed rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from packline.errors import MixedDocuments, RecipeError
from packline.loading.loader import Batch, Loader, chosen_fields, named
from packline.packing.options import Keys
from packline.packing.rows import Rows
from packline.store.reader import StoreReader
from packline.torch.datasets import to_tensors

NOT_INPUTS = ("labels", "targets", "loss_mask")
"""Fields of a batch for the loss, not for the model."""
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Maximum difference of logits by rounding alone, relative to the largest logit."""
CHECKED = 4
LOOKED_AT, AT_ONCE = 1 << 20, 1 << 12
"""Rows of a source among which they are looked for, and those of one look."""
LENGTH_OF_STORE = 256


def check_packing(
    model: Callable[..., Any],
    batch: Mapping[str, Any] | Loader | Rows | StoreReader,
    *,
    tolerance: float | None = None,
    keys: Keys = "packline",
    **settings: Any,
) -> float:
    """Check that a model isolates the documents of packed rows; returns the largest difference found.

    Finds rows of several documents, calls the model with them as a trainer would, then with each document
    alone, and compares the logits: one forward pass of the rows and one of each of their documents, without
    gradients, in evaluation mode.

    Args:
        model: called as `model(**inputs, **settings)`; returns logits `[B, L, V]`, or an object with
            `.logits`.
        batch: a loader, rows, or a store (rows of 256 tokens), of which up to four rows with two documents or
            more are checked. Or a batch: arrays or tensors `[B, L]` by name, with either set of `keys`: with
            `position_ids` or `segment_ids`, and such a row. Labels, targets and the loss mask are not passed
            to the model, nor are the segments of a batch for Hugging Face. Values of another shape, such as
            `cu_seq_lens_q`, are passed with the batch, but not with a document alone.
        tolerance: maximum difference of logits, relative to the largest; None: by the least precise
            dtype of the computation, 1e-4 for float32 and 0.1 for bfloat16.
        keys: "packline" or "huggingface", for rows and stores; a loader has its own.
        settings: further arguments of the trainer's call: `use_cache=False` for Hugging Face.

    Raises:
        MixedDocuments: logits of a document depend on the other documents of its row.
        RecipeError: no document boundaries, or no row of several documents.

    >>> import numpy as np
    >>> weights = torch.eye(4)
    >>> batch = {"tokens": np.array([[3, 1, 2, 1]]), "segment_ids": np.array([[0, 0, 1, 1]])}
    >>> check_packing(lambda tokens, segment_ids: weights[tokens], batch)
    0.0
    >>> check_packing(lambda tokens, segment_ids: weights[tokens].cumsum(1), batch)
    Traceback (most recent call last):
    packline.errors.MixedDocuments: documents of a row see each other: row 0, document 1 (places 2 to 4): ...
    """
    if not isinstance(batch, Mapping):
        batch = _rows_of_several(batch, keys)
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
            hint="give the loader, rows or store instead of a batch: such a row is looked for",
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


def _rows_of_several(given: Loader | Rows | StoreReader, keys: Keys) -> Batch:
    """Batch of rows with two documents or more, with the fields and keys of the trainer."""
    fields = chosen_fields(None, keys)
    if isinstance(given, Loader):
        fields, keys = given.fields, given.keys
        sources = list(given.schedule.sources.values())
    else:
        sources = [given if isinstance(given, Rows) else Rows(given, LENGTH_OF_STORE)]
    for rows in sources:
        for first in range(0, min(len(rows), LOOKED_AT), AT_ONCE):
            numbers = np.arange(first, min(first + AT_ONCE, len(rows)))
            several = numbers[np.diff(rows.spans(numbers).offsets) > 1]
            if len(several):
                return named(rows.read(several[:CHECKED], fields), keys)
    raise RecipeError(
        "check_packing: expected a row of two documents or more, found none",
        hint="rows packed by pad have one each, and nothing to isolate; concat and best_fit have such rows",
    )


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
