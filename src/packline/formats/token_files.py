"""Token files as documents: cut into units, and read one block at a time.

    IndexedReader   document ends come from an index           megatron, datatrove, olmo, forager
    ScannedReader   document ends come from a marker token     llmc, nanogpt, npy, stacks
                    in one stream of all files of a split

Files are read, not mapped, so a file that shrinks meanwhile is an error and does not crash the process.

In a stream, documents lie between cuts: after each marker with edges `eod` and `both`, before each with
`bos`; the stream's two ends are cuts as well, and a document there that lacks its marker is `truncated`. A
unit holds the documents that begin in its range of one file; they may continue in the next file. The marker
is an option, filled in from the tokenizer (`opening`); without one, each block of a unit is one truncated
document.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from packline.errors import CorruptStore
from packline.formats.format import DatasetReader
from packline.formats.types import DatasetFile, DocumentBlock, Edges, ReadTask
from packline.ragged import offsets_of
from packline.store.report import Findings

Pieces = tuple[tuple[int, int, int], ...]
"""(file, first byte, end byte), as in `ReadTask.pieces`."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """A file of numbers after a header: tokens, or their loss, 1 for a token that is trained on, else 0."""

    file: int
    path: str
    dtype: np.dtype
    header: int = 0
    """Bytes before the first number."""

    def read(self, start: int, stop: int) -> np.ndarray:
        return read_numbers(self.path, self.dtype, self.header, start, stop)

    def piece(self, start: int, stop: int, end: int | None) -> tuple[int, int, int]:
        """Piece of the file with these numbers; the first has the header, too, and the last one an `end`."""
        first = self.header + start * self.dtype.itemsize if start else 0
        return self.file, first, self.header + stop * self.dtype.itemsize if end is None else end


class TokenFile:
    """A file with a header of fixed size, then tokens to its end, numbered from 0.

    Args:
        tokens: number of tokens by the header; at most, and by default, those that the file holds.
        companions: numbers of files that belong to it, such as its index; covered by the first unit.
    """

    def __init__(
        self,
        files: Sequence[DatasetFile],
        number: int,
        dtype: np.dtype,
        *,
        split: str = "train",
        header: int = 0,
        tokens: int | None = None,
        loss: Numbers | None = None,
        companions: tuple[int, ...] = (),
    ) -> None:
        self.file, self.name, self.path = number, files[number].name, files[number].path
        self.split, self.dtype, self.header = split, dtype, header
        self._numbers = Numbers(number, self.path, dtype, header)
        room = max(files[number].bytes - header, 0) // dtype.itemsize
        self.tokens = room if tokens is None else min(tokens, room)
        self.loss = loss
        self._files, self._beside = files, companions

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Tokens from `start` up to `stop`, and uint8 0 or 1 per token, if there is a loss mask."""
        tokens = self._numbers.read(start, stop)
        if self.loss is None:
            return tokens, None
        loss = self.loss.read(start, stop)
        if len(wrong := np.flatnonzero((loss != 0) & (loss != 1))):
            at = int(wrong[0])
            raise CorruptStore(
                f"{self.loss.path}: loss of token {start + at:,}: expected 0 or 1, found {loss[at]}",
                hint="it is not the loss mask of these tokens, or damaged",
            )
        return tokens, loss.astype(np.uint8)

    def positions(self, places: np.ndarray) -> np.ndarray:
        """Positions, for provenance, of the documents that begin at these tokens, int64 `[n]`."""
        return self.header + places.astype(np.int64) * self.dtype.itemsize

    def pieces(self, start: int, stop: int) -> Pieces:
        """File pieces of a unit with these tokens; all units together cover the files exactly once."""
        pieces = []
        for one in (self._numbers, self.loss):
            if one is not None:  # bytes after the last number belong to its unit
                end = self._files[one.file].bytes if stop == self.tokens else None
                pieces.append(one.piece(start, stop, end))
        beside = self._beside if start == 0 else ()
        return (*pieces, *((number, 0, self._files[number].bytes) for number in beside))


