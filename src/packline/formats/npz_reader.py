"""Read batches in `.npz` files: their rows, row lengths and loss mask.

`npz` describes the layout. Opening reads lengths and masks of every batch, and only the headers of the
tensors; the tensors themselves are read a batch at a time. The CRC-32 of every member is checked as it is
read.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from packline.errors import CorruptStore
from packline.formats.format import Foreign
from packline.formats.shared.row_files import Rows, are_separate, group_files, open_rows
from packline.formats.shared.zipped import DAMAGE
from packline.formats.types import ForeignFile
from packline.store.report import Findings

if TYPE_CHECKING:
    from packline.formats.npz import NpzOptions

NAME = re.compile(r"(?P<prefix>.+)_batch_(?P<number>\d{4,})\.npz")


def find_batches(path: Path) -> list[Path]:
    """Batches of a folder in the order of their numbers, or a single file."""
    if path.is_file():
        return [path] if NAME.fullmatch(path.name) else []
    if not path.is_dir():
        return []
    found = [(match, one) for one in path.iterdir() if (match := NAME.fullmatch(one.name)) and one.is_file()]
    return [one for _, one in sorted(found, key=lambda pair: (pair[0]["prefix"], int(pair[0]["number"])))]


def open_batches(path: Path, paths: list[Path], options: NpzOptions, findings: Findings) -> Foreign:
    """Check the keys, shapes and lengths of all batches."""
    files = [ForeignFile(one.name, str(one), one.stat().st_size) for one in paths]
    found: list[tuple[int, np.ndarray]] = []
    kind: tuple[np.dtype, int] | None = None
    for number, file in enumerate(files):
        try:
            dtype, lengths, seq_len = _look(file, options)
        except CorruptStore as error:
            findings.add(file.name, error.message.removeprefix(f"{file.path}: "))
            continue
        kind = kind or (dtype, seq_len)
        same = findings.compare(file.name, "dtype, as of the first file", kind[0].name, dtype.name)
        if same and findings.compare(file.name, "row length, as of the first file", kind[1], seq_len):
            found.append((number, lengths))
    _check_numbers(paths, findings)
    batches = _Batches(files, options, dict(found), are_separate(path, options))
    dtype = kind[0] if kind else np.dtype("<i4")
    groups = group_files(files, found, dtype, batches.load, has_loss=batches.with_loss)
    return open_rows(files, groups, path, options, findings, {"rows": sum(len(rows) for _, rows in found)})


def _check_numbers(paths: list[Path], findings: Findings) -> None:
    """Check that the batches of each prefix are numbered without gaps."""
    if len({match["prefix"] for one in paths if (match := NAME.fullmatch(one.name))}) > 1:
        return
    numbers = [int(match["number"]) for one in paths if (match := NAME.fullmatch(one.name))]
    for number, one, expected in zip(numbers, paths, range(numbers[0], numbers[0] + len(paths)), strict=True):
        if number != expected:
            findings.add(one.name, "number of the batch", expected, number)
            return


def _look(file: ForeignFile, options: NpzOptions) -> tuple[np.dtype, np.ndarray, int]:
    """Dtype, row lengths and L of a batch.

    Raises:
        CorruptStore: it is damaged, or its arrays do not match.
    """
    with _opened(file) as archive:
        shape, dtype = archive.shape("input_tensor")
        if len(shape) != 2 or dtype.kind not in "iu":
            raise CorruptStore(
                f"{file.path}: expected input_tensor [B, L] of integers, found {shape} {dtype}"
            )
        for key in ("target_tensor", "attention_mask_tensor"):
            wanted = key in archive or (options.loss and key == "target_tensor")
            if wanted and (other := archive.shape(key)[0]) != shape:
                raise CorruptStore(f"{file.path}: expected {key} of shape {shape}, found {other}")
        lengths = np.full(shape[0], shape[1], np.int64)
        if "lengths" in archive:
            said = archive.read("lengths")
            if said.shape != (shape[0],) or said.dtype.kind not in "iu":
                raise CorruptStore(f"{file.path}: expected lengths of {shape[:1]}, found {said.shape}")
            lengths = said.astype(np.int64)
        if "attention_mask_tensor" in archive:
            lengths = _masked_lengths(
                file, archive, lengths if "lengths" in archive else None, options.ignore_index
            )
        if len(wrong := np.flatnonzero((lengths < 0) | (lengths > shape[1]))):
            row = int(wrong[0])
            raise CorruptStore(
                f"{file.path}: length of row {row}: expected 0 to {shape[1]:,}, found {lengths[row]:,}"
            )
        if options.pad_id is not None:
            real = archive.read("input_tensor") != options.pad_id
            last = shape[1] - np.argmax(real[:, ::-1], axis=1)
            lengths = np.minimum(lengths, np.where(real.any(axis=1), last, 0))
    return dtype, lengths, int(shape[1])


def is_loss_mask(mask: np.ndarray, targets: np.ndarray, ignore_index: int) -> bool:
    """True if a mask is 0 exactly where targets are ignored, and some are: such a mask does not mark padding.

    >>> mask, targets = np.array([[1, 0, 1, 0]]), np.array([[5, -100, 6, -100]])
    >>> is_loss_mask(mask, targets, -100), is_loss_mask(mask, np.array([[5, 6, 7, 8]]), -100)
    (True, False)
    """
    trained = targets != ignore_index
    return not trained.all() and np.array_equal(mask != 0, trained)


def _masked_lengths(
    file: ForeignFile, archive: _Archive, said: np.ndarray | None, ignore_index: int
) -> np.ndarray:
    """Lengths of the rows of a batch that has an attention mask.

    With a loss mask, as `npz` writes it, they come from `lengths`. Any other mask has to be ones and then
    zeros, and takes precedence, since chuk-mlx's `lengths` are those of padded rows. Everything else is
    damage.
    """
    mask = archive.read("attention_mask_tensor") != 0
    places, lengths = np.arange(mask.shape[1]), mask.sum(axis=1)
    wrong = np.flatnonzero((mask != (places < lengths[:, None])).any(axis=1))
    agreed = not len(wrong) and (said is None or np.array_equal(said, lengths))
    if not agreed and said is not None and "target_tensor" in archive:
        targets = archive.read("target_tensor")
        if is_loss_mask(mask, targets, ignore_index):
            if len(beyond := np.flatnonzero((mask & (places >= said[:, None])).any(axis=1))):
                row = int(beyond[0])
                least = int(np.flatnonzero(mask[row])[-1]) + 1
                raise CorruptStore(
                    f"{file.path}: length of row {row}: expected at least {least:,}, where the mask has its "
                    f"last one, found {said[row]:,}"
                )
            return said
    if len(wrong):
        raise CorruptStore(
            f"{file.path}: attention mask of row {wrong[0]}: expected ones, then zeros, or ones where the "
            "targets are not ignored"
        )
    if said is not None and not ((said == lengths).all() or (said == mask.shape[1]).all()):
        row = int(np.flatnonzero(said != lengths)[0])
        raise CorruptStore(
            f"{file.path}: length of row {row}: expected {lengths[row]:,} as in the mask, found {said[row]:,}"
        )
    return np.asarray(lengths, np.int64)


class _Batches:
    """Reader for the rows of a batch, with their loss mask where wanted.

    Args:
        files: all batches.
        options: if `loss` is None, there is a mask if the first batch has one.
        lengths: row lengths of each readable file.
        separate: true if documents do not continue in the next row.
    """

    def __init__(
        self,
        files: list[ForeignFile],
        options: NpzOptions,
        lengths: dict[int, np.ndarray],
        separate: bool,
    ) -> None:
        self._files, self._options, self._lengths, self._separate = files, options, lengths, separate
        self.with_loss = bool(options.loss)
        if options.loss is None and lengths:
            first = min(lengths)
            with _opened(files[first]) as archive:
                self.with_loss = self._masked(first, archive) is not None

    def load(self, number: int) -> Rows:
        """Tokens and mask of a batch.

        Raises:
            CorruptStore: it is damaged; or it has a mask but the first batch had none.
        """
        with _opened(self._files[number]) as archive:
            tokens = archive.read("input_tensor")
            if not self.with_loss:
                if self._options.loss is None and (row := self._masked(number, archive)) is not None:
                    raise CorruptStore(
                        f"{self._files[number].path}: row {row}: expected a target at every token, as in the "
                        f"first batch, found {self._options.ignore_index}",
                        hint="--set loss=true takes the loss mask from the targets, loss=false does without",
                    )
                return tokens, None
            trained = self._trained(archive, tokens)
        loss = np.ones(tokens.shape, np.uint8)
        loss[:, 1:] = trained[:, :-1]
        if not self._separate and len(loss):
            loss[1:, 0] = _at_ends(trained, self._lengths[number])[:-1]
            loss[0, 0] = self._last_trained(number - 1)
        return tokens, loss

    def _trained(self, archive: _Archive, tokens: np.ndarray) -> np.ndarray:
        """Positions whose target is trained on, bool `[B, L]`.

        The end of a document has no target, whether or not the next token is trained on: it counts as trained
        on.
        """
        return (archive.read("target_tensor") != self._options.ignore_index) | self._ends(tokens)

    def _ends(self, tokens: np.ndarray) -> np.ndarray:
        marker = self._options.marker
        return np.zeros(tokens.shape, bool) if marker is None else tokens == marker

    def _masked(self, number: int, archive: _Archive) -> int | None:
        """First row in which a token, other than the last, has no target although its document continues;
        else None."""
        if "target_tensor" not in archive or self._options.marker is None:
            return None
        tokens = archive.read("input_tensor")
        inner = np.arange(tokens.shape[1]) < self._lengths[number][:, None] - 1
        rows = (inner & ~self._trained(archive, tokens)).any(axis=1)
        return int(np.argmax(rows)) if rows.any() else None

    def _last_trained(self, number: int) -> bool:
        """True if the last token of a batch has a target that is trained on, or ends a document."""
        if number not in self._lengths:
            return True
        with _opened(self._files[number]) as archive:
            trained = self._trained(archive, archive.read("input_tensor"))
        return bool(_at_ends(trained, self._lengths[number])[-1:].all())


def _at_ends(trained: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Value of each row at its last token, bool `[B]`; True for an empty row."""
    found = trained[np.arange(len(lengths)), np.maximum(lengths, 1) - 1]
    return np.asarray(found | (lengths == 0))


