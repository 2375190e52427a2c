"""Take units over from an earlier store: those that would be run again with the same result.

A unit is found by its source and its pieces of files, not by its number, and gets the files and the receipt
that it would have without reuse. The content of its inputs is equal if their checksums are: their bytes are
read again, but not encoded, except those of objects whose ETag is recorded. A file that is committed slice by
slice is reused as a whole.

The earlier store is not trusted: every file that is taken over is read, and compared with the checksum in the
unit's receipt, which is listed in the manifest. A unit with a missing or damaged file is run as usual, and
reported. Files are linked into a folder of their own, so that no process writes into a link.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from packline.encoders.special_tokens import Boundary
from packline.errors import CorruptStore, RecipeError, StoreError
from packline.jobs.build_job import BuildJob, input_checksum
from packline.jobs.events import Finished, Note, ReusePlanned, SourceReuse
from packline.jobs.folder import (
    etag_of,
    files_of,
    names_of,
    read_etags,
    setting_differences,
    settings_checksum,
    unit_settings,
)
from packline.jobs.plan import Unit
from packline.jobs.text_build import TextBuild
from packline.jobs.text_unit import check_unchanged
from packline.jobs.totals import Limit
from packline.recipe import is_limited
from packline.sources.files import InputFile
from packline.storage.local import disk_errors, hash_file, share_file
from packline.storage.places import is_remote
from packline.store.files import StoreFiles, reading, stat_file
from packline.store.ledger import source_names
from packline.store.manifest import WHOLE_STREAM, InputPiece, Receipt, StreamReceipt
from packline.store.manifest_check import read_manifest
from packline.store.naming import STREAM, parse_unit

BATCH = 256
"""Units that are taken over together."""
OWN = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.EEXIST}
"""Errors of the new store or of this process; any other is one of the earlier store."""
SHOWN = 5
"""Number of units of an earlier store that cannot be used which are named."""
NAMED = 3
"""Number of settings that differ which are named."""
NEW_SOURCE, NEW_FILE = "new source", "new file"
CONTENT, CUTS = "content changed", "cut otherwise, as files before it changed"
LIMITED, STRICT = "ended by a limit", "has bad records, and strict stops at one"
READ = "read otherwise: other fields or types found in the files, or another version of pyarrow"
DAMAGED = "damaged in the earlier store"


class EarlierUnit(NamedTuple):
    """A unit of an earlier store, or all slices of a file with the receipt of its end."""

    receipts: list[Receipt]
    pieces: tuple[InputPiece, ...]
    stream: StreamReceipt | None = None


Match = tuple[Unit, EarlierUnit]
"""A planned unit, or file that is committed slice by slice, and that of the earlier store."""


class Reuse:
    """Comparison of a build with an earlier store, unit by unit; it refuses one that cannot be used."""

    def __init__(self, path: str, work: TextBuild, out: Path) -> None:
        recipe = work.recipe
        if recipe.val_documents:
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
        self.path = Path(path)
        self._manifest = manifest = read_manifest(self.path)
        if manifest.imported:
            raise StoreError(
                f"{path} is a store of imported tokens or of conversations: expected one built from text",
                hint="build without --reuse",
            )
        self._damaged: list[str] = []
        self._work, self._read_bytes = work, 0
        self._sizes = {(entry.source, entry.name): entry.bytes for entry in manifest.inputs}
        self._etags = read_etags(manifest.checksum)
        self._settings = [self._settings_of(number) for number in range(len(work.names))]

    def plan(self, units: Sequence[Unit], *, strict: bool) -> tuple[list[Match], ReusePlanned]:
        """Find which units can be reused, by reading inputs; if strict, none with bad records."""
        matches, names = [], self._work.names
        sources = {name: SourceReuse(name) for name in names}
        runs = {name: Counter[str]() for name in names}
        for unit in units:
            name = names[unit.source]
            found = self._equal(unit, strict=strict)
            if isinstance(found, str):
                runs[name][found] += unit.receipts
                continue
            matches.append((unit, found))
            sources[name].units += len(found.receipts)
            sources[name].text_bytes += unit.text_bytes
        for name, source in sources.items():
            source.run = dict(runs[name].most_common())
        return matches, ReusePlanned(str(self.path), [*sources.values()], self._read_bytes, self._damaged)

    @cached_property
    def _earlier(self) -> dict[tuple[str, Any], EarlierUnit]:
        """Units of the earlier store, by source and pieces of files; of a stream by the whole file."""
        units: dict[str, Receipt] = {}
        streams: dict[str, StreamReceipt] = {}
        for unit in self._manifest.units:
            name, entry = unit.unit, unit.receipt
            try:
                data = StoreFiles(self.path).read(entry)
                with reading(self.path / entry.name):
                    if name.endswith(STREAM):
                        streams[name.removesuffix(STREAM)] = msgspec.json.decode(data, type=StreamReceipt)
                    else:
                        units[name] = msgspec.json.decode(data, type=Receipt)
            except CorruptStore as error:
                self._damaged.append(error.message)
        found: dict[tuple[str, Any], EarlierUnit] = {}
        for receipt in units.values():
            if pieces := tuple((piece.file, piece.start, piece.stop) for piece in receipt.inputs):
                found[receipt.source, pieces] = EarlierUnit([receipt], receipt.inputs)
        for name, end in streams.items():
            slices = [units[one] for n in range(end.units) if (one := f"{name}-{n:06d}") in units]
            whole = InputPiece(end.file, 0, WHOLE_STREAM, end.checksum)
            if len(slices) == end.units:
                found[end.source, end.file] = EarlierUnit(slices, (whole,), end)
        return found

    def _settings_of(self, source: int) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Settings of the units of a source in the earlier store, and now; None for a new source."""
        manifest, entry, work = self._manifest, self._manifest.tokenizer, self._work
        earlier = source_names(manifest.recipe)
        if (name := work.names[source]) not in earlier:
            return None
        boundary = Boundary(entry.eod_id, entry.eod, entry.bos_id, entry.bos)
        number = earlier.index(name)
        before = unit_settings(manifest.recipe, number, entry.fingerprint, boundary, manifest.packline)
        return before, unit_settings(work.recipe, source, work.tokenizer.fingerprint, work.boundary)

    def _equal(self, unit: Unit, *, strict: bool) -> EarlierUnit | str:
        """The same unit of the earlier store, or one line with the reason why there is none."""
        name, limited = self._work.names[unit.source], is_limited(self._manifest.recipe)
        files = [self._work.files[span.file] for span in unit.spans]
        if (settings := self._settings[unit.source]) is None:
            return NEW_SOURCE
        if any((name, file.name) not in self._sizes for file in files):
            return NEW_FILE
        pieces: Any = (
            files[0].name
            if unit.slice_bytes
            else tuple(
                (file.name, span.start, span.stop) for file, span in zip(files, unit.spans, strict=True)
            )
        )
        before, checksum = (settings_checksum(one, files, unit.slice_bytes) for one in settings)
        if (found := self._earlier.get((name, pieces))) is None:
            if before != checksum:
                return _named(setting_differences(*settings))
            resized = any(self._sizes[name, file.name] != file.size for file in files)
            return CONTENT if resized else LIMITED if limited else DAMAGED if self._damaged else CUTS
        if any(receipt.settings != checksum for receipt in found.receipts):
            return _named(setting_differences(*settings)) or (CUTS if unit.slice_bytes else READ)
        for file, piece in zip(files, found.pieces, strict=True):
            etag = etag_of(file)
            same = etag and self._etags.get((name, file.name)) == etag
            if not same and self._checksum(file, piece) != piece.checksum:
                return CONTENT
        if not all(receipt.complete for receipt in found.receipts):
            return LIMITED
        if strict and any(receipt.ledger.bad for receipt in found.receipts):
            return STRICT
        return found

    def _checksum(self, file: InputFile, piece: InputPiece) -> str:
        if piece.stop == WHOLE_STREAM:
            self._read_bytes += file.size
        elif file.format != "parquet":
            self._read_bytes += piece.stop - piece.start
        found = input_checksum(file, piece, self._work.recipe)
        check_unchanged(file)
        return found


