"""Shards cut at a number of tokens, regardless of documents: common parts of llm.c and build-nanogpt.

    documents of a split    | a a a | b b b b b | c c | d ...
    shards of 4 tokens      [ a a a   b ][ b b b b ][ c c   d ...

Also common parts of reading bare token files: finding the files, and the split from a file's name. A trainer
reads the files of a split in the order of their names, so a document continues in the next file. The last
shard of a split is shorter, or left out on request.

Each format adds its own headers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from packline.errors import InputError, RecipeError
from packline.formats.format import Options
from packline.formats.layouts.token_files import ScannedReader, TokenFile
from packline.formats.types import DatasetFile, ExportPart, ExportPlan, NotPreserved
from packline.recipe import Split

if TYPE_CHECKING:
    from packline.formats.document_view import DocumentStream, DocumentView
    from packline.formats.export_record import ExportRecord, Target
    from packline.store.report import Findings
    from packline.store.writer import HashedFile

HELD_OUT: dict[str, Split] = {
    **dict.fromkeys(("val", "valid", "validation", "eval", "dev"), "val"),
    "test": "test",
}
"""Words in names of files that are not for training, and the split that they mean."""
SHARD_ORDER: tuple[Split, ...] = ("val", "test", "train")
"""Order in which shards are numbered: train last, because it may grow."""
MOST_TOKENS = 2**31 - 1
"""Most tokens per shard, since its header counts them in an int32."""

USUAL_SHARD = 100_000_000
"""Most tokens per shard, unless a number is given."""
USUAL_BATCH = 1 << 19
"""Tokens per step, over all ranks, of the GPT-2 runs of llm.c and build-nanogpt."""

StreamEdges = Literal["bos", "eod", "both"]
"""Edges of documents that are separated by a token only."""


class ShardOptions(Options, frozen=True):
    """Options of shards with a fixed number of tokens."""

    prefix: str = ""
    """Prefix of file names, before `_train_000001`."""
    shard_tokens: int | None = None
    """Tokens per shard; none: shards of equal size, of at most 100 million."""
    numbering: Literal["shared", "own"] = "shared"
    """`shared`: val first, train continues the numbers; `own`: each split from 0."""
    last_shard: Literal["keep", "drop"] = "keep"
    """The last shard of train, if it is not full; dropped tokens are reported."""
    edges: StreamEdges = "bos"
    """Boundary tokens of documents."""
    marker: int | None = None
    """Reading: the id that separates documents; taken from the tokenizer unless given."""


def plan_shards(
    view: DocumentView,
    options: ShardOptions,
    format: str,
    file_bytes: Callable[[int], int],
    least_train: int = 1,
) -> ExportPlan:
    """One part per shard; `start` and `stop` are tokens of its split's stream.

    Args:
        file_bytes: size of a file, given its number of tokens.
        least_train: shards of train that its trainers need; without a given size, they are made if each has
            more tokens than a batch.

    Raises:
        RecipeError: an invalid shard size, or one for which train does not fill a single shard although the
            last one is dropped.
    """
    given = options.shard_tokens
    if given is not None and not 1 <= given <= MOST_TOKENS:
        raise RecipeError(f"{format}: expected shard_tokens from 1 to {MOST_TOKENS:,}, found {given:,}")
    parts: list[ExportPart] = []
    lost = list(view.not_preserved(format))
    for split in sorted(view.splits, key=SHARD_ORDER.index):
        tokens = view.stream(split).tokens
        size = given or _equal_size(tokens, least_train if split == "train" else 1)
        if (
            given is not None
            and options.last_shard == "drop"
            and split == "train"
            and (tail := tokens % size)
        ):
            if tokens < size:
                raise RecipeError(
                    f"{format}: train has {tokens:,} tokens: expected at least a shard of {size:,}, "
                    "because the last one is dropped",
                    hint="set last_shard=keep, or shard_tokens smaller",
                )
            lost.append(NotPreserved("tail", tail, "tokens", "the last shard of train is not full"))
            tokens -= tail
        first = len(parts) if options.numbering == "shared" else 0
        for number, start in enumerate(range(0, tokens, size), first):
            name = f"{shard_prefix(options.prefix, split)}{number:06d}"
            parts.append(ExportPart(name, split, number, start, min(start + size, tokens)))
    return ExportPlan(
        tuple(parts),
        sum(file_bytes(part.stop - part.start) for part in parts),
        lost=tuple(lost),
        warnings=_short_shards(parts),
    )


def _equal_size(tokens: int, least: int) -> int:
    """Tokens per shard for as few shards of equal size as possible, so that no last one is short.

    >>> _equal_size(250_000_000, 1), _equal_size(2_000_000, 2), _equal_size(1000, 2)
    (83333334, 1000000, 1000)
    """
    count = -(-tokens // USUAL_SHARD)
    if tokens > least * (USUAL_BATCH + 1):
        count = max(count, least)
    return -(-tokens // max(count, 1)) or 1


def _short_shards(parts: list[ExportPart]) -> tuple[str, ...]:
    """A warning if the last shard of train may be smaller than a batch."""
    train = [part for part in parts if part.split == "train"]
    tokens = train[-1].stop - train[-1].start if len(train) > 1 else USUAL_BATCH + 1
    if tokens > USUAL_BATCH:
        return ()
    return (
        f"the last shard of train has {tokens:,} tokens: llm.c and build-nanogpt stop at a shard with fewer "
        "than B * T * ranks + 1; --set last_shard=drop leaves it out, and without shard_tokens all shards "
        "have the same size",
    )


def shard_prefix(prefix: str, split: str) -> str:
    """Name of the shards of a split, before the number."""
    return f"{prefix}_{split}_" if prefix else f"{split}_"


def shard_pattern(out: str, record: ExportRecord, options: ShardOptions, split: str, ending: str) -> str:
    """Pattern of the shards of a split in an export at `out`; empty if there are none."""
    name = shard_prefix(options.prefix, split)
    there = any(entry.name.startswith(name) for entry in record.files)
    return f"{out}/{name}*{ending}" if there else ""


def missing_shards(ending: str, trainer: str) -> Mapping[str, str]:
    """Files that are missing for a trainer that opens shards of train and of val, by split.

    >>> missing_shards(".npy", "build-nanogpt")["val"]
    'no *_val_*.npy: build-nanogpt opens one and stops without'
    """
    does = "open one and stop" if " and " in trainer else "opens one and stops"
    return MappingProxyType(
        {split: f"no *_{split}_*{ending}: {trainer} {does} without" for split in ("val", "train")}
    )


def write_tokens(
    file: HashedFile, stream: DocumentStream, start: int, stop: int, dtype: np.dtype, target: Target
) -> None:
    """Append tokens `start` to `stop` of a stream."""
    for tokens, _ in stream.tokens_between(start, stop, dtype):
        file.write(tokens)
        target.progress(len(tokens))


def files_with_suffix(path: Path, endings: tuple[str, ...], what: str) -> list[DatasetFile]:
    """A file, or the files of a folder with one of these suffixes, sorted by name.

    Args:
        what: description of the files, for the error.

    Raises:
        InputError: there is no such file.
    """
    found = list(_paths(path, endings))
    if not found:
        raise InputError(
            f"{path}: expected {what}, found {'none' if path.is_dir() else 'nothing'}",
            hint="name the folder that has the files in it, or one file",
        )
    folder = path if path.is_dir() else path.parent
    return [DatasetFile.of(one, folder) for one in found]


def open_shards(
    path: Path,
    ending: str,
    what: str,
    open_file: Callable[[list[DatasetFile], int, Findings], TokenFile | None],
    options: ShardOptions,
    findings: Findings,
) -> ScannedReader:
    """Open a data set of such shards.

    Args:
        ending, what: see `find_files`.
        open_file: reads the header of a file, by its number; None if it cannot be read.

    Raises:
        InputError: there is no such file.
    """
    files = files_with_suffix(path, (ending,), what)
    opened = [open_file(files, number, findings) for number in range(len(files))]
    sources = [source for source in opened if source is not None]
    return ScannedReader(files, sources, marker=options.marker, edges=options.edges, findings=findings)


def _paths(path: Path, endings: tuple[str, ...]) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from sorted(one for one in path.iterdir() if one.name.endswith(endings) and one.is_file())


def numbered_files(path: Path, name: re.Pattern[str]) -> tuple[Path, list[re.Match[str]]]:
    """The folder, and a file or the files in it with such a name, by `prefix`, `split` and `number`."""

    def place(match: re.Match[str]) -> tuple[str, int, int]:
        parts = {"prefix": "", "split": "train"} | match.groupdict()
        return parts["prefix"], SHARD_ORDER.index(parts["split"]), int(parts["number"])

    folder = path if path.is_dir() else path.parent
    names = [one.name for one in path.iterdir()] if path.is_dir() else [path.name]
    found = [match for one in names if (match := name.fullmatch(one)) and (folder / one).is_file()]
    return folder, sorted(found, key=place)


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        InputError: it cannot be read, or is not an object.
    """
    try:
        content = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected an object, found {type(content).__name__}")
    return content