class _Archive:
    """A `.npz` file that is open for reading. Arrays of objects are refused, so reading executes no code."""

    def __init__(self, file: ForeignFile, archive: zipfile.ZipFile) -> None:
        self._file, self._archive = file, archive
        self._names = set(archive.namelist())

    def __contains__(self, key: str) -> bool:
        return f"{key}.npy" in self._names

    def read(self, key: str) -> np.ndarray:
        """Read an array.

        Raises:
            CorruptStore: it is missing or damaged.
        """
        try:
            data = self._archive.read(f"{key}.npy")
            begin = _header_end(data)
            header = _parse(data[:begin])
            array: np.ndarray = np.frombuffer(data, header.dtype, offset=begin)
            array = array.reshape(header.shape, order="F" if header.fortran else "C")
        except DAMAGE as error:
            raise _damaged(self._file, key, error) from error
        return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))

    def shape(self, key: str) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and dtype of an array, from its header.

        Raises:
            CorruptStore: see `read`; or its size differs from the header's.
        """
        try:
            with self._archive.open(f"{key}.npy") as member:
                first = member.read(12)
                header = _parse(first + member.read(_header_end(first) - len(first)))
                size = math.prod(header.shape) * header.dtype.itemsize
                found = self._archive.getinfo(f"{key}.npy").file_size - member.tell()
                if size != found:
                    raise ValueError(f"expected {size:,} bytes of {header.shape}, found {found:,}")
        except DAMAGE as error:
            raise _damaged(self._file, key, error) from error
        return header.shape, header.dtype.newbyteorder("<")


class _Header(NamedTuple):
    """Header of an array, before its data."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype


