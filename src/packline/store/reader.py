"""Open a store and read documents from it.

Opening reads the manifest and checks the sizes of the shards' files: 10 microseconds per shard. A document's
tokens are a read-only view of the mapped `.bin`. A store survives fork, and pickles as its path.
"""

from __future__ import annotations

import bisect
import operator
import os
import stat
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self, overload

import numpy as np

from packline.errors import CorruptStore, StoreError
from packline.ragged import distinct_values, offsets_of
from packline.store.files import (
    HINT,
    CacheSettings,
    FileEntry,
    StoreFiles,
    check_size,
    reading,
    stat_file,
    store_files,
)
from packline.store.ledger import source_names
from packline.store.manifest import Manifest
from packline.store.manifest_check import read_manifest
from packline.store.provenance import Provenance
from packline.store.shard import Shard, index_size
from packline.store.tables import TOKENIZER, ShardRows


class Documents:
    """All documents of a store, or those of a slice or a list: an immutable sequence of arrays."""

    def __init__(self, store: StoreReader, indices: Sequence[int]) -> None:
        self._store, self._indices = store, indices

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> np.ndarray: ...
    @overload
    def __getitem__(self, index: slice | list[int] | np.ndarray) -> Documents: ...
    def __getitem__(
        self, index: int | np.integer[Any] | slice | list[int] | np.ndarray
    ) -> np.ndarray | Documents:
        try:
            place = self._indices[operator.index(index)]  # type: ignore[arg-type]
        except IndexError:
            raise IndexError(f"document {index} of {len(self):,}") from None
        except TypeError:
            if isinstance(index, slice):
                return Documents(self._store, self._indices[index])
            if isinstance(index, list | np.ndarray):
                return Documents(self._store, [self._indices[one] for one in index])
            raise
        shard, inner = self._store.locate(place)
        return shard.document(inner)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self):,} documents of {self._store.place}>"


class Shards(Sequence[Shard]):
    """Shards of a store: an immutable sequence, in which each is made once, when it is used."""

    def __init__(self, files: StoreFiles, rows: ShardRows, dtype: np.dtype, vocab_size: int) -> None:
        self._files, self._rows, self._dtype, self._vocab_size = files, rows, dtype, vocab_size
        self.made: dict[int, Shard] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Shard: ...
    @overload
    def __getitem__(self, index: slice) -> list[Shard]: ...
    def __getitem__(self, index: int | slice) -> Shard | list[Shard]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        made = self.made.get(index)
        if made is None:
            place = range(len(self))[index]
            made = Shard(self._files, self._rows[place], self._dtype, self._vocab_size)
            made = self.made.setdefault(place, made)  # the same shard for all threads
        return made

    def pick(self, numbers: Sequence[int]) -> list[Shard]:
        """Shards with these numbers, which exist."""
        try:
            return list(map(self.made.__getitem__, numbers))
        except KeyError:
            return [self[number] for number in numbers]

    def __repr__(self) -> str:
        return f"<{len(self):,} shards of {self._files.place}>"


