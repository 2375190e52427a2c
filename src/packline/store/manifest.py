"""Manifest and receipts of a store, as frozen values with a JSON form (docs/store.md).

They contain no time, machine or engine: equal inputs and recipes give equal bytes. A manifest is untrusted
data, whose checksum shows that it is unchanged, not who wrote it. So the types of its fields have limits, and
`manifest_check` refuses names that lead out of the store and values that contradict each other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

import msgspec
import numpy as np

from packline.errors import NoDocuments
from packline.fingerprint import hash_bytes, json_form, seal
from packline.recipe import SPLITS, ColumnType, Natural, Recipe, Split, is_limited
from packline.store.files import FileEntry, StoreFiles
from packline.store.ledger import Ledger, losses, source_names
from packline.store.naming import STREAM
from packline.store.tables import (
    RECEIPTS,
    TOKENIZER,
    InputEntry,
    InputRows,
    ShardEntry,
    ShardRows,
    TableRows,
    UnitEntry,
    UnitRows,
)
from packline.version import __version__

if TYPE_CHECKING:
    from packline.encoders.special_tokens import Boundary
    from packline.encoders.tokenizer import Tokenizer

FORMAT_VERSION = 3
READABLE = (3,)
Dtype = Literal["uint16", "int32"]
MANIFEST = "manifest.json"
MADE = 1 << 12
"""Receipts that are values at the same time when a manifest is made."""
TABLES = ("shards", "inputs", "units")


WHOLE_STREAM = -1
"""Stop of a piece that is a file read as a stream, whole."""


class InputPiece(msgspec.Struct, frozen=True, gc=False):
    """The part of a file that a unit read, and the checksum of its bytes."""

    file: str
    start: int
    stop: int
    checksum: str


class Receipt(msgspec.Struct, frozen=True):
    """Commit record of one unit: a unit without one does not exist."""

    unit: str
    source: str
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
    settings: str = ""
    """Checksum of everything but the inputs that decides the unit's files; empty if it is not reusable."""


class StreamReceipt(msgspec.Struct, frozen=True):
    """Commit record of a file that was read as a stream: the number of its units."""

    source: str
    file: str
    units: int
    checksum: str


class ImportEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Origin of imported sources, whose tokens were not encoded here."""

    format: str
    options: dict[str, Any]
    sources: tuple[str, ...]


class TokenizerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tokenizer that made the ids, and its tokens between documents."""

    name: str
    kind: str
    fingerprint: str
    vocab_size: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    eod_id: Natural
    eod: str
    bos_id: Natural | None
    bos: str | None
    round_trip: str
    """Fidelity of decoding ids to text: exact, normalized or lossy."""


class Totals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of a store, known without its tables."""

    shards: Natural
    inputs: Natural
    units: Natural
    documents: Natural
    tokens: Natural
    bytes: Natural
    """Total bytes of all files of the store but the manifest."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole store: `manifest.json`, written last, and the tables beside it.

    Limits of single values are in the types.
    """

    format_version: int
    packline: str
    recipe: Recipe
    tokenizer: TokenizerEntry
    dtype: Dtype
    totals: Totals
    tables: tuple[FileEntry, ...]
    tokenizer_files: tuple[FileEntry, ...]
    ledger: Ledger
    sources: dict[str, Ledger]
    imported: tuple[ImportEntry, ...] = ()
    val_share: float | msgspec.UnsetType = msgspec.UNSET
    """val_fraction that results from the recipe's val_documents; absent without."""
    shards: ShardRows = cast(Any, msgspec.UNSET)
    """Shards, in the order of the documents. Like the other tables, not in `manifest.json`."""
    inputs: InputRows = cast(Any, msgspec.UNSET)
    units: UnitRows = cast(Any, msgspec.UNSET)
    checksum: str = ""
    """Checksum of `manifest.json` with this field empty: xxh3-128, 32 hexadecimal digits."""

    @property
    def rows(self) -> tuple[TableRows[Any], ...]:
        """The tables, in the order of their entries."""
        return self.shards, self.inputs, self.units

    @property
    def unit_count(self) -> int:
        """Number of units, without the records that a stream has ended."""
        return sum(not name.endswith(STREAM) for name in self.units.names("unit"))

    @property
    def store_bytes(self) -> int:
        """Total bytes of all files of the store but the manifest."""
        return self.totals.bytes

    @property
    def documents(self) -> int:
        """Documents in all splits."""
        return self.totals.documents

    @property
    def tokens(self) -> int:
        """Tokens in all splits, boundary tokens included."""
        return self.totals.tokens

    @property
    def imported_sources(self) -> frozenset[str]:
        """Names of the sources whose tokens were not encoded from plain text here."""
        return frozenset(name for entry in self.imported for name in entry.sources)

    def files(self) -> Iterator[FileEntry]:
        """Entries of all files of the store but the manifest."""
        for shard in self.shards:
            yield from shard.files
        for unit in self.units:
            yield unit.receipt
            yield from unit.rejects
        yield from self.tokenizer_files
        yield from self.tables


