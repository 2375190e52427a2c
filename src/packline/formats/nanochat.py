"""nanochat: Parquet files of text, which its trainer tokenizes while it trains.

    shard_00000.parquet, shard_00001.parquet, ...    one column `text`, a row per document
    shard_00012.parquet                              the last file is the validation split

The trainer reads files in the order of their names, and rank r of W the row groups r, r + W, ... of each. A
rank without a row group in the validation file waits forever, so every file with 64 documents has at least 64
row groups; a group has at most 1,024 documents and 4M tokens.

Texts are decoded from the tokens of the store, in its splits and selection, so with its tokenizer (`packline
tokenizer export --to nanochat`) the trainer gets the same ids. Special tokens inside documents become their
names. Bytes that are not UTF-8, as where an imported document was cut, become U+FFFD. Tokenizers that do not
keep text (WordPiece, or a space put before it) are refused.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
import pyarrow as pa

from packline.encoders.token_bytes import TokenText, drops_first_space, keeps_text, token_bytes
from packline.encoders.tokenizer import Tokenizer
from packline.errors import RecipeError
from packline.formats.columns import ColumnsReader
from packline.formats.document_view import DocumentView
from packline.formats.export_folder import ExportRecord, Target
from packline.formats.files import find_files, paths_of
from packline.formats.format import DatasetReader, DocumentFormat, Options
from packline.formats.parquet import create_parquet, read_footer, schema_of
from packline.formats.types import (
    DocumentBlock,
    Edges,
    ExportPart,
    ExportPlan,
    Facts,
    NotPreserved,
    Size,
)
from packline.store.report import Findings

NAME = re.compile(r"shard_(\d{5,})\.parquet")
ENDING = ".parquet"
TEXT = "text"
SPLITS = ("train", "val")
GROUP_DOCUMENTS, GROUP_TOKENS = 1024, 1 << 22
LEAST_GROUPS = 64
BYTES_PER_TOKEN = 4
"""For the estimate of the output."""


class NanochatOptions(Options, frozen=True):
    shard_tokens: Size = 1 << 26
    """Tokens per train file, up to the end of a document: about 250 MB of text."""
    compression: Literal["zstd", "snappy", "none"] = "zstd"
    """Compression of pages."""


class Nanochat(DocumentFormat):
    name = "nanochat"
    title = "nanochat: shard_00000.parquet of text, the last one for validation"
    options = NanochatOptions
    holds_text = True
    opened = MappingProxyType(
        {
            "train": "no documents for training: nanochat trains on all files except the last",
            "val": "no validation split: nanochat takes the last train file, and stops if it is the only one",
        }
    )

    def edges_of(self, options: NanochatOptions) -> Edges:
        return "none"

    def trainer_lines(self, out: str, record: ExportRecord, options: NanochatOptions) -> tuple[str, ...]:
        return (
            f'ln -s {shlex.quote(str(Path(out).absolute()))} "$NANOCHAT_BASE_DIR/base_data_climbmix"',
            "python -m scripts.base_train",
        )

    def plan(self, view: DocumentView, options: NanochatOptions) -> ExportPlan:
        _text_of(view)  # refuses tokenizers that do not keep text
        parts: list[ExportPart] = []
        for split in (split for split in SPLITS if split in view.splits):
            stream, size = view.stream(split), options.shard_tokens
            for start, stop in stream.files(size) if split == "train" else [(0, stream.documents)]:
                file = f"shard_{len(parts):05d}{ENDING}"
                parts.append(ExportPart(file, split, len(parts), start, stop))
        lost = [
            one for one in view.not_preserved(self.name) if not one.what.endswith("-document tokens")
        ]  # the trainer adds <|bos|>
        if view.tokenizer.round_trip == "normalized":
            why = f"{view.tokenizer.name} normalizes text before it encodes it"
            lost.append(NotPreserved("text before normalization", view.documents, "documents", why))
        if others := [view.stream(split) for split in view.splits if split not in SPLITS]:
            count = sum(stream.documents for stream in others)
            lost.append(NotPreserved("test split", count, "documents", "nanochat has two splits"))
        if not parts:
            raise RecipeError("nanochat: no documents for training or validation")
        return ExportPlan(tuple(parts), BYTES_PER_TOKEN * view.tokens, lost=tuple(lost))

    def write(self, view: DocumentView, part: ExportPart, target: Target, options: NanochatOptions) -> Facts:
        schema = pa.schema([(TEXT, pa.string())])
        with create_parquet(target, part.name, schema, options.compression) as writer:
            vocabulary = _text_of(view)
            most = min(max((part.stop - part.start) // LEAST_GROUPS, 1), GROUP_DOCUMENTS)
            stream, dtype = view.stream(part.split), view.store.dtype
            for block in stream.groups(part.start, part.stop, dtype, most, GROUP_TOKENS):
                batch = pa.RecordBatch.from_arrays([block_texts(block, vocabulary)], schema=schema)
                writer.write_batch(batch, row_group_size=batch.num_rows)
                target.progress(len(block.tokens))
        return {}

    def recognises(self, path: Path) -> bool:
        names = paths_of(path, ENDING)
        if not names or not all(NAME.fullmatch(one.name) for one in names):
            return False
        schema = schema_of(names[0])
        return TEXT in schema.names and bool(schema.field(TEXT).type == pa.string())

    def open(self, path: Path, options: NanochatOptions, findings: Findings) -> DatasetReader:
        listed, paths = find_files(path, ENDING, "Parquet files of text, shard_00000.parquet", below=True)
        for one in paths:
            file = listed.files[listed.add(one)]
            if (footer := read_footer(file.path, file.name, findings)) is not None:
                kinds = footer[1]
                found = str(kinds.field(TEXT).type) if TEXT in kinds.names else "none"
                findings.compare(file.name, f"type of the column {TEXT}", "string", found)
        return ColumnsReader(listed.files, [], edges="none", findings=findings)  # without tokens to read


def block_texts(block: DocumentBlock, vocabulary: TokenText) -> pa.Array:
    """Texts of documents, a `string` array; bytes that are no UTF-8 become U+FFFD.

    >>> block = DocumentBlock(np.array([0, 1, 1, 2]), np.array([0, 2, 4]))
    >>> block_texts(block, TokenText.of_tokens([b"a", b" b", bytes([255])])).to_pylist()
    ['a b', ' b\ufffd']
    """
    data, begins = vocabulary.gather(block.tokens)
    bounds = begins[block.offsets]
    buffers = [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(data)]
    texts = pa.Array.from_buffers(pa.string(), len(block), buffers)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        pieces = pa.Array.from_buffers(pa.binary(), len(block), buffers).to_pylist()
        return pa.array([piece.decode("utf-8", "replace") for piece in pieces], pa.string())
    return texts


def _text_of(view: DocumentView) -> TokenText:
    """Bytes of every token of the store's tokenizer, special tokens by their names."""
    entry = view.tokenizer
    tokenizer = Tokenizer(
        name=entry.name,
        kind="tiktoken" if entry.kind == "tiktoken" else "huggingface",
        json=view.store.tokenizer.to_str(),
        vocab_size=entry.vocab_size,
        special_tokens={},
    )
    if not keeps_text(tokenizer) or drops_first_space(tokenizer):
        raise RecipeError(
            f"nanochat: text cannot be recovered exactly from tokens of {entry.name}",
            hint="write Parquet files of the text itself, or use a tokenizer of bytes",
        )
    found = token_bytes(tokenizer)
    for number, token in view.store.tokenizer.get_added_tokens_decoder().items():
        found[number] = token.content.encode("utf-8")
    return TokenText.of_tokens(found)


FORMAT = Nanochat()
