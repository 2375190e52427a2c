"""Status of a job, read from its folder, whether or not the job is running.

Only receipts count, since work without one is repeated. Cost: one small file per unit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from packline.errors import CorruptStore, StoreNotFound
from packline.jobs.folder import BuildIdentity, read_published
from packline.jobs.plan import count_units, read_plan
from packline.jobs.receipts import CommittedReceipts
from packline.jobs.work import PARTS, is_running, read_runs, sharing_processes
from packline.recipe import Recipe
from packline.storage.places import open_storage
from packline.storage.results import BUILD_BEGUN, EXPORT_BEGUN, WORK, Storage
from packline.store.ledger import Ledger, source_names, totals_by_source
from packline.store.manifest import MANIFEST, Manifest
from packline.store.manifest_check import read_manifest

EXPORTED = "packline.json"
"""Record of an export that is complete."""
State = Literal["finished", "running", "interrupted", "unknown"]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """State of a job and its committed work; of an export, only the number of its parts is known."""

    path: str
    state: State
    kind: Literal["store", "export"] = "store"
    units_done: int = 0
    units_total: int | None = None
    """Number of units; None if unknown, because they are not planned yet."""
    total_is_exact: bool = False
    """False while a stream has not been read to its end, and if a limit may end the build early."""
    documents: int = 0
    tokens: int = 0
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    """Sum over all committed units."""
    sources: dict[str, Ledger] = {}
    bytes_on_disk: int
    """Size of all files in the folder, unfinished ones included."""
    recipe: Recipe | None = None
    """Recipe; None if the build was stopped before it was recorded."""
    tokenizer_fingerprint: str = ""
    eod: str = ""
    eod_id: int | None = None
    command: str = ""
    """Command that resumes an unfinished build, if it was started by one."""
    command_folder: str = ""
    """Working directory of that command."""
    processes: list[str] = []
    """Slices or drivers that share the job in a local folder and run: host and process id of each."""
    driver: str = ""
    """Process that was the last to begin or resume a job in an object store."""

    @property
    def done_fraction(self) -> float | None:
        return self.units_done / self.units_total if self.units_total else None


def is_run(storage: Storage) -> bool:
    """True if a process runs the job of a storage, as far as locks of a folder or records of runs show."""
    if storage.folder is not None:
        return is_running(storage.folder / WORK)
    return any(run.may_run for run in read_runs(storage))


def status(path: str | Path) -> Status:
    """Read the status of a build or of a store.

    Raises:
        StoreNotFound: no such folder, or not the folder of a build or store.
        CorruptStore: its manifest or the record of its build is damaged.
    """
    place = str(path)
    storage = open_storage(place)
    folder = storage.folder
    if folder is not None and not folder.is_dir():
        read_manifest(folder)  # the error that names what is there
    if storage.facts(EXPORTED) is not None:
        return Status(path=place, state="finished", kind="export", bytes_on_disk=_size_of(storage))
    identity = None if storage.facts(MANIFEST) is not None else _identity(storage)
    export = identity is None and storage.facts(EXPORT_BEGUN) is not None
    if not export and (manifest := read_published(place)) is not None:
        return _finished(place, manifest, storage)
    begun = folder is not None and (folder / WORK).is_dir()
    if identity is None and not export and not begun:
        if folder is not None:
            read_manifest(folder)
        raise StoreNotFound(f"{place} holds no store, and no job has begun there", hint="check the URI")
    known: dict[str, Any] = {"path": place, "bytes_on_disk": _size_of(storage)}
    runs = read_runs(storage)
    unknown = folder is None and not runs
    known["state"] = "running" if is_run(storage) else "unknown" if unknown else "interrupted"
    if folder is not None:
        known["processes"] = sharing_processes(folder / WORK)
    else:
        known["processes"] = sorted({f"{run.host}-{run.process}" for run in runs if run.may_run})
        known["driver"] = str(runs[-1]) if runs else ""
    if command := next((run.command for run in reversed(runs) if run.command is not None), None):
        known |= {"command": command.line, "command_folder": command.folder}
    if export:
        known |= {"kind": "export", "units_done": len(storage.list(f"{WORK}/{PARTS}"))}
        if runs:
            known |= {"units_total": runs[-1].units, "total_is_exact": True}
    elif identity is not None:
        known |= _begun(storage, identity)
    return Status(**known)


def _begun(storage: Storage, identity: BuildIdentity) -> dict[str, Any]:
    committed = CommittedReceipts(storage)
    with _refusing_damage(storage, "a receipt"):
        committed.refresh()
    names, receipts = source_names(identity.recipe), committed.receipts
    sources = totals_by_source(names, ((receipt.source, receipt.ledger) for receipt in receipts.values()))
    eod = str(identity.boundary.get("eod", "")), identity.boundary.get("eod_id")
    known = {"units_done": len(receipts), **_facts(sources, identity.recipe, identity.tokenizer, *eod)}
    if (plan := read_plan(storage)) is not None:
        expected, is_exact = count_units(plan, committed.streams)
        known |= {"units_total": max(expected, len(receipts)), "total_is_exact": is_exact}
    return known


def _facts(
    sources: dict[str, Ledger], recipe: Recipe, fingerprint: str, eod: str, eod_id: int | None
) -> dict[str, Any]:
    ledger = sum(sources.values(), Ledger())
    return {
        "documents": ledger.documents,
        "tokens": ledger.tokens,
        "ledger": ledger,
        "sources": sources,
        "recipe": recipe,
        "tokenizer_fingerprint": fingerprint,
        "eod": eod,
        "eod_id": eod_id,
    }


def _finished(place: str, manifest: Manifest, storage: Storage) -> Status:
    entry, units = manifest.tokenizer, manifest.unit_count
    return Status(
        path=place,
        state="finished",
        units_done=units,
        units_total=units,
        total_is_exact=True,
        bytes_on_disk=manifest.store_bytes if storage.folder is None else _size_of(storage),
        **_facts(manifest.sources, manifest.recipe, entry.fingerprint, entry.eod, entry.eod_id),
    )


def _identity(storage: Storage) -> BuildIdentity | None:
    with suppress(FileNotFoundError), _refusing_damage(storage, BUILD_BEGUN):
        return msgspec.json.decode(storage.read(BUILD_BEGUN), type=BuildIdentity)
    return None


@contextmanager
def _refusing_damage(storage: Storage, what: str) -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        hint = f"remove {storage.place} and build again"
        raise CorruptStore(f"{storage.place}: {what} is damaged: {error}", hint=hint) from error


def _size_of(storage: Storage) -> int:
    """Total size of all files, unfinished ones included; one deleted meanwhile counts as empty."""
    if storage.folder is None:
        return sum(one.size for one in storage.walk())
    size = 0
    for parent, _, names in os.walk(storage.folder):
        for name in names:
            with suppress(OSError):
                size += os.lstat(os.path.join(parent, name)).st_size
    return size
