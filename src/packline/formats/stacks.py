"""stacks' conversations for supervised fine-tuning: shards of tokens, each with a shard of loss masks.

    sft_val_000000.bin     1,024 bytes of header, then uint16 [n]: tokens      header as llm.c's, version 1
    sft_val_000000_mask.bin                the same header, then uint16 [n]: 1 = trained on, 0 = not
    sft_train_000001.bin, ...
    config.json            max_seq_len, shard_size, bos_id, vocab_size; per split conversations, tokens,
                           shards, truncated; and conversations by source

Documents, here conversations, have one token in front and none at the end, are truncated to `max_seq_len`
tokens, and lie back to back in shards of `shard_size` tokens: a document may continue in the next shard,
which is not padded. val is numbered first and train continues the numbering; the last shard of each is
shorter. The trainer shifts: the target at t is token t + 1, and counts if mask t + 1 is 1.

The front token is the store's begin of document, or its end of document moved there. It keeps its byte of the
loss mask, as it is the target of the last token before it; but after a truncated document it is 0, because
the document does not end there. A store without a loss mask is trained on everywhere.

uint16 only, so vocabularies up to 65,536. Based on the project's `data/sft_dataset.py`; tests use a reader
written from its rules.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from packline.errors import InputError, RecipeError
from packline.formats.document_view import DocumentStream, DocumentView
from packline.formats.export_folder import Target
from packline.formats.files import SHARD_ORDER, numbered_files, read_facts
from packline.formats.format import DatasetReader, DocumentFormat, Options
from packline.formats.llmc import (
    HEADER_BYTES,
    MOST_TOKENS,
    missing_shards,
    read_head,
    shard_header,
    shard_prefix,
)
from packline.formats.token_files import Numbers, ScannedReader, TokenFile
from packline.formats.types import (
    DatasetFile,
    Edges,
    ExportPart,
    ExportPlan,
    Facts,
    NotPreserved,
    WrittenPart,
)
from packline.packing.offsets import sums_of
from packline.recipe import SPLITS
from packline.store.reader import shard_labels
from packline.store.report import Findings

MAGIC, VERSION = 20240520, 1
UINT16 = np.dtype("<u2")
NAME = re.compile(r"(?P<prefix>.*)(?P<split>val|test|train)_(?P<number>\d{6,})\.bin")
CONFIG = "config.json"
BLOCK_DOCUMENTS = 1 << 14
"""Maximum number of documents whose lengths and tokens are read together."""


class StacksOptions(Options, frozen=True):
    max_seq_len: int = 2048
    """Maximum tokens per document; longer ones are truncated."""
    shard_size: int = 10_000_000
    """Tokens per shard."""
    prefix: str = "sft"
    """Prefix of file names."""
    marker: int | None = None
    """Reading: the token before documents; default: from config.json, else from the tokenizer."""


class Stacks(DocumentFormat):
    name = "stacks"
    title = "stacks: sft_train_000001.bin with sft_train_000001_mask.bin, and config.json"
    options = StacksOptions
    limits: ClassVar = {"uint16": 65_536}
    opened = missing_shards(".bin", "the sft_data_generator of stacks")

    def edges_of(self, options: StacksOptions) -> Edges:
        return "bos"

    def plan(self, view: DocumentView, options: StacksOptions) -> ExportPlan:
        self.dtype_of(view.vocab_size, options)
        if options.max_seq_len < 1 or not 1 <= options.shard_size <= MOST_TOKENS:
            raise RecipeError(
                f"stacks: expected a max_seq_len from 1 and a shard_size from 1 to {MOST_TOKENS:,}, "
                f"found {options.max_seq_len:,} and {options.shard_size:,}"
            )
        parts: list[ExportPart] = []
        cut = size = 0
        for split in sorted(view.splits, key=SHARD_ORDER.index):
            stream = Truncated(view.stream(split), options.max_seq_len)
            cut += view.stream(split).tokens - stream.tokens
            size += 4 * stream.tokens
            for start in range(0, stream.tokens, options.shard_size):
                stop, number = min(start + options.shard_size, stream.tokens), len(parts)
                name = f"{shard_prefix(options.prefix, split)}{number:06d}"
                parts.append(ExportPart(name, split, number, start, stop))
        lost = list(view.not_preserved(self.name, keeps_loss=True))
        if cut:
            why = f"behind {options.max_seq_len:,} tokens"
            lost.insert(0, NotPreserved("truncated tokens", cut, "tokens", why))
        return ExportPlan(tuple(parts), size + 2 * HEADER_BYTES * len(parts), lost=tuple(lost))

    def write(self, view: DocumentView, part: ExportPart, target: Target, options: StacksOptions) -> Facts:
        stream = Truncated(view.stream(part.split), options.max_seq_len)
        first = shard_header(part.stop - part.start, UINT16)
        with target.create(f"{part.name}.bin") as file, target.create(f"{part.name}_mask.bin") as masks:
            file.write(first)
            masks.write(first)
            for tokens, mask in stream.read(part.start, part.stop):
                file.write(tokens)
                masks.write(mask)
                target.progress(len(tokens))
        return stream.facts(part.start, part.stop)

    def finish(
        self, view: DocumentView, written: list[WrittenPart], target: Target, options: StacksOptions
    ) -> None:
        config: dict[str, Any] = {
            "max_seq_len": options.max_seq_len,
            "shard_size": options.shard_size,
            "bos_id": view.marker_id,
            "vocab_size": view.vocab_size,
        }
        sources: dict[str, Counter[str]] = {}
        splits = ["val", "train", *(["test"] if "test" in view.splits else [])]
        for split in splits:
            its = [one for one in written if one.part.split == split]
            sources[split] = sum((Counter(one.facts["sources"]) for one in its), Counter())
            config[f"{split}_conversations"] = sum(one.facts["documents"] for one in its)
            config[f"{split}_tokens"] = sum(one.part.stop - one.part.start for one in its)
            config[f"{split}_shards"] = len(its)
            config[f"{split}_truncated"] = sum(one.facts["truncated"] for one in its)
        for split in sorted(splits, key=SPLITS.index):
            config[f"{split}_source_counts"] = dict(sorted(sources[split].items()))
        with target.create(CONFIG) as file:
            file.write(msgspec.json.format(msgspec.json.encode(config), indent=2) + b"\n")

    def recognises(self, path: Path) -> bool:
        files = _pairs(path)
        try:
            return bool(files) and _open_pair(files, 0, (), Findings()) is not None
        except OSError:
            return False

    def open(self, path: Path, options: StacksOptions, findings: Findings) -> DatasetReader:
        files = _pairs(path, findings)
        if not files:
            raise InputError(
                f"{path}: expected shards with masks, sft_train_000000.bin and sft_train_000000_mask.bin, "
                "found none",
                hint="shards without masks are those of llmc",
            )
        facts: dict[str, Any] = {}
        companions: tuple[int, ...] = ()
        shards = range(0, len(files), 2)
        if (config := Path(files[0].path).parent / CONFIG).is_file():
            companions = (len(files),)
            files.append(DatasetFile.of(config, config.parent))
            declared = read_facts(config, findings)
            facts = {
                key: declared[key] for key in ("vocab_size", "bos_id") if isinstance(declared.get(key), int)
            }
        sources: list[TokenFile] = []
        for number in shards:
            source = _open_pair(files, number, companions if not sources else (), findings)
            if source is not None:
                sources.append(source)
        marker = options.marker if options.marker is not None else facts.get("bos_id")
        return ScannedReader(files, sources, marker=marker, edges="bos", findings=findings, facts=facts)


class Truncated:
    """Stream of documents, each truncated to a maximum number of tokens."""

    def __init__(self, stream: DocumentStream, limit: int) -> None:
        self._stream, self._limit = stream, limit
        dropped = stream.selection.tokens - stream.tokens  # of all documents: the same number per document
        self._dropped = dropped // stream.documents
        self._sums = sums_of(
            stream.selection,
            lambda lengths: np.minimum(lengths - self._dropped, limit),
            f"tokens without {self._dropped}, at most {limit}",
        )
        self.tokens = self._sums.total
        """Number of tokens after truncation."""

    def read(self, start: int, stop: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield tokens `start` to `stop` and their masks, both uint16, some documents at a time."""
        places, before = self._sums.find(np.array([start], np.int64))
        place, begin = int(places[0]), int(before[0])
        while begin < stop:
            last = min(place + BLOCK_DOCUMENTS, self._stream.documents)
            cut_before = place > 0 and int(self._stream.lengths(place - 1, place)[0]) > self._limit
            for block in self._stream.blocks(place, last, UINT16):
                lengths = np.diff(block.offsets)
                mask = np.ones(len(block.tokens), np.uint8) if block.loss is None else block.loss.copy()
                cut = lengths > self._limit
                mask[block.offsets[:-1][np.append(cut_before, cut[:-1])]] = 0
                if place == 0:
                    mask[0] = 0  # it is not the end of a document
                tokens = block.tokens
                if cut.any():
                    inner = np.arange(len(tokens)) - np.repeat(block.offsets[:-1], lengths)
                    tokens, mask = tokens[inner < self._limit], mask[inner < self._limit]
                low, high = max(start - begin, 0), min(stop - begin, len(tokens))
                if low < high:
                    yield tokens[low:high], mask[low:high].astype(UINT16)
                begin, place, cut_before = begin + len(tokens), place + len(lengths), bool(cut[-1])
                if begin >= stop:
                    return

    def facts(self, start: int, stop: int) -> dict[str, Any]:
        """Facts on documents that begin between tokens `start` and `stop`: total, truncated, by source."""
        places, before = self._sums.find(np.array([start, stop], np.int64))
        first, last = (places + (before < [start, stop])).tolist()
        store = self._stream.selection.store
        named = [origin.source for origin in shard_labels(store)]
        counts: Counter[str] = Counter()
        truncated = 0
        for place in range(first, last, BLOCK_DOCUMENTS):
            end = min(place + BLOCK_DOCUMENTS, last)
            truncated += int(np.count_nonzero(self._stream.lengths(place, end) > self._limit))
            documents = self._stream.selection.documents(np.arange(place, end))
            shards = store.firsts.searchsorted(documents, "right") - 1
            for shard, count in zip(*np.unique(shards, return_counts=True), strict=True):
                counts[named[shard]] += int(count)
        return {"documents": last - first, "truncated": truncated, "sources": dict(counts)}


