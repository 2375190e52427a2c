"""A dataset repository of the Hugging Face hub as a `Storage`, for reading: what `packline push` published.

    hf://datasets/ORG/NAME@COMMIT ──> manifest.json, train-web-000000.bin, ... by ranges of their addresses

Nothing is listed for reading a file, unless the repository keeps its files in numbered folders. Every request
is one of the hub's client, which repeats what fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from operator import itemgetter
from pathlib import Path

from packline.errors import InputError, StoreError
from packline.storage.hub_inputs import HubInputs, HubPath, list_files, parse_hub, parse_hub_uri, pin
from packline.storage.protocol import FileFacts

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
        self.place = place.rstrip("/")

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
        raise self._read_only()

    def put_files(self, files: Mapping[str, Path]) -> None:
        """Refused, as `put_new`."""
        raise self._read_only()

    def replace(self, name: str, data: bytes, expected: str | None) -> str | None:
        """Refused, as `put_new`."""
        raise self._read_only()

    def delete(self, names: Iterable[str]) -> None:
        """Refused, as `put_new`."""
        raise self._read_only()

    def sync(self, folder: str = "") -> None:
        """Nothing to wait for."""

    def _read_only(self) -> StoreError:
        return read_only(self.place)


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
