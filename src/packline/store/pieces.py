"""MiB of remote files, for batches and single documents: fetched, checked, and kept in the cache.

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
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from packline.errors import CorruptStore, PacklineError, StoreError
from packline.storage.cache import Cache, write_all
from packline.store.fetching import Fetcher, Request
from packline.store.remote_file import RemoteFile
from packline.store.sums import BLOCK_BYTES

Piece = tuple[RemoteFile, int]
"""A file, and the number of one of its MiB."""
ATTEMPTS = 3
"""Number of times that bytes are fetched before damage is reported."""
RUN = 8
"""Pieces of a request, at most."""
HELD_SHARE = 8
"""A process holds maps of up to this part of the cache."""
LEAST_HELD = 64 << 20


class Coming(NamedTuple):
    """A request for pieces, and the pieces that it has brought."""

    request: Request
    kept: dict[tuple[str, int], np.ndarray]


class RemotePieces:
    """Pieces of all files of one store.

    Args:
        place: URI of the store.
        cache: where pieces are kept.
        fetcher: makes the requests.
        bring_sums: brings the checksums of the MiB of files.
    """

    def __init__(
        self,
        place: str,
        cache: Cache,
        fetcher: Fetcher,
        bring_sums: Callable[[Iterable[RemoteFile]], None],
    ) -> None:
        self._place, self._cache, self._fetcher, self._bring_sums = place, cache, fetcher, bring_sums
        self._held: dict[tuple[str, int], np.ndarray] = {}
        self._held_bytes = 0
        self._most = max(cache.most // HELD_SHARE, LEAST_HELD)
        self._process = 0
        self._make()

    def _make(self) -> None:
        self._coming: dict[tuple[str, int], Coming] = {}
        self._lock = threading.Lock()

    def _own(self) -> None:
        if self._process != os.getpid():
            self._make()
            self._process = os.getpid()

    def find(self, file: RemoteFile, number: int) -> np.ndarray | None:
        """A piece that is here, uint8 `[N]`, valid as long as the array exists; None if it is absent."""
        held = self._held.get((file.key, number))
        if held is not None:
            return held
        key = file.piece_key(number)
        found = self._cache.find(key)
        if found is None:
            return None
        if file.piece_damage(number, found) is not None:  # the machine stopped, or something wrote there
            self._cache.drop(key)
            return None
        self._hold((file.key, number), found)
        return found

    def get(self, file: RemoteFile, number: int) -> np.ndarray:
        """A piece, fetched if it is absent.

        Raises:
            CorruptStore: the file is missing or damaged in the object store.
        """
        held = self._held.get((file.key, number))
        return self.bring([(file, number)])[file.key, number] if held is None else held

    def bring(self, wanted: Iterable[Piece]) -> dict[tuple[str, int], np.ndarray]:
        """Several pieces, by key of the file and number; those that are absent are fetched at once.

        Raises:
            CorruptStore: a file is missing, or still damaged after several attempts.
            StoreError: they do not fit into the cache together, or the object store cannot be reached.
        """
        self._own()
        pieces = {(file.key, number): (file, number) for file, number in wanted}
        self._check_room(sum(file.piece_bytes(number) for file, number in pieces.values()))
        self._bring_sums(file for file, _ in pieces.values())
        found: dict[tuple[str, int], np.ndarray] = {}
        damage: PacklineError | None = None
        for _ in range(ATTEMPTS):
            todo = {}
            for key, piece in pieces.items():
                if key not in found:
                    if (here := self.find(*piece)) is None:
                        todo[key] = piece
                    else:
                        found[key] = here
            if not todo:
                break
            damage = self._wait_for(self._request(todo, 0.0), found)
        if damage is not None and any(key not in found for key in pieces):
            raise damage
        return found

    def expect(self, wanted: Iterable[Piece], due: float) -> None:
        """Fetch pieces that will be used at a time, in seconds since the epoch, without waiting."""
        self._own()
        todo = {}
        for file, number in wanted:
            key = file.key, number
            if key not in todo and not self._cache.expect(file.piece_key(number), due):
                todo[key] = (file, number)
        self._request(todo, due)

    def waiting(self) -> int:
        """Number of pieces that are being fetched."""
        return len(self._coming)

    def _request(self, todo: dict[tuple[str, int], Piece], due: float) -> list[Coming]:
        """Requests for pieces that are absent: those already made, and new ones."""
        with self._lock:
            made = {id(coming): coming for key in todo if (coming := self._coming.get(key)) is not None}
            new = {key: piece for key, piece in todo.items() if key not in self._coming}
            requests = list(made.values())
            for file, first, count in _runs(new.values()):
                start = first * BLOCK_BYTES
                stop = min(start + count * BLOCK_BYTES, file.entry.bytes)
                kept: dict[tuple[str, int], np.ndarray] = {}
                arrived = partial(self._arrived, file, first, count, due, kept)
                coming = Coming(self._fetcher.request(file.entry.name, start, stop, due, arrived), kept)
                self._coming |= {(file.key, first + number): coming for number in range(count)}
                requests.append(coming)
        return requests

    def _arrived(
        self,
        file: RemoteFile,
        first: int,
        count: int,
        due: float,
        kept: dict[tuple[str, int], np.ndarray],
        data: bytes | None,
    ) -> None:
        """Check and keep what a request brought; runs in its thread."""
        try:
            if data is not None:
                self._keep(file, first, count, due, data, kept)
        finally:
            with self._lock:
                for number in range(first, first + count):
                    self._coming.pop((file.key, number), None)

    def _keep(
        self,
        file: RemoteFile,
        first: int,
        count: int,
        due: float,
        data: bytes,
        kept: dict[tuple[str, int], np.ndarray],
    ) -> None:
        damage: CorruptStore | None = None
        view = memoryview(data)
        for place in range(count):
            part = view[place * BLOCK_BYTES : (place + 1) * BLOCK_BYTES]
            number = first + place
            if (wrong := file.piece_damage(number, np.frombuffer(part, np.uint8))) is not None:
                damage = wrong
                continue
            write = partial(_write, part)
            kept[file.key, number] = self._cache.add(file.piece_key(number), len(part), write, due)
            self._hold((file.key, number), kept[file.key, number])
        if damage is not None:
            raise damage

    def _wait_for(
        self, requests: list[Coming], found: dict[tuple[str, int], np.ndarray]
    ) -> PacklineError | None:
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

    def _hold(self, key: tuple[str, int], array: np.ndarray) -> None:
        if key in self._held:
            return
        self._held[key] = array
        self._held_bytes += len(array)
        while self._held_bytes > self._most and len(self._held) > 1:
            try:
                gone = self._held.pop(next(iter(self._held)))
            except (StopIteration, KeyError, RuntimeError):  # another thread was faster
                continue
            self._held_bytes -= len(gone)

    def _check_room(self, needed: int) -> None:
        most = self._cache.most
        if needed > most:
            raise StoreError(
                f"{self._place}: a batch needs {needed:,} bytes of the cache: expected cache_bytes of "
                f"at least that, found {most:,}",
                hint=f"give cache_bytes={needed:,}".replace(",", "_") + ", or smaller batches",
            )


def _write(data: memoryview, file: int) -> None:
    write_all(file, data)


def _runs(pieces: Iterable[Piece]) -> Iterator[tuple[RemoteFile, int, int]]:
    """Neighbouring pieces together: file, number of the first, and how many."""
    by_file: dict[str, tuple[RemoteFile, list[int]]] = {}
    for file, number in pieces:
        by_file.setdefault(file.key, (file, []))[1].append(number)
    for file, numbers in by_file.values():
        numbers.sort()
        first = last = numbers[0]
        for number in numbers[1:]:
            if number != last + 1 or number - first >= RUN:
                yield file, first, last - first + 1
                first = number
            last = number
        yield file, first, last - first + 1


class Ranges:
    """Numbers of a remote file that are read in ranges, with the part of an array that batches use.

    Args:
        pieces: pieces of its store.
        file: a file of numbers.
        dtype: their dtype; its size divides a MiB.
    """

    def __init__(self, pieces: RemotePieces, file: RemoteFile, dtype: np.dtype) -> None:
        self._pieces, self.file, self._dtype = pieces, file, dtype

    def __len__(self) -> int:
        return self.file.entry.bytes // self._dtype.itemsize

    def __getitem__(self, where: slice) -> np.ndarray:
        """Numbers `start` to `stop`, a view where they are in one piece."""
        start, stop, _ = where.indices(len(self))
        if stop <= start:
            return np.empty(0, self._dtype)
        return read_byte_range(
            self._pieces, self.file, start * self._dtype.itemsize, stop * self._dtype.itemsize
        ).view(self._dtype)

    def item(self, place: int) -> int:
        """One number."""
        return int(self[place : place + 1][0])

    def pieces_of(self, start: int, stop: int) -> range:
        """Numbers of the pieces that hold numbers `start` to `stop`."""
        size = self._dtype.itemsize
        stop = min(stop, len(self))
        return range(start * size // BLOCK_BYTES, -(-stop * size // BLOCK_BYTES))


def read_byte_range(pieces: RemotePieces, file: RemoteFile, start: int, stop: int) -> np.ndarray:
    """Bytes of a file, uint8 `[stop - start]`: a view where they are in one piece, else a copy."""
    first, last = start // BLOCK_BYTES, (stop - 1) // BLOCK_BYTES
    if first == last:
        base = first * BLOCK_BYTES
        return pieces.get(file, first)[start - base : stop - base]
    found = pieces.bring([(file, number) for number in range(first, last + 1)])
    whole = np.concatenate([found[file.key, number] for number in range(first, last + 1)])
    base = first * BLOCK_BYTES
    return whole[start - base : stop - base]
