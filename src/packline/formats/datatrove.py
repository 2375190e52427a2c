"""datatrove: `00000_unshuffled.ds` with document ends, a loss mask and three lines of metadata next to it.

    NNNNN_unshuffled.ds            tokens back to back, no header: uint16, or uint32 for more than 65,536 ids
    NNNNN_unshuffled.ds.index      uint64 [D] ends of documents, in tokens; no leading 0, no count
    NNNNN_unshuffled.ds.loss       uint8 [T], 1 where a token is trained on; only where there is a mask
    NNNNN_unshuffled.ds.metadata   three lines: `tokenizer|bytes per token`, tokens, tokens for people

All little-endian, without a newline after the last line. For tokens 1 2 70000 and 5: the index is 3, 4; the
metadata `gpt2|4`, `4`, `4.00 T`. The rank has five digits, since readers sort files by name; so there are at
most 100,000 files per split. Documents end with their end-of-document token. Without a validation split,
files are in the folder itself, else in `train/` and `val/`: datatrove's folder data set searches subfolders
as well, so pass it one of them.

A file is a shard of the store if the tokens' bytes are the same, and is then shared (a non-negative int32 has
the bytes of a uint32). A vocabulary from 65,500 to 65,536 is int32 in the store and uint16 here, so it is
converted.

Also reads shuffled and merged files, which differ only in name. Without an index, documents are found by
their ends. The token width is the exported one; else it comes from the metadata, else from index and size,
else from the vocabulary. Provenance is not kept. Based on `pipeline/tokens/tokenizer.py` and
`utils/dataset.py` of datatrove, whose classes read and write the same in the tests.
"""

from __future__ import annotations

import math
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from packline.errors import InputError, RecipeError
from packline.formats.format import DocumentFormat, Foreign
from packline.formats.importing.mapped import IndexedForeign, ScannedForeign, TokenFile
from packline.formats.shared.document_files import (
    SHARD_TOKENS,
    FileList,
    ends_of,
    find_below,
    folder_of,
    open_source,
    plan_files,
    shared_bytes,
    span_of,
    split_of_folder,
    told_dtype,
    write_files,
)
from packline.formats.shared.lost import lost_of
from packline.formats.types import Edges, Options, Part, Plan, fitting_dtype

if TYPE_CHECKING:
    from packline.formats.exporting.documents import DocumentView
    from packline.formats.exporting.target import Target
    from packline.store.report import Findings

LIMITS = {"uint16": 65_536, "uint32": 2**32}
DTYPES: dict[int, np.dtype] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
MOST_FILES = 100_000


class DatatroveOptions(Options, frozen=True):
    """Options of datatrove's files."""

    dtype: Literal["auto", "uint16", "uint32"] = "auto"
    """Of tokens; read: what the files say, and for files that do not say it."""
    edges: Edges = "eod"
    """Which boundary tokens documents have."""
    step: str = "unshuffled"
    """What names of files end with, before `.ds`."""
    first_rank: int = 0
    """Number of the first file of each split."""
    metadata: bool = True
    """Write `.metadata`."""
    tokenizer: str = ""
    """What `.metadata` calls the tokenizer; by default as the store does, without the folders of a path."""
    shard_tokens: int = SHARD_TOKENS
    """Tokens of a file, about, where it is not a shard of the store."""
    vocab_size: int | None = None
    """Decides the dtype of files that do not say it."""
    marker: int | None = None
    """The id behind documents of files without an index; comes from the tokenizer unless given."""


