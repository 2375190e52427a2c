"""Output of a build: its records, committed units and publication, on any storage.

All files are created and never changed, so a unit that is run twice, by any two processes, does no harm. A
crash leaves either a receipt with all its files, or no receipt and files that the next run compares with its
own.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from packline.errors import ResumeMismatch
from packline.jobs.identity import Asked, BuildIdentity, differences, refuse_differences
from packline.jobs.job import Opening
from packline.jobs.partial import PARTIAL
from packline.jobs.plan import PLAN, Unit, read_plan
from packline.jobs.work import WorkFolder
from packline.recipe import recipe_difference
from packline.sources.files import InputFile
from packline.storage.local import disk_errors
from packline.storage.places import open_results
from packline.storage.results import BUILD_BEGUN, WORK
from packline.store.files import FileEntry, store_files
from packline.store.manifest import MANIFEST, Manifest, Receipt, StreamReceipt, to_json
from packline.store.manifest_check import read_manifest
from packline.store.naming import STREAM, parse_unit
from packline.store.tables import (
    INPUTS,
    RECEIPTS,
    REJECTS,
    SHARD_FILES,
    SHARDS,
    TOKENIZER,
    UNIT_FILES,
    UNITS,
)

TOKENIZER_FILE = f"{TOKENIZER}/tokenizer.json"


class StoreOpening(Opening):
    """Settings of the units of a job whose result is a store, at `out`."""

    __slots__ = ()
    out: str

    def left(self, units: Sequence[Unit]) -> Sequence[Unit]:
        return StoreFolder(self.out).left(units)


class StoreFolder(WorkFolder[BuildIdentity]):
    busy, what = "another build is writing into", "packline build"

    def __init__(self, place: str | Path) -> None:
        super().__init__(str(place), BuildIdentity, BUILD_BEGUN, RECEIPTS, MANIFEST)

    def begin(
        self, identity: BuildIdentity, tokenizer_json: str, files: Sequence[InputFile] = ()
    ) -> BuildIdentity | None:
        """Start a build, or resume an earlier run, whose identity is returned.

        Args:
            files: inputs, for the message of a refusal.
        """

        def refuse(earlier: BuildIdentity) -> None:
            self._refuse_another(earlier, identity, files)

        earlier = self.resume(identity, refuse, self._drop_uncommitted)
        with disk_errors(self.parent):
            if self.storage.facts(TOKENIZER_FILE) is None:
                self.storage.put_new(TOKENIZER_FILE, tokenizer_json.encode())
            if self.local is not None:
                (self.path / RECEIPTS).mkdir(exist_ok=True)
        return earlier

    def _refuse_another(self, old: BuildIdentity, new: BuildIdentity, files: Sequence[InputFile]) -> None:
        lists: tuple[Sequence[InputFile], ...] = ((), ())
        if old.inputs.names != new.inputs.names:
            begun = read_plan(self.storage)
            lists = (() if begun is None else begun.files, files)
        paths = {(one.source, one.name): one.path for listed in lists for one in listed}
        both = [
            Asked(
                identity.recipe,
                identity.tokenizer,
                identity.boundary,
                [(paths[one.source, one.name], one.size) for one in listed],
            )
            for identity, listed in zip((old, new), lists, strict=True)
        ]
        refuse_differences(self.place, differences(*both))
        if others := recipe_difference(old.versions, new.versions):
            raise ResumeMismatch(
                f"{self.place} holds an unfinished build by other versions: {'; '.join(others)}; its files "
                "may have other bytes",
                hint="install the earlier versions to resume it, or choose another --out",
            )

    def _drop_uncommitted(self) -> None:
        """Delete files of units without a receipt from a local folder; no other process may run the job.

        A store that another process has published meanwhile is left as it is.
        """
        if self.local is None or self.is_complete():
            return
        self._delete_others(self.receipt_names())
        self.storage.delete([SHARDS, INPUTS, UNITS])
        for path in (self.path / RECEIPTS).glob(".*.tmp"):
            path.unlink()

    def left(self, units: Sequence[Unit]) -> list[Unit]:
        """Units without a receipt, by one listing; a file that is committed slice by slice knows better."""
        there = self.receipt_names()
        return [unit for unit in units if unit.slice_bytes or unit.name not in there]

    def has_receipt(self, unit: str) -> bool:
        return self.storage.facts(f"{RECEIPTS}/{unit}.json") is not None

    def commit(self, receipt: Receipt, tmp: Path | None = None) -> None:
        """Publish a unit: first its files, then its receipt, each durable before the next."""
        tmp = tmp or self.tmp
        files = {name: tmp / Path(name).name for name in names_of(receipt)}
        self.storage.put_files(files)
        self.commit_record(receipt.unit, receipt)

    def commit_all(self, records: Mapping[str, Receipt | StreamReceipt], origin: Path) -> None:
        """Publish units and ends of streams, by name: first all files, then all receipts."""
        units = [record for record in records.values() if isinstance(record, Receipt)]
        files = {name: origin / Path(name).name for unit in units for name in names_of(unit)}
        self.storage.put_files(files)
        waiting: dict[str, Path] = {}
        for name, record in records.items():
            path = waiting[f"{RECEIPTS}/{name}.json"] = origin / f"{name}.json"
            path.write_bytes(to_json(record))
        self.storage.put_files(waiting)

    def release(self) -> None:
        """Discard the committed units, so that another build may start here; rejects are kept until then.

        Receipts go first: after a crash in between no other build takes the units over.
        """
        self.storage.delete([f"{RECEIPTS}/{name}.json" for name in self.receipt_names()])
        for folder in (TOKENIZER, PARTIAL):
            self.storage.delete(self.storage.list(folder))
        self.storage.delete([f"{WORK}/{PLAN}"])
        self.storage.delete([self._begun])

    def drop_unlisted(self, manifest: Manifest) -> None:
        """Delete files that killed processes have left, and a published store does not list."""
        if self.local is None or self.shared:
            self._delete_others(set(manifest.units.names("unit")))

    def _delete_others(self, units: Container[str]) -> None:
        names = [*self.storage.list(""), *self.storage.list(REJECTS), *self.storage.list(RECEIPTS)]
        found = ((name, _unit_of(name)) for name in names)
        self.storage.delete([name for name, unit in found if unit is not None and unit not in units])

    def discard(self, manifest: Manifest) -> None:
        """Delete the contents of a finished store, so that another can be built in its folder.

        The manifest is deleted after the files that it lists: if the run is killed before, the next one finds
        a store and discards it. The tables are deleted after the manifest, which cannot be read without them.
        """
        storage = self.storage
        with disk_errors(self.parent):
            self.release()
            shards = [entry.name for shard in manifest.shards for entry in shard.files]
            storage.delete([*storage.list(REJECTS), *shards])
            storage.delete([MANIFEST])
            storage.delete([entry.name for entry in manifest.tables])


def _unit_of(name: str) -> str | None:
    """Unit or slice that a file belongs to; None for any other file, also for the end of a stream."""
    for begin, ending in UNIT_FILES.values():
        if name.startswith(begin) and name.endswith(ending):
            unit = name.removeprefix(begin).removesuffix(ending)
            return None if unit.endswith(STREAM) else unit
    for ending in SHARD_FILES.values():
        if name.endswith(ending):
            unit = name.removesuffix(ending).partition("-")[2]
            return unit if parse_unit(unit) is not None else None
    return None


def read_published(place: str) -> Manifest | None:
    """Manifest and tables of a finished store; None if there is none at the place."""
    storage = open_results(place)
    if storage.facts(MANIFEST) is None:
        return None
    return read_manifest(storage.folder or store_files(place))


def files_of(receipt: Receipt) -> list[FileEntry]:
    return [*(entry for shard in receipt.shards for entry in shard.files), *receipt.rejects]


def names_of(receipt: Receipt) -> list[str]:
    return [entry.name for entry in files_of(receipt)]
