"""Protocol of remote inputs: listing and reading of the files behind a URI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec


class InputState(msgspec.Struct, frozen=True, gc=False):
    """Size and state of an input when it was planned, to detect changes."""

    size: int
    modified: str
    """ETag or modification time, where available; compared, never published."""


class ListedFile(msgspec.Struct, frozen=True, gc=False):
    """A file of a listing."""

    path: str
    """Path or URI."""
    state: InputState | None = None
    """None if a listing does not tell it."""


class RemoteFiles(Protocol):
    """Files of one kind of URI. Every answer with bytes is compared with the state that was planned.

    All methods raise `InputError` with the URI if a server refuses or cannot be reached, after retries.
    """

    def expand(self, uri: str) -> Iterator[ListedFile]:
        """Files of a URI: itself, those below a folder, or the matches of a glob; sorted by path."""

    def read_start(self, uri: str, size: int) -> tuple[InputState, bytes]:
        """State of a file and its first bytes."""

    def read(self, uri: str, start: int, stop: int, state: InputState) -> Any:
        """Bytes of a range, as a buffer.

        Raises:
            InputChanged: the file is no longer in this state.
        """
