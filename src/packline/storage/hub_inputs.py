"""Datasets of the Hugging Face hub, read by ranges from one commit: as inputs, and as the folder of a store.

A revision is resolved to its commit when inputs are planned, so that every unit reads the same files, however
the dataset changes. Folders are listed by 1,000 files a request, and files are read through their address
(`resolve`), which needs no request to the hub's API. The client repeats what fails; it waits where the hub
limits requests. `HF_TOKEN` and `HF_ENDPOINT` apply; with `HF_HUB_OFFLINE` nothing is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from packline.errors import USER, HubError, PacklineError, RecipeError, StoreError
from packline.storage.results import FileFacts, Storage

if TYPE_CHECKING:
    from huggingface_hub import HfUri, RepoFile


LONGEST_NAME = 255
"""Bytes of a file's name on a local disk."""
_QUERY = re.compile("[?#][^/=]+=")
_TRANSIENT = (408, 429, 500, 502, 503, 504)
_NETWORK = ("httpx2", "httpcore2", "httpx", "httpcore")


class HubBusy(HubError):
    """The hub could not do it now, or something else committed meanwhile: the same call may succeed later."""


def parse_hub(text: str, kind: type[PacklineError] = RecipeError) -> HfUri:
    """Parse an address: `hf://datasets/ORG/NAME[@REVISION][/PATH]`, or `hf://ORG/NAME...` for a model.

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
        said = "" if USER.search(text) else f": {error.msg}"  # which would repeat a password
        raise kind(f"{text} is no address on the hub{said}", hint="write hf://datasets/ORG/NAME") from None


def address(place: HfUri) -> str:
    """Address of a place, as `parse_hub` reads it."""
    return place.to_uri().replace("hf://models/", "hf://")


def list_files(place: HfUri, kind: type[PacklineError] = HubError) -> dict[str, RepoFile]:
    """All files of a revision, or below a folder of it, by path."""
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
    """Turn the errors of the hub's client in a block into packline's."""
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
        hint = "unset it; or hf download ORG/NAME --repo-type dataset --local-dir DATA, and give DATA"
        return f"HF_HUB_OFFLINE is set, and {what} would be read from the hub", hint, False
    for kind, message, hint in (
        (
            known.RevisionNotFoundError,
            "cannot find {}: no such revision",
            "its page lists them",
        ),
        (known.GatedRepoError, "{} is gated", "accept its terms on its page, and set HF_TOKEN"),
        (
            known.RepositoryNotFoundError,
            "cannot find {}: no such repository, or a private one",
            "check the name; a private one needs HF_TOKEN",
        ),
        (known.EntryNotFoundError, "cannot find {}", "check the path in the repository"),
    ):
        if found(kind) and not absent:
            return message.format(what), hint, False
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
ATTEMPTS = 3
"""Requests for a range of which only a part arrives."""


def parse_dataset(uri: str) -> HfUri:
    """Parse the address of files in a dataset; its revision is `main` by default."""
    place = parse_hub(uri, StoreError)
    if place.type != "dataset":
        raise StoreError(
            f"{uri} is not a dataset of the hub",
            hint="write hf://datasets/ORG/NAME/PATH or hf://datasets/ORG/NAME@REVISION/PATH",
        )
    return replace(place, revision=place.revision or "main")


def pin(uri: str) -> str:
    """The same address with the commit that its revision is now."""
    place = parse_dataset(uri)
    path = place.path_in_repo + "/" * (bool(place.path_in_repo) and uri.endswith("/"))
    commit = place.revision
    if not COMMIT.fullmatch(commit or ""):
        from huggingface_hub import HfApi

        with hub_errors(uri, StoreError):
            commit = HfApi().dataset_info(place.id, revision=commit).sha
    return f"{address(replace(place, revision=commit, path_in_repo=''))}/{path}"


def _range(place: HfUri, start: int, stop: int) -> tuple[bytes, int]:
    """Bytes of a range, fewer at the end of the file, and the size of the file."""
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

    url = hf_hub_url(place.id, place.path_in_repo, repo_type="dataset", revision=place.revision)
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


WHOLE = 1 << 50
_NUMBERED = re.compile(r"\d{4}")


def pinned(place: str) -> str:
    """Address of the repository of a store, at the commit that its revision is now."""
    return pin(place).rstrip("/")


def read_only(place: str) -> StoreError:
    """Error for a result that is to be written to the hub."""
    return StoreError(
        f"cannot write to {place}: the hub is not a place of results",
        hint="build into a folder or an object store, then: packline push STORE hf://datasets/ORG/NAME",
    )


class HubFiles(Storage):
    """Files of a dataset at one commit, as a `Storage` for reading."""

    def __init__(self, place: str) -> None:
        self.place = place.rstrip("/")

    @cached_property
    def _root(self) -> HfUri:
        return parse_dataset(pinned(self.place))

    def get(self, name: str, start: int = 0, stop: int | None = None) -> tuple[FileFacts, bytes]:
        place, stop = replace(self._root, path_in_repo=name), WHOLE if stop is None else stop
        data, size = b"", 0
        try:
            with hub_errors(address(place), StoreError):
                for _ in range(ATTEMPTS):
                    data, size = _range(place, start, stop)
                    if len(data) >= min(stop, size) - start:
                        break
        except StoreError as error:
            if type(error.__cause__).__name__.endswith("EntryNotFoundError"):
                raise FileNotFoundError(2, "no such file", address(place)) from None
            raise
        return FileFacts(name, size, str(place.revision)), data

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        return b"" if stop is not None and stop <= start else self.get(name, start, stop)[1]

    def facts(self, name: str) -> FileFacts | None:
        from huggingface_hub import HfApi, RepoFile

        place = self._root
        with hub_errors(address(replace(place, path_in_repo=name)), StoreError):
            found = HfApi().get_paths_info(place.id, [name], revision=place.revision, repo_type="dataset")
        sizes = [one.size for one in found if isinstance(one, RepoFile)]
        return FileFacts(name, sizes[0], str(place.revision)) if sizes else None

    def walk(self, folder: str = "") -> Iterator[FileFacts]:
        place = replace(self._root, path_in_repo=folder)
        for path, file in sorted(list_files(place, StoreError).items()):
            yield FileFacts(path, file.size, str(place.revision))

    def list(self, folder: str) -> Sequence[str]:
        start = len(folder) + 1 if folder else 0
        names = (facts.name for facts in self.walk(folder))
        return [name for name in names if "/" not in name[start:] and not name[start:].startswith(".")]

    def put_new(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: a repository is changed by commits, not file by file."""
        raise read_only(self.place)

    put_files = delete = put_new


