"""Read the manifest of a finished store and its tables: untrusted data, even with the right checksums.

Checked is how values relate to each other; in bulk, 0.1 s for 100,000 shards. No file of a shard is opened.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from packline.conversion import kind_hint, kind_of
from packline.errors import CorruptStore, RecipeError, StoreError, StoreNotFound
from packline.fingerprint import NotWhole, unseal
from packline.recipe import SPLITS
from packline.storage.results import EXPORT_BEGUN, WORK, unfinished_export
from packline.store.files import StoreFiles, reading, store_files
from packline.store.ledger import source_names
from packline.store.manifest import FORMAT_VERSION, MANIFEST, READABLE, TABLES, Manifest, Totals, count_totals
from packline.store.tables import (
    INPUTS,
    SHARDS,
    TOKENIZER,
    UNITS,
    InputRows,
    ShardRows,
    TableRows,
    UnitRows,
)

if TYPE_CHECKING:
    import pyarrow as pa


PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""Name that is one component of a path on any system, and not hidden."""
MOST = 2**62
"""Largest number of documents, tokens or bytes of a store, so that sums and offsets in bytes are int64."""

Wrong = Iterator[tuple[str, str, object]]
"""Problems, as (description, expected, found)."""


def _refuse(path: str, problems: Wrong) -> None:
    for what, expected, found in problems:
        raise CorruptStore(
            f"{path}: {what}: expected {expected}, found {found}"[:500],
            hint="packline did not write this manifest; build the store again",
        )


def _wrong_values(manifest: Manifest) -> Wrong:
    entry = manifest.tokenizer
    for name, number in (("eod_id", entry.eod_id), ("bos_id", entry.bos_id)):
        if number is not None and number >= entry.vocab_size:
            yield f"{name} of the tokenizer", f"0 to {entry.vocab_size - 1:,}", f"{number:,}"
    names = [file.name for file in manifest.tokenizer_files]
    for name in names:
        folder, _, inner = name.partition("/")
        if folder != TOKENIZER or not PLAIN.fullmatch(inner):
            expected = f"{TOKENIZER}/ and one plain component of a path"
            yield f"name of a file of {TOKENIZER}/", expected, repr(name)
    if len(set(names)) != len(names):
        yield f"files of {TOKENIZER}/", "each once", f"{_repeated(names)!r} twice"
    tables = ", ".join(table.name for table in manifest.tables)
    if tables != (expected := ", ".join((SHARDS, INPUTS, UNITS))):
        yield "tables", expected, tables or "none"
    known = source_names(manifest.recipe)
    for imported in manifest.imported:
        for name in set(imported.sources).difference(known):
            yield "source of an import", "a source of the recipe", repr(name)


