"""Datasets of the Hugging Face hub, read by ranges from one commit: as inputs, and as the folder of a store.

    hf://datasets/ORG/NAME[@REVISION]/PATH     a file, a folder or a glob; REVISION: a branch, tag or commit
    hf://datasets/ORG/NAME@COMMIT/PATH         what recipe, plan and manifest contain

A revision is resolved to its commit when inputs are planned, so that every unit reads the same files, however
the dataset changes. Folders are listed by 1,000 files a request, and files are read through their address
(`resolve`), which needs no request to the hub's API. The client repeats what fails; it waits where the hub
limits requests. Addresses, listings and errors are the client's, in packline's form, without tokens.

`HF_TOKEN`, `HF_ENDPOINT`, `HF_HOME` and `HF_HUB_OFFLINE` apply. Offline, single files are read from the hub's
cache; folders and globs are refused, since the cache may have only a part of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from packline.errors import HubError, InputChanged, InputError, PacklineError, RecipeError, StoreError
from packline.storage.inputs import InputState, ListedFile, fixed_folder, glob_pattern, is_hidden
from packline.storage.protocol import FileFacts

if TYPE_CHECKING:
    from huggingface_hub import HfUri, RepoFile


LONGEST_NAME = 255
"""Bytes of a file's name on a local disk."""
_QUERY = re.compile(r"\?[^/]*=|#[^/]*=")
_TRANSIENT = (408, 429, 500, 502, 503, 504)
_NETWORK = ("httpx2", "httpcore2", "httpx", "httpcore")


class HubBusy(HubError):
    """The hub could not do it now, or something else committed meanwhile: the same call may succeed later."""


def parse_hub(text: str, kind: type[PacklineError] = RecipeError) -> HfUri:
    """Parse an address: `hf://datasets/ORG/NAME[@REVISION][/PATH]`, or `hf://ORG/NAME...` for a model.

    Args:
        kind: class of the error for anything else.

    >>> parse_hub("hf://datasets/org/name@refs/convert/parquet/a/*.parquet").path_in_repo
    'a/*.parquet'
    >>> parse_hub("hf://datasets/org/name?token=abc")
    Traceback (most recent call last):
    packline.errors.RecipeError: hf://datasets/org/name has a query: expected an address without one
    """
    try:
        from huggingface_hub import parse_hf_uri
        from huggingface_hub.errors import HfUriError
    except ImportError as error:
        hint = "pip install 'packline[hub]'"
        raise kind(f"hf:// needs a package that is not installed: {error.name}", hint=hint) from error
    if query := _QUERY.search(text):
        raise kind(
            f"{text[: query.start()]} has a query: expected an address without one",
            hint="a token belongs into HF_TOKEN, where no log shows it",
        )
    if not text.startswith("hf://"):
        raise kind(f"{text} is no address on the hub: expected it to begin with hf://")
    try:
        return parse_hf_uri(text)
    except HfUriError as error:
        raise kind(
            f"{text} is no address on the hub: {error.msg}", hint="write hf://datasets/ORG/NAME"
        ) from None


def address(place: HfUri) -> str:
    """Address of a place, as `parse_hub` reads it.

    >>> address(parse_hub("hf://models/org/name@v1"))
    'hf://org/name@v1'
    """
    return place.to_uri().replace("hf://models/", "hf://")


def list_files(place: HfUri, kind: type[PacklineError] = HubError) -> dict[str, RepoFile]:
    """All files of a revision, or below a folder of it, by path.

    Args:
        kind: class of the errors.

    Raises:
        HubError: no such repository, revision or folder, no access, no connection; or a name that is
            absolute, leads out of the repository, or cannot be kept on a disk.
    """
    from huggingface_hub import HfApi, RepoFile

    with hub_errors(address(place), kind):
        entries = HfApi().list_repo_tree(
            place.id,
            place.path_in_repo or None,
            recursive=True,
            revision=place.revision,
            repo_type=place.type,
        )
        files = {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}
    for path in files:
        for part in path.split("/"):
            long = len(part.encode("utf-8", "replace")) > LONGEST_NAME
            if long or part in ("", ".", "..") or re.search("[\0\ud800-\udfff]", part):
                raise kind(
                    f"{address(place)} has a file that cannot be kept under its name: {path[:100]!a}",
                    hint="rename it there; nothing of this revision was read",
                )
    return files


