"""Files of a data set of another project: which there are, what they are called, and the split of each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import msgspec

from packline.errors import InputError
from packline.formats.export_folder import read_record
from packline.formats.types import DatasetFile
from packline.recipe import SPLITS, Split
from packline.storage.inputs import refuse_irregular
from packline.store.report import Findings

SPLIT_WORDS: dict[str, Split] = {
    "train": "train",
    "test": "test",
    **dict.fromkeys(("val", "valid", "validation", "eval", "dev"), "val"),
}
"""Words in names of files and folders, and the split that they mean."""
SHARD_ORDER: tuple[Split, ...] = ("val", "test", "train")
"""Order in which shards are numbered: train last, because it may grow."""


class FileList:
    """Files of a data set, numbered in the order of entry; names are relative to its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[DatasetFile] = []

    def add(self, path: Path) -> int:
        inside = path.is_relative_to(self.folder)
        name = path.relative_to(self.folder).as_posix() if inside else path.as_posix()
        self.files.append(DatasetFile(name, str(path), path.stat().st_size))
        return len(self.files) - 1

    def add_if_there(self, path: Path) -> int | None:
        """Enter a file that may be missing; return its number or None."""
        return self.add(path) if path.is_file() else None


def paths_of(path: Path, endings: str | tuple[str, ...], *, below: bool = False) -> list[Path]:
    """A file, or the files with these suffixes in a folder or anywhere below it, sorted."""
    if not path.is_dir():
        return [path] if path.is_file() else []
    found = path.rglob("*") if below else path.iterdir()
    return sorted(one for one in found if one.name.endswith(endings) and one.is_file())


def find_files(
    path: Path, endings: str | tuple[str, ...], what: str, *, below: bool = False
) -> tuple[FileList, list[Path]]:
    """An empty list for the folder, and its files (`paths_of`), called `what` in the error for none."""
    found = paths_of(path, endings, below=below)
    if not found:
        raise InputError(
            f"{path}: expected {what}, found {'none' if path.is_dir() else 'nothing'}",
            hint="name the folder that has the files in it, or one file",
        )
    return FileList(path if path.is_dir() else path.parent), found


def numbered_files(
    path: Path, name: re.Pattern[str], what: str = ""
) -> tuple[list[DatasetFile], list[re.Match[str]]]:
    """A file, or the files of a folder with such a name, by `prefix`, `split` and `number`.

    Args:
        what: description of the files, for the error where there is none; empty for no error.
    """

    def place(match: re.Match[str]) -> tuple[str, int, int]:
        parts = {"prefix": "", "split": "train"} | match.groupdict()
        return parts["prefix"], SHARD_ORDER.index(parts["split"]), int(parts["number"])

    folder = path if path.is_dir() else path.parent
    names = [one.name for one in path.iterdir()] if path.is_dir() else [path.name]
    found = [match for one in names if (match := name.fullmatch(one)) and (folder / one).is_file()]
    if what and not found:
        raise InputError(
            f"{path}: expected {what}, found none",
            hint="name the folder that has the files in it, or one file",
        )
    found.sort(key=place)
    return [DatasetFile.of(folder / match[0], folder) for match in found], found


def first_bytes(path: Path, endings: tuple[str, ...], count: int) -> list[tuple[Path, bytes]]:
    """The first `count` bytes of each readable file, for recognising a format."""
    found = []
    for one in paths_of(path, endings):
        try:
            with one.open("rb") as file:
                found.append((one, file.read(count)))
        except OSError:
            continue
    return found


def read_object(path: Path) -> dict[str, Any]:
    try:
        refuse_irregular(str(path), path.stat().st_mode)  # reading a pipe would wait for its writer
        content = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected an object, found {type(content).__name__}")
    return content


def read_facts(path: Path, findings: Findings) -> dict[str, Any]:
    """The object in a JSON file of metadata; empty, and a problem in `findings`, if there is none."""
    try:
        return read_object(path)
    except InputError as error:
        findings.add(path.name, error.message.removeprefix(f"{path} is ").removeprefix(f"{path}: "))
        return {}


def split_of_words(words: Iterable[str]) -> Split:
    """Split from words of a name: that of the first word that names one, else `train`."""
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), "train")


def split_of_name(name: str) -> Split:
    """Split from a file's name: `val` or `test` if one of its words means that, else `train`.

    >>> [split_of_name(name) for name in ("fineweb_val_000000.bin", "en-test.0.npy", "evaluators_1.bin")]
    ['val', 'test', 'train']
    """
    return split_of_words(re.split(r"[^a-z]+", Path(name).name.lower()))


def split_of_path(name: str) -> Split:
    """Split from the path of a file: `val` or `test` if a word of its name or a folder means that.

    >>> split_of_path("data/test-00000-of-00001.parquet"), split_of_path("validation/data.arrow")
    ('test', 'val')
    """
    found = (split_of_name(part) for part in PurePath(name).parts)
    return next((split for split in found if split != "train"), "train")


def split_of_folder(name: str, usual: str = "train") -> str:
    """Split from the folders on the path to a file: `val` or `test` if a folder has that name, else `usual`.

    >>> split_of_folder("val/00000_unshuffled.ds"), split_of_folder("validation-set/part-0-00000.npy")
    ('val', 'train')
    """
    split = split_of_words(part.lower() for part in PurePosixPath(name).parts[:-1])
    return usual if split == "train" else split


def exported_split(path: Path) -> str:
    """Split of all files of a data set, if it was exported as the only one; else `train`."""
    record = read_record(path if path.is_dir() else path.parent)
    split = str(record.settings.get("split")) if record is not None else ""
    return split if split in SPLITS else "train"
