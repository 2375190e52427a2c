"""Files of whole documents: one per stored shard, per split, or per given number of tokens.

    a split that is a run of stored shards, in a dtype with the same bytes
        train-000000.bin  train-000001.bin       shared: linked, or copied if linking is impossible
    with files=single
        train-000000.bin                         one file per split, whatever the shards
    any other: filtered, shuffled, with other edges, or of another width
        documents      | a a a | b b b b b | c c | d ...
        files          [ a a a   b b b b b ][ c c   d ...          cut before the document with token n * size

Shared by datatrove, OLMo and Forager, for writing and reading. Each of several splits has a folder; a single
one has none. Each format adds its own index.

Cost: sharing needs no reading and no writing; otherwise a copy at the speed of the disk. Document ends come
from the store's index, 4 bytes per document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from packline.errors import InputError
from packline.formats.export_record import read_record
from packline.formats.format import DatasetReader
from packline.formats.layouts.header_shards import split_of_words
from packline.formats.layouts.token_files import IndexedReader, LossFile, ScannedReader, TokenFile
from packline.formats.types import DatasetFile, ExportPart, Files, fitting_dtype
from packline.recipe import SPLITS

if TYPE_CHECKING:
    from packline.formats.document_view import DocumentStream, DocumentView, SharedShard
    from packline.formats.export_record import Target
    from packline.store.report import Findings

BLOCK_DOCUMENTS = 1 << 17
SHARD_TOKENS = 1 << 28
"""Tokens per file that is not a stored shard: 512 MB or 1 GB."""


def plan_files(
    view: DocumentView, dtype: np.dtype, shard_tokens: int, files: Files = "many"
) -> list[ExportPart]:
    """One part per file; `start` and `stop` are documents of its split, `number` counts from 0 in each.

    Args:
        dtype: dtype of the files; the store's bytes are shared if it has the same width.
        shard_tokens: tokens per file that is not a stored shard, up to the document that goes beyond.
        files: `single` for one file per split, which is a stored shard only if that is the only one.
    """
    parts: list[ExportPart] = []
    for split in view.splits:
        stream = view.stream(split)
        names: list[str] = []
        same = stream.shards is not None and view.store.dtype.itemsize == dtype.itemsize
        shards = [shard for shard in stream.shards or () if same and shard.documents]
        if shards and (files == "many" or len(shards) == 1):
            cuts = list(pairwise([*(shard.first_document for shard in shards), stream.documents]))
            names = [shard.name for shard in shards]
        else:
            cuts = [(0, stream.documents)] if files == "single" else stream.files(shard_tokens)
        for number, (start, stop) in enumerate(cuts):
            shard = names[number] if names else ""
            parts.append(ExportPart(f"{split}-{number:06d}", split, number, start, stop, shard))
    return parts


def shared_bytes(view: DocumentView, parts: list[ExportPart], *, with_loss: bool) -> int:
    """Number of bytes of these parts that are shared with the store."""
    endings = (".bin", ".loss") if with_loss else (".bin",)
    total = 0
    for part in parts:
        if shard := shard_of(view.stream(part.split), part):
            files = [shard.file(ending) for ending in endings]
            total += sum(found.bytes for found in files if found)
    return total


def shard_of(stream: DocumentStream, part: ExportPart) -> SharedShard | None:
    """The stored shard that a part is equal to."""
    return stream.shard(part.shard) if part.shard else None


def folder_of(view: DocumentView, split: str) -> str:
    """Prefix of a split's file names: empty if it is the only one, else `train/`, `val/`."""
    return f"{split}/" if len(view.splits) > 1 else ""


def span_of(stream: DocumentStream, start: int, stop: int) -> tuple[int, int]:
    """Token range of documents `start` to `stop`: begin and end."""
    begin, end = (int(stream.ends(place - 1, place)[0]) if place else 0 for place in (start, stop))
    return begin, end


def ends_of(stream: DocumentStream, start: int, stop: int) -> Iterator[np.ndarray]:
    """Ends of documents `start` to `stop`, in tokens from the first of them: int64, several at a time."""
    last = 0
    for first in range(start, stop, BLOCK_DOCUMENTS):
        ends = last + np.cumsum(stream.lengths(first, min(first + BLOCK_DOCUMENTS, stop)))
        yield ends
        last = int(ends[-1])


