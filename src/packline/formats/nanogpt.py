"""nanoGPT: `train.bin` and `val.bin`, tokens without a header.

    train.bin   uint16 [T], little-endian, documents back to back, each followed by its end-of-document token
    val.bin     the same
    meta.pkl    only with the option meta_pkl: {"vocab_size": n, "itos": {id: text}, "stoi": {text: id}}

The trainer maps each file and reads windows at random positions. It only supports uint16, so a vocabulary of
more than 65,536 is refused. A split that is exactly one shard of the store shares that file.

`meta.pkl` is a pickle: nanoGPT's trainer reads the vocabulary size from it, and its sampler the characters.
It is needed for vocabularies of single characters, and for the size above 50,304 ids. The sampler then
encodes a prompt by characters, so it is better omitted for all others, such as GPT-2's. It is written opcode
by opcode and never read. Where two ids have the same text, `stoi` gives the smaller.

Based on `train.py`, `sample.py` and the `prepare.py` files of nanoGPT, which is not on the package index:
tests use NumPy and a loader written from these rules.
"""

from __future__ import annotations

import shlex
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from packline.formats.document_view import DocumentView
from packline.formats.export_folder import ExportRecord, Target
from packline.formats.files import find_files, first_bytes, split_of_name
from packline.formats.format import DatasetReader, DocumentFormat, Options
from packline.formats.llmc import EVALUATION, HEAD, MAGICS, StreamEdges
from packline.formats.token_files import ScannedReader, TokenFile
from packline.formats.types import DatasetFile, ExportPart, ExportPlan, Facts, WrittenPart
from packline.store.report import Findings

Plain = str | bytes | int | Mapping[str, "Plain"] | Mapping[bytes, int] | Mapping[int, str]


def pickled(value: Plain) -> bytes:
    """Opcodes that make a value: a number below 2**31, text, bytes (from protocol 3 on), or a dict of these.

    >>> pickled({"a": 1})
    b'}(X\\x01\\x00\\x00\\x00aJ\\x01\\x00\\x00\\x00u'
    """
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        return b"X" + struct.pack("<I", len(data)) + data  # BINUNICODE
    if isinstance(value, bytes):
        return b"B" + struct.pack("<I", len(value)) + value  # BINBYTES
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)  # BININT
    pairs = (pickled(key) + pickled(one) for key, one in value.items())
    return b"}(" + b"".join(pairs) + b"u"  # EMPTY_DICT, MARK, keys and values, SETITEMS


DTYPE = np.dtype("<u2")
DEFAULT_VOCABULARY = 50_304
"""Vocabulary size of a model in nanoGPT's `train.py` without a meta.pkl."""
NAMES = ("train.bin", "val.bin", "test.bin")


class NanogptOptions(Options, frozen=True):
    edges: StreamEdges = "eod"
    """Boundary tokens of documents."""
    meta_pkl: bool = False
    """Also write `meta.pkl`: vocabulary size and texts, as nanoGPT needs for character vocabularies."""
    marker: int | None = None
    """Reading: the id that separates documents; taken from the tokenizer unless given."""


class Nanogpt(DocumentFormat):
    name = "nanogpt"
    title = "nanoGPT: train.bin and val.bin, uint16 without a header"
    options = NanogptOptions
    limits: ClassVar = {"uint16": 65_536}
    opened = MappingProxyType(
        {one: f"no {one}.bin: nanoGPT's train.py opens it and stops without" for one in ("train", "val")}
    )

    def recognises(self, path: Path) -> bool:
        if path.is_file():
            return path.name in NAMES and not path.with_suffix(".idx").exists()
        heads = {one.name: head for one, head in first_bytes(path, (".bin",), 4)}
        magics = {magic.to_bytes(4, "little") for magic in (*MAGICS, EVALUATION)}
        return bool(heads) and all(
            name in NAMES and head not in magics and not (path / name).with_suffix(".idx").exists()
            for name, head in heads.items()
        )

    def trainer_lines(self, out: str, record: ExportRecord, options: NanogptOptions) -> tuple[str, ...]:
        lines = [f"dataset = {out!r}  # or --dataset={shlex.quote(out)}"]
        if record.tokenizer.vocab_size > DEFAULT_VOCABULARY and not options.meta_pkl:
            lines.append(
                f"# the model has {DEFAULT_VOCABULARY:,} ids by default, the data "
                f"{record.tokenizer.vocab_size:,}: export with --set meta_pkl=true, which train.py reads"
            )
        return tuple(lines)

    def plan(self, view: DocumentView, options: NanogptOptions) -> ExportPlan:
        self.dtype_of(view.vocab_size, options)
        parts = tuple(
            ExportPart(split, split, 0, 0, view.stream(split).tokens, shard=_shard(view, split))
            for split in view.splits
        )
        shared = sum(part.stop * DTYPE.itemsize for part in parts if part.shard)
        return ExportPlan(parts, view.tokens * DTYPE.itemsize - shared, shared, view.not_preserved(self.name))

    def write(self, view: DocumentView, part: ExportPart, target: Target, options: NanogptOptions) -> Facts:
        stream, name = view.stream(part.split), f"{part.split}.bin"
        if shard := stream.shard(part.shard):
            shard.share(target, name, ".bin")
            target.progress(part.stop)
        else:
            with target.create(name) as file:
                stream.write(file, part.start, part.stop, DTYPE, target)
        return {}

    def finish(
        self, view: DocumentView, written: list[WrittenPart], target: Target, options: NanogptOptions
    ) -> None:
        if options.meta_pkl:
            decode = view.store.tokenizer.decode
            texts = [decode([number], skip_special_tokens=False) for number in range(view.vocab_size)]
            with target.create("meta.pkl") as file:
                file.write(meta_pickle(texts))

    def open(self, path: Path, options: NanogptOptions, findings: Findings) -> DatasetReader:
        listed, paths = find_files(path, NAMES, "nanoGPT's train.bin, val.bin")
        sources = []
        for one in paths:
            file = listed.files[number := listed.add(one)]
            whole = file.bytes - file.bytes % DTYPE.itemsize
            findings.compare(file.name, "size in bytes, a multiple of 2", whole, file.bytes)
            _refuse_header(file, findings)
            sources.append(TokenFile(listed.files, number, DTYPE, split=split_of_name(file.name)))
        edges, marker = options.edges, options.marker
        return ScannedReader(listed.files, sources, marker=marker, edges=edges, findings=findings)


def _refuse_header(file: DatasetFile, findings: Findings) -> None:
    """Report a file of llm.c's: its header would be read as tokens."""
    with open(file.path, "rb") as opened:
        head = opened.read(HEAD.size)
    if len(head) == HEAD.size and HEAD.unpack(head)[:2] in ((m, v) for m, (v, _) in MAGICS.items()):
        findings.add(file.name, "header", "none", f"llm.c's, of version {HEAD.unpack(head)[1]} (--from llmc)")


def meta_pickle(texts: list[str]) -> bytes:
    """Pickle (protocol 2) of nanoGPT's `meta`, for the texts of all ids."""
    stoi: dict[str, int] = {}
    for number, text in enumerate(texts):
        stoi.setdefault(text, number)
    itos = dict(enumerate(texts))
    return b"\x80\x02" + pickled({"vocab_size": len(texts), "itos": itos, "stoi": stoi}) + b"."


def _shard(view: DocumentView, split: str) -> str:
    """Name of the stored shard that is byte for byte a split; empty if there is none."""
    shards = view.stream(split).shards
    if shards is None or len(shards) != 1 or view.store.dtype != DTYPE:
        return ""
    return shards[0].name


FORMAT = Nanogpt()
