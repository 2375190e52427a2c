"""Files of whole documents, for datatrove, OLMo and Forager; each format adds its own index.

a split that is a run of stored shards, in a dtype with the same bytes
    train-000000.bin  train-000001.bin       shared: linked, or copied if linking is impossible
with files=single
    train-000000.bin                         one file per split, whatever the shards
any other: filtered, shuffled, with other edges, or of another width
    documents      | a a a | b b b b b | c c | d ...
    files          [ a a a   b b b b b ][ c c   d ...          cut before the document with token n * size
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from packline.errors import InputError
from packline.formats.document_view import DocumentStream, DocumentView
from packline.formats.export_folder import Target, read_record
from packline.formats.files import FileList, exported_split, split_of_folder
from packline.formats.format import DatasetReader, Format
from packline.formats.token_files import Ends, IndexedReader, Numbers, ScannedReader, TokenFile
from packline.formats.types import DatasetFile, ExportPart, ExportPlan, fitting_dtype
from packline.store.report import Findings

BLOCK_DOCUMENTS = 1 << 17
SHARD_TOKENS = 1 << 28
"""Tokens per file that is not a stored shard: 512 MB or 1 GB."""


def plan_files(
    format: Format,
    view: DocumentView,
    options: Any,
    *,
    bytes_each: int,
    keeps_loss: bool = False,
    keeps_provenance: bool = False,
) -> ExportPlan:
    """One part per file; `start` and `stop` are documents of its split, `number` counts from 0 in each.

    Args:
        bytes_each: bytes of the index per document.
    """
    dtype = format.dtype_of(view.vocab_size, options)
    parts: list[ExportPart] = []
    shared = 0
    for split in view.splits:
        stream = view.stream(split)
        same = view.store.dtype.itemsize == dtype.itemsize
        shards = [shard for shard in stream.shards or () if same and shard.documents]
        if shards and (options.files == "many" or len(shards) == 1):
            cuts = [(one.first_document, one.first_document + one.documents, one.name) for one in shards]
            files = [one.file(ending) for one in shards for ending in (".bin", ".loss")[: 1 + keeps_loss]]
            shared += sum(found.bytes for found in files if found)
        else:
            single = options.files == "single"
            bounds = [(0, stream.documents)] if single else stream.files(options.shard_tokens)
            cuts = [(start, stop, "") for start, stop in bounds]
        for number, (start, stop, shard) in enumerate(cuts):
            parts.append(ExportPart(f"{split}-{number:06d}", split, number, start, stop, shard))
    size = view.tokens * (dtype.itemsize + (keeps_loss and view.has_loss)) + bytes_each * view.documents
    lost = view.not_preserved(format.name, keeps_loss=keeps_loss, keeps_provenance=keeps_provenance)
    return ExportPlan(tuple(parts), size - shared, shared, lost)


def folder_of(view: DocumentView, split: str) -> str:
    """Prefix of a split's file names: empty if it is the only one, else `train/`, `val/`."""
    return f"{split}/" if len(view.splits) > 1 else ""


def ends_of(stream: DocumentStream, start: int, stop: int) -> Iterator[np.ndarray]:
    """Ends of documents `start` to `stop`, in tokens from the first of them: int64, several at a time."""
    last = 0
    for first in range(start, stop, BLOCK_DOCUMENTS):
        ends = last + np.cumsum(stream.lengths(first, min(first + BLOCK_DOCUMENTS, stop)))
        yield ends
        last = int(ends[-1])


def write_files(
    stream: DocumentStream, part: ExportPart, dtype: np.dtype, target: Target, name: str, loss_name: str = ""
) -> None:
    """Write or share a part's tokens, and its loss mask as one byte per token."""
    begin, end = stream.before(part.start), stream.before(part.stop)
    if shard := stream.shard(part.shard):
        shard.share(target, name, ".bin")
        if loss_name and not shard.share(target, loss_name, ".loss"):
            with target.create(loss_name) as mask:  # a shard without a mask: all tokens are trained on
                for start in range(0, end - begin, 1 << 20):
                    mask.write(np.ones(min(1 << 20, end - begin - start), np.uint8))
        target.progress(end - begin)
        return
    with ExitStack() as stack:
        file = stack.enter_context(target.create(name))
        masked = stack.enter_context(target.create(loss_name)) if loss_name else None
        for tokens, loss in stream.tokens_between(begin, end, dtype):
            file.write(tokens)
            if masked is not None and loss is not None:
                masked.write(loss)
            target.progress(len(tokens))