def write_files(
    stream: DocumentStream, part: ExportPart, dtype: np.dtype, target: Target, name: str, loss_name: str = ""
) -> int:
    """Write or share a part's tokens, and its loss mask as one byte per token.

    Args:
        loss_name: name of the mask's file; empty to write none.

    Returns:
        Number of tokens in the file.
    """
    begin, end = span_of(stream, part.start, part.stop)
    if shard := shard_of(stream, part):
        _share(shard, target, name, ".bin")
        if loss_name and not _share(shard, target, loss_name, ".loss"):
            with target.create(loss_name) as mask:  # a shard without a mask: all tokens are trained on
                for start in range(0, shard.tokens, 1 << 20):
                    mask.write(np.ones(min(1 << 20, shard.tokens - start), np.uint8))
        target.progress(shard.tokens)
        return shard.tokens
    with ExitStack() as stack:
        file = stack.enter_context(target.create(name))
        masked = stack.enter_context(target.create(loss_name)) if loss_name else None
        for tokens, loss in stream.tokens_between(begin, end, dtype):
            file.write(tokens)
            if masked is not None and loss is not None:
                masked.write(loss)
            target.progress(len(tokens))
    return end - begin


def _share(shard: SharedShard, target: Target, name: str, ending: str) -> bool:
    """Share a file of the shard, if it exists; return True if it does."""
    if (found := shard.file(ending)) is None:
        return False
    target.share_stored(shard.files, found, name)
    return True


def find_below(path: Path, ending: str, what: str) -> tuple[Path, list[Path]]:
    """A file, or all files below a folder with this suffix, sorted by path; and their folder.

    Args:
        what: description of the files, for the error.

    Raises:
        InputError: there is no such file.
    """
    found = [path] if path.is_file() else sorted(one for one in path.rglob(f"*{ending}") if one.is_file())
    if not found:
        raise InputError(
            f"{path}: expected {what}, found {'none' if path.is_dir() else 'nothing'}",
            hint="name the folder that has the files below it, or one file",
        )
    return (path if path.is_dir() else path.parent), found


