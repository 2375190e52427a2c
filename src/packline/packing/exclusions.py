"""Lists of documents: written by searches and analyses, left out when a store is read.

    source  file          position  hash                  id    reason
    web     a.jsonl.zst   123       9371045872394857234   x7    gsm8k: question 12

A document is found by its place (source, file, position), in any store of the same sources. Finding decodes
50 million documents per second and thread, and sorts the list.

Also documents whose text an earlier document has. Two texts are equal if their hashes (xxh3-64) and sizes
are. Documents of other stores come before all, so a text that one of them has is left out altogether. For
100 million documents, four passes over two columns, each with a sort of a quarter of the hashes; memory: 60
bytes per document of a pass, at most 2 GB besides mapped files.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packline.errors import InputError, RecipeError
from packline.fingerprint import hash_bytes
from packline.packing.offsets import ShardPlaces, all_shards
from packline.storage.local import disk_errors, sync_file
from packline.storage.places import refuse_remote
from packline.storage.requests import in_threads
from packline.store.reader import StoreReader, shard_labels
from packline.store.shard import Shard

PASS_DOCUMENTS = 1 << 25
"""Documents per pass, about."""
TABLE_BITS = 27
"""Bits of a hash that the table of candidates is indexed by: 128 MB."""
COLUMNS = ("hash", "text_bytes")
TEXT = np.dtype([("hash", np.uint64), ("bytes", np.int64), ("place", np.int64)])


class Repeated(NamedTuple):
    """Documents whose text occurs earlier, by their places in the selection, int64; in no order."""

    own: np.ndarray
    firsts: np.ndarray
    """Place of the first document with each of these texts."""
    foreign: np.ndarray


def repeated_texts(
    others: Sequence[ShardPlaces], parts: Sequence[ShardPlaces], reasons: np.ndarray
) -> Repeated:
    """Find documents whose text occurs earlier.

    Args:
        others: shards of other stores, all of whose documents come first.
        parts: shards of the selection, in order.
        reasons: uint8 by place in the selection; only documents with 0 take part.
    """
    count = sum(len(part.shard) for part in others) + int(np.count_nonzero(reasons == 0))
    bits = max(-(-count // PASS_DOCUMENTS) - 1, 0).bit_length()
    sources = [*((part, None) for part in others), *((part, reasons) for part in parts)]
    found = []
    for number in range(1 << bits):
        read = list(in_threads(partial(_texts, bits=bits, number=number), sources))
        before = sum(map(len, read[: len(others)]))
        texts = np.concatenate([np.empty(0, TEXT), *read])
        del read
        repeated, heads = _repeated(texts["hash"], texts["bytes"])
        mine = repeated >= before
        repeated, heads = repeated[mine], heads[mine]
        own, places = heads >= before, texts["place"]
        found.append((places[repeated[own]], places[heads[own]], places[repeated[~own]]))
    return Repeated(*map(np.concatenate, zip(*found, strict=True)))


def _texts(source: tuple[ShardPlaces, np.ndarray | None], *, bits: int, number: int) -> np.ndarray:
    """Texts of a shard whose hashes begin with these bits, `TEXT` `[N]`."""
    part, reasons = source
    file = part.shard.open_provenance()
    found = [np.empty(0, TEXT)]
    for first, table in file.groups(COLUMNS):
        if table["hash"].null_count:
            raise RecipeError(
                f"unique: {file.path} has documents without the hash of their text",
                hint="an import has tokens and no text: choose other sources, or build the store from text",
            )
        hashes, start = table["hash"].to_numpy(), part.start + first
        wanted = np.ones(len(hashes), bool) if reasons is None else reasons[start : start + len(hashes)] == 0
        if bits:
            wanted &= hashes >> np.uint64(64 - bits) == number
        inner = np.flatnonzero(wanted)
        texts = np.empty(len(inner), TEXT)
        texts["hash"], texts["place"] = hashes[inner], inner + start
        texts["bytes"] = table["text_bytes"].to_numpy()[inner]
        found.append(texts)
    return np.concatenate(found)


def _repeated(hashes: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of texts that occur earlier, and of the first text equal to each; int64 of the same shape."""
    values = np.sort(hashes)
    twice = values[1:][values[1:] == values[:-1]]
    if not len(twice):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    mask = np.uint64((1 << TABLE_BITS) - 1)
    table = np.zeros(1 << TABLE_BITS, bool)
    table[twice & mask] = True
    candidates = np.flatnonzero(table[hashes & mask])
    del values, table
    alike, size = hashes[candidates], sizes[candidates]
    order = np.lexsort((size, alike))  # stable: equal texts stay in order
    alike, size = alike[order], size[order]
    new = np.ones(len(order), bool)
    new[1:] = (alike[1:] != alike[:-1]) | (size[1:] != size[:-1])
    heads = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    found = candidates[order]
    return found[~new], found[heads[~new]]


SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("hash", pa.uint64()),
        pa.field("id", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
PLACE = ("source", "file", "position")
MIX = np.uint64(0x9E3779B97F4A7C15)


class ExclusionList:
    """A Parquet file with the columns source, file, position and hash."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = self.path.name
        try:
            self._data = self.path.read_bytes()
        except OSError as error:
            raise InputError(f"cannot read the list {path}: {error.strerror}") from error
        self.checksum = hash_bytes(self._data)
        self.note = ""
        """Entries that the store does not have, in words; after `documents_in`."""

    @cached_property
    def table(self) -> pa.Table:
        try:
            file = pq.ParquetFile(io.BytesIO(self._data))
            found = file.schema_arrow
            columns = [*PLACE, "hash"]
            if missing := [name for name in columns if name not in found.names]:
                raise InputError(
                    f"{self.path} is not a list of documents: expected the columns {', '.join(columns)}, "
                    f"found {', '.join(found.names)}",
                    hint=f"{missing[0]} is missing; packline verify --against --write makes such a list",
                )
            schema = pa.schema([SCHEMA.field(name) for name in columns])
            table = file.read(columns, use_threads=False).cast(schema)
        except (pa.ArrowException, ValueError) as error:
            raise InputError(f"{self.path} is not a list of documents: {error}") from error
        return table.combine_chunks().group_by(columns, use_threads=False).aggregate([])

    def documents_in(self, store: StoreReader) -> np.ndarray:
        """Numbers in a store of the listed documents, sorted int64."""
        table = self.table
        by_source = {
            source: _Places.of(table.filter(pc.equal(table["source"], source)))
            for source in pc.unique(table["source"]).to_pylist()
        }
        labels = shard_labels(store)

        def find(number: int) -> np.ndarray:
            source = labels[number].source
            found = _find(store.shards[number], self.name, source, by_source[source])
            return found + int(store.firsts[number])

        numbers = [number for number, origin in enumerate(labels) if origin.source in by_source]
        documents = np.sort(np.concatenate([np.empty(0, np.int64), *in_threads(find, numbers)]))
        entries, seen = len(self.table), len(documents)
        if entries and not seen:
            raise RecipeError(
                f"exclude {self.name}: {store.place} has none of its {entries:,} documents",
                hint="a list names documents by source, file and position, as packline info shows them",
            )
        if seen < entries:
            lacking = f"{entries - seen:,} of its {entries:,} documents are not in {store.place}"
            self.note = f"exclude {self.name}: {lacking}"
        return documents


def _find(shard: Shard, name: str, source: str, listed: _Places) -> np.ndarray:
    file = shard.open_provenance()
    found = [np.empty(0, np.int64)]
    for group, (first, table) in enumerate(file.groups(("file", "position"))):
        rows, entries = listed.find(table["file"].combine_chunks(), table["position"].to_numpy())
        if not len(rows):
            continue
        found.append(rows + first)
        hashes = file.read(group, ["hash"])["hash"].take(pa.array(rows))
        expected = listed.hashes.take(pa.array(entries))
        differs = pc.fill_null(pc.not_equal(expected, hashes), False).to_numpy(zero_copy_only=False)
        if differs.any():
            place = int(np.argmax(differs))
            entry = int(entries[place])
            raise RecipeError(
                f"exclude {name} is stale: {source}, {listed.files[int(listed.codes[entry])]} at "
                f"{int(listed.positions[entry]):,}: expected a text of hash {expected[place]}, "
                f"found {hashes[place]}",
                hint="the inputs changed since the list was written: write it again from this store",
            )
    return np.concatenate(found)


class _Places(NamedTuple):
    """Listed places of one source, sorted by key."""

    files: pa.Array
    codes: np.ndarray
    """int64 `[N]`: number of the file in `files`."""
    positions: np.ndarray
    hashes: pa.Array
    keys: np.ndarray
    """uint64 `[N]`, ascending."""

    @classmethod
    def of(cls, table: pa.Table) -> _Places:
        files = pc.unique(table["file"])
        codes = pc.index_in(table["file"], value_set=files).to_numpy().astype(np.int64)
        positions = table["position"].to_numpy()
        keys = _keys(codes, positions)
        order = np.argsort(keys, kind="stable")
        hashes = table["hash"].combine_chunks().take(pa.array(order))
        return cls(files, codes[order], positions[order], hashes, keys[order])

    def find(self, files: pa.Array, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows that are listed, and their entries, int64 `[N]` each."""
        files = files.chunk(0) if isinstance(files, pa.ChunkedArray) else files
        known = pc.fill_null(pc.index_in(files.dictionary, value_set=self.files), -1).to_numpy()
        codes = known[files.indices.to_numpy()].astype(np.int64)
        rows = np.flatnonzero(codes >= 0)
        codes, positions = codes[rows], positions[rows]
        entries = np.minimum(self.keys.searchsorted(_keys(codes, positions)), len(self.keys) - 1)
        same = (self.codes[entries] == codes) & (self.positions[entries] == positions)
        return rows[same], entries[same]


def _keys(codes: np.ndarray, positions: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return codes.astype(np.uint64) * MIX + positions.astype(np.uint64)


def write_list(
    path: str | Path, parts: Iterable[tuple[StoreReader, np.ndarray, pa.Array | Sequence[str] | str]]
) -> int:
    """Write a list of documents; an existing file is replaced once the new one is complete.

    Args:
        parts: a store, numbers of documents in it, ascending int64 `[N]`, and the reason of each, or one for
            all of them.

    Returns:
        Number of documents written.
    """
    path = Path(path)
    check_list_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    waiting = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    written = 0
    try:
        with disk_errors(path.parent):
            with pq.ParquetWriter(waiting, SCHEMA, compression="zstd") as writer:
                for store, documents, reasons in parts:
                    for start, table in _listed(store, documents):
                        words: Any = [reasons] * len(table)
                        if not isinstance(reasons, str):
                            words = reasons[start : start + len(table)]
                        words = pa.array(words, pa.string())
                        writer.write_table(table.append_column(SCHEMA.field("reason"), words).cast(SCHEMA))
                        written += len(table)
            sync_file(waiting)
            os.replace(waiting, path)
    finally:
        waiting.unlink(missing_ok=True)
    return written


def write_duplicates(path: str | Path, store: StoreReader) -> tuple[int, int]:
    """Write the list of all documents whose text an earlier document of the store has.

    Returns:
        Number of documents written, and of their tokens.
    """
    check_list_path(path)
    every = all_shards(store)
    found = repeated_texts((), every.parts(), np.zeros(len(every), np.uint8))
    order = np.argsort(found.own)
    documents = found.own[order]
    numbers = pa.array(found.firsts[order]).cast(pa.string())
    words = pc.binary_join_element_wise("same text as document", numbers, " ")
    tokens = int(every.at(documents)[1].sum())
    return write_list(path, [(store, documents, words)]), tokens


def check_list_path(path: str | Path) -> None:
    refuse_remote(path, "a list of documents")
    if Path(path).suffix != ".parquet":
        raise RecipeError(f"--write {path}: expected a name that ends in .parquet", hint="a list is Parquet")


def _listed(store: StoreReader, documents: np.ndarray) -> Any:
    """Provenance of documents, shard by shard: the index of the first, and a table."""
    shards = store.firsts.searchsorted(documents, "right") - 1
    names = [name for name in SCHEMA.names if name != "reason"]
    for number in np.unique(shards).tolist():
        start, stop = np.searchsorted(shards, [number, number + 1]).tolist()
        inner = documents[start:stop] - int(store.firsts[number])
        for first, table in store.shards[number].open_provenance().groups(names):
            begin, end = inner.searchsorted([first, first + len(table)]).tolist()
            if begin < end:
                yield start + begin, table.take(pa.array(inner[begin:end] - first))
