"""Refuse an impossible manifest: files outside of the store, numbers out of range, a shard listed twice.

A checksum shows that a manifest is unchanged, not who wrote it. The files it names are opened and served, so
every manifest is checked when it is read. No file is opened: `verify` compares the files with the manifest.

Cost: 2 microseconds per shard.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from packline.errors import CorruptStore
from packline.recipe import SPLITS
from packline.store.index import CODES
from packline.store.manifest import RECEIPTS, REJECTS, TOKENIZER, FileEntry, Manifest

PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""Name that is one component of a path on any system, and not hidden."""
ENDING = re.compile(r"(\.[A-Za-z0-9_-]+)+")
MOST = 2**62
"""Largest number of documents or tokens of a store, so that sums and offsets in bytes are int64."""
MOST_IDS = 2**31 - 1


def check_manifest(path: Path, manifest: Manifest) -> None:
    """Check a manifest alone, without its files.

    Args:
        path: file it was read from, for the error.

    Raises:
        CorruptStore: names the first impossible value.
    """
    for what, expected, found in _problems(manifest):
        raise CorruptStore(
            f"{path}: {what}: expected {expected}, found {found}"[:500],
            hint="packline did not write this manifest; build the store again",
        )


def _problems(manifest: Manifest) -> Iterator[tuple[str, str, object]]:
    """Problems, as (description, expected, found)."""
    if manifest.dtype not in CODES:
        yield "dtype", " or ".join(CODES), repr(manifest.dtype)
    entry = manifest.tokenizer
    if not 1 <= entry.vocab_size <= MOST_IDS:
        yield "vocab_size of the tokenizer", f"1 to {MOST_IDS:,}", f"{entry.vocab_size:,}"
    for name, number in (("eod_id", entry.eod_id), ("bos_id", entry.bos_id)):
        if number is not None and not 0 <= number < entry.vocab_size:
            yield f"{name} of the tokenizer", f"0 to {entry.vocab_size - 1:,}", f"{number:,}"
    names = [shard.name for shard in manifest.shards]
    yield from _names("shard", names)
    yield from _twice("shards", names)
    if strange := {shard.split for shard in manifest.shards}.difference(SPLITS):
        yield "split of a shard", " or ".join(SPLITS), repr(min(strange))
    for what, counts in (
        ("documents", [shard.documents for shard in manifest.shards]),
        ("tokens", [shard.tokens for shard in manifest.shards]),
    ):
        if counts and (min(counts) < 0 or sum(counts) > MOST):
            wrong = min(counts) if min(counts) < 0 else max(counts)
            yield f"{what} of a shard", f"0 or more, and at most {MOST:,} in all", f"{wrong:,}"
    endings = {file.name.removeprefix(shard.name) for shard in manifest.shards for file in shard.files}
    for ending in endings:
        if not ENDING.fullmatch(ending):
            yield "a file of a shard", "the name of the shard and an ending", repr(ending)
    for folder, entries in (
        (REJECTS, manifest.rejects),
        (RECEIPTS, manifest.receipts),
        (TOKENIZER, manifest.tokenizer_files),
    ):
        yield from _files(folder, entries)
    count = len(manifest.recipe.sources)
    for given in manifest.inputs:
        if not 0 <= given.source < count:
            yield f"source of input {given.name!r}", f"0 to {count - 1}", f"{given.source:,}"


def _files(folder: str, entries: Iterable[FileEntry]) -> Iterator[tuple[str, str, object]]:
    """Check that files of a folder are in it, each once."""
    names = [entry.name for entry in entries]
    for name in names:
        if not name.startswith(f"{folder}/"):
            yield f"a file of {folder}/", "a name that begins with it", repr(name)
    yield from _names(f"file of {folder}/", [name.removeprefix(f"{folder}/") for name in names])
    yield from _twice(f"files of {folder}/", names)


def _twice(what: str, names: Sequence[str]) -> Iterator[tuple[str, str, object]]:
    if len(set(names)) != len(names):
        yield (
            what,
            "each once",
            f"{next(name for name, count in Counter(names).items() if count > 1)!r} twice",
        )


def _names(what: str, names: Iterable[str]) -> Iterator[tuple[str, str, object]]:
    match = PLAIN.fullmatch
    for name in names:
        if not match(name):
            yield f"name of a {what}", "one plain component of a path", repr(name)
