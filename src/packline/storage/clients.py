"""Clients of object stores (obstore), made when first used, one for each process.

obstore runs threads, which a forked child does not have: it would wait for them for ever. So a process that
was forked after the first use is refused, unless it reads a store: it starts a helper process by exec, and
sends it the requests (`relayed`). One that was forked before the first use makes new clients.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from datetime import timedelta
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packline.errors import StoreError
from packline.storage.places import open_storage, split_uri

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from packline.storage.results import Storage

RETRY_SECONDS = 5.0
"""Time for which the client itself repeats a request, ten times at most."""
STALL_SECONDS = 30
"""Longest time without a byte of an answer."""
READ_SECONDS = 900
"""Longest time of an answer; a stall ends it much earlier."""
SLOWEST_BYTES = 1 << 20
"""Slowest upload that is waited for, bytes per second."""

ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""Variables with the address of a store, by scheme; the first that is set counts."""

_used = False
_forked = False


def _after_fork() -> None:
    global _forked
    _forked = _used


os.register_at_fork(after_in_child=_after_fork)


def obstore() -> Any:
    """The module `obstore`; every use of it begins here."""
    global _used
    if _forked:
        raise StoreError(
            "an object store cannot be used here: this process was forked from one that used it",
            hint="start workers by spawn or forkserver (torch: multiprocessing_context='forkserver'), "
            "or open the store in the workers alone",
        )
    try:
        import obstore
        import obstore.exceptions
    except ImportError as error:
        raise StoreError(
            f"object stores need a package that is not installed: {error.name}",
            hint="pip install 'packline[remote]'",
        ) from error
    _used = True
    return obstore


def is_web(uri: str) -> bool:
    """True for http and https."""
    return uri.startswith(("http://", "https://"))