def read_facts(path: Path, findings: Findings) -> dict[str, Any]:
    """The object in a JSON file beside the tokens; empty, and a problem in `findings`, if there is none."""
    try:
        return read_object(path)
    except InputError as error:
        findings.add(path.name, error.message.removeprefix(f"{path} is ").removeprefix(f"{path}: "))
        return {}


def first_bytes(path: Path, endings: tuple[str, ...], count: int) -> list[tuple[Path, bytes]]:
    """The first `count` bytes of each file that has any, for recognising a format."""
    found = []
    for one in _paths(path, endings):
        try:
            with one.open("rb") as file:
                found.append((one, file.read(count)))
        except OSError:
            continue
    return found


def split_of_words(words: Iterable[str]) -> Split:
    """Split from words of a name: that of the first word that names one, else `train`.

    >>> split_of_words(["en", "test"]), split_of_words(["tested"]), split_of_words(["train", "test"])
    ('test', 'train', 'train')
    """
    named: dict[str, Split] = {**HELD_OUT, "train": "train"}
    return next((named[word] for word in words if word in named), "train")


def split_of_name(name: str) -> Split:
    """Split from a file's name: `val` or `test` if one of its words means that, else `train`.

    >>> [split_of_name(name) for name in ("fineweb_val_000000.bin", "en-test.0.npy", "evaluators_1.bin")]
    ['val', 'test', 'train']
    """
    return split_of_words(re.split(r"[^a-z]+", Path(name).name.lower()))
