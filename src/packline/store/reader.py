"""Open a store and read documents from it.

Opening maps indexes and reads nothing else: 0.1 s whatever the size. A document's tokens are a read-only
view of the mapped `.bin`: no copy, no Python object a token, no file offset that threads or forked
processes could share. Handles are paths and maps, so a store survives fork, and pickles as its path.
"""

from __future__ import annotations

import bisect
import itertools
import operator
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import msgspec
import numpy as np

from packline.errors import CorruptStore
from packline.store.index import Index
from packline.store.manifest import Manifest, ShardEntry, read_manifest
from packline.store.mapped import map_array

if TYPE_CHECKING:
    import pyarrow as pa

    from packline.packing.rows import Rows
    from packline.store.verify import Report


class Provenance(msgspec.Struct, frozen=True):
    """Where a document came from."""

    source: str
    file: str
    """Path below the source's common folder."""
    position: int
    """Byte offset in the (decompressed) file, or row number in a Parquet file."""
    id: str | None
    """Its own id, where the data has one."""
    label: str | None
    split: str
    text_bytes: int
    tokens: int


class Shard:
    """One shard: mapped tokens, mapped index, provenance when asked for.

    Raises:
        CorruptStore: the index disagrees with the manifest, or the tokens' file with the index.
    """

    def __init__(self, folder: Path, entry: ShardEntry, dtype: np.dtype) -> None:
        self.entry = entry
        self._folder = folder
        index = Index(folder / f"{entry.name}.idx")
        if index.dtype != dtype or len(index) != entry.documents:
            raise CorruptStore(
                f"{index.path}: expected {entry.documents:,} documents of {dtype.name}, "
                f"found {len(index):,} of {index.dtype.name}",
                hint="packline verify shows what else differs",
            )
        self.lengths = index.lengths  # int32 `[D]`, tokens
        self.offsets = index.offsets  # int64 `[D]`, bytes: where each document's first token is in the `.bin`
        # Of one document, as ints, in 60 nanoseconds: for the few of a batch in each of many shards.
        self.length_of, self.offset_of = index.lengths.item, index.offsets.item
        self.tokens = map_array(
            folder / f"{entry.name}.bin",
            dtype,
            (entry.tokens,),
            holds=f"{entry.tokens:,} tokens",
            of="another store",
        )
        self._itemsize = dtype.itemsize

    def __len__(self) -> int:
        return self.entry.documents

    def document(self, index: int) -> np.ndarray:
        """Tokens of a document, a read-only view."""
        start = int(self.offsets[index]) // self._itemsize
        return self.tokens[start : start + int(self.lengths[index])]

    def places(self, documents: np.ndarray | slice) -> np.ndarray:
        """Place in `tokens` of the first token of these documents, int64 of their shape."""
        return self.offsets[documents] // self._itemsize

    @cached_property
    def loss(self) -> np.ndarray | None:
        """uint8 `[T]`, 1 where a token is trained on; None where the shard has no `NAME.loss`.

        Raises:
            CorruptStore: it has not one byte a token.
        """
        path = self._folder / f"{self.entry.name}.loss"
        if not os.path.lexists(path):
            return None
        return map_array(
            path, np.dtype(np.uint8), (self.entry.tokens,), holds="one a token", of="another store"
        )

    @cached_property
    def table(self) -> pa.Table:
        """Provenance of all documents."""
        import pyarrow.parquet as pq

        return pq.read_table(self._folder / f"{self.entry.name}.docs.parquet", use_threads=False)

    def provenance(self, index: int) -> Provenance:
        """Where a document came from."""
        row = self.table.slice(index, 1).to_pylist()[0]
        return Provenance(split=self.entry.split, **row)


