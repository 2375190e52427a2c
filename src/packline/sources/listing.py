"""Paths of the inputs of a source: files, folders, globs, URIs.

What is not a regular file (a pipe would block, `/dev/zero` never ends), circular links, and names that are
not UTF-8 are refused before anything is opened.

Of many remote files with one ending, 1,000 are looked at. If they agree, the others are planned as these, and
each is compared with its plan before its first record is read. So a million small files are planned in the
time of their listing. Parquet is always looked at, since its footer decides how it is cut.
"""

from __future__ import annotations

import glob as globbing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, TypeVar

import msgspec

from packline.errors import InputError, refuse_name
from packline.storage.inputs import MAGIC, ListedFile, expand_remote, pin_input
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


def list_inputs(inputs: Sequence[str], folder: str = "") -> list[ListedFile]:
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
    return chain.from_iterable(
        map_in_threads(lambda chunk: list(map(look, chunk)), chunks, threads, "planning")
    )


def pin_inputs(inputs: Sequence[str]) -> tuple[str, ...]:
    """Inputs with the commit of each dataset of the hub; others as they are."""
    for given in inputs:
        refuse_secrets(given)
    return tuple(pin_input(given) if given.startswith(HUB) else given for given in inputs)


def expand(given: str, folder: str = "") -> Iterator[ListedFile]:
    if not is_remote(given):
        yield from map(ListedFile, _expand_local(given, folder))
        return
    refuse_secrets(given)
    yield from expand_remote(given)


def _expand_local(name: str, folder: str) -> list[str]:
    refuse_name(given := place_in(folder, name))
    if os.path.isdir(given):
        found = _walk(given)
    elif os.path.lexists(given):
        if given.startswith(OWN_DESCRIPTORS):
            raise InputError(
                f"{given} is what this process has open, not a file that workers could read",
                hint="write it to a file first",
            )
        found = [given]
    elif globbing.has_magic(name):
        matches = globbing.glob(place_in(globbing.escape(folder), name), recursive=True)
        found = [path for path in sorted(matches) if not os.path.isdir(path)]
        folders = {os.path.dirname(path) for path in found}
        above = {one for folder in folders for one in accumulate(folder.split("/"), "{}/{}".format)}
        _refuse_circles(sorted(above, key=len))
    else:
        raise InputError(f"cannot find {given}", hint="check the path; quote a glob so that it arrives whole")
    try:
        "\n".join(found).encode("utf-8")
    except UnicodeEncodeError:
        for path in found:
            refuse_name(path)
    return found


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


def _walk(folder: str) -> list[str]:
    def failed(error: OSError) -> None:
        why = f"cannot list {error.filename}: {error.strerror}"
        raise InputError(why, hint="check its permissions") from error

    found: list[str] = []
    for parent, folders, names in os.walk(folder, onerror=failed, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        _refuse_circles(os.path.join(parent, name) for name in folders)
        found += [os.path.join(parent, name) for name in names if not name.startswith(".")]
    return sorted(found)


def _refuse_circles(folders: Iterable[str]) -> None:
    """Refuse links to a folder that they are in: a walk would not end."""
    for link in filter(os.path.islink, folders):
        target, inside = os.path.realpath(link), os.path.realpath(os.path.dirname(link))
        if f"{inside}/".startswith(f"{target}/"):
            raise InputError(
                f"{link} is a link that leads back to {target}: a folder cannot hold itself",
                hint="remove the link, or name the folders that are wanted",
            )


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