def to_json(value: Any) -> bytes:
    """JSON form: indented, keys in the order of the fields; a manifest with its own checksum."""
    if not isinstance(value, Manifest):
        return json_form(value)
    return seal(msgspec.structs.replace(value, **dict.fromkeys(TABLES, msgspec.UNSET)))


def manifest_files(manifest: Manifest) -> dict[str, bytes]:
    """Tables and manifest as files, by name, in the order in which to write them: the manifest is last."""
    return {**{one.file: one.data for one in manifest.rows}, MANIFEST: to_json(manifest)}


def count_totals(manifest: Manifest) -> Totals:
    """Sizes of a store, counted from its tables."""
    listed = sum(size for rows in manifest.rows for size in rows.bytes_by_file().values())
    return Totals(
        shards=len(manifest.shards),
        inputs=len(manifest.inputs),
        units=len(manifest.units),
        documents=int(manifest.shards.numbers("documents").sum()),
        tokens=int(manifest.shards.numbers("tokens").sum()),
        bytes=listed + sum(entry.bytes for entry in (*manifest.tokenizer_files, *manifest.tables)),
    )


def with_tables(manifest: Manifest, **tables: TableRows[Any]) -> Manifest:
    """The manifest with other tables, by name, and totals that agree with them."""
    manifest = msgspec.structs.replace(manifest, **tables)
    manifest = msgspec.structs.replace(manifest, tables=tuple(one.entry for one in manifest.rows))
    return msgspec.structs.replace(manifest, totals=count_totals(manifest))


def tokenizer_entry(tokenizer: Tokenizer, boundary: Boundary, round_trip: str = "") -> TokenizerEntry:
    """Entry of a tokenizer; without its round trip as long as that is not measured."""
    facts = (tokenizer.name, tokenizer.kind, tokenizer.fingerprint, tokenizer.vocab_size)
    edges = (boundary.eod_id, boundary.eod, boundary.bos_id, boundary.bos)
    return TokenizerEntry(*facts, *edges, round_trip)


def load_kept_tokenizer(store: StoreFiles, files: Sequence[FileEntry]) -> Tokenizer:
    """Load the tokenizer kept with a store, local or remote."""
    from packline.encoders.tokenizer import load_tokenizer

    if store.is_local:
        return load_tokenizer(str(store.folder / TOKENIZER))
    with tempfile.TemporaryDirectory(prefix="packline-") as folder:
        inner = Path(folder) / TOKENIZER
        inner.mkdir()
        for entry in files:
            (Path(folder) / entry.name).write_bytes(store.read(entry))
        return load_tokenizer(str(inner))


def assemble(
    receipts: Iterable[Receipt],
    *,
    recipe: Recipe,
    tokenizer: TokenizerEntry,
    dtype: str,
    inputs: Iterable[InputEntry],
    receipt_files: Iterable[FileEntry],
    tokenizer_files: Iterable[FileEntry],
    streams: Mapping[str, StreamReceipt] | None = None,
    imported: Sequence[ImportEntry] = (),
    val_share: float | msgspec.UnsetType = msgspec.UNSET,
) -> Manifest:
    """Manifest of a store whose units have these receipts."""
    sources = {name: Ledger() for name in source_names(recipe)}
    waiting, files = iter(receipts), iter(receipt_files)
    shards: list[ShardRows] = []
    units: list[UnitRows] = []
    while part := list(islice(waiting, MADE)):  # few receipts are values at the same time
        for receipt in part:
            sources[receipt.source] += receipt.ledger
        shards.append(ShardRows.from_entries((r.unit, r.source, shard) for r in part for shard in r.shards))
        units.append(UnitRows.from_entries(_unit_entry(r.unit, r.source, r.rejects, files) for r in part))
    ends = ((f"{name}{STREAM}", receipt.source) for name, receipt in (streams or {}).items())
    units.append(UnitRows.from_entries(_unit_entry(*end, (), files) for end in ends))
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        packline=__version__,
        recipe=recipe,
        tokenizer=tokenizer,
        dtype=cast(Dtype, dtype),
        totals=Totals(0, 0, 0, 0, 0, 0),
        tables=(),
        tokenizer_files=tuple(tokenizer_files),
        ledger=sum(sources.values(), Ledger()),
        sources=sources,
        imported=tuple(imported),
        val_share=val_share,
    )
    return with_tables(
        manifest,
        shards=ShardRows.joined(shards),
        inputs=InputRows.from_entries(inputs),
        units=UnitRows.joined(units),
    )