@dataclass(slots=True)
class TokensAndEnds:
    """A token file, and what files next to it declare about its documents."""

    file: DatasetFile
    number: int
    index: str
    """Name of the file with the ends of its documents."""
    ends: Ends | None = None
    """Ends of documents, in tokens; None without an index."""
    size: int = 0
    """Bytes per token; 0 if unknown."""
    declared: dict[str, int | None] = field(default_factory=dict)
    """Declared number of tokens, by the place of the declaration."""
    mask: int | None = None
    companions: list[int] = field(default_factory=list)
    """Numbers of other files that belong to it."""
    readable: bool = True

    def set_ends(self, ends: Ends, where: str, sizes: Iterable[int]) -> None:
        """Enter the ends of documents, which may show the bytes per token, one of `sizes`."""
        self.ends = ends
        last = int(ends[-1]) if len(ends) else 0
        self.declared[f"the last of its {where}"] = last if len(ends) else None
        self.size = self.size or next((size for size in sizes if last and size * last == self.file.bytes), 0)


def open_documents(
    format: Format,
    path: Path,
    listed: FileList,
    opened: Sequence[TokensAndEnds],
    options: Any,
    findings: Findings,
    *,
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
        dtypes: by bytes per token.
        needed: description of the files that show the dtype, for the error.
    """
    required, split = declared_dtype(format, path, options), exported_split(path)
    usual = required or next((dtypes[one.size] for one in opened if one.size), None)
    if usual is None and options.vocab_size is not None:
        usual = format.dtype_of(options.vocab_size, options)
    any_index = any(one.ends is not None for one in opened)
    if usual is None and not any_index:
        raise InputError(
            f"{path}: expected {needed}, to know how wide tokens are",
            hint="--set dtype=uint16 or dtype=uint32",
        )
    scanned: list[TokenFile] = []
    indexed: list[tuple[TokenFile, Ends]] = []
    for one in opened:
        dtype = required or dtypes.get(one.size, usual)
        source = _open_source(one, listed, dtype, split, findings) if one.readable else None
        if source is not None and one.ends is not None:
            indexed.append((source, one.ends))
        elif source is not None and any_index:
            findings.add(one.index, "no such file, where other files have one")
        elif source is not None:
            scanned.append(source)
    edges = options.edges
    if any_index:
        return IndexedReader(listed.files, indexed, edges=edges, findings=findings, facts=facts, ids=ids)
    return ScannedReader(
        listed.files, scanned, marker=options.marker, edges=edges, findings=findings, facts=facts
    )


def _open_source(
    one: TokensAndEnds, listed: FileList, dtype: np.dtype | None, split: str, findings: Findings
) -> TokenFile | None:
    """Tokens of a file, if its size and its mask's are consistent; otherwise problems go into `findings`."""
    file = one.file
    if dtype is None:  # then the size is wrong, or the file is empty
        if file.bytes:
            tokens = next((count for count in one.declared.values() if count is not None), 0)
            findings.add(file.name, "size in bytes", f"2 or 4 for each of {tokens:,} tokens", file.bytes)
            return None
        dtype = np.dtype("<u2")
    size = dtype.itemsize
    tokens, rest = divmod(file.bytes, size)
    right = findings.compare(file.name, f"size in bytes, a multiple of {size}", file.bytes - rest, file.bytes)
    for where, count in one.declared.items():
        if right and count is not None:
            right = findings.compare(file.name, f"tokens, by {where}", count, tokens)
    loss = None
    if one.mask is not None:
        values = listed.files[one.mask]
        loss = Numbers(one.mask, values.path, np.dtype(np.uint8))
        right = right and findings.compare(values.name, "bytes, one per token", tokens, values.bytes)
    if not right:
        return None
    split, companions = split_of_folder(file.name, split), tuple(one.companions)
    return TokenFile(listed.files, one.number, dtype, split=split, loss=loss, companions=companions)


def declared_dtype(format: Format, path: Path, options: Any) -> np.dtype | None:
    """Dtype required for all files of a data set: the chosen one, or the one it was exported with."""
    if options.dtype != "auto":
        return np.dtype(options.dtype).newbyteorder("<")
    record = read_record(path if path.is_dir() else path.parent)
    if record is None or record.format != format.name:
        return None
    exported = str(record.options.get("dtype", "auto"))
    return fitting_dtype(format.name, record.tokenizer.vocab_size, format.limits, exported)
