"""The calls to the hub that packline needs, through `huggingface_hub`, and its errors in packline's form.

Which token is used, and which endpoint: as everywhere with this client (`HF_TOKEN` or `hf auth login`,
`HF_ENDPOINT`, `HF_HOME`, `HF_HUB_OFFLINE`). No token is ever part of a message.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from packline.errors import HubError, PacklineError
from packline.hub.places import HubPlace

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

T = TypeVar("T")
BRANCH = "main"
TIMEOUT_SECONDS = 10.0
"""Time for the first answer of the hub, after which it counts as unreachable."""
READ_BYTES = 8 << 20
LONGEST_WAIT_SECONDS = 120.0
"""Time that a command waits when the hub asks it to; beyond, it ends and can be run again."""
TRANSIENT = (429, 500, 502, 503, 504)


class HubFile(msgspec.Struct, frozen=True):
    """A file of a revision."""

    size: int
    checksum: str
    """sha256 of a large file; for one that is kept in git, git's checksum of it."""
    large: bool

    def matches(self, path: Path) -> bool:
        """True if a local file has the same bytes; reads it only if the size agrees."""
        if path.stat().st_size != self.size:
            return False
        hasher = hashlib.sha256() if self.large else hashlib.sha1(b"blob %d\0" % self.size)
        with open(path, "rb", buffering=0) as file:
            while data := file.read(READ_BYTES):
                hasher.update(data)
        return hasher.hexdigest() == self.checksum


class Busy(HubError):
    """The hub asks to come back, or the connection failed: trying again can help."""

    def __init__(self, message: str, *, hint: str = "", seconds: float | None = None) -> None:
        super().__init__(message, hint=hint)
        self.seconds = seconds
        """Time that the hub asked to wait."""


class Moved(HubError):
    """Something else committed to the branch in the meantime."""


