"""Read MDS data sets: records as documents, or joined to a stream. `mds` describes the layout.

    index.json ── shards ── items ──> Records         each record is a document
                      └──── joined ─> ScannedForeign  with one Joined per shard

Opening a data set finds damage in names, sizes, counts and settings; damage within records is found when they
are read. A compressed shard is not checked before it is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from packline.errors import CorruptStore, InputError
from packline.formats.format import Foreign
from packline.formats.importing.mapped import Pieces, ScannedForeign, TokenSource
from packline.formats.mds_shard import Columns, Shard
from packline.formats.shared.record_options import settle
from packline.formats.shared.records import INDEX, foreign_file, read_index, split_folders
from packline.formats.shared.row_files import folder_of
from packline.formats.shared.separate_rows import SeparateRows
from packline.formats.types import Block, Edges, ForeignFile, ForeignUnit
from packline.ragged import offsets_of
from packline.store.report import Findings

if TYPE_CHECKING:
    from packline.formats.mds import MdsOptions

UNIT_BYTES = 1 << 26


class Records(Foreign):
    """Data set of shards whose records are documents. `start` and `stop` of a unit are record numbers."""

    def __init__(
        self, files: list[ForeignFile], shards: Sequence[Shard], beside: dict[int, int], edges: Edges
    ) -> None:
        self.files, self.edges, self.facts = files, edges, {}
        self.dtype = shards[0].dtype if shards else np.dtype("<i4")
        self.documents = sum(shard.records for shard in shards)
        self.units = []
        self._shards = {shard.number: shard for shard in shards}
        for shard in shards:
            size = files[shard.number].bytes
            count = 1 if shard.packed is not None else max(-(-size // UNIT_BYTES), 1)
            cuts = np.linspace(0, shard.records, count + 1).astype(np.int64).tolist()
            for start, stop in pairwise(cuts):
                begin = int(shard.offsets(start, start)[0]) if start else 0
                end = size if stop == shard.records else int(shard.offsets(stop, stop)[0])
                pieces: Pieces = ((shard.number, begin, end),)
                if start == 0 and shard.number in beside:
                    pieces += ((beside[shard.number], 0, files[beside[shard.number]].bytes),)
                self.units.append(ForeignUnit(shard.split, shard.number, start, stop, pieces))

    def blocks(self, unit: ForeignUnit) -> Iterator[Block]:
        shard = self._shards[unit.file]
        for first, tokens, counts in shard.blocks(unit.start, unit.stop):
            positions = shard.offsets(first, first + len(counts))[:-1]
            yield Block(tokens, offsets_of(counts), positions=positions)


class Joined(TokenSource):
    """Records of a shard as one stream, each without the tokens that the next one repeats."""

    def __init__(self, shard: Shard, overlap: int, beside: Pieces) -> None:
        self.file, self.name, self.split = shard.number, shard.file.name, shard.split
        self.dtype, self.whole = shard.dtype, shard.packed is not None
        self._shard, self._overlap, self._beside = shard, overlap, beside
        columns = shard.columns
        if columns.size is not None and columns.dtype is not None and not columns.shaped:
            length = columns.size // columns.dtype.itemsize
            counts = np.full(shard.records, length, np.int64)
        else:
            found = [counts for _, _, counts in shard.blocks(0, shard.records)]
            counts = np.concatenate([np.empty(0, np.int64), *found])
        if len(counts) and int(counts.min()) < overlap:
            raise CorruptStore(
                f"{self.name}: record {int(counts.argmin()):,}: "
                f"expected the {overlap} tokens of overlap, found {int(counts.min())}"
            )
        self._ends = np.cumsum(counts - overlap)
        self.width = (
            int(counts[0]) - overlap if len(counts) and int(counts.max()) == int(counts.min()) else None
        )
        """Tokens per record, if the same for all."""
        self.tokens = int(self._ends[-1]) if len(counts) else 0

    def read(self, start: int, stop: int) -> tuple[np.ndarray, None]:
        if start == stop:
            return np.empty(0, self.dtype), None
        low = int(np.searchsorted(self._ends, start, side="right"))
        high = int(np.searchsorted(self._ends, stop, side="left")) + 1
        tokens, counts = self._shard.read(low, high)
        if self._overlap:
            behind = np.cumsum(counts)
            kept = np.ones(len(tokens), bool)
            for back in range(1, self._overlap + 1):
                kept[behind - back] = False
            tokens = tokens[kept]
        before = int(self._ends[low - 1]) if low else 0
        return tokens[start - before : stop - before], None

    def positions(self, places: np.ndarray) -> np.ndarray:
        if not len(places):
            return np.empty(0, np.int64)
        records = np.searchsorted(self._ends, places, side="right")
        low = int(records.min())
        return self._shard.offsets(low, int(records.max()) + 1)[records - low]

    def pieces(self, start: int, stop: int) -> Pieces:
        size, cuts = self._shard.file.bytes, [0, 0]
        for number, place in enumerate((start, stop)):
            if place:
                record = int(np.searchsorted(self._ends, place, side="right"))
                cuts[number] = int(self._shard.offsets(record, record)[0]) if place < self.tokens else size
        beside = self._beside if start == 0 else ()
        return ((self.file, cuts[0], size if stop == self.tokens else cuts[1]), *beside)


def open_mds(path: Path, options: MdsOptions, findings: Findings) -> Foreign:
    """Open a data set of MDS shards; see `Format.open` for arguments and errors."""
    settled, root = settle("mds", path, options, own_overlap=0), folder_of(path)
    files: list[ForeignFile] = []
    shards: list[Shard] = []
    beside: dict[int, int] = {}
    last: dict[str, int] = {}
    for split, folder in split_folders(path):
        entries = read_index(folder).get("shards")
        if not isinstance(entries, list):
            raise InputError(f"{folder / INDEX}: expected shards, found none")
        files.append(foreign_file(root, folder / INDEX))
        own = len(files) - 1
        for entry in entries:
            if shard := _shard(root, folder, entry, split, files, options, findings):
                if own not in beside.values():
                    beside[shard.number] = own
                shards.append(shard)
                last[split] = len(shards) - 1
    for shard in shards[1:]:
        findings.compare(
            shard.file.name, "dtype, as of the first file", shards[0].dtype.name, shard.dtype.name
        )
    if settled.way == "items":
        return Records(files, shards, beside, settled.edges)
    sources = []
    for shard in shards:
        number = beside.get(shard.number)
        more: Pieces = () if number is None else ((number, 0, files[number].bytes),)
        sources.append(Joined(shard, settled.overlap, more))
    whole: dict[str, Any] = {"marker": options.marker, "edges": settled.edges, "findings": findings}
    if settled.way == "separate":
        width = sources[0].width if sources else 1
        for source in sources:
            findings.compare(source.name, "tokens of every row", width or "one number", source.width)
        return SeparateRows(files, sources, width or 1, **whole, bos_id=settled.bos_id)
    for at in last.values():
        room = sources[at].tokens >= settled.padding
        if findings.compare(sources[at].name, "room for the padding", True, room):
            sources[at].tokens -= settled.padding
    return ScannedForeign(files, sources, **whole)


def _shard(
    root: Path,
    folder: Path,
    entry: Any,
    split: str,
    files: list[ForeignFile],
    options: MdsOptions,
    findings: Findings,
) -> Shard | None:
    """One shard of index.json, or None and a finding if it cannot be read."""
    where = (folder / INDEX).relative_to(root).as_posix()
    entry = entry if isinstance(entry, dict) else {}
    raw, packed = _file_of(entry.get("raw_data")), _file_of(entry.get("zip_data"))
    if raw is None or (packed is None and entry.get("zip_data") is not None):
        findings.add(where, "a shard", "raw_data and zip_data with a name and a size", entry)
        return None
    if entry.get("format") != "mds" or entry.get("version") != 2:
        found = f"{entry.get('format')!r} of version {entry.get('version')!r}"
        raise InputError(f"{folder / INDEX}: expected shards 'mds' of version 2, found {found}")
    columns = Columns.of(str(folder / INDEX), entry, options.column, options.bytes_dtype)
    path, said, unpacked_bytes = folder / raw[0], raw[1], None
    if not path.is_file() and packed is not None:
        if str(entry.get("compression")).partition(":")[0] != "zstd":
            found = repr(entry.get("compression"))
            raise InputError(f"{folder / INDEX}: expected zstd or no compression, found {found}")
        path, said, unpacked_bytes = folder / packed[0], packed[1], raw[1]
    file = foreign_file(root, path)
    if not path.is_file():
        findings.add(file.name, "a file that index.json names", "there", "missing")
        return None
    files.append(file)
    records = entry.get("samples")
    if type(records) is not int or records < 0:
        findings.add(where, f"samples of {file.name}", "a count", records)
        return None
    if not findings.compare(file.name, "size in bytes", said, file.bytes):
        return None
    shard = Shard(file, len(files) - 1, split, columns, records, unpacked_bytes)
    if unpacked_bytes is None and not _head_is_right(shard, entry, findings):
        return None
    return shard


def _file_of(value: Any) -> tuple[str, int] | None:
    """Name and size of a file in the same folder, or None if the entry does not describe one."""
    name, size = (value.get("basename"), value.get("bytes")) if isinstance(value, dict) else (None, None)
    if not isinstance(name, str) or not name or name != Path(name).name or not isinstance(size, int):
        return None
    return name, size


def _head_is_right(shard: Shard, entry: dict[str, Any], findings: Findings) -> bool:
    """True if a shard's count, first and last offset and settings match index.json."""
    name, records, size = shard.file.name, shard.records, shard.file.bytes
    if not findings.compare(name, "room for its offsets", True, size >= 8 + 4 * records):
        return False
    if not findings.compare(name, "records", records, int(shard.take(0, 4).view("<u4")[0])):
        return False
    first, last = (int(shard.take(4 + 4 * at, 8 + 4 * at).view("<u4")[0]) for at in (0, records))
    if not findings.compare(name, "end of the last record", size, last):
        return False
    if not findings.compare(name, "first record behind the offsets", True, 8 + 4 * records <= first <= size):
        return False
    try:
        settings = json.loads(shard.take(8 + 4 * records, first).tobytes())
    except ValueError as error:
        findings.add(name, f"settings before the first record: {error}")
        return False
    wanted = ("column_names", "column_encodings", "column_sizes")
    found = {key: settings.get(key) if isinstance(settings, dict) else None for key in wanted}
    return findings.compare(name, "columns", {key: entry.get(key) for key in wanted}, found)