@contextmanager
def hub_errors(what: str, kind: type[PacklineError] = HubError) -> Iterator[None]:
    """Turn the errors of the hub's client in a block into packline's.

    Args:
        what: the place that the block reads or writes.
        kind: class of the errors.

    >>> with hub_errors("hf://datasets/org/name"):
    ...     raise OSError("no route")
    Traceback (most recent call last):
    packline.errors.HubError: hf://datasets/org/name: no route
    """
    try:
        yield
    except PacklineError:
        raise
    except Exception as error:
        message, hint, passes = _explain(error, what)
        raise (HubBusy if passes and kind is HubError else kind)(message, hint=hint) from error


def _explain(error: Exception, what: str) -> tuple[str, str, bool]:
    """Message and hint for an error, and True if it may pass."""
    from huggingface_hub import constants
    from huggingface_hub import errors as known

    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and len(chain) < 10:
        chain.append(cause)
    answers = (getattr(getattr(each, "response", None), "status_code", None) for each in chain)
    status = next((answer for answer in answers if isinstance(answer, int)), None)
    network = any(type(each).__module__.partition(".")[0] in _NETWORK for each in chain)
    line = next(
        (text for each in chain if (text := str(each).strip().partition("\n")[0])), type(error).__name__
    )
    again = "run the same command again later; nothing is transferred twice"

    def found(*kinds: type[BaseException]) -> bool:
        return any(isinstance(each, kinds) for each in chain)

    absent = found(known.LocalEntryNotFoundError)
    if found(known.OfflineModeIsEnabled) or (absent and constants.HF_HUB_OFFLINE):
        hint = "unset HF_HUB_OFFLINE, or fetch it once with a connection"
        return f"HF_HUB_OFFLINE is set, and {what} is not in the cache of the hub's client", hint, False
    if found(known.RevisionNotFoundError):
        return f"cannot find {what}: no such revision", "its page lists branches and commits", False
    if found(known.GatedRepoError):
        return f"{what} is gated", "accept its terms on its page, and set HF_TOKEN", False
    if found(known.RepositoryNotFoundError):
        hint = "check the name; a private one needs HF_TOKEN"
        return f"cannot find {what}: no such repository, or a private one", hint, False
    if found(known.EntryNotFoundError) and not absent:
        return f"cannot find {what}", "check the path in the repository", False
    if status in (401, 403):
        meaning = "is not valid" if status == 401 else "does not permit this"
        hint = "`hf auth whoami` shows whose it is; to push it must be able to write for that name"
        return f"the hub refuses access to {what} ({status}): the token {meaning}", hint, False
    if status == 412:
        return f"{what}: something else committed to the branch meanwhile", again, True
    if status in _TRANSIENT:
        return f"the hub cannot do it now ({status}): {what}", again, True
    if status is None and network:
        hint = f"check the connection and HF_ENDPOINT, and {again}"
        return f"cannot reach the hub at {constants.ENDPOINT} for {what}: {line}", hint, True
    return (f"{what}: {line}" if status is None else f"the hub refuses {what} ({status}): {line}"), "", False


COMMIT = re.compile("[0-9a-f]{40}")
ATTEMPTS = 2


class HubPath(NamedTuple):
    """Address of files in a dataset."""

    dataset: str
    revision: str
    path: str

    def __str__(self) -> str:
        return f"hf://datasets/{self.dataset}@{quote(self.revision, safe='')}/{self.path}"


def parse_hub_uri(uri: str) -> HubPath:
    """Parts of a URI.

    Raises:
        InputError: not the URI of a dataset, or one with a query, which may have a token.

    >>> parse_hub_uri("hf://datasets/org/name@refs/convert/parquet/a/*.parquet")
    HubPath(dataset='org/name', revision='refs/convert/parquet', path='a/*.parquet')
    >>> parse_hub_uri("hf://datasets/org/name").revision
    'main'
    """
    place = parse_hub(uri, InputError)
    if place.type != "dataset":
        raise InputError(
            f"{uri} is not a dataset of the hub",
            hint="write hf://datasets/ORG/NAME/PATH or hf://datasets/ORG/NAME@REVISION/PATH",
        )
    slash = "/" if place.path_in_repo and uri.endswith("/") else ""
    return HubPath(place.id, place.revision or "main", place.path_in_repo + slash)


def pin(uri: str) -> str:
    """The same URI with the commit that its revision is now.

    Raises:
        InputError: no such dataset or revision, no access, or the hub cannot be reached.
    """
    place = parse_hub_uri(uri)
    if COMMIT.fullmatch(place.revision):
        return str(place)
    if is_offline():
        if (cached := _cached(place)) is None:
            raise _offline(place)
        commit = cached.parents[place.path.count("/")].name  # the cache has one folder per commit
        return str(place._replace(revision=commit))

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
        if (path := _cached(place)) is None:
            raise _offline(place)
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(stop - start), path.stat().st_size


