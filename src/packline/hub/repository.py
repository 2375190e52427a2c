"""Finished folders that can be pushed, and the repositories on the hub that they go to and come from.

A folder is a store, an export, a tokenizer or evaluation sets. Each is recognised by one file, its record,
which is published last. Names are the same in the repository, except that a folder of a store with more than
5,000 files is divided (`0000/`, ...): the hub allows 10,000.

    hf://datasets/ORG/NAME             a dataset repository, its branch main
    hf://datasets/ORG/NAME@REVISION    a branch, a tag or a commit
    hf://ORG/NAME                      a model repository; tokenizers are kept in one
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from packline.encoders.tokenizer import JSON as TOKENIZER_JSON
from packline.errors import HubError, RecipeError, StoreError, StoreNotFound, hide_credentials
from packline.evals.task import CONFIG, QUESTIONS
from packline.formats.export_folder import RECORD, ExportRecord, files_below, read_record
from packline.storage.hub_inputs import HubBusy, address, hub_errors, list_files, local_name, parse_hub
from packline.storage.places import is_remote, without_secrets
from packline.store.files import FileEntry, stat_file
from packline.store.manifest import MANIFEST, Manifest
from packline.store.manifest_check import read_manifest
from packline.store.tables import RECEIPTS, REJECTS, TOKENIZER

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfUri, RepoFile

Kind = Literal["store", "export", "evaluation", "tokenizer"]
RECORDS: dict[Kind, str] = {
    "store": MANIFEST,
    "export": RECORD,
    "evaluation": CONFIG,
    "tokenizer": TOKENIZER_JSON,
}
"""File that makes a revision complete, by kind; the first one present decides the kind."""
CARD = "README.md"
PULLED = ".packline-hub.json"
"""File in a pulled folder that names the repository and the commit; it is not pushed."""
MOST_FILES = 100_000
"""Number of files that the hub recommends as the limit of a repository."""
MOST_IN_FOLDER = 5_000
_NOT_PUSHED = re.compile(r"(.*/)?(\..*|__pycache__/.*)|README\.md")
_SHARD = re.compile(r"(train|val|test)-.*\.(bin|idx|docs\.parquet|loss|sums)")


class Pushable(msgspec.Struct, frozen=True):
    """A local folder that is ready to be pushed."""

    kind: Kind
    folder: Path
    files: tuple[FileEntry, ...]
    """All files but the record; the checksum is empty where nothing lists one."""
    manifest: Manifest | None = None
    export: ExportRecord | None = None

    @property
    def record(self) -> str:
        """Name of the file that is published last."""
        return RECORDS[self.kind]

    @property
    def repository_kind(self) -> str:
        """`model` for a tokenizer, since transformers looks for one there; `dataset` for all else."""
        return "model" if self.kind == "tokenizer" else "dataset"

    def notes(self) -> tuple[str, ...]:
        """Remark on absolute paths in the recipe: true of one machine, and published with the manifest."""
        places = _places(self.manifest) if self.manifest is not None else []
        paths = sorted({place for place in places if place.startswith(("/", "~"))})
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        remark = "manifest.json contains paths of the machine that built the store"
        return (f"{remark}: {paths[0]}{more}",) if paths else ()

    def paths(self) -> dict[str, str]:
        """Path in the repository of each file but the record, by its local name."""
        names = [entry.name for entry in self.files]
        return repository_paths(names) if self.kind == "store" else {name: name for name in names}


def repository_paths(names: Iterable[str], most: int = MOST_IN_FOLDER) -> dict[str, str]:
    """Path in a repository of each file of a store.

    Args:
        names: names below the store.
        most: number of files in a folder above which it is divided.

    >>> list(repository_paths(["manifest.json", "train-a-000000.bin", "train-a-000000.idx"], 1).values())
    ['manifest.json', '0000/train-a-000000.bin', '0001/train-a-000000.idx']
    """
    folders: dict[str, list[str]] = {}
    for name in sorted(names):
        folder = str(PurePosixPath(name).parent)
        folders.setdefault(folder if folder != "." or _SHARD.fullmatch(name) else "", []).append(name)
    paths = {name: name for name in folders.pop("", [])}
    for folder, inside in folders.items():
        for number, name in enumerate(inside):
            own = f"{number // most:04d}" if len(inside) > most else ""
            paths[name] = str(PurePosixPath(folder, own, PurePosixPath(name).name))
    return paths


def belongs_to_store(path: str) -> bool:
    """True for a path that only a store's files have: what a push of another store replaces."""
    name = local_name(path)
    folder, _, inner = name.partition("/")
    return bool(_SHARD.fullmatch(name)) or (bool(inner) and folder in (RECEIPTS, REJECTS, TOKENIZER))