def _wrong_rows(one: str, many: str, rows: TableRows[Any], manifest: Manifest, totals: Totals) -> Wrong:
    """Problems of a table: names, sources, numbers, files, and sums."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = rows.table
    if "split" in rows.columns:
        yield from _unlisted(f"split of {one}", table["split"], SPLITS, " or ".join(SPLITS))
    if rows.files:
        names = table[0]
        plain = pc.match_substring_regex(names, rf"\A{PLAIN.pattern}\z")
        if not pc.all(plain, min_count=0).as_py():
            found = names.filter(pc.invert(plain))[0].as_py()
            yield f"name of {one}", "one plain component of a path", repr(found)
        if pc.count_distinct(names).as_py() != len(names):
            yield many, "each once", f"{_repeated(names.to_pylist())!r} twice"
    known = source_names(manifest.recipe)
    yield from _unlisted(f"source of {one}", table["source"], known, "a source of the recipe")
    for field in rows.schema():
        if field.type == pa.int64() and len(rows):
            values = rows.numbers(field.name)
            if int(values.min()) < 0:
                yield f"{field.name} of {one}", "0 or more", f"{int(values.min()):,}"
            elif float(values.sum(dtype="f8")) > MOST:
                yield f"{field.name} of {one}", f"at most {MOST:,} in all", f"{int(values.max()):,}"
    for kind in rows.files:
        if not table[f"{kind}_bytes"].is_null().equals(table[f"{kind}_checksum"].is_null()):
            yield f"{kind} of {one}", "bytes and checksum, or neither", "one of them"
    if "split" in rows.columns:
        named = pc.binary_join_element_wise(table["split"], table["unit"], "-")
        if not table["name"].equals(named):
            differs = pc.not_equal(table["name"], named)
            name, expected = (column.filter(differs)[0].as_py() for column in (table["name"], named))
            yield "name of a shard", f"its split and its unit, {expected!r}", repr(name)
    sums = {many: f"number of {many}"}
    sums |= {name: f"{name} of {one}, in all" for name in ("documents", "tokens") if name in rows.columns}
    if many == "units":
        sums["bytes"] = "bytes of all files"
    for name, what in sums.items():
        if (found := getattr(totals, name)) != (expected := getattr(manifest.totals, name)):
            yield what, f"{expected:,}", f"{found:,}"


def _unlisted(what: str, column: pa.ChunkedArray, known: Sequence[str], expected: str) -> Wrong:
    for name in column.unique().to_pylist():
        if name not in known:
            yield what, expected, repr(name)


def _repeated(names: Sequence[str]) -> str:
    return next(name for name, count in Counter(names).items() if count > 1)


def read_manifest(store: Path | StoreFiles) -> Manifest:
    """Read and check the manifest of a finished store and its tables."""
    files = store_files(store)
    read = read_manifest_file(files)
    kinds: tuple[type[TableRows[Any]], ...] = (ShardRows, InputRows, UnitRows)
    tables = {
        name: kind.read(files, entry) for name, kind, entry in zip(TABLES, kinds, read.tables, strict=True)
    }
    manifest = msgspec.structs.replace(read, **tables)
    totals = count_totals(manifest)
    for one, many, rows in zip(("a shard", "an input", "a unit"), TABLES, manifest.rows, strict=True):
        _refuse(files.path(rows.file), _wrong_rows(one, many, rows, manifest, totals))
    files.learn(manifest)
    return manifest


def read_manifest_file(store: Path | StoreFiles) -> Manifest:
    """Read and check `manifest.json` alone, without its tables; see `read_manifest`."""
    files = store_files(store)
    folder, path = files.place, files.path(MANIFEST)
    with reading(path):
        try:
            data = files.read_unlisted(MANIFEST)
        except FileNotFoundError:
            raise _not_found(folder) from None
    try:
        read = unseal(data, Manifest)
    except NotWhole as error:
        _check_version(folder, data)
        reason, hint = _reason(data, error), "build the store again"
        if "unknown field" in str(error):
            reason, hint = str(error), f"update packline, which may be older than the store, or {hint}"
        raise CorruptStore(f"{path} is damaged: {reason}", hint=hint) from error
    _check_version(folder, data, read.format_version)
    _refuse(path, _wrong_values(read))
    return read


def _reason(data: bytes, error: NotWhole) -> str:
    """Reason why a manifest is refused, with the value that was found where one is out of its limits."""
    from packline.conversion import convert

    try:
        convert(msgspec.json.decode(data), Manifest)
    except RecipeError as wrong:
        return wrong.message
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # it is not JSON
    return str(error)


OLD_FORMAT = (
    "build it again; or packline import its Megatron files, which keeps the tokens, and loses the provenance "
    "(file, position, id and hash of each document), and with it --reuse"
)


class _Version(msgspec.Struct):
    format_version: int


def _check_version(folder: Path | str, data: bytes, version: int | None = None) -> None:
    """Refuse a manifest of another version, even if its other fields cannot be read."""
    if version is None:
        try:
            version = msgspec.json.decode(data, type=_Version).format_version
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
    if version not in READABLE:
        raise StoreError(
            f"{folder} is of store format {version}, and this version of packline reads format "
            f"{' and '.join(map(str, READABLE))}: nothing of it was read or checked",
            hint="update packline to read it" if version > FORMAT_VERSION else OLD_FORMAT,
        )


def _not_found(folder: Path | str) -> StoreNotFound:
    if isinstance(folder, str):
        return StoreNotFound(
            f"{folder} is not a finished store: it has no {MANIFEST}",
            hint="check the URI; packline status shows a build that has not finished",
        )
    if (folder / EXPORT_BEGUN).exists():
        return unfinished_export(folder)
    if (folder / WORK).is_dir():
        return StoreNotFound(
            f"{folder} holds a build that has not finished",
            hint=f"run its command again to resume; packline status {folder} shows its progress, and "
            "packline.follow reads it while it is built",
        )
    if not folder.exists():
        return StoreNotFound(f"{folder} does not exist", hint="packline build makes a store")
    if folder.is_file():
        kind = kind_of(folder)
        hint = kind_hint(folder, kind) if kind else f"packline build {folder} makes a store of text"
        return StoreNotFound(f"{folder} is a {kind or 'file'}, not the folder of a store", hint=hint)
    return StoreNotFound(
        f"{folder} is not a store: it has no {MANIFEST}", hint="packline build makes a store"
    )
