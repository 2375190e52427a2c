"""Batches written by other tools, one file each: tensors, which positions are padding, their tokens.

    .npz   input_tensor [B, L], target_tensor, attention_mask_tensor, lengths [B]  (chuk-mlx, packline export)
           the names input_ids, labels, attention_mask are accepted too
    .pt    one row of integers, read without torch and without unpickling

Padding is determined by the first of these that a file has; the value of an id alone never makes a position
padding, since token 0 may be an ordinary token, and an end-of-document token may also pad.

    attention mask    unless it is the loss mask, as in exported `npz` files
    lengths           unless every length is L without a loss mask, as in files of chuk-mlx
    ids and targets   the run of padding tokens at the end of a row, after the last target that is trained on
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from packline.encoders.tokenizer import Tokenizer
from packline.errors import CorruptStore, InputError, RecipeError, TokenizerError
from packline.formats.pt import DAMAGE, read_tensor
from packline.packing.layout import IGNORED
from packline.viewing.page import Block, KeyValues, Note, Page, Table
from packline.viewing.text import plural, size
from packline.viewing.tokens import Vocabulary, batch_strip

KEYS = {
    "input": ("input_tensor", "input_ids"),
    "target": ("target_tensor", "labels"),
    "attention_mask": ("attention_mask_tensor", "attention_mask"),
}
SUFFIXES = (".npz", ".pt")
PAD_NAMES = ("<pad>", "[PAD]", "<|pad|>", "<|padding|>", "<|PAD|>")


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A batch read from a file."""

    name: str
    tensors: dict[str, np.ndarray]
    """Tensors of the file among `input`, `target` and `attention_mask`; integers `[B, L]`."""
    lengths: np.ndarray | None
    """int64 `[B]`; None if the file has none."""
    pad_id: int | None
    """Id of the padding token; None if unknown."""

    @property
    def padding_source(self) -> str:
        if "attention_mask" in self.tensors and not self._has_loss_mask:
            return "the attention mask"
        if self._has_lengths:
            return "the lengths"
        known = ["the targets"] if self._has_ignored else []
        if self.pad_id is not None:
            known.append(f"the padding tokens (id {self.pad_id:,}) at the end of each row")
        return " and ".join(known) or "nothing: every position counts as a token"

    @property
    def real(self) -> dict[str, np.ndarray]:
        """Positions of each tensor that are not padding, bool `[B, L]`.

        For targets, and for a mask that is the loss mask, these are the positions with a target; the last
        token of a row that ends early has none.
        """
        found: dict[str, np.ndarray] = {}
        if "attention_mask" in self.tensors:
            found["attention_mask"] = found["input"] = self.tensors["attention_mask"] != 0
        if "input" in self.tensors and (self._has_loss_mask or "input" not in found):
            found["input"] = self._real_input()
        if "target" in self.tensors:
            found["target"] = self._real_target(found.get("input"))
        return {name: found[name] for name in self.tensors}

    @property
    def _has_loss_mask(self) -> bool:
        tensors = self.tensors
        if self.lengths is None or "target" not in tensors or "attention_mask" not in tensors:
            return False
        trained = tensors["target"] != IGNORED  # 0 exactly where targets are ignored, and some are
        return not trained.all() and np.array_equal(tensors["attention_mask"] != 0, trained)

    @property
    def _has_lengths(self) -> bool:
        if self.lengths is None:
            return False
        return self._has_loss_mask or bool((self.lengths != self._shape[1]).any())

    @property
    def _has_ignored(self) -> bool:
        return "target" in self.tensors and bool((self.tensors["target"] == IGNORED).any())

    @property
    def _shape(self) -> tuple[int, int]:
        rows, length = next(iter(self.tensors.values())).shape
        return rows, length

    def _real_input(self) -> np.ndarray:
        rows, length = self._shape
        places = np.arange(length)
        if self._has_lengths and self.lengths is not None:
            return np.asarray(places < self.lengths[:, None])
        ids = self.tensors["input"]
        ends = np.full(rows, length)
        if self.pad_id is not None:
            ends = _ends(ids != self.pad_id)
        if self._has_ignored:
            trained = np.minimum(_ends(self.tensors["target"] != IGNORED) + 1, length)
            trained[~(self.tensors["target"] != IGNORED).any(axis=1)] = 0
            ends = trained if self.pad_id is None else np.maximum(ends, trained)
        return np.asarray(places < ends[:, None])

    def _real_target(self, real: np.ndarray | None) -> np.ndarray:
        target = self.tensors["target"]
        if self._has_ignored:
            return np.asarray(target != IGNORED)
        padded = np.zeros(target.shape, bool) if self.pad_id is None else target == self.pad_id
        if real is None:
            return np.asarray(np.arange(target.shape[1]) < _ends(~padded)[:, None])
        follows = np.zeros(real.shape, bool)
        follows[:, :-1] = real[:, :-1] & real[:, 1:]
        if target.shape[1]:  # a full row's last target is the next row's first token, or padding
            follows[:, -1] = real[:, -1] & ~padded[:, -1]
        return follows


