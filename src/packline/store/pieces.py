"""Pieces of remote files, for batches and single documents: fetched, checked, and kept in the cache.

A piece is compared with its checksum when it arrives and when this process first takes it from the cache. A
process holds the maps of the pieces it used last; a held piece costs one look-up.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from packline.errors import CorruptStore, PacklineError, StoreError
from packline.storage.cache import Cache
from packline.store.fetching import Fetcher, Request
from packline.store.files import HINT, FileEntry, content_problem
from packline.store.shard import BLOCK_BYTES, Shard, block_ranges, block_sums, count_blocks
from packline.store.tables import ShardEntry

if TYPE_CHECKING:
    from packline.store.mirror import Mirror

Held = dict[int, np.ndarray]
"""Pieces by their number in the store: numbers of their file's dtype `[N]`."""
ATTEMPTS = 3
"""Number of times that bytes are fetched before damage is reported."""
RUN_BYTES = 4 << 20
"""Bytes of a request, at most: as many times as there are threads, they may arrive at once."""
HELD_SHARE = 8
"""A process holds maps of up to this part of the cache."""
LEAST_HELD = 64 << 20
SOON = 1.0
"""Seconds until what is fetched for the next step of a pass is used. No earlier use is recorded."""
STORE_BITS = 40
"""Log2 of the numbers of pieces of a store: those of two stores of a process are never equal."""
DUES = 1 << 16
"""Times of use that are remembered before those that have passed are forgotten."""

_stores = itertools.count()


