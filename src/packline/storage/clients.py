"""Clients of object stores (obstore), made when first used, one for each process.

obstore runs threads, which a forked child does not have: it would wait for them for ever. So a process that
was forked after the first use is refused; one that was forked before makes new clients.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

from packline.errors import StoreError
from packline.storage.places import split_uri

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


def upload_seconds(size: int) -> int:
    """Longest time of an upload by its size, in steps, so that few clients are needed."""
    return 1 << (size // SLOWEST_BYTES + 31).bit_length()


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
        seconds = READ_SECONDS if size is None else upload_seconds(size)
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