def local_name(path: str) -> str:
    """Name below a store of a path in a repository: without the numbered folder of a large one.

    >>> local_name("receipts/0003/web-015000.json"), local_name("0000/train-a-000000.bin")
    ('receipts/web-015000.json', 'train-a-000000.bin')
    """
    *folders, name = path.split("/")
    return "/".join([*(folder for folder in folders if not _NUMBERED.fullmatch(folder)), name])


class HubFolder(HubFiles):
    """A store on the hub, with the names that its files have in a folder (`local_name`)."""

    @cached_property
    def _files(self) -> dict[str, FileFacts]:
        """Facts of each file in the repository, by its local name."""
        files = [(local_name(file.name), file) for file in super().walk()]
        return dict(sorted(files, key=itemgetter(0)))

    def get(self, name: str, start: int = 0, stop: int | None = None) -> tuple[FileFacts, bytes]:
        """See `ObjectFolder.get`; the repository is listed if it has no file of this name."""
        if "_files" not in self.__dict__:
            with suppress(FileNotFoundError):
                return super().get(name, start, stop)
        if name not in self._files:
            raise FileNotFoundError(2, "no such file", f"{self.place}/{name}")
        return super().get(self._files[name].name, start, stop)

    def facts(self, name: str) -> FileFacts | None:
        found = self._files.get(name)
        return None if found is None else msgspec.structs.replace(found, name=name)

    def walk(self, folder: str = "") -> Iterator[FileFacts]:
        prefix = f"{folder}/" if folder else ""
        for name, file in self._files.items():
            if name.startswith(prefix):
                yield msgspec.structs.replace(file, name=name)