class RemoteFile(NamedTuple):
    """One file of a remote store."""

    store: Mirror
    entry: FileEntry
    """Its name, size and checksum; an empty checksum is not compared."""
    key: str
    """Key of the whole file in the cache."""
    shard: ShardEntry | None = None
    """Its shard, whose `NAME.sums` has the checksums of its blocks; None for a file that has none."""

    def piece_key(self, number: int, size: int) -> str:
        """Key of one of its pieces of this size in the cache; a file of one is the whole file."""
        return f"{self.key}-{number}-{size >> 10}" if self.entry.bytes > size else self.key

    def damage(self, data: np.ndarray) -> CorruptStore | None:
        """Error for bytes of the whole file that are not those of the manifest; None if they are."""
        if not (problem := self._problem(data)):
            return None
        place = ""
        if self.shard is not None and len(data) == self.entry.bytes:
            wrong = np.flatnonzero(block_sums(data) != self.store.block_sums(self.shard)[self.entry.name])
            place = f" in byte range {block_ranges(wrong)}" if len(wrong) else ""
        return CorruptStore(
            f"{self.store.path(self.entry.name)} arrived damaged{place}: {problem}", hint=HINT
        )

    def _problem(self, data: np.ndarray) -> str:
        if not self.entry.checksum and len(data) == self.entry.bytes:
            return ""
        return content_problem(self.entry, data.data)

    def piece_damage(self, number: int, size: int, data: np.ndarray) -> CorruptStore | None:
        """Error for a piece that is not the file's; None if it is."""
        start, stop = number * size, min((number + 1) * size, self.entry.bytes)
        problem = f"expected {stop - start:,} bytes, found {len(data):,}" if len(data) != stop - start else ""
        if not problem and stop - start == self.entry.bytes:
            # Not located: a thread that fetches cannot wait for checksums.
            problem = content_problem(self.entry, data.data)
        elif not problem and self.shard is not None:
            every = self.store.block_sums(self.shard)[self.entry.name]
            expected, found = every[start // BLOCK_BYTES : count_blocks(stop)], block_sums(data)
            if (wrong := np.flatnonzero(found != expected)).size:
                at = int(wrong[0])
                start += at * BLOCK_BYTES
                stop = min(start + BLOCK_BYTES, stop)
                problem = f"expected the checksum {expected[at]:016x}, found the checksum {found[at]:016x}"
        if not problem:
            return None
        return CorruptStore(
            f"{self.store.path(self.entry.name)}: bytes {start:,} to {stop:,} arrived damaged: {problem}",
            hint=HINT,
        )


class RemotePieces:
    """Pieces of all files of one store, numbered in the order in which the files are first used."""

    def __init__(
        self,
        place: str,
        cache: Cache,
        fetcher: Fetcher,
        bring_sums: Callable[[Iterable[RemoteFile]], None],
        size: int,
    ) -> None:
        self.size, self.room = size, cache.most
        """Bytes of a piece, and those that are kept."""
        self._place, self._cache, self._fetcher, self._bring_sums = place, cache, fetcher, bring_sums
        self._base = next(_stores) << STORE_BITS
        self._files: list[Ranges] = []
        self._ends: list[int] = []
        """One past the last piece of each file."""
        self._short: dict[int, int] = {}
        """Bytes that the last piece of a file lacks of a whole one."""
        self.held: Held = {}
        """Pieces that this process has mapped and compared with their checksums, the longest unused first."""
        self._most_held = max(cache.most // HELD_SHARE, LEAST_HELD) // size
        self._due: dict[int, float] = {}
        """Recorded times of use; only those to come count."""
        self._process = 0
        self._make()

    def _make(self) -> None:
        self._coming: dict[int, Request[Held]] = {}
        self._lock = threading.Lock()

    def _own(self) -> None:
        if self._process != os.getpid():
            self._make()
            self._process = os.getpid()

    def enter(self, ranges: Ranges) -> int:
        """Number the pieces of a file; return the number of the first."""
        self._own()
        with self._lock:
            first = self._ends[-1] if self._ends else self._base
            self._files.append(ranges)
            self._ends.append(first - -ranges.file.entry.bytes // self.size)
            if missing := -ranges.file.entry.bytes % self.size:
                self._short[self._ends[-1] - 1] = missing
        return first

    def _place_of(self, number: int) -> tuple[RemoteFile, int]:
        """File of a piece, and the number of the piece there."""
        ranges = self._files[bisect_right(self._ends, number)]
        return ranges.file, number - ranges.first

    def places(
        self, shards: Sequence[Shard], starts: np.ndarray, stops: np.ndarray
    ) -> tuple[list[int], list[int]]:
        """Piece of each range of tokens of this store, -1 where it is in several, and its begin there."""
        files: list[Any] = [shard.token_ranges for shard in shards]
        if not files:
            return [], []
        per_piece = files[0].per_piece
        first = starts // per_piece
        numbers = first + np.array([one.first for one in files], np.int64)
        numbers[(stops - 1) // per_piece != first] = -1
        return numbers.tolist(), (starts - first * per_piece).tolist()

    def of_ranges(self, shards: Sequence[Shard], starts: Sequence[int], stops: Sequence[int]) -> set[int]:
        """Pieces of ranges of tokens, and of what shards of this store say of their loss."""
        distinct = {shard: number for number, shard in enumerate(dict.fromkeys(shards))}
        of_ranges = np.array([distinct[shard] for shard in shards], np.int64)
        begins, ends = np.array(starts, np.int64), np.array(stops, np.int64)
        found: set[int] = set()
        for files in ([shard.token_ranges for shard in distinct], [shard.loss_ranges for shard in distinct]):
            mine = [one if isinstance(one, Ranges) and one.pieces is self else None for one in files]
            if (known := next((one for one in mine if one is not None), None)) is None:
                continue
            firsts, sizes = np.array([(-1, 0) if one is None else (one.first, len(one)) for one in mine]).T
            here = firsts[of_ranges] >= 0
            of_here = of_ranges[here]
            places = begins[here], np.minimum(ends[here], sizes[of_here]), firsts[of_here]
            found.update(_pieces_between(*places, known.per_piece))
        return found

    def get(self, number: int) -> np.ndarray:
        """A piece, fetched if it is absent; see `bring`."""
        held = self.held.get(number)
        return self.bring([number])[number] if held is None else held

    def bring(self, numbers: Collection[int]) -> Held:
        """Several pieces; those that are absent are fetched at once."""
        held = self.held
        try:
            found = {number: held[number] for number in numbers}
        except KeyError:
            found = self._bring(set(numbers))
        for number, array in found.items():
            self._use(number, array)
        return found

    def _bring(self, wanted: set[int]) -> Held:
        self._own()
        self._check_room(self.bytes_of(wanted))
        self._bring_sums(self._place_of(number)[0] for number in wanted - self.held.keys())
        found: Held = {}
        damage: PacklineError | None = None
        for _ in range(ATTEMPTS):
            here = {number: self._find(number) for number in wanted - found.keys()}
            found |= {number: piece for number, piece in here.items() if piece is not None}
            if not (todo := wanted - found.keys()):
                return found
            damage = self._wait_for(self._request(todo, 0.0), found)
        if wanted - found.keys():  # a request may also have brought neighbours
            raise damage or StoreError(f"{self._place}: pieces were evicted while they were brought")
        return found

    def _find(self, number: int) -> np.ndarray | None:
        """A piece that is here, valid as long as the array exists; None if it is absent."""
        if (held := self.held.get(number)) is not None:
            return held
        file, place = self._place_of(number)
        key = file.piece_key(place, self.size)
        if (found := self._cache.find(key)) is None:
            return None
        if file.piece_damage(place, self.size, found) is not None:
            self._cache.drop(key)  # the machine stopped, or something wrote there
            return None
        return self._hold(number, found)

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
                file, place = self._place_of(number)
                if not self._cache.expect(file.piece_key(place, self.size), recorded):
                    if (evicted := self.held.pop(number, None)) is not None:
                        self.held[number] = evicted  # the last that is let go, since no file has it
                    todo[number] = file
        if todo:
            self._bring_sums(todo.values())
            self._request(todo, due)

    def bytes_of(self, numbers: Collection[int]) -> int:
        """Bytes of pieces, each named once."""
        return len(numbers) * self.size - sum(self._short[last] for last in self._short.keys() & numbers)

    def _request(self, todo: Iterable[int], due: float) -> list[Request[Held]]:
        """Requests for absent pieces, made before or now; none for those that came meanwhile."""
        with self._lock:
            todo = [number for number in todo if number not in self.held]
            requests = list({self._coming[number]: None for number in todo if number in self._coming})
            for run in self._runs(number for number in todo if number not in self._coming):
                request = self._fetcher.request(partial(self._fetch, run, due), due)
                self._coming |= dict.fromkeys(run, request)
                requests.append(request)
        return requests

    def _runs(self, numbers: Iterable[int]) -> Iterator[list[int]]:
        """Neighbouring pieces of a file together."""
        run: list[int] = []
        for number in sorted(numbers):
            if run and (
                number != run[-1] + 1
                or len(run) * self.size >= RUN_BYTES
                or self._place_of(number)[1] == 0  # the first of another file
            ):
                yield run
                run = []
            run.append(number)
        if run:
            yield run

    def _fetch(self, run: list[int], due: float) -> Held:
        """Fetch neighbouring pieces, and keep those that are not damaged; runs in a thread that fetches."""
        try:
            file, first = self._place_of(run[0])
            start = first * self.size
            stop = min(start + len(run) * self.size, file.entry.bytes)
            data = memoryview(self._fetcher.read(file.entry.name, start, stop))
            damage, kept = None, {}
            for place, number in enumerate(run, first):
                part = data[(place - first) * self.size :][: self.size]
                key, check = file.piece_key(place, self.size), partial(file.piece_damage, place, self.size)
                try:
                    found = self._cache.add(key, len(part), [part], due, check)
                except CorruptStore as error:
                    damage = error
                else:
                    kept[number] = self._hold(number, found)
            if damage is not None:
                raise damage
            return kept
        finally:
            with self._lock:  # the request may end before it is entered
                for number in run:
                    self._coming.pop(number, None)

    def _wait_for(self, requests: list[Request[Held]], found: Held) -> PacklineError | None:
        """Wait for requests, and take what they bring; return the damage of one of them."""
        traffic, started = self._fetcher.traffic, time.monotonic()
        stalled = not all(request.done for request in requests)
        damage = None
        for request in requests:
            try:
                found |= request.wait()
            except CorruptStore as error:  # pieces that arrived with the damaged one are found in the cache
                if isinstance(error.__cause__, FileNotFoundError):
                    raise
                damage = error
        if stalled:
            traffic.stalls += 1
            traffic.stall_seconds += time.monotonic() - started
        return damage

    def _hold(self, number: int, data: np.ndarray) -> np.ndarray:
        array = data.view(self._files[bisect_right(self._ends, number)].dtype)
        self._use(number, array)
        return array

    def _use(self, number: int, array: np.ndarray) -> None:
        """Hold a piece as the one that is let go last."""
        self.held.pop(number, None)
        self.held[number] = array
        while len(self.held) > self._most_held:
            with suppress(StopIteration, KeyError, RuntimeError):  # another thread was faster
                del self.held[next(iter(self.held))]

    def _check_room(self, needed: int) -> None:
        if needed > self.room:
            raise StoreError(
                f"{self._place}: a batch needs {needed:,} bytes of the cache: expected cache_bytes of "
                f"at least that, found {self.room:,}",
                hint=f"give cache_bytes={needed:,}".replace(",", "_") + ", or smaller batches",
            )


class Ranges:
    """Numbers of a remote file, of which ranges are fetched, and compared with checksums on arrival."""

    def __init__(self, pieces: RemotePieces, file: RemoteFile, dtype: np.dtype) -> None:
        self.pieces, self.file, self.dtype = pieces, file, dtype
        self.per_piece = pieces.size // dtype.itemsize
        self.first = pieces.enter(self)
        self._length = file.entry.bytes // dtype.itemsize

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, where: slice) -> np.ndarray:
        """Numbers `start` to `stop`, a view where they are in one piece, else a copy."""
        start, stop, _ = where.indices(self._length)
        if stop <= start:
            return np.empty(0, self.dtype)
        first, last = start // self.per_piece, (stop - 1) // self.per_piece
        base = first * self.per_piece
        if first == last:
            return self.pieces.get(self.first + first)[start - base : stop - base]
        numbers = range(self.first + first, self.first + last + 1)
        found = self.pieces.bring(numbers)
        begin, *middle, end = (found[number] for number in numbers)
        return np.concatenate([begin[start - base :], *middle, end[: stop - last * self.per_piece]])

    def bring(self, ranges: Sequence[tuple[int, int]], *, wait: bool) -> None:
        """Fetch the pieces of several ranges at once; without waiting, for a later use."""
        starts, stops = np.array(ranges, np.int64).reshape(-1, 2).T
        numbers = _pieces_between(starts, np.minimum(stops, self._length), self.first, self.per_piece)
        if wait:
            self.pieces.bring(numbers)
        else:
            self.pieces.expect(numbers, time.time() + SOON)

    def item(self, place: int) -> int:
        """One number."""
        piece, inner = divmod(place, self.per_piece)
        return self.pieces.get(self.first + piece).item(inner)


def _pieces_between(
    starts: np.ndarray, stops: np.ndarray, firsts: np.ndarray | int, per_piece: int
) -> list[int]:
    """Pieces of ranges `[N]`, none of them empty, of files with these first pieces; each once, ascending."""
    first, last = starts // per_piece, (stops - 1) // per_piece
    counts = np.maximum(last - first + 1, 0)
    within = np.arange(counts.sum()) - (counts.cumsum() - counts).repeat(counts)
    return np.unique((first + firsts).repeat(counts) + within).tolist()
