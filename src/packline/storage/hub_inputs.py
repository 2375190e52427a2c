"""Inputs from datasets of the Hugging Face hub, read by ranges from one commit.

    hf://datasets/ORG/NAME[@REVISION]/PATH     a file, a folder or a glob; REVISION: a branch, tag or commit
    hf://datasets/ORG/NAME@COMMIT/PATH         what recipe, plan and manifest contain

A revision is resolved to its commit when inputs are planned, so that every unit reads the same files, however
the dataset changes. Folders are listed by 1,000 files a request, and files are read through their address
(`resolve`), which needs no request to the hub's API. The client repeats what fails; it waits where the hub
limits requests.

`HF_TOKEN`, `HF_ENDPOINT`, `HF_HOME` and `HF_HUB_OFFLINE` apply. Offline, single files are read from the hub's
cache; folders and globs are refused, since the cache may have only a part of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from packline.errors import InputChanged, InputError
from packline.storage.inputs import InputState, ListedFile, fixed_folder, glob_pattern, is_hidden

COMMIT = re.compile("[0-9a-f]{40}")
ATTEMPTS = 2
MAIN = "main"
_PLACE = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?")

T = TypeVar("T")


class HubPath(NamedTuple):
    """Address of files in a dataset."""

    dataset: str
    revision: str
    path: str

    @property
    def is_pinned(self) -> bool:
        """True if the revision is a commit."""
        return bool(COMMIT.fullmatch(self.revision))

    def __str__(self) -> str:
        return f"hf://datasets/{self.dataset}@{quote(self.revision, safe='')}/{self.path}"


def parse_hub_uri(uri: str) -> HubPath:
    """Parts of a URI.

    Raises:
        InputError: not the URI of a dataset.

    >>> parse_hub_uri("hf://datasets/org/name@refs/convert/parquet/a/*.parquet")
    HubPath(dataset='org/name', revision='refs/convert/parquet', path='a/*.parquet')
    >>> parse_hub_uri("hf://datasets/org/name").revision
    'main'
    """
    if (found := _PLACE.fullmatch(uri)) is None:
        raise InputError(
            f"{uri} is not a dataset of the hub",
            hint="write hf://datasets/ORG/NAME/PATH or hf://datasets/ORG/NAME@REVISION/PATH",
        )
    return HubPath(found[1], unquote(found[2] or MAIN), found[3] or "")


def pin(uri: str) -> str:
    """The same URI with the commit that its revision is now.

    Raises:
        InputError: no such dataset or revision, no access, or the hub cannot be reached.
    """
    place = parse_hub_uri(uri)
    if place.is_pinned:
        return str(place)
    if is_offline():
        cached = _cached(place)
        if cached is None:
            raise _offline(place)
        return str(place._replace(revision=_commit_of(cached, place)))

    def resolve() -> str:
        from huggingface_hub import HfApi

        sha = HfApi().dataset_info(place.dataset, revision=place.revision).sha
        assert sha is not None
        return sha

    return str(place._replace(revision=_answer(uri, resolve)))


class HubInputs:
    """See `RemoteFiles`."""

    def expand(self, uri: str) -> Iterator[ListedFile]:
        """See `RemoteFiles.expand`; the addresses have the commit."""
        place = parse_hub_uri(pin(uri))
        pattern = glob_pattern(place.path)
        if is_offline():
            cached = _cached(place) if pattern is None else None
            if cached is None:
                raise _offline(place)
            yield ListedFile(str(place), InputState(cached.stat().st_size, place.revision))
            return
        folder = place.path.strip("/") if pattern is None else fixed_folder(place.path)
        for path, size in _answer(uri, lambda: _tree(place, folder)):
            if pattern is None or pattern.fullmatch(path):
                yield ListedFile(str(place._replace(path=path)), InputState(size, place.revision))

    def read_start(self, uri: str, size: int) -> tuple[InputState, bytes]:
        """See `RemoteFiles.read_start`."""
        place = parse_hub_uri(uri)
        data, whole = self._read(uri, place, 0, size)
        return InputState(whole, place.revision), data

    def read(self, uri: str, start: int, stop: int, state: InputState) -> Any:
        """See `RemoteFiles.read`."""
        place = parse_hub_uri(uri)
        data, whole = self._read(uri, place, start, stop)
        for _ in range(ATTEMPTS):
            if len(data) < stop - start and whole == state.size:
                data, whole = self._read(uri, place, start, stop)
        if whole != state.size or len(data) != stop - start:
            raise InputChanged(
                f"{uri} changed after it was planned: expected {state.size:,} bytes and all of "
                f"{start:,} to {stop:,}; found {whole:,} bytes and {len(data):,} of them",
                hint="a commit does not change: check the server or the cache of the hub",
            )
        return data

    def _read(self, uri: str, place: HubPath, start: int, stop: int) -> tuple[bytes, int]:
        if not is_offline():
            return _answer(uri, lambda: _range(place, start, stop))
        path = _cached_file(place)
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(stop - start), path.stat().st_size


def is_offline() -> bool:
    """True if the hub may not be used (`HF_HUB_OFFLINE`).

    Raises:
        InputError: the hub's client is not installed.
    """
    try:
        from huggingface_hub import constants
    except ImportError as error:
        raise InputError(
            f"hf:// needs a package that is not installed: {error.name}", hint="pip install 'packline[hub]'"
        ) from error
    return bool(constants.HF_HUB_OFFLINE)


def _tree(place: HubPath, folder: str) -> list[tuple[str, int]]:
    """Path and size of each file below a folder, or of the file itself."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    where: dict[str, Any] = {"revision": place.revision, "repo_type": "dataset"}
    if folder:
        for one in HfApi().get_paths_info(place.dataset, [folder], **where):
            if isinstance(one, RepoFile):
                return [(one.path, one.size)]
    tree = HfApi().list_repo_tree(place.dataset, folder or None, recursive=True, **where)
    files = [(one.path, one.size) for one in tree if isinstance(one, RepoFile)]
    return sorted((path, size) for path, size in files if not is_hidden(path[len(folder) :]))