class ReusingBuild(BuildJob):
    """A build that takes units over from an earlier store (`take_from`), and runs the others."""

    def take_from(self, earlier: str) -> None:
        self._reuse = Reuse(earlier, self.work, Path(self.folder.place))

    def begin(self) -> Finished | None:
        if (summary := super().begin()) is not None:
            return summary
        todo = self.todo()
        matches, planned = self._reuse.plan(todo, strict=self.work.options.strict)
        self.tell(planned)
        one_by_one = is_limited(self.recipe)
        waiting = self._within_limits(todo, matches) if one_by_one else iter(matches)
        problems: list[str] = []
        while batch := list(islice(waiting, 1 if one_by_one else BATCH)):
            failed = self._take_over(batch, problems)
            for unit, earlier in failed:
                source = planned.sources[unit.source]
                source.units -= len(earlier.receipts)
                source.run[DAMAGED] = source.run.get(DAMAGED, 0) + len(earlier.receipts)
            if one_by_one and failed:
                break  # what follows is committed after it
        for problem in problems[:SHOWN]:
            self.tell(Note(problem))
        if (more := len(problems) - SHOWN) > 0:
            self.tell(
                Note(f"and {more:,} more units of {self._reuse.path} that cannot be used are run again")
            )
        return None

    def _within_limits(self, todo: Sequence[Unit], matches: Sequence[Match]) -> Iterator[Match]:
        """The next units in document order, up to the first that is run, or that crosses a limit."""
        limit, found = Limit(self.recipe), {unit.name: earlier for unit, earlier in matches}
        for receipt in self.receipts.values():
            limit.take(receipt)
        for unit in todo:
            earlier = found.get(unit.name)
            if earlier is None or limit.reached or limit.crosses(*earlier.receipts):
                return
            for receipt in earlier.receipts:
                limit.take(receipt)
            yield unit, earlier

    def _take_over(self, batch: Iterable[Match], problems: list[str]) -> list[Match]:
        """Commit units of the earlier store; those whose files cannot be used, and why: they are run."""
        failed = []
        records: dict[str, Receipt | StreamReceipt] = {}
        with disk_errors(self.folder.parent):
            origin = self.folder.tmp / "reuse"
            origin.mkdir(exist_ok=True)
            for unit, earlier in batch:
                pairs = [(old, _renamed(old, unit)) for old in earlier.receipts]
                fresh = [pair for pair in pairs if pair[1].unit not in self.committed.names]
                try:
                    _share(self._reuse.path, fresh, origin)
                except OSError as error:  # CorruptStore is one
                    if error.errno in OWN:
                        raise
                    problems.append(f"{error}; unit {unit.name} is run again")
                    failed.append((unit, earlier))
                    continue
                records |= {new.unit: new for _, new in fresh}
                if earlier.stream is not None:
                    records[f"{unit.name}{STREAM}"] = earlier.stream
            self.folder.commit_all(records, origin)
        for name, record in records.items():
            self.committed.add(name.removesuffix(STREAM), record)
        return failed


