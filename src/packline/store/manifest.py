"""Manifest and receipts of a store, as frozen values with a JSON form.

    receipts/UNIT.json   Receipt: inputs and outputs of one unit, the commit record
    manifest.json        Manifest: the sum of the receipts, and the recipe, inputs and tokenizer

They contain no time, machine or engine: equal inputs and recipes give equal bytes. Formats are versioned; a
store of a newer version is refused, not misread. A manifest is untrusted data: names that lead out of the
store and impossible numbers are refused when it is read (`manifest_check`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from packline.errors import CorruptStore, StoreNotFound
from packline.recipe import Recipe
from packline.sources.compression import Compression
from packline.store.ledger import Ledger
from packline.store.sealed import NotWhole, json_form, seal, unseal

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
RECEIPTS = "receipts"
REJECTS = "rejects"
TOKENIZER = "tokenizer"
WORK = ".packline"
"""Folder for the lock, the plan and unfinished files while a build runs; absent from a finished store."""


class FileEntry(msgspec.Struct, frozen=True, gc=False):
    """A file of the store."""

    name: str
    bytes: int
    checksum: str
    """xxh3-128, 32 hexadecimal digits."""


class ShardEntry(msgspec.Struct, frozen=True, gc=False):
    """One shard: `NAME.bin`, `NAME.idx`, `NAME.docs.parquet`, and `NAME.loss` if it has a loss mask."""

    name: str
    split: str
    documents: int
    tokens: int
    files: tuple[FileEntry, ...]


class InputPiece(msgspec.Struct, frozen=True, gc=False):
    """The part of a file that a unit read, and the checksum of its bytes."""

    file: int
    start: int
    stop: int
    checksum: str


class Receipt(msgspec.Struct, frozen=True):
    """Commit record of one unit: a unit without one does not exist."""

    unit: str
    source: int
    inputs: tuple[InputPiece, ...]
    shards: tuple[ShardEntry, ...]
    rejects: tuple[FileEntry, ...]
    ledger: Ledger
    audited: int
    """Documents that the reference tokenizer encoded again."""
    complete: bool = True
    """False if a limit of documents or tokens ended it early."""


class StreamReceipt(msgspec.Struct, frozen=True):
    """Commit record of a file that was read as a stream: the number of its units."""

    file: int
    units: int
    checksum: str


class InputEntry(msgspec.Struct, frozen=True, gc=False):
    """An input file as it was read."""

    name: str
    source: int
    bytes: int
    format: str
    compression: Compression
    text: str
    checksum: str


class ImportEntry(msgspec.Struct, frozen=True):
    """Origin of an imported store, whose tokens were not encoded here."""

    format: str
    """A format of `packline.formats`."""
    options: dict[str, Any]
    """Settings of the import: everything but the inputs and the tokenizer."""


class TokenizerEntry(msgspec.Struct, frozen=True):
    """The tokenizer that made the ids, and its tokens between documents."""

    name: str
    kind: str
    fingerprint: str
    vocab_size: int
    eod_id: int
    eod: str
    bos_id: int | None
    bos: str | None
    round_trip: str
    """Fidelity of decoding ids to text: exact, normalized or lossy."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole store in one file, written last."""

    format_version: int
    packline: str
    recipe: Recipe
    tokenizer: TokenizerEntry
    dtype: str
    inputs: tuple[InputEntry, ...]
    shards: tuple[ShardEntry, ...]
    rejects: tuple[FileEntry, ...]
    receipts: tuple[FileEntry, ...]
    tokenizer_files: tuple[FileEntry, ...]
    ledger: Ledger
    """Sum over all sources."""
    sources: dict[str, Ledger]
    """By source."""
    imported: ImportEntry | msgspec.UnsetType = msgspec.UNSET
    """Origin of an imported store; absent otherwise."""
    val_share: float | msgspec.UnsetType = msgspec.UNSET
    """val_fraction that results from the recipe's val_documents; absent without."""
    checksum: str = ""
    """Checksum of this manifest's JSON form with this field empty: xxh3-128, 32 hexadecimal digits."""

    @property
    def documents(self) -> int:
        """Documents in all splits."""
        return sum(shard.documents for shard in self.shards)

    @property
    def tokens(self) -> int:
        """Tokens in all splits, boundary tokens included."""
        return sum(shard.tokens for shard in self.shards)


def to_json(value: Any) -> bytes:
    """JSON form: indented, keys in the order of the fields; a manifest with its own checksum."""
    return seal(value) if isinstance(value, Manifest) else json_form(value)


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a finished store.

    Raises:
        StoreNotFound: there is none; reports what is there instead.
        CorruptStore: it is damaged, contains impossible values, or is written by a newer packline.
    """
    from packline.store.files import reading, stat_file
    from packline.store.manifest_check import check_manifest

    path = folder / MANIFEST
    if not os.path.lexists(path):
        raise _not_found(folder)
    stat_file(path)
    with reading(path):
        data = path.read_bytes()
    try:
        manifest = unseal(data, Manifest)
    except NotWhole as error:
        _check_version(folder, data)
        raise CorruptStore(f"{path} is damaged: {error}", hint="build the store again") from error
    _check_version(folder, data, manifest.format_version)
    check_manifest(path, manifest)
    return manifest


class _Version(msgspec.Struct):
    """The field that all versions have."""

    format_version: int


def _check_version(folder: Path, data: bytes, version: int | None = None) -> None:
    """Refuse a manifest of a newer version, even if its other fields cannot be read."""
    if version is None:
        try:
            version = msgspec.json.decode(data, type=_Version).format_version
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
    if version > FORMAT_VERSION:
        raise CorruptStore(
            f"{folder} has format version {version}, newer than {FORMAT_VERSION}",
            hint="update packline to read it",
        )


def _not_found(folder: Path) -> StoreNotFound:
    if (folder / WORK).is_dir():
        return StoreNotFound(
            f"{folder} holds a build that has not finished",
            hint=f"run its command again to go on; packline status {folder} shows how far it is",
        )
    if not folder.exists():
        return StoreNotFound(f"{folder} does not exist", hint="packline build makes a store")
    return StoreNotFound(
        f"{folder} is not a store: it has no {MANIFEST}", hint="packline build makes a store"
    )
