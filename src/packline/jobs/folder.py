"""Output of a build on any storage: whose it is, its committed units and publication.

All files are created and never changed, so a unit that is run twice, by any two processes, does no harm. A
crash leaves either a receipt with all its files, or no receipt and files that the next run compares with its
own.

Two units of equal settings (`settings_checksum`) that read the same pieces of the same files, with equal
checksums, have the same files. Limits of the build are left out, since a unit that was read to its end does
not depend on them, and so are settings that only refuse (`strict`, `rare_fields`). An object with an equal
strong ETag has equal content, and is not downloaded to compare it; without recorded ETags, it is read again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow

from packline.encoders.special_tokens import Boundary
from packline.errors import ResumeMismatch
from packline.fingerprint import Hasher, hash_value
from packline.jobs.job import Opening
from packline.jobs.plan import PLAN, Unit, read_plan
from packline.jobs.receipts import PARTIAL
from packline.jobs.work import WorkFolder
from packline.recipe import Recipe, recipe_difference
from packline.sources.files import InputFile
from packline.storage.inputs import is_compared, is_strong
from packline.storage.local import disk_errors, publish_bytes, user_cache
from packline.storage.places import open_results
from packline.storage.results import BUILD_BEGUN, WORK
from packline.store.files import FileEntry, store_files
from packline.store.manifest import FORMAT_VERSION, MANIFEST, Manifest, Receipt, StreamReceipt, to_json
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
from packline.version import __version__

KEPT = 64
"""Number of stores whose ETags are kept."""


def versions() -> dict[str, str]:
    return {"packline": __version__, "store format": str(FORMAT_VERSION), "pyarrow": pyarrow.__version__}


class InputsDigest(msgspec.Struct, frozen=True):
    names: str
    """Checksum of the names and sizes."""
    states: str
    """Checksum of the times of modification."""


def digest_inputs(files: Iterable[InputFile]) -> InputsDigest:
    names, states = Hasher(), Hasher()
    for file in files:
        names.update(msgspec.msgpack.encode((file.source, file.name, file.size)))
        states.update(msgspec.msgpack.encode(file.modified))
    return InputsDigest(names.hexdigest(), states.hexdigest())


class BuildIdentity(msgspec.Struct, frozen=True):
    """Values that must be equal for a build to be resumed."""

    recipe: Recipe
    tokenizer: str
    """Fingerprint of the tokenizer."""
    boundary: dict[str, Any]
    inputs: InputsDigest
    versions: dict[str, str] = msgspec.field(default_factory=versions)


def etag_of(file: InputFile) -> str:
    """Strong ETag that an object had when it was planned; empty for a local file, and for one without it."""
    return file.modified if is_compared(file.path) and is_strong(file.modified) else ""


def etags_path(checksum: str) -> Path:
    return user_cache() / "etags" / f"{checksum}.json"


def record_etags(manifest: Manifest, names: Sequence[str], files: Iterable[InputFile]) -> None:
    """Record the ETags of the inputs that a store was built from, as planned; failures are ignored."""
    etags = [(names[file.source], file.name, etag) for file in files if (etag := etag_of(file))]
    if not etags:
        return
    with suppress(OSError, RuntimeError):  # no home, no room, not writable
        path = etags_path(msgspec.json.decode(to_json(manifest))["checksum"])
        path.parent.mkdir(parents=True, exist_ok=True)
        publish_bytes(path, msgspec.json.encode(etags))
        for old in sorted(path.parent.glob("*.json"), key=lambda one: one.stat().st_mtime_ns)[:-KEPT]:
            old.unlink(missing_ok=True)


def read_etags(checksum: str) -> dict[tuple[str, str], str]:
    """ETags of the inputs of a store when it was built, by source and name; empty if not recorded."""
    try:
        etags = msgspec.json.decode(etags_path(checksum).read_bytes(), type=list[tuple[str, str, str]])
    except (OSError, RuntimeError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    return {(source, name): etag for source, name, etag in etags}


def input_differences(old: list[tuple[str, int]], new: list[tuple[str, int]]) -> list[str]:
    """Differences between two lists of inputs (name and size), one line each."""
    before, after = dict(old), dict(new)
    lines = [f"input {name} is gone" for name in before if name not in after]
    lines += [f"input {name} is new" for name in after if name not in before]
    lines += [
        f"input {name}: {size:,} bytes -> {after[name]:,} bytes"
        for name, size in before.items()
        if name in after and after[name] != size
    ]
    if not lines and old != new:
        lines.append("the order of the inputs")
    return lines


class Asked(NamedTuple):
    """Content of a result: of a finished store, of an unfinished build, or of the requested one."""

    recipe: Recipe
    tokenizer: str
    """Fingerprint of the tokenizer."""
    others: dict[str, Any]
    inputs: list[tuple[str, int]]
    """Names and sizes."""


def differences(old: Asked, new: Asked) -> list[str]:
    """Differences between two results, one line each."""
    lines = recipe_difference(msgspec.to_builtins(old.recipe), msgspec.to_builtins(new.recipe))
    lines += recipe_difference(old.others, new.others)
    if old.tokenizer != new.tokenizer:
        lines.append(f"the tokenizer's content: {old.tokenizer[:12]} -> {new.tokenizer[:12]}")
    return lines + input_differences(old.inputs, new.inputs)


def refuse_differences(
    place: Path | str,
    differences: list[str],
    kind: str = "a build",
    hint: str = "repeat the earlier command to resume it, or choose another --out",
) -> None:
    """Raise `ResumeMismatch` if there are any differences; `kind` of job is what the folder contains."""
    if differences:
        more = f"; and {len(differences) - 5} more" if len(differences) > 5 else ""
        raise ResumeMismatch(
            f"{place} holds {kind} of something else: {'; '.join(differences[:5])}{more}", hint=hint
        )


OF_BUILD = ("packline", "pyarrow", "tokenizer", "boundary", "special_tokens", "max_document_bytes")
OF_SPLITS = ("val_fraction", "test_fraction", "seed")
OF_FILES = ("format", "text", "id", "columns")
"""Settings of a source that act through its files alone."""
OF_NO_BYTE = ("inputs", "name", "rare_fields")
"""Settings of a source that no file of a unit depends on, apart from the names in its receipt."""


def unit_settings(
    recipe: Recipe, source: int, tokenizer: str, boundary: Boundary | None, packline: str = __version__
) -> dict[str, Any]:
    """Settings of the units of a source, by name; `tokenizer` is a fingerprint."""
    own: dict[str, Any] = msgspec.to_builtins(recipe.sources[source])
    return {
        "tokenizer": tokenizer,
        "boundary": msgspec.to_builtins(boundary),
        "special_tokens": recipe.special_tokens,
        "max_document_bytes": recipe.max_document_bytes,
        "val_fraction": recipe.val_fraction,
        "test_fraction": recipe.test_fraction or 0.0,
        "seed": recipe.seed,
        **{name: value for name, value in own.items() if name not in OF_NO_BYTE},
        "packline": packline,
        "pyarrow": pyarrow.__version__,
    }


def settings_checksum(settings: dict[str, Any], files: Iterable[InputFile], slice_bytes: int = 0) -> str:
    """Checksum of all that decides the files of a unit, but for the bytes that it reads."""
    build = {name: settings[name] for name in OF_BUILD}
    shares = [settings[name] for name in OF_SPLITS]
    others = {*OF_BUILD, *OF_SPLITS, *OF_FILES}
    own = {name: value for name, value in settings.items() if name not in others}
    splits = None if settings.get("split") or not any(shares[:2]) else shares
    facts = [
        (file.format, file.compression, file.text, file.id, file.columns or (), file.carried or ())
        for file in files
    ]
    return hash_value([build, own, splits, facts if len(set(facts)) > 1 else facts[:1], slice_bytes])


def setting_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Differences between the settings of two units, one line each."""
    if old["tokenizer"] != new["tokenizer"]:
        return ["another tokenizer"]
    before, after = (
        {"eod": one["boundary"]["eod_id"], "bos": one["boundary"]["bos_id"], **one, "boundary": None}
        for one in (old, new)
    )
    return recipe_difference(before, after)


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
