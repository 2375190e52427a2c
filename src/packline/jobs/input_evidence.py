"""Evidence that inputs are as they were when a store was built, so that they need not be read again.

    $XDG_CACHE_HOME/packline/inputs/CHECKSUM.json     state of each input of the store with this manifest

A file whose device, inode, size, time of modification and time of status change are equal has equal content:
the last of these times cannot be set, and changes with every write, rename, link or `touch`. Times have a
resolution of milliseconds to a second, so evidence is kept only for files whose status had not changed for
two seconds when the build was planned; a change during the build then shows. A remote file has an ETag.

Times inside the store are no evidence: a copy of a store is newer than an input that was changed in between.
The store is never written to, and nothing depends on the evidence: without it, inputs are read again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from packline.sources.files import InputFile
from packline.storage.inputs import is_compared
from packline.storage.local import publish_bytes, user_cache
from packline.storage.places import is_remote
from packline.store.manifest import Manifest, to_json

RESOLUTION_NS = 2_000_000_000
"""Nanoseconds within which two changes may have equal times."""
KEPT = 64
"""Number of stores whose evidence is kept."""
INPUTS = "inputs"


class FileState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """State of an input, and its names in the store."""

    path: str
    """Absolute, or a URI."""
    source: str
    name: str
    device: int
    inode: int
    size: int
    modified: str
    changed_ns: int


def place_of(file: InputFile) -> str:
    """Absolute path, or URI."""
    return file.path if is_remote(file.path) else os.path.abspath(file.path)


def state_of(file: InputFile, source: str) -> FileState | None:
    """State of a local file now, or of a remote one when it was listed; None for one without a state.

    Args:
        source: name of the source.
    """
    if is_remote(file.path):
        from packline.storage.object_inputs import is_strong

        if not (is_compared(file.path) and is_strong(file.modified)):
            return None
        return FileState(file.path, source, file.name, 0, 0, file.size, file.modified, 0)
    try:
        found = os.stat(file.path)
    except OSError:
        return None
    return FileState(
        place_of(file),
        source,
        file.name,
        found.st_dev,
        found.st_ino,
        found.st_size,
        str(found.st_mtime_ns),
        found.st_ctime_ns,
    )


def evidence_path(checksum: str) -> Path:
    """File with the evidence for the store whose manifest has this checksum."""
    return user_cache() / INPUTS / f"{checksum}.json"


class _Sealed(msgspec.Struct):
    """The field of a manifest that is needed."""

    checksum: str


def keep_evidence(manifest: Manifest, files: Iterable[tuple[str, InputFile]], planned_ns: int) -> None:
    """Record the state of the inputs that a store was built from; failures are ignored.

    Args:
        manifest: its manifest.
        files: inputs, each with the name of its source.
        planned_ns: time before the inputs were first looked at, in nanoseconds.
    """
    states = [
        state
        for source, file in files
        if (state := state_of(file, source)) is not None
        and state.changed_ns + RESOLUTION_NS <= planned_ns
        and (state.size, state.modified) == (file.size, file.modified)
    ]
    with suppress(OSError, RuntimeError, msgspec.MsgspecError):  # no home, no room, not writable
        path = evidence_path(msgspec.json.decode(to_json(manifest), type=_Sealed).checksum)
        path.parent.mkdir(parents=True, exist_ok=True)
        publish_bytes(path, msgspec.json.encode(states))
        others = sorted(path.parent.glob("*.json"), key=lambda one: one.stat().st_mtime_ns)
        for old in others[:-KEPT]:
            old.unlink(missing_ok=True)


def read_evidence(checksum: str) -> dict[str, FileState]:
    """State of the inputs of a store when it was built, by path; empty if not recorded."""
    try:
        states = msgspec.json.decode(evidence_path(checksum).read_bytes(), type=list[FileState])
    except (OSError, RuntimeError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    return {state.path: state for state in states}


def now_ns() -> int:
    """Time, in nanoseconds, by the clock of files."""
    return time.time_ns()
