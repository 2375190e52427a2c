"""A folder of an object store, as a `Storage`: S3, Google Cloud Storage, Azure, by obstore.

A file is created by one put with a condition (`If-None-Match: *`), never in parts, which know no condition
everywhere. "It exists" is a question, not an answer: our own put may have succeeded and its answer been lost,
or a store may have refused two puts at once and written neither. So the object is compared: the same bytes
are a success, none mean another attempt, others are an error.
"""

from __future__ import annotations

import mmap
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from packline.errors import StoreError
from packline.fingerprint import Hasher, hash_bytes
from packline.storage.clients import Clients, obstore
from packline.storage.places import join
from packline.storage.protocol import FileFacts, other_content, too_short
from packline.storage.store_errors import is_missing_bucket, status_of, store_error

T = TypeVar("T")

CHECKSUM = "packline-xxh3"
"""Metadata of an object: checksum of its bytes."""
UPLOADS = 8
"""Uploads at the same time."""
PIECE_BYTES = 16 << 20
"""Bytes of one reading request for a comparison."""
LISTED = 1000
"""Names of one answer of a listing."""
ATTEMPTS = 8
"""Attempts to create an object that a store neither accepts nor has."""
LARGEST_BYTES = 5 << 30
"""Largest object of a single put."""


class ObjectFolder:
    """A folder of an object store.

    Nothing is read or written before the first call, and clients are made anew in each process.

    Args:
        place: URI of the folder.
        pause: seconds of the first pause between attempts; each is twice as long as the last.

    Raises:
        StoreError: not the URI of an object store.
    """

    def __init__(self, place: str, *, pause: float = 0.2) -> None:
        self.place = place.rstrip("/")
        self._pause = pause
        self._clients = Clients(place)

    def _key(self, name: str) -> str:
        return f"{self._clients.key}/{name}" if self._clients.key and name else self._clients.key or name

    def _request(self, action: str, name: str, request: Callable[[], T]) -> T:
        """Result of a request; its errors in packline's form.

        Raises:
            FileNotFoundError: there is no such object.
        """
        place = join(self.place, name)
        try:
            return request()
        except FileNotFoundError as error:
            if is_missing_bucket(error):
                raise store_error(error, place, self._clients.scheme, action) from None
            raise FileNotFoundError(2, "no such object", place) from None
        except (StoreError, KeyboardInterrupt, SystemExit):
            raise
        except Exception as error:
            raise store_error(error, place, self._clients.scheme, action) from None

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """See `Storage.read`."""
        if stop is not None and stop <= start:
            if self.facts(name) is None:
                raise FileNotFoundError(2, "no such object", join(self.place, name))
            return b""
        options: dict[str, Any] = {}
        if stop is not None:
            options = {"range": (start, stop)}
        elif start:
            options = {"range": {"offset": start}}

        def request() -> bytes:
            try:
                result = obstore().get(self._clients.reader(), self._key(name), options=options)
                return bytes(result.bytes())
            except Exception as error:
                if status_of(error) == 416:  # the file ends before
                    return b""
                raise

        return self._request("read", name, request)

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """See `Storage.read_ranges`."""
        wanted = [(start, stop) for start, stop in ranges if stop > start]
        if not wanted:
            return [b"" for _ in ranges]
        starts, stops = [start for start, _ in wanted], [stop for _, stop in wanted]
        found = self._request(
            "read",
            name,
            lambda: obstore().get_ranges(self._clients.reader(), self._key(name), starts=starts, ends=stops),
        )
        pieces = iter(found)
        results = [bytes(next(pieces)) if stop > start else b"" for start, stop in ranges]
        for (start, stop), data in zip(ranges, results, strict=True):
            if len(data) != max(stop - start, 0):
                raise too_short(join(self.place, name), start, stop, len(data))
        return results

    def facts(self, name: str) -> FileFacts | None:
        """See `Storage.facts`."""
        found = self._head(name)
        return None if found is None else found[0]

    def _head(self, name: str) -> tuple[FileFacts, str] | None:
        """Facts of an object and the checksum in its metadata, empty if it has none."""

        def request() -> tuple[FileFacts, str]:
            result = obstore().get(self._clients.reader(), self._key(name), options={"head": True})
            meta = result.meta
            return FileFacts(name, meta["size"], meta["e_tag"] or ""), result.attributes.get(CHECKSUM, "")

        try:
            return self._request("read", name, request)
        except FileNotFoundError:
            return None

    def walk(self, folder: str = "") -> Iterator[FileFacts]:
        """See `Storage.walk`."""
        skip = len(self._clients.key) + 1 if self._clients.key else 0
        pages = self._request(
            "list",
            folder,
            lambda: obstore().list(self._clients.reader(), self._key(folder) or None, chunk_size=LISTED),
        )
        while (page := self._request("list", folder, lambda: next(pages, None))) is not None:
            for meta in page:
                yield FileFacts(meta["path"][skip:], meta["size"], meta["e_tag"] or "")

    def list(self, folder: str) -> list[str]:
        """See `Storage.list`."""
        skip = len(self._clients.key) + 1 if self._clients.key else 0
        found = self._request(
            "list",
            folder,
            lambda: obstore().list_with_delimiter(self._clients.reader(), self._key(folder) or None),
        )
        names = (meta["path"][skip:] for meta in found["objects"])
        return sorted(name for name in names if not name.rpartition("/")[2].startswith("."))

    def put_new(self, name: str, data: bytes) -> bool:
        """See `Storage.put_new`."""
        return self._create(name, data, hash_bytes(data))

    def put_files(self, files: Mapping[str, Path]) -> None:
        """See `Storage.put_files`; the local files are deleted after the last upload."""
        if not files:
            return
        with ThreadPoolExecutor(min(UPLOADS, len(files))) as threads:
            for done in [threads.submit(self._upload, name, path) for name, path in files.items()]:
                done.result()
        for path in files.values():
            path.unlink(missing_ok=True)

    def _upload(self, name: str, path: Path) -> bool:
        size = path.stat().st_size
        if size > LARGEST_BYTES:
            raise StoreError(
                f"{path} is too large for one put: {size:,} bytes; expected at most {LARGEST_BYTES:,}",
                hint="make the units smaller",
            )
        if not size:  # nothing to map
            return self._create(name, b"", hash_bytes(b""))
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            with memoryview(data) as view:
                return self._create(name, view, hash_bytes(view))

    def _create(self, name: str, data: bytes | memoryview, checksum: str) -> bool:
        """Create an object; False if it existed with the same bytes."""
        pause = self._pause
        for attempt in range(ATTEMPTS):
            outcome = self._request("write", name, lambda: self._put(name, data, checksum))
            if outcome:
                return attempt == 0
            if (found := self._head(name)) is not None:
                self._compare(name, found, len(data), checksum)
                return False
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause *= 2
        raise StoreError(
            f"cannot create {join(self.place, name)}: expected the object that the store reports, "
            f"found none, {ATTEMPTS} times",
            hint="run the same command again: finished work is kept",
        )

    def _put(self, name: str, data: bytes | memoryview, checksum: str) -> bool:
        """Put an object if there is none; False if the store says that there is one."""
        module = obstore()
        try:
            module.put(
                self._clients.writer(len(data)),
                self._key(name),
                data,
                mode="create",
                attributes={CHECKSUM: checksum},
                use_multipart=False,
            )
        except module.exceptions.AlreadyExistsError:
            return False
        return True

    def _compare(self, name: str, found: tuple[FileFacts, str], size: int, checksum: str) -> None:
        """Refuse an object with other bytes.

        Raises:
            StoreError: it has another size or checksum.
        """
        facts, stored = found
        if facts.size == size:
            stored = stored or self._hash(name, size)
            if stored == checksum:
                return
        raise other_content(
            join(self.place, name),
            f"{checksum} ({size:,} bytes)",
            f"{stored or 'none'} ({facts.size:,} bytes)",
        )

    def _hash(self, name: str, size: int) -> str:
        """Checksum of an object by reading it."""
        hasher = Hasher()
        for start in range(0, size, PIECE_BYTES):
            hasher.update(self.read(name, start, min(start + PIECE_BYTES, size)))
        return hasher.hexdigest()

    def replace(self, name: str, data: bytes, expected: str | None) -> str | None:
        """See `Storage.replace`."""
        module = obstore()

        def request() -> str | None:
            try:
                result = module.put(
                    self._clients.writer(len(data)),
                    self._key(name),
                    data,
                    mode="create" if expected is None else {"e_tag": expected},
                    use_multipart=False,
                )
            except (module.exceptions.AlreadyExistsError, module.exceptions.PreconditionError):
                return None
            return result["e_tag"] or ""

        return self._request("write", name, request)

    def delete(self, names: Iterable[str]) -> None:
        """See `Storage.delete`."""
        keys = [self._key(name) for name in names]
        for start in range(0, len(keys), LISTED):
            part = keys[start : start + LISTED]
            try:
                self._request(
                    "delete",
                    "",
                    lambda part=part: obstore().delete(self._clients.reader(), part),  # type: ignore[misc]
                )
            except FileNotFoundError:  # some stores say so; the others of this part may be left
                for key in part:
                    try:
                        self._request(
                            "delete",
                            "",
                            lambda key=key: obstore().delete(self._clients.reader(), key),  # type: ignore[misc]
                        )
                    except FileNotFoundError:
                        continue

    def sync(self, folder: str = "") -> None:
        """See `Storage.sync`: an object store answers when a put is durable."""
