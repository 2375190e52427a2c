"""Many remote files of a kind: a few are looked at, and the others are planned as these.

    listing     1,000 files a request, with size and state
    looked at   1,000 files spread over those with the same ending, a request each
    planned     all others of the ending, if those that were looked at agree; else each is looked at
    read        each is compared with its plan before its first record: bytes never depend on a guess

A million small files are so planned in the time of their listing. Parquet is always looked at, since its
footer decides how it is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from packline.sources.listing import map_files
from packline.storage.inputs import ListedFile
from packline.storage.places import is_remote

LOOKED = 1000
"""Files of an ending that are looked at."""
STEP = 0x9E3779B1
ENDINGS = (".txt", ".jsonl", ".ndjson", ".jsonlines", ".json")
PACKED = (".gz", ".gzip", ".zst", ".zstd")
F = TypeVar("F")
Describe = Callable[[ListedFile], Any]
"""Describes a file by its beginning: an `InputFile`, or the error of one that cannot be used."""


def describe_alike(
    listed: Sequence[ListedFile],
    describe: Describe,
    name_of: Callable[[str], str],
    *,
    kind_of: Callable[[Any], object | None],
) -> Iterator[Any]:
    """Description of each file, in order; of many remote files of a kind few are looked at.

    Args:
        describe: is called in threads.
        name_of: name of a file by its path.
        kind_of: what files of a kind share, by a description; None for an error.
    """
    if not (kinds := _kinds(listed, describe, kind_of)):
        yield from map_files(describe, listed)
        return
    unknown = [file for file in listed if _ending(file) not in kinds]
    looked = map_files(describe, unknown)
    for file in listed:
        like = kinds.get(_ending(file))
        if like is None or file.state is None:
            yield next(looked)
        else:
            size, modified = file.state.size, file.state.modified
            yield msgspec.structs.replace(
                like, name=name_of(file.path), path=file.path, size=size, modified=modified
            )


def spread(files: Sequence[F], most: int) -> list[F]:
    """At most so many files, from everywhere; not at equal distances, as every tenth may be of another kind.

    >>> spread("abcdefghij", 4), spread("abc", 4)
    (['a', 'd', 'e', 'h'], ['a', 'b', 'c'])
    """
    width = max(len(files) // most, 1)
    return [files[number * width + number * STEP % width] for number in range(min(most, len(files)))]


def _kinds(
    listed: Sequence[ListedFile], describe: Describe, kind_of: Callable[[Any], object | None]
) -> dict[str, Any]:
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