class Clients:
    """Clients of one folder of an object store; names are relative to it."""

    def __init__(self, place: str) -> None:
        self.scheme, self.bucket, self.key = ("https", place, "") if is_web(place) else split_uri(place)
        self._clients: dict[int, Any] = {}
        self._process = 0

    def client(self, size: int | None = None) -> Any:
        """Client for an upload of `size` bytes, or for reading and listing."""
        obstore()
        seconds = READ_SECONDS
        if size is not None:  # in steps, so that few clients are needed
            seconds = 1 << (size // SLOWEST_BYTES + 31).bit_length()
        if self._process != os.getpid():
            self._clients, self._process = {}, os.getpid()
        if seconds not in self._clients:
            self._clients[seconds] = self._make(seconds)
        return self._clients[seconds]

    def _make(self, seconds: int) -> Any:
        from obstore import store as stores

        plain = is_web(self.bucket) or self.endpoint().startswith("http://")
        options: dict[str, Any] = {
            "connect_timeout": timedelta(seconds=10),
            "timeout": timedelta(seconds=seconds),
            "allow_http": plain,
        }
        if seconds == READ_SECONDS:
            options["read_timeout"] = timedelta(seconds=STALL_SECONDS)
        retry: Any = {"retry_timeout": timedelta(seconds=RETRY_SECONDS)}
        common: dict[str, Any] = {"client_options": options, "retry_config": retry}
        if is_web(self.bucket):
            return stores.HTTPStore.from_url(self.bucket, **common)
        common["prefix"] = self.key or None
        if self.scheme == "gs":
            return stores.GCSStore(self.bucket, **common)
        if self.scheme == "az":
            return stores.AzureStore(self.bucket, **common)
        if (provider := profile_credentials()) is not None:
            common["credential_provider"] = provider
        # TLS protects the bytes on their way; on plain HTTP the signature does.
        return stores.S3Store(self.bucket, unsigned_payload=not plain, **common)

    def endpoint(self) -> str:
        """Address of the store where the user has named one, in lower case; "" without."""
        if is_web(self.bucket):
            return self.bucket
        if self.scheme == "az" and os.environ.get("AZURE_STORAGE_USE_EMULATOR", "") not in ("", "false"):
            return "http://localhost"
        for name in ENDPOINTS[self.scheme]:
            if endpoint := os.environ.get(name):
                if not re.fullmatch(r"https?://[^\s/@?#]+(/[^\s?#]*)?", endpoint, re.IGNORECASE):
                    raise StoreError(
                        f"${name} is not an address: expected http://HOST:PORT or https://HOST alone",
                        hint="credentials have variables of their own",
                    )
                return endpoint.lower()
        return ""


def profile_credentials() -> Any | None:
    """Provider of the credentials of an AWS profile; None where obstore finds them itself.

    obstore reads the environment, web identities and instance metadata, but no profile files.
    """
    environment = os.environ
    if environment.get("AWS_ACCESS_KEY_ID") or environment.get("AWS_SKIP_SIGNATURE"):
        return None
    files = (("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config"))
    there = [Path(environment.get(name, f"~/.aws/{file}")).expanduser().is_file() for name, file in files]
    profile = environment.get("AWS_PROFILE")
    if not profile and not any(there):
        return None
    problem: object = "it has no credentials"
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider

        try:
            session = boto3.Session()
            if session.get_credentials() is not None:
                return Boto3CredentialProvider(session)
        except BotoCoreError as error:
            problem, profile = error, profile or "default"
    except ImportError as error:
        problem = error
    if not profile:
        return None
    hint = "check ~/.aws; profiles need packline[remote]; or give the keys in the environment"
    raise StoreError(f"AWS profile {profile!r} cannot be used: {problem}", hint=hint)


CONNECTIONS = 64


def needs_relay() -> bool:
    """True if this process was forked from one that used the client of object stores."""
    return _forked


def relayed(place: str, *, reached: bool = False) -> Storage:
    """Storage of a place, for reading, by a helper process."""
    return _Relay(place, reached=reached)  # type: ignore[return-value]


class _Relay:
    """Reading half of `Storage`."""

    folder = None

    def __init__(self, place: str, *, reached: bool) -> None:
        import socket  # with those below, modules that a process which was not forked does without
        import subprocess
        from multiprocessing.connection import Connection
        from queue import SimpleQueue

        self.place = place
        pairs = [socket.socketpair() for _ in range(CONNECTIONS)]
        files = [theirs.fileno() for _, theirs in pairs]
        words = [sys.executable, "-m", __name__, place, str(int(reached)), *map(str, files)]
        self._helper = subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=files)
        self._free: SimpleQueue[Connection] = SimpleQueue()
        for ours, theirs in pairs:
            theirs.close()
            self._free.put(Connection(ours.detach()))

    def _ask(self, *question: Any) -> Any:
        connection = self._free.get()
        try:
            connection.send(question)
            found, error = connection.recv()
        except (EOFError, OSError):
            raise StoreError(
                f"the process that reads {self.place} ended unexpectedly",
                hint="it may have been killed for lack of memory; run again",
            ) from None
        except BaseException:
            connection.close()  # its answer is still on its way
            raise
        finally:
            self._free.put(connection)
        if error is not None:
            raise error
        return found

    read = partialmethod(_ask, "read")
    facts = partialmethod(_ask, "facts")
    list = partialmethod(_ask, "list")


def _serve(storage: Storage, connection: Connection) -> None:
    with connection, suppress(EOFError, OSError):
        while True:
            method, *arguments = connection.recv()
            answer: tuple[Any, Exception | None]
            try:
                answer = getattr(storage, method)(*arguments), None
            except Exception as error:
                answer = None, error
            connection.send(answer)


if __name__ == "__main__":
    from concurrent.futures import ThreadPoolExecutor
    from multiprocessing.connection import Connection

    served = open_storage(sys.argv[1], reached=sys.argv[2] == "1")
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for file in map(int, sys.argv[3:]):
            pool.submit(_serve, served, Connection(file))
