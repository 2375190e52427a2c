"""packline.json: what an export says of itself, beside its files.

Which format with which options, from what, whose ids they are, every file with its size and checksum, what
was lost on the way, and which bytes are the store's own. No time and no path is in it: equal exports have
equal records.
`packline verify OUT --from FORMAT` holds the files against it, and an import the tokenizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from packline.errors import CorruptStore
from packline.formats.format import Lost
from packline.store.manifest import FileEntry, TokenizerEntry
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
    shared: dict[str, int]
    """Bytes of the store's own that are `linked`, `reflinked` or `copied`."""
    files: tuple[FileEntry, ...]
    """All but this one, by name."""

    @property
    def identity(self) -> ExportIdentity:
        """Which export it is of."""
        return ExportIdentity(**{name: getattr(self, name) for name in ExportIdentity.__struct_fields__})


def read_record(folder: Path) -> ExportRecord | None:
    """The record of an export; None for a folder without one.

    Raises:
        CorruptStore: it is damaged, or of a newer version.
    """
    path = folder / RECORD
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CorruptStore(f"cannot read {path}: {error.strerror}") from error
    try:
        record = msgspec.json.decode(data, type=ExportRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptStore(
            f"{path} is damaged: {error}", hint="export again, or delete it if the files are to be trusted"
        ) from error
    if record.version > RECORD_VERSION:
        raise CorruptStore(f"{path} has version {record.version}, newer than {RECORD_VERSION}")
    return record


def record_bytes(record: ExportRecord) -> bytes:
    """Its JSON form."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