def _unit_entry(
    unit: str, source: str, rejects: tuple[FileEntry, ...], files: Iterator[FileEntry]
) -> UnitEntry:
    """Entry of a unit or a stream, with the next file."""
    entry = next(files)
    assert entry.name == f"{RECEIPTS}/{unit}.json", (entry.name, unit)
    return UnitEntry(unit, source, entry, rejects)


Slice = tuple[int, int]
"""Number of a slice, from 0, and the number of slices."""
WHOLE: Slice = (0, 1)


class StoreUnit(NamedTuple):
    """Shards, receipt and rejects of one unit of a store, or the receipt of one stream."""

    name: str
    source: str
    shards: tuple[ShardEntry, ...]
    receipt: FileEntry | None
    """None if the table of units does not list it."""
    rejects: tuple[FileEntry, ...]

    @property
    def files(self) -> list[FileEntry]:
        """All its files but the receipt."""
        return [*(file for shard in self.shards for file in shard.files), *self.rejects]


def units_of(manifest: Manifest, slice: Slice = WHOLE) -> Iterator[StoreUnit]:
    """Units in the order of their first shards, then those without a shard.

    Args:
        slice: only every n-th unit. All slices together have each unit once.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    shards, units = manifest.shards, manifest.units
    names = pa.concat_tables([shards.table.select(["unit"]), units.table.select(["unit"])])["unit"].unique()
    names = names.take(pa.array(range(slice[0], len(names), slice[1]), pa.int64()))
    owners = pc.index_in(shards.table["unit"], names)
    order = pc.sort_indices(owners)[: len(owners) - owners.null_count]  # stable, null at the end
    counts = np.bincount(owners.drop_null().to_numpy(), minlength=len(names)).tolist()
    table = shards.table.take(order)
    rows = zip(table["source"].to_pylist(), ShardRows(table), strict=True)
    places = pc.index_in(names, units.table["unit"]).to_pylist()
    for name, place, count in zip(names.to_pylist(), places, counts, strict=True):
        own = list(islice(rows, count))
        listed = None if place is None else units[place]
        source = own[0][0] if own or listed is None else listed.source
        receipt, rejects = (None, ()) if listed is None else (listed.receipt, listed.rejects)
        yield StoreUnit(name, source, tuple(shard for _, shard in own), receipt, rejects)


def join_checksums(checksums: Sequence[str]) -> str:
    """One checksum of a file that was read in pieces; empty for a file that a limit left unread."""
    return "".join(checksums) if len(checksums) < 2 else hash_bytes("".join(checksums).encode())


def splits_of(recipe: Recipe) -> list[Split]:
    """Splits that a recipe's documents can be in."""
    there: set[Split] = {source.split or "train" for source in recipe.sources}
    if any(source.split is msgspec.UNSET for source in recipe.sources):
        there |= {"val"} if recipe.val_fraction or recipe.val_documents else set()
        there |= {"test"} if recipe.test_fraction else set()
    return [split for split in SPLITS if split in there]


def split_warnings(manifest: Manifest) -> list[str]:
    """One line for each split that differs from the recipe: empty, or another number of documents."""
    recipe, there = manifest.recipe, manifest.shards.by_split("documents")
    fractions = {"val": recipe.val_fraction, "test": recipe.test_fraction or 0.0}
    lines = []
    for split in splits_of(recipe):
        found = there.get(split, 0)
        if split == "val" and (expected := recipe.val_documents):
            given = [source.split for source in recipe.sources]
            for entry in manifest.imported:  # conversations
                given += [source.get("split") for source in entry.options.get("sources", ())]
            if found != expected and not any(given):  # no whole source is in it
                lines.append(
                    f"the split val has {found:,} documents instead of {expected:,}: equal texts are in one "
                    "split, and the next text is there so often that it would be more"
                )
        elif not found:
            share = fractions.get(split, 0.0)
            of = f": {split}_fraction is {share:g} of {manifest.documents:,} documents" if share else ""
            lines.append(f"the split {split} has no documents{of}")
    return lines


def refuse_empty(place: Path | str, manifest: Manifest) -> None:
    """Refuse a finished store without documents."""
    if manifest.documents:
        return
    sources = "; ".join(
        f"source {name}: "
        + (", ".join(f"{count:,} {what}" for what, count in losses(ledger)) or "no records")
        for name, ledger in manifest.sources.items()
    )
    recipe = manifest.recipe
    first = "raise the limit, or " if is_limited(recipe) else ""
    raise NoDocuments(
        f"{place} has no documents ({sources})",
        hint=f"{first}correct the field, the encoding or the filters, and build into the same folder",
    )
