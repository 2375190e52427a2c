"""Manifest and receipts of a store, as frozen values with a JSON form.

    receipts/UNIT.json   Receipt: inputs and outputs of one unit, the commit record
    manifest.json        Manifest: the sum of the receipts, and the recipe, inputs and tokenizer

    from_receipts        receipts in the order of documents ──> shards, rejects, ledgers
    read_manifest        the manifest of a finished store, checked
    split_warnings       splits that the recipe requests and that got no document

They contain no time, machine or engine: equal inputs and recipes give equal bytes. Formats are versioned; a
store of a newer version is refused, not misread. A manifest is untrusted data: a checksum shows that it is
unchanged, not who wrote it, and the files it names are opened and served. So names that lead out of the store
and impossible numbers are refused when it is read, at 2 microseconds per shard. No file is opened for that:
`verify` compares the files with the manifest.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from packline.errors import CorruptStore, NoDocuments, StoreNotFound
from packline.fingerprint import NotWhole, hash_bytes, json_form, seal, unseal
from packline.recipe import SPLITS, ColumnType, Recipe, Split
from packline.sources.compression import Compression
from packline.store.files import FileEntry, reading, stat_file
from packline.store.ledger import Ledger, losses, source_names, total, totals_by_source
from packline.version import __version__

if TYPE_CHECKING:
    from packline.encoders.parity import RoundTrip
    from packline.encoders.special_tokens import Boundary
    from packline.encoders.tokenizer import Tokenizer

FORMAT_VERSION = 1
DTYPES = ("uint16", "int32")
"""Dtypes of tokens."""
MANIFEST = "manifest.json"
RECEIPTS = "receipts"
REJECTS = "rejects"
TOKENIZER = "tokenizer"
WORK = ".packline"
"""Folder for the lock, the plan and unfinished files while a build runs; absent from a finished store."""


class ShardEntry(msgspec.Struct, frozen=True, gc=False):
    """One shard: `NAME.bin`, `NAME.idx`, `NAME.docs.parquet`, and `NAME.loss` if it has a loss mask."""

    name: str
    split: str
    documents: int
    tokens: int
    files: tuple[FileEntry, ...]


WHOLE_STREAM = -1
"""Stop of a piece that is a file read as a stream, whole."""


class InputPiece(msgspec.Struct, frozen=True, gc=False):
    """The part of a file that a unit read, and the checksum of its bytes."""

    file: str
    """Name of the file within the source, as in provenance."""
    start: int
    stop: int
    checksum: str


class Receipt(msgspec.Struct, frozen=True):
    """Commit record of one unit: a unit without one does not exist."""

    unit: str
    source: str
    """Name of the source."""
    inputs: tuple[InputPiece, ...]
    shards: tuple[ShardEntry, ...]
    rejects: tuple[FileEntry, ...]
    ledger: Ledger
    audited: int
    """Documents that the reference tokenizer encoded again."""
    complete: bool = True
    """False if a limit of documents or tokens ended it early."""
    columns: dict[str, ColumnType] | msgspec.UnsetType = msgspec.UNSET
    """Type of each column that the source carries, by name and in order; absent without any."""


class StreamReceipt(msgspec.Struct, frozen=True):
    """Commit record of a file that was read as a stream: the number of its units."""

    source: str
    file: str
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
    def store_bytes(self) -> int:
        """Total bytes of all files of the store but the manifest."""
        entries = [entry for shard in self.shards for entry in shard.files]
        others = (*self.rejects, *self.receipts, *self.tokenizer_files)
        return sum(entry.bytes for entry in (*entries, *others))

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
            hint=f"run its command again to resume; packline status {folder} shows its progress",
        )
    if not folder.exists():
        return StoreNotFound(f"{folder} does not exist", hint="packline build makes a store")
    return StoreNotFound(
        f"{folder} is not a store: it has no {MANIFEST}", hint="packline build makes a store"
    )


PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""Name that is one component of a path on any system, and not hidden."""
ENDING = re.compile(r"(\.[A-Za-z0-9_-]+)+")
MOST = 2**62
"""Largest number of documents or tokens of a store, so that sums and offsets in bytes are int64."""
MOST_IDS = 2**31 - 1


