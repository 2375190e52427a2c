"""Paths of the inputs of a source: files, folders, globs, URIs.

What is not a regular file (a pipe would block, `/dev/zero` never ends), circular links, and names that are
not UTF-8 are refused before anything is opened.

Of many remote files with one ending, 1,000 are looked at. If they agree, the others are planned as these, and
each is compared with its plan before its first record is read. So a million small files are planned in the
time of their listing. Parquet is always looked at, since its footer decides how it is cut.
"""

from __future__ import annotations

import glob as globbing
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from packline.errors import InputError, refuse_name
from packline.storage.inputs import MAGIC, ListedFile, expand_remote, pin_input, refuse_irregular
from packline.storage.places import HUB, is_remote, place_in, refuse_secrets
from packline.storage.requests import map_in_threads

T = TypeVar("T")
OWN_DESCRIPTORS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Prefixes of paths that depend on the process: another process would open something else."""

OF_STORES = ("manifest.json", "shards.parquet")
"""Files that every store has."""
CHUNK = 64
"""Number of local files that a thread describes at a time."""
LOCAL_THREADS = 16
REMOTE_THREADS = 128
FileId = tuple[int, int]
"""Device and inode: identifies a folder whatever its path."""


def list_inputs(inputs: Sequence[str], folder: str = "") -> list[ListedFile]:
    """Files of a source in order, each with its name."""
    listed: dict[str, ListedFile] = {}
    written: dict[str, str] = {}
    for given in inputs:
        before = len(place_in(folder, given)) - len(given)
        for file in expand(given, folder):
            listed[file.path], written[file.path] = file, file.path[before:]
    for path, name in written.items():
        if path.endswith(f"/{OF_STORES[0]}") and path.removesuffix(OF_STORES[0]) + OF_STORES[1] in listed:
            raise InputError(
                f"{name.removesuffix(f'/{OF_STORES[0]}')} is a store of packline: expected text",
                hint="packline merge joins stores, export writes one for a trainer, init --run a run file, "
                "view shows it; keep stores out of the folders of text",
            )
    if not listed:
        raise InputError(
            f"no files in {', '.join(inputs)}",
            hint="hidden files and empty folders are passed over; check the path or the glob",
        )
    root = names_folder(inputs, list(written.values()))
    names = (name[len(root) :].lstrip("/") if root else name for name in written.values())
    return [
        ListedFile(file.path, file.state, name) for file, name in zip(listed.values(), names, strict=True)
    ]


def map_files(look: Callable[[Any], T], files: Sequence[Any]) -> Iterator[T]:
    """Results of looking at each file, in order: remote files many at a time, local ones a few."""
    if any(is_remote(file.path) for file in files):
        return map_in_threads(look, files, REMOTE_THREADS, "planning")
    # Local files are read so fast that handing over one at a time would take longer: several at a time.
    chunks = (files[start : start + CHUNK] for start in range(0, len(files), CHUNK))
    threads = LOCAL_THREADS if len(files) > CHUNK else 1
    return itertools.chain.from_iterable(
        map_in_threads(lambda chunk: list(map(look, chunk)), chunks, threads, "planning")
    )


def pin_inputs(inputs: Sequence[str]) -> tuple[str, ...]:
    """Inputs with the commit of each dataset of the hub; others as they are."""
    for given in inputs:
        refuse_secrets(given)
    return tuple(pin_input(given) if given.startswith(HUB) else given for given in inputs)


def expand(given: str, folder: str = "") -> Iterator[ListedFile]:
    """Files of one input: itself, a folder's files, a glob's matches."""
    if not is_remote(given):
        yield from map(ListedFile, _expand_local(given, folder))
        return
    refuse_secrets(given)
    yield from expand_remote(given)


def _expand_local(name: str, folder: str) -> Iterator[str]:
    refuse_name(given := place_in(folder, name))
    if os.path.isdir(given):
        yield from _walk(given)
    elif os.path.lexists(given):
        if given.startswith(OWN_DESCRIPTORS):
            raise InputError(
                f"{given} is what this process has open, not a file that workers could read",
                hint="write it to a file first",
            )
        _refuse_no_file(given)
        yield given
    elif globbing.has_magic(name):
        matches = globbing.glob(place_in(globbing.escape(folder), name), recursive=True)
        found = [path for path in sorted(matches) if not os.path.isdir(path)]
        _refuse_names(found)
        if "**" in name:
            _refuse_circles(found)
        for path in found:
            _refuse_no_file(path)
            yield path
    else:
        raise InputError(f"cannot find {given}", hint="check the path; quote a glob so that it arrives whole")


def names_folder(inputs: Sequence[str], paths: Sequence[str]) -> str:
    """Folder that the names of a source's files are relative to: what its inputs have in common, as given.

    It does not depend on the files that are found, else a new folder of files would rename all others.
    >>> names_folder(["web"], ["web/day1/a", "web/day1/b"]), names_folder(["web/*/a*"], ["web/day1/a"])
    ('web/', 'web/')
    >>> names_folder(["web/a", "web/b"], ["web/a", "web/b"]), names_folder(["a"], ["a"])
    ('web/', '')
    """
    found, folders = set(paths), []
    for given in inputs:
        magic = MAGIC.search(given)
        if given in found:
            folders.append(given[: given.rfind("/") + 1])
        elif magic:
            folders.append(given[: given.rfind("/", 0, magic.start()) + 1])
        else:
            folders.append(given if given.endswith("/") else f"{given}/")
    root = common_folder(folders)
    return root if all(path.startswith(root) for path in paths) else common_folder(paths)


def common_folder(paths: Sequence[str]) -> str:
    """Common folder of all paths, with a slash at its end; empty if there is none.
    >>> common_folder(["a/b/x.txt", "a/b/c/y.txt"]), common_folder(["a/bb/x", "a/bc/y"]), common_folder(["x"])
    ('a/b/', 'a/', '')
    """
    first, last = min(paths), max(paths)  # what these two share, all share
    shared = next((at for at, letter in enumerate(first) if last[at] != letter), len(first))
    return first[: first.rfind("/", 0, shared) + 1]


def _walk(folder: str) -> Iterator[str]:
    found: list[str] = []
    waiting: list[tuple[str, dict[FileId, str]]] = [(folder, {_file_id(folder): folder})]
    while waiting:
        parent, above = waiting.pop()
        try:
            with os.scandir(parent) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_file():
                        found.append(entry.path)
                    elif entry.is_dir():
                        inner = _file_id(entry.path)
                        if inner in above:
                            raise _circle(entry.path, above[inner])
                        waiting.append((entry.path, {**above, inner: entry.path}))
                    else:
                        _refuse_no_file(entry.path)
                        found.append(entry.path)
        except OSError as error:
            if isinstance(error, InputError):
                raise
            why = error.strerror or error
            raise InputError(
                f"cannot list {error.filename or parent}: {why}", hint="check its permissions"
            ) from error
    found.sort()
    _refuse_names(found)
    yield from found


def _file_id(path: str) -> FileId:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _circle(path: str, above: str) -> InputError:
    return InputError(
        f"{path} is a link that leads back to {above}: a folder cannot hold itself",
        hint="remove the link, or name the folders that are wanted",
    )


def _refuse_circles(paths: list[str]) -> None:
    """Refuse circular links among the matches of a glob, which follows a circle about forty times."""
    known: dict[str, FileId] = {}
    for folder in sorted({os.path.dirname(path) for path in paths}, key=len):
        above: dict[FileId, str] = {}
        inner = ""
        for part in folder.split("/"):
            inner += f"{part}/" if part or not inner else ""
            here = known.get(inner) or known.setdefault(inner, _file_id(inner))
            if part == "..":
                above = {}
            elif here in above and os.path.islink(inner[:-1]):
                raise _circle(inner[:-1], above[here])
            above[here] = inner[:-1]


def _refuse_no_file(path: str) -> None:
    """Refuse a pipe or a device; missing and inaccessible files are reported when they are opened."""
    try:
        status = os.stat(path)
    except OSError:
        return
    refuse_irregular(path, status.st_mode)


def _refuse_names(paths: Iterable[str]) -> None:
    try:
        "\n".join(paths).encode("utf-8")
    except UnicodeEncodeError:
        for path in paths:
            refuse_name(path)


LOOKED = 1000
"""Files of an ending that are looked at."""
STEP = 0x9E3779B1
JSON_LINES = (".jsonl", ".ndjson", ".jsonlines")
"""Ends of the names of files with a JSON object per line."""
ENDINGS = (".txt", *JSON_LINES, ".json")
PACKED = (".gz", ".gzip", ".zst", ".zstd")
Chosen = TypeVar("Chosen")
Describe = Callable[[ListedFile], Any]
"""Describes a file by its beginning: an `InputFile`, or the error of one that cannot be used."""
KindOf = Callable[[Any], object | None]
"""Value that files of a kind share, by a description; None for an error."""


def describe_alike(listed: Sequence[ListedFile], describe: Describe, kind_of: KindOf) -> Iterator[Any]:
    """Description of each file, in order; of many remote files of a kind few are looked at."""
    kinds = _kinds(listed, describe, kind_of)
    looked = map_files(describe, [file for file in listed if _ending(file) not in kinds])
    for file in listed:
        like = kinds.get(_ending(file))
        if like is None or file.state is None:
            yield next(looked)
        else:
            size, modified = file.state.size, file.state.modified
            yield msgspec.structs.replace(like, name=file.name, path=file.path, size=size, modified=modified)


def spread(files: Sequence[Chosen], most: int) -> list[Chosen]:
    """At most `most` files, from everywhere; not at equal distances, as every tenth may be of another kind.
    >>> spread("abcdefghij", 4), spread("abc", 4)
    (['a', 'd', 'e', 'h'], ['a', 'b', 'c'])
    """
    width = max(len(files) // most, 1)
    return [files[number * width + number * STEP % width] for number in range(min(most, len(files)))]


def _kinds(listed: Sequence[ListedFile], describe: Describe, kind_of: KindOf) -> dict[str, Any]:
    """A file of each ending whose files agree, as far as they were looked at."""
    groups: dict[str, list[ListedFile]] = {}
    for file in listed:
        if file.state is not None and (ending := _ending(file)):
            groups.setdefault(ending, []).append(file)
    found: dict[str, Any] = {}
    for ending, files in groups.items():
        if len(files) <= LOOKED:
            continue
        described = list(map_files(describe, spread(files, LOOKED)))
        first = described[0]
        kind = kind_of(first)
        if kind is not None and all(kind_of(one) == kind for one in described):
            found[ending] = msgspec.structs.replace(first, is_assumed=True, not_utf8="", dos_lines=False)
    return found


def _ending(file: ListedFile) -> str:
    """Ending of a remote file that may be planned as others; empty for any other file."""
    if file.state is None or not file.state.size or not is_remote(file.path):
        return ""
    name, packed = file.path.lower(), ""
    for one in PACKED:
        if name.endswith(one):
            name, packed = name.removesuffix(one), one
    ending = next((one for one in ENDINGS if name.endswith(one)), "")
    return ending and ending + packed
