"""Pull a store, an export, a tokenizer or evaluation sets from the hub; the same call again continues.

    revision ──> commit ──> files ── checked ── OUT/.packline/pull/COMMIT ──> their names in OUT ──> record

The files are compared with the checksums of the manifest or, where there is none, of the hub, before any of
them is in OUT. The commit is recorded in OUT, in a hidden file.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from packline.errors import CorruptStore, HubError, StoreError, refuse_unknown_names
from packline.formats.export_folder import read_record
from packline.hub.repository import (
    CARD,
    DOWNLOADS,
    PULLED,
    RECORDS,
    Kind,
    Repository,
    parse_repository,
    pushable_kind,
    read_pushable,
    same_bytes,
    with_patience,
)
from packline.storage.hub_inputs import address, local_name
from packline.storage.local import LocalFolder
from packline.storage.places import is_hidden
from packline.storage.results import WORK, Publication
from packline.store.files import FileEntry, StoreFiles
from packline.store.manifest_check import read_manifest
from packline.store.report import Findings
from packline.store.shard_check import check_file
from packline.store.tables import INPUTS, SHARDS, UNITS

if TYPE_CHECKING:
    from huggingface_hub import HfUri

TABLES = (SHARDS, INPUTS, UNITS)
PULLING = f"{WORK}/pull"
"""Folder of what is fetched, in OUT."""
HIDDEN = [CARD, ".*", "*/.*"]
"""Patterns of the files of the hub itself."""


class PulledFrom(msgspec.Struct, frozen=True):
    """Contents of the hidden file in a pulled folder."""

    repository: str
    """Address without a revision."""
    commit: str


class Pulled(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a pull."""

    place: str
    """Address of the repository at the commit."""
    revision: str
    """The commit."""
    folder: Path
    kind: str
    files: int
    bytes: int
    fetched_files: int
    """Files that were not there before."""
    seconds: float = 0.0
    nothing_to_do: bool = False


@refuse_unknown_names
def pull(source: str, out: str | Path) -> Pulled:
    """Fetch what a push published, checked, or continue an interrupted pull.

    Args:
        source: `hf://datasets/ORG/NAME` or `hf://ORG/NAME`; `@REVISION` names a branch, a tag or a commit.
        out: folder to make: absent, empty, or pulled from the same commit.

    Raises:
        HubError: no such repository or revision, no access, no connection; a file whose name cannot be kept;
            or with `HF_HUB_OFFLINE`, a folder that was not pulled.
        CorruptStore: a file arrives damaged twice, or is missing in the repository.
        StoreError: `out` is something else.
        RecipeError: `source` is no address of a repository.

    >>> pull("s3://bucket/store", "store")
    Traceback (most recent call last):
    packline.errors.RecipeError: s3://bucket/store is no address on the hub: expected it to begin with hf://
    """
    from huggingface_hub import constants

    started = time.perf_counter()
    place, folder = parse_repository(source), Path(out)
    found = pulled_from(folder)
    is_enough = found is not None and place.revision in (None, found.commit)
    commit = found.commit if found and is_enough and constants.HF_HUB_OFFLINE else Repository(place).head()
    place = replace(place, revision=commit)
    made = _already(place, folder) or _Pull(place, folder).run()
    return msgspec.structs.replace(made, seconds=time.perf_counter() - started)


def pulled_from(folder: str | Path) -> PulledFrom | None:
    """Repository and commit of a pulled folder; None for any other.

    >>> pulled_from("missing") is None
    True
    """
    try:
        return msgspec.json.decode((Path(folder) / PULLED).read_bytes(), type=PulledFrom)
    except (OSError, msgspec.MsgspecError):
        return None