def read_batch(path: str | Path, tokenizer: Tokenizer | None = None, pad_id: int | None = None) -> BatchFile:
    """Read a batch from a file."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"cannot find {path}", hint="name a file of a batch, .npz or .pt")
    if file.suffix == ".pt":
        arrays = {"input_tensor": read_tensor(file)[None, :]}
    else:
        arrays = _read_npz(file)
    tensors = {name: arrays[key] for name, keys in KEYS.items() for key in keys[:2] if key in arrays}
    if "input" not in tensors and "target" not in tensors:
        known = ", ".join(sorted(arrays)[:6]) or "nothing"
        raise InputError(
            f"{path} is not a batch: expected input_tensor or target_tensor, found {known}",
            hint="packline info and packline analyze DIR look at stores",
        )
    shape = next(iter(tensors.values())).shape
    for name, array in tensors.items():
        if array.ndim != 2 or array.dtype.kind not in "iu" or array.shape != shape:
            found = f"{list(array.shape)} of {array.dtype.name}"
            raise CorruptStore(f"{path}: {name}: expected integers {_two(shape)}, found {found}")
    lengths = arrays.get("lengths")
    if lengths is not None:
        lengths = _checked_lengths(str(path), lengths, shape)
    pad = pad_id if pad_id is not None else _pad_of(tokenizer)
    batch = BatchFile(str(path), tensors, lengths, pad)
    if tokenizer is not None:
        _check_ids(batch, tokenizer)
    return batch


def _read_npz(file: Path) -> dict[str, np.ndarray]:
    try:
        # Opened here, because NumPy leaves a damaged archive that it opened itself open.
        with open(file, "rb") as opened, np.load(opened, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("one array, and no archive of arrays")
            return {key: archive[key] for key in archive.files}
    except DAMAGE as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "pickle" in said.lower():
            said = "no archive of arrays of numbers"
        raise CorruptStore(f"{file}: {said}", hint="the file was cut off, damaged, or is no .npz") from error


def _checked_lengths(name: str, lengths: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    is_list = lengths.shape == shape[:1] and lengths.dtype.kind in "iu"
    if not is_list or ((lengths < 0) | (lengths > shape[1])).any():
        found = f"{list(lengths.shape)} of {lengths.dtype.name}"
        found += f", up to {lengths.max():,}" if is_list else ""
        raise CorruptStore(f"{name}: lengths: expected {shape[0]:,} from 0 to {shape[1]:,}, found {found}")
    return lengths.astype(np.int64)


def _check_ids(batch: BatchFile, tokenizer: Tokenizer) -> None:
    for name in ("input", "target"):
        if name not in batch.tensors:
            continue
        ids = batch.tensors[name]
        wrong = (ids < 0) | (ids >= tokenizer.vocab_size)
        if name == "target":
            wrong &= ids != IGNORED
        if wrong.any():
            row, place = (int(one) for one in np.argwhere(wrong)[0])
            raise TokenizerError(
                f"{batch.name}: {name} tensor, row {row}, place {place}: expected an id below "
                f"{tokenizer.vocab_size:,} of {tokenizer.name}, found {int(ids[row, place]):,}",
                hint="name the tokenizer that made the batch",
            )


def _pad_of(tokenizer: Tokenizer | None) -> int:
    if tokenizer is None:
        return 0
    for name in PAD_NAMES:
        if name in tokenizer.special_tokens:
            return tokenizer.special_tokens[name]
    return tokenizer.special_tokens.get(tokenizer.eos_token or "", 0)


def _ends(true: np.ndarray) -> np.ndarray:
    """Index after the last true position of each row, int64 `[B]`."""
    last = (
        true.shape[1] - np.argmax(true[:, ::-1], axis=1) if true.shape[1] else np.zeros(len(true), np.int64)
    )
    return np.asarray(np.where(true.any(axis=1), last, 0), np.int64)


def _two(shape: tuple[int, ...]) -> str:
    return f"[{shape[0]}, {shape[1]}]" if len(shape) == 2 else "[B, L]"


class TensorSummary(msgspec.Struct, frozen=True):
    """Counts for one tensor."""

    tensor: str
    rows: int
    tokens: int
    """Number of positions, padding included."""
    seq_len: int
    real_tokens: int
    padding_tokens: int
    token_bytes: int


def summarize(batch: BatchFile, tensor: str) -> TensorSummary:
    """Count a tensor that the batch has: `input`, `target` or `attention_mask`."""
    values = batch.tensors[tensor]
    rows, seq_len = values.shape
    real = int(np.count_nonzero(batch.real[tensor]))
    return TensorSummary(tensor, rows, values.size, seq_len, real, values.size - real, values.itemsize)


def summary_table(name: str, summaries: Sequence[TensorSummary]) -> Table:
    head = ("tensor", "rows", "tokens per row", "tokens", "mean", "padding", "mean", "memory of tokens")
    rows = tuple(
        (
            one.tensor,
            f"{one.rows:,}",
            f"{one.seq_len:,}",
            *(
                text
                for count in (one.real_tokens, one.padding_tokens)
                for text in (f"{count:,}", f"{count / max(one.rows, 1):,.2f}")
            ),
            size(one.real_tokens * one.token_bytes),
        )
        for one in summaries
    )
    return Table(name, head, rows, "lrrrrrrr")


def batch_page(
    batch: BatchFile,
    vocabulary: Vocabulary | None,
    tensors: tuple[str, ...],
    *,
    first: int = 0,
    rows: int | None = None,
    most: int = 512,
) -> Page:
    """Page of rows of a batch."""
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
        ("padding by", batch.padding_source),
    )
    return Page(f"Batch {batch.name}", (KeyValues(facts), *blocks))


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

    def __getitem__(self, index: Any) -> Any:
        return b"%d" % index


def _numbers(batch: BatchFile) -> Vocabulary:
    top = max(int(array.max(initial=0)) for array in batch.tensors.values())
    return Vocabulary("ids", _Numbers(top + 1), {})
