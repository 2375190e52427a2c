"""Push a folder to a repository on the hub; the same call again continues where it was interrupted.

    files ── compared with the branch by size and checksum ── missing ones in a few commits
                                                          └── last commit: record and card

Large files are uploaded by the hub's own client, which stores equal bytes once. Every commit names its
parent, so two pushes at once cannot mix. A revision with a record is complete: the first commit of a push
that changes anything removes the old record, and the new one comes last. Earlier revisions stay readable.

A push keeps no state: after any interruption the branch itself shows what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from packline.errors import CorruptStore, HubError, refuse_unknown_names
from packline.hub.card import make_card
from packline.hub.client import BRANCH, LONGEST_WAIT_SECONDS, Busy, HubClient, HubFile, Moved
from packline.hub.layout import belongs_to_store
from packline.hub.places import HubPlace, parse_place
from packline.hub.publication import CARD, Publication, machine_paths, publication_kind, read_publication
from packline.store.files import FileEntry
from packline.store.report import Findings
from packline.store.shard_check import check_file

COMMIT_BYTES = 1 << 30
COMMIT_FILES = 500
MOST_COMMITS = 45
"""Commits for either reason, so that a push stays below the hub's limit of 128 an hour."""
TRIES = 5
"""Attempts in a row without progress."""
THREADS = 4