def _named(differences: list[str]) -> str:
    more = f"; and {len(differences) - NAMED} more" if len(differences) > NAMED else ""
    return "; ".join(differences[:NAMED]) + more


def _share(store: Path, pairs: Sequence[tuple[Receipt, Receipt]], target: Path) -> None:
    """Link or copy the files of units, and compare their checksums; all or none of them."""
    shared: list[Path] = []
    try:
        for old, new in pairs:
            for one, name in zip(files_of(old), names_of(new), strict=True):
                path = target / Path(name).name
                stat_file(store / one.name, store)
                share_file(store / one.name, path)
                shared.append(path)
                found = path.stat().st_size, hash_file(path)
                if found != (one.bytes, one.checksum):
                    raise CorruptStore(
                        f"{store / one.name} is damaged: expected {one.bytes:,} bytes with the checksum "
                        f"{one.checksum}, found {found[0]:,} bytes with {found[1]}"
                    )
    except BaseException:
        for path in shared:
            path.unlink(missing_ok=True)
        raise


def _renamed(receipt: Receipt, planned: Unit) -> Receipt:
    """A receipt, and the files in it, with the names that the planned unit gives them."""
    old, place = receipt.unit, parse_unit(receipt.unit)
    new = planned.name if place is None or place.slice is None else planned.slice_name(place.slice)

    def renamed(entry: Any, **changes: Any) -> Any:
        return msgspec.structs.replace(entry, name=entry.name.replace(old, new), **changes)

    shards = (renamed(shard, files=tuple(map(renamed, shard.files))) for shard in receipt.shards)
    rejects = tuple(map(renamed, receipt.rejects))
    return msgspec.structs.replace(receipt, unit=new, shards=tuple(shards), rejects=rejects)
