"""Names of a store's files in a repository, where a folder should have at most 10,000 files.

    train-web-000000.bin ──> train-web-000000.bin          as long as the folder is small
                         └─> 0000/train-web-000000.bin     in folders of 5,000 files otherwise

Both ways are functions of the names alone, so no list of them is needed in the repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from packline.errors import StoreError
from packline.storage.hub_folder import local_name
from packline.store.tables import RECEIPTS, REJECTS, TOKENIZER

MOST_FILES = 100_000
"""Number of files that the hub recommends as the limit of a repository."""
MOST_IN_FOLDER = 5_000
_SHARD = re.compile(r"(train|val|test)-.*\.(bin|idx|docs\.parquet|loss|sums)")


def repository_paths(names: Iterable[str], most: int = MOST_IN_FOLDER) -> dict[str, str]:
    """Path in a repository of each file of a store.

    Args:
        names: names below the store.
        most: number of files in a folder above which it is divided.

    >>> repository_paths(["manifest.json", "train-a-000000.bin"])
    {'manifest.json': 'manifest.json', 'train-a-000000.bin': 'train-a-000000.bin'}
    >>> list(repository_paths(["manifest.json", "train-a-000000.bin", "train-a-000000.idx"], 1).values())
    ['manifest.json', '0000/train-a-000000.bin', '0001/train-a-000000.idx']
    """
    folders: dict[str, list[str]] = {}
    paths: dict[str, str] = {}
    for name in sorted(names):
        folder = str(PurePosixPath(name).parent)
        if folder == "." and not _SHARD.fullmatch(name):
            paths[name] = name
        else:
            folders.setdefault("" if folder == "." else f"{folder}/", []).append(name)
    for prefix, inside in folders.items():
        for place, name in enumerate(inside):
            own = f"{place // most:04d}/" if len(inside) > most else ""
            paths[name] = prefix + own + name.removeprefix(prefix)
    return paths


def belongs_to_store(path: str) -> bool:
    """True for a path that only a store's files have: what a push of another store replaces.

    >>> belongs_to_store("0000/train-a-000000.bin"), belongs_to_store("LICENSE")
    (True, False)
    """
    name = local_name(path)
    folder, _, inner = name.partition("/")
    return bool(_SHARD.fullmatch(name)) or (bool(inner) and folder in (RECEIPTS, REJECTS, TOKENIZER))


def refuse_many(count: int, what: str) -> None:
    """Refuse more files than a repository should have.

    Raises:
        StoreError: with the limit.
    """
    if count > MOST_FILES:
        raise StoreError(
            f"{what} has {count:,} files: expected at most {MOST_FILES:,}, the hub's limit for a repository",
            hint="keep it on an object store (packline cp), or push stores of single sources",
        )