def _range(place: HubPath, start: int, stop: int) -> tuple[bytes, int]:
    """Bytes of a range, fewer at the end of the file, and the size of the file."""
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

    url = hf_hub_url(place.dataset, place.path, repo_type="dataset", revision=place.revision)
    headers = {**build_hf_headers(), "range": f"bytes={start}-{stop - 1}"}
    answer = http_backoff("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
    if answer.status_code == 416 and not start:
        return b"", 0
    hf_raise_for_status(answer)
    data = answer.content
    whole = answer.headers.get("content-range", "").rpartition("/")[2]
    if answer.status_code == 206 and whole.isdigit():
        return data, int(whole)
    return data[start:stop], len(data)  # a small file may come whole


def _answer(uri: str, ask: Callable[[], T]) -> T:
    """Answer of the hub; its errors in packline's form."""
    try:
        return ask()
    except InputError:
        raise
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        kind, kept = type(error).__name__, "what is committed is kept: the same command resumes"
        terms = "accept the dataset's terms on its page, and set HF_TOKEN"
        for applies, message, hint in (
            (
                kind == "RevisionNotFoundError",
                "{}: no such revision of it",
                "check the branch or tag",
            ),
            (kind.endswith("EntryNotFoundError"), "cannot find {}", "check the path in the dataset"),
            (kind == "GatedRepoError" or status == 403, "cannot read {}: access refused", terms),
            (
                kind == "RepositoryNotFoundError" or status in (401, 404),
                "cannot find {}: no such dataset, or a private one",
                "check the name; a private one needs HF_TOKEN",
            ),
        ):
            if applies:
                raise InputError(message.format(uri), hint=hint) from None
        reason = f"status {status}" if status else str(error).strip().partition("\n")[0][:200] or kind
        raise InputError(
            f"cannot read {uri}: {reason}", hint=f"check the network and HF_ENDPOINT; {kept}"
        ) from None


def _cached(place: HubPath) -> Path | None:
    """The file in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    if not place.path:
        return None
    with suppress(ValueError):
        found = try_to_load_from_cache(
            place.dataset, place.path, revision=place.revision, repo_type="dataset"
        )
        return Path(found) if isinstance(found, str) else None
    return None


def _cached_file(place: HubPath) -> Path:
    if (found := _cached(place)) is None:
        raise _offline(place)
    return found


def _commit_of(cached: Path, place: HubPath) -> str:
    """Commit of a file in the cache: it has a folder for each."""
    return cached.parents[place.path.count("/")].name


def _offline(place: HubPath) -> InputError:
    if not place.path or place.path.endswith("/") or glob_pattern(place.path) is not None:
        return InputError(
            f"cannot list {place}: HF_HUB_OFFLINE is set, and the cache may have only a part of it",
            hint=f"name its files one by one, or beforehand: hf download {place.dataset} --repo-type dataset "
            "--local-dir DATA, and give DATA",
        )
    return InputError(
        f"cannot read {place}: HF_HUB_OFFLINE is set, and the file is not in the cache of the hub",
        hint=f"beforehand: hf download {place.dataset} {place.path} --repo-type dataset",
    )