class FileList:
    """Files of a data set, numbered in the order of entry.

    Args:
        folder: folder that their names are relative to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[DatasetFile] = []

    def add(self, path: Path) -> int:
        """Enter a file and return its number.

        Raises:
            InputError: its size and times cannot be read.
        """
        inside = path.is_relative_to(self.folder)
        name = path.relative_to(self.folder).as_posix() if inside else path.as_posix()
        try:
            size = path.stat().st_size
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from error
        self.files.append(DatasetFile(name, str(path), size))
        return len(self.files) - 1

    def add_if_there(self, path: Path) -> int | None:
        """Enter a file that may be missing; return its number or None."""
        return self.add(path) if path.is_file() else None


@dataclass(slots=True)
class TokensAndEnds:
    """A token file, and what files next to it declare about its documents."""

    file: DatasetFile
    number: int
    """Number of the file in the data set."""
    index: str
    """Name of the file with the ends of its documents."""
    ends: np.ndarray | None = None
    """Ends of documents, in tokens; None without an index."""
    size: int = 0
    """Bytes per token; 0 if unknown."""
    declared: dict[str, int | None] = field(default_factory=dict)
    """Declared number of tokens, by the place of the declaration."""
    mask: int | None = None
    """Number of its loss mask."""
    companions: list[int] = field(default_factory=list)
    """Numbers of other files that belong to it."""
    readable: bool = True

    def set_ends(self, ends: np.ndarray, where: str, sizes: Iterable[int]) -> None:
        """Enter the ends of documents, which may show the bytes per token, one of `sizes`."""
        self.ends = ends
        last = int(ends[-1]) if len(ends) else 0
        self.declared[f"the last of its {where}"] = last if len(ends) else None
        self.size = self.size or next((size for size in sizes if last and size * last == self.file.bytes), 0)


def open_documents(
    path: Path,
    listed: FileList,
    opened: Sequence[TokensAndEnds],
    options: Any,
    findings: Findings,
    *,
    format: str,
    limits: dict[str, int],
    dtypes: dict[int, np.dtype],
    needed: str,
    facts: dict[str, Any] | None = None,
    ids: Callable[[int, int, int], list[str | None]] | None = None,
) -> DatasetReader:
    """Documents of token files: by their index if a file has one, else by the marker.

    The dtype is the required one (`declared_dtype`), else that of each file, else that of the first file for
    which it is known, else that of the vocabulary.

    Args:
        options: with `dtype`, `edges`, `marker` and `vocab_size`.
        limits: largest vocabulary, by dtype name.
        dtypes: by bytes per token.
        needed: description of the files that show the dtype, for the error.

    Raises:
        InputError: the dtype is unknown.
    """
    required, split = declared_dtype(path, format, limits, options.dtype), exported_split(path)
    usual = required or next((dtypes[one.size] for one in opened if one.size), None)
    if usual is None and options.vocab_size is not None:
        usual = fitting_dtype(format, options.vocab_size, limits)
    any_index = any(one.ends is not None for one in opened)
    if usual is None and not any_index:
        raise InputError(
            f"{path}: expected {needed}, to know how wide tokens are",
            hint="--set dtype=uint16 or dtype=uint32",
        )
    indexed, scanned = [], []
    for one in opened:
        dtype = required or dtypes.get(one.size, usual)
        source = open_source(
            listed,
            one.number,
            dtype,
            findings,
            split=split_of_folder(one.file.name, split),
            declared=one.declared,
            mask=one.mask,
            companions=tuple(one.companions),
        ) if one.readable else None  # fmt: skip
        if source is None:
            continue
        if one.ends is not None:
            indexed.append((source, one.ends))
        elif any_index:
            findings.add(one.index, "no such file, where other files have one")
        else:
            scanned.append(source)
    edges = options.edges
    if any_index:
        return IndexedReader(listed.files, indexed, edges=edges, findings=findings, facts=facts, ids=ids)
    return ScannedReader(
        listed.files, scanned, marker=options.marker, edges=edges, findings=findings, facts=facts
    )


def open_source(
    listed: FileList,
    number: int,
    dtype: np.dtype | None,
    findings: Findings,
    *,
    split: str,
    declared: dict[str, int | None],
    mask: int | None = None,
    companions: tuple[int, ...] = (),
) -> TokenFile | None:
    """Tokens of a file, if its size and its mask's are consistent; otherwise problems go into `findings`.

    Args:
        number, mask, companions: numbers of the file, its mask, and files that belong to it.
        dtype: None if unknown: then the size is wrong, or the file is empty.
        declared: declared number of tokens, by the place of the declaration.
    """
    file = listed.files[number]
    if dtype is None:
        if file.bytes:
            tokens = next((count for count in declared.values() if count is not None), 0)
            findings.add(file.name, "size in bytes", f"2 or 4 for each of {tokens:,} tokens", file.bytes)
            return None
        dtype = np.dtype("<u2")
    size = dtype.itemsize
    tokens, rest = divmod(file.bytes, size)
    right = findings.compare(file.name, f"size in bytes, a multiple of {size}", file.bytes - rest, file.bytes)
    for where, count in declared.items():
        if right and count is not None:
            right = findings.compare(file.name, f"tokens, by {where}", count, tokens)
    loss = None
    if mask is not None:
        values = listed.files[mask]
        loss = LossFile(mask, values.path, np.dtype(np.uint8))
        right = right and findings.compare(values.name, "bytes, one per token", tokens, values.bytes)
    if not right:
        return None
    return TokenFile(listed.files, number, dtype, split=split, loss=loss, companions=companions)


def declared_dtype(path: Path, format: str, limits: dict[str, int], choice: str) -> np.dtype | None:
    """Dtype required for all files of a data set: the chosen one, or the one it was exported with.

    Returns:
        None if neither is known.

    Raises:
        CorruptStore: a damaged record.
    """
    if choice != "auto":
        return np.dtype(choice).newbyteorder("<")
    record = read_record(path if path.is_dir() else path.parent)
    if record is None or record.format != format:
        return None
    exported = str(record.options.get("dtype", "auto"))
    return fitting_dtype(format, record.tokenizer.vocab_size, limits, exported)


def exported_split(path: Path) -> str:
    """Split of all files of a data set, if it was exported as the only one; else `train`."""
    record = read_record(path if path.is_dir() else path.parent)
    split = str(record.settings.get("split")) if record is not None else ""
    return split if split in SPLITS else "train"


def split_of_folder(name: str, usual: str = "train") -> str:
    """Split from the folders on the path to a file: `val` or `test` if a folder has that name, else `usual`.

    >>> split_of_folder("val/00000_unshuffled.ds"), split_of_folder("validation-set/part-0-00000.npy")
    ('val', 'train')
    """
    split = split_of_words(part.lower() for part in PurePosixPath(name).parts[:-1])
    return usual if split == "train" else split
