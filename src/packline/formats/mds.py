"""MosaicML's data shards (MDS, version 2): rows as records of named columns, for `StreamingDataset`.

    shard.00000.mds   uint32    n                   records in this file
                      uint32    offsets[n+1]        bytes from the file's start
                      JSON      the shard's settings, keys sorted, as in index.json
                      records   a uint32 size for each column of varying size, then all columns' bytes
    index.json        {"shards": [{settings..., "raw_data": {"basename", "bytes", "hashes"},
                                   "samples": n, "zip_data": null}, ...], "version": 2}

Columns are sorted by name. Packline writes columns of fixed size, `ndarray:int32:L`, so that a record
consists of its values alone: `tokens` and `targets` (-100 where nothing is to be predicted), and with the
option `fields` also `position_ids`, `segment_ids` (int32) and `loss_mask` (uint8). A shard holds as many rows
as fit within `size_limit`, counted as MDSWriter does, so its files are byte for byte the same. With
`compression` a shard is compressed as a whole into `shard.00000.mds.zstd`, and `zip_data` names that file.
Offsets are uint32, so a shard is below 4 GiB.

Based on the source code of mosaicml-streaming 0.13.0 and tested against it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from packline.errors import InputError, RecipeError
from packline.formats.export_folder import ExportRecord, Target
from packline.formats.files import read_object
from packline.formats.format import Options, RowFormat
from packline.formats.row_view import RowView
from packline.formats.token_files import read_numbers
from packline.formats.types import (
    DatasetFile,
    ExportPart,
    ExportPlan,
    Facts,
    RowFiles,
    WrittenPart,
    row_parts,
)
from packline.packing.batch import ALL_FIELDS
from packline.store.report import Findings

INDEX = "index.json"
BLOCK_TOKENS = 1 << 19
"""Approximate tokens in rows written at a time."""
MOST_BYTES = 2**32 - 1

Count = Annotated[int, msgspec.Meta(ge=0)]
FileName = Annotated[str, msgspec.Meta(pattern="^[^/]+$")]
T = TypeVar("T")


def head_of(count: int, size: int, settings: bytes = b"") -> tuple[bytes, int]:
    """Bytes before records of this size, and the size of the whole file."""
    first = 8 + 4 * count + len(settings)
    offsets = first + np.arange(count + 1, dtype=np.int64) * size
    return np.uint32(count).tobytes() + offsets.astype("<u4").tobytes() + settings, int(offsets[-1])


def read_index(path: Path, *keys: str) -> dict[str, Any]:
    """The object in a folder's `index.json`, which has to have these keys."""
    folder = path if path.is_dir() else path.parent
    if not (folder / INDEX).is_file():
        raise InputError(f"{path}: expected {INDEX}, or folders train and val with one, found neither")
    index = read_object(folder / INDEX)
    if not set(keys) <= set(index):
        found = ", ".join(index) or "nothing"
        raise InputError(f"{folder / INDEX}: expected {' and '.join(keys)}, found {found}")
    return index


def convert_index(index: dict[str, Any], kind: type[T], findings: Findings) -> T | None:
    """The index as a Struct; None, and a problem in `findings`, if its values are not of these types."""
    try:
        return msgspec.convert(index, kind)
    except msgspec.ValidationError as error:
        findings.add(INDEX, str(error))
        return None


def add_named(folder: Path, name: str, files: list[DatasetFile], findings: Findings) -> DatasetFile | None:
    """Enter a file that the index names; None, and a problem in `findings`, if it is missing."""
    if not (folder / name).is_file():
        findings.add(name, f"a file that {INDEX} names", "there", "missing")
        return None
    files.append(DatasetFile.of(folder / name, folder))
    return files[-1]


def read_offsets(file: DatasetFile, records: int, findings: Findings) -> np.ndarray | None:
    """Offsets of the records of a file, int64 `[records + 1]`; None, and a problem, if they are wrong."""
    begin = 8 + 4 * records
    if not findings.compare(file.name, "room for its offsets", True, file.bytes >= begin):
        return None
    head = read_numbers(file.path, np.dtype("<u4"), 0, 0, records + 2).astype(np.int64)
    count, offsets = int(head[0]), head[1:]
    if not findings.compare(file.name, "records", records, count):
        return None
    if offsets[0] < begin or offsets[-1] != file.bytes:
        wanted, found = f"{begin:,} or more and {file.bytes:,}", f"{offsets[0]:,} and {offsets[-1]:,}"
        findings.add(file.name, "first and last offset", wanted, found)
        return None
    if len(wrong := np.flatnonzero(np.diff(offsets) < 0)):
        at = int(wrong[0])
        findings.add(file.name, f"end of record {at}", f"{offsets[at]} or more", int(offsets[at + 1]))
        return None
    return offsets


