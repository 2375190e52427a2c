"""Files of rows, read back as documents: common parts of `npz` and `pt`.

    rows of files     a b c END | d e f g | h END . .          padding at the end of a row is left out
    joined            a b c END   d e f g h END                one stream, cut at a marker (`mapped`)
    separate          a b c END   d e f g   h END              the end of a row ends its document too

Joined rows become the original documents if rows were cut from a stream (packing concat, stored order). Other
rows were not neighbours, so joining would mix pieces of different documents; each row is then read alone,
and a document that continued in another row becomes two. `auto` decides by the `packline.json` of the export,
and joins if there is none.

Small files are read many at a time, as one source: provenance then refers to the first file of the source,
with the row number in the whole data set, from 0, as position.

Cost: one copy of the rows. Memory: one file, and one block.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from packline.formats.export_record import read_record
from packline.formats.format import Foreign
from packline.formats.importing.mapped import BLOCK_TOKENS, UNIT_TOKENS, Pieces, ScannedForeign, TokenSource
from packline.formats.shared.row_documents import cut_rows
from packline.formats.types import Block, Edges, ForeignFile, ForeignUnit, Options
from packline.ragged import offsets_of
from packline.store.report import Findings

Rows = tuple[np.ndarray, np.ndarray | None]
"""Tokens `[n, L]` and their loss mask, uint8."""
Load = Callable[[int], Rows]
"""Rows of a file, by its number."""


class RowFileOptions(Options, frozen=True):
    """Options for reading rows; they have no effect on writing."""

    rows: Literal["auto", "joined", "separate"] = "auto"
    """Reading: whether a document goes on in the next row; auto: as packline.json says, else joined."""
    edges: Literal["auto", "eod", "bos", "both", "none"] = "auto"
    """Reading: which boundary tokens documents have; auto: as packline.json says, else eod."""
    marker: int | None = None
    """Reading: the token between documents; default that of the tokenizer."""


class RowGroup(TokenSource):
    """Rows of a few consecutive files, without padding.

    Args:
        files: all files of the data set.
        numbers: numbers of the group's files among them.
        lengths: per file of the group, tokens of each row without padding, int64 `[n]`.
        first_row: number of rows of the data set before the group.
        beside: numbers of files that belong to the data set as a whole: this group covers them.
    """

    whole = True

    def __init__(
        self,
        files: Sequence[ForeignFile],
        numbers: Sequence[int],
        lengths: Sequence[np.ndarray],
        dtype: np.dtype,
        *,
        first_row: int,
        has_loss: bool = False,
        beside: Sequence[int] = (),
    ) -> None:
        self.file, self.name, self.split = numbers[0], files[numbers[0]].name, "train"
        self.dtype, self.has_loss = dtype, has_loss
        self._files, self._numbers, self._beside = files, numbers, beside
        self._first_row = first_row
        self.row_ends: np.ndarray = np.cumsum(np.concatenate([np.empty(0, np.int64), *lengths]))
        """int64 `[R]`: tokens of the group before the end of each row."""
        self._lengths = lengths
        self._begins = offsets_of([int(each.sum()) for each in lengths])
        self.tokens = int(self._begins[-1])
        self._held: tuple[int, tuple[np.ndarray, np.ndarray | None]] | None = None

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
        tokens, losses = [np.empty(0, self.dtype)], [np.empty(0, np.uint8)]
        inner = int(self._begins.searchsorted(start, "right")) - 1
        while start < stop:
            begin, end = int(self._begins[inner]), min(int(self._begins[inner + 1]), stop)
            if start < end:
                found, loss = self._file_tokens(inner)
                tokens.append(found[start - begin : end - begin])
                if loss is not None:
                    losses.append(loss[start - begin : end - begin])
                start = end
            inner += 1
        if len(tokens) == 2:  # one file, or a part of it
            return tokens[1], losses[-1] if self.has_loss else None
        return np.concatenate(tokens), np.concatenate(losses) if self.has_loss else None

    def positions(self, places: np.ndarray) -> np.ndarray:
        return self._first_row + self.row_ends.searchsorted(places, "right")

    def stretches(self, ends: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
        """Ranges to read at a time, about one block each; reads end at these ends.

        Args:
            ends: int64, ascending to the number of tokens in the group.

        Yields:
            Start and stop of a range, and the ends within it, relative to its start.
        """
        place, begin = 0, 0
        while place < len(ends):
            last = max(int(ends.searchsorted(begin + BLOCK_TOKENS, "right")), place + 1)
            stop = int(ends[last - 1])
            if stop > begin:
                yield begin, stop, ends[place:last] - begin
            place, begin = last, stop

    def pieces(self, start: int, stop: int) -> Pieces:
        return tuple((number, 0, self._files[number].bytes) for number in (*self._numbers, *self._beside))

    def _file_tokens(self, inner: int) -> tuple[np.ndarray, np.ndarray | None]:
        """All tokens of a file without padding; the last file is cached."""
        if self._held is None or self._held[0] != inner:
            self._held = None  # free one before the next is loaded
            self._held = inner, self._read_file(inner)
        return self._held[1]

    @abstractmethod
    def _read_file(self, inner: int) -> tuple[np.ndarray, np.ndarray | None]:
        """All tokens of a file of the group, without padding, and their loss mask."""


class PaddedRows(RowGroup):
    """Rows whose files are read whole by `load`, padding included."""

    def __init__(
        self,
        files: Sequence[ForeignFile],
        numbers: Sequence[int],
        lengths: Sequence[np.ndarray],
        dtype: np.dtype,
        load: Load,
        **settings: Any,
    ) -> None:
        super().__init__(files, numbers, lengths, dtype, **settings)
        self._load = load

    def _read_file(self, inner: int) -> tuple[np.ndarray, np.ndarray | None]:
        tokens, loss = self._load(self._numbers[inner])
        real = np.arange(tokens.shape[1]) < self._lengths[inner][:, None]
        if real.all():
            return tokens.reshape(-1), None if loss is None else loss.reshape(-1)
        return tokens[real], None if loss is None else loss[real]


def group_files(
    files: Sequence[ForeignFile],
    found: Sequence[tuple[int, np.ndarray]],
    dtype: np.dtype,
    load: Load,
    *,
    has_loss: bool = False,
    beside: Sequence[int] = (),
) -> list[RowGroup]:
    """Sources of several files each, enough for a unit.

    Args:
        found: file number and row lengths of each file, in row order.
    """
    groups: list[RowGroup] = []
    waiting: list[tuple[int, np.ndarray]] = []
    tokens = rows = 0
    for place, (number, lengths) in enumerate(found):
        waiting.append((number, lengths))
        tokens += int(lengths.sum())
        if tokens >= UNIT_TOKENS or place == len(found) - 1:
            numbers, all_lengths = [one for one, _ in waiting], [each for _, each in waiting]
            groups.append(
                PaddedRows(
                    files,
                    numbers,
                    all_lengths,
                    dtype,
                    load,
                    first_row=rows,
                    has_loss=has_loss,
                    beside=() if groups else beside,
                )
            )
            rows += sum(map(len, all_lengths))
            waiting, tokens = [], 0
    return groups


def open_rows(
    files: Sequence[ForeignFile],
    groups: Sequence[RowGroup],
    path: Path,
    options: RowFileOptions,
    findings: Findings,
    facts: dict[str, Any],
) -> Foreign:
    """Documents of these rows, read as determined by the options or `packline.json`."""
    bos_id = None if (record := read_record(folder_of(path))) is None else record.tokenizer.bos_id
    # Documents in rows have the store's boundary tokens.
    stored: Edges = "eod" if bos_id is None else "both"
    edges: Edges = stored if options.edges == "auto" else options.edges
    kind = _Separate if are_separate(path, options) else ScannedForeign
    foreign = kind(files, groups, marker=options.marker, edges=edges, findings=findings, facts=facts)
    if isinstance(foreign, _Separate):
        foreign.bos_id = bos_id
    return foreign


def are_separate(path: Path, options: RowFileOptions) -> bool:
    """True if rows do not continue in the next one: all but rows cut from one pass over a stream."""
    if options.rows != "auto":
        return options.rows == "separate"
    record = read_record(folder_of(path))
    if record is None:
        return False
    settings = record.settings
    if "seq_len" not in settings:
        return True  # rows of a run
    drawn = settings.get("seed") is not None or settings.get("epochs", 1) != 1
    return drawn or settings.get("packing", "concat") != "concat"


def folder_of(path: Path) -> Path:
    """Folder of a data set, given the folder or a file in it."""
    return path if path.is_dir() else path.parent


class _Separate(ScannedForeign):
    """Rows whose ends are document ends too."""

    bos_id: int | None = None
    """Begin-of-document token of the rows' store, if known."""

    def blocks(self, unit: ForeignUnit) -> Iterator[Block]:
        group = self._sources[unit.file]
        assert isinstance(group, RowGroup)
        for begin, stop, row_ends in group.stretches(group.row_ends):
            tokens, loss = group.read(begin, stop)
            offsets, unfinished = cut_rows(
                tokens, row_ends, marker=self.marker, edges=self.edges, bos_id=self.bos_id
            )
            yield Block(tokens, offsets, loss, group.positions(begin + offsets[:-1]), unfinished=unfinished)
