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
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from packline.errors import InputChanged, InputError
from packline.storage.hub_client import hub_errors, list_files, parse_hub
from packline.storage.inputs import InputState, ListedFile, fixed_folder, glob_pattern, is_hidden

COMMIT = re.compile("[0-9a-f]{40}")
ATTEMPTS = 2
MAIN = "main"
_PLACE = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?")


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

    from huggingface_hub import HfApi

    with hub_errors(uri, InputError):
        sha = HfApi().dataset_info(place.dataset, revision=place.revision).sha
        assert sha is not None
    return str(place._replace(revision=sha))


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
        for path, size in _tree(place, folder):
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
            with hub_errors(uri, InputError):
                return _range(place, start, stop)
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
    from huggingface_hub import HfApi, RepoFile

    if folder:
        with hub_errors(str(place), InputError):
            found = HfApi().get_paths_info(
                place.dataset, [folder], revision=place.revision, repo_type="dataset"
            )
        for one in found:
            if isinstance(one, RepoFile):
                return [(folder, one.size)]
    files = list_files(parse_hub(str(place._replace(path=folder)).rstrip("/"), InputError), InputError)
    return sorted((path, one.size) for path, one in files.items() if not is_hidden(path[len(folder) :]))


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