def is_offline() -> bool:
    """True if the hub may not be used (`HF_HUB_OFFLINE`)."""
    from huggingface_hub import constants

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


FIRST = "manifest.json"
"""File by which a revision is looked up in the cache, if the hub may not be used."""
WHOLE = 1 << 50
_NUMBERED = re.compile(r"\d{4}")


def local_name(path: str) -> str:
    """Name below a store of a path in a repository: without the numbered folder of a large one.

    >>> local_name("receipts/0003/web-015000.json"), local_name("0000/train-a-000000.bin")
    ('receipts/web-015000.json', 'train-a-000000.bin')
    """
    *folders, name = path.split("/")
    return "/".join([*(folder for folder in folders if not _NUMBERED.fullmatch(folder)), name])


def pinned(place: str) -> str:
    """The address of a repository at the commit that its revision is now.

    Raises:
        StoreError: no such repository or revision, no access, or no connection.

    >>> pinned(f"hf://datasets/org/name@{'0' * 40}/")[-6:]
    '000000'
    """
    with _as_store_errors():
        return pin(f"{place.rstrip('/')}/{FIRST}").removesuffix(f"/{FIRST}")


def read_only(place: str) -> StoreError:
    """Error for a result that is to be written to the hub."""
    return StoreError(
        f"cannot write to {place}: the hub is not a place of results",
        hint="build into a folder or an object store, then: packline push STORE hf://datasets/ORG/NAME",
    )


class HubFolder:
    """See the module.

    Args:
        place: `hf://datasets/ORG/NAME@REVISION`.
    """

    def __init__(self, place: str) -> None:
        self.place, self.folder = place.rstrip("/"), None

    @cached_property
    def _repository(self) -> HubPath:
        return parse_hub_uri(f"{pinned(self.place)}/")

    @cached_property
    def _tree(self) -> dict[str, tuple[str, FileFacts]]:
        """Path in the repository and facts of each file, by its local name."""
        files = list_files(parse_hub(str(self._repository).rstrip("/"), StoreError), StoreError)
        names = [(local_name(path), file) for path, file in files.items()]
        return {
            name: (file.path, FileFacts(name, file.size, file.blob_id))
            for name, file in sorted(names, key=itemgetter(0))
        }

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """See `Storage.read`."""
        stop = WHOLE if stop is None else stop
        if stop <= start:
            return b""
        known = self.__dict__.get("_tree")
        if known is None:
            try:
                return self._read(name, start, stop)
            except FileNotFoundError:
                known = self._tree
        if name not in known:
            raise FileNotFoundError(2, "no such file", f"{self.place}/{name}")
        return self._read(known[name][0], start, stop)

    def _read(self, path: str, start: int, stop: int) -> bytes:
        place = self._repository._replace(path=path)
        with _as_store_errors():
            return HubInputs()._read(str(place), place, start, stop)[0]

    def read_parts(self, name: str, start: int, stop: int) -> Iterator[bytes]:
        """See `Storage.read_parts`."""
        yield self.read(name, start, stop)

    def facts(self, name: str) -> FileFacts | None:
        """See `Storage.facts`."""
        found = self._tree.get(name)
        return None if found is None else found[1]

    def walk(self, folder: str = "") -> Iterator[FileFacts]:
        """See `Storage.walk`."""
        prefix = f"{folder}/" if folder else ""
        yield from (facts for name, (_, facts) in self._tree.items() if name.startswith(prefix))

    def list(self, folder: str) -> Sequence[str]:
        """See `Storage.list`."""
        start = len(folder) + 1 if folder else 0
        names = (facts.name for facts in self.walk(folder))
        return [name for name in names if "/" not in name[start:] and not name[start:].startswith(".")]

    def put_new(self, name: str, data: bytes) -> bool:
        """Refused: a repository is changed by commits, not file by file."""
        raise read_only(self.place)

    def put_files(self, files: Mapping[str, Path]) -> None:
        """Refused, as `put_new`."""
        raise read_only(self.place)

    def delete(self, names: Iterable[str]) -> None:
        """Refused, as `put_new`."""
        raise read_only(self.place)


@contextmanager
def _as_store_errors() -> Iterator[None]:
    """Turn the errors of reading inputs into those of a storage."""
    try:
        yield
    except InputError as error:
        if type(error.__cause__).__name__.endswith("EntryNotFoundError"):
            raise FileNotFoundError(2, "no such file", error.message) from None
        raise StoreError(error.message, hint=error.hint) from error
    except OSError as error:
        raise StoreError(
            f"cannot read the cache of the hub: {error}", hint="check its folder, HF_HOME"
        ) from error