def _header_end(data: bytes) -> int:
    """Number of bytes before the data, from the first 12."""
    if data[:6] != b"\x93NUMPY" or len(data) < 12 or data[6] not in (1, 2):
        raise ValueError("not an array of NumPy")
    return (
        10 + int.from_bytes(data[8:10], "little")
        if data[6] == 1
        else 12 + int.from_bytes(data[8:12], "little")
    )


@lru_cache(maxsize=64)
def _parse(header: bytes) -> _Header:
    """Read a header; cached, since nearly all files have the same few and NumPy takes 50 microseconds for
    each."""
    formats, member = np.lib.format, BytesIO(header)
    version = formats.read_magic(member)
    read = formats.read_array_header_1_0 if version == (1, 0) else formats.read_array_header_2_0
    found = _Header(*read(member))
    if found.dtype.hasobject:
        raise ValueError("expected numbers, found objects")
    return found


@contextmanager
def _opened(file: ForeignFile) -> Iterator[_Archive]:
    try:
        archive = zipfile.ZipFile(file.path)
    except DAMAGE as error:
        raise CorruptStore(f"{file.path}: {error}", hint="the file was cut off or damaged") from error
    with archive:
        yield _Archive(file, archive)


def _damaged(file: ForeignFile, key: str, error: Exception) -> CorruptStore:
    if isinstance(error, KeyError):
        return CorruptStore(f"{file.path}: {key}: expected this array, found none")
    return CorruptStore(f"{file.path}: {key}: {error}", hint="the file was cut off or damaged")
