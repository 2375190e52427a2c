"""Push a folder to a repository on the hub; the same call again continues where it was interrupted.

A push keeps no state: the branch itself shows what is missing. Every commit names its parent, so two pushes
at once cannot mix. The first commit that changes anything removes the old record, and the new one comes last:
a revision with a record is complete.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from packline.errors import CorruptStore, HubError, StoreError, refuse_unknown_names
from packline.hub.card import make_card
from packline.hub.repository import (
    CARD,
    Pushable,
    Repository,
    belongs_to_store,
    parse_repository,
    pushable_kind,
    read_pushable,
    same_bytes,
    with_patience,
)
from packline.storage.hub_inputs import address
from packline.storage.places import is_remote, without_secrets
from packline.store.files import StoreFiles
from packline.store.report import Findings
from packline.store.shard_check import check_file

if TYPE_CHECKING:
    from huggingface_hub import RepoFile

COMMIT_FILES = 500
MOST_COMMITS = 90
"""Commits of a push, below the hub's limit of 128 an hour."""
THREADS = 4


class Pushed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a push."""

    place: str
    """Address of the repository."""
    url: str
    revision: str
    """Commit that has everything."""
    kind: str
    files: int
    bytes: int
    """Size of all files."""
    sent_files: int
    sent_bytes: int
    """Size of the files that were missing."""
    removed_files: int
    created: bool
    """True if the repository was made."""
    private: bool | None
    """Visibility of a repository that was made; None for one that was there."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def nothing_to_do(self) -> bool:
        """True if the branch had everything."""
        return self.sent_files == 0 and self.removed_files == 0


@refuse_unknown_names
def push(folder: str | Path, to: str, *, private: bool = True, licence: str | None = None) -> Pushed:
    """Publish a store, an export, a tokenizer or evaluation sets on the hub, or continue an interrupted push.

    Args:
        folder: a finished folder of `build`, `export`, `tokenizer train` or `evals`.
        to: `hf://datasets/ORG/NAME`, or `hf://ORG/NAME` for a tokenizer; `@BRANCH` may follow.
        private: visibility of the repository, if it is created.
        licence: licence for the card, as the hub writes it.

    Raises:
        StoreNotFound: nothing to push, or an unfinished store.
        CorruptStore: a file differs from its checksum; it is not uploaded.
        StoreError: `folder` is a URI.
        HubError: no token, no permission, no connection, or another kind of repository.
        RecipeError: `to` is no address of a repository.

    >>> push("missing", "hf://datasets/org/name")
    Traceback (most recent call last):
    packline.errors.StoreNotFound: missing does not exist
    """
    started = time.perf_counter()
    place = parse_repository(to)
    if is_remote(folder):
        raise StoreError(
            f"{without_secrets(str(folder))}: a push to the hub reads a local folder, found a URI",
            hint="fetch it first: packline pull URI FOLDER, and push FOLDER",
        )
    publication = read_pushable(folder)
    if publication.repository_kind != place.type:
        right = address(replace(place, type=publication.repository_kind))
        raise HubError(f"{folder} is pushed to {right}: found {address(place)}", hint=f"write {right}")
    repository = Repository(place)
    repository.require_token()
    created = repository.create(private=private)
    one = _Push(publication, repository, licence)
    revision = with_patience(one.attempt)
    record = publication.folder / publication.record
    return Pushed(
        place=address(place),
        url=repository.url,
        revision=revision,
        kind=publication.kind,
        files=len(one.entries) + 1,
        bytes=sum(entry.bytes for entry in one.entries.values()) + record.stat().st_size,
        sent_files=len(one.sent),
        sent_bytes=sum(one.sent.values()),
        removed_files=len(one.removed),
        created=created,
        private=private if created else None,
        notes=publication.notes() if one.sent else (),
        seconds=time.perf_counter() - started,
    )


class _Push:
    """One push: what is there, and what was sent so far."""

    def __init__(self, publication: Pushable, repository: Repository, licence: str | None) -> None:
        self.publication, self.repository, self.licence = publication, repository, licence
        paths = publication.paths()
        self.entries = {paths[entry.name]: entry for entry in publication.files}
        self.known: dict[str, RepoFile] = {}
        """Files that were found equal, so that none is read twice."""
        self.sent: dict[str, int] = {}
        """Sizes by path."""
        self.removed: set[str] = set()

    def attempt(self) -> str:
        """Compare with the branch, and commit what is missing; return the last commit."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        head = self.repository.head()
        tree = self.repository.tree(head)
        folder, kind, record = self.publication.folder, self.publication.kind, self.publication.record
        if (found := pushable_kind(tree)) not in (None, kind):
            raise HubError(
                f"{self.repository} holds another kind of files: expected {kind}, found {found}",
                hint="push it to another repository",
            )
        missing = self._missing(tree)
        stale = []  # of an earlier store; files of others are left alone
        if kind == "store":
            stale = sorted(path for path in tree if path not in self.entries and belongs_to_store(path))
        whole = record in tree and same_bytes(folder / record, tree[record])
        earlier = self.repository.read(CARD, head).decode("utf-8", "replace") if CARD in tree else ""
        unpinned = address(replace(self.repository.place, revision=None))
        card = make_card(self.publication, unpinned, earlier, self.licence)
        if whole and not missing and not stale and card == earlier:
            return head
        removing = [record] if record in tree else []
        step = max(COMMIT_FILES, -(-len(missing) // MOST_COMMITS))
        for start in range(0, len(missing), step):
            group = missing[start : start + step]
            self._check(group)
            head = self.repository.commit(
                [
                    *map(CommitOperationDelete, removing),
                    *(CommitOperationAdd(path, folder / self.entries[path].name) for path in group),
                ],
                f"Add {len(group):,} files",
                head,
            )
            removing = []
            self.sent |= {path: self.entries[path].bytes for path in group}
        head = self.repository.commit(
            [
                *map(CommitOperationDelete, stale),
                CommitOperationAdd(record, folder / record),
                CommitOperationAdd(CARD, card.encode()),
            ],
            f"Add {record}: the {kind} is complete",
            head,
        )
        self.sent[record] = (folder / record).stat().st_size
        self.removed.update(stale)
        return head

    def _missing(self, tree: Mapping[str, RepoFile]) -> list[str]:
        """Paths that the branch lacks, or has with other bytes."""
        there = [path for path in self.entries if path in tree and self.known.get(path) != tree[path]]
        files = [self.publication.folder / self.entries[path].name for path in there]
        with ThreadPoolExecutor(THREADS) as pool:
            for path, same in zip(there, pool.map(same_bytes, files, map(tree.get, there)), strict=True):
                if same:
                    self.known[path] = tree[path]
        return sorted(path for path in self.entries if path not in tree or self.known.get(path) != tree[path])

    def _check(self, group: list[str]) -> None:
        """Refuse files that differ from the checksums of the manifest, before they are uploaded."""
        findings = Findings()
        for entry in map(self.entries.__getitem__, group):
            if entry.checksum:
                check_file(StoreFiles(self.publication.folder), entry, findings)
        if findings.problems:
            raise CorruptStore(
                f"{self.publication.folder} is damaged and was not pushed: {findings.problems[0]}",
                hint="packline verify shows all that differs",
            )
