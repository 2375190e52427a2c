"""Common parts of formats with rows in records: their index, rows to write, and records as a token source.

    records of a file    a b c d | d e f g | g h . .    one row each, with the first token of the next row
    read, width 3        a b c d e f g h .

Cost: rows are copied once. A compressed file is held in memory as a whole while it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from packline.errors import CorruptStore, InputError
from packline.formats.importing.mapped import Pieces, TokenSource, read_numbers
from packline.formats.types import ForeignFile, NotPreserved
from packline.packing.batch import IGNORED

if TYPE_CHECKING:
    from packline.formats.exporting.rows import RowView

INDEX = "index.json"
BLOCK_TOKENS = 1 << 20
"""Approximate tokens in rows written at a time."""
SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""Folders of splits below a data set, and the split of the store that each one becomes."""


def split_folders(path: Path) -> list[tuple[str, Path]]:
    """Folders with an `index.json`, and the split of each: the data set itself, or those below it.

    Raises:
        InputError: there is none, or two are the same split.
    """
    if path.name == INDEX and path.is_file():
        path = path.parent
    if (path / INDEX).is_file():
        return [("train", path)]
    found = [(SPLITS[name], path / name) for name in SPLITS if (path / name / INDEX).is_file()]
    if not found:
        raise InputError(f"{path}: expected {INDEX}, or folders train and val with one, found neither")
    splits = [split for split, _ in found]
    if len(set(splits)) < len(splits):
        names = ", ".join(folder.name for _, folder in found)
        raise InputError(f"{path}: expected one folder a split, found {names}", hint="import one of them")
    return found


def read_index(folder: Path) -> dict[str, Any]:
    """The object in a folder's `index.json`.

    Raises:
        InputError: it cannot be read, or is not an object.
    """
    path = folder / INDEX
    try:
        index = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(index, dict):
        raise InputError(f"{path}: expected an object, found {type(index).__name__}")
    return index


def foreign_file(root: Path, path: Path) -> ForeignFile:
    """Description of a file of a foreign data set; size 0 if it is missing."""
    size = path.stat().st_size if path.is_file() else 0
    return ForeignFile(path.relative_to(root).as_posix(), str(path), size)


def row_tokens(view: RowView, start: int, stop: int) -> np.ndarray:
    """Rows with one more token at the end: int32 `[n, L+1]`.

    The last column is the target of the last token, or padding if it has none.
    """
    arrays = view.read(start, stop, ("tokens", "targets"))
    last = arrays["targets"][:, -1:]
    return np.concatenate([arrays["tokens"], np.where(last == IGNORED, view.pad_id, last)], axis=1)


def lost_of(view: RowView, *, masks: bool, boundaries: bool) -> tuple[NotPreserved, ...]:
    """Losses of a format of rows: losses of the rows themselves, and parts without a field in its records.

    Args:
        masks: True if the format keeps the loss mask.
        boundaries: True if the format keeps document boundaries.
    """
    lost = list(view.lost)
    if not masks:
        why = "its reader trains on every token"
        if view.has_loss:
            lost.append(NotPreserved("loss mask", view.tokens, "tokens", why))
        if view.padding_tokens:
            lost.append(
                NotPreserved("padding mask", view.padding_tokens, "tokens", f"{why}, those at padding too")
            )
    if not boundaries:
        why = "within rows only the tokens between documents show them"
        lost.append(NotPreserved("document boundaries", view.documents, "documents", why))
    lost.append(NotPreserved("provenance", view.documents, "documents", "the format has no place for it"))
    return tuple(lost)


@lru_cache(maxsize=1)
def _unpacked(path: str, written: int, size: int) -> bytes:
    """A decompressed zstd file of `size` bytes; cached until another file is read, or it changes."""
    import zstandard

    try:
        data = Path(path).read_bytes()
        with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
            whole = bytes(reader.read(size + 1))
    except (OSError, zstandard.ZstdError) as error:
        raise CorruptStore(f"cannot read {path}: {error}", hint="the file was cut off or damaged") from error
    if len(whole) != size:
        found = f"{len(whole):,}" if len(whole) < size else f"more than {size:,}"
        raise CorruptStore(f"{path}: expected {size:,} bytes when unpacked, found {found}")
    return whole


def read_bytes(file: ForeignFile, start: int, stop: int, unpacked_bytes: int | None = None) -> np.ndarray:
    """Bytes of a file, uint8 `[stop - start]`; with `unpacked_bytes`, of its decompressed content.

    Raises:
        CorruptStore: they are missing, or the decompressed file is not as expected.
    """
    if unpacked_bytes is None:
        return read_numbers(file.path, np.dtype(np.uint8), 0, start, stop)
    try:
        written = Path(file.path).stat().st_mtime_ns
    except OSError as error:
        raise CorruptStore(f"cannot read {file.path}: {error.strerror}") from error
    if not start <= stop <= unpacked_bytes:
        raise CorruptStore(
            f"{file.path}: expected bytes {start:,} to {stop:,} when unpacked, found {unpacked_bytes:,}",
            hint="its offsets or counts are damaged",
        )
    return np.frombuffer(_unpacked(file.path, written, unpacked_bytes), np.uint8)[start:stop]


class RecordFile(TokenSource):
    """A file of records of equal size, of which the first `width` tokens each are read.

    Tokens that lie back to back are records of one token.

    Args:
        files: all files of the data set.
        number: number of this file among them.
        first: offset in bytes of the first record's tokens.
        stride: bytes from one record's tokens to the next one's.
        width: tokens read per record.
        tokens: number of these tokens in the whole file; padding at the end is left out.
        unpacked_bytes: decompressed size of a compressed file.
    """

    def __init__(
        self,
        files: Sequence[ForeignFile],
        number: int,
        dtype: np.dtype,
        *,
        split: str,
        first: int,
        stride: int,
        width: int,
        tokens: int,
        unpacked_bytes: int | None = None,
    ) -> None:
        self.file, self.name = number, files[number].name
        self.split, self.dtype, self.tokens = split, dtype, tokens
        self.whole = unpacked_bytes is not None
        self._files, self._file, self._unpacked_bytes = files, files[number], unpacked_bytes
        self._first, self._stride, self.width = first, stride, width
        self.beside: tuple[int, ...] = ()
        """Numbers of files that belong to it: covered by the first unit."""

    def read(self, start: int, stop: int) -> tuple[np.ndarray, None]:
        if start == stop:
            return np.empty(0, self.dtype), None
        width, size = self.width, self.dtype.itemsize
        low, high = start // width, (stop - 1) // width + 1
        begin = self._first + low * self._stride
        end = self._first + (high - 1) * self._stride + width * size
        data = read_bytes(self._file, begin, end, self._unpacked_bytes)
        if self._stride == width * size:
            tokens = data.view(self.dtype)
        else:
            shape, strides = (high - low, width), (self._stride, size)
            tokens = np.ndarray(shape, self.dtype, data.data, strides=strides).reshape(-1)
        return tokens[start - low * width : stop - low * width], None

    def positions(self, places: np.ndarray) -> np.ndarray:
        record, inner = np.divmod(places.astype(np.int64), self.width)
        return self._first + record * self._stride + inner * self.dtype.itemsize

    def pieces(self, start: int, stop: int) -> Pieces:
        begin, end = (int(place) for place in self.positions(np.array([start, stop])))
        piece = (self.file, begin if start else 0, end if stop < self.tokens else self._file.bytes)
        if start:
            return (piece,)
        return (piece, *((number, 0, self._files[number].bytes) for number in self.beside))
