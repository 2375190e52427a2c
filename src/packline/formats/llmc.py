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

Evaluation sets are not read. Based on the readers in llm.c's `dataloader.h` and modded-nanogpt's
`train_gpt.py`; neither is on the package index, so tests use a reader written from these rules.
"""

from __future__ import annotations

import shlex
import struct
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np

from packline.errors import InputError
from packline.formats.document_view import DocumentView
from packline.formats.export_record import ExportRecord
from packline.formats.layouts.files import first_bytes, split_of_name
from packline.formats.layouts.header_shards import ShardFormat, ShardOptions, missing_shards, shard_pattern
from packline.formats.layouts.token_files import TokenFile
from packline.formats.types import DatasetFile, ExportPlan, fitting_dtype
from packline.store.report import Findings

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


class LlmcOptions(ShardOptions, frozen=True):
    prefix: str = "fineweb"
    """Prefix of file names, before `_train_000001`; may be empty."""
    version: Literal["auto", 1, 7] = "auto"
    """1: uint16; 7: uint32; auto: the first that fits the vocabulary."""


class Llmc(ShardFormat):
    name = "llmc"
    title = "llm.c, modded-nanogpt: PREFIX_train_000001.bin, header of 1,024 bytes"
    options = LlmcOptions
    opened = missing_shards(".bin", "llm.c and modded-nanogpt")
    limits: ClassVar = {"uint16": 65_536, "uint32": 2**31}  # ids in a store are int32
    ending, what, least_train = ".bin", "llm.c's shards, *.bin", 2

    def dtype_of(self, vocab_size: int, options: Any) -> np.dtype:
        choice = {version: dtype.name for version, dtype in MAGICS.values()}.get(options.version, "auto")
        return fitting_dtype(self.name, vocab_size, self.limits, choice)

    def recognises(self, path: Path) -> bool:
        heads = first_bytes(path, (".bin",), 4)
        known = any(len(head) == 4 and int.from_bytes(head, "little") in MAGICS for _, head in heads)
        return known and not any(one.name.endswith("_mask.bin") for one, _ in heads)

    def trainer_lines(self, out: str, record: ExportRecord, options: LlmcOptions) -> tuple[str, ...]:
        files = {split: shard_pattern(out, record, options, split, ".bin") for split in ("train", "val")}
        shards = [entry.bytes for entry in record.files if entry.name.endswith(".bin")]
        itemsize = self.dtype_of(record.tokenizer.vocab_size, options).itemsize
        least = (min(shards) - HEADER_BYTES) // itemsize
        named = {flag: files[split] for split, flag in ARGUMENTS.items() if files[split]}
        arguments = [f"{flag} {shlex.quote(pattern)}" for flag, pattern in named.items()]
        return (
            f"./train_gpt2cu {' '.join(arguments)}  # B * T * ranks below {least:,}: the smallest shard",
            *(f"{split}_files = {files[split]!r}  # modded-nanogpt" for split in files if files[split]),
        )

    def plan(self, view: DocumentView, options: ShardOptions) -> ExportPlan:
        plan = super().plan(view, options)
        train = [part for part in plan.parts if part.split == "train"]
        if len(train) != 1:
            return plan
        size = max(train[0].stop // 2, 1)
        alone = (
            "one train shard: modded-nanogpt stops before its first batch with fewer than two "
            f"(llm.c does not); --set shard_tokens={size} makes more"
        )
        return msgspec.structs.replace(plan, warnings=(*plan.warnings, alone))

    def header(self, tokens: int, dtype: np.dtype) -> bytes:
        return shard_header(tokens, dtype)

    def open_file(self, files: list[DatasetFile], number: int, findings: Findings) -> TokenFile | None:
        file = files[number]
        if (head := read_head(file, findings)) is None:
            return None
        magic, version, count = head
        if magic == EVALUATION:
            raise InputError(
                f"{file.path}: expected tokens of documents, "
                f"found an evaluation set of llm.c (magic {EVALUATION})",
                hint="it holds questions with choices; leave it out of the folder",
            )
        expected, dtype = MAGICS.get(magic, (None, np.dtype("<u2")))
        if version != expected or count < 0:
            known = " or ".join(f"{one} and {number}" for one, (number, _) in MAGICS.items())
            findings.add(file.name, "magic number and version, tokens", f"{known}, none or more", head)
            return None
        findings.compare(file.name, "size in bytes", HEADER_BYTES + count * dtype.itemsize, file.bytes)
        split = split_of_name(file.name)
        return TokenFile(files, number, dtype, split=split, header=HEADER_BYTES, tokens=count)


def shard_header(tokens: int, dtype: np.dtype) -> bytes:
    """The first 1,024 bytes of a file."""
    magic, version = next((magic, version) for magic, (version, its) in MAGICS.items() if its == dtype)
    return HEAD.pack(magic, version, tokens).ljust(HEADER_BYTES, b"\0")


def read_head(file: DatasetFile, findings: Findings) -> tuple[int, int, int] | None:
    """Magic, version and number of tokens of a file; None, and a problem, if it is too short."""
    with open(file.path, "rb") as opened:
        head = opened.read(HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        findings.add(file.name, "bytes of the header", HEADER_BYTES, len(head))
        return None
    magic, version, count = HEAD.unpack_from(head)
    return magic, version, count


FORMAT = Llmc()
