"""litdata's token files for `TokensLoader`: rows of L + 1 tokens, several thousand to a file.

    chunk-0-0.bin     uint32    N                   items in this file
                      uint32    offsets[N+1]        bytes from the file's start; offsets[0] = 4 + 4 (N + 1)
                      tokens    of all items, back to back, without a header
    index.json        {"chunks": [{"chunk_bytes", "chunk_size", "dim", "filename"}, ...],
                       "config": {..., "data_format": ["no_header_tensor:16"], "item_loader": "TokensLoader"},
                       "updated_at": "..."}

`chunk_size` is in items and `dim` in tokens. The reader maps the part of a file after its offsets and cuts it
into blocks: `StreamingDataset(OUT, item_loader=TokensLoader(block_size=L + 1))` gives row n as item n. Rows
include the token that follows them, because trainers take inputs and targets from one block, shifted by one.

A dtype is a number in torch's list of types (int32 16, int64 18, uint16 20) or, for files made of NumPy
arrays, in NumPy's list (`no_header_numpy`). Offsets are uint32, so a file is below 4 GiB. A file may be
compressed as a whole (`chunk-0-0.zstd.bin`), in which case `chunk_bytes` is its uncompressed size.

`updated_at` is a time in files that litdata wrote and a hash of the files here: litdata's readers use it as
the name of a cache, and equal stores must give equal bytes.

Based on the source code of litdata 0.2.76 and tested against it.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import ClassVar, Literal

import msgspec
import numpy as np

from packline.errors import InputError, RecipeError
from packline.fingerprint import hash_value
from packline.formats.export_folder import ExportRecord, Target
from packline.formats.format import Options, RowFormat
from packline.formats.mds import (
    BLOCK_TOKENS,
    INDEX,
    MOST_BYTES,
    Count,
    FileName,
    add_named,
    convert_index,
    head_of,
    read_index,
    read_offsets,
)
from packline.formats.row_view import RowView
from packline.formats.types import (
    DatasetFile,
    ExportPart,
    ExportPlan,
    Facts,
    RowFiles,
    WrittenPart,
    row_parts,
)
from packline.store.report import Findings

LOADER = "TokensLoader"
TENSOR_CODES = {"int32": 16, "int64": 18, "uint16": 20}
TENSOR_TYPES = {
    11: "u1", 12: "i1", 13: "<i2", 14: "<i2", 15: "<i4", 16: "<i4", 17: "<i8", 18: "<i8", 20: "<u2",
}  # fmt: skip
NUMPY_TYPES = {0: "i1", 1: "<i2", 2: "<i4", 3: "<i8", 4: "u1", 5: "<u2", 6: "<u4", 7: "<u8"}
ONE_LEAF = '[1, {"type": null, "context": null, "children_spec": []}]'
"""litdata's notation for an item that is a single tensor."""


class LitdataOptions(Options, frozen=True):
    dtype: Literal["int32", "int64", "uint16"] = "int32"
    """Dtype of the tokens."""
    shard_bytes: int = 1 << 26
    """Maximum size of the tokens of a file, in bytes; litdata's `chunk_bytes`."""