def _pairs(path: Path, findings: Findings | None = None) -> list[DatasetFile]:
    """Shards of tokens, each followed by its mask: val before train, in the order of their numbers."""
    pairs = []
    for shard in numbered_files(path, NAME)[0]:
        mask = Path(shard.path.replace(".bin", "_mask.bin"))
        if mask.is_file():
            pairs += [shard, DatasetFile.of(mask, mask.parent)]
        elif findings is not None and path.is_dir():
            findings.add(shard.name, "its mask", mask.name, "nothing")
    return pairs


def _open_pair(
    files: list[DatasetFile], number: int, companions: tuple[int, ...], findings: Findings
) -> TokenFile | None:
    counts = []
    for file in files[number : number + 2]:
        if (head := read_head(file, findings)) is None:
            return None
        if not findings.compare(file.name, "magic number and version", (MAGIC, VERSION), head[:2]):
            return None
        size = HEADER_BYTES + head[2] * UINT16.itemsize
        if not findings.compare(file.name, "size in bytes", size, file.bytes):
            return None
        counts.append(head[2])
    if not findings.compare(files[number + 1].name, "tokens, as of its shard", counts[0], counts[1]):
        return None
    split = NAME.fullmatch(files[number].name)
    assert split is not None
    loss = Numbers(number + 1, files[number + 1].path, UINT16, HEADER_BYTES)
    return TokenFile(
        files, number, UINT16, split=split["split"], header=HEADER_BYTES, loss=loss, companions=companions
    )


FORMAT = Stacks()
