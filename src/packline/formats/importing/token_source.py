"""Where a foreign data set's tokens are read from: in order, numbered, from whatever holds them.

    TokenFile      a header of fixed size, then tokens to the end; perhaps a file of loss values beside it
    TokenSource    what it is to its readers; rows of tokens in other containers are one by their own `read`

Files are read, not mapped, so one that shrinks meanwhile is an error and not a crash of the process.
Cost: one copy of what is asked for. What it does not do: find documents (`mapped`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packline.errors import CorruptStore
from packline.formats.format import ForeignFile

Pieces = tuple[tuple[int, int, int], ...]
"""(file, first byte, one behind the last), as in `ForeignUnit.pieces`."""


class TokenSource(ABC):
    """Tokens in order, numbered from 0, of one file of a foreign data set."""

    file: int
    """Its number among the data set's files."""
    name: str
    """What messages call it."""
    split: str
    dtype: np.dtype
    tokens: int
    has_loss: bool = False
    whole: bool = False
    """Whether it must be one unit."""

    @abstractmethod
    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Tokens from `start` up to `stop`, and uint8 0 or 1 a token, where there is a loss mask.

        Raises:
            CorruptStore: they are not there, or the mask has other values.
        """

    @abstractmethod
    def positions(self, places: np.ndarray) -> np.ndarray:
        """What provenance says of the documents that begin at these tokens, int64 `[n]`."""

    @abstractmethod
    def pieces(self, start: int, stop: int) -> Pieces:
        """What a unit with these tokens accounts for: all such units together, the source's files once."""


@dataclass(frozen=True, slots=True)
class LossFile:
    """A file of one number a token: 0, or 1 for a token that is trained on."""

    file: int
    path: str
    dtype: np.dtype
    header: int = 0
    """Bytes before the first."""


class TokenFile(TokenSource):
    """A file that is a header of fixed size and then tokens, to its end.

    Args:
        files: all files of the data set.
        number: of this one among them.
        header: bytes before the first token.
        tokens: how many; by default all that the file has room for.
        loss: its loss mask.
        beside: numbers of files that belong to it, such as its index: the first unit accounts for them.
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
        """The first one has the header too, the last one whatever is behind the tokens."""
        first = header + start * size if start else 0
        return number, first, self._files[number].bytes if stop == self.tokens else header + stop * size


def read_numbers(path: str | Path, dtype: np.dtype, header: int, start: int, stop: int) -> np.ndarray:
    """Numbers `start` up to `stop` of a file of numbers behind a header.

    Raises:
        CorruptStore: the file cannot be read, or ends before.
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
