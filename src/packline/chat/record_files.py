"""Records of evaluation set files: JSON lines, CSV, Parquet, compressed or not.

    path ──> files; if their names show splits, only the test split ──> records with file and position

Evaluation sets are small (the largest file here is 20 MB), so a file is read as a whole.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from typing import Any

from packline.errors import InputError
from packline.sources.compression import DecompressedStream, detect_compression
from packline.sources.jsonl import BOM
from packline.sources.odd_json import decode_json, has_raw, is_utf8
from packline.sources.paths import expand
from packline.storage.inputs import open_input

TEST = re.compile(r"(?:^|[/_.-])test(?:[/_.-]|$)", re.IGNORECASE)
ENDINGS = (".jsonl", ".ndjson", ".json", ".csv", ".parquet")
COMPRESSED = (".gz", ".zst", ".zstd")


def files_of(path: str) -> list[str]:
    """Files below a path, in order of name; only those of the test split if their names show it.

    Raises:
        InputError: there are none.
    """
    paths = [found for found in expand(path) if _plain(found).endswith(ENDINGS)]
    if not paths:
        raise InputError(f"{path}: expected {', '.join(ENDINGS)}, found no such file")
    root = path.rstrip("/")
    tests = [found for found in paths if TEST.search(found.removeprefix(root))] if len(paths) > 1 else []
    return tests or paths


def _plain(path: str) -> str:
    lower = path.lower()
    for ending in COMPRESSED:
        lower = lower.removesuffix(ending)
    return lower


def read_bytes(path: str) -> bytes:
    """Read a whole file, decompressed.

    Raises:
        InputError: it cannot be read.
    """
    with open_input(path) as file:
        try:
            data = file.read()
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    kind = detect_compression(data[:64])
    if not kind:
        return data
    stream = DecompressedStream(io.BytesIO(data), kind)
    parts = []
    while part := stream.read(1 << 24):
        parts.append(part)
    return b"".join(parts)


def lines_of(path: str) -> Iterator[tuple[int, bytes]]:
    """Non-blank lines, numbered from 1."""
    data = read_bytes(path).removeprefix(BOM)
    for number, line in enumerate(data.split(b"\n"), 1):
        if line := line.strip():
            yield number, line


def records_of(path: str) -> Iterator[tuple[str, Any]]:
    """Read each record, a dict, or for CSV a row of strings, with its location for messages.

    Raises:
        InputError: a file is not of the type that its name indicates.
    """
    if (name := _plain(path)).endswith(".parquet"):
        yield from _parquet(path)
    elif name.endswith(".csv"):
        try:
            rows = csv.reader(io.StringIO(read_bytes(path).decode("utf-8-sig"), newline=""), strict=True)
            yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, 1) if row)
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not CSV in UTF-8: {error}") from error
    else:
        for number, line in lines_of(path):
            where = f"{path}, line {number}"
            try:
                record = decode_json(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where}: not JSON: {error}") from error
            yield where, _usable(record)


def _usable(record: Any) -> Any:
    """Record without fields that contain lone surrogates or numbers out of range; few fields are used."""
    if not isinstance(record, dict) or (is_utf8(record) and not has_raw(record)):
        return record
    return {name: value for name, value in record.items() if is_utf8({name: value}) and not has_raw(value)}


def _parquet(path: str) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(pa.BufferReader(read_bytes(path)), use_threads=False).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} is not Parquet: {error}") from error
    yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows))
