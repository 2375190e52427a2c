"""A store in an object store, read through a cache: whole files, and pieces of them (`pieces`).

Whatever arrives is checked before anyone sees it, fetched again if it is damaged, and kept in the cache by
the checksum of its content, so that a store that changes never reads old bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from packline.errors import CorruptStore, PacklineError, StoreError
from packline.fingerprint import hash_bytes
from packline.storage.cache import Cache, CacheMemory, TemporaryCache
from packline.storage.places import HUB
from packline.store.fetching import Fetcher, Request, Traffic, missing
from packline.store.files import HINT, CacheSettings, FileEntry, StoreFiles, check_size
from packline.store.pieces import ATTEMPTS, Held, Ranges, RemoteFile, RemotePieces
from packline.store.shard import BLOCK_BYTES, split_sums
from packline.store.tables import SHARD_FILES, ShardEntry

if TYPE_CHECKING:
    from packline.store.manifest import Manifest
    from packline.store.shard import Shard

PIECE_BYTES = 1 << 20
"""Bytes of a piece of a store that fits into the cache."""
COMING_BYTES = 256 << 20
"""Bytes of small pieces that a process keeps for coming steps."""
RANGE_BYTES = 8 << 20
"""Bytes of a request: 8 to 16 MiB have the best ratio of rate and price on S3."""
FRESH_BYTES = 8 << 30
"""Bytes of files that are brought to be verified, and are deleted afterwards."""
FACTS = 64
"""Files whose size is known while they are verified: those of a unit."""
IN_FLIGHT = 16
"""Requests of one file that are made before the first is waited for."""


class Mirror(StoreFiles):
    """A store in an object store; see `StoreFiles`."""

    is_local = False
    place: str
    settings: CacheSettings

    def __init__(
        self, place: str, settings: CacheSettings, manifest: Manifest | None = None, as_it_is: bool = False
    ) -> None:
        if place.startswith(HUB):
            from packline.storage.hub_inputs import pinned

            place = pinned(place)  # by its commit, so that all requests read the same files
        self.place = place
        self.settings, self._as_it_is = settings, as_it_is
        self.cache: Cache = TemporaryCache(FRESH_BYTES) if as_it_is else settings.open()
        self.room = 0 if as_it_is else self.cache.most
        self.fetcher = fetcher = Fetcher(place)
        self._manifest, fetcher.reached = manifest, manifest is not None
        self._sums: dict[str, dict[str, np.ndarray]] = {}
        """Checksums of the blocks of each file of a shard, by its name and theirs."""
        self._ranges: dict[str, Ranges] = {}
        self._facts = lru_cache(FACTS)(lambda name: fetcher.storage.facts(name))

    def __reduce__(self) -> tuple[Any, ...]:
        return Mirror, (self.place, self.settings, self._manifest, self._as_it_is)

    def learn(self, manifest: Manifest) -> None:
        self._manifest, self.fetcher.reached = manifest, True

    def of(self, manifest: Manifest) -> Mirror:
        other = Mirror(self.place, self.settings, manifest)
        other.cache, other.fetcher = self.cache, self.fetcher
        return other

    def fresh(self) -> Mirror:
        return Mirror(self.place, self.settings, as_it_is=True)

    @property
    def manifest(self) -> Manifest:
        """Manifest of the store, once it is read."""
        assert self._manifest is not None
        return self._manifest

    @cached_property
    def pieces(self) -> RemotePieces:
        """Pieces of its files: of a store that is larger than the cache, small ones in memory.

        What a row needs of such a store is fetched for this row alone, and hardly ever used again.
        """
        most = self.cache.most
        cache, size = self.cache, PIECE_BYTES
        if self.manifest.store_bytes > most:
            most = min(most, COMING_BYTES) if isinstance(cache, CacheMemory) else COMING_BYTES
            cache, size = CacheMemory(most), BLOCK_BYTES
        return RemotePieces(self.place, cache, self.fetcher, self.bring_sums, size)

    @property
    def folder(self) -> Path:
        raise StoreError(f"{self.place} is remote: it has no local folder", hint="store.place is its URI")

    @property
    def ranges_room(self) -> int:
        return self.pieces.room

    @property
    def traffic(self) -> Traffic:
        return self.fetcher.traffic

    def numbers(
        self, file: FileEntry, dtype: np.dtype, count: int, holds: str, *, whole: bool
    ) -> np.ndarray | Ranges:
        expected = count * dtype.itemsize  # what arrives is compared with the entry
        check_size(self.path(file.name), expected, file.bytes, holds=holds)
        if whole:
            return self.map(file).view(dtype)
        if (found := self._ranges.get(file.name)) is None:
            found = self._ranges[file.name] = Ranges(self.pieces, self.file(file), dtype)
        return found

    def bring(self, files: Sequence[FileEntry]) -> None:
        self.bring_files(list(map(self.file, files)))

    @property
    def held(self) -> Held:
        return self.pieces.held

    def places(
        self, shards: Sequence[Shard], starts: np.ndarray, stops: np.ndarray
    ) -> tuple[list[int], list[int]]:
        return self.pieces.places(shards, starts, stops)

    def bring_ranges(
        self, shards: Sequence[Shard], starts: Sequence[int], stops: Sequence[int], due: float | None = None
    ) -> int:
        numbers = self.pieces.of_ranges(shards, starts, stops)
        if due is None:
            self.pieces.bring(numbers)
        else:
            self.pieces.expect(numbers, due)
        return self.pieces.bytes_of(numbers)

    def will_need(self, name: str, start: int, size: int) -> None:
        """No effect: the loader fetches what is due (`loading.ahead`)."""

    def names_in(self, folder: str) -> list[str]:
        return sorted(self.fetcher.storage.list(folder))

    def read_unlisted(self, name: str) -> bytes:
        return self.fetcher.storage.read(name)

    def read(self, file: FileEntry) -> bytes:
        return self.map(file).tobytes()

    def map(self, file: FileEntry) -> np.ndarray:
        return self.bring_files([self.file(file)])[0]

    def local(self, file: FileEntry) -> Path:
        remote = self.file(file)
        held = self.bring_files([remote])
        found = None if isinstance(self.cache, CacheMemory) else self.cache.path(remote.key)
        if found is None:
            raise StoreError(
                f"{self.path(file.name)}, {len(held[0]):,} bytes: expected it to stay in a cache folder",
                hint="give cache=DIR, and a larger cache_bytes",
            )
        return found

    def file(self, entry: FileEntry) -> RemoteFile:
        """One file of the store; nothing of it is fetched."""
        if not self._as_it_is:
            return RemoteFile(self, entry, entry.checksum, self._shard_of(entry.name))
        if (facts := self._facts(entry.name)) is None:
            raise missing(self.path(entry.name))
        key = hash_bytes(f"{self.path(entry.name)} {facts.etag} {facts.size}".encode())
        return RemoteFile(self, FileEntry(entry.name, facts.size, ""), key)

    @cached_property
    def _shards(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.manifest.shards.names("name"))}

    def _shard_of(self, name: str) -> ShardEntry | None:
        """Shard with the checksums of the blocks of a file; None for other files."""
        for kind, ending in SHARD_FILES.items():
            if self._manifest is not None and kind != "sums" and name.endswith(ending):
                number = self._shards.get(name.removesuffix(ending))
                return None if number is None else self.manifest.shards[number]
        return None

    def block_sums(self, shard: ShardEntry) -> dict[str, np.ndarray]:
        """Checksums of the blocks of a shard's files, by name; brought when they are first needed."""
        if shard.name not in self._sums:
            self._bring_sums([shard])
        return self._sums[shard.name]

    def bring_sums(self, files: Iterable[RemoteFile]) -> None:
        """Bring the checksums of the blocks of these files at once, where they have several pieces.

        A thread that fetches must find them: were all threads to wait for checksums, none would fetch them.
        """
        shards = (one.shard for one in files if one.shard and one.entry.bytes > self.pieces.size)
        if todo := {one.name: one for one in shards if one.name not in self._sums}:
            self._bring_sums(list(todo.values()))

    def _bring_sums(self, shards: Sequence[ShardEntry]) -> None:
        for shard, data in zip(
            shards, self.bring_files([self.file(one.files[-1]) for one in shards]), strict=True
        ):
            *others, sums = shard.files
            if (found := split_sums(data, [one.bytes for one in others])) is None:
                path = self.path(sums.name)
                raise CorruptStore(f"{path}: {len(data):,} bytes are not those of its blocks", hint=HINT)
            self._sums[shard.name] = {one.name: part for one, part in zip(others, found, strict=True)}

    def bring_files(self, files: Sequence[RemoteFile]) -> list[np.ndarray]:
        """Bring several files, whole and at once."""
        found = {file.key: self._find(file) for file in files}
        todo = {file.key: file for file in files if found[file.key] is None}
        damage: PacklineError = StoreError(f"{self.place}: nothing was fetched")
        for _ in range(ATTEMPTS):
            if todo:
                damage = self._bring_once(todo, found) or damage
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

    def _bring_once(
        self, todo: dict[str, RemoteFile], found: dict[str, np.ndarray | None]
    ) -> CorruptStore | None:
        """Fetch files once; those that arrive undamaged are moved from `todo` to `found`."""
        # The beginning of all files is requested first, then the rest of each one while it is written.
        ranges = {key: self._requests(file) for key, file in todo.items()}
        begun = {key: list(islice(requests, 1)) for key, requests in ranges.items()}
        damage = None
        for key, file in list(todo.items()):
            coming = ahead(chain(begun[key], ranges[key]), IN_FLIGHT)
            parts = (request.wait() for request in coming)
            try:
                found[key] = self.cache.add(key, file.entry.bytes, parts, check=file.damage)
                del todo[key]
            except CorruptStore as error:
                damage = error
        return damage

    def _requests(self, file: RemoteFile) -> Iterator[Request[bytes]]:
        """Requests for all ranges of a file, each made when it is taken."""
        size = file.entry.bytes
        for start in range(0, size, RANGE_BYTES):
            stop = min(start + RANGE_BYTES, size)
            yield self.fetcher.request(partial(self.fetcher.read, file.entry.name, start, stop))


def ahead(requests: Iterator[Request[bytes]], most: int) -> Iterator[Request[bytes]]:
    """Requests in order, with up to `most` of them made before the first is waited for."""
    waiting: deque[Request[bytes]] = deque()
    for request in requests:
        waiting.append(request)
        if len(waiting) > most:
            yield waiting.popleft()
    yield from waiting
