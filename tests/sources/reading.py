"""What the tests of sources share: read files as a build would, and judge what came out."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from packline.fingerprint import Hasher
from packline.recipe import Recipe, Source
from packline.sources.batch import Batch, Reject
from packline.sources.files import InputFile, list_files
from packline.sources.parquet import open_parquet
from packline.sources.reader import FileEnd, Span, read_slices, read_span
from packline.storage.inputs import open_input

MOST = 1 << 30


@dataclasses.dataclass
class Read:
    """Everything that came out of a file."""

    texts: list[str]
    positions: list[int]
    ids: list[str | None]
    rejects: list[Reject]

    def places(self) -> list[int]:
        """Positions of all records, bad ones included."""
        return sorted([*self.positions, *(reject.position for reject in self.rejects)])


def source_of(*paths: Path | str, **fields: Any) -> Source:
    return Source(inputs=tuple(map(str, paths)), **fields)


def bytes_as_strings(values: list[bytes | None]) -> pa.Array:
    """A string column whose bytes nobody checked, as many writers leave them."""
    binary = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(values), binary.buffers())


def write_records(path: Path, records: list[dict[str, Any]], rows: int = 1 << 20) -> Path:
    """Write a file of records, of the kind that its name says; `rows` are those of a row group of Parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=max(rows, 1))
        return path
    if path.stem.endswith(".json") or path.suffix == ".json":
        data = json.dumps(records).encode()
    else:
        data = b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)
    data = gzip.compress(data, mtime=0) if path.suffix == ".gz" else data
    path.write_bytes(zstandard.compress(data) if path.suffix == ".zst" else data)
    return path


def files_of(source: Source) -> list[InputFile]:
    return list_files(Recipe(sources=(source,), tokenizer="none"))


def collect(batches: Iterable[Batch]) -> Read:
    """All of many batches; a reject that came in pieces is one."""
    read = Read([], [], [], [])
    for batch in batches:
        assert len(batch.texts) == len(batch.positions)
        read.texts += batch.texts
        read.positions += batch.positions.tolist()
        read.ids += batch.ids if batch.ids is not None else [None] * len(batch)
        for reject in batch.rejects:
            if reject.continued:
                last = read.rejects[-1]
                assert last.position + len(last.raw) == reject.position
                last.raw += reject.raw
            else:
                read.rejects.append(dataclasses.replace(reject))
    assert len(read.ids) == len(read.texts)
    return read


def read_file(source: Source, cuts: Iterable[int] = (), most: int = MOST) -> Read:
    """The one file of a source, in ranges that meet at the cuts."""
    (file,) = files_of(source)
    if file.format == "parquet":
        with open_input(file.path) as raw:
            end = open_parquet(raw, file.path).metadata.num_row_groups
    else:
        end = file.size
    bounds = [0, *sorted(cut for cut in cuts if 0 < cut < end), end]
    spans = [Span(0, start, stop) for start, stop in pairwise(bounds)]
    return collect(batch for span in spans for batch in read_span(file, source, span, most, Hasher()))


def read_sliced(source: Source, slice_bytes: int, most: int = MOST) -> tuple[Read, int]:
    """The one file of a source by way of slices, and how many these were."""
    (file,) = files_of(source)
    ends: list[FileEnd] = []

    def batches() -> Iterator[Batch]:
        parts = read_slices(
            file, source, slice_bytes=slice_bytes, max_document_bytes=most, wanted=lambda number: True
        )
        for part in parts:
            if isinstance(part, FileEnd):
                ends.append(part)
            else:
                yield from part.batches

    return collect(batches()), ends[0].slices


def set_block_bytes(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Read in blocks of this size, so that a small file has many."""
    from packline.sources import lines

    defaults = lines.read_lines.__kwdefaults__
    assert defaults is not None and "block_bytes" in defaults
    monkeypatch.setitem(defaults, "block_bytes", size)
    monkeypatch.setattr("packline.sources.reader.CUT_BYTES", size)
