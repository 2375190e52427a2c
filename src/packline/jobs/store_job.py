"""A job whose result is a store: a build of text, an import, a build of conversations.

The manifest is the sum of the receipts, written last. What a unit does is up to the subclass.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from packline.encoders.parity import RoundTrip, plain_round_trip
from packline.encoders.special_tokens import Boundary
from packline.encoders.tokenizer import Tokenizer
from packline.errors import PacklineError, ResumeMismatch, StoreError, TokenizerError
from packline.fingerprint import hash_bytes, seal_of
from packline.jobs.events import Comparing, ImportPlanned, Note, UnitDone
from packline.jobs.folder import (
    Asked,
    BuildIdentity,
    StoreFolder,
    differences,
    digest_inputs,
    etag_of,
    read_etags,
    read_published,
    record_etags,
    refuse_differences,
)
from packline.jobs.job import Job
from packline.jobs.machines import Slice
from packline.jobs.plan import Plan, Unit, build_mark, record_plan
from packline.jobs.receipts import CommittedReceipts, DocumentOrder, Publisher, units_left
from packline.jobs.resources import require_disk, usable_cores
from packline.jobs.totals import limit_reached
from packline.ragged import dtype_for
from packline.recipe import Recipe
from packline.sources.files import InputFile
from packline.storage.inputs import hash_range
from packline.storage.places import is_remote
from packline.store.files import FileEntry
from packline.store.ledger import source_names
from packline.store.manifest import (
    MANIFEST,
    WHOLE_STREAM,
    ImportEntry,
    InputPiece,
    Manifest,
    Receipt,
    assemble,
    join_checksums,
    manifest_files,
    refuse_empty,
    tokenizer_entry,
)
from packline.store.tables import TOKENIZER, InputEntry

R = TypeVar("R")
S = TypeVar("S")


class StoreJob(Job[Unit, R, S]):
    """A job that writes a store.

    Args:
        units: planned units, in document order.
        entry: format and options of an import; None for a build.
        input_format: format of the inputs in the manifest, if it is not the files' own.
    """

    folder: StoreFolder
    plan: Plan
    """Set by `begin`."""
    publisher: Publisher
    """Set by `begin`."""
    manifest: Manifest
    """The published manifest, set at the end."""
    val_share: float | msgspec.UnsetType = msgspec.UNSET
    """Value of val_fraction that `val_documents` amounts to."""
    hint_of_other = "a finished store does not change: choose another --out"
    """Advice for a folder with another store."""

    def __init__(
        self,
        *,
        out: str,
        recipe: Recipe,
        tokenizer: Tokenizer,
        boundary: Boundary,
        files: Sequence[InputFile],
        units: list[Unit],
        entry: ImportEntry | None = None,
        input_format: str = "",
    ) -> None:
        self.folder = StoreFolder(out)
        self.committed = committed = CommittedReceipts(self.folder.storage)
        self.receipts, self.streams = committed.receipts, committed.streams
        self.recipe, self.entry, self._input_format = recipe, entry, input_format
        self.tokenizer, self.boundary, self.files = tokenizer, boundary, list(files)
        self.units, self.planned = units, len(units)
        self.sources = names = source_names(recipe)
        self.numbered = {(names[file.source], file.name): file for file in files}
        """Inputs by the names that receipts use: of the source, and of the file within it."""
        self.dtype = dtype_for(tokenizer.vocab_size).name

    @abstractmethod
    def done(self, manifest: Manifest, *, nothing_to_do: bool = False) -> S:
        """Summary of the job."""

    @abstractmethod
    def round_trip(self) -> RoundTrip:
        """Exactness with which ids of the tokenizer decode to the text."""

    def accept(self, manifest: Manifest) -> None:
        """Check the store before it is published; after an error the folder is free for another build."""

    def checksum(self, file: InputFile, piece: InputPiece) -> str:
        """Checksum of a part of an input as it is now."""
        return hash_range(file.path, piece.start, piece.stop)

    def unproven(self) -> set[int]:
        """Files of which committed units have read a part without a checksum."""
        return set()

    def begin(self) -> S | None:
        folder = self.folder
        if (summary := self.finished()) is not None:
            return summary
        boundary: dict[str, Any] = msgspec.to_builtins(self.boundary)
        if self.entry is not None:
            boundary["import"] = {**msgspec.to_builtins(self.entry), "units": len(self.units)}
        mark = self.tokenizer.fingerprint
        identity = BuildIdentity(self.recipe, mark, boundary, digest_inputs(self.files))
        earlier = folder.begin(identity, self.tokenizer.json, self.files)
        inputs = [(self.sources[file.source], file.name, file.size) for file in self.files]
        own = Plan(
            build=build_mark(self.recipe, mark, inputs),
            recipe=self.recipe,
            tokenizer=tokenizer_entry(self.tokenizer, self.boundary),
            dtype=self.dtype,
            units=self.units,
            files=self.files,
        )
        self.plan = plan = record_plan(folder.storage, own)
        self.committed.refresh()
        self.publisher = Publisher(folder.storage, plan, self.committed)
        if earlier is not None and earlier.inputs.states != identity.inputs.states:
            before = {file.index: file.modified for file in plan.files}
            touched = {one.index: True for one in self.files if before.get(one.index) != one.modified}
            if changed := self._changed(touched):
                paths = ", ".join(self.files[file].path for file in sorted(changed)[:5])
                raise ResumeMismatch(
                    f"{folder.place} was begun with another state of {paths}: expected the content that it "
                    "has read, found other content, or a file modified after a part of it was read",
                    hint="put the earlier files back to resume, or choose another --out",
                )
        return None

    def finished(self) -> S | None:
        """Summary of the store in the folder, if it is the one that would be written.

        A store without documents makes room for another.
        """
        folder = self.folder
        if (manifest := read_published(folder.place)) is None:
            return None
        found = self._differences(manifest)
        if found and not manifest.documents:
            folder.discard(manifest)
            return None
        self._clean()
        refuse_differences(folder.place, found, hint=self.hint_of_other)
        refuse_empty(folder.place, manifest)
        self.manifest = manifest
        return self.done(manifest, nothing_to_do=True)

    def _differences(self, manifest: Manifest) -> list[str]:
        own = () if self.entry is None else (self.entry,)
        inputs = [(one.name, one.bytes) for one in manifest.inputs]
        imported = {"import": msgspec.to_builtins(manifest.imported)}
        there = Asked(manifest.recipe, manifest.tokenizer.fingerprint, imported, inputs)
        imported = {"import": msgspec.to_builtins(own)}
        inputs = [(file.name, file.size) for file in self.files]
        found = differences(there, Asked(self.recipe, self.tokenizer.fingerprint, imported, inputs))
        if not found and (touched := self._touched(manifest)):
            self.committed.refresh()
            found = [
                f"the content of input {self.files[file].path}, or a part of it that was not read"
                for file in sorted(self._changed(touched))
            ]
        return found

    def _touched(self, manifest: Manifest) -> dict[int, bool]:
        """Inputs that may have changed since a finished store was built from them; True if they were touched.

        The times of a local file are compared with that of the store. A store elsewhere has none: local files
        are read then, but not by each of the slices that find it finished.
        """
        folder, names = self.folder, self.sources
        known = read_etags(manifest.checksum)
        published = -1 if folder.local is None else (folder.path / MANIFEST).stat().st_mtime_ns
        touched = {}
        for file in self.files:
            if is_remote(file.path):
                etag = etag_of(file)
                if known.get((names[file.source], file.name), etag) != etag:
                    touched[file.index] = True
            elif folder.local is not None:
                found = os.stat(file.path)
                if max(found.st_mtime_ns, found.st_ctime_ns) > published:
                    touched[file.index] = True
            elif not isinstance(self.on, Slice):
                touched[file.index] = False
        return touched

    def _changed(self, touched: Mapping[int, bool]) -> set[int]:
        """Files whose content is not, or not provably, that which committed units have read.

        A file with other times but the same checksums counts as unchanged.
        """
        pieces = [
            (file, piece) for file, piece in self._pieces(self.receipts.values()) if file.index in touched
        ]
        changed = {file for file in self.unproven() if touched.get(file)}
        size = sum(self.files[file].size for file in touched)
        for number, (file, piece) in enumerate(pieces):
            self.tell(Comparing(len(touched), size, number / len(pieces)))
            if file.index not in changed and self.checksum(file, piece) != piece.checksum:
                changed.add(file.index)
        return changed

    def _pieces(self, receipts: Iterable[Receipt]) -> Iterator[tuple[InputFile, InputPiece]]:
        """Pieces of inputs that units have read, and files that were read slice by slice."""
        for receipt in receipts:
            for piece in receipt.inputs:
                yield self.numbered[receipt.source, piece.file], piece
        for end in self.streams.values():
            whole = InputPiece(end.file, 0, WHOLE_STREAM, end.checksum)
            yield self.numbered[end.source, end.file], whole

    def todo(self) -> list[Unit]:
        """Units without a receipt, in the order of the documents."""
        if self.is_shared:
            self.committed.look()
            self.publisher.publish_when_due()
        return units_left(self.units, self.committed.names, self.streams)

    def finish(self) -> S:
        folder = self.folder
        if self.is_shared or folder.local is None:
            self.committed.refresh()
        manifest = self.make_manifest()
        try:
            self.accept(manifest)
        except PacklineError:
            folder.release()
            raise
        record_etags(manifest, self.sources, self.files)
        files = manifest_files(manifest)
        folder.publish(files)
        folder.drop_unlisted(manifest)
        self.manifest = msgspec.structs.replace(manifest, checksum=seal_of(files[MANIFEST]))
        self._clean()
        refuse_empty(folder.place, manifest)
        return self.done(manifest)

    def make_manifest(self) -> Manifest:
        folder, plan, committed = self.folder, self.plan, self.committed
        order = DocumentOrder(plan.units, committed.receipts, committed.streams)
        units = list(order.advance())

        def ordered() -> Iterator[Receipt]:
            return map(committed.receipts.__getitem__, units)

        if order.unit is not None and not limit_reached(plan.recipe, ordered()):
            left = len(units_left(plan.units, committed.receipts, committed.streams))
            raise StoreError(
                f"{folder.place}: {left:,} of {len(plan.units):,} units are not committed",
                hint="run the build again to finish them",
            )
        small = ((name, folder.storage.read(name)) for name in folder.storage.list(TOKENIZER))
        return assemble(
            ordered(),
            recipe=plan.recipe,
            tokenizer=msgspec.structs.replace(plan.tokenizer, round_trip=self.round_trip()),
            dtype=plan.dtype,
            inputs=self._inputs(ordered()),
            receipt_files=committed.entries(units),
            tokenizer_files=[FileEntry(name, len(data), hash_bytes(data)) for name, data in small],
            streams=committed.streams,
            imported=() if self.entry is None else (self.entry,),
            val_share=self.val_share,
        )

    def _inputs(self, receipts: Iterable[Receipt]) -> Iterator[InputEntry]:
        checksums: dict[int, list[str]] = {}
        for file, piece in self._pieces(receipts):
            checksums.setdefault(file.index, []).append(piece.checksum)
        for file in self.files:
            found = join_checksums(checksums.get(file.index, []))
            source, format = self.sources[file.source], self._input_format
            if format:
                yield InputEntry(source, file.name, file.size, format, "", "", found)
            else:
                kind = file.format, file.compression, file.text
                yield InputEntry(source, file.name, file.size, *kind, found)

    def facts(self) -> dict[str, Any]:
        """Fields of a plan that all stores have."""
        return {
            "files": len(self.files),
            "tokenizer": self.tokenizer.name,
            "vocab_size": self.tokenizer.vocab_size,
            "eod": self.boundary.eod,
            "eod_id": self.boundary.eod_id,
            "dtype": self.dtype,
        }

    def _clean(self) -> None:
        if left := self.folder.clean():
            self.tell(Note(left))


class Imported(msgspec.Struct, frozen=True):
    """Result of an import, or of a build of conversations."""

    manifest: Manifest
    unfinished: int
    """Documents of this run cut off by the beginning or end of the data; their boundary tokens were added."""
    seconds: float
    nothing_to_do: bool = False


class NumberedStoreJob(StoreJob[R, S]):
    """A store of units whose number is known in advance: an import, or a build of conversations."""

    title: str
    """Name of the job in the plan."""
    edges: str
    """Boundary tokens of the documents, for the plan."""
    small_bytes: int
    """Bytes of files below which starting processes would take longer than the work."""
    documents: int | None = None
    tokens: int | None = None
    """Number of documents and of tokens, as far as headers declare it."""

    def receipt(self, result: Any) -> Receipt:
        assert isinstance(result, Receipt)
        return result

    def workers(self, units: int) -> int:
        if self.given_workers is not None:
            return self.given_workers
        small = sum(file.size for file in self.files) < self.small_bytes
        return 0 if small or units < 2 else min(usable_cores(), units)

    def announce(self, todo: Sequence[Unit], workers: int) -> None:
        planned = ImportPlanned(
            units=len(self.units),
            units_done=len(self.units) - len(todo),
            workers=workers,
            tokens=self.tokens,
            format=self.title,
            bytes=sum(file.size for file in self.files),
            documents=self.documents,
            edges=self.edges,
            **self.facts(),
        )
        self.tell(planned)
        done = sum(receipt.ledger.tokens for receipt in self.receipts.values())
        left = 0 if self.folder.local is None else max((self.tokens or 0) - done, 0)
        require_disk(self.folder.parent, left * dtype_for(self.tokenizer.vocab_size).itemsize, "the store")
        try:
            self._round_trip = plain_round_trip(self.tokenizer)
        except TokenizerError:
            raise
        except Exception as error:  # the library raises bare Exception
            name = self.tokenizer.name
            raise TokenizerError(f"{name} is not a tokenizer that HF tokenizers reads: {error}") from error

    def round_trip(self) -> RoundTrip:
        return self._round_trip

    def take(self, name: str, result: R) -> None:
        receipt = self.receipt(result)
        self.committed.add(name, receipt)
        self.publisher.publish_when_due()
        self.tell(UnitDone(name, receipt.ledger.documents, receipt.ledger.tokens))
