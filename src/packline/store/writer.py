"""Write the shards and the rejects of one unit, below the work folder of the build.

Tokens stream to disk as they come, and provenance is written in row groups of a fixed number of documents. So
memory is bounded, and no byte depends on how the documents were batched.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packline.errors import PacklineError
from packline.fingerprint import Hasher
from packline.ragged import Ragged
from packline.sources.batch import Batch, Reject
from packline.store.files import FileEntry
from packline.store.provenance import CarriedTypes, documents_schema
from packline.store.shard import BlockSums, write_index
from packline.store.tables import ShardEntry

ROW_GROUP = 1 << 16
GROUP_BYTES = 32 << 20
"""Bytes of carried strings in a row group of provenance, unless one document has more."""
DICTIONARY_BYTES = 64 << 10
"""Bytes of different values up to which a column of a row group is a dictionary: labels and languages
stay one; of values that differ, as addresses, ids and times do, a larger one costs a fifth more space."""
SMALL_PIECE = 64 << 10
"""Bytes below which pieces of a file are written together: Parquet's writer gives many."""
LONGEST = 2**31 - 1
"""Largest number of tokens of one document, from the index's int32."""


class HashedFile(io.BufferedWriter):
    """A file that tracks the size and checksum of what was written to it."""

    def __init__(self, path: Path, sums: BlockSums | None = None) -> None:
        self.path, self.size = path, 0
        self._hasher, self._sums = Hasher(), sums
        super().__init__(io.FileIO(path, "wb"), SMALL_PIECE)

    def write(self, data: Any) -> int:
        """Append bytes, or an array as its bytes."""
        size = super().write(data)
        self._hasher.update(data)
        if self._sums is not None and size:
            self._sums.update(memoryview(data).cast("B"))
        self.size += size
        return size

    def finish_sums(self) -> np.ndarray:
        """Close the file; return the checksums of all blocks, uint64 `[N]`."""
        self.close()
        assert self._sums is not None
        return self._sums.finish()

    def entry(self, name: str) -> FileEntry:
        """Close the file and return its entry."""
        self.close()
        return FileEntry(name, self.size, str(self._hasher.hexdigest()))

    def abandon(self) -> None:
        """Close the file and ignore its contents."""
        self.raw.close()


class ShardWriter:
    """One shard of one split."""

    def __init__(
        self,
        folder: Path,
        name: str,
        split: str,
        source: str,
        label: str | None,
        dtype: np.dtype,
        *,
        with_loss: bool = False,
        carried: CarriedTypes = (),
    ) -> None:
        self.name = name
        self.documents = 0
        self.tokens = 0
        self._folder, self._split, self._dtype = folder, split, dtype
        self._bin = HashedFile(folder / f"{name}.bin", BlockSums())
        self._loss = HashedFile(folder / f"{name}.loss", BlockSums()) if with_loss else None
        self._lengths: list[np.ndarray] = []
        self._docs = HashedFile(folder / f"{name}.docs.parquet", BlockSums())
        self._docs_sink = pa.PythonFile(self._docs, "w")
        self._provenance = _ProvenanceWriter(self._docs_sink, source, label, carried)

    def write(self, ragged: Ragged, batch: Batch, file: str, hashes: np.ndarray) -> None:
        """Append the documents of a batch: their tokens, boundary tokens included, and their provenance.

        Args:
            hashes: hash of each text, uint64 `[D]`.
        """
        loss = None if batch.loss is None else batch.loss.tokens
        self.append(ragged, file, batch.positions, batch.ids, batch.text_bytes, hashes, loss, batch.columns)

    def append(
        self,
        ragged: Ragged,
        file: str,
        positions: np.ndarray,
        ids: list[str | None] | None,
        text_bytes: np.ndarray,
        hashes: np.ndarray | None,
        loss: np.ndarray | None = None,
        columns: pa.RecordBatch | None = None,
    ) -> None:
        """Append documents.

        Args:
            positions: int64 `[D]`, position of each document in `file`.
            text_bytes: int64 `[D]`, UTF-8 bytes of each text.
            hashes: uint64 `[D]`, hash of each text; None if there is no text.
            loss: uint8 `[T]`, 1 = trained on; required for a shard with a loss mask, and only there.
            columns: `[D]` rows of the carried columns; required for a shard with any, and only there.
        """
        lengths = ragged.lengths
        if len(lengths) and int(lengths.max()) > LONGEST:
            at = int(positions[int(lengths.argmax())])
            raise PacklineError(f"{file} at {at}: a document of more than 2**31 tokens", hint="cut it")
        self._bin.write(ragged.tokens)
        if self._loss is not None:
            assert loss is not None and len(loss) == len(ragged.tokens)
            self._loss.write(loss)
        self._lengths.append(lengths.astype(np.int32))
        self.documents += len(ragged)
        self.tokens += len(ragged.tokens)
        count = len(positions)
        self._provenance.append(
            file=pa.repeat(file, count),
            position=pa.array(positions),
            id=pa.nulls(count, pa.string()) if ids is None else pa.array(ids, pa.string()),
            text_bytes=pa.array(text_bytes),
            tokens=pa.array(lengths),
            hash=pa.nulls(count, pa.uint64()) if hashes is None else pa.array(hashes),
            **({} if columns is None else dict(zip(columns.schema.names, columns.columns, strict=True))),
        )

    def abandon(self) -> None:
        """Close the open files of a unit that failed."""
        for file in filter(None, (self._bin, self._docs, self._loss)):
            file.abandon()
        self._provenance.abandon()

    def close(self) -> ShardEntry:
        """Write the remaining data and return the entry of the shard."""
        self._provenance.close()
        self._docs_sink.close()
        index = HashedFile(self._folder / f"{self.name}.idx", BlockSums())
        lengths = np.concatenate([np.empty(0, np.int32), *self._lengths])
        write_index(index, lengths, self._dtype)
        written = [self._bin, index, self._docs, *([] if self._loss is None else [self._loss])]
        sums = HashedFile(self._folder / f"{self.name}.sums")
        for file in written:
            sums.write(file.finish_sums())
        files = tuple(file.entry(file.path.name) for file in (*written, sums))
        return ShardEntry(self.name, self._split, self.documents, self.tokens, files)