def pushable_kind(names: Iterable[str]) -> Kind | None:
    """Kind of a folder or repository with files of these names; None for none of packline's."""
    there = set(names)
    if MANIFEST in there:
        return "store"
    if RECORD in there:
        return "export"
    if {CONFIG, QUESTIONS} <= there:
        return "evaluation"
    return "tokenizer" if TOKENIZER_JSON in there else None


def read_pushable(folder: str | Path) -> Pushable:
    """Recognise a folder and list its files; sizes are compared with its manifest or record."""
    folder = Path(folder)
    kind = pushable_kind(path.name for path in folder.iterdir()) if folder.is_dir() else None
    if kind == "store" or (folder / ".packline").exists() or not folder.is_dir():
        manifest = read_manifest(folder)  # or the error that an unfinished store deserves
        _refuse_credentials(manifest)
        made = Pushable("store", folder, tuple(manifest.files()), manifest)
    elif kind == "export" and (record := read_record(folder)) is not None:
        made = Pushable("export", folder, record.files, None, record)
    elif kind is not None:
        made = Pushable(kind, folder, tuple(_listed(folder, RECORDS[kind])))
    else:
        raise StoreNotFound(
            f"{folder} has no store, export, tokenizer or evaluation sets",
            hint="give the output folder of build, export, tokenizer train or evals",
        )
    if len(made.files) > MOST_FILES:
        raise StoreError(
            f"{folder} has {len(made.files):,} files: expected at most {MOST_FILES:,}, the hub's limit",
            hint="keep it on an object store, or push stores of single sources",
        )
    for entry in made.files:
        found = stat_file(folder / entry.name, folder).st_size
        if found != entry.bytes:
            raise StoreError(
                f"{folder / entry.name}: expected {entry.bytes:,} bytes, found {found:,}",
                hint="packline verify shows what else is damaged",
            )
    return made


def _listed(folder: Path, record: str) -> list[FileEntry]:
    """Files of a folder that lists none itself, without the record and hidden ones."""
    names = [name for name in files_below(folder) if name != record and not _NOT_PUSHED.fullmatch(name)]
    return [FileEntry(name, stat_file(folder / name, folder).st_size, "") for name in sorted(names)]


# ------------------------------------------------------------------------ what must not be published


def without_credentials(place: str) -> str:
    """A URI without user, password and query; of a path elsewhere its last component alone.

    >>> without_credentials("https://me:secret@host/a.jsonl?token=x"), without_credentials("/corpora/a.jsonl")
    ('https://host/a.jsonl', 'a.jsonl')
    >>> without_credentials("/data/gpt2/tokenizer.json")
    'gpt2/tokenizer.json'
    """
    if "://" not in place:
        if not place.startswith(("/", "~", "../")):
            return place
        names = place.rstrip("/").split("/")
        return "/".join(names[-2:] if names[-1] == TOKENIZER_JSON else names[-1:])
    return without_secrets(place)


def _refuse_credentials(manifest: Manifest) -> None:
    for place in _places(manifest):
        if is_remote(place) and hide_credentials(place) != place:
            raise StoreError(
                f"the recipe of the store has an input with credentials: {without_credentials(place)}?...",
                hint="build again with the credentials in the environment: the manifest would publish them",
            )


def _places(manifest: Manifest) -> Sequence[str]:
    places = [place for source in manifest.recipe.sources for place in source.inputs]
    return [*places, manifest.recipe.tokenizer, manifest.tokenizer.name]


# ------------------------------------------------------------------------------------- the hub's side