def check_manifest(path: Path, manifest: Manifest) -> None:
    """Check a manifest alone, without its files.

    Args:
        path: file it was read from, for the error.

    Raises:
        CorruptStore: names the first impossible value.
    """
    for what, expected, found in _problems(manifest):
        raise CorruptStore(
            f"{path}: {what}: expected {expected}, found {found}"[:500],
            hint="packline did not write this manifest; build the store again",
        )


def _problems(manifest: Manifest) -> Iterator[tuple[str, str, object]]:
    """Problems, as (description, expected, found)."""
    if manifest.dtype not in DTYPES:
        yield "dtype", " or ".join(DTYPES), repr(manifest.dtype)
    entry = manifest.tokenizer
    if not 1 <= entry.vocab_size <= MOST_IDS:
        yield "vocab_size of the tokenizer", f"1 to {MOST_IDS:,}", f"{entry.vocab_size:,}"
    for name, number in (("eod_id", entry.eod_id), ("bos_id", entry.bos_id)):
        if number is not None and not 0 <= number < entry.vocab_size:
            yield f"{name} of the tokenizer", f"0 to {entry.vocab_size - 1:,}", f"{number:,}"
    names = [shard.name for shard in manifest.shards]
    yield from _names("shard", names)
    yield from _twice("shards", names)
    if strange := {shard.split for shard in manifest.shards}.difference(SPLITS):
        yield "split of a shard", " or ".join(SPLITS), repr(min(strange))
    for what, counts in (
        ("documents", [shard.documents for shard in manifest.shards]),
        ("tokens", [shard.tokens for shard in manifest.shards]),
    ):
        if counts and (min(counts) < 0 or sum(counts) > MOST):
            wrong = min(counts) if min(counts) < 0 else max(counts)
            yield f"{what} of a shard", f"0 or more, and at most {MOST:,} in all", f"{wrong:,}"
    endings = {file.name.removeprefix(shard.name) for shard in manifest.shards for file in shard.files}
    for ending in endings:
        if not ENDING.fullmatch(ending):
            yield "a file of a shard", "the name of the shard and an ending", repr(ending)
    for folder, entries in (
        (REJECTS, manifest.rejects),
        (RECEIPTS, manifest.receipts),
        (TOKENIZER, manifest.tokenizer_files),
    ):
        yield from _files(folder, entries)
    count = len(manifest.recipe.sources)
    for given in manifest.inputs:
        if not 0 <= given.source < count:
            yield f"source of input {given.name!r}", f"0 to {count - 1}", f"{given.source:,}"


def _files(folder: str, entries: Iterable[FileEntry]) -> Iterator[tuple[str, str, object]]:
    """Check that files of a folder are in it, each once."""
    names = [entry.name for entry in entries]
    for name in names:
        if not name.startswith(f"{folder}/"):
            yield f"a file of {folder}/", "a name that begins with it", repr(name)
    yield from _names(f"file of {folder}/", [name.removeprefix(f"{folder}/") for name in names])
    yield from _twice(f"files of {folder}/", names)


def _twice(what: str, names: Sequence[str]) -> Iterator[tuple[str, str, object]]:
    if len(set(names)) != len(names):
        yield (
            what,
            "each once",
            f"{next(name for name, count in Counter(names).items() if count > 1)!r} twice",
        )


def _names(what: str, names: Iterable[str]) -> Iterator[tuple[str, str, object]]:
    match = PLAIN.fullmatch
    for name in names:
        if not match(name):
            yield f"name of a {what}", "one plain component of a path", repr(name)


