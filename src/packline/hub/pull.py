"""Pull a store, an export, a tokenizer or evaluation sets from the hub; the same call again continues.

    revision ──> commit ──> record ──> files ── checked ── .OUT.packline-pull/ ──rename──> OUT

Files are fetched by the hub's own client, which continues partial ones, and compared with the checksums of
the manifest or, where there is none, of the hub. OUT appears when all are right. The commit is recorded in
OUT, in a hidden file.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from packline.errors import CorruptStore, HubError, StoreError, refuse_unknown_names
from packline.fingerprint import Hasher
from packline.hub.client import HubClient, HubFile, not_cached, with_patience
from packline.hub.offline import CachedSnapshot
from packline.hub.places import HubPlace, parse_place
from packline.hub.publication import CARD, PULLED, RECORDS, Kind, publication_kind, read_publication
from packline.storage.hub_folder import local_name
from packline.storage.local import publish_bytes, publish_folder, sync_file_system
from packline.store.files import FileEntry
from packline.store.tables import INPUTS, SHARDS, UNITS

TABLES = (SHARDS, INPUTS, UNITS)
THREADS = 8
READ_BYTES = 8 << 20


class PulledFrom(msgspec.Struct, frozen=True):
    """Contents of the hidden file in a pulled folder."""

    repository: str
    """Address without a revision."""
    commit: str


class Pulled(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a pull."""

    place: HubPlace
    """The repository at the commit."""
    folder: Path
    kind: str
    files: int
    bytes: int
    fetched_files: int
    """Files that were not complete before."""
    seconds: float = 0.0
    nothing_to_do: bool = False


class PullProgress(msgspec.Struct, frozen=True):
    """Files and bytes that are complete and checked, and all."""

    files: int
    bytes: int
    total_files: int
    total_bytes: int


OnProgress = Callable[[PullProgress], None]


@refuse_unknown_names
def pull(source: str, out: str | Path, *, on_progress: OnProgress = lambda progress: None) -> Pulled:
    """Fetch what a push published, checked, or continue an interrupted pull.

    Args:
        source: `hf://datasets/ORG/NAME` or `hf://ORG/NAME`; `@REVISION` names a branch, a tag or a commit.
        out: folder to make: absent, empty, or pulled from the same commit.
        on_progress: called after every file.

    Raises:
        HubError: no such repository or revision, no access, no connection; or with `HF_HUB_OFFLINE`, a file
            that the cache of the hub's client does not have.
        CorruptStore: a file arrives damaged twice, or is missing in the repository.
        StoreError: `out` is something else.
        RecipeError: `source` is no address of a repository.

    >>> pull("s3://bucket/store", "store")
    Traceback (most recent call last):
    packline.errors.RecipeError: s3://bucket/store is no address on the hub: expected it to begin with hf://
    """
    from huggingface_hub import constants

    place, folder = parse_place(source), Path(out)
    started = time.perf_counter()
    if constants.HF_HUB_OFFLINE:
        if place.revision is None and (found := pulled_from(folder)) is not None:
            place = place.at(found.commit)
        if (done := _already(place, folder, started)) is not None:
            return done
        cached = CachedSnapshot(place)
        at = place.at(cached.commit)
        return _Pull(at, folder, cached.tree(), cached.fetch, on_progress, offline=True).run(started)
    hub = HubClient(place)
    commit = hub.head()
    place = place.at(commit)
    if (done := _already(place, folder, started)) is not None:
        return done

    def fetch(path: str, into: Path) -> Path:
        return with_patience(lambda: hub.download(path, commit, into))

    tree = with_patience(lambda: hub.tree(commit))
    return _Pull(place, folder, tree, fetch, on_progress).run(started)


def pulled_from(folder: str | Path) -> PulledFrom | None:
    """Repository and commit of a pulled folder; None for any other.

    >>> pulled_from("missing") is None
    True
    """
    try:
        return msgspec.json.decode((Path(folder) / PULLED).read_bytes(), type=PulledFrom)
    except (OSError, msgspec.MsgspecError):
        return None