T = TypeVar("T")
BRANCH = "main"
DOWNLOADS = 8
"""Files that are fetched, or compared, at once."""
TIMEOUT_SECONDS = 10.0
"""Time for the first answer of the hub, after which it counts as unreachable."""
WAITS = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each further try of a call that the client does not repeat."""


def parse_repository(text: str) -> HfUri:
    """Parse the address of a repository."""
    hint = "write hf://datasets/ORG/NAME or, for a tokenizer, hf://ORG/NAME; @REVISION may follow"
    place = parse_hub(text)
    if place.type not in ("dataset", "model"):
        raise RecipeError(f"{text} is a {place.type}: expected a dataset or model repository", hint=hint)
    if place.path_in_repo:
        raise RecipeError(f"{text} names no repository: expected two parts, ORG and NAME", hint=hint)
    return place


class Repository:
    """A repository at a branch, a tag or a commit."""

    def __init__(self, place: HfUri) -> None:
        from huggingface_hub import HfApi

        self.place = place
        self.api = HfApi(library_name="packline")
        self._where: dict[str, Any] = {"repo_id": place.id, "repo_type": place.type}

    def __str__(self) -> str:
        return address(self.place)

    @property
    def url(self) -> str:
        """Page of the repository."""
        return replace(self.place, revision=None).to_url(self.api.endpoint)

    def require_token(self) -> None:
        """Refuse to write without a token, or in offline mode."""
        from huggingface_hub import constants, get_token

        if constants.HF_HUB_OFFLINE:
            raise HubError(f"cannot push to {self}: HF_HUB_OFFLINE is set", hint="unset HF_HUB_OFFLINE")
        if not get_token():
            raise HubError(
                f"cannot push to {self}: no token for the hub",
                hint="log in with `hf auth login`, or set HF_TOKEN to a token that may write",
            )

    def create(self, *, private: bool) -> bool:
        """Create the repository and its branch, where absent; True if the repository was."""
        with hub_errors(str(self)):
            created = not self.api.repo_exists(**self._where)
            if created:
                self.api.create_repo(**self._where, visibility="private" if private else "public")
            if self.place.revision:
                self.api.create_branch(**self._where, branch=self.place.revision, exist_ok=True)
        return created

    def head(self) -> str:
        """Commit that the revision is now; asked once, without repetition, so that errors come soon."""
        with hub_errors(str(self)):
            revision = self.place.revision or BRANCH
            return str(self.api.repo_info(**self._where, revision=revision, timeout=TIMEOUT_SECONDS).sha)

    def tree(self, commit: str) -> dict[str, RepoFile]:
        """All files of a commit, by path."""
        return list_files(replace(self.place, revision=commit))

    def read(self, path: str, commit: str) -> bytes:
        """Contents of a small file, by way of the client's cache."""
        with hub_errors(f"{path} of {self}"):
            return Path(self.api.hf_hub_download(**self._where, filename=path, revision=commit)).read_bytes()

    def download(self, into: Path, patterns: list[str] | None, without: list[str]) -> None:
        """Fetch the files of the commit into a folder; those that are there cost nothing.

        Args:
            patterns: which files; None for all.
            without: patterns of files that are left out.
        """
        with hub_errors(str(self)):
            self.api.snapshot_download(
                **self._where,
                revision=self.place.revision,
                local_dir=into,
                allow_patterns=patterns,
                ignore_patterns=without,
                max_workers=DOWNLOADS,
            )

    def download_again(self, into: Path, path: str) -> None:
        """Fetch one file into a folder, though it is there."""
        with hub_errors(f"{path} of {self}"):
            self.api.hf_hub_download(
                **self._where,
                filename=path,
                revision=self.place.revision,
                local_dir=into,
                force_download=True,
            )

    def commit(
        self, operations: Sequence[CommitOperationAdd | CommitOperationDelete], message: str, parent: str
    ) -> str:
        """Upload and commit; return the new commit."""
        with hub_errors(str(self)):
            made = self.api.create_commit(
                **self._where,
                operations=operations,
                commit_message=message,
                revision=self.place.revision or BRANCH,
                parent_commit=parent,
            )
        return str(made.oid)


def with_patience(action: Callable[[], T]) -> T:
    """Call an action, and again after `HubBusy`, up to five times in all."""
    for seconds in WAITS:
        try:
            return action()
        except HubBusy:
            time.sleep(seconds)
    return action()


def same_bytes(path: Path, file: RepoFile) -> bool:
    """True if a local file is equal to one on the hub; it is read only if the size agrees."""
    if path.stat().st_size != file.size:
        return False
    if file.lfs is None:  # kept in git, and named by git's checksum
        return hashlib.sha1(b"blob %d\0" % file.size + path.read_bytes()).hexdigest() == file.blob_id
    with open(path, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest() == file.lfs.sha256