class _ProvenanceWriter:
    """Writer of `NAME.docs.parquet`: documents wait until they fill a row group.

    A row group ends after `ROW_GROUP` documents, or before the one that would bring its carried strings above
    `GROUP_BYTES`: a function of the documents, independent of how they were batched.
    """

    def __init__(self, sink: pa.NativeFile, source: str, label: str | None, carried: CarriedTypes) -> None:
        self._source, self._label = source, pa.scalar(label, pa.string())
        self._schema = documents_schema(carried)
        types = (
            one.type.value_type if pa.types.is_dictionary(one.type) else one.type for one in self._schema
        )
        self._waiting_schema = pa.schema(list(zip(self._schema.names, types, strict=True)))
        self._parquet = pq.ParquetWriter(
            sink,
            self._schema,
            compression="zstd",
            use_dictionary=[name for name in self._schema.names if name != "hash"],
            dictionary_pagesize_limit=DICTIONARY_BYTES,
            write_statistics=[name for name, _ in carried] or False,
            store_schema=True,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._strings = [name for name, kind in carried if kind == "string"]

    def append(self, **columns: pa.Array) -> None:
        """Add documents: the columns of the schema, without source and label, which do not change."""
        count = len(columns["tokens"])
        columns["source"], columns["label"] = pa.repeat(self._source, count), pa.repeat(self._label, count)
        arrays = [columns[name] for name in self._schema.names]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._waiting_schema)
        sizes = self._string_bytes(batch)
        while len(batch):
            ends = np.cumsum(sizes) + self._bytes
            fitting = int(np.searchsorted(ends, GROUP_BYTES, side="right"))
            if not fitting and not self._rows:
                fitting = 1  # one document, however large its strings are
            fitting = min(fitting, ROW_GROUP - self._rows)
            self._waiting.append(batch[:fitting])
            self._rows += fitting
            self._bytes += int(sizes[:fitting].sum())
            batch, sizes = batch[fitting:], sizes[fitting:]
            if len(batch) or self._rows == ROW_GROUP:
                self._write()

    def _string_bytes(self, batch: pa.RecordBatch) -> np.ndarray:
        """Bytes of the carried strings of each document, int64 `[D]`."""
        sizes = np.zeros(len(batch), np.int64)
        for name in self._strings:
            sizes += pc.fill_null(pc.binary_length(batch.column(name)), 0).to_numpy()
        return sizes

    def _write(self) -> None:
        # Dictionaries are made here, for the whole group: the bytes must not depend on how it was batched.
        group = pa.Table.from_batches(self._waiting, self._waiting_schema).combine_chunks()
        rows = len(group)
        columns = [
            column.dictionary_encode() if pa.types.is_dictionary(field.type) else column
            for field, column in zip(self._schema, group.columns, strict=True)
        ]
        self._parquet.write_table(pa.Table.from_arrays(columns, schema=self._schema), row_group_size=rows)
        self._waiting.clear()
        self._rows = self._bytes = 0

    def close(self) -> None:
        """Write what waits, and the footer."""
        if self._rows:
            self._write()
        self._parquet.close()

    def abandon(self) -> None:
        """Close the file of a unit that failed."""
        with contextlib.suppress(Exception):  # Parquet's footer has nowhere to go on a full disk
            self._parquet.close()


class RejectEntry(msgspec.Struct, omit_defaults=True):
    """A line of `UNIT.jsonl` in rejects/: the record of `UNIT.raw` at `offset`, and the reason."""

    file: str
    position: int
    reason: str
    detail: str
    offset: int
    bytes: int
    records: int = 1


class RejectsWriter:
    """Bad records of one unit: verbatim in one file, entries with reasons in another."""

    def __init__(self, folder: Path, unit: str) -> None:
        self._paths = [folder / f"{unit}.raw", folder / f"{unit}.jsonl"]
        self._files: list[HashedFile] = []
        """Both, from the first bad record on."""
        self._held: RejectEntry | None = None

    def write(self, reject: Reject, file: str) -> None:
        """Append one bad record, or one more piece of the last."""
        if not self._files:
            self._files = list(map(HashedFile, self._paths))
        raw = self._files[0]
        if reject.continued and self._held is not None:
            self._held.bytes += raw.write(reject.raw)
            return
        self._release()
        offset, size = raw.size, raw.write(reject.raw)
        self._held = RejectEntry(
            file, reject.position, reject.reason, reject.detail, offset, size, reject.records
        )

    def _release(self) -> None:
        if self._held is not None:
            self._files[1].write(msgspec.json.encode(self._held) + b"\n")
            self._held = None

    def abandon(self) -> None:
        """Close the open files of a unit that failed."""
        for file in self._files:
            file.abandon()

    def close(self) -> tuple[FileEntry, ...]:
        """Close the files and return their entries; none for a unit without rejects."""
        self._release()
        return tuple(file.entry(f"rejects/{file.path.name}") for file in self._files)