class StoreReader:
    """A finished store, opened for reading.

    Args:
        path: its folder, or the URI of an object store.
        cache: where pieces of a remote store are kept.

    Raises:
        StoreNotFound: there is none.
        CorruptStore: it is damaged, or has a newer format.
    """

    build: str | None = None
    """Identity of the build, of a part of a store that is still being built."""

    def __init__(self, path: str | Path | StoreFiles, cache: CacheSettings | None = None) -> None:
        files = store_files(path, cache)
        self._open(files, read_manifest(files))
        if isinstance(files.place, Path):  # of a remote store, sizes are compared with what arrives
            check_sizes(files.place, self.manifest.shards, self.dtype)

    @classmethod
    def just_written(cls, path: str | Path | StoreFiles, manifest: Manifest) -> Self:
        """A store whose manifest this process has just written, or will not: nothing is read."""
        store = cls.__new__(cls)
        store._open(store_files(path), manifest)
        return store

    def _open(self, files: StoreFiles, manifest: Manifest) -> None:
        self.files = files
        self.place = files.place
        """Folder or URI of the store."""
        self.manifest = manifest
        self.dtype = np.dtype(manifest.dtype).newbyteorder("<")
        shards = manifest.shards
        self.shards = Shards(self.files, shards, self.dtype, self.manifest.tokenizer.vocab_size)
        """Shards, in the order of the documents: a sequence, each opened when it is used."""
        self._made = self.shards.made
        self.firsts: np.ndarray = offsets_of(shards.numbers("documents"))
        """int64 `[P+1]`: number of each shard's first document; the last is the number of documents."""
        self._starts: list[int] = self.firsts.tolist()

    @property
    def path(self) -> Path:
        """Folder of the store.

        Raises:
            StoreError: it is remote; `place` has its URI.
        """
        return self.files.folder

    @property
    def cache(self) -> CacheSettings | None:
        """Cache of a remote store, for other processes that open it; None for a local one."""
        return self.files.settings

    @property
    def documents(self) -> Documents:
        """Tokens by document: `store.documents[i]` with an int (negative, NumPy) or a slice."""
        return Documents(self, range(self._starts[-1]))

    @property
    def eod_id(self) -> int:
        """Token at the end of every document."""
        return self.manifest.tokenizer.eod_id

    @cached_property
    def token_firsts(self) -> np.ndarray:
        """int64 `[P+1]`: tokens of all shards before each one; the last is the number of tokens."""
        return offsets_of(self.manifest.shards.numbers("tokens"))

    @cached_property
    def has_loss(self) -> bool:
        """True if any shard has a `NAME.loss`."""
        losses = self.manifest.shards.table["loss_bytes"]
        return len(losses) > losses.null_count

    def locate(self, index: int) -> tuple[Shard, int]:
        """Shard of a document, and its place there."""
        starts = self._starts
        number = bisect.bisect_right(starts, index) - 1
        shard = self._made.get(number)
        return self.shards[number] if shard is None else shard, index - starts[number]

    def will_need(self, first: int, last: int) -> None:
        """Ask the system to read documents `first` to `last` into the page cache, without waiting."""
        (_, begin), (_, end) = self.locate(first), self.locate(last)
        numbers = (self.firsts.searchsorted([first, last], "right") - 1).tolist()
        for number in range(numbers[0], numbers[1] + 1):
            shard = self.shards[number]
            if len(shard):
                start = begin if number == numbers[0] else 0
                shard.will_need(start, end if number == numbers[1] else len(shard) - 1)

    def provenance(self, index: int | np.integer[Any]) -> Provenance:
        """Provenance of a document.

        Raises:
            IndexError: no such document.
        """
        place = range(self._starts[-1])[operator.index(index)]
        shard, inner = self.locate(place)
        return shard.provenance(inner)

    @cached_property
    def tokenizer(self) -> Any:
        """Reference tokenizer (HF `tokenizers`) kept with the store.

        Raises:
            CorruptStore: its file is damaged.
        """
        import tokenizers

        data = self.files.read(self.tokenizer_file)
        with reading(self.files.path(self.tokenizer_file.name)):
            return tokenizers.Tokenizer.from_str(data.decode("utf-8"))

    @property
    def tokenizer_file(self) -> FileEntry:
        """Entry of the `tokenizer.json` kept with the store.

        Raises:
            CorruptStore: the manifest lists none.
        """
        name = f"{TOKENIZER}/tokenizer.json"
        for entry in self.manifest.tokenizer_files:
            if entry.name == name:
                return entry
        raise CorruptStore(f"the manifest of {self.place} does not list {name}", hint=HINT)

    def text(self, index: int) -> str:
        """Decode a document's tokens to text, without its boundary tokens.

        Raises:
            CorruptStore: the document or the tokenizer is damaged.
        """
        start = 0 if self.manifest.tokenizer.bos_id is None else 1
        return self.decode(self.documents[index][start:-1])

    def decode(self, tokens: np.ndarray | Sequence[int]) -> str:
        """Decode tokens to text; special tokens are shown as their strings.

        Args:
            tokens: ids of this store's vocabulary, integers `[T]`.

        Raises:
            CorruptStore: the tokenizer is damaged.
        """
        return str(self.tokenizer.decode(np.asarray(tokens).tolist(), skip_special_tokens=False))

    def __reduce__(self) -> tuple[type[StoreReader], tuple[StoreFiles]]:
        return type(self), (self.files,)

    def __repr__(self) -> str:
        manifest = self.manifest
        return (
            f"<Store {self.place}: {manifest.documents:,} documents, {manifest.tokens:,} tokens of "
            f"{manifest.tokenizer.name} ({manifest.dtype}), {len(self.shards)} shards>"
        )


def check_sizes(folder: Path, shards: ShardRows, dtype: np.dtype) -> None:
    """Refuse a store whose tokens or index are missing or have the wrong size.

    Looks only at file sizes, so that no training starts that a truncated file would end.

    Raises:
        CorruptStore: the first such file.
    """
    base, lstat, regular, size = os.path.join(folder, ""), os.lstat, stat.S_ISREG, dtype.itemsize
    names = [base + name for name in shards.names("name")]
    documents, tokens = shards.numbers("documents"), shards.numbers("tokens")
    for ending, sizes, counts, what in (
        (".bin", tokens * size, tokens, "tokens"),
        (".idx", index_size(documents), documents, "documents"),
    ):
        for number, (name, expected) in enumerate(zip(names, sizes.tolist(), strict=True)):
            try:
                found = lstat(name + ending)
                if found.st_size == expected and regular(found.st_mode):
                    continue
            except OSError:
                pass  # reported below
            path = Path(name + ending)
            holds = f"{counts[number]:,} {what}"
            check_size(path, expected, stat_file(path).st_size, holds=holds)


class ShardLabel(NamedTuple):
    """Origin of a shard's documents."""

    number: int
    source: str
    label: str | None


def shard_labels(store: StoreReader) -> list[ShardLabel]:
    """Source and label of each shard, in the order of `store.shards`."""
    recipe = store.manifest.recipe
    known = {
        name: ShardLabel(number, name, recipe.sources[number].label)
        for number, name in enumerate(source_names(recipe))
    }
    return [known[name] for name in store.manifest.shards.names("source")]


def provenance_of(store: StoreReader, documents: np.ndarray) -> list[Provenance]:
    """Provenance of several documents, in their order.

    Args:
        documents: integers `[N]`, each a number in `store.documents`.
    """
    numbers = np.asarray(documents, np.int64)
    found = {number: store.provenance(number) for number in distinct_values(numbers).tolist()}
    return [found[number] for number in numbers.tolist()]


def document_number(store: StoreReader, document: int) -> int:
    """Number of an existing document; negative ones count from the end.

    Raises:
        StoreError: no such document.
    """
    count = len(store.documents)
    if not -count <= document < count:
        raise StoreError(f"{store.place} has no document {document:,}: expected 0 to {count - 1:,}")
    return document % count
