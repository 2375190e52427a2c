"""Sources of a foreign data set's tokens: in order, numbered, from any container.

    TokenFile      a header of fixed size, then tokens to the end; optionally with a file of loss values
    TokenSource    common interface; rows of tokens in other containers implement their own `read`

Files are read, not mapped, so a file that shrinks meanwhile is an error and not a crash of the process.
Cost: one copy of the requested range. Does not find documents (see `mapped`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packline.errors import CorruptStore
from packline.formats.types import ForeignFile

Pieces = tuple[tuple[int, int, int], ...]
"""(file, first byte, end byte), as in `ForeignUnit.pieces`."""


class TokenSource(ABC):
    """Tokens in order, numbered from 0, of one file of a foreign data set."""

    file: int
    """Number of the file in the data set."""
    name: str
    """Name in messages."""
    split: str
    dtype: np.dtype
    tokens: int
    has_loss: bool = False
    whole: bool = False
    """True if it must be one unit."""

    @abstractmethod
    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Tokens from `start` up to `stop`, and uint8 0 or 1 per token, if there is a loss mask.

        Raises:
            CorruptStore: the tokens are missing, or the mask has other values.
        """

    @abstractmethod
    def positions(self, places: np.ndarray) -> np.ndarray:
        """Positions, for provenance, of the documents that begin at these tokens, int64 `[n]`."""

    @abstractmethod
    def pieces(self, start: int, stop: int) -> Pieces:
        """File pieces of a unit with these tokens; all units together cover the files exactly once."""


@dataclass(frozen=True, slots=True)
class LossFile:
    """A file with one number per token: 1 for a token that is trained on, else 0."""

    file: int
    path: str
    dtype: np.dtype
    header: int = 0
    """Bytes before the first number."""


class TokenFile(TokenSource):
    """A file with a header of fixed size, then tokens to its end.

    Args:
        files: all files of the data set.
        number: number of this file among them.
        header: bytes before the first token.
        tokens: number of tokens; by default all that the file holds.
        loss: its loss mask.
        beside: numbers of files that belong to it, such as its index; covered by the first unit.
    """

    def __init__(
        self,
        files: Sequence[ForeignFile],
        number: int,
        dtype: np.dtype,
        *,
        split: str = "train",
        header: int = 0,
        tokens: int | None = None,
        loss: LossFile | None = None,
        beside: tuple[int, ...] = (),
    ) -> None:
        self.file, self.name, self.path = number, files[number].name, files[number].path
        self.split, self.dtype, self.header = split, dtype, header
        room = max(files[number].bytes - header, 0) // dtype.itemsize
        self.tokens = room if tokens is None else tokens
        self.loss, self.has_loss = loss, loss is not None
        self._files, self._beside = files, beside

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
        tokens = read_numbers(self.path, self.dtype, self.header, start, stop)
        if self.loss is None:
            return tokens, None
        loss = read_numbers(self.loss.path, self.loss.dtype, self.loss.header, start, stop)
        if len(wrong := np.flatnonzero((loss != 0) & (loss != 1))):
            at = int(wrong[0])
            raise CorruptStore(
                f"{self.loss.path}: loss of token {start + at:,}: expected 0 or 1, found {loss[at]}",
                hint="it is not the loss mask of these tokens, or damaged",
            )
        return tokens, loss.astype(np.uint8)

    def positions(self, places: np.ndarray) -> np.ndarray:
        return self.header + places.astype(np.int64) * self.dtype.itemsize

    def pieces(self, start: int, stop: int) -> Pieces:
        pieces = [self._piece(self.file, self.header, self.dtype.itemsize, start, stop)]
        if self.loss is not None:
            loss = self.loss
            pieces.append(self._piece(loss.file, loss.header, loss.dtype.itemsize, start, stop))
        if start == 0:
            pieces += [(number, 0, self._files[number].bytes) for number in self._beside]
        return tuple(pieces)

    def _piece(self, number: int, header: int, size: int, start: int, stop: int) -> tuple[int, int, int]:
        """Piece of a file; the first one includes the header, the last one any bytes after the tokens."""
        first = header + start * size if start else 0
        return number, first, self._files[number].bytes if stop == self.tokens else header + stop * size


def read_numbers(path: str | Path, dtype: np.dtype, header: int, start: int, stop: int) -> np.ndarray:
    """Numbers `start` up to `stop` of a file of numbers after a header.

    Raises:
        CorruptStore: the file cannot be read, or is too short.
    """
    array = np.empty(stop - start, dtype)
    view = array.view(np.uint8).data
    position, done = header + start * dtype.itemsize, 0
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            while done < len(view) and (taken := os.preadv(descriptor, [view[done:]], position + done)):
                done += taken
        finally:
            os.close(descriptor)
    except OSError as error:
        raise CorruptStore(f"cannot read {path}: {error.strerror or error}") from error
    if done < len(view):
        raise CorruptStore(
            f"{path} ends at byte {position + done:,}: expected number {stop - 1:,} of {dtype.name} "
            f"at byte {header + (stop - 1) * dtype.itemsize:,}",
            hint="the file was cut off",
        )
    return array
