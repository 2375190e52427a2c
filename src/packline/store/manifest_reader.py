"""Read the manifest of a finished store, checked."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from packline.errors import CorruptStore, StoreError, StoreNotFound
from packline.fingerprint import NotWhole, unseal
from packline.store.files import reading, stat_file
from packline.store.manifest import FORMAT_VERSION, MANIFEST, WORK, Manifest, ManifestFile
from packline.store.manifest_check import check_manifest, check_tables
from packline.store.paths import StorePath
from packline.store.tables import read_tables
from packline.toml import kind_hint, kind_of


def read_manifest(folder: StorePath) -> Manifest:
    """Read and check the manifest of a finished store and its tables.

    Raises:
        StoreNotFound: there is none; reports what is there instead.
        CorruptStore: it is damaged, or contains impossible values.
        StoreError: it is of another format.
    """
    read = read_manifest_file(folder)
    fields = {name: getattr(read, name) for name in read.__struct_fields__}
    manifest = Manifest(**fields, rows=read_tables(folder, read.tables))
    check_tables(folder, manifest)
    if not isinstance(folder, Path):
        folder.mirror.manifest = manifest
    return manifest


def read_manifest_file(folder: StorePath) -> ManifestFile:
    """Read and check `manifest.json` alone; see `read_manifest`."""
    path = folder / MANIFEST
    if isinstance(path, Path):
        if not os.path.lexists(path):
            raise _not_found(folder)
        stat_file(path)
    with reading(path):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise _not_found(folder) from None
    try:
        read = unseal(data, ManifestFile)
    except NotWhole as error:
        _check_version(folder, data)
        raise CorruptStore(f"{path} is damaged: {error}", hint="build the store again") from error
    _check_version(folder, data, read.format_version)
    check_manifest(path, read)
    return read


OLD_FORMAT = (
    "build it again; or packline import its Megatron files, which keeps the tokens, and loses the provenance "
    "(file, position, id and hash of each document), and with it --reuse"
)
"""Advice for a store of an earlier format."""


class _Version(msgspec.Struct):
    """The field that all versions have."""

    format_version: int


def _check_version(folder: StorePath, data: bytes, version: int | None = None) -> None:
    """Refuse a manifest of another version, even if its other fields cannot be read."""
    if version is None:
        try:
            version = msgspec.json.decode(data, type=_Version).format_version
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
    if version != FORMAT_VERSION:
        raise StoreError(
            f"{folder} is of store format {version}, and this version of packline reads format "
            f"{FORMAT_VERSION}: nothing of it was read or checked",
            hint="update packline to read it" if version > FORMAT_VERSION else OLD_FORMAT,
        )


def _not_found(folder: StorePath) -> StoreNotFound:
    if not isinstance(folder, Path):
        return StoreNotFound(
            f"{folder} is not a finished store: it has no {MANIFEST}",
            hint="check the URI; packline status shows a build that has not finished",
        )
    if (folder / WORK).is_dir():
        return StoreNotFound(
            f"{folder} holds a build that has not finished",
            hint=f"run its command again to resume; packline status {folder} shows its progress, and "
            "packline.follow reads it while it is built",
        )
    if not folder.exists():
        return StoreNotFound(f"{folder} does not exist", hint="packline build makes a store")
    if folder.is_file():
        if kind := kind_of(folder):
            what = f"{folder} is a {kind}, not the folder of a store"
            return StoreNotFound(what, hint=kind_hint(folder, kind))
        return StoreNotFound(
            f"{folder} is a file, not the folder of a store",
            hint=f"packline build {folder} --tokenizer gpt2 --out store makes a store of text",
        )
    return StoreNotFound(
        f"{folder} is not a store: it has no {MANIFEST}", hint="packline build makes a store"
    )
