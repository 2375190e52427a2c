"""packline.json: the metadata of an export, next to its files.

Contains format and options, source, tokenizer, every file with its size and checksum, losses, files that the
trainer will miss, and which bytes are shared with the store. It has no time and no path: equal exports have
equal records. Its own checksum protects it, as for a store's manifest (`store.sealed`).
`packline verify OUT --from FORMAT` and every import check the files and the tokenizer against it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from packline.errors import CorruptStore
from packline.fingerprint import NotWhole, seal, unseal
from packline.formats.types import NotPreserved
from packline.store.files import FileEntry, reading, stat_file
from packline.store.manifest import TokenizerEntry
from packline.version import __version__

RECORD = "packline.json"
RECORD_VERSION = 1
TOKENIZER_FILE = "tokenizer.json"


class ExportIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides the bytes of an export: equal identities, equal files."""

    format: str
    options: dict[str, Any]
    """Options of the format, including those with default values."""
    settings: dict[str, Any]
    """Selection and order of documents or rows: fields that differ from their defaults (`source.Choice`)."""
    source: dict[str, str]
    """Checksums: `store` of the store's manifest, plus `rows` of the content of rows; for a run, `run`."""
    link: str


class ExportRecord(ExportIdentity, frozen=True, kw_only=True):
    """Content of packline.json."""

    version: int = RECORD_VERSION
    packline: str = __version__
    tokenizer: TokenizerEntry
    """Tokenizer that made the ids."""
    documents: int
    tokens: int
    """Number of tokens as in the output, after changes of boundary tokens; for rows, without padding."""
    rows: int | None = None
    seq_len: int | None = None
    lost: tuple[NotPreserved, ...] = ()
    warnings: tuple[str, ...] = ()
    """Reasons why the trainer may stop, such as a file that it opens and that is missing."""
    shared: dict[str, int]
    """Number of bytes shared with the store: `linked`, `reflinked` or `copied`."""
    files: tuple[FileEntry, ...]
    """All files except this one, by name."""
    checksum: str = ""
    """xxh3-128 of this record's JSON form with this field empty: 32 hexadecimal digits."""

    @property
    def identity(self) -> ExportIdentity:
        """Identity of the export."""
        return ExportIdentity(**{name: getattr(self, name) for name in ExportIdentity.__struct_fields__})


def read_record(folder: Path) -> ExportRecord | None:
    """The record of an export; None for a folder without one.

    Raises:
        CorruptStore: it is damaged, not a regular file, or of a newer version.
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
    """Field that every version has."""

    version: int


def _check_version(path: Path, data: bytes) -> None:
    """Refuse a record of a newer version, even if its other fields cannot be read."""
    try:
        version = msgspec.json.decode(data, type=_Version).version
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    if version > RECORD_VERSION:
        raise CorruptStore(
            f"{path} has version {version}, newer than {RECORD_VERSION}", hint="update packline to read it"
        )


def record_bytes(record: ExportRecord) -> bytes:
    """JSON form of a record, with its checksum."""
    return seal(record)
