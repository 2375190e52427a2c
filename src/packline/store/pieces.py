"""Pieces of remote files, for batches and single documents: fetched, checked, and kept in the cache.

    find      a piece that this process holds, or the cache has
    bring     several pieces: those that are absent are fetched at once, neighbours by one request
    expect    the same ahead of time, without waiting

A piece is compared with its checksum when it arrives and when this process first takes it from the cache. A
process holds the maps of the pieces it used last; a held piece costs one look-up.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from packline.errors import CorruptStore, PacklineError, StoreError
from packline.storage.cache import Cache
from packline.store.fetching import Arriving, Fetcher, Request
from packline.store.files import NumberRanges
from packline.store.remote_file import RemoteFile
from packline.store.shard import Shard, wrong_place
from packline.store.sums import count_blocks

Held = dict[int, np.ndarray]
"""Pieces by their number in the store: numbers of their file's dtype `[N]`."""
ATTEMPTS = 3
"""Number of times that bytes are fetched before damage is reported."""
RUN_BYTES = 8 << 20
"""Bytes of a request, at most."""
HELD_SHARE = 8
"""A process holds maps of up to this part of the cache."""
LEAST_HELD = 64 << 20
SOON = 1.0
"""Seconds until what is fetched for the next step of a pass is used. No earlier use is recorded."""
DUES = 1 << 16
"""Times of use that are remembered before those that have passed are forgotten."""


class Coming(NamedTuple):
    """A request for pieces, and the pieces that it has brought."""

    request: Request
    kept: Held


class FilePieces(NamedTuple):
    """Pieces of one file."""

    file: RemoteFile
    dtype: np.dtype
    """Dtype of the numbers in the file; its size divides a MiB."""
    first: int
    """Number of its first piece in the store."""


