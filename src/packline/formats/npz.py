"""chuk-mlx's batches: one `.npz` file per batch, with rows padded on the right.

    PREFIX_batch_0001.npz, PREFIX_batch_0002.npz, ...     numbered from 1, in training order

    input_tensor            int32  [B, L]   tokens, then the token at padding
    target_tensor           int32  [B, L]   the next token; `ignore_index` where nothing is trained on
    attention_mask_tensor   int32  [B, L]   1 where there is a target, 0 where there is none (option `mask`)
    lengths                 int32  [B]      tokens of each row

A file is the output of `numpy.savez` for these arrays: a zip archive with uncompressed members `KEY.npy`. The
last batch has the remaining rows. The first three arrays may have any NumPy integer dtype that holds the
vocabulary and `ignore_index`; `lengths` is always int32.

Targets are -100 at padding, at the last token of a document and where the next token is not trained on. MLX
has no ignored index: there, -100 counts from the end of the vocabulary, like any negative array index. So the
mask, which chuk-mlx only multiplies with its loss, is 0 at all of these positions and not only at padding:
`cross_entropy(logits, targets) * mask` learns nothing from them. Rows are padded on the right, so a causal
model needs no padding mask.

With `mask=padding` the mask is 0 at padding only, for trainers that use it in attention and not in the loss.

Based on chuk-mlx's `batch_generator_pretrain.py` and `batch_pretrain_target_shift_generator.py`; tested with
`numpy.load`.
"""

from __future__ import annotations

import math
import re
import zipfile
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

from packline.errors import RecipeError
from packline.formats.export_folder import ExportRecord, Target
from packline.formats.files import numbered_files
from packline.formats.format import Options, RowFormat
from packline.formats.npy import read_array_header
from packline.formats.pt import DAMAGE
from packline.formats.row_view import RowView
from packline.formats.types import (
    ExportPart,
    ExportPlan,
    Facts,
    NotPreserved,
    RowFiles,
    check_name,
)
from packline.packing.layout import IGNORED
from packline.store.report import Findings

NAME = re.compile(r"(?P<prefix>.+)_batch_(?P<number>\d{4,})\.npz")
KEYS = ("input_tensor", "target_tensor", "attention_mask_tensor", "lengths")
BATCH_SIZE = 32
"""Default number of rows per batch, as in chuk-mlx."""
PART_BYTES = 1 << 26
"""Approximate size of the batches of one part, in bytes."""
NPY_HEADER = 128
"""Bytes before the data of a member, for shapes of the usual size."""


class NpzOptions(Options, frozen=True):
    prefix: str = "tokenized"
    """Prefix of file names."""
    dtype: str = "int32"
    """Dtype of all arrays except `lengths`: any NumPy integer that holds the vocabulary and `ignore_index`.
    """
    ignore_index: int = IGNORED
    """Target at positions that are not trained on."""
    mask: Literal["loss", "padding"] = "loss"
    """Positions at which `attention_mask_tensor` is 0: those without a target, or padding only."""


