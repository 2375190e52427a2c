"""datatrove: `00000_unshuffled.ds` with document ends, a loss mask and three lines of metadata next to it.

    NNNNN_unshuffled.ds            tokens back to back, no header: uint16, or uint32 for more than 65,536 ids
    NNNNN_unshuffled.ds.index      uint64 [D] ends of documents, in tokens; no leading 0, no count
    NNNNN_unshuffled.ds.loss       uint8 [T], 1 where a token is trained on; only where there is a mask
    NNNNN_unshuffled.ds.metadata   three lines: `tokenizer|bytes per token`, tokens, tokens for people

All little-endian, without a newline after the last line. For tokens 1 2 70000 and 5: the index is 3, 4; the
metadata `gpt2|4`, `4`, `4.00 T`. The rank has five digits, since readers sort files by name; so there are at
most 100,000 files per split. Documents end with their end-of-document token. A single split is in the folder
itself, several are in `train/` and `val/`: datatrove's folder data set searches subfolders as well, so pass
it one of them.

Also reads shuffled and merged files, which differ only in name. Without an index, documents are found by
their ends. The token width is the exported one; else it comes from the metadata, else from index and size,
else from the vocabulary. Provenance is not kept. Based on `pipeline/tokens/tokenizer.py` and
`utils/dataset.py` of datatrove, whose classes read and write the same in the tests.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np

from packline.errors import RecipeError
from packline.formats.document_files import (
    SHARD_TOKENS,
    TokensAndEnds,
    ends_of,
    folder_of,
    open_documents,
    plan_files,
    write_files,
)
from packline.formats.document_view import DocumentView
from packline.formats.export_folder import ExportRecord, Target
from packline.formats.files import FileList, find_files
from packline.formats.format import DatasetReader, DocumentFormat, Options
from packline.formats.types import DatasetFile, Edges, ExportPart, ExportPlan, Facts, Files, Size, check_name
from packline.store.report import Findings

DTYPES: dict[int, np.dtype] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
MOST_FILES = 100_000


class DatatroveOptions(Options, frozen=True):
    files: Files = "many"
    """many: one file per shard of the store, sharing its bytes; single: one file per split."""
    dtype: Literal["auto", "uint16", "uint32"] = "auto"
    """Dtype of the tokens; when reading, that of files which do not declare it."""
    edges: Edges = "eod"
    """Boundary tokens of documents."""
    step: str = "unshuffled"
    """Suffix of file names, before `.ds`."""
    first_rank: int = 0
    """Number of the first file of each split."""
    metadata: bool = True
    """Write `.metadata`."""
    tokenizer: str = ""
    """Name of the tokenizer in `.metadata`; default: that of the store, without the folders of a path."""
    shard_tokens: Size = SHARD_TOKENS
    """Approximate tokens per file for `many`, if it is not a shard of the store."""
    vocab_size: int | None = None
    """Determines the dtype of files that do not declare it."""
    marker: int | None = None
    """The id at the end of documents in files without an index; taken from the tokenizer unless given."""


class Datatrove(DocumentFormat):
    name = "datatrove"
    title = "datatrove: NNNNN_unshuffled.ds with .index, .loss and .metadata"
    options = DatatroveOptions
    limits: ClassVar = {"uint16": 65_536, "uint32": 2**32}

    def recognises(self, path: Path) -> bool:
        if path.is_file():
            return path.suffix == ".ds"
        return path.is_dir() and any(next(path.glob(pattern), None) for pattern in ("*.ds", "*/*.ds"))

    def trainer_lines(self, out: str, record: ExportRecord, options: DatatroveOptions) -> tuple[str, ...]:
        size = self.dtype_of(record.tokenizer.vocab_size, options).itemsize
        folder = record.train_folder(out)
        return (
            "from datatrove.utils.dataset import DatatroveFolderDataset",
            "",
            "# seq_len: your own; a row has one token more, and rows do not continue in another file",
            f"dataset = DatatroveFolderDataset({folder!r}, seq_len=2048, token_size={size})",
        )

    def plan(self, view: DocumentView, options: DatatroveOptions) -> ExportPlan:
        check_name(self.name, "step", options.step)
        plan = plan_files(self, view, options, bytes_each=8, keeps_loss=True)
        most = options.first_rank + max(part.number for part in plan.parts)
        if options.first_rank < 0 or most >= MOST_FILES:
            raise RecipeError(
                f"datatrove: expected numbers of files from 0 to {MOST_FILES - 1:,}, found "
                f"{options.first_rank:,} to {most:,}",
                hint="set shard_tokens larger, or first_rank smaller",
            )
        dtype = self.dtype_of(view.vocab_size, options)
        rest = sum(len(_metadata(view, part, dtype, options)) for part in plan.parts if options.metadata)
        return msgspec.structs.replace(plan, bytes=plan.bytes + rest)

    def write(self, view: DocumentView, part: ExportPart, target: Target, options: DatatroveOptions) -> Facts:
        dtype = self.dtype_of(view.vocab_size, options)
        stream = view.stream(part.split)
        rank = options.first_rank + part.number
        name = f"{folder_of(view, part.split)}{rank:05d}_{options.step}.ds"
        write_files(stream, part, dtype, target, name, f"{name}.loss" if view.has_loss else "")
        with target.create(f"{name}.index") as index:
            for ends in ends_of(stream, part.start, part.stop):
                index.write(ends.astype("<u8"))
        if options.metadata:
            with target.create(f"{name}.metadata") as file:
                file.write(_metadata(view, part, dtype, options))
        return {}

    def open(self, path: Path, options: DatatroveOptions, findings: Findings) -> DatasetReader:
        listed, paths = find_files(path, ".ds", "datatrove's .ds files", below=True)
        opened = [_open_file(one, listed, findings) for one in paths]
        facts: dict[str, Any] = {}
        if names := {name for _, name in opened if name}:
            if len(names) == 1:
                (facts["tokenizer"],) = names
            else:
                folder, found = listed.folder.name, ", ".join(sorted(names))
                findings.add(folder, "tokenizer of .metadata files", "one", found)
        files = [one for one, _ in opened]
        needed = ".index or .metadata next to .ds files"
        return open_documents(
            self, path, listed, files, options, findings, dtypes=DTYPES, needed=needed, facts=facts
        )


def _open_file(path: Path, listed: FileList, findings: Findings) -> tuple[TokensAndEnds, str]:
    """A `.ds` file and the files that belong to it, and the name of its tokenizer, if there is one."""
    number = listed.add(path)
    file, tokenizer = listed.files[number], ""
    one = TokensAndEnds(file, number, f"{file.name}.index")
    one.mask = listed.add_if_there(path.with_name(f"{path.name}.loss"))
    index = listed.add_if_there(path.with_name(f"{path.name}.index"))
    metadata = listed.add_if_there(path.with_name(f"{path.name}.metadata"))
    one.companions = [number for number in (index, metadata) if number is not None]
    if metadata is not None:
        tokenizer = _read_metadata(one, listed.files[metadata], findings)
    if index is not None:
        size, name = listed.files[index].bytes, one.index
        right = findings.compare(name, "size in bytes, a multiple of 8", size - size % 8, size)
        ends = np.asarray(np.memmap(listed.files[index].path, "<u8", "r")) if right and size else None
        one.set_ends(np.empty(0, "<u8") if ends is None else ends, ".index", DTYPES)
    return one, tokenizer


def _read_metadata(one: TokensAndEnds, file: DatasetFile, findings: Findings) -> str:
    """Enter the bytes and number of tokens; return the name of the tokenizer."""
    lines = Path(file.path).read_bytes().decode("utf-8", "replace").split("\n")
    tokenizer, bar, size = lines[0].rpartition("|")
    if not bar:  # older datatrove, which did not write the size
        tokenizer = lines[0]
    elif size in ("2", "4"):
        one.size = int(size)
    else:
        findings.add(file.name, "bytes of a token", "2 or 4", size)
    if len(lines) > 1 and lines[1].strip().isdecimal():
        one.declared["its .metadata"] = int(lines[1])
    else:
        findings.add(file.name, "tokens, on the second line", "a number", lines[1] if len(lines) > 1 else "")
    return "" if tokenizer.startswith("Unknown Tokenizer") or tokenizer == "tokenizer.json" else tokenizer


def _metadata(view: DocumentView, part: ExportPart, dtype: np.dtype, options: DatatroveOptions) -> bytes:
    stream = view.stream(part.split)
    tokens = stream.before(part.stop) - stream.before(part.start)
    return (
        f"{options.tokenizer or view.tokenizer_name}|{dtype.itemsize}\n{tokens}\n{humanised(tokens)}".encode()
    )


def humanised(tokens: int) -> str:
    """A human-readable count: three digits and a prefix of thousands; `T` means tokens.

    >>> humanised(4), humanised(1500), humanised(123_456_789), humanised(999_950)
    ('4.00 T', '1.50 kT', '123 MT', '1.00 MT')
    """
    exponent = math.floor(math.log10(tokens)) if tokens else 0
    value = tokens / 10 ** (exponent // 3 * 3)
    if round(value, 2 - exponent % 3) >= 10 ** (exponent % 3 + 1):  # 9.999 is 10.0, 999.9 is 1.00 k
        value /= 10 ** ((exponent + 1) // 3 * 3 - exponent // 3 * 3)
        exponent += 1
    prefix = "kMGTPE"[exponent // 3 - 1] if exponent >= 3 else ""
    return f"{value:.{2 - exponent % 3}f} {prefix}T"


FORMAT = Datatrove()
