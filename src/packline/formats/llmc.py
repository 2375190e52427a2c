"""llm.c, modded-nanogpt: shards of tokens after a header of 1,024 bytes.

    0     int32   magic
    4     int32   version
    8     int32   n, tokens in this file
    12            zeros
    1024  [n]     tokens

    magic 20240520, version 1   uint16   (GPT-2's vocabulary)
    magic 20240801, version 7   uint32   (Llama 3's)
    magic 20240522, version 1   questions with choices, for HellaSwag; no documents

All little-endian. A file has exactly 1024 + n * itemsize bytes, otherwise llm.c aborts; n < 2**31. Names are
`PREFIX_val_000000.bin`, `PREFIX_train_000001.bin`: a trainer reads the files that match a pattern containing
`train`, in the order of names. One token precedes each document: the begin of document, or the end of
document moved to the front (GPT-2's 50256), which modded-nanogpt searches for. A document may continue in the
next file. A shard needs more tokens than a batch, which a short last shard may not have.

There is no loss mask and no index: documents are delimited by markers alone. Evaluation sets are not read.
Based on the readers in llm.c's `dataloader.h` and modded-nanogpt's `train_gpt.py`; neither is on the package
index, so tests use a reader written from these rules.
"""

from __future__ import annotations

import shlex
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from packline.errors import InputError
from packline.formats.format import DatasetReader, DocumentFormat
from packline.formats.layouts.header_shards import (
    ShardOptions,
    first_bytes,
    missing_shards,
    open_shards,
    plan_shards,
    shard_pattern,
    split_of_name,
    write_tokens,
)
from packline.formats.layouts.token_files import TokenFile
from packline.formats.types import DatasetFile, ExportPart, ExportPlan, fitting_dtype
from packline.store.report import Findings

if TYPE_CHECKING:
    from packline.formats.document_view import DocumentView
    from packline.formats.export_record import ExportRecord, Target

HEADER_BYTES = 1024
HEAD = struct.Struct("<3i")
MAGICS: dict[int, tuple[int, np.dtype]] = {
    20240520: (1, np.dtype("<u2")),
    20240801: (7, np.dtype("<u4")),
}
"""Version and dtype for each magic number."""
EVALUATION = 20240522
ARGUMENTS = {"train": "-i", "val": "-j"}
"""Options of llm.c's trainer for the shards of each split."""
LIMITS = {"uint16": 65_536, "uint32": 2**31}
"""Largest vocabulary for each dtype; ids in a store are int32."""


class LlmcOptions(ShardOptions, frozen=True):
    """Options for llm.c's shards."""

    prefix: str = "fineweb"
    """Prefix of file names, before `_train_000001`; may be empty."""
    version: Literal["auto", 1, 7] = "auto"
    """1: uint16; 7: uint32; auto: the first that fits the vocabulary."""


