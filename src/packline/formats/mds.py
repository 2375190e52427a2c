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

Checking reads index.json and the head of each shard; the content of compressed shards is left to checksums.
Based on the source code of mosaicml-streaming 0.13.0 and tested against it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from packline.errors import InputError, RecipeError
from packline.formats.format import Options, RowFormat
from packline.formats.layouts.columns import BLOCK_TOKENS, INDEX, check_rising, read_index
from packline.formats.layouts.token_files import read_numbers
from packline.formats.types import DatasetFile, ExportPart, ExportPlan, RowFiles, WrittenPart, row_parts
from packline.packing.batch import ALL_FIELDS
from packline.store.report import Findings

if TYPE_CHECKING:
    from packline.formats.export_record import ExportRecord, Target
    from packline.formats.row_view import RowView

VERSION = 2
MOST_BYTES = 2**32 - 1


class MdsOptions(Options, frozen=True):
    """Options for MDS shards."""

    fields: tuple[str, ...] = ("tokens", "targets")
    """Columns to write: tokens, and any of targets, position_ids, segment_ids, loss_mask."""
    size_limit: int = 1 << 26
    """Maximum size of a shard, in bytes."""
    compression: str = ""
    """`zstd`, or `zstd:7` with a level; empty for no compression."""


class Mds(RowFormat):
    """MosaicML's data shards."""

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

    def write(self, view: RowView, part: ExportPart, target: Target, options: MdsOptions) -> dict[str, Any]:
        record, settings = _record_dtype(view, options), _json(_settings(view, options))
        count = part.stop - part.start
        first = 4 + 4 * (count + 1) + len(settings)
        offsets = first + np.arange(count + 1, dtype=np.int64) * record.itemsize
        head = np.uint32(count).tobytes() + offsets.astype("<u4").tobytes() + settings
        size = int(offsets[-1])
        name = part.name if not options.compression else f"{part.name}.zstd"
        with target.create(name) as file:
            if not options.compression:
                file.write(head)
                for records in _records(view, part, record, target):
                    file.write(records)
            else:
                import zstandard

                level = int(options.compression.partition(":")[2] or 3)
                packer = zstandard.ZstdCompressor(level=level).compressobj(size=size)
                file.write(packer.compress(head))
                for records in _records(view, part, record, target):
                    file.write(packer.compress(records.data))
                file.write(packer.flush())
        return {"rows": count, "bytes": size, "packed_bytes": target.files[-1].bytes}

    def finish(self, view: RowView, written: list[WrittenPart], target: Target, options: MdsOptions) -> None:
        shards = []
        for one in written:
            raw = {"basename": one.part.name, "bytes": one.facts["bytes"], "hashes": {}}
            packed = None
            if options.compression:
                packed = {
                    "basename": f"{one.part.name}.zstd",
                    "bytes": one.facts["packed_bytes"],
                    "hashes": {},
                }
            settings = _settings(view, options)
            shards.append({**settings, "raw_data": raw, "samples": one.facts["rows"], "zip_data": packed})
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
        entries = read_index(folder).get("shards")
        if not isinstance(entries, list):
            raise InputError(f"{folder / INDEX}: expected shards, found none")
        files = [DatasetFile.of(folder / INDEX, folder)]
        for entry in entries:
            _check_shard(folder, entry if isinstance(entry, dict) else {}, files, findings)
        return RowFiles(files)


def _check_shard(folder: Path, entry: dict[str, Any], files: list[DatasetFile], findings: Findings) -> None:
    """Check a shard of index.json: its name, its size, and its head unless it is compressed."""
    where = INDEX
    raw, packed = _file_of(entry.get("raw_data")), _file_of(entry.get("zip_data"))
    if raw is None or (packed is None and entry.get("zip_data") is not None):
        findings.add(where, "a shard", "raw_data and zip_data with a name and a size", entry)
        return
    if entry.get("format") != "mds" or entry.get("version") != VERSION:
        found = f"{entry.get('format')!r} of version {entry.get('version')!r}"
        raise InputError(f"{folder / INDEX}: expected shards 'mds' of version {VERSION}, found {found}")
    is_packed = packed is not None and not (folder / raw[0]).is_file()
    name, size = packed if packed is not None and is_packed else raw
    file = DatasetFile.of(folder / name, folder)
    if not (folder / name).is_file():
        findings.add(file.name, "a file that index.json names", "there", "missing")
        return
    files.append(file)
    records = entry.get("samples")
    if type(records) is not int or records < 0:
        findings.add(where, f"samples of {file.name}", "a count", records)
    elif findings.compare(file.name, "size in bytes", size, file.bytes) and not is_packed:
        _check_head(file, records, entry, findings)


def _file_of(value: Any) -> tuple[str, int] | None:
    """Name and size of a file in the same folder, or None if the entry does not describe one."""
    name, size = (value.get("basename"), value.get("bytes")) if isinstance(value, dict) else (None, None)
    if not isinstance(name, str) or not name or name != Path(name).name or not isinstance(size, int):
        return None
    return name, size


def _check_head(file: DatasetFile, records: int, entry: dict[str, Any], findings: Findings) -> None:
    """Compare a shard's count, offsets and settings with index.json."""
    begin = 8 + 4 * records
    if not findings.compare(file.name, "room for its offsets", True, file.bytes >= begin):
        return
    count, *offsets = read_numbers(file.path, np.dtype("<u4"), 0, 0, records + 2).tolist()
    if not findings.compare(file.name, "records", records, count):
        return
    if not findings.compare(file.name, "end of the last record", file.bytes, offsets[-1]):
        return
    check_rising(file.name, "record {}: its end", offsets, findings)
    if not findings.compare(file.name, "first record behind the offsets", True, begin <= offsets[0]):
        return
    try:
        data = read_numbers(file.path, np.dtype(np.uint8), 0, begin, offsets[0]).tobytes()
        settings = json.loads(data)
    except ValueError as error:
        findings.add(file.name, f"settings before the first record: {error}")
        return
    wanted = ("column_names", "column_encodings", "column_sizes")
    found = {key: settings.get(key) if isinstance(settings, dict) else None for key in wanted}
    findings.compare(file.name, "columns", {key: entry.get(key) for key in wanted}, found)


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


def _records(view: RowView, part: ExportPart, record: np.dtype, target: Target) -> Iterator[np.ndarray]:
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
        yield records.view(np.uint8)
        target.progress((stop - start) * view.seq_len)


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


FORMAT = Mds()
