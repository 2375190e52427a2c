"""Write the shards and the rejects of one unit.

Files are written under the work folder of the build and become part of the store only when the unit is
committed. Tokens stream to disk as they come; of written documents only lengths stay in memory, and
provenance is written in row groups of a fixed number of documents. So memory is bounded, and no byte depends
on how the documents were batched.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packline.errors import PacklineError
from packline.fingerprint import Hasher
from packline.ragged import Ragged
from packline.sources.batch import Batch, Reject
from packline.store.files import FileEntry
from packline.store.shard import documents_schema, write_index
from packline.store.sums import BlockSums
from packline.store.tables import ShardEntry

ROW_GROUP = 1 << 16
LONGEST = 2**31 - 1
"""Largest number of tokens of one document, from the index's int32."""

DOCUMENTS_SCHEMA = documents_schema()


class HashedFile:
    """A file that tracks the size and checksum of what was written to it.

    Args:
        sums: also receives what was written.
    """

    def __init__(self, path: Path, sums: BlockSums | None = None) -> None:
        self.path = path
        self.sums = sums
        self.size = 0
        self._file = open(path, "wb", buffering=0)
        self._hasher = Hasher()

    def write(self, data: Any) -> int:
        """Append bytes, or an array as its bytes."""
        view = memoryview(data).cast("B") if len(data) else b""
        self._hasher.update(view)
        if self.sums is not None:
            self.sums.update(view)
        rest = view
        while len(rest):
            rest = rest[self._file.write(rest) :]
        self.size += len(view)
        return len(view)

    def entry(self, name: str) -> FileEntry:
        """Close the file and return its entry."""
        self._file.close()
        return FileEntry(name, self.size, str(self._hasher.hexdigest()))

    def abandon(self) -> None:
        """Close the file and ignore its contents."""
        self._file.close()

    def flush(self) -> None:
        """Do nothing; Arrow calls it."""

    def close(self) -> None:
        """Do nothing; `entry` closes the file."""

    @property
    def closed(self) -> bool:
        return self._file.closed

    def tell(self) -> int:
        """Position of the next byte; Arrow calls it."""
        return self.size


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
    ) -> None:
        self.name = name
        self.documents = 0
        self.tokens = 0
        self._folder, self._split, self._dtype = folder, split, dtype
        self._source, self._label = source, label
        self._bin = _summed(folder / f"{name}.bin")
        self._loss = _summed(folder / f"{name}.loss") if with_loss else None
        self._lengths: list[np.ndarray] = []
        self._docs = _summed(folder / f"{name}.docs.parquet")
        self._docs_sink = pa.PythonFile(self._docs, "w")
        self._parquet = pq.ParquetWriter(
            self._docs_sink, DOCUMENTS_SCHEMA, compression="zstd", write_statistics=False, store_schema=True
        )
        self._waiting = _Columns()

    def write(self, ragged: Ragged, batch: Batch, file: str) -> None:
        """Append the documents of a batch: their tokens, boundary tokens included, and their provenance."""
        self.append(ragged, file, batch.positions, batch.ids, batch.texts.sizes)

    def append(
        self,
        ragged: Ragged,
        file: str,
        positions: np.ndarray,
        ids: list[str | None] | None,
        text_bytes: np.ndarray,
        loss: np.ndarray | None = None,
    ) -> None:
        """Append documents.

        Args:
            ragged: tokens of the shard's dtype, boundary tokens included.
            positions: int64 `[D]`, position of each document in `file`.
            ids: the documents' own ids, if they have any.
            text_bytes: int64 `[D]`, UTF-8 bytes of each text.
            loss: uint8 `[T]`, 1 = trained on; required for a shard with a loss mask, and only there.

        Raises:
            PacklineError: a document is too long for the index.
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
        self._waiting.add(file, positions, ids, text_bytes, lengths)
        while self._waiting.rows >= ROW_GROUP:
            self._write_row_group(ROW_GROUP)

    def _write_row_group(self, rows: int) -> None:
        # Dictionaries are made here, for the whole group: the bytes must not depend on how it was batched.
        files, positions, ids, text_bytes, lengths = self._waiting.take(rows)
        columns = [
            _repeated(self._source, rows),
            pa.array(files, pa.string()).dictionary_encode(),
            pa.array(positions),
            pa.array(ids, pa.string()),
            pa.array(text_bytes),
            pa.array(lengths),
            _repeated(self._label, rows),
        ]
        self._parquet.write_table(pa.Table.from_arrays(columns, schema=DOCUMENTS_SCHEMA), row_group_size=rows)

    def abandon(self) -> None:
        """Close the open files of a unit that failed."""
        self._bin.abandon()
        if self._loss is not None:
            self._loss.abandon()
        with contextlib.suppress(Exception):  # Parquet's footer has nowhere to go on a full disk
            self._parquet.close()
        self._docs_sink.close()
        self._docs.abandon()

    def close(self) -> ShardEntry:
        """Write the remaining data and return the entry of the shard."""
        if self._waiting.rows:
            self._write_row_group(self._waiting.rows)
        self._parquet.close()
        self._docs_sink.close()
        index = _summed(self._folder / f"{self.name}.idx")
        lengths = np.concatenate([np.empty(0, np.int32), *self._lengths])
        write_index(index, lengths, self._dtype)  # type: ignore[arg-type]
        written = [self._bin, index, self._docs, *([] if self._loss is None else [self._loss])]
        sums = HashedFile(self._folder / f"{self.name}.sums")
        for file in written:
            assert file.sums is not None
            sums.write(file.sums.finish())
        files = tuple(file.entry(file.path.name) for file in (*written, sums))
        return ShardEntry(self.name, self._split, self.documents, self.tokens, files)


def _summed(path: Path) -> HashedFile:
    return HashedFile(path, BlockSums())


class _Columns:
    """Provenance that waits for a full row group."""

    def __init__(self) -> None:
        self.rows = 0
        self._files: list[tuple[str, int]] = []
        self._ids: list[str | None] = []
        self._numbers: list[np.ndarray] = []

    def add(
        self,
        file: str,
        positions: np.ndarray,
        ids: list[str | None] | None,
        text_bytes: np.ndarray,
        lengths: np.ndarray,
    ) -> None:
        count = len(positions)
        self.rows += count
        self._files.append((file, count))
        self._ids += ids if ids is not None else [None] * count
        self._numbers.append(np.stack([positions, text_bytes, lengths]))

    def take(self, rows: int) -> tuple[list[str], np.ndarray, list[str | None], np.ndarray, np.ndarray]:
        """Remove and return the first `rows` documents."""
        files = [file for file, count in self._files for _ in range(count)]
        numbers = np.concatenate(self._numbers, axis=1)
        ids = self._ids[:rows]
        self._files = [(file, 1) for file in files[rows:]]
        self._ids = self._ids[rows:]
        self._numbers = [numbers[:, rows:]]
        self.rows -= rows
        return files[:rows], numbers[0, :rows], ids, numbers[1, :rows], numbers[2, :rows]


def _repeated(value: str | None, count: int) -> pa.Array:
    """One value for all documents, as a dictionary of at most one entry."""
    indices = pa.nulls(count, pa.int32()) if value is None else pa.array(np.zeros(count, np.int32))
    values = pa.array([] if value is None else [value], pa.string())
    return pa.DictionaryArray.from_arrays(indices, values)


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
        self._folder, self._unit = folder, unit
        self._raw: HashedFile | None = None
        self._entries: HashedFile | None = None
        self._held: RejectEntry | None = None

    def write(self, reject: Reject, file: str) -> None:
        """Append one bad record, or one more piece of the last."""
        if self._raw is None:
            self._raw = HashedFile(self._folder / f"{self._unit}.raw")
            self._entries = HashedFile(self._folder / f"{self._unit}.jsonl")
        if reject.continued and self._held is not None:
            self._held.bytes += self._raw.write(reject.raw)
            return
        self._release()
        offset = self._raw.size
        size = self._raw.write(reject.raw)
        self._held = RejectEntry(
            file, reject.position, reject.reason, reject.detail, offset, size, reject.records
        )

    def _release(self) -> None:
        if self._held is not None and self._entries is not None:
            self._entries.write(msgspec.json.encode(self._held) + b"\n")
            self._held = None

    def abandon(self) -> None:
        """Close the open files of a unit that failed."""
        for file in (self._raw, self._entries):
            if file is not None:
                file.abandon()

    def close(self) -> tuple[FileEntry, ...]:
        """Close the files and return their entries; none for a unit without rejects."""
        self._release()
        if self._raw is None or self._entries is None:
            return ()
        return (
            self._raw.entry(f"rejects/{self._unit}.raw"),
            self._entries.entry(f"rejects/{self._unit}.jsonl"),
        )