def from_receipts(
    receipts: Sequence[Receipt],
    *,
    recipe: Recipe,
    tokenizer: Tokenizer,
    boundary: Boundary,
    round_trip: RoundTrip,
    inputs: Iterable[InputEntry],
    receipt_files: Iterable[FileEntry],
    tokenizer_files: Iterable[FileEntry],
    imported: ImportEntry | msgspec.UnsetType = msgspec.UNSET,
    val_share: float | msgspec.UnsetType = msgspec.UNSET,
) -> Manifest:
    """Manifest of a store whose units have these receipts.

    Args:
        receipts: receipts of all units, in the order of their documents.
        inputs: inputs with their checksums: see `join_checksums`.
    """
    from packline.ragged import dtype_for

    return Manifest(
        format_version=FORMAT_VERSION,
        packline=__version__,
        recipe=recipe,
        tokenizer=TokenizerEntry(
            name=tokenizer.name,
            kind=tokenizer.kind,
            fingerprint=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size,
            eod_id=boundary.eod_id,
            eod=boundary.eod,
            bos_id=boundary.bos_id,
            bos=boundary.bos,
            round_trip=round_trip,
        ),
        dtype=dtype_for(tokenizer.vocab_size).name,
        inputs=tuple(inputs),
        shards=tuple(shard for receipt in receipts for shard in receipt.shards),
        rejects=tuple(entry for receipt in receipts for entry in receipt.rejects),
        receipts=tuple(receipt_files),
        tokenizer_files=tuple(tokenizer_files),
        ledger=total(receipt.ledger for receipt in receipts),
        sources=totals_by_source(
            source_names(recipe), ((receipt.source, receipt.ledger) for receipt in receipts)
        ),
        imported=imported,
        val_share=val_share,
    )


def join_checksums(checksums: Sequence[str]) -> str:
    """One checksum of a file that was read in pieces; empty for a file that a limit left unread.

    >>> join_checksums([]), join_checksums(["ab"]), len(join_checksums(["ab", "cd"]))
    ('', 'ab', 32)
    """
    return "".join(checksums) if len(checksums) < 2 else hash_bytes("".join(checksums).encode())


def splits_of(recipe: Recipe) -> list[Split]:
    """Splits that a recipe's documents can be in.

    >>> from packline.recipe import Source
    >>> splits_of(Recipe(sources=(Source(inputs=("a",)),), tokenizer="t", test_fraction=0.1))
    ['train', 'test']
    """
    there: set[Split] = {source.split or "train" for source in recipe.sources}
    if any(source.split is msgspec.UNSET for source in recipe.sources):
        there |= {"val"} if recipe.val_fraction or recipe.val_documents else set()
        there |= {"test"} if recipe.test_fraction else set()
    return [split for split in SPLITS if split in there]


def split_warnings(manifest: Manifest) -> list[str]:
    """One line for each split that differs from the recipe: empty, or another number of documents."""
    recipe = manifest.recipe
    there = {shard.split for shard in manifest.shards if shard.documents}
    fractions = {"val": recipe.val_fraction, "test": recipe.test_fraction or 0.0}
    lines = []
    for split in splits_of(recipe):
        if split == "val" and recipe.val_documents:
            lines += _other_number(manifest, recipe.val_documents)
        elif split not in there:
            share = fractions.get(split, 0.0)
            of = f": {split}_fraction is {share:g} of {manifest.documents:,} documents" if share else ""
            lines.append(f"the split {split} has no documents{of}")
    return lines


def _other_number(manifest: Manifest, expected: int) -> list[str]:
    """A line if val has another number of documents than requested, unless it contains a whole source."""
    found = sum(shard.documents for shard in manifest.shards if shard.split == "val")
    given = [source.split for source in manifest.recipe.sources]
    if manifest.imported:  # conversations
        given += [source.get("split") for source in manifest.imported.options.get("sources", ())]
    if found == expected or any(given):
        return []
    return [
        f"the split val has {found:,} documents instead of {expected:,}: equal texts are in one split, and "
        "the next text is there so often that it would be more"
    ]


def refuse_empty(path: Path, manifest: Manifest) -> None:
    """Refuse a finished store without documents.

    Raises:
        NoDocuments: with the losses of each source's records.
    """
    if manifest.documents:
        return
    sources = "; ".join(
        f"source {name}: "
        + (", ".join(f"{count:,} {what}" for what, count in losses(ledger)) or "no records")
        for name, ledger in manifest.sources.items()
    )
    recipe = manifest.recipe
    limited = recipe.limit_documents is not None or recipe.limit_tokens is not None
    first = "raise the limit, or " if limited else ""
    raise NoDocuments(
        f"{path} has no documents ({sources})",
        hint=f"{first}correct the field of the text or the filters, and build into the same folder",
    )
