"""A repository on the hub: the calls of the hub's client that push and pull make.

hf://datasets/ORG/NAME             a dataset repository, its branch main
hf://datasets/ORG/NAME@REVISION    a branch, a tag or a commit
hf://ORG/NAME                      a model repository; tokenizers are kept in one
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from packline.errors import HubError, RecipeError
from packline.storage.hub_inputs import HubBusy, address, hub_errors, list_files, parse_hub

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfUri, RepoFile

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
