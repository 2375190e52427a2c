"""Take units over from an earlier store: those that would be run again with the same result.

    plan       unit by unit: its pieces of files, its settings (`unit_settings`), the content of its inputs
    report     what is reused, and for the rest the reasons                          (`ReusePlanned`)
    take over  link or copy the files, compare their checksums, commit them with a new receipt

A unit is found by its source and its pieces of files, not by its number, and gets the files and the receipt
that it would have without reuse; so the store is the same, byte for byte. The content of its inputs is equal
if their checksums are: their bytes are read again, but not encoded, except those of objects whose ETag is
recorded. A stream is reused as a whole.

The earlier store is not trusted: every file that is taken over is read, and compared with the checksum in the
unit's receipt, which is listed in the manifest. A unit with a missing or damaged file is run as usual, and
reported. Files are linked next to where unfinished units are written, never there: no process writes into
a link. After a crash the same command goes on: what is committed is committed, the rest is planned again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from packline.errors import CorruptStore, RecipeError, StoreError
from packline.fingerprint import Hasher
from packline.jobs.events import ReusePlanned, SourceReuse
from packline.jobs.folder import StoreFolder
from packline.jobs.identity import OF_FILES, UnitSettingsKey, etag_of, read_etags
from packline.jobs.plan import Unit
from packline.jobs.text_build import TextBuild
from packline.jobs.text_unit import check_unchanged
from packline.recipe import Recipe, is_limited, recipe_difference
from packline.sources.files import InputFile
from packline.sources.piece_checksum import piece_checksum, stream_checksum
from packline.sources.reader import Span
from packline.storage.local import disk_errors, share_file
from packline.storage.places import is_remote
from packline.store.files import FileEntry, read_file, reading, stat_file
from packline.store.ledger import source_names
from packline.store.manifest import Manifest, Receipt, StreamReceipt
from packline.store.manifest_check import read_manifest
from packline.store.naming import STREAM, parse_unit
from packline.store.tables import ShardEntry
from packline.version import __version__

BATCH = 256
"""Units that are taken over together."""
READ_BYTES = 4 << 20
OWN = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.EEXIST}
"""Errors of the new store or of this process; any other is one of the earlier store."""
OF_RECIPE = ("special_tokens", "max_document_bytes", "val_fraction", "test_fraction", "seed")
NEW_SOURCE, NEW_FILE = "new source", "new file"
CONTENT, CUTS = "content changed", "cut otherwise, as files before it changed"
LIMITED, STRICT = "ended by a limit", "has bad records, and strict stops at one"
READ = "read otherwise: other fields or types found in the files, or another version of pyarrow"
DAMAGED = "damaged in the earlier store"

Pieces = tuple[tuple[str, int, int], ...]


class OldStore:
    """A store that units are taken from.

    Raises:
        StoreNotFound: there is no finished store.
        StoreError: it has no units of text.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest: Manifest = read_manifest(path)
        if self.manifest.imported:
            raise StoreError(
                f"{path} is a store of imported tokens or of conversations: expected one built from text",
                hint="build without --reuse",
            )
        self.names = source_names(self.manifest.recipe)
        self.damaged: list[str] = []
        """Receipts that cannot be used, with the reasons."""

    @cached_property
    def sizes(self) -> dict[tuple[str, str], int]:
        """Bytes of each input, by the names of source and file."""
        return {(entry.source, entry.name): entry.bytes for entry in self.manifest.inputs}

    @property
    def lacking(self) -> str:
        """Reason for a unit that the store does not have, although it has all its files."""
        recipe = self.manifest.recipe
        if is_limited(recipe):
            return LIMITED
        return DAMAGED if self.damaged else CUTS

    @cached_property
    def units(self) -> dict[tuple[str, Pieces], Receipt]:
        """Receipts of units other than slices, by the names of their source and their pieces of files."""
        return {
            (
                receipt.source,
                tuple((piece.file, piece.start, piece.stop) for piece in receipt.inputs),
            ): receipt
            for receipt in self._receipts[0].values()
            if receipt.inputs
        }

    @cached_property
    def streams(self) -> dict[tuple[str, str], tuple[StreamReceipt, list[Receipt]]]:
        """Receipts of streams and of all their slices, by the names of source and file."""
        units, streams = self._receipts
        found = {}
        for name, stream in streams.items():
            planned = parse_unit(name)
            if planned is None:
                continue
            slices = [units.get(str(planned._replace(slice=number))) for number in range(stream.units)]
            if None not in slices:
                found[stream.source, stream.file] = (stream, [one for one in slices if one is not None])
        return found

    @cached_property
    def _receipts(self) -> tuple[dict[str, Receipt], dict[str, StreamReceipt]]:
        units: dict[str, Receipt] = {}
        streams: dict[str, StreamReceipt] = {}
        for unit in self.manifest.units:
            name, entry = unit.unit, unit.receipt
            try:
                data = read_file(self.path, entry)
                with reading(self.path / entry.name):
                    if name.endswith(STREAM):
                        streams[name.removesuffix(STREAM)] = msgspec.json.decode(data, type=StreamReceipt)
                    else:
                        units[name] = msgspec.json.decode(data, type=Receipt)
            except CorruptStore as error:
                self.damaged.append(error.message)
        return units, streams