class Npz(RowFormat):
    name = "npz"
    title = "chuk-mlx: PREFIX_batch_0001.npz with input, target, mask and lengths"
    options = NpzOptions
    shuffled = False

    def trainer_lines(self, out: str, record: ExportRecord, options: NpzOptions) -> tuple[str, ...]:
        padding = f'(batch["target_tensor"] != {options.ignore_index})'
        mask = padding if options.mask == "padding" else 'batch["attention_mask_tensor"]'
        first = f"{record.train_folder(out)}/{options.prefix}_batch_0001.npz"
        return (
            "import mlx.core as mx",
            "import mlx.nn as nn",
            "",
            f"batch = mx.load({first!r})",
            'losses = nn.losses.cross_entropy(model(batch["input_tensor"]), batch["target_tensor"])',
            f"mask = {mask}  # MLX has no ignored index: multiply",
            "loss = (losses * mask).sum() / mask.sum()",
        )

    def plan(self, view: RowView, options: NpzOptions) -> ExportPlan:
        dtype = _checked_dtype(view.vocab_size, options)
        check_name(self.name, "prefix", options.prefix)
        size = view.batch_size or BATCH_SIZE
        each = _file_bytes(size, view.seq_len, dtype)
        rows = max(PART_BYTES // each, 1) * size
        parts = []
        for start in range(0, view.rows, rows):
            number, stop = start // size + 1, min(start + rows, view.rows)
            parts.append(ExportPart(f"batches-{number:04d}", number=number, start=start, stop=stop))
        whole, rest = divmod(view.rows, size)
        total = whole * each + (_file_bytes(rest, view.seq_len, dtype) if rest else 0)
        lost = view.not_preserved(masks=True, boundaries=False)
        if 0 <= options.ignore_index < view.vocab_size:
            why = f"the ignore_index {options.ignore_index} is an id of the vocabulary too"
            lost = (*lost, NotPreserved("loss mask", view.tokens, "tokens", why))
        return ExportPlan(tuple(parts), total, lost=lost)

    def write(self, view: RowView, part: ExportPart, target: Target, options: NpzOptions) -> Facts:
        dtype, size = _checked_dtype(view.vocab_size, options), view.batch_size or BATCH_SIZE
        for number, start in enumerate(range(part.start, part.stop, size), part.number):
            stop = min(start + size, part.stop)
            arrays = batch_arrays(view, start, stop, dtype, options)
            with target.create(f"{options.prefix}_batch_{number:04d}.npz") as file:
                batch = BytesIO()  # NumPy seeks back to fill in sizes; the file is hashed while it is written
                np.savez(batch, allow_pickle=False, **arrays)
                file.write(batch.getbuffer())
            target.progress((stop - start) * view.seq_len)
        return {}

    def recognises(self, path: Path) -> bool:
        files, _ = numbered_files(path, NAME)
        try:
            return bool(files) and "input_tensor.npy" in zipfile.ZipFile(files[0].path).namelist()
        except DAMAGE:
            return False

    def check(self, path: Path, findings: Findings) -> RowFiles:
        files, found = numbered_files(path, NAME, "batches, *_batch_0001.npz and so on")
        first: tuple[np.dtype, int] | None = None
        for file in files:
            try:
                shape, dtype = _tensors_of(Path(file.path))
            except DAMAGE as error:
                what = f"no array {error}" if isinstance(error, KeyError) else str(error)
                findings.add(file.name, what or type(error).__name__)
                continue
            first = first or (dtype, shape[1])
            findings.compare(file.name, "dtype, as of the first file", first[0].name, dtype.name)
            findings.compare(file.name, "row length, as of the first file", first[1], shape[1])
        _check_numbers(found, findings)
        return RowFiles(files)


def _check_numbers(matches: list[re.Match[str]], findings: Findings) -> None:
    for before, match in pairwise(matches):
        expected, found = int(before["number"]) + 1, int(match["number"])
        if before["prefix"] == match["prefix"] and found != expected:
            findings.add(match[0], "number of the batch", expected, found)
            return


def _tensors_of(path: Path) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of the tensors of a batch, from their headers."""
    with zipfile.ZipFile(path) as archive:
        shape, dtype = _array_header(archive, KEYS[0])
        if len(shape) != 2 or dtype.kind not in "iu":
            raise ValueError(f"expected {KEYS[0]} [B, L] of integers, found {shape} {dtype}")
        for key in KEYS[1:]:
            wanted = shape[:1] if key == "lengths" else shape
            if f"{key}.npy" in archive.namelist() and (other := _array_header(archive, key)[0]) != wanted:
                raise ValueError(f"expected {key} of shape {wanted}, found {other}")
    return shape, dtype


def _array_header(archive: zipfile.ZipFile, key: str) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of an array, whose size has to match them."""
    with archive.open(f"{key}.npy") as member:
        shape, dtype = read_array_header(member)
        size = math.prod(shape) * dtype.itemsize
        found = archive.getinfo(f"{key}.npy").file_size - member.tell()
        if dtype.hasobject or size != found:
            raise ValueError(f"{key}: expected {size:,} bytes of {shape} numbers, found {found:,}")
    return shape, dtype


def batch_arrays(
    view: RowView, start: int, stop: int, dtype: np.dtype, options: NpzOptions
) -> dict[str, np.ndarray]:
    read = view.read(start, stop, ("tokens", "targets", "loss_mask"))
    lengths = view.lengths(start, stop)
    targets, mask = read["targets"], read["loss_mask"]
    if options.ignore_index != IGNORED:
        targets = np.where(targets == IGNORED, options.ignore_index, targets)
    if options.mask == "padding":
        mask = np.arange(view.seq_len) < lengths[:, None]
    return {
        "input_tensor": np.ascontiguousarray(read["tokens"], dtype),
        "target_tensor": np.ascontiguousarray(targets, dtype),
        "attention_mask_tensor": mask.astype(dtype),
        "lengths": lengths.astype("<i4"),
    }


def _checked_dtype(vocab_size: int, options: NpzOptions) -> np.dtype:
    try:
        dtype = np.dtype(options.dtype).newbyteorder("<")
    except TypeError:
        dtype = np.dtype("V")
    if dtype.kind not in "iu":
        raise RecipeError(f"npz: expected a dtype of integers, such as int32, found {options.dtype!r}")
    limits = np.iinfo(dtype)
    for what, value in (("the largest id", vocab_size - 1), ("ignore_index", options.ignore_index)):
        if not limits.min <= value <= limits.max:
            raise RecipeError(
                f"npz: {what} is {value:,}: expected {limits.min:,} to {limits.max:,}, as {dtype.name} holds",
                hint="choose a wider dtype" + (", or another ignore_index" if what == "ignore_index" else ""),
            )
    return dtype


def _file_bytes(rows: int, seq_len: int, dtype: np.dtype) -> int:
    tensor = NPY_HEADER + rows * seq_len * dtype.itemsize
    sizes = [tensor if key != "lengths" else NPY_HEADER + 4 * rows for key in KEYS]
    # zip: a header of 30 bytes and 20 of 64-bit sizes for each member, 46 in the directory; 22 at the end
    return 22 + sum(96 + 2 * len(f"{key}.npy") + size for key, size in zip(KEYS, sizes, strict=True))


FORMAT = Npz()
