"""Temporal Eigenstate Networks' rows: one torch file per row, described by `metadata.json`.

    chunk_000000.pt    one tensor, int64 [chunk_size]: a full row of tokens; and so on
    metadata.json      dataset, tokenizer, vocab_size, chunk_size, num_chunks, total_tokens, pad_token_id,
                       eos_token_id, bos_token_id; leftover_tokens

Files are numbered from 0, in training order, and have exactly `chunk_size` tokens: rows with padding are left
out, since nothing would distinguish padding from tokens. `total_tokens` counts the tokens in files, and
`leftover_tokens` those of the chosen documents that are in none (tails, rows with padding, rows beyond
`max_files`); if every row occurs once, both add up to all tokens. Documents end with their end-of-document
token; the original has nothing between documents if the tokenizer adds no such token.

A torch file of one tensor of integers is a zip archive of stored members, as made by `torch.save` since 1.6:

    NAME/data.pkl      a fixed program of about 150 bytes: one row of n integers in storage 0
    NAME/byteorder     "little"
    NAME/data/0        the integers, at a multiple of 64 bytes
    NAME/version       "3\\n"

`data.pkl` is a pickle whose bytes are the same for every such tensor except for n; so it is written from a
template and, when read, compared with it: nothing in it is ever executed, and torch is not needed. Anything
but a row of integers is refused. Based on files written by torch 2.13; tested with
`torch.load(weights_only=True)`. Does not read files from before torch 1.6, which are not archives.
"""

from __future__ import annotations

import io
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from packline.errors import CorruptStore, RecipeError
from packline.formats.export_folder import Target
from packline.formats.files import numbered_files, read_facts
from packline.formats.format import Options, RowFormat
from packline.formats.row_view import RowView
from packline.formats.types import (
    DatasetFile,
    ExportPart,
    ExportPlan,
    Facts,
    NotPreserved,
    RowFiles,
    Size,
    WrittenPart,
)
from packline.store.report import Findings

ALIGNMENT = 64
DAMAGE = (
    OSError, ValueError, KeyError, EOFError, NotImplementedError, RuntimeError, OverflowError, SyntaxError,
    zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError,
)  # fmt: skip
"""Exceptions of the standard library and NumPy for a damaged archive, or an array in one."""
STORAGES = {"Long": "<i8", "Int": "<i4", "Short": "<i2", "Byte": "u1", "Char": "i1"}