class Pushed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a push."""

    place: HubPlace
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


class PushProgress(msgspec.Struct, frozen=True):
    """Files and bytes that the branch has, and has to have."""

    files: int
    bytes: int
    total_files: int
    total_bytes: int


OnProgress = Callable[[PushProgress], None]


@refuse_unknown_names
def push(
    folder: str | Path,
    to: str,
    *,
    private: bool = True,
    licence: str | None = None,
    on_progress: OnProgress = lambda progress: None,
) -> Pushed:
    """Publish a store, an export, a tokenizer or evaluation sets on the hub, or continue an interrupted push.

    Args:
        folder: a finished folder of `build`, `export`, `tokenizer train` or `evals`.
        to: `hf://datasets/ORG/NAME`, or `hf://ORG/NAME` for a tokenizer; `@BRANCH` may follow.
        private: visibility of the repository, if it is created.
        licence: licence for the card, as the hub writes it.
        on_progress: called after every commit.

    Raises:
        StoreNotFound: nothing to push, or an unfinished store.
        CorruptStore: a file differs from its checksum; it is not uploaded.
        HubError: no token, no permission, no connection, or another kind of repository.
        RecipeError: `to` is no address of a repository.

    >>> push("missing", "hf://datasets/org/name")
    Traceback (most recent call last):
    packline.errors.StoreNotFound: missing does not exist
    """
    place = parse_place(to)
    publication = read_publication(folder)
    if publication.repository_kind != place.kind:
        right = HubPlace(publication.repository_kind, place.repository, place.revision)
        raise HubError(f"{folder} is pushed to {right}: found {place}", hint=f"write {right}")
    return _Push(publication, place, private, licence, on_progress).run()


class _Push:
    """One push: settings, and what was sent so far."""

    def __init__(
        self,
        publication: Publication,
        place: HubPlace,
        private: bool,
        licence: str | None,
        on_progress: OnProgress,
    ) -> None:
        self.publication, self.place, self.private = publication, place, private
        self.licence, self.on_progress = licence, on_progress
        self.branch = place.revision or BRANCH
        self.hub = HubClient(place, writing=True)
        self.entries = {path: entry for entry, path in self._named()}
        self.known: dict[str, HubFile] = {}
        """Files that were found equal, so that none is read twice."""
        self.sent: set[str] = set()
        self.sent_bytes = 0
        self.removed: set[str] = set()

    def _named(self) -> Iterator[tuple[FileEntry, str]]:
        paths = self.publication.paths()
        for entry in self.publication.files:
            yield entry, paths[entry.name]

    def run(self) -> Pushed:
        started = time.perf_counter()
        created = self.hub.create(private=self.private)
        if self.branch != BRANCH:
            self.hub.create_branch(self.branch)
        revision = self._patiently()
        entries = [*self.entries.values()]
        record = self.publication.folder / self.publication.record
        return Pushed(
            place=self.place,
            url=self.hub.url,
            revision=revision,
            kind=self.publication.kind,
            files=len(entries) + 1,
            bytes=sum(entry.bytes for entry in entries) + record.stat().st_size,
            sent_files=len(self.sent),
            sent_bytes=self.sent_bytes,
            removed_files=len(self.removed),
            created=created,
            private=self.private if created else None,
            notes=tuple(self._notes()) if self.sent else (),
            seconds=time.perf_counter() - started,
        )

    def _patiently(self) -> str:
        """Compare and commit, and once more after an error that may pass; the branch shows what was done."""
        failures = 0
        while True:
            before = len(self.sent)
            try:
                return self._attempt()
            except (Busy, Moved) as error:
                failures = 1 if len(self.sent) > before else failures + 1
                seconds = getattr(error, "seconds", None)
                seconds = 2.0**failures if seconds is None else seconds
                if failures >= TRIES or seconds > LONGEST_WAIT_SECONDS:
                    raise
                time.sleep(seconds)

    def _attempt(self) -> str:
        """Compare with the branch, and commit what is missing."""
        head = self.hub.head(self.branch)
        tree = self.hub.tree(head)
        self._refuse_another_kind(tree)
        record = self.publication.record
        missing = self._missing(tree)
        stale = self._stale(tree)
        whole = record in tree and tree[record].matches(self.publication.folder / record)
        card = self._card(tree, head)
        if not missing and not stale and whole and card is None:
            return head
        removing = [record] if record in tree and (missing or stale or not whole) else []
        for group in self._groups(missing):
            head = self._commit(group, removing, head)
            removing = []
            self._report(missing)
        return self._finish(card, removing + stale, head)

    def _missing(self, tree: Mapping[str, HubFile]) -> list[str]:
        """Paths that the branch lacks, or has with other bytes."""
        folder = self.publication.folder

        def equal(path: str) -> bool:
            if self.known.get(path) == tree[path]:
                return True
            return tree[path].matches(folder / self.entries[path].name)

        there = [path for path in self.entries if path in tree]
        with ThreadPoolExecutor(THREADS) as pool:
            for path, same in zip(there, pool.map(equal, there), strict=True):
                if same:
                    self.known[path] = tree[path]
                else:
                    self.known.pop(path, None)
        return sorted(path for path in self.entries if path not in tree or path not in self.known)

    def _stale(self, tree: Mapping[str, HubFile]) -> list[str]:
        """Paths of an earlier store that this one does not have; files of others are left alone."""
        if self.publication.kind != "store":
            return []
        return sorted(path for path in tree if path not in self.entries and belongs_to_store(path))

    def _refuse_another_kind(self, tree: Mapping[str, HubFile]) -> None:
        found = publication_kind(tree)
        if found is not None and found != self.publication.kind:
            raise HubError(
                f"{self.place} holds another kind of files: expected {self.publication.kind}, found {found}",
                hint="push it to another repository",
            )

    def _groups(self, missing: list[str]) -> Iterator[list[str]]:
        """Missing files in commits: few, and each small enough to be repeated."""
        total = sum(self.entries[path].bytes for path in missing)
        most_bytes = max(COMMIT_BYTES, total // MOST_COMMITS)
        most_files = max(COMMIT_FILES, len(missing) // MOST_COMMITS)
        group: list[str] = []
        held = 0
        for path in missing:
            if group and (len(group) >= most_files or held + self.entries[path].bytes > most_bytes):
                yield group
                group, held = [], 0
            group.append(path)
            held += self.entries[path].bytes
        if group:
            yield group

    def _commit(self, group: list[str], removing: list[str], head: str) -> str:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        self._check(group)
        folder = self.publication.folder
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            *(CommitOperationDelete(path) for path in removing),
            *(CommitOperationAdd(path, str(folder / self.entries[path].name)) for path in group),
        ]
        head = self.hub.commit(
            operations, message=f"Add {len(group):,} files", branch=self.branch, parent=head
        )
        self.sent.update(group)
        self.sent_bytes += sum(self.entries[path].bytes for path in group)
        return head

    def _finish(self, card: bytes | None, removing: list[str], head: str) -> str:
        """The last commit: record and card, and without what is left of an earlier store."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        record = self.publication.record
        local = self.publication.folder / record
        deletions = [CommitOperationDelete(path) for path in removing if path != record]
        additions = [CommitOperationAdd(record, str(local))]
        if card is not None:
            additions.append(CommitOperationAdd(CARD, card))
        head = self.hub.commit(
            [*deletions, *additions],
            message=f"Add {record}: the {self.publication.kind} is complete",
            branch=self.branch,
            parent=head,
        )
        self.sent.add(record)
        self.sent_bytes += local.stat().st_size
        self.removed.update(path for path in removing if path != record)
        return head

    def _check(self, group: list[str]) -> None:
        """Refuse files that differ from the checksums of the manifest, before they are uploaded."""
        findings = Findings()
        for path in group:
            if self.entries[path].checksum:
                check_file(self.publication.folder, self.entries[path], findings)
        if findings.problems:
            raise CorruptStore(
                f"{self.publication.folder} is damaged and was not pushed: {findings.problems[0]}",
                hint="packline verify shows all that differs",
            )

    def _card(self, tree: Mapping[str, HubFile], head: str) -> bytes | None:
        """The card; None if it is there already."""
        earlier = self.hub.read(CARD, head).decode("utf-8", "replace") if CARD in tree else ""
        card = make_card(self.publication, self.place, earlier, self.licence)
        return None if card == earlier else card.encode()

    def _report(self, missing: list[str]) -> None:
        waiting = [path for path in missing if path not in self.sent]
        left = sum(self.entries[path].bytes for path in waiting)
        total = sum(entry.bytes for entry in self.entries.values())
        count = len(self.entries)
        self.on_progress(PushProgress(count - len(waiting), total - left, count, total))

    def _notes(self) -> Iterator[str]:
        manifest = self.publication.manifest
        if manifest is not None and (paths := machine_paths(manifest)):
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            yield f"manifest.json contains paths of the machine that built the store: {paths[0]}{more}"