class Litdata(RowFormat):
    name = "litdata"
    title = "litdata for TokensLoader: chunk-0-N.bin and index.json, rows of seq_len + 1 tokens"
    options = LitdataOptions
    limits: ClassVar = {"int32": 2**31, "int64": 2**63, "uint16": 2**16}

    def has_mask(self, options: LitdataOptions) -> bool:
        return False

    def trainer_lines(self, out: str, record: ExportRecord, options: LitdataOptions) -> tuple[str, ...]:
        width = (record.seq_len or 0) + 1
        folder, names = record.train_folder(out), json.dumps(list(record.folders.values()))
        litgpt = f"--data LitData --data.data_path {shlex.quote(out)} --data.split_names '{names}'"
        return (
            "from litdata import StreamingDataset, TokensLoader",
            "",
            f"loader = TokensLoader(block_size={width})  # a row and the token behind it",
            f"dataset = StreamingDataset({folder!r}, item_loader=loader, shuffle=False)",
            "# of a batch: inputs, targets = batch[:, :-1], batch[:, 1:]",
            *([f"# litgpt: {litgpt} --train.max_seq_length {width - 1}"] if record.folders else []),
        )

    def plan(self, view: RowView, options: LitdataOptions) -> ExportPlan:
        row_bytes = (view.seq_len + 1) * self.dtype_of(view.vocab_size, options).itemsize
        if not 1 <= options.shard_bytes <= MOST_BYTES // 2:
            raise RecipeError(
                f"litdata: shard_bytes is {options.shard_bytes:,}: expected 1 to {MOST_BYTES // 2:,}"
            )
        if row_bytes > MOST_BYTES // 2:
            raise RecipeError(f"litdata: a row of {row_bytes:,} bytes: its offsets hold less than 2**32")
        rows = max(options.shard_bytes // row_bytes, 1)
        parts = row_parts(view.rows, rows, "chunk-0-{number}.bin")
        size = view.rows * (row_bytes + 4) + 8 * len(parts)
        return ExportPlan(parts, size, lost=view.not_preserved(masks=False, boundaries=False))

    def write(self, view: RowView, part: ExportPart, target: Target, options: LitdataOptions) -> Facts:
        dtype = self.dtype_of(view.vocab_size, options)
        count, width = part.stop - part.start, view.seq_len + 1
        head, size = head_of(count, width * dtype.itemsize)
        block = max(BLOCK_TOKENS // width, 1)
        with target.create(part.name) as file:
            file.write(head)
            whole = np.empty((min(block, count), width), dtype)  # one for all: fresh memory costs a copy
            for start in range(part.start, part.stop, block):
                rows = whole[: part.stop - start]
                view.read_longer(start, rows)
                file.write(rows.reshape(-1))
                target.progress(len(rows) * view.seq_len)
        return {"rows": count, "bytes": size, "checksum": target.files[-1].checksum}

    def finish(
        self, view: RowView, written: list[WrittenPart], target: Target, options: LitdataOptions
    ) -> None:
        entries = [
            {
                "chunk_bytes": one.facts["bytes"],
                "chunk_size": one.facts["rows"],
                "dim": one.facts["rows"] * (view.seq_len + 1),
                "filename": one.part.name,
            }
            for one in written
        ]
        config = {
            "chunk_bytes": options.shard_bytes,
            "chunk_size": None,
            "compression": None,
            "compression_batch_size": None,
            "compression_level": None,
            "data_format": [f"no_header_tensor:{TENSOR_CODES[options.dtype]}"],
            "data_spec": ONE_LEAF,
            "encryption": None,
            "ipc_compression": None,
            "item_loader": LOADER,
            "types": "tensor",
        }
        state = hash_value([one.facts["checksum"] for one in written])
        index = {"chunks": entries, "config": config, "updated_at": state}
        with target.create(INDEX) as file:
            file.write(json.dumps(index, sort_keys=True).encode())

    def recognises(self, path: Path) -> bool:
        try:
            return bool(read_index(path, "chunks", "config"))
        except InputError:
            return False

    def check(self, path: Path, findings: Findings) -> RowFiles:
        folder = path if path.is_dir() else path.parent
        files = [DatasetFile.of(folder / INDEX, folder)]
        index = convert_index(read_index(folder, "chunks", "config"), _Index, findings)
        if index is None:
            return RowFiles(files)
        itemsize, packed = _dtype_of(folder / INDEX, index.config).itemsize, bool(index.config.compression)
        for chunk in index.chunks:
            if (file := add_named(folder, chunk.filename, files, findings)) is None:
                continue
            size, header = chunk.chunk_bytes, 8 + 4 * chunk.chunk_size
            if not packed and not findings.compare(file.name, "size in bytes", size, file.bytes):
                continue
            expected = header + chunk.dim * itemsize
            if not findings.compare(file.name, "bytes, by its items and tokens", expected, size) or packed:
                continue
            if (offsets := read_offsets(file, chunk.chunk_size, findings)) is not None:
                findings.compare(file.name, "first offset", header, int(offsets[0]))
        return RowFiles(files)


class _Chunk(msgspec.Struct):
    chunk_bytes: Count
    chunk_size: Count
    dim: Count
    filename: FileName


class _Config(msgspec.Struct):
    data_format: list[str]
    compression: str | None = None
    item_loader: str = LOADER


class _Index(msgspec.Struct):
    chunks: list[_Chunk]
    config: _Config


def _dtype_of(path: Path, config: _Config) -> np.dtype:
    """Dtype of the tokens, from the format that `index.json` names."""
    kind, _, code = ",".join(config.data_format).partition(":")
    types = {"no_header_tensor": TENSOR_TYPES, "no_header_numpy": NUMPY_TYPES}.get(kind, {})
    if config.item_loader != LOADER or not code.isdecimal() or int(code) not in types:
        raise InputError(
            f"{path}: expected items of one tensor of integers for {LOADER}, "
            f"found {config.data_format} for {config.item_loader}",
            hint="optimize(..., item_loader=TokensLoader()) writes such files",
        )
    return np.dtype(types[int(code)])


FORMAT = Litdata()