_HEAD = (
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x00((X\x07\x00\x00\x00storageq\x01"
    b"ctorch\n%bStorage\nq\x02X\x01\x00\x00\x000q\x03X\x03\x00\x00\x00cpuq\x04"
)
_TAIL = b"\x85q\x06K\x01\x85q\x07\x89ccollections\nOrderedDict\nq\x08)Rq\ttq\nRq\x0b."
_NUMBER = rb"(?:K(.)|M(..)|J(....))"
_PROGRAM = re.compile(
    rb"\x80\x02ctorch\._utils\n_rebuild_tensor_v2\nq.\(\(X\x07\x00\x00\x00storageq.ctorch\n(\w+)Storage\nq."
    rb"X\x01\x00\x00\x000q.X....[\w:]+q."
    + _NUMBER  # size of the storage
    + rb"tq.Q"
    + _NUMBER  # first element of the tensor
    + _NUMBER  # size of the tensor
    + rb"\x85q.K\x01\x85q.\x89ccollections\nOrderedDict\nq.\)Rq.tq.Rq.\.",
    re.DOTALL,
)
"""Pattern of `data.pkl`: a slice is saved with its whole tensor, so there may be a storage offset."""


def tensor_file(values: np.ndarray, name: str, storage: Literal["Long", "Int"] = "Long") -> bytes:
    """Content of a file with a tensor of integers, `[n]`.

    Args:
        name: name of the folder within the archive; torch uses the file's name without its suffix.
        storage: `Long` for int64, `Int` for int32.
    """
    file = io.BytesIO()
    members = {
        "data.pkl": _program(len(values), storage),
        "byteorder": b"little",
        "data/0": np.ascontiguousarray(values, STORAGES[storage]).tobytes(),
        "version": b"3\n",
    }
    with zipfile.ZipFile(file, "w") as archive:
        for member, data in members.items():
            entry = zipfile.ZipInfo(f"{name}/{member}", (1980, 0, 0, 0, 0, 0))
            if member == "data/0":
                entry.extra = _align(file.tell() + 30 + len(entry.filename))
            archive.writestr(entry, data)
            entry.extra, entry.external_attr = b"", 0  # in the directory, as torch writes it
    return file.getvalue()


def tensor_file_bytes(count: int, name: str) -> int:
    """Size of such a file, to within the few bytes of its padding."""
    members = (("data.pkl", 150), ("byteorder", 6), ("data/0", 8 * count), ("version", 2))
    return sum(76 + 2 * len(f"{name}/{member}") + size for member, size in members) + 22 + ALIGNMENT


def read_tensor(path: str | Path) -> np.ndarray:
    """Integers of a file, `[n]`, in the file's dtype."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.count("/") == 1]
            program = next((name for name in names if name.endswith("/data.pkl")), "")
            found = _PROGRAM.fullmatch(archive.read(program))
            if found is None:
                raise CorruptStore(
                    f"{path}: expected one row of integers, found another object",
                    hint="only files of one tensor are read",
                )
            folder = program.removesuffix("data.pkl")
            if f"{folder}byteorder" in names and archive.read(f"{folder}byteorder") != b"little":
                raise CorruptStore(f"{path}: expected little-endian integers, found others")
            dtype = STORAGES.get(found[1].decode())
            if dtype is None:
                raise CorruptStore(f"{path}: expected integers, found {found[1].decode()}")
            values = np.frombuffer(archive.read(f"{folder}data/0"), dtype)
    except DAMAGE as error:
        if isinstance(error, CorruptStore):
            raise
        reason = "not a file of torch" if isinstance(error, KeyError) else str(error)
        raise CorruptStore(f"{path}: {reason}", hint="the file was cut off or damaged") from error
    stored, first, count = (_number(found.groups()[at : at + 3]) for at in (1, 4, 7))
    if stored != len(values) or first + count > stored:
        raise CorruptStore(f"{path}: expected {stored:,} integers, found {len(values):,}")
    return values[first : first + count]


def _program(count: int, storage: str) -> bytes:
    number = _packed(count)
    return _HEAD % storage.encode() + number + b"tq\x05QK\x00" + number + _TAIL


def _packed(number: int) -> bytes:
    """A number in pickle encoding: in 1, 2 or 4 bytes."""
    if number < 1 << 8:
        return b"K" + struct.pack("<B", number)
    return b"M" + struct.pack("<H", number) if number < 1 << 16 else b"J" + struct.pack("<i", number)


def _number(groups: tuple[bytes | None, ...]) -> int:
    return next(int.from_bytes(group, "little") for group in groups if group is not None)


def _align(place: int) -> bytes:
    """Padding field with which torch aligns data to a multiple of 64 bytes."""
    padding = -(place + 4) % ALIGNMENT
    return struct.pack("<2sH", b"FB", padding) + b"Z" * padding


NAME = re.compile(r"chunk_(?P<number>\d{6,})\.pt")
METADATA = "metadata.json"
PART_FILES = 1024
BLOCK_TOKENS = 1 << 20
"""Approximate number of tokens of the rows read at a time."""


class PtOptions(Options, frozen=True):
    dataset: str = "packline"
    """Name of the dataset in metadata.json."""
    max_files: Size | None = None
    """Maximum number of files."""


class Pt(RowFormat):
    name = "pt"
    title = "Temporal Eigenstate Networks: chunk_000000.pt, int64 rows, with metadata.json"
    options = PtOptions
    shuffled = False

    def has_mask(self, options: PtOptions) -> bool:
        return False

    def plan(self, view: RowView, options: PtOptions) -> ExportPlan:
        parts, files, start = [], 0, 0
        while start < view.rows and (options.max_files is None or files < options.max_files):
            stop = min(start + PART_FILES, view.rows)
            full = _full_rows(view, start, stop)
            if options.max_files is not None and files + len(full) > options.max_files:
                stop = int(full[options.max_files - files])
                full = full[: options.max_files - files]
            if len(full):
                parts.append(ExportPart(f"files-{files:06d}", number=files, start=start, stop=stop))
            files, start = files + len(full), stop
        if not files:
            raise RecipeError(
                f"pt: no row of {view.seq_len:,} tokens is full, and padding cannot be marked in others",
                hint="choose a smaller seq_len, or packing concat",
            )
        lost = list(view.not_preserved(masks=False, boundaries=False))
        lost = [one for one in lost if one.what != "padding mask"]  # rows with padding are not written
        if tail := view.tokens - files * view.seq_len:
            why = "rows with padding" + ("" if options.max_files is None else ", or above max_files")
            lost.insert(0, NotPreserved("tail", tail, "tokens", why))
        each = tensor_file_bytes(view.seq_len, "chunk_000000")
        return ExportPlan(tuple(parts), files * each, lost=tuple(lost))

    def write(self, view: RowView, part: ExportPart, target: Target, options: PtOptions) -> Facts:
        number = part.number
        for tokens in _read_full(view, part):
            for row in tokens:
                name = f"chunk_{number:06d}"
                with target.create(f"{name}.pt") as file:
                    file.write(tensor_file(row, name))
                number += 1
            target.progress(tokens.size)
        return {"files": number - part.number}

    def finish(self, view: RowView, written: list[WrittenPart], target: Target, options: PtOptions) -> None:
        files = sum(one.facts["files"] for one in written)
        left = sum(lost.count for lost in view.lost if lost.unit == "tokens")
        metadata = {
            "dataset": options.dataset,
            "tokenizer": view.tokenizer_name,
            "vocab_size": view.vocab_size,
            "chunk_size": view.seq_len,
            "num_chunks": files,
            "total_tokens": files * view.seq_len,
            "pad_token_id": view.pad_id,
            "eos_token_id": view.eod_id,
            "bos_token_id": view.bos_id,
            "leftover_tokens": view.tokens - files * view.seq_len + left,
        }
        with target.create(METADATA) as file:
            file.write(msgspec.json.format(msgspec.json.encode(metadata), indent=2) + b"\n")

    def recognises(self, path: Path) -> bool:
        files, _ = numbered_files(path, NAME)
        try:
            return bool(files) and read_tensor(files[0].path).ndim == 1
        except CorruptStore:
            return False

    def check(self, path: Path, findings: Findings) -> RowFiles:
        files, found = numbered_files(path, NAME, "rows, chunk_000000.pt and so on")
        size: int | None = None
        try:
            size = len(read_tensor(files[0].path)) or None
            for file in [file for file in files if file.bytes != files[0].bytes][:100]:
                findings.add(file.name, "size in bytes, as of the first file", files[0].bytes, file.bytes)
        except CorruptStore as error:
            findings.add(files[0].name, error.message.removeprefix(f"{files[0].path}: "))
        for place, match in enumerate(found if path.is_dir() else ()):
            if not findings.compare(match[0], "number of the file", place, int(match["number"])):
                break
        if not path.is_dir() or not (metadata := path / METADATA).is_file():
            return RowFiles(files)
        files.append(DatasetFile.of(metadata, path))
        return RowFiles(files, _metadata(metadata, len(found), size, findings))


def _full_rows(view: RowView, start: int, stop: int) -> np.ndarray:
    """Numbers of the rows without padding, int64."""
    return start + np.flatnonzero(view.lengths(start, stop) == view.seq_len)


def _read_full(view: RowView, part: ExportPart) -> Iterator[np.ndarray]:
    """Yield the full rows of a part, int32 `[n, L]`, in blocks."""
    block = max(BLOCK_TOKENS // view.seq_len, 1)
    for start in range(part.start, part.stop, block):
        stop = min(start + block, part.stop)
        tokens = view.read(start, stop, ("tokens",))["tokens"]
        yield tokens[_full_rows(view, start, stop) - start]


def _metadata(path: Path, count: int, size: int | None, findings: Findings) -> dict[str, Any]:
    """Facts about the tokens from metadata.json; its facts about the files are compared with the files."""
    declared = read_facts(path, findings)
    for key, found in (("num_chunks", count), ("chunk_size", size)):
        if key in declared and found is not None:
            findings.compare(METADATA, key, found, declared[key])
    names = {"vocab_size": "vocab_size", "tokenizer": "tokenizer", "eos_token_id": "eod_id"}
    facts = {ours: declared[theirs] for theirs, ours in names.items() if declared.get(theirs) is not None}
    size, pad = facts.get("vocab_size"), declared.get("pad_token_id")
    if isinstance(size, int) and pad == size - 1 and pad != declared.get("eos_token_id"):
        facts["vocab_size"] = pad  # the script adds a padding token to a tokenizer that has none
    return facts


FORMAT = Pt()
