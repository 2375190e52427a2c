"""Repositories of the loopback hub: commits, files and stored objects, as the real hub keeps them."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TEXT = (".json", ".jsonl", ".md", ".txt", ".toml", ".yaml", ".py")
"""Files that the hub keeps in git itself while they are small; others are large files, by their checksum."""
LARGE = 10 << 20


class Refused(Exception):
    """A request that the hub refuses: status, error code and message."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


@dataclass(frozen=True)
class Entry:
    """A file of a commit. `data` is kept here only for a file in git; `lfs` is the sha256 of any other."""

    size: int
    oid: str
    lfs: str | None = None
    data: bytes = b""

    @property
    def etag(self) -> str:
        return self.lfs or self.oid


@dataclass(frozen=True)
class Commit:
    """A commit: all files by path."""

    sha: str
    parent: str | None
    title: str
    files: dict[str, Entry]


@dataclass
class Repository:
    """A repository of a kind: `datasets` or `models`."""

    kind: str
    name: str
    private: bool
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.add("main", None, "initial commit", {".gitattributes": git_file(b"*.bin filter=lfs\n")})

    def add(self, branch: str, parent: str | None, title: str, files: dict[str, Entry]) -> Commit:
        made = [self.kind, self.name, branch, parent, title, sorted((k, v.etag) for k, v in files.items())]
        sha = hashlib.sha1(json.dumps([*made, len(self.commits)]).encode()).hexdigest()
        commit = self.commits[sha] = Commit(sha, parent, title, files)
        self.branches[branch] = sha
        return commit

    def find(self, revision: str) -> Commit:
        sha = self.branches.get(revision) or self.tags.get(revision) or revision
        for known, commit in self.commits.items():
            if known == sha or (len(sha) >= 7 and known.startswith(sha)):
                return commit
        raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def history(self, revision: str) -> list[Commit]:
        """Commits from a revision back to the first."""
        commit: Commit | None = self.find(revision)
        found = []
        while commit is not None:
            found.append(commit)
            commit = self.commits[commit.parent] if commit.parent else None
        return found


def git_file(data: bytes) -> Entry:
    """A file that is kept in git, named by git's own checksum."""
    return Entry(len(data), hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(), None, data)


def large_file(sha256: str, size: int) -> Entry:
    """A large file; what git keeps is a pointer to it."""
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n"
    return Entry(size, git_file(pointer.encode()).oid, sha256)


class Hub:
    """All repositories, and the large files by checksum in a folder.

    Args:
        folder: empty folder for the large files.
        writers: tokens that may write to the namespaces given with them.
        readers: tokens that may only read.
    """

    def __init__(self, folder: Path, writers: dict[str, tuple[str, ...]], readers: tuple[str, ...]) -> None:
        self.folder, self.writers, self.readers = folder, writers, readers
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.lock = threading.RLock()

    # who may do what

    def see(self, kind: str, name: str, token: str | None) -> Repository:
        """A repository that a token may read. As on the real hub, one that it may not read looks absent."""
        if token is not None and token not in self.writers and token not in self.readers:
            raise Refused(401, "Invalid credentials in Authorization header")
        found = self.repositories.get((kind, name))
        if found is None or (found.private and token is None):
            raise Refused(401 if token is None else 404, "Repository not found", "RepoNotFound")
        return found

    def require_writer(self, name: str, token: str | None) -> None:
        if token is None:
            raise Refused(401, "Invalid username or password.")
        if name.split("/")[0] not in self.writers.get(token, ()):
            who = name.split("/")[0]
            raise Refused(403, f"You don't have the rights to write under the namespace {who!r}")

    def create(self, kind: str, name: str, private: bool, token: str | None) -> Repository:
        self.require_writer(name, token)
        if (kind, name) in self.repositories:
            raise Refused(409, "You already created this repo")
        made = self.repositories[kind, name] = Repository(kind, name, private)
        return made

    # contents

    def stored(self, sha256: str) -> Path:
        return self.folder / sha256

    def read(self, entry: Entry) -> bytes:
        return entry.data if entry.lfs is None else self.stored(entry.lfs).read_bytes()

    def upload_mode(self, path: str, size: int) -> str:
        return "regular" if path.endswith(TEXT) and size < LARGE else "lfs"

    def commit(self, repository: Repository, branch: str, lines: list[dict[str, Any]]) -> Commit:
        """Apply the lines of a commit request to a branch."""
        with self.lock:
            if branch not in repository.branches:
                raise Refused(404, f"Invalid rev id: {branch}", "RevisionNotFound")
            head = repository.find(branch)
            files = dict(head.files)
            header = lines[0]["value"]
            parent = header.get("parentCommit")
            if parent is not None and not head.sha.startswith(parent):
                raise Refused(412, "A commit has happened since. Please refresh and try again.")
            for line in lines[1:]:
                value, path = line["value"], line["value"]["path"]
                if line["key"] == "file":
                    files[path] = git_file(base64.b64decode(value["content"]))
                elif line["key"] == "lfsFile":
                    if not self.stored(value["oid"]).exists():
                        raise Refused(400, f"LFS pointer pointed to a file that does not exist: {path}")
                    files[path] = large_file(value["oid"], self.stored(value["oid"]).stat().st_size)
                elif line["key"] == "deletedFile":
                    if files.pop(path, None) is None:
                        raise Refused(404, "A file with this name doesn't exist", "EntryNotFound")
                else:
                    raise Refused(400, f"unknown operation {line['key']}")
            return repository.add(branch, head.sha, header["summary"], files)