class Llmc(DocumentFormat):
    """llm.c's shards."""

    name = "llmc"
    title = "llm.c, modded-nanogpt: PREFIX_train_000001.bin, header of 1,024 bytes"
    options = LlmcOptions
    opened = missing_shards(".bin", "llm.c and modded-nanogpt")

    def recognises(self, path: Path) -> bool:
        heads = first_bytes(path, (".bin",), 4)
        known = any(len(head) == 4 and int.from_bytes(head, "little") in MAGICS for _, head in heads)
        return known and not any(one.name.endswith("_mask.bin") for one, _ in heads)

    def trainer_lines(self, out: str, record: ExportRecord, options: LlmcOptions) -> tuple[str, ...]:
        files = {split: shard_pattern(out, record, options, split, ".bin") for split in ("train", "val")}
        shards = [entry.bytes for entry in record.files if entry.name.endswith(".bin")]
        itemsize = _dtype(record.tokenizer.vocab_size, options).itemsize
        least = (min(shards) - HEADER_BYTES) // itemsize
        named = {flag: files[split] for split, flag in ARGUMENTS.items() if files[split]}
        arguments = [f"{flag} {shlex.quote(pattern)}" for flag, pattern in named.items()]
        return (
            f"./train_gpt2cu {' '.join(arguments)}  # B * T * ranks below {least:,}: the smallest shard",
            *(f"{split}_files = {files[split]!r}  # modded-nanogpt" for split in files if files[split]),
        )

    def plan(self, view: DocumentView, options: LlmcOptions) -> ExportPlan:
        itemsize = _layout(view, options)[2].itemsize
        plan = plan_shards(view, options, self.name, lambda tokens: HEADER_BYTES + tokens * itemsize, 2)
        train = [part for part in plan.parts if part.split == "train"]
        if len(train) != 1:
            return plan
        size = max(train[0].stop // 2, 1)
        alone = (
            "one train shard: modded-nanogpt stops before its first batch with fewer than two "
            f"(llm.c does not); --set shard_tokens={size} makes more"
        )
        return msgspec.structs.replace(plan, warnings=(*plan.warnings, alone))

    def write(
        self, view: DocumentView, part: ExportPart, target: Target, options: LlmcOptions
    ) -> dict[str, Any]:
        magic, version, dtype = _layout(view, options)
        with target.create(f"{part.name}.bin") as file:
            file.write(shard_header(magic, version, part.stop - part.start))
            write_tokens(file, view.stream(part.split), part.start, part.stop, dtype, target)
        return {}

    def open(self, path: Path, options: LlmcOptions, findings: Findings) -> DatasetReader:
        return open_shards(path, ".bin", "llm.c's shards, *.bin", _open_file, options, findings)


def shard_header(magic: int, version: int, tokens: int) -> bytes:
    """The first 1,024 bytes of a file.

    >>> shard_header(20240520, 1, 5)[:12].hex(" ", 4), len(shard_header(20240520, 1, 5))
    ('88d83401 01000000 05000000', 1024)
    """
    return HEAD.pack(magic, version, tokens).ljust(HEADER_BYTES, b"\0")


def _dtype(vocab_size: int, options: LlmcOptions) -> np.dtype:
    by_version = {version: dtype.name for version, dtype in MAGICS.values()}
    choice = "auto" if options.version == "auto" else by_version[options.version]
    return fitting_dtype("llmc", vocab_size, LIMITS, choice)


def _layout(view: DocumentView, options: LlmcOptions) -> tuple[int, int, np.dtype]:
    """Magic, version and dtype for an output."""
    dtype = _dtype(view.vocab_size, options)
    magic = next(magic for magic, (_, its) in MAGICS.items() if its == dtype)
    return magic, MAGICS[magic][0], dtype


def _open_file(files: list[DatasetFile], number: int, findings: Findings) -> TokenFile | None:
    file = files[number]
    with open(file.path, "rb") as opened:
        head = opened.read(HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        findings.add(file.name, "bytes of the header", HEADER_BYTES, len(head))
        return None
    magic, version, count = HEAD.unpack_from(head)
    if magic == EVALUATION:
        raise InputError(
            f"{file.path}: expected tokens of documents, "
            f"found an evaluation set of llm.c (magic {EVALUATION})",
            hint="it holds questions with choices; leave it out of the folder",
        )
    if magic not in MAGICS:
        findings.add(file.name, "magic number", " or ".join(map(str, MAGICS)), str(magic))
        return None
    expected, dtype = MAGICS[magic]
    if not findings.compare(file.name, f"version, of magic {magic}", expected, version):
        return None
    if count < 0:
        findings.add(file.name, "tokens, by its header", "none or more", count)
        return None
    findings.compare(file.name, "size in bytes", HEADER_BYTES + count * dtype.itemsize, file.bytes)
    room = (file.bytes - HEADER_BYTES) // dtype.itemsize
    return TokenFile(
        files, number, dtype, split=split_of_name(file.name), header=HEADER_BYTES, tokens=min(count, room)
    )


FORMAT = Llmc()
