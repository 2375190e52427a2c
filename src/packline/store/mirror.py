"""A store in an object store, read through a cache: whole files, and pieces of them.

    read, map, local     a whole file, brought by parallel ranges, checked by its checksum in the manifest
    pieces               some pieces of it, checked by `NAME.sums`

Whatever arrives is checked before anyone sees it, fetched again if it is damaged, and kept in the cache by
the checksum of its content, so that a store that changes never reads old bytes. Opening reads the manifest
and its tables; the sizes of the shards are in the tables, so there is no request for each shard.

Requests are made by threads of the process that reads (`store.fetching`). A forked
process makes new threads and clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from packline.errors import PacklineError, StoreError
from packline.fingerprint import hash_bytes
from packline.storage.cache import Cache, CacheMemory, Sink, TemporaryCache
from packline.storage.places import HUB
from packline.store.fetching import Fetcher, Request, Traffic, missing
from packline.store.files import FileEntry
from packline.store.paths import CacheSettings
from packline.store.pieces import ATTEMPTS, Ranges, RemotePieces
from packline.store.remote_file import RemoteFile, ShardSums
from packline.store.sums import BLOCK_BYTES, count_blocks
from packline.store.tables import SHARD_FILES, ShardEntry, ShardRows

if TYPE_CHECKING:
    from packline.store.manifest import Manifest

PIECE_BYTES = 1 << 20
"""Bytes of a piece of a store that fits into the cache."""
COMING_BYTES = 256 << 20
"""Bytes of small pieces that a process keeps for coming steps."""
RANGE_BYTES = 8 << 20
"""Bytes of a request: 8 to 16 MiB have the best ratio of rate and price on S3."""
FRESH_BYTES = 8 << 30
"""Bytes of files that are brought to be verified, and are deleted afterwards."""
IN_FLIGHT = 16
"""Requests of one file that are made before the first is waited for."""


def _fixed(place: str) -> str:
    """A place whose files do not change: of a repository on the hub, one commit."""
    if not place.startswith(HUB):
        return place
    from packline.storage.hub_inputs import pinned

    return pinned(place)


class Mirror:
    """A store in an object store.

    Args:
        place: its URI.
        settings: where pieces are kept.
        fresh: bring every file anew, and compare nothing: for `verify`, which compares itself.

    Raises:
        StoreError: the place is no URI of an object store, or the cache cannot be written to.
    """

    def __init__(self, place: str, settings: CacheSettings, *, fresh: bool = False) -> None:
        self.place, self.settings, self.fresh = _fixed(place), settings, fresh
        self.cache: Cache = TemporaryCache(FRESH_BYTES) if fresh else settings.open()
        self.fetcher = Fetcher(place)
        self.manifest: Manifest | None = None
        """Manifest of the store, once it is read."""
        self._sums: dict[str, ShardSums] = {}
        self._ranges: dict[str, Ranges] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.place, self.settings, self.fresh, self.manifest)

    @cached_property
    def pieces(self) -> RemotePieces:
        """Pieces of its files: of a store that is larger than the cache, small ones in memory.

        What a row needs of such a store is fetched for this row alone, and hardly ever used again.
        """
        assert self.manifest is not None
        most = self.cache.most
        cache, size = self.cache, PIECE_BYTES
        if self.manifest.store_bytes > most and has_small_blocks(self.manifest.shards):
            cache, size = CacheMemory(min(most, COMING_BYTES)), BLOCK_BYTES
        return RemotePieces(self.place, cache, self.fetcher, self.bring_sums, size, most)

    @property
    def folder(self) -> Path:
        """See `StoreFiles.folder`."""
        raise StoreError(f"{self.place} is remote: it has no local folder", hint="store.place is its URI")

    @property
    def room(self) -> int:
        """See `StoreFiles.room`."""
        return 0 if self.fresh else self.cache.most

    def numbers(self, file: FileEntry, dtype: np.dtype, holds: str, *, whole: bool) -> np.ndarray | Ranges:
        """See `StoreFiles.numbers`."""
        if whole:
            return self.map(file.name).view(dtype)
        if (found := self._ranges.get(file.name)) is None:
            found = self._ranges[file.name] = Ranges(self.pieces, self.file(file.name), dtype)
        return found

    def bring(self, names: Sequence[str]) -> None:
        """See `StoreFiles.bring`."""
        self.bring_files([self.file(name) for name in names])

    def will_need(self, name: str, start: int, size: int) -> None:
        """Nothing: what is due is fetched by the loader (`loading.fetch_ahead`)."""

    @property
    def traffic(self) -> Traffic:
        """Requests and waits of this process."""
        return self.fetcher.traffic

    @cached_property
    def _entries(self) -> dict[str, FileEntry]:
        """Entries of all files but those of shards."""
        assert self.manifest is not None
        found = {entry.name: entry for entry in (*self.manifest.tokenizer_files, *self.manifest.tables)}
        for unit in self.manifest.units:
            found |= {entry.name: entry for entry in (unit.receipt, *unit.rejects)}
        return found

    @cached_property
    def _shards(self) -> dict[str, int]:
        assert self.manifest is not None
        return {name: number for number, name in enumerate(self.manifest.shards.names("name"))}

    def entry(self, name: str) -> FileEntry | None:
        """Entry of a file in the manifest; None if it is not listed, or the manifest is not read yet."""
        if self.manifest is None:
            return None
        if (shard := self._entry_of_shard(name)) is not None:
            return next((one for one in shard.files if one.name == name), None)
        small = {entry.name: entry for entry in (*self.manifest.tokenizer_files, *self.manifest.tables)}
        return small.get(name) or self._entries.get(name)

    def _entry_of_shard(self, name: str) -> ShardEntry | None:
        """Shard that a file belongs to; None for other files."""
        for ending in SHARD_FILES.values():
            if name.endswith(ending) and (number := self._shards.get(name.removesuffix(ending))) is not None:
                return self.manifest.shards[number] if self.manifest is not None else None
        return None

    def sums_of(self, shard: ShardEntry) -> ShardSums:
        """Checksums of the MiB of a shard's files; the same object each time."""
        return self._sums.setdefault(shard.name, ShardSums(self, shard))

    def _sums_of_file(self, name: str) -> ShardSums | None:
        if self.manifest is None or name.endswith(SHARD_FILES["sums"]):
            return None
        shard = self._entry_of_shard(name)
        return None if shard is None else self.sums_of(shard)

    def names_in(self, folder: str) -> list[str]:
        """Names of the files directly in a folder, sorted."""
        return sorted(self.fetcher.storage.list(folder))

    def read(self, name: str, entry: FileEntry | None = None) -> bytes:
        """Whole content of a small file, which is kept if it is listed.

        Raises:
            FileNotFoundError: there is no such file.
            CorruptStore: it differs from its entry.
        """
        entry = entry or self.entry(name)
        if entry is None and not self.fresh:
            return self.fetcher.storage.read(name)
        return self.map(name, entry).tobytes()

    def map(self, name: str, entry: FileEntry | None = None) -> np.ndarray:
        """Bytes of a file, whole, uint8 `[N]`, read-only; valid as long as the array exists.

        Raises:
            CorruptStore: it is missing, or differs from its entry.
        """
        return self.bring_files([self.file(name, entry)])[0]

    def local(self, name: str) -> Path:
        """File with the content of one in the store; the cache may delete it later.

        Raises:
            CorruptStore: it is missing, or differs from its entry.
        """
        file = self.file(name)
        held = self.bring_files([file])
        found = self.cache.path(file.key)
        if found is None:
            raise StoreError(
                f"{self.place}/{name} was evicted while it was used: {len(held[0]):,} bytes",
                hint="give a larger cache_bytes",
            )
        return found

    def file(self, name: str, entry: FileEntry | None = None) -> RemoteFile:
        """One file of the store; nothing is fetched.

        Raises:
            CorruptStore: there is no such file.
        """
        entry = entry or self.entry(name)
        if entry is None or self.fresh:
            facts = self.fetcher.storage.facts(name)
            if facts is None:
                raise missing(f"{self.place}/{name}")
            # Without an entry nothing is compared; the key is that of this state of the file.
            key = hash_bytes(f"{self.place}/{name} {facts.etag} {facts.size}".encode())
            return RemoteFile(self, FileEntry(name, facts.size, ""), key)
        return RemoteFile(self, entry, entry.checksum, self._sums_of_file(name))

    def bring_files(self, files: Sequence[RemoteFile]) -> list[np.ndarray]:
        """Bring several files, whole and at once.

        Raises:
            CorruptStore: one is missing, or differs from its entry.
            OutOfSpace: the disk of the cache is full.
        """
        found = {file.key: self._find(file) for file in files}
        todo = {file.key: file for file in files if found[file.key] is None}
        damage: PacklineError = StoreError(f"{self.place}: nothing was fetched")
        for _ in range(ATTEMPTS):
            if not todo:
                break
            damage = self._bring_once(todo, found)
        if todo:
            raise damage
        return [array for file in files if (array := found[file.key]) is not None]

    def _find(self, file: RemoteFile) -> np.ndarray | None:
        """A whole file of the cache; None if it is absent, or was damaged there."""
        found = self.cache.find(file.key)
        if found is not None and file.damage(found) is not None:
            self.cache.drop(file.key)
            return None
        return found

    def _bring_once(self, todo: dict[str, RemoteFile], found: dict[str, np.ndarray | None]) -> PacklineError:
        """Fetch files once; those that arrive undamaged are moved from `todo` to `found`."""
        # The beginning of all files is requested first, then the rest of each one while it is written.
        ranges = {key: self._requests(file) for key, file in todo.items()}
        begun = {key: list(islice(requests, 1)) for key, requests in ranges.items()}
        damage: PacklineError = StoreError("nothing to fetch")
        for key, file in list(todo.items()):
            requests = ahead(chain(begun[key], ranges[key]), IN_FLIGHT)
            array = self.cache.add(key, file.entry.bytes, partial(_write, requests))
            if (wrong := file.damage(array)) is None:
                found[key] = array
                del todo[key]
            else:
                self.cache.drop(key)
                damage = wrong
        return damage

    def bring_sums(self, files: Iterable[RemoteFile]) -> None:
        """Bring the checksums of the blocks of these files at once.

        A thread that fetches must find them: were all threads to wait for checksums, none would fetch them.
        """
        sums = {file.sums.entry.name: file.sums for file in files if file.sums is not None}
        todo = [one for one in sums.values() if one.are_needed(self.pieces.size)]
        for one, data in zip(todo, self.bring_files([one.file for one in todo]), strict=True):
            one.take(data)

    def _requests(self, file: RemoteFile) -> Iterator[Request]:
        """Requests for all ranges of a file, each made when it is taken."""
        size = file.entry.bytes
        for start in range(0, size, RANGE_BYTES):
            yield self.fetcher.request(file.entry.name, start, min(start + RANGE_BYTES, size))


def has_small_blocks(shards: ShardRows) -> bool:
    """True if the checksums of all shards are of small blocks, which those of format 2 are not."""
    kinds = [kind for kind in SHARD_FILES if kind != "sums"]
    blocks = np.zeros(len(shards), np.int64)
    for kind in kinds:
        blocks += count_blocks(shards.numbers(f"{kind}_bytes"), BLOCK_BYTES)
    return bool(np.array_equal(8 * blocks, shards.numbers("sums_bytes")))


def ahead(requests: Iterator[Request], most: int) -> Iterator[Request]:
    """Requests in order, with up to `most` of them made before the first is waited for."""
    waiting: deque[Request] = deque()
    for request in requests:
        waiting.append(request)
        if len(waiting) > most:
            yield waiting.popleft()
    yield from waiting


def _reopen(place: str, settings: CacheSettings, fresh: bool, manifest: Manifest | None) -> Mirror:
    mirror = Mirror(place, settings, fresh=fresh)
    mirror.manifest = manifest
    return mirror


def _write(requests: Iterable[Request], sink: Sink) -> None:
    """Pass on what requests bring, as it arrives."""
    for request in requests:
        sink(request.wait(), request.start)
