"""packline.json: the metadata of an export, beside its files.

Format and options, source, tokenizer, every file with its size and checksum, what was lost on the way, what
its trainer will miss, and which bytes are the store's own. No time and no path is in it: equal exports have
equal records. Its own checksum guards it, as a store's manifest is guarded (`store.sealed`).
`packline verify OUT --from FORMAT` and every import hold the files and the tokenizer against it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from packline.errors import CorruptStore
from packline.formats.format import Lost
from packline.store.files import reading, stat_file
from packline.store.manifest import FileEntry, TokenizerEntry
from packline.store.sealed import NotWhole, seal, unseal
from packline.version import __version__

RECORD = "packline.json"
RECORD_VERSION = 1
TOKENIZER_FILE = "tokenizer.json"


class ExportIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What decides the bytes of an export: equal identities, equal files."""

    format: str
    options: dict[str, Any]
    """Of the format, those at their defaults too."""
    settings: dict[str, Any]
    """Which documents or rows, and in which order: what was not left at its default (`source.Choice`)."""
    source: dict[str, str]
    """Checksums: `store` of the store's manifest and for rows `rows` of what is in which; of a run, `run`."""
    link: str


class ExportRecord(ExportIdentity, frozen=True, kw_only=True):
    """The content of packline.json."""

    version: int = RECORD_VERSION
    packline: str = __version__
    tokenizer: TokenizerEntry
    """Whose ids they are."""
    documents: int
    tokens: int
    """As in the output: after boundary tokens were put, moved or taken; of rows, without padding."""
    rows: int | None = None
    seq_len: int | None = None
    lost: tuple[Lost, ...] = ()
    warnings: tuple[str, ...] = ()
    """Why its trainer may stop, such as a file that it opens and that is not there."""
    shared: dict[str, int]
    """Bytes of the store's own that are `linked`, `reflinked` or `copied`."""
    files: tuple[FileEntry, ...]
    """All but this one, by name."""
    checksum: str = ""
    """Of this record's JSON form with this field empty: xxh3-128, 32 hexadecimal digits."""

    @property
    def identity(self) -> ExportIdentity:
        """Which export it is of."""
        return ExportIdentity(**{name: getattr(self, name) for name in ExportIdentity.__struct_fields__})


def read_record(folder: Path) -> ExportRecord | None:
    """The record of an export; None for a folder without one.

    Raises:
        CorruptStore: it is damaged, no regular file, or of a newer version.
    """
    path = folder / RECORD
    if not os.path.lexists(path):
        return None
    stat_file(path, folder)
    with reading(path):
        data = path.read_bytes()
    try:
        record = unseal(data, ExportRecord)
    except NotWhole as error:
        _check_version(path, data)
        raise CorruptStore(
            f"{path} is damaged: {error}", hint="export again, or delete it if the files are to be trusted"
        ) from error
    _check_version(path, data)
    return record


class _Version(msgspec.Struct):
    """The field that every version has."""

    version: int


def _check_version(path: Path, data: bytes) -> None:
    """Refuse a record of a newer version, also where its other fields cannot be read."""
    try:
        version = msgspec.json.decode(data, type=_Version).version
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    if version > RECORD_VERSION:
        raise CorruptStore(
            f"{path} has version {version}, newer than {RECORD_VERSION}", hint="update packline to read it"
        )


def record_bytes(record: ExportRecord) -> bytes:
    """Its JSON form, with its checksum."""
    return seal(record)
