"""The Hugging Face hub as its own client sees it: addresses, listings, and its errors in packline's form.

Which token is used, and which endpoint: as everywhere with this client (`HF_TOKEN` or `hf auth login`,
`HF_ENDPOINT`, `HF_HOME`, `HF_HUB_OFFLINE`). The client repeats what fails. No token is part of a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from packline.errors import HubError, PacklineError, RecipeError

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
