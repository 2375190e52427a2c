"""A batch written by another tool, as a page: one strip per row, with the file's padding and targets.

Such files do not contain the boundaries of documents; special tokens show where one ends. Targets aligned
with their tokens (Hugging Face's labels) are distinguished from targets shifted by one position by comparing
them with the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np

from packline.errors import RecipeError
from packline.packing.batch import IGNORED
from packline.viewing.batch_files import BatchFile
from packline.viewing.page import Block, Facts, Note, Page
from packline.viewing.strips import batch_strip
from packline.viewing.text import plural
from packline.viewing.vocabulary import Vocabulary


def batch_page(
    batch: BatchFile,
    vocabulary: Vocabulary | None,
    tensors: tuple[str, ...],
    *,
    first: int = 0,
    rows: int | None = None,
    most: int = 512,
) -> Page:
    """Page of rows of a batch.

    Args:
        vocabulary: None: ids are shown as numbers.
        tensors: `input`, `target`, or both.
        first: the first row to show.
        rows: number of rows to show; None: all.
        most: maximum number of tokens per row.

    Raises:
        RecipeError: the row does not exist.

    >>> batch = BatchFile("b.npz", {"input": np.array([[1, 0]])}, None, 0)
    >>> page = batch_page(batch, None, ("input",))
    >>> [(cell.text, cell.padding) for cell in page.blocks[1].cells]
    [('1', False), ('', True)]
    """
    count, seq_len = next(iter(batch.tensors.values())).shape
    if not 0 <= first < max(count, 1):
        raise RecipeError(f"row {first:,}: expected 0 to {count - 1:,}, the rows of {batch.name}")
    wanted = range(first, count if rows is None else min(first + rows, count))
    shown = _numbers(batch) if vocabulary is None else vocabulary
    learned = learned_in(batch)
    blocks: list[Block] = []
    for name in tensors:
        if name not in batch.tensors:
            blocks.append(Note(f"No {name} tensor found in {batch.name}", "warning"))
            continue
        ids, real = batch.tensors[name], batch.real[name]
        for row in wanted:
            there = real[row] & (ids[row] != IGNORED)
            strip = batch_strip(
                shown,
                np.where(there, ids[row], 0),
                learned=learned[row] if name == "input" and learned is not None else None,
                segment_ids=np.where(there, 0, -1),
                caption=f"row {row:,}" if name == "input" else f"row {row:,}, {name}s",
                most=most,
            )
            blocks.append(strip)
    facts = (
        ("rows", f"{count:,} of {plural(seq_len, 'token')}"),
        ("tensors", ", ".join(f"{name} ({array.dtype.name})" for name, array in batch.tensors.items())),
        ("tokenizer", vocabulary.name if vocabulary is not None else "none: ids are shown"),
        ("padding by", batch.told_by),
    )
    return Page(f"Batch {batch.name}", (Facts(facts), *blocks))


def learned_in(batch: BatchFile) -> np.ndarray | None:
    """Tokens that are learned, int8 `[B, L]` as `cells_of` takes it; None without targets."""
    if "target" not in batch.tensors or "input" not in batch.tensors:
        return None
    has = batch.real["target"]
    ids, targets = batch.tensors["input"], batch.tensors["target"]
    if has.any() and (ids == targets)[has].all():
        return has.astype(np.int8)
    learned = np.full(has.shape, -1, np.int8)
    learned[:, 1:] = has[:, :-1]
    return learned


class _Numbers(Sequence[bytes]):
    """Ids as their own text, created on access: there may be any number of them."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[one] for one in range(self._count)[index]]
        return b"%d" % range(self._count)[index]


def _numbers(batch: BatchFile) -> Vocabulary:
    top = max(int(array.max(initial=0)) for array in batch.tensors.values())
    return Vocabulary("ids", _Numbers(top + 1), {})