def _already(place: HfUri, folder: Path) -> Pulled | None:
    """The result, if the folder is there; refuse one with other contents."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    unpinned = replace(place, revision=None)
    found = pulled_from(folder) if folder.is_dir() else None
    waiting = folder / PULLING
    if waiting.is_dir() and ((waiting / str(place.revision)).is_dir() or os.listdir(folder) == [WORK]):
        return None  # an interrupted pull
    if found is None or found.repository != address(unpinned):
        raise StoreError(
            f"{folder} exists and was not pulled from {address(unpinned)}", hint="name a new folder"
        )
    if found.commit != place.revision:
        raise StoreError(
            f"{folder} is at another commit: expected {place.revision}, found {found.commit}",
            hint=f"name a new folder, or write {address(replace(place, revision=found.commit))}",
        )
    made = read_pushable(folder)
    sizes = [entry.bytes for entry in made.files] + [(folder / made.record).stat().st_size]
    return Pulled(
        place=address(place),
        revision=found.commit,
        folder=folder,
        kind=made.kind,
        files=len(sizes),
        bytes=sum(sizes),
        fetched_files=0,
        nothing_to_do=True,
    )


class _Pull:
    """One pull of a commit into a folder that is absent."""

    def __init__(self, place: HfUri, out: Path) -> None:
        self.repository, self.out, self.commit = Repository(place), out, place.revision or ""
        self.files = out / PULLING / self.commit
        self.tree = with_patience(lambda: self.repository.tree(self.commit))
        self.entries: dict[str, FileEntry] = {}
        """Sizes and checksums by name, where something lists them."""

    def run(self) -> Pulled:
        paths = [path for path in sorted(self.tree) if not (path == CARD or is_hidden(path))]
        kind = pushable_kind(paths)
        if kind is None:
            raise HubError(
                f"{self.repository} has nothing that packline reads: expected one of"
                f" {', '.join(RECORDS.values())}, found {', '.join(paths[:3]) or 'no files'}",
                hint="an unfinished push has no such file yet: push again, or name an earlier commit",
            )
        names = {local_name(path) if kind == "store" else path: path for path in paths}
        for name, path in names.items():  # some have their final names already
            if (self.out / name).exists() and not (self.files / path).exists():
                (self.files / path).parent.mkdir(parents=True, exist_ok=True)
                os.link(self.out / name, self.files / path)
        had = [path for path in paths if (self.files / path).exists()]
        if kind in ("store", "export"):
            first = [RECORDS[kind], *(TABLES if kind == "store" else ())]
            self._refuse_absent(first, paths, kind)
            self._bring(first)
            self.entries = _listed(self.files, kind)
            self._refuse_absent(self.entries, names, kind)
        self._bring(paths)
        total = sum((self.files / path).stat().st_size for path in paths)
        self._publish(names, RECORDS[kind])
        return Pulled(
            place=str(self.repository),
            revision=self.commit,
            folder=self.out,
            kind=kind,
            files=len(names),
            bytes=total,
            fetched_files=len(paths) - len(had),
        )

    def _refuse_absent(self, wanted: Collection[str], there: Collection[str], kind: Kind) -> None:
        if absent := sorted(set(wanted) - set(there)):
            raise CorruptStore(
                f"{self.repository} lacks {absent[0]}, which its {RECORDS[kind]} names",
                hint="push it again from the folder that has it",
            )

    def _bring(self, paths: list[str]) -> None:
        """Fetch files that are not here, and check them; those that arrive damaged once more."""
        few = paths if len(paths) <= len(TABLES) + 1 else None  # patterns are slow for many files
        with_patience(lambda: self.repository.download(self.files, few, HIDDEN))
        with ThreadPoolExecutor(DOWNLOADS) as pool:
            problems = list(pool.map(self._problem, paths))
        for path in (path for path, problem in zip(paths, problems, strict=True) if problem):
            with_patience(partial(self.repository.download_again, self.files, path))
            if problem := self._problem(path):
                raise CorruptStore(
                    f"{path} of {self.repository} arrived damaged twice: {problem}",
                    hint="run the same command again; if it stays so, push it again from a sound folder",
                )

    def _problem(self, path: str) -> str:
        """Difference from the bytes that the manifest names or, without an entry, the hub; empty if none."""
        entry = self.entries.get(local_name(path))
        if entry is not None and entry.checksum:
            findings = Findings()
            check_file(StoreFiles(self.files), FileEntry(path, entry.bytes, entry.checksum), findings)
            return "; ".join(map(str, findings.problems))
        if same_bytes(self.files / path, self.tree[path]):
            return ""
        file = self.tree[path]
        checksum = f"git's {file.blob_id}" if file.lfs is None else f"sha256 {file.lfs.sha256}"
        return f"expected {file.size:,} bytes, {checksum}"

    def _publish(self, names: dict[str, str], record: str) -> None:
        """Give the files their names in OUT; some have others in a large store (`local_name`)."""
        origin = PulledFrom(address(replace(self.repository.place, revision=None)), self.commit)
        data = (self.files / names.pop(record)).read_bytes()
        result = Publication(LocalFolder(self.out), record)
        result.storage.put_files({name: self.files / path for name, path in names.items()})
        result.publish({PULLED: msgspec.json.encode(origin) + b"\n", record: data})
        shutil.rmtree(self.out / WORK)


def _listed(folder: Path, kind: Kind) -> dict[str, FileEntry]:
    """Entries of a store's manifest, or of an export's record, by name."""
    if kind == "store":
        return {entry.name: entry for entry in read_manifest(folder).files()}
    record = read_record(folder)
    return {entry.name: entry for entry in record.files} if record else {}