@dataclass
class ReusableUnit:
    """A planned unit, or stream, and the receipts of the earlier store that it has."""

    unit: Unit
    receipts: list[Receipt]
    stream: StreamReceipt | None = None

    def renamed(self) -> Iterator[tuple[Receipt, Receipt]]:
        """Each receipt as it is, and with the names that it has in the new store."""
        for receipt in self.receipts:
            place = parse_unit(receipt.unit)
            name = self.unit.name
            if place is not None and place.slice is not None:
                name = self.unit.slice_name(place.slice)
            yield receipt, _renamed(receipt, name)


@dataclass
class ReusePlan:
    """What is reused, and why the rest is not."""

    matches: list[ReusableUnit] = field(default_factory=list)
    reasons: dict[str, dict[str, int]] = field(default_factory=dict)
    """Units to run by source and reason."""
    read_bytes: int = 0
    """Bytes of inputs that were read again."""


@dataclass
class Taken:
    """Units that were taken over."""

    receipts: list[Receipt] = field(default_factory=list)
    streams: dict[str, StreamReceipt] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """One line for each unit whose files could not be used."""


class Reuse:
    """Reuse of an earlier store by a build.

    Raises:
        RecipeError: the recipe has `val_documents`.
        StoreNotFound, StoreError: the earlier store cannot be used.
    """

    def __init__(self, path: str, work: TextBuild, out: Path) -> None:
        if work.recipe.val_documents:
            raise RecipeError(
                "val_documents does not go with --reuse: a document's split depends on all documents",
                hint="use val_fraction, which depends on the document alone",
            )
        if is_remote(path):
            raise StoreError(
                f"{path}: an earlier store must be a local folder, since its files are linked",
                hint=f"copy it first: packline pull {path} DIR, and give --reuse DIR",
            )
        if out.exists() and Path(path).exists() and os.path.samefile(path, out):
            raise StoreError(f"{path} is the output itself", hint="choose another --out")
        self.old = OldStore(Path(path))
        self._work, self._recipe, self._files = work, work.recipe, work.files
        self._names = work.names
        self._key = UnitSettingsKey(work.recipe, work.tokenizer.fingerprint, work.boundary)
        self._etags = read_etags(self.old.manifest.checksum)
        self._read_bytes = 0

    def plan(self, units: Sequence[Unit], *, strict: bool) -> ReusePlan:
        """Find what can be reused; reads inputs, except objects with the ETag that they had.

        Args:
            units: units that are not committed.
            strict: do not reuse a unit with bad records.
        """
        plan = ReusePlan()
        for unit in units:
            found = self._sliced(unit) if unit.slice_bytes else self._unit(unit)
            if isinstance(found, ReusableUnit):
                if not all(receipt.complete for receipt in found.receipts):
                    found = LIMITED
                elif strict and any(receipt.ledger.bad for receipt in found.receipts):
                    found = STRICT
            if isinstance(found, ReusableUnit):
                plan.matches.append(found)
            else:
                reasons = plan.reasons.setdefault(self._names[unit.source], {})
                reasons[found] = reasons.get(found, 0) + unit.receipts
        plan.read_bytes = self._read_bytes
        return plan

    def event(self, plan: ReusePlan) -> ReusePlanned:
        """Report of a plan."""
        sources = {name: SourceReuse(name) for name in self._names}
        for match in plan.matches:
            source = sources[self._names[match.unit.source]]
            source.units += len(match.receipts)
            source.text_bytes += match.unit.text_bytes
        for name, reasons in plan.reasons.items():
            sources[name].run = dict(sorted(reasons.items(), key=lambda item: -item[1]))
        return ReusePlanned(str(self.old.path), list(sources.values()), plan.read_bytes, self.old.damaged)

    def _unit(self, unit: Unit) -> ReusableUnit | str:
        source, spans = self._names[unit.source], unit.spans
        files = [self._files[span.file] for span in spans]
        pieces = tuple((file.name, span.start, span.stop) for file, span in zip(files, spans, strict=True))
        if (reason := self._known(source, files)) is not None:
            return reason
        receipt = self.old.units.get((source, pieces))
        if receipt is None:
            return self._other(unit.source) or self._resized(source, files) or self.old.lacking
        if receipt.settings != self._key.checksum(unit.source, files):
            return self._other(unit.source) or READ
        for file, span, piece in zip(files, spans, receipt.inputs, strict=True):
            if not self._is_unchanged(file) and self._checksum(file, span) != piece.checksum:
                return CONTENT
        return ReusableUnit(unit, [receipt])

    def _sliced(self, unit: Unit) -> ReusableUnit | str:
        source, file = self._names[unit.source], self._files[unit.spans[0].file]
        if (reason := self._known(source, [file])) is not None:
            return reason
        stream, slices = self.old.streams.get((source, file.name), (None, []))
        if stream is None:
            return self._other(unit.source) or self._resized(source, [file]) or self.old.lacking
        expected = self._key.checksum(unit.source, [file], unit.slice_bytes)
        if any(receipt.settings != expected for receipt in slices):
            return self._other(unit.source) or CUTS
        if not self._is_unchanged(file):
            self._read_bytes += file.size
            settings, limit = self._recipe.sources[unit.source], self._recipe.max_document_bytes
            found = stream_checksum(file, settings, limit)
            check_unchanged(file)
            if found != stream.checksum:
                return CONTENT
        return ReusableUnit(unit, slices, stream)

    def _known(self, source: str, files: Sequence[InputFile]) -> str | None:
        if source not in self.old.names:
            return NEW_SOURCE
        new = any((source, file.name) not in self.old.sizes for file in files)
        return NEW_FILE if new else None

    def _resized(self, source: str, files: Sequence[InputFile]) -> str:
        changed = any(self.old.sizes[source, file.name] != file.size for file in files)
        return CONTENT if changed else ""

    def _other(self, source: int) -> str:
        """Settings that differ, of the build or of a source; empty if none do."""
        manifest, name = self.old.manifest, self._names[source]
        entry, boundary = manifest.tokenizer, self._work.boundary
        if entry.fingerprint != self._work.tokenizer.fingerprint:
            return "another tokenizer"
        lines = recipe_difference(
            {"eod": entry.eod_id, "bos": entry.bos_id}, {"eod": boundary.eod_id, "bos": boundary.bos_id}
        )
        lines += recipe_difference(_chosen(manifest.recipe, OF_RECIPE), _chosen(self._recipe, OF_RECIPE))
        old = msgspec.json.decode(msgspec.json.encode(manifest.recipe.sources[self.old.names.index(name)]))
        new = msgspec.json.decode(msgspec.json.encode(self._recipe.sources[source]))
        ignored = set(OF_FILES) - {"columns"}
        before, after = ({key: one[key] for key in one if key not in ignored} for one in (old, new))
        lines += recipe_difference(before, after)
        lines += recipe_difference({"packline": manifest.packline}, {"packline": __version__})
        return "; ".join(lines)

    def _is_unchanged(self, file: InputFile) -> bool:
        """True if a file is known to be the one that the earlier store was built from."""
        etag = etag_of(file)
        return bool(etag) and self._etags.get((self._names[file.source], file.name)) == etag

    def _checksum(self, file: InputFile, span: Span) -> str:
        self._read_bytes += span.stop - span.start if file.format != "parquet" else 0
        settings = self._recipe.sources[file.source]
        found = piece_checksum(file, settings, span, self._recipe.max_document_bytes)
        check_unchanged(file)
        return found

    def take_over(self, plan: ReusePlan, folder: StoreFolder) -> Taken:
        """Commit the units of a plan.

        Raises:
            OutOfSpace: the disk is full; what is committed stays.
        """
        taken = Taken()
        have = set(folder.receipt_names())
        with disk_errors(folder.parent):
            for start in range(0, len(plan.matches), BATCH):
                receipts: list[Receipt] = []
                streams: dict[str, StreamReceipt] = {}
                for match in plan.matches[start : start + BATCH]:
                    try:
                        fresh = [pair for pair in match.renamed() if pair[1].unit not in have]
                        self._share(fresh, folder.reuse)
                    except OSError as error:  # CorruptStore is one
                        if error.errno in OWN:
                            raise
                        taken.problems.append(f"{error}; unit {match.unit.name} is run again")
                        continue
                    receipts += [receipt for _, receipt in fresh]
                    if match.stream is not None and f"{match.unit.name}{STREAM}" not in have:
                        streams[match.unit.name] = match.stream
                folder.commit_all(receipts, streams)
                taken.receipts += receipts
                taken.streams |= streams
        return taken

    def _share(self, pairs: Sequence[tuple[Receipt, Receipt]], target: Path) -> None:
        """Link or copy the files of units, and compare their checksums; all or none of them."""
        shared: list[Path] = []
        try:
            for old, new in pairs:
                for one, other in zip(_files(old), _files(new), strict=True):
                    path = target / Path(other.name).name
                    stat_file(self.old.path / one.name, self.old.path)
                    share_file(self.old.path / one.name, path)
                    shared.append(path)
                    _compare(path, one, self.old.path / one.name)
        except BaseException:
            for path in shared:
                path.unlink(missing_ok=True)
            raise


