"""What a place must be able to do to keep the results of a job.

Bytes are a function of inputs and settings alone, so a file is written once, under its final name, and never
changed: `put_new` of the same bytes is a success, of others an error. So a unit that runs twice does no harm.
An object store does this by puts that only create (`If-None-Match: *`), compared after a conflict; a local
folder by writing under another name, syncing and renaming.

To add a storage, implement this protocol, and pass it to the folder of a job (`jobs.folder`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol


class Storage(Protocol):
    """Files by name; names are relative paths with `/`."""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes `start` to `stop` of a file; to its end by default.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def put_new(self, name: str, data: bytes) -> bool:
        """Create a small file, complete or not at all; durable on return.

        Returns:
            False if it existed with the same bytes.

        Raises:
            StoreError: it exists with other bytes.
            OutOfSpace: the disk is full.
        """

    def put_files(self, files: Mapping[str, Path]) -> None:
        """Take over finished local files, each under its name; all durable on return."""

    def list(self, folder: str) -> Sequence[str]:
        """Names of the files directly in a folder, sorted; unfinished ones are left out."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete files, those that exist."""

    def sync(self, folder: str = "") -> None:
        """Wait until a folder's entries are durable."""