VERSION = 2


class MdsOptions(Options, frozen=True):
    fields: tuple[str, ...] = ("tokens", "targets")
    """Columns to write: tokens, and any of targets, position_ids, segment_ids, loss_mask."""
    size_limit: int = 1 << 26
    """Maximum size of a shard, in bytes."""
    compression: str = ""
    """`zstd`, or `zstd:7` with a level; empty for no compression."""


class Mds(RowFormat):
    name = "mds"
    title = "MosaicML streaming (MDS): shard.NNNNN.mds and index.json, one record per row"
    options = MdsOptions

    def has_mask(self, options: MdsOptions) -> bool:
        return not {"targets", "loss_mask"}.isdisjoint(options.fields)

    def trainer_lines(self, out: str, record: ExportRecord, options: MdsOptions) -> tuple[str, ...]:
        shifted = "targets are shifted already, -100 where there is nothing to learn"
        split = f", split={next(iter(record.folders.values()))!r}" if record.folders else ""
        return (
            "from streaming import StreamingDataset",
            "",
            "# batch_size: rows of a device",
            f"dataset = StreamingDataset(local={out!r}{split}, shuffle=False, batch_size=8)",
            f"# a record has {', '.join(sorted(options.fields))}"
            + (f"; {shifted}" if "targets" in options.fields else ""),
        )

    def plan(self, view: RowView, options: MdsOptions) -> ExportPlan:
        _check(options)
        record, settings = _record_dtype(view, options), _settings(view, options)
        base = 8 + len(_json(settings))
        rows = max((options.size_limit - base) // (record.itemsize + 4), 1)
        if base + rows * (record.itemsize + 4) > MOST_BYTES:
            raise RecipeError(f"mds: a row of {record.itemsize:,} bytes: its offsets hold less than 2**32")
        parts = row_parts(view.rows, rows, "shard.{number:05}.mds")
        size = len(parts) * base + view.rows * (record.itemsize + 4)
        boundaries = not {"position_ids", "segment_ids"}.isdisjoint(options.fields)
        lost = view.not_preserved(masks=self.has_mask(options), boundaries=boundaries)
        return ExportPlan(parts, size, lost=lost)

    def write(self, view: RowView, part: ExportPart, target: Target, options: MdsOptions) -> Facts:
        record, settings = _record_dtype(view, options), _json(_settings(view, options))
        count = part.stop - part.start
        head, size = head_of(count, record.itemsize, settings)
        pieces = itertools.chain([memoryview(head)], _records(view, part, record, target))
        with target.create(part.name + (".zstd" if options.compression else "")) as file:
            if not options.compression:
                for piece in pieces:
                    file.write(piece)
            else:
                import zstandard

                level = int(options.compression.partition(":")[2] or 3)
                packer = zstandard.ZstdCompressor(level=level).compressobj(size=size)
                for piece in pieces:
                    file.write(packer.compress(piece))
                file.write(packer.flush())
        return {"rows": count, "bytes": size, "packed_bytes": target.files[-1].bytes}

    def finish(self, view: RowView, written: list[WrittenPart], target: Target, options: MdsOptions) -> None:
        shards = []
        for one in written:
            raw = {"basename": one.part.name, "bytes": one.facts["bytes"], "hashes": {}}
            packed = {"basename": f"{one.part.name}.zstd", "bytes": one.facts["packed_bytes"], "hashes": {}}
            settings = _settings(view, options)
            shards.append(
                {
                    **settings,
                    "raw_data": raw,
                    "samples": one.facts["rows"],
                    "zip_data": packed if options.compression else None,
                }
            )
        with target.create(INDEX) as file:
            file.write(_json({"shards": shards, "version": VERSION}))

    def recognises(self, path: Path) -> bool:
        try:
            shards = read_index(path).get("shards")
        except InputError:
            return False
        return isinstance(shards, list) and all(
            isinstance(shard, dict) and shard.get("format") == "mds" for shard in shards
        )

    def check(self, path: Path, findings: Findings) -> RowFiles:
        folder = path if path.is_dir() else path.parent
        files = [DatasetFile.of(folder / INDEX, folder)]
        index = convert_index(read_index(folder, "shards"), _Index, findings)
        for shard in index.shards if index is not None else ():
            if shard.format != "mds" or shard.version != VERSION:
                found = f"{shard.format!r} of version {shard.version!r}"
                raise InputError(
                    f"{folder / INDEX}: expected shards 'mds' of version {VERSION}, found {found}"
                )
            packed = shard.zip_data if not (folder / shard.raw_data.basename).is_file() else None
            named = packed or shard.raw_data
            file = add_named(folder, named.basename, files, findings)
            whole = file is not None and findings.compare(file.name, "size in bytes", named.bytes, file.bytes)
            if file is not None and whole and packed is None:
                _check_head(file, shard, findings)
        return RowFiles(files)


class _File(msgspec.Struct):
    basename: FileName
    bytes: Count


class _Columns(msgspec.Struct):
    """Settings in `index.json` and in the shard that have to be the same."""

    column_names: Any = None
    column_encodings: Any = None
    column_sizes: Any = None


class _Shard(_Columns, kw_only=True):
    """A shard in `index.json`."""

    raw_data: _File
    samples: Count
    zip_data: _File | None = None
    format: Any = None
    version: Any = None


class _Index(msgspec.Struct):
    shards: list[_Shard]


def _check_head(file: DatasetFile, shard: _Shard, findings: Findings) -> None:
    """Compare a shard's count, offsets and settings with index.json."""
    if (offsets := read_offsets(file, shard.samples, findings)) is None:
        return
    data = read_numbers(file.path, np.dtype(np.uint8), 0, 8 + 4 * shard.samples, int(offsets[0])).tobytes()
    try:
        settings = msgspec.json.decode(data, type=_Columns)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        findings.add(file.name, f"settings before the first record: {error}")
        return
    findings.compare(
        file.name,
        "columns",
        *({name: getattr(one, name) for name in _Columns.__struct_fields__} for one in (shard, settings)),
    )


def _check(options: MdsOptions) -> None:
    fields = options.fields
    if "tokens" not in fields or len(set(fields)) < len(fields) or not set(fields) <= set(ALL_FIELDS):
        raise RecipeError(
            f"mds: fields are {', '.join(fields) or 'none'}: "
            f"expected tokens and any of {', '.join(ALL_FIELDS[1:])}, each once"
        )
    if not 1 <= options.size_limit <= MOST_BYTES:
        raise RecipeError(f"mds: size_limit is {options.size_limit:,}: expected 1 to {MOST_BYTES:,}")
    name, colon, level = options.compression.partition(":")
    if options.compression and (
        name != "zstd" or (colon and not (level.isdecimal() and 1 <= int(level) <= 22))
    ):
        raise RecipeError(
            f"mds: compression is {options.compression!r}: expected zstd, or zstd:1 to zstd:22, or nothing"
        )


def _columns(options: MdsOptions) -> list[tuple[str, str]]:
    """Names and types of the columns, in order."""
    return [(name, "uint8" if name == "loss_mask" else "int32") for name in sorted(options.fields)]


def _record_dtype(view: RowView, options: MdsOptions) -> np.dtype:
    columns = [(name, np.dtype(kind).newbyteorder("<"), (view.seq_len,)) for name, kind in _columns(options)]
    return np.dtype(columns)


def _settings(view: RowView, options: MdsOptions) -> dict[str, Any]:
    columns = _columns(options)
    return {
        "column_encodings": [f"ndarray:{kind}:{view.seq_len}" for _, kind in columns],
        "column_names": [name for name, _ in columns],
        "column_sizes": [np.dtype(kind).itemsize * view.seq_len for _, kind in columns],
        "compression": options.compression or None,
        "format": "mds",
        "hashes": [],
        "size_limit": options.size_limit,
        "version": VERSION,
    }


def _records(view: RowView, part: ExportPart, record: np.dtype, target: Target) -> Iterator[memoryview]:
    """Rows of a part as records, uint8, half a million tokens at a time; each is valid until the next."""
    fields = record.names or ()
    block = max(BLOCK_TOKENS // view.seq_len, 1)
    whole = np.empty(block, record)  # one for all blocks: fresh memory costs as much as the copy
    for start in range(part.start, part.stop, block):
        stop = min(start + block, part.stop)
        arrays = view.read(start, stop, fields)
        records = whole[: stop - start]
        for name in fields:
            records[name] = arrays[name]
        yield records.view(np.uint8).data
        target.progress((stop - start) * view.seq_len)


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


FORMAT = Mds()