class RemotePieces:
    """Pieces of all files of one store, numbered in the order in which the files are first used.

    Args:
        place: URI of the store.
        cache: where pieces are kept.
        fetcher: makes the requests.
        bring_sums: brings the checksums of the blocks of files.
        size: bytes of a piece, a multiple of those of a block.
        most: bytes that one batch may need.
    """

    def __init__(
        self,
        place: str,
        cache: Cache,
        fetcher: Fetcher,
        bring_sums: Callable[[Iterable[RemoteFile]], None],
        size: int,
        most: int,
    ) -> None:
        self.size, self.room = size, cache.most
        """Bytes of a piece, and those that are kept."""
        self._most_needed = most
        self._place, self._cache, self._fetcher, self._bring_sums = place, cache, fetcher, bring_sums
        self._files: list[FilePieces] = []
        self._ends: list[int] = []
        """One past the last piece of each file."""
        self._short: dict[int, int] = {}
        """Bytes that the last piece of a file lacks of a MiB."""
        self.held: Held = {}
        """Pieces that this process has mapped and compared with their checksums."""
        self._held_bytes = 0
        self._most = max(cache.most // HELD_SHARE, LEAST_HELD)
        self._due: dict[int, float] = {}
        """Recorded times of use; only those to come count."""
        self._process = 0
        self._make()

    def _make(self) -> None:
        self._coming: dict[int, Coming] = {}
        self._lock = threading.Lock()

    def _own(self) -> None:
        if self._process != os.getpid():
            self._make()
            self._process = os.getpid()

    def enter(self, file: RemoteFile, dtype: np.dtype) -> int:
        """Number the pieces of a file; return the number of the first."""
        self._own()
        with self._lock:
            first = self._ends[-1] if self._ends else 0
            self._files.append(FilePieces(file, dtype, first))
            self._ends.append(first + count_blocks(file.entry.bytes, self.size))
            if missing := -file.entry.bytes % self.size:
                self._short[self._ends[-1] - 1] = missing
        return first

    def _place_of(self, number: int) -> FilePieces:
        """File of a piece."""
        return self._files[bisect_right(self._ends, number)]

    def find(self, number: int) -> np.ndarray | None:
        """A piece that is here, valid as long as the array exists; None if it is absent."""
        held = self.held.get(number)
        if held is not None:
            return held
        file, _, first = self._place_of(number)
        key = file.piece_key(number - first, self.size)
        found = self._cache.find(key)
        if found is None:
            return None
        if file.piece_damage(number - first, self.size, found) is not None:
            self._cache.drop(key)  # the machine stopped, or something wrote there
            return None
        return self._hold(number, found)

    def get(self, number: int) -> np.ndarray:
        """A piece, fetched if it is absent.

        Raises:
            CorruptStore: the file is missing or damaged in the object store.
        """
        held = self.held.get(number)
        return self.bring([number])[number] if held is None else held

    def bring(self, numbers: Collection[int]) -> Held:
        """Several pieces; those that are absent are fetched at once.

        Raises:
            CorruptStore: a file is missing, or still damaged after several attempts.
            StoreError: they do not fit into the cache together, or the object store cannot be reached.
        """
        held = self.held
        try:
            return {number: held[number] for number in numbers}
        except KeyError:
            found = {number: piece for number in numbers if (piece := held.get(number)) is not None}
            return self._bring(numbers, found)

    def _bring(self, numbers: Collection[int], found: Held) -> Held:
        self._own()
        files = {number: self._place_of(number) for number in numbers}
        self._check_room(self.bytes_of(files))
        self._bring_sums(one.file for number, one in files.items() if number not in found)
        damage: PacklineError | None = None
        for _ in range(ATTEMPTS):
            todo = []
            for number in files.keys() - found.keys():
                if (here := self.find(number)) is None:
                    todo.append(number)
                else:
                    found[number] = here
            if not todo:
                break
            damage = self._wait_for(self._request(todo, 0.0, found), found)
        if files.keys() - found.keys():  # a request may also have brought neighbours
            raise damage or StoreError(f"{self._place}: pieces were evicted while they were brought")
        return found

    def expect(self, numbers: Iterable[int], due: float) -> None:
        """Fetch pieces that will be used at a time, in seconds since the epoch, without waiting."""
        self._own()
        now, known = time.time(), self._due
        todo: dict[int, RemoteFile] = {}
        recorded = max(due, now + SOON)  # a step of a fast loader costs less than recording each of its uses
        if len(known) > DUES:
            known = self._due = {number: when for number, when in known.items() if when > now}
        for number in numbers:
            if known.get(number, 0.0) <= now:  # else it is there, or coming, for an earlier use
                known[number] = recorded
                file, _, first = self._place_of(number)
                if not self._cache.expect(file.piece_key(number - first, self.size), recorded):
                    if (evicted := self.held.pop(number, None)) is not None:
                        self.held[number] = evicted  # the last that is let go, since no file has it
                    todo[number] = file
        if todo:
            self._bring_sums(todo.values())
            self._request(todo, due, {})

    def bytes_of(self, numbers: Collection[int]) -> int:
        """Bytes of pieces, each named once."""
        return len(numbers) * self.size - sum(self._short[last] for last in self._short.keys() & numbers)

    def waiting(self) -> int:
        """Number of pieces that are being fetched."""
        return len(self._coming)

    def _request(self, todo: Iterable[int], due: float, found: Held) -> list[Coming]:
        """Requests for absent pieces, made before or now; those that came meanwhile are added to `found`."""
        with self._lock:
            found |= {number: piece for number in todo if (piece := self.held.get(number)) is not None}
            todo = [number for number in todo if number not in found]
            made = {id(coming): coming for number in todo if (coming := self._coming.get(number)) is not None}
            requests = list(made.values())
            for one, first, count in self._runs(number for number in todo if number not in self._coming):
                start = first * self.size
                stop = min(start + count * self.size, one.file.entry.bytes)
                kept: Held = {}
                arrived = partial(self._arrived, one, first, count, due, kept)
                coming = Coming(self._fetcher.request(one.file.entry.name, start, stop, due, arrived), kept)
                self._coming |= dict.fromkeys(range(one.first + first, one.first + first + count), coming)
                requests.append(coming)
        return requests

    def _runs(self, numbers: Iterable[int]) -> Iterator[tuple[FilePieces, int, int]]:
        """Neighbouring pieces together: their file, the first of them in it, and how many."""
        run: list[int] = []
        one = None
        for number in sorted(numbers):
            file = self._place_of(number)
            if one is not None and (
                file is not one or number != run[-1] + 1 or len(run) * self.size >= RUN_BYTES
            ):
                yield one, run[0] - one.first, len(run)
                run = []
            one = file
            run.append(number)
        if one is not None:
            yield one, run[0] - one.first, len(run)

    def _arrived(
        self, one: FilePieces, first: int, count: int, due: float, kept: Held, arriving: Arriving | None
    ) -> None:
        """Check and keep what a request brings; runs in its thread."""
        try:
            if arriving is not None:
                self._keep(one, first, count, due, arriving, kept)
        finally:
            with self._lock:
                for number in range(one.first + first, one.first + first + count):
                    self._coming.pop(number, None)

    def _keep(
        self, one: FilePieces, first: int, count: int, due: float, arriving: Arriving, kept: Held
    ) -> None:
        file, damage = one.file, None
        for place in range(first, first + count):
            size, check = file.piece_bytes(place, self.size), partial(file.piece_damage, place, self.size)
            try:
                found = self._cache.add(
                    file.piece_key(place, self.size), size, partial(arriving.write, size), due, check
                )
            except CorruptStore as error:
                damage = error
            else:
                kept[one.first + place] = self._hold(one.first + place, found)
        if damage is not None:
            raise damage

    def _wait_for(self, requests: list[Coming], found: Held) -> PacklineError | None:
        """Wait for requests, and take what they bring; return the damage of one of them."""
        traffic, started = self._fetcher.traffic, time.monotonic()
        stalled = not all(coming.request.done for coming in requests)
        damage = None
        for coming in requests:
            try:
                coming.request.wait()
            except CorruptStore as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    raise
                damage = error
            found |= coming.kept
        if stalled:
            traffic.stalls += 1
            traffic.stall_seconds += time.monotonic() - started
        return damage

    def _hold(self, number: int, data: np.ndarray) -> np.ndarray:
        array = data.view(self._place_of(number).dtype)
        if number in self.held:
            return array
        self.held[number] = array
        self._held_bytes += array.nbytes
        while self._held_bytes > self._most and len(self.held) > 1:
            try:
                gone = self.held.pop(next(iter(self.held)))
            except (StopIteration, KeyError, RuntimeError):  # another thread was faster
                continue
            self._held_bytes -= gone.nbytes
        return array

    def _check_room(self, needed: int) -> None:
        most = self._most_needed
        if needed > most:
            raise StoreError(
                f"{self._place}: a batch needs {needed:,} bytes of the cache: expected cache_bytes of "
                f"at least that, found {most:,}",
                hint=f"give cache_bytes={needed:,}".replace(",", "_") + ", or smaller batches",
            )


class PieceRanges(NamedTuple):
    """N ranges of numbers, each in one piece."""

    numbers: list[int]
    """Piece of each."""
    begins: list[int]
    """First number of each within its piece."""
    masks: list[int] | None
    """Piece of the loss mask of each; None without masks."""

    def part(self, start: int, stop: int) -> PieceRanges:
        """Some of them."""
        masks = None if self.masks is None else self.masks[start:stop]
        return PieceRanges(self.numbers[start:stop], self.begins[start:stop], masks)


class Ranges:
    """Numbers of a remote file that are read in ranges, with the part of an array that batches use.

    Args:
        pieces: pieces of its store.
        file: a file of numbers.
        dtype: their dtype; its size divides a MiB.
    """

    def __init__(self, pieces: RemotePieces, file: RemoteFile, dtype: np.dtype) -> None:
        self._pieces, self.file, self._dtype = pieces, file, dtype
        self.piece_bytes = pieces.size
        self.per_piece = pieces.size // dtype.itemsize
        """Numbers in a piece."""
        self.first = pieces.enter(file, dtype)
        """Number of its first piece in the store."""
        self._length = file.entry.bytes // dtype.itemsize

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, where: slice) -> np.ndarray:
        """Numbers `start` to `stop`, a view where they are in one piece, else a copy."""
        start, stop, _ = where.indices(self._length)
        if stop <= start:
            return np.empty(0, self._dtype)
        first, last = start // self.per_piece, (stop - 1) // self.per_piece
        base = first * self.per_piece
        if first == last:
            return self._pieces.get(self.first + first)[start - base : stop - base]
        numbers = range(self.first + first, self.first + last + 1)
        found = self._pieces.bring(numbers)
        return np.concatenate([found[number] for number in numbers])[start - base : stop - base]

    def bring(self, ranges: Iterable[tuple[int, int]], *, wait: bool) -> None:
        """Fetch the pieces of several ranges at once; without waiting, for a later use."""
        numbers: set[int] = set()
        for start, stop in ranges:
            first, last = start // self.per_piece, (min(stop, self._length) - 1) // self.per_piece
            numbers.update(range(self.first + first, self.first + last + 1))
        if wait:
            self._pieces.bring(numbers)
        else:
            self._pieces.expect(numbers, time.time() + SOON)

    def item(self, place: int) -> int:
        """One number."""
        piece, inner = divmod(place, self.per_piece)
        return self._pieces.get(self.first + piece).item(inner)


