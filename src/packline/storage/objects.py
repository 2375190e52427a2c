"""A folder of an object store, as a `Storage`: S3, Google Cloud Storage, Azure, by obstore.

A file is created by one put with a condition (`If-None-Match: *`), never in parts, which know no condition
everywhere. "It exists" is a question, not an answer: our own put may have succeeded and its answer been lost,
or a store may have refused two puts at once and written neither. So the object is compared: the same bytes
are a success, none mean another attempt, others are an error.
"""

from __future__ import annotations

import mmap
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from packline.errors import CorruptStore, StoreError
from packline.fingerprint import hash_bytes
from packline.storage.clients import Clients, obstore
from packline.storage.places import join, without_secrets
from packline.storage.requests import (
    FIRST_SECONDS,
    PATIENCE_SECONDS,
    Pauses,
    is_missing_bucket,
    map_in_threads,
    may_pass,
    status_of,
    store_error,
)
from packline.storage.results import WORK, FileFacts, Storage, hash_contents, other_content

T = TypeVar("T")

CHECKSUM = "packlinexxh3"
"""Metadata of an object: checksum of its bytes. A name that every store allows."""
UPLOADS = 8
LISTED = 1000
LARGEST_BYTES = 5 << 30
"""Largest object of a single put."""


class ObjectFolder(Storage):
    """A folder of an object store.

    Nothing is read or written before the first call, and clients are made anew in each process.
    """

    def __init__(self, place: str, *, one_writer: bool = False, reached: bool = False) -> None:
        self.place = without_secrets(place).rstrip("/")
        self.one_writer = one_writer
        self._reached = reached
        self._clients = Clients(place)

    def _request(self, action: str, name: str, request: Callable[[], T]) -> T:
        """Result of a request, which is made again while its failure may pass.

        The client itself repeats what it can for a few seconds, in which Python hears no Ctrl-C. So its time
        is short, and a store that has answered before is waited for here.
        """
        place, scheme, errors = join(self.place, name), self._clients.scheme, obstore().exceptions.BaseError
        pauses = Pauses()
        while True:
            try:
                result = request()
            except FileNotFoundError as error:
                self._reached = True
                if is_missing_bucket(error):
                    raise store_error(error, place, scheme, action) from None
                raise FileNotFoundError(2, "no such object", place) from None
            except (errors, ValueError) as error:
                self._reached |= status_of(error) > 0
                failure = store_error(error, place, scheme, action)
                if not may_pass(error):
                    raise failure from None
                pauses.wait(failure, PATIENCE_SECONDS if self._reached else FIRST_SECONDS)
            else:
                self._reached = True
                return result

    def _stream(self, action: str, name: str, begin: Callable[[], Iterator[T]]) -> Iterator[T]:
        """Items of a long answer; after a failure `begin` gives those that are left."""
        items: Iterator[T] | None = None

        def following() -> T | None:
            nonlocal items
            try:
                items = begin() if items is None else items
                return next(items, None)
            except Exception:
                items = None
                raise

        while (item := self._request(action, name, following)) is not None:
            yield item

    def _get(self, name: str, start: int, stop: int | None) -> Any | None:
        """The client's answer with a range; None if the file ends before it."""
        options: dict[str, Any] = {}
        if start or stop is not None:
            options["range"] = {"offset": start} if stop is None else (start, stop)
        try:
            return obstore().get(self._clients.client(), name, options=options)
        except Exception as error:
            if status_of(error) == 416:
                return None
            raise

    def get(self, name: str, start: int = 0, stop: int | None = None) -> tuple[FileFacts, Any]:
        """Bytes of a range, as a buffer, and the facts of the file that they are of; see `Storage.read`."""

        def request() -> tuple[FileFacts, Any]:
            answer = None if stop is not None and stop <= start else self._get(name, start, stop)
            if answer is None:
                return self._head(name), b""
            facts, data = _facts(name, answer.meta), answer.bytes()
            if len(data) != (facts.size if stop is None else min(stop, facts.size)) - start:
                raise ValueError(f"Requested {start}..{stop}, got {len(data)}")
            return facts, data

        return self._request("read", name, request)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        return bytes(self.get(name, start, stop)[1])

    def facts(self, name: str) -> FileFacts | None:
        try:
            return self._request("read", name, lambda: self._head(name))
        except FileNotFoundError:
            return None

    def _head(self, name: str) -> FileFacts:
        found = obstore().get(self._clients.client(), name, options={"head": True})
        return _facts(name, found.meta, found.attributes.get(CHECKSUM, ""))

    def walk(self, folder: str = "") -> Iterator[FileFacts]:
        last = None

        def pages() -> Iterator[Any]:
            client = self._clients.client()
            return iter(obstore().list(client, folder or None, offset=last, chunk_size=LISTED))

        for page in self._stream("list", folder, pages):
            for meta in page:
                last = meta["path"]
                yield _facts(last, meta)

    def list(self, folder: str) -> list[str]:
        client = self._clients.client()
        found = self._request("list", folder, lambda: obstore().list_with_delimiter(client, folder or None))
        names = (meta["path"] for meta in found["objects"])
        return sorted(name for name in names if not name.rpartition("/")[2].startswith("."))

    def put_new(self, name: str, data: bytes) -> bool:
        return self._create(name, data, hash_bytes(data))

    def put_files(self, files: Mapping[str, Path]) -> None:
        """See `Storage.put_files`; the local files are deleted after the last upload."""
        threads = min(UPLOADS, len(files))
        for _ in map_in_threads(lambda one: self.upload(*one), files.items(), threads, "packline-upload"):
            pass
        for path in files.values():
            path.unlink(missing_ok=True)

    def upload(self, name: str, path: Path, expected: str = "") -> bool:
        """Create an object from a local file, which stays.

        Args:
            expected: checksum that the file must have; empty for any.
        """
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
                found = hash_bytes(view)
                if expected and found != expected:
                    raise CorruptStore(
                        f"{path} is damaged: expected {expected}, found {found}",
                        hint="it was not uploaded; build or copy it again",
                    )
                return self._create(name, view, found)

    def _create(self, name: str, data: bytes | memoryview, checksum: str) -> bool:
        """Create an object; False if it existed with the same bytes."""

        def create() -> bool:
            try:
                self._put(name, data, checksum)
                return True
            except obstore().exceptions.BaseError as error:
                if not may_pass(error) or (found := self.facts(name)) is None:
                    raise
            same = found.size == len(data)
            stored = found.checksum or (hash_contents(self, name, len(data)) if same else "none")
            if not same or stored != checksum:
                raise other_content(
                    join(self.place, name),
                    f"{checksum} ({len(data):,} bytes)",
                    f"{stored} ({found.size:,} bytes)",
                )
            return False

        return self._request("write", name, create)

    def _put(self, name: str, data: bytes | memoryview, checksum: str) -> None:
        """Put an object if there is none."""
        module = obstore()
        if self.one_writer and self.facts(name) is not None:
            raise module.exceptions.AlreadyExistsError
        module.put(
            self._clients.client(len(data)),
            name,
            data,
            mode="overwrite" if self.one_writer else "create",
            attributes={CHECKSUM: checksum},
            use_multipart=False,
        )

    def delete(self, names: Iterable[str]) -> None:
        every = [*names]
        for part in (every[start : start + LISTED] for start in range(0, len(every), LISTED)):
            try:
                self._delete(part)
            except FileNotFoundError:  # some stores report it, and may have left the others
                for name in part:
                    with suppress(FileNotFoundError):
                        self._delete([name])

    def _delete(self, names: Sequence[str]) -> None:
        self._request("delete", "", lambda: obstore().delete(self._clients.client(), names))