class HubClient:
    """A repository on the hub.

    Args:
        place: the repository; its revision is the default of the calls.
        writing: True if it is going to be changed, which needs a token.

    Raises:
        HubError: no token to write with, or offline mode.
    """

    def __init__(self, place: HubPlace, *, writing: bool = False) -> None:
        from huggingface_hub import HfApi, constants, get_token
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
        self.place = place
        self.api: HfApi = HfApi(library_name="packline")
        if writing and constants.HF_HUB_OFFLINE:
            raise HubError(f"cannot push to {place}: HF_HUB_OFFLINE is set", hint="unset HF_HUB_OFFLINE")
        if writing and not get_token():
            raise HubError(
                f"cannot push to {place}: no token for the hub",
                hint="log in with `hf auth login`, or set HF_TOKEN to a token that may write",
            )

    @property
    def url(self) -> str:
        """Page of the repository."""
        prefix = "datasets/" if self.place.kind == "dataset" else ""
        return f"{self.api.endpoint}/{prefix}{self.place.repository}"

    def head(self, revision: str | None = None) -> str:
        """Commit that a revision points at; asked once, without repetition, so that errors come soon."""
        revision = revision or self.place.revision or BRANCH
        with self._errors():
            info = self.api.repo_info(
                self.place.repository,
                repo_type=self.place.kind,
                revision=revision,
                timeout=TIMEOUT_SECONDS,
            )
        return str(info.sha)

    def create(self, *, private: bool) -> bool:
        """Create the repository if it is absent; True if it was."""
        from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

        try:
            with self._errors(keep=(RepositoryNotFoundError,)):
                self.api.repo_info(self.place.repository, repo_type=self.place.kind, timeout=TIMEOUT_SECONDS)
            return False
        except RepositoryNotFoundError:
            pass
        with self._errors():
            try:
                self.api.create_repo(
                    self.place.repository,
                    repo_type=self.place.kind,
                    visibility="private" if private else "public",
                )
            except HfHubHTTPError as error:
                if _status(error) != 409:  # somebody else made it a moment ago
                    raise
        return True

    def create_branch(self, branch: str) -> None:
        """Create a branch from the head of main, unless it is there."""
        with self._errors():
            self.api.create_branch(
                self.place.repository, branch=branch, repo_type=self.place.kind, exist_ok=True
            )

    def tree(self, commit: str) -> dict[str, HubFile]:
        """All files of a commit, by path; one call for a thousand of them."""
        from huggingface_hub import RepoFile

        with self._errors():
            entries = list(
                self.api.list_repo_tree(
                    self.place.repository, repo_type=self.place.kind, revision=commit, recursive=True
                )
            )
        return {
            entry.path: HubFile(entry.size, entry.lfs.sha256, True)
            if entry.lfs is not None
            else HubFile(entry.size, entry.blob_id, False)
            for entry in entries
            if isinstance(entry, RepoFile)
        }

    def commit(
        self,
        operations: Sequence[CommitOperationAdd | CommitOperationDelete],
        *,
        message: str,
        branch: str,
        parent: str,
    ) -> str:
        """Upload and commit; return the new commit.

        Raises:
            Moved: the branch no longer ends with `parent`.
            Busy: it may succeed later, or have succeeded.
            HubError: it cannot succeed.
        """
        with self._errors():
            made = self.api.create_commit(
                self.place.repository,
                list(operations),
                commit_message=message,
                repo_type=self.place.kind,
                revision=branch,
                parent_commit=parent,
            )
        return str(made.oid)

    def download(self, path: str, commit: str, folder: Path) -> Path:
        """Fetch a file below a folder; resumes a partial one, and a complete one costs nothing."""
        with self._errors(path):
            return Path(
                self.api.hf_hub_download(
                    self.place.repository,
                    path,
                    repo_type=self.place.kind,
                    revision=commit,
                    local_dir=folder,
                )
            )

    def read(self, path: str, commit: str) -> bytes:
        """Contents of a small file, by way of the client's cache."""
        with self._errors(path):
            found = self.api.hf_hub_download(
                self.place.repository, path, repo_type=self.place.kind, revision=commit
            )
        return Path(found).read_bytes()

    @contextmanager
    def _errors(self, path: str = "", keep: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        try:
            yield
        except PacklineError:
            raise
        except keep:
            raise
        except Exception as error:
            raise translate(error, self.place, path) from error


def with_patience(action: Callable[[], T], tries: int = 5) -> T:
    """Call an action again after `Busy`, waiting as long as the hub asks, or 1, 2, 4, ... seconds.

    Raises:
        Busy: still so after all tries, or the hub asks to wait for more than two minutes.
    """
    for attempt in range(tries):
        try:
            return action()
        except Busy as error:
            seconds = 2.0**attempt if error.seconds is None else error.seconds
            if attempt == tries - 1 or seconds > LONGEST_WAIT_SECONDS:
                raise
            time.sleep(seconds)
    raise AssertionError("unreachable")


def not_cached(path: str, place: HubPlace) -> HubError:
    """Error for a file that is needed in offline mode."""
    what = f"{path} of {place}" if path else str(place)
    return HubError(
        f"HF_HUB_OFFLINE is set, and {what} is not in the cache of the hub's client",
        hint="unset HF_HUB_OFFLINE, or pull once with a connection",
    )


def translate(error: Exception, place: HubPlace, path: str = "") -> HubError:
    """The error of the hub's client, in packline's form.

    >>> str(translate(OSError("no route"), HubPlace("dataset", "org/name")))
    'hf://datasets/org/name: no route'
    """
    from huggingface_hub import constants, get_token
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    chain = list(_chain(error))
    what = f"{path} of {place}" if path else str(place)
    for each in chain:
        if isinstance(each, OfflineModeIsEnabled) or (
            isinstance(each, LocalEntryNotFoundError) and constants.HF_HUB_OFFLINE
        ):
            return not_cached(path, place)
        if isinstance(each, HFValidationError):
            return HubError(f"{place} is no name of a repository: {_first_line(each)}")
        if isinstance(each, RevisionNotFoundError):
            return HubError(
                f"{place.unpinned} has no revision {place.revision or BRANCH}",
                hint="its page lists branches and commits under Files",
            )
        if isinstance(each, GatedRepoError):
            return HubError(f"{place} is gated: its owner has to grant access", hint="ask on its page")
        if isinstance(each, RepositoryNotFoundError):
            hint = "check its name" if get_token() else "check its name; a private one needs HF_TOKEN"
            return HubError(
                f"there is no repository {place.unpinned}, or this token may not see it", hint=hint
            )
        if isinstance(each, EntryNotFoundError) and not isinstance(each, LocalEntryNotFoundError):
            return HubError(f"{place} has no file {path}")
    for each in chain:
        status = _status(each)
        if status in (401, 403):
            meaning = "is not valid" if status == 401 else "does not permit this"
            return HubError(
                f"the hub refuses access to {what} ({status}): the token {meaning}",
                hint="`hf auth whoami` shows whose it is; to push it must be able to write for that name",
            )
        if status == 412:
            return Moved(
                f"{place}: something else committed to the branch meanwhile",
                hint="run the same command again; nothing is uploaded twice",
            )
        if status in TRANSIENT:
            return Busy(
                f"the hub cannot do it now ({status}): {what}",
                hint="run the same command again later; nothing is transferred twice",
                seconds=_retry_after(each),
            )
        if status is not None:
            return HubError(f"the hub refuses {what} ({status}): {_first_line(each)}")
    for each in chain:
        if type(each).__module__.partition(".")[0] in ("httpx2", "httpcore2", "httpx", "httpcore"):
            host = constants.ENDPOINT
            return Busy(
                f"cannot reach the hub at {host} for {what}: {_first_line(each) or type(each).__name__}",
                hint="check the connection and HF_ENDPOINT, and run the same command again",
            )
    return HubError(f"{what}: {_first_line(error)}")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes, the outermost first."""
    found: BaseException | None = error
    for _ in range(10):
        if found is None:
            return
        yield found
        found = found.__cause__ or found.__context__


def _status(error: BaseException) -> int | None:
    """HTTP status of an error; None for one that is not an answer of the hub."""
    response: Any = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    return status if isinstance(status, int) else None


def _retry_after(error: BaseException) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", {})
    with suppress(ValueError, TypeError):
        return float(headers["Retry-After"]) if "Retry-After" in headers else None
    return None


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else ""