def read_numbers(path: str | Path, dtype: np.dtype, header: int, start: int, stop: int) -> np.ndarray:
    """Numbers `start` up to `stop` of a file of numbers after a header."""
    array = np.empty(stop - start, dtype)
    view = array.view(np.uint8).data
    position, done = header + start * dtype.itemsize, 0
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(position)
            while done < len(view) and (taken := file.readinto(view[done:])):
                done += taken
    except OSError as error:
        raise CorruptStore(f"cannot read {path}: {error.strerror or error}") from error
    if done < len(view):
        raise CorruptStore(
            f"{path} ends at byte {position + done:,}: expected number {stop - 1:,} of {dtype.name} "
            f"at byte {header + (stop - 1) * dtype.itemsize:,}",
            hint="the file was cut off",
        )
    return array


UNIT_TOKENS = 1 << 24
"""Approximate tokens per unit."""
BLOCK_TOKENS = 1 << 20
BLOCK_DOCUMENTS = 1 << 16
LONGEST_DOCUMENT = 1 << 28
"""Most tokens between two markers; more means that the marker is wrong."""


class Ends(Protocol):
    """End offsets of documents, in tokens from the start of the file: an array, mapped or not, or similar."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any, /) -> Any:
        """An int for an int; integers `[n]` for a slice."""


class _TokenFilesReader(DatasetReader):
    def __init__(
        self,
        files: Sequence[DatasetFile],
        sources: Sequence[TokenFile],
        *,
        edges: Edges,
        findings: Findings,
        facts: dict[str, Any] | None = None,
    ) -> None:
        self.files, self.edges, self.facts = list(files), edges, facts or {}
        self.dtype = sources[0].dtype if sources else np.dtype("<u2")
        self.tokens = sum(source.tokens for source in sources)
        self.has_loss = any(source.loss is not None for source in sources)
        self._sources = {source.file: source for source in sources}
        for source in sources:
            findings.compare(source.name, "dtype, as of the first file", self.dtype.name, source.dtype.name)
            has_loss = source.loss is not None
            findings.compare(source.name, "loss mask, where other files have one", self.has_loss, has_loss)


class IndexedReader(_TokenFilesReader):
    """Token files with documents back to back and their ends in an index.

    Args:
        indexed: sources in document order, each with the ends of its documents, the last at `tokens`.
        ids: document ids, called with the file number, the first document, and the end of the range.

    `start` and `stop` of a unit are document numbers in its file.
    """

    def __init__(
        self,
        files: Sequence[DatasetFile],
        indexed: Sequence[tuple[TokenFile, Ends]],
        *,
        edges: Edges,
        findings: Findings,
        facts: dict[str, Any] | None = None,
        ids: Callable[[int, int, int], list[str | None]] | None = None,
    ) -> None:
        super().__init__(
            files, [source for source, _ in indexed], edges=edges, findings=findings, facts=facts
        )
        self.documents = sum(len(ends) for _, ends in indexed)
        self.units = []
        self._ends: dict[int, Ends] = {}
        self._ids = ids
        for source, ends in indexed:
            if check_ends(source.name, ends, source.tokens, findings):
                self._ends[source.file] = ends
                self.units += _indexed_units(source, ends)

    def blocks(self, unit: ReadTask) -> Iterator[DocumentBlock]:
        source, ends = self._sources[unit.file], self._ends[unit.file]
        first = unit.start
        while first < unit.stop:
            begin = int(ends[first - 1]) if first else 0
            stops = np.asarray(ends[first : min(first + BLOCK_DOCUMENTS, unit.stop)]).astype(np.int64)
            count = max(int(np.searchsorted(stops, begin + BLOCK_TOKENS, side="right")), 1)
            offsets = np.concatenate([[begin], stops[:count]])
            tokens, loss = source.read(begin, int(offsets[-1]))
            ids = None if self._ids is None else self._ids(unit.file, first, first + count)
            yield DocumentBlock(tokens, offsets - begin, loss, source.positions(offsets[:-1]), ids)
            first += count


def check_ends(name: str, ends: Ends, total: int, findings: Findings, what: str = "tokens") -> bool:
    """Note document ends that do not ascend from 0 to the number of tokens; return True if they do."""
    last = 0
    for start in range(0, len(ends), BLOCK_DOCUMENTS):
        found = np.asarray(ends[start : start + BLOCK_DOCUMENTS]).astype(np.int64)
        before = np.concatenate([[last], found[:-1]])
        if len(wrong := np.flatnonzero(found < before)):
            at = int(wrong[0])
            findings.add(name, f"end of document {start + at}", f"at least {before[at]}", int(found[at]))
            return False
        last = int(found[-1])
    return findings.compare(name, f"{what}, by the end of the last document", total, last)


def _indexed_units(source: TokenFile, ends: Ends) -> Iterator[ReadTask]:
    """Cut after the first document whose end reaches each multiple of `UNIT_TOKENS`."""
    cuts = [0]
    while cuts[-1] < len(ends):
        begun = int(ends[cuts[-1] - 1]) if cuts[-1] else 0
        reached = begun - begun % UNIT_TOKENS + UNIT_TOKENS
        cut = bisect_left(range(len(ends)), reached, cuts[-1], key=lambda document: int(ends[document]))
        cuts.append(min(cut + 1, len(ends)))
    # Documents without tokens after the last cut would make a unit that accounts for no bytes.
    while len(cuts) > 2 and int(ends[cuts[-2] - 1]) == source.tokens:
        del cuts[-2]
    if cuts == [0]:
        cuts = [0, len(ends)]
    for start, stop in pairwise(cuts):
        begin, end = (int(ends[cut - 1]) if cut else 0 for cut in (start, stop))
        yield ReadTask(source.split, source.file, start, stop, source.pieces(begin, end))


class ScannedReader(_TokenFilesReader):
    """Token files that form one stream per split, with documents separated by a marker.

    Args:
        sources: sources in stream order; those of a split form one stream.
        marker: token before (edges `bos`) or after (`eod`, `both`) every document; None if unknown.

    `start` and `stop` of a unit are tokens of its file.
    """

    def __init__(
        self,
        files: Sequence[DatasetFile],
        sources: Sequence[TokenFile],
        *,
        marker: int | None,
        edges: Edges,
        findings: Findings,
        facts: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(files, sources, edges=edges, findings=findings, facts=facts)
        self.marker = marker
        self.documents = None
        self.units = []
        self._streams = {
            split: _Stream([source for source in sources if source.split == split])
            for split in dict.fromkeys(source.split for source in sources)
        }
        for source in sources:
            for start in range(0, max(source.tokens, 1), UNIT_TOKENS):
                stop = min(start + UNIT_TOKENS, source.tokens)
                pieces = source.pieces(start, stop)
                self.units.append(ReadTask(source.split, source.file, start, stop, pieces))

    def blocks(self, unit: ReadTask) -> Iterator[DocumentBlock]:
        stream, source = self._streams[unit.split], self._sources[unit.file]
        before = stream.start_of(source)
        begin, end = before + unit.start, before + unit.stop
        if begin == end:
            return
        if self.marker is None:
            for place, tokens, loss in stream.read(begin, end):
                positions = source.positions(np.array([place - before]))
                yield DocumentBlock(
                    tokens, offsets_of([len(tokens)]), loss, positions, truncated=np.ones(1, bool)
                )
            return
        documents = _cut(stream, self.marker, self.edges == "bos", begin, end)
        for places, tokens, loss in documents:
            truncated = self._truncated(stream, places, tokens)
            yield DocumentBlock(
                tokens,
                places - places[0],
                loss,
                source.positions(places[:-1] - before),
                truncated=truncated,
            )

    def _truncated(self, stream: _Stream, places: np.ndarray, tokens: np.ndarray) -> np.ndarray | None:
        """Mask of documents without a marker, which only the first or the last of a stream may lack."""
        at = 0 if self.edges == "bos" else len(places) - 2
        edge = places[0] == 0 if self.edges == "bos" else places[-1] == stream.tokens
        if not edge or tokens[0 if self.edges == "bos" else -1] == self.marker:
            return None
        truncated = np.zeros(len(places) - 1, bool)
        truncated[at] = True
        return truncated


class _Stream:
    """Tokens of all sources of a split, one after another."""

    def __init__(self, sources: list[TokenFile]) -> None:
        self._sources = sources
        self._starts = [0, *accumulate(source.tokens for source in sources)]
        self.tokens = self._starts[-1]

    def start_of(self, source: TokenFile) -> int:
        """Number of tokens before a source."""
        return self._starts[self._sources.index(source)]

    def read(self, start: int, stop: int) -> Iterator[tuple[int, np.ndarray, np.ndarray | None]]:
        """Tokens of the stream, one source at a time: position of the first, tokens, loss."""
        place = start
        while place < stop:
            number = bisect_right(self._starts, place) - 1
            inner = place - self._starts[number]
            count = min(stop, self._starts[number + 1], place + BLOCK_TOKENS) - place
            tokens, loss = self._sources[number].read(inner, inner + count)
            yield place, tokens, loss
            place += count


def _cut(
    stream: _Stream, marker: int, before: bool, begin: int, end: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
    """Documents of a stream that begin from `begin` up to `end`, several at a time.

    Yields:
        Cuts, int64 `[n+1]`, stream positions where n documents begin and the last of them ends; their
        tokens; their loss.
    """
    held: list[tuple[np.ndarray, np.ndarray | None]] = []
    opened: int | None = 0 if begin == 0 else None  # position where the first document in `held` begins
    size = 0
    # With a marker at the end, the token before `begin` decides whether a document begins there.
    for place, tokens, loss in stream.read(begin - 1 if begin and not before else begin, stream.tokens):
        cuts = np.flatnonzero(tokens == marker) + (place if before else place + 1)
        if opened is None:
            cuts = cuts[cuts >= begin]
            if len(cuts) and cuts[0] < end:
                opened = int(cuts[0])
                tokens, loss = _from(tokens, loss, opened - place)
                place = opened
            elif place + len(tokens) < end:
                continue
            else:
                return  # no document begins in this unit
        cuts = cuts[cuts > opened]
        last = int(np.searchsorted(cuts, end))
        finished = last < len(cuts)
        cuts = cuts[: last + 1]
        if not finished and place + len(tokens) == stream.tokens:
            cuts, finished = np.append(cuts, stream.tokens), True
        if len(cuts) and held:  # a document from several reads gets its own block, so that no other is copied
            part = int(cuts[0]) - place
            held.append((tokens[:part], None if loss is None else loss[:part]))
            yield np.array([opened, cuts[0]], np.int64), *_joined(held)
            opened, held, size = int(cuts[0]), [], 0
            tokens, loss = _from(tokens, loss, part)
            place, cuts = opened, cuts[1:]
        if len(cuts):
            part = int(cuts[-1]) - place
            places = np.concatenate([[opened], cuts]).astype(np.int64)
            yield places, tokens[:part], None if loss is None else loss[:part]
            opened = int(cuts[-1])
            tokens, loss = _from(tokens, loss, part)
        if finished:
            return
        held.append((tokens, loss))
        size += len(tokens)
        if size > LONGEST_DOCUMENT:
            raise CorruptStore(
                f"no token {marker} within {size:,} tokens from token {opened:,} of the stream: "
                f"expected one {'before' if before else 'behind'} every document",
                hint="name the token between documents, and its side (edges)",
            )


def _from(tokens: np.ndarray, loss: np.ndarray | None, start: int) -> tuple[np.ndarray, np.ndarray | None]:
    return tokens[start:], None if loss is None else loss[start:]


def _joined(held: list[tuple[np.ndarray, np.ndarray | None]]) -> tuple[np.ndarray, np.ndarray | None]:
    if len(held) == 1:
        return held[0]
    tokens = np.concatenate([tokens for tokens, _ in held])
    losses = [loss for _, loss in held if loss is not None]
    return tokens, np.concatenate(losses) if losses else None
