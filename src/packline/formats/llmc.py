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

Shards are cut at a number of tokens, regardless of documents; build-nanogpt (`npy`) has the same with another
header. The last shard of a split is shorter, or left out on request.

Evaluation sets are not read. Based on the readers in llm.c's `dataloader.h` and modded-nanogpt's
`train_gpt.py`; neither is on the package index, so tests use a reader written from these rules.
"""

from __future__ import annotations

import shlex
import struct
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np

from packline.errors import InputError, RecipeError
from packline.formats.document_view import DocumentView
from packline.formats.export_folder import ExportRecord, Target
from packline.formats.files import SHARD_ORDER, find_files, first_bytes, split_of_name
from packline.formats.format import DocumentFormat, Options
from packline.formats.token_files import ScannedReader, TokenFile
from packline.formats.types import DatasetFile, ExportPart, ExportPlan, Facts, NotPreserved, fitting_dtype
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
MOST_TOKENS = 2**31 - 1
"""Most tokens per shard, since its header counts them in an int32."""
USUAL_SHARD = 100_000_000
"""Most tokens per shard, unless a number is given."""
USUAL_BATCH = 1 << 19
"""Tokens per step, over all ranks, of the GPT-2 runs of llm.c and build-nanogpt."""

StreamEdges = Literal["bos", "eod", "both"]
"""Edges of documents that are separated by a token only."""


class ShardOptions(Options, frozen=True):
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


class ShardFormat(DocumentFormat):
    """A format of such shards: each has a header, and then its tokens."""

    ending: ClassVar[str]
    what: ClassVar[str]
    """Description of its files, for errors."""
    least_train: ClassVar[int] = 1
    """Shards of train that its trainers need; without a given size, made if each has more than a batch."""

    @abstractmethod
    def header(self, tokens: int, dtype: np.dtype) -> bytes:
        """Bytes of a file before its tokens."""

    @abstractmethod
    def open_file(self, files: list[DatasetFile], number: int, findings: Findings) -> TokenFile | None:
        """Read the header of a file; None if it cannot be read."""

    def plan(self, view: DocumentView, options: ShardOptions) -> ExportPlan:
        """One part per shard; `start` and `stop` are tokens of its split's stream."""
        dtype, given = self.dtype_of(view.vocab_size, options), options.shard_tokens
        if given is not None and not 1 <= given <= MOST_TOKENS:
            raise RecipeError(
                f"{self.name}: expected shard_tokens from 1 to {MOST_TOKENS:,}, found {given:,}"
            )
        parts: list[ExportPart] = []
        lost = list(view.not_preserved(self.name))
        for split in sorted(view.splits, key=SHARD_ORDER.index):
            tokens, train = view.stream(split).tokens, split == "train"
            size = given or _equal_size(tokens, self.least_train if train else 1)
            tail = tokens % size if given and train and options.last_shard == "drop" else 0
            if tail == tokens > 0:
                raise RecipeError(
                    f"{self.name}: train has {tokens:,} tokens: expected at least a shard of {size:,}, "
                    "because the last one is dropped",
                    hint="set last_shard=keep, or shard_tokens smaller",
                )
            if tail:
                lost.append(NotPreserved("tail", tail, "tokens", "the last shard of train is not full"))
            first = len(parts) if options.numbering == "shared" else 0
            for number, start in enumerate(range(0, tokens - tail, size), first):
                name = f"{shard_prefix(options.prefix, split)}{number:06d}"
                parts.append(ExportPart(name, split, number, start, min(start + size, tokens - tail)))
        sizes = [part.stop - part.start for part in parts]
        whole = sum(len(self.header(size, dtype)) + size * dtype.itemsize for size in sizes)
        return ExportPlan(tuple(parts), whole, lost=tuple(lost), warnings=_short_shards(parts))

    def write(self, view: DocumentView, part: ExportPart, target: Target, options: ShardOptions) -> Facts:
        dtype = self.dtype_of(view.vocab_size, options)
        with target.create(f"{part.name}{self.ending}") as file:
            file.write(self.header(part.stop - part.start, dtype))
            view.stream(part.split).write(file, part.start, part.stop, dtype, target)
        return {}

    def open(self, path: Path, options: ShardOptions, findings: Findings) -> ScannedReader:
        listed, paths = find_files(path, self.ending, self.what)
        numbers = [listed.add(one) for one in paths]
        opened = [self.open_file(listed.files, number, findings) for number in numbers]
        sources = [source for source in opened if source is not None]
        marker, edges = options.marker, options.edges
        return ScannedReader(listed.files, sources, marker=marker, edges=edges, findings=findings)


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
    """Files that are missing for a trainer that opens shards of train and of val, by split."""
    does = "open one and stop" if " and " in trainer else "opens one and stops"
    return MappingProxyType(
        {split: f"no *_{split}_*{ending}: {trainer} {does} without" for split in ("val", "train")}
    )


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