def _pieces(receipt: Receipt) -> Pieces:
    return tuple((piece.file, piece.start, piece.stop) for piece in receipt.inputs)


def _files(receipt: Receipt) -> list[FileEntry]:
    return [*(entry for shard in receipt.shards for entry in shard.files), *receipt.rejects]


def _compare(path: Path, entry: FileEntry, origin: Path) -> None:
    hasher, size = Hasher(), 0
    with open(path, "rb", buffering=0) as file:
        while data := file.read(min(READ_BYTES, entry.bytes + 1)):
            hasher.update(data)
            size += len(data)
    if (size, hasher.hexdigest()) != (entry.bytes, entry.checksum):
        raise CorruptStore(
            f"{origin} is damaged: expected {entry.bytes:,} bytes with the checksum {entry.checksum}, found "
            f"{size:,} bytes with {hasher.hexdigest()}"
        )


def _renamed(receipt: Receipt, unit: str) -> Receipt:
    """A receipt as the unit would have it under another name."""
    if unit == receipt.unit:
        return receipt

    def shard(old: ShardEntry) -> ShardEntry:
        name = f"{old.split}-{unit}"
        files = tuple(
            msgspec.structs.replace(entry, name=name + entry.name.removeprefix(old.name))
            for entry in old.files
        )
        return msgspec.structs.replace(old, name=name, files=files)

    rejects = tuple(
        msgspec.structs.replace(
            entry, name=f"{entry.name.rpartition('/')[0]}/{unit}{Path(entry.name).suffix}"
        )
        for entry in receipt.rejects
    )
    return msgspec.structs.replace(
        receipt, unit=unit, shards=tuple(map(shard, receipt.shards)), rejects=rejects
    )


def _chosen(recipe: Recipe, names: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(recipe)
    return {name: values.get(name) for name in names}