def _facts(name: str, meta: Any, checksum: str = "") -> FileFacts:
    """Facts by the client's; without an ETag, the state of a file is its time of modification."""
    etag = (meta["e_tag"] or "").replace('"', "")
    if not etag and meta["last_modified"] > datetime(1970, 1, 2, tzinfo=UTC):
        etag = f"modified {meta['last_modified'].isoformat()}"
    return FileFacts(name, meta["size"], etag, checksum)


HINT = (
    "use a store that knows conditional puts, or set PACKLINE_ONE_WRITER=1 "
    "if no other process will write there"
)


def probe(storage: Storage) -> None:
    """Refuse a storage that does not keep to conditions; four small requests to an object store.

    Local folders do, and one with `one_writer` does without.
    """
    if not isinstance(storage, ObjectFolder) or storage.one_writer:
        return
    name = f"{WORK}/probe-{secrets.token_hex(8)}"
    try:
        storage.put_new(name, b"first")
    except StoreError as error:
        if status_of(error) in (400, 405, 501):
            raise StoreError(f"{error.message}; it may not know conditional puts", hint=HINT) from None
        raise
    try:
        try:
            second = storage.put_new(name, b"second")
        except StoreError:
            second = False
        if second or storage.read(name) != b"first":
            raise StoreError(
                f"{storage.place} ignores conditions: expected a second put of one name to be refused, "
                "found it accepted",
                hint=HINT,
            )
    finally:
        storage.delete([name])