class Datatrove(DocumentFormat):
    """datatrove's tokenized files."""

    name = "datatrove"
    title = "datatrove: NNNNN_unshuffled.ds with .index, .loss and .metadata"
    options = DatatroveOptions

    def recognises(self, path: Path) -> bool:
        if path.is_file():
            return path.suffix == ".ds"
        return path.is_dir() and any(next(path.glob(pattern), None) for pattern in ("*.ds", "*/*.ds"))

    def edges_of(self, options: DatatroveOptions) -> Edges:
        return options.edges

    def plan(self, view: DocumentView, options: DatatroveOptions) -> Plan:
        dtype = fitting_dtype(self.name, view.vocab_size, LIMITS, options.dtype)
        if "/" in options.step or not options.step:
            raise RecipeError(f"datatrove: expected a step that can be in a name, found {options.step!r}")
        parts = plan_files(view, self.name, dtype, options.shard_tokens)
        most = options.first_rank + max(part.number for part in parts)
        if options.first_rank < 0 or most >= MOST_FILES:
            raise RecipeError(
                f"datatrove: expected numbers of files from 0 to {MOST_FILES - 1:,}, found "
                f"{options.first_rank:,} to {most:,}",
                hint="set shard_tokens larger, or first_rank smaller",
            )
        shared = shared_bytes(view, parts, with_loss=view.has_loss)
        size = view.tokens * (dtype.itemsize + view.has_loss) + 8 * view.documents
        if options.metadata:
            size += sum(len(_metadata(view, part, dtype, options)) for part in parts)
        return Plan(tuple(parts), size - shared, shared, lost_of(view, self.name, keeps_loss=True))

    def write(
        self, view: DocumentView, part: Part, target: Target, options: DatatroveOptions
    ) -> dict[str, Any]:
        dtype = fitting_dtype(self.name, view.vocab_size, LIMITS, options.dtype)
        stream = view.stream(part.split)
        rank = options.first_rank + part.number
        name = f"{folder_of(view, part.split)}{rank:05d}_{options.step}.ds"
        tokens = write_files(stream, part, dtype, target, name, f"{name}.loss" if view.has_loss else "")
        with target.create(f"{name}.index") as index:
            for ends in ends_of(stream, part.start, part.stop):
                index.write(ends.astype("<u8"))
        if options.metadata:
            with target.create(f"{name}.metadata") as file:
                file.write(_metadata(view, part, dtype, options))
        return {"name": name, "tokens": tokens}

    def open(self, path: Path, options: DatatroveOptions, findings: Findings) -> Foreign:
        folder, paths = find_below(path, ".ds", "datatrove's .ds files")
        listed = FileList(folder)
        opened = [_Opened(one, listed, findings) for one in paths]
        told = told_dtype(path, self.name, LIMITS, options.dtype)
        usual = told or next((DTYPES[file.size] for file in opened if file.size), None)
        if usual is None and options.vocab_size is not None:
            usual = fitting_dtype(self.name, options.vocab_size, LIMITS)
        any_index = any(file.ends is not None for file in opened)
        if usual is None and not any_index:
            raise InputError(
                f"{path}: expected .index or .metadata beside .ds files, to know how wide tokens are",
                hint="--set dtype=uint16 or dtype=uint32",
            )
        indexed, scanned = [], []
        for file in opened:
            source = file.source(listed, told or DTYPES.get(file.size, usual), findings)
            if source is None:
                continue
            if file.ends is not None:
                indexed.append((source, file.ends))
            elif any_index:
                findings.add(f"{file.name}.index", "no such file, where other files have one")
            else:
                scanned.append(source)
        facts: dict[str, Any] = {}
        names = {file.tokenizer for file in opened if file.tokenizer}
        if len(names) > 1:
            findings.add(folder.name, "tokenizer of .metadata files", "one", ", ".join(sorted(names)))
        elif names:
            facts["tokenizer"] = names.pop()
        if any_index or not scanned:
            return IndexedForeign(listed.files, indexed, edges=options.edges, findings=findings, facts=facts)
        return ScannedForeign(
            listed.files,
            scanned,
            marker=options.marker,
            edges=options.edges,
            findings=findings,
            facts=facts,
        )


class _Opened:
    """A `.ds` file and the files that belong to it."""

    def __init__(self, path: Path, listed: FileList, findings: Findings) -> None:
        self.number = listed.add(path)
        self.name, self.bytes = listed.files[self.number].name, listed.files[self.number].bytes
        self.loss = listed.add_if_there(path.with_name(f"{path.name}.loss"))
        self.beside: list[int] = []
        self.size = 0
        """Bytes per token; 0 if unknown."""
        self.tokenizer = ""
        self._told: int | None = None
        self.ends = self._read_index(path.with_name(f"{path.name}.index"), listed, findings)
        if (number := listed.add_if_there(path.with_name(f"{path.name}.metadata"))) is not None:
            self.beside.append(number)
            self._read_metadata(listed.files[number].name, Path(listed.files[number].path), findings)
        if not self.size and self.ends is not None and len(self.ends):
            last = int(self.ends[-1])
            self.size = next((size for size in DTYPES if last and size * last == self.bytes), 0)

    def _read_index(self, path: Path, listed: FileList, findings: Findings) -> np.ndarray | None:
        """Document ends; None without an index, empty for an invalid one."""
        if (number := listed.add_if_there(path)) is None:
            return None
        self.beside.append(number)
        name, size = listed.files[number].name, listed.files[number].bytes
        if findings.compare(name, "size in bytes, a multiple of 8", size - size % 8, size) and size:
            return np.asarray(np.memmap(path, "<u8", "r"))
        return np.empty(0, "<u8")

    def _read_metadata(self, name: str, path: Path, findings: Findings) -> None:
        lines = path.read_bytes().decode("utf-8", "replace").split("\n")
        self.tokenizer, bar, size = lines[0].rpartition("|")
        if not bar:  # older datatrove, which did not write the size
            self.tokenizer = lines[0]
        elif size in ("2", "4"):
            self.size = int(size)
        else:
            findings.add(name, "bytes of a token", "2 or 4", size)
        if self.tokenizer.startswith("Unknown Tokenizer") or self.tokenizer == "tokenizer.json":
            self.tokenizer = ""
        if len(lines) > 1 and lines[1].strip().isdecimal():
            self._told = int(lines[1])
        else:
            findings.add(name, "tokens, on the second line", "a number", lines[1] if len(lines) > 1 else "")

    def source(self, listed: FileList, dtype: np.dtype | None, findings: Findings) -> TokenFile | None:
        """The tokens, if all sizes are consistent."""
        last = int(self.ends[-1]) if self.ends is not None and len(self.ends) else None
        return open_source(
            listed,
            self.number,
            dtype,
            findings,
            split=split_of_folder(self.name),
            told={"its .metadata": self._told, "the last of its .index": last},
            mask=self.loss,
            beside=tuple(self.beside),
        )


def _metadata(view: DocumentView, part: Part, dtype: np.dtype, options: DatatroveOptions) -> bytes:
    """The three lines of metadata of a file."""
    begin, end = span_of(view.stream(part.split), part)
    tokens = end - begin
    name = view.tokenizer.name
    if PurePath(name).is_absolute():  # folders of this machine mean nothing elsewhere
        name = PurePath(name).name
    return f"{options.tokenizer or name}|{dtype.itemsize}\n{tokens}\n{humanised(tokens)}".encode()


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