def _already(place: HubPlace, folder: Path, started: float) -> Pulled | None:
    """The result, if the folder is there; refuse one with other contents."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    found = pulled_from(folder) if folder.is_dir() else None
    if found is None or found.repository != place.unpinned:
        raise StoreError(
            f"{folder} exists and was not pulled from {place.unpinned}", hint="name a new folder"
        )
    if found.commit != place.revision:
        raise StoreError(
            f"{folder} is at another commit: expected {place.revision}, found {found.commit}",
            hint=f"name a new folder, or write {place.at(found.commit)}",
        )
    made = read_publication(folder)
    sizes = [entry.bytes for entry in made.files] + [(folder / made.record).stat().st_size]
    return Pulled(
        place=place,
        folder=folder,
        kind=made.kind,
        files=len(sizes),
        bytes=sum(sizes),
        fetched_files=0,
        seconds=time.perf_counter() - started,
        nothing_to_do=True,
    )


class _Pull:
    """One pull of a commit into a folder that is absent."""

    def __init__(
        self,
        place: HubPlace,
        out: Path,
        tree: dict[str, HubFile],
        fetch: Callable[[str, Path], Path],
        on_progress: OnProgress,
        offline: bool = False,
    ) -> None:
        self.offline = offline
        self.place, self.out, self.fetch, self.on_progress = place, out, fetch, on_progress
        self.tree = {path: file for path, file in tree.items() if not _is_hubs(path)}
        self.staging = out.with_name(f".{out.name}.packline-pull")
        self.files = self.staging / (place.revision or "")
        self.fetched = 0

    def run(self, started: float) -> Pulled:
        kind = publication_kind(self.tree)
        if kind is None:
            raise self._nothing()
        self.files.mkdir(parents=True, exist_ok=True)
        entries = self._entries(kind)
        paths = {local_name(path) if kind == "store" else path: path for path in self.tree}
        names = sorted(paths)
        if absent := sorted(set(entries) - set(names)):
            raise self._absent(absent[0], RECORDS[kind])
        total = sum(self.tree[paths[name]].size for name in names)
        done = PullProgress(0, 0, len(names), total)
        with ThreadPoolExecutor(THREADS) as pool:
            for name in pool.map(lambda name: self._bring(name, paths[name], entries.get(name)), names):
                size = self.tree[paths[name]].size
                done = PullProgress(done.files + 1, done.bytes + size, len(names), total)
                self.on_progress(done)
        self._publish()
        return Pulled(
            place=self.place,
            folder=self.out,
            kind=kind,
            files=len(names),
            bytes=total,
            fetched_files=self.fetched,
            seconds=time.perf_counter() - started,
        )

    def _nothing(self) -> HubError:
        first = RECORDS["tokenizer" if self.place.kind == "model" else "store"]
        if self.offline:
            return not_cached(first, self.place)
        return HubError(
            f"{self.place} has nothing that packline reads: expected one of"
            f" {', '.join(RECORDS.values())}, found {_some(self.tree)}",
            hint="an unfinished push has no such file yet: push again, or name an earlier commit",
        )

    def _absent(self, name: str, record: str) -> HubError | CorruptStore:
        if self.offline:
            return not_cached(name, self.place)
        return CorruptStore(
            f"{self.place} lacks {name}, which its {record} names",
            hint="push it again from the folder that has it",
        )

    def _entries(self, kind: Kind) -> dict[str, FileEntry]:
        """Sizes and checksums by name, from the manifest and its tables, which come first."""
        if kind not in ("store", "export"):
            return {}
        for path in [RECORDS[kind], *(TABLES if kind == "store" else ())]:
            if path not in self.tree:
                raise self._absent(path, RECORDS[kind])
            self._bring(path, path, None)
        if kind == "store":
            from packline.store.manifest_reader import read_manifest

            return {entry.name: entry for entry in read_manifest(self.files).files()}
        from packline.formats.export_record import read_record

        record = read_record(self.files)
        return {entry.name: entry for entry in record.files} if record else {}

    def _bring(self, name: str, path: str, entry: FileEntry | None) -> str:
        """Fetch a file unless it is here, check it, and put it at its place; once more if it is damaged."""
        target = self.files / name
        if target.exists() and _right(target, entry, self.tree[path]):
            return name
        found = self.fetch(path, self.files)
        if not _right(found, entry, self.tree[path]):
            self._forget(found, path)
            found = self.fetch(path, self.files)
            if not _right(found, entry, self.tree[path]):
                self._forget(found, path)
                raise CorruptStore(
                    f"{path} of {self.place} arrived damaged twice: expected"
                    f" {entry.checksum if entry else self.tree[path].checksum}, found other bytes",
                    hint="run the same command again; if it stays so, push it again from a sound folder",
                )
        self.fetched += 1
        if found != target:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(found, target)
        return name

    def _forget(self, found: Path, path: str) -> None:
        """Remove a damaged file and what the client recorded of it, so that it is fetched again."""
        found.unlink(missing_ok=True)
        record = self.files / ".cache/huggingface/download" / f"{path}.metadata"
        record.unlink(missing_ok=True)

    def _publish(self) -> None:
        shutil.rmtree(self.files / ".cache", ignore_errors=True)
        for folder in sorted((path for path in self.files.rglob("*") if path.is_dir()), reverse=True):
            if not any(folder.iterdir()):  # a numbered folder whose files moved out
                folder.rmdir()
        record = PulledFrom(self.place.unpinned, self.place.revision or "")
        publish_bytes(self.files / PULLED, msgspec.json.encode(record) + b"\n")
        sync_file_system(self.files)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        try:
            publish_folder(self.files, self.out)
        except FileExistsError as error:
            raise StoreError(f"{self.out} was made by something else meanwhile") from error
        shutil.rmtree(self.staging, ignore_errors=True)


def _right(path: Path, entry: FileEntry | None, file: HubFile) -> bool:
    """True if a file has the bytes that the manifest names or, without an entry, the hub."""
    if path.stat().st_size != file.size:
        return False
    if entry is None or not entry.checksum:
        return file.matches(path)
    return entry.bytes == file.size and _checksum(path) == entry.checksum


def _checksum(path: Path) -> str:
    hasher = Hasher()
    with open(path, "rb", buffering=0) as file:
        while data := file.read(READ_BYTES):
            hasher.update(data)
    return str(hasher.hexdigest())


def _is_hubs(path: str) -> bool:
    """True for the files of the hub itself: the card, and hidden ones."""
    return path == CARD or path.startswith(".") or "/." in path


def _some(paths: Iterable[str]) -> str:
    names = sorted(paths)[:3]
    return ", ".join(names) if names else "no files"
