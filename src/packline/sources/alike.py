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
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from packline.errors import InputError
from packline.sources.listing import map_files
from packline.storage.inputs import read_fully
from packline.storage.places import is_remote
from packline.storage.remote_files import ListedFile

if TYPE_CHECKING:
    from packline.recipe import Source
    from packline.sources.files import InputFile

LOOKED = 1000
"""Files of an ending that are looked at."""
STEP = 0x9E3779B1
ENDINGS = (".txt", ".jsonl", ".ndjson", ".jsonlines", ".json")
PACKED = (".gz", ".gzip", ".zst", ".zstd")
Describe = Callable[[ListedFile], Any]
"""Describes a file by its beginning: an `InputFile`, or the error of one that cannot be used."""


def describe_alike(
    listed: Sequence[ListedFile], describe: Describe, name_of: Callable[[str], str]
) -> Iterator[Any]:
    """Description of each file, in order; of many remote files of a kind few are looked at.

    Args:
        describe: is called in threads.
        name_of: name of a file by its path.
    """
    kinds = _kinds(listed, describe)
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


def _kinds(listed: Sequence[ListedFile], describe: Describe) -> dict[str, InputFile]:
    """A file of each ending whose files agree, as far as they were looked at."""
    from packline.sources.files import InputFile

    groups: dict[str, list[ListedFile]] = {}
    for file in listed:
        if ending := _ending(file):
            groups.setdefault(ending, []).append(file)
    found: dict[str, InputFile] = {}
    for ending, files in groups.items():
        if len(files) <= LOOKED:
            continue
        # Not at equal distances: every tenth file may be of another kind.
        width = len(files) // LOOKED
        chosen = [files[number * width + number * STEP % width] for number in range(LOOKED)]
        described = list(map_files(describe, chosen))
        first = described[0]
        if isinstance(first, InputFile) and all(
            isinstance(one, InputFile) and _kind(one) == _kind(first) for one in described
        ):
            found[ending] = msgspec.structs.replace(first, is_assumed=True, not_utf8=False)
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


def _kind(file: InputFile) -> tuple[Any, ...]:
    return file.format, file.compression, file.text, file.id


def check_assumed(file: InputFile, source: Source, raw: BinaryIO) -> None:
    """Compare a file with its plan, if that was made without looking at it; the position stays.

    Args:
        raw: the file, open at its beginning.

    Raises:
        InputError: it is of another kind.
    """
    if not file.is_assumed:
        return
    from packline.sources.files import HEAD_BYTES, describe_head

    head = read_fully(raw, HEAD_BYTES)
    raw.seek(0)
    found = describe_head(file, head, lambda: BytesIO(head), source)
    if _kind(found) != _kind(file):
        raise InputError(
            f"{file.path} is unlike other files of its kind: expected {_words(file)}, found {_words(found)}",
            hint="put such files into a source of their own, or name the field of the text with --text",
        )


def _words(file: InputFile) -> str:
    text = f" with the text in {file.text!r}" if file.text else ""
    return f"{file.compression} {file.format}{text}".strip()