class CutRanges(NamedTuple):
    """Ranges of tokens, cut into N parts where the pieces of their files end."""

    ranges: np.ndarray
    """int64 `[N]`: range that each part is of."""
    starts: np.ndarray
    """int64 `[N]`: first token of each part in its shard."""
    lengths: np.ndarray
    """int64 `[N]`: tokens."""
    pieces: PieceRanges


def cut_ranges(shards: Sequence[Shard], starts: Sequence[int], lengths: Sequence[int]) -> CutRanges:
    """Cut ranges of tokens, each at least one token, where the pieces of their files end.

    Raises:
        CorruptStore: a range is outside of its shard.
    """
    distinct = {shard: number for number, shard in enumerate(dict.fromkeys(shards))}
    of_ranges = np.array([distinct[shard] for shard in shards], np.int64)
    ranges = [_ranges_of(shard.token_ranges) for shard in distinct]
    per_piece = ranges[0].per_piece if ranges else 1
    begins = np.array(starts, np.int64)
    ends = begins + np.array(lengths, np.int64)
    sizes = np.array([len(one) for one in ranges], np.int64)[of_ranges]
    if (wrong := np.flatnonzero((begins < 0) | (ends > sizes))).size:
        place = int(wrong[0])
        raise wrong_place(shards[place], int(begins[place]), int(ends[place]))
    first = begins // per_piece
    counts = (ends - 1) // per_piece - first + 1
    which = np.arange(len(counts)).repeat(counts)
    of_cuts = of_ranges[which]
    piece = first[which] + np.arange(len(which)) - (counts.cumsum() - counts)[which]
    begins = np.maximum(begins[which], piece * per_piece)
    ends = np.minimum(ends[which], (piece + 1) * per_piece)
    numbers = np.array([one.first for one in ranges], np.int64)[of_cuts] + piece
    masks = None
    losses = [None if shard.loss_ranges is None else _ranges_of(shard.loss_ranges) for shard in distinct]
    if any(one is not None for one in losses):
        # A byte per token: the mask of a cut is in one piece.
        firsts = np.array([-1 if one is None else one.first for one in losses], np.int64)[of_cuts]
        masks = np.where(firsts < 0, numbers, firsts + begins // ranges[0].piece_bytes).tolist()
    found = PieceRanges(numbers.tolist(), (begins - piece * per_piece).tolist(), masks)
    return CutRanges(which, begins, ends - begins, found)


def _ranges_of(numbers: NumberRanges) -> Ranges:
    assert isinstance(numbers, Ranges)
    return numbers