class Documents:
    """All documents of a store, or those of a slice: an immutable sequence of arrays."""

    def __init__(self, store: Store, indices: range) -> None:
        self._store, self._indices = store, indices

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> np.ndarray: ...
    @overload
    def __getitem__(self, index: slice) -> Documents: ...
    def __getitem__(self, index: int | np.integer[Any] | slice) -> np.ndarray | Documents:
        if isinstance(index, slice):
            return Documents(self._store, self._indices[index])
        try:
            place = self._indices[operator.index(index)]
        except IndexError:
            raise IndexError(f"document {index} of {len(self):,}") from None
        shard, inner = self._store.locate(place)
        return shard.document(inner)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self):,} documents of {self._store.path}>"


class Store:
    """A finished store, opened for reading.

    Raises:
        StoreNotFound: there is none.
        CorruptStore: it is damaged, or of a newer format.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest: Manifest = read_manifest(self.path)
        self.dtype = np.dtype(self.manifest.dtype).newbyteorder("<")
        self.shards = [Shard(self.path, entry, self.dtype) for entry in self.manifest.shards]
        self._starts = [0, *itertools.accumulate(len(shard) for shard in self.shards)]

    @property
    def documents(self) -> Documents:
        """Tokens by document: `store.documents[i]` with an int (negative, NumPy) or a slice."""
        return Documents(self, range(self._starts[-1]))

    @property
    def eod_id(self) -> int:
        """The token at the end of every document."""
        return self.manifest.tokenizer.eod_id

    @cached_property
    def firsts(self) -> np.ndarray:
        """int64 `[P+1]`: the number of each shard's first document, then how many there are."""
        return np.array(self._starts, np.int64)

    @cached_property
    def has_loss(self) -> bool:
        """Whether any shard has a `NAME.loss`."""
        return any(shard.loss is not None for shard in self.shards)

    def locate(self, index: int) -> tuple[Shard, int]:
        """The shard of a document and its place there."""
        number = bisect.bisect_right(self._starts, index) - 1
        return self.shards[number], index - self._starts[number]

    def provenance(self, index: int | np.integer[Any]) -> Provenance:
        """Where a document came from.

        Raises:
            IndexError: no such document.
        """
        place = range(self._starts[-1])[operator.index(index)]
        shard, inner = self.locate(place)
        return shard.provenance(inner)

    @cached_property
    def tokenizer(self) -> Any:
        """The reference tokenizer (HF `tokenizers`) that is kept with the store."""
        import tokenizers

        return tokenizers.Tokenizer.from_file(str(self.path / "tokenizer" / "tokenizer.json"))

    def text(self, index: int) -> str:
        """A document's tokens as text, without its boundary tokens."""
        ids = self.documents[index].tolist()
        start = 0 if self.manifest.tokenizer.bos_id is None else 1
        return str(self.tokenizer.decode(ids[start:-1], skip_special_tokens=False))

    def rows(self, seq_len: int, **settings: Any) -> Rows:
        """Training sequences of `seq_len` tokens over these documents.

        `packing="concat" | "best_fit" | "pad"`, filters and the rest: see `packline.packing.rows.Rows`.

        Raises:
            RecipeError: a setting that makes no sense.
            StoreError: no document is left, or no row.
        """
        from packline.packing.rows import Rows

        return Rows(self, seq_len, **settings)

    def verify(self, *, deep: bool = False) -> Report:
        """Check the store from its files alone; `deep` encodes a sample of documents again.

        See `packline.store.verify.verify`.
        """
        from packline.store.verify import verify

        return verify(self.path, deep=deep)

    def __reduce__(self) -> tuple[type[Store], tuple[Path]]:
        return Store, (self.path,)

    def _repr_html_(self) -> str:
        """How a notebook shows it, from its manifest."""
        from packline.viewing.html import notebook
        from packline.viewing.pages import store_page

        return notebook(store_page(self))

    def __repr__(self) -> str:
        manifest = self.manifest
        return (
            f"<Store {self.path}: {manifest.documents:,} documents, {manifest.tokens:,} tokens of "
            f"{manifest.tokenizer.name} ({manifest.dtype}), {len(self.shards)} shards>"
        )
