"""Hypothesis strategies and small stores, for tests of code that reads stores. Needs `packline[testing]`.

A test of rows, on many stores:

    @given(testing.store_shapes(), testing.row_options())
    def test_every_row_is_full(shape, options):
        with shape.opened() as store:
            ...
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
from hypothesis import strategies as st

from packline.encoders.tokenizer import load_tokenizer
from packline.facade import Store
from packline.fingerprint import hash_bytes
from packline.packing.options import OVERFLOWS, PACKINGS, RowOptions
from packline.ragged import Ragged, offsets_of
from packline.recipe import Recipe, Source
from packline.sources.batch import Batch, Texts
from packline.store.files import FileEntry
from packline.store.ledger import Ledger
from packline.store.manifest import (
    InputPiece,
    Manifest,
    Receipt,
    TokenizerEntry,
    assemble,
    manifest_files,
    to_json,
)
from packline.store.naming import UnitName, source_slugs
from packline.store.tables import InputEntry
from packline.store.writer import ShardWriter

EOD, EOD_ID = "<|endoftext|>", 0
VOCAB_SIZE = {"uint16": 1000, "int32": 70_000}


def token_of(
    document: int | np.ndarray, place: int | np.ndarray, vocab_size: int = VOCAB_SIZE["uint16"]
) -> np.ndarray:
    """Token at a place of a document of `make_store`, by the document's number; never the end of document."""
    mixed = np.asarray(document, np.int64) * 7919 + np.asarray(place, np.int64) * 31
    return 1 + mixed % (vocab_size - 1)


def document_tokens(document: int, length: int, vocab_size: int = VOCAB_SIZE["uint16"]) -> list[int]:
    """All tokens of a document of `make_store`, with its end."""
    return [*token_of(document, np.arange(length - 1), vocab_size).tolist(), EOD_ID]


def make_store(
    folder: Path,
    lengths: Sequence[Sequence[int]],
    *,
    dtype: str = "uint16",
    splits: Sequence[str] | None = None,
    labels: Sequence[str | None] | None = None,
    sources: Sequence[str] | None = None,
    vocab_size: int | None = None,
) -> Store:
    """Write a store of documents with these lengths, without an encoder, and open it; `verify` accepts it.

    A token depends on its place alone (`token_of`), so a test knows what it must read without a copy of the
    store. The last token of every document is its end, and a document of length 1 is nothing else. Every
    shard is a separate unit. A source is made for every label and name, in the order of their first use.

    Args:
        folder: folder of the store: new or empty.
        lengths: tokens of each document, at least 1, end of document included; one list per shard.
        dtype: dtype of the tokens, uint16 or int32.
        splits: `train`, `val` or `test` per shard; default all train.
        labels: label per shard; default none.
        sources: name of the source per shard; default `made`, with the label where there is one. A source has
            one label.
        vocab_size: below 65,500 for uint16, else at least that.

    >>> store = make_store(Path("store"), [[5, 1, 9], [4]], splits=["train", "val"])
    >>> [len(document) for document in store.documents], store.documents[0].tolist() == document_tokens(0, 5)
    ([5, 1, 9, 4], True)
    """
    splits = splits or ["train"] * len(lengths)
    labels = labels or [None] * len(lengths)
    names = sources or ["made" if label is None else f"made-{label}" for label in labels]
    vocab_size = vocab_size or VOCAB_SIZE[dtype]
    label_of = dict(zip(names, labels, strict=True))
    assert len({*zip(names, labels, strict=True)}) == len(label_of), "a source has one label"
    slug_of = dict(zip(label_of, source_slugs(list(label_of)), strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer").mkdir()
    _write(folder, "tokenizer/tokenizer.json", _tokenizer_json(vocab_size))
    receipts: list[Receipt] = []
    inputs: list[InputEntry] = []
    units, document = Counter[str](), 0
    for number, (own, split, name) in enumerate(zip(lengths, splits, names, strict=True)):
        unit, file = str(UnitName(slug_of[name], units[name])), f"{number:06d}.jsonl"
        units[name] += 1
        counts = np.asarray(own, np.int64)
        offsets = offsets_of(counts)
        numbers = np.arange(document, document + len(counts))
        places = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        tokens = token_of(np.repeat(numbers, counts), places, vocab_size)
        tokens[offsets[1:] - 1] = EOD_ID
        texts = Texts.of(["x" * max(length - 1, 1) for length in own])
        batch = Batch(0, texts, np.arange(len(counts)) * 100, [f"d{one}" for one in numbers.tolist()])
        little = np.dtype(dtype).newbyteorder("<")
        writer = ShardWriter(folder, f"{split}-{unit}", split, name, label_of[name], little)
        writer.write(Ragged(tokens.astype(little), offsets), batch, file, texts.hashes())
        shard = writer.close()
        document += len(counts)
        checksum, size = hash_bytes(unit.encode()), int(np.maximum(counts - 1, 1).sum())
        inputs.append(InputEntry(name, file, size, "jsonl", "", "text", checksum))
        ledger = Ledger(
            documents_in=len(counts),
            documents=len(counts),
            text_bytes=size,
            tokens=shard.tokens,
            text_tokens=shard.tokens - len(counts),
            eod_tokens=len(counts),
        )
        piece = InputPiece(file, 0, size, checksum)
        receipts.append(Receipt(unit, name, (piece,), (shard,), (), ledger, 0))
    recipe = Recipe(
        sources=tuple(
            Source(inputs=("*.jsonl",), name=name, format="jsonl", label=label)
            for name, label in label_of.items()
        ),
        tokenizer="made",
        eod=EOD,
        val_fraction=0.5 if "val" in splits else 0.0,
        test_fraction=0.25 if "test" in splits else msgspec.UNSET,
    )
    return finish_store(folder, recipe, inputs, receipts, dtype=dtype, eod_id=EOD_ID)


def finish_store(
    folder: Path,
    recipe: Recipe,
    inputs: Sequence[InputEntry],
    receipts: Sequence[Receipt],
    *,
    dtype: str,
    eod_id: int,
    bos_id: int | None = None,
) -> Store:
    """Write the receipts and the manifest of a store whose shards and tokenizer exist, and open it."""
    (folder / "receipts").mkdir()
    receipt_files = tuple(
        _write(folder, f"receipts/{receipt.unit}.json", to_json(receipt)) for receipt in receipts
    )
    path = folder / "tokenizer" / "tokenizer.json"
    text = path.read_bytes()
    tokenizer_file = FileEntry("tokenizer/tokenizer.json", len(text), hash_bytes(text))
    fingerprint, vocab_size = _identity(path, tokenizer_file.checksum)
    manifest = assemble(
        receipts,
        recipe=recipe,
        tokenizer=TokenizerEntry(
            name=recipe.tokenizer,
            kind="huggingface",
            fingerprint=fingerprint,
            vocab_size=vocab_size,
            eod_id=eod_id,
            eod=str(recipe.eod),
            bos_id=bos_id,
            bos=None if bos_id is None else str(recipe.bos),
            round_trip="exact",
        ),
        dtype=dtype,
        inputs=inputs,
        receipt_files=receipt_files,
        tokenizer_files=(tokenizer_file,),
    )
    write_manifest(folder, manifest)
    return Store(folder)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a manifest and its tables into the folder of a store, replacing those that are there."""
    for name, data in manifest_files(manifest).items():
        (folder / name).write_bytes(data)


@dataclass(frozen=True)
class StoreShape:
    """Lengths, splits and labels of a small store."""

    lengths: tuple[tuple[int, ...], ...]
    """Tokens of each document, end of document included, per shard."""
    splits: tuple[str, ...]
    """Split of each shard."""
    labels: tuple[str | None, ...]
    """Label of each shard."""
    dtype: str = "uint16"

    def make(self, folder: Path) -> Store:
        """Write the store to a folder, and open it."""
        return make_store(folder, self.lengths, dtype=self.dtype, splits=self.splits, labels=self.labels)

    @contextmanager
    def opened(self) -> Iterator[Store]:
        """The store in a temporary folder, which is removed afterwards."""
        with tempfile.TemporaryDirectory(prefix="packline-") as folder:
            yield self.make(Path(folder) / "store")


def lengths(max_length: int = 40, max_documents: int = 25) -> st.SearchStrategy[list[int]]:
    """Lengths of the documents of a shard: mostly short ones, many of a single token."""
    length = st.one_of(st.integers(1, min(9, max_length)), st.just(1), st.integers(1, max_length))
    return st.lists(length, min_size=1, max_size=max_documents)


def shards(
    max_shards: int = 4, *, max_length: int = 40, max_documents: int = 25
) -> st.SearchStrategy[list[list[int]]]:
    """Lengths of documents per shard, as `make_store` takes them."""
    return st.lists(lengths(max_length, max_documents), min_size=1, max_size=max_shards)


@st.composite
def store_shapes(
    draw: st.DrawFn, *, splits: Sequence[str] = ("train", "val"), labels: Sequence[str | None] = (None, "web")
) -> StoreShape:
    """Shapes of small stores, with at least one document in the split train."""
    found = draw(shards())
    count = len(found)
    kinds = draw(st.lists(st.sampled_from(splits), min_size=count, max_size=count))
    marks = draw(st.lists(st.sampled_from(labels), min_size=count, max_size=count))
    dtype = draw(st.sampled_from(["uint16", "int32"]))
    return StoreShape(tuple(map(tuple, found)), ("train", *kinds[1:]), tuple(marks), dtype)


@st.composite
def row_options(draw: st.DrawFn) -> RowOptions:
    """Options of rows that fit together, for any store with documents in the split train."""
    packing = draw(st.sampled_from(PACKINGS))
    return RowOptions(
        split=draw(st.sampled_from(["train", "all"])),
        shuffle_documents=draw(st.none() | st.integers(0, 2**63 - 1)),
        packing=packing,
        min_tail_fraction=draw(st.sampled_from([0.0, 0.5, 1.0])) if packing == "concat" else 0.5,
        overflow=draw(st.sampled_from(OVERFLOWS)) if packing == "pad" else "truncate",
        boundary_loss=draw(st.booleans()),
    )


def _write(folder: Path, name: str, data: bytes) -> FileEntry:
    (folder / name).write_bytes(data)
    return FileEntry(name, len(data), hash_bytes(data))


@lru_cache(maxsize=4)
def _tokenizer_json(vocab_size: int) -> bytes:
    """Tokenizer whose token n is the word `wn`."""
    special = {"id": EOD_ID, "content": EOD, "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    vocab = {EOD: EOD_ID} | {f"w{number}": number for number in range(1, vocab_size)}
    contents = {
        "version": "1.0",
        "added_tokens": [special | flags],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w1"},
    }
    return msgspec.json.encode(contents)


_IDENTITIES: dict[str, tuple[str, int]] = {}


def _identity(path: Path, checksum: str) -> tuple[str, int]:
    """Fingerprint and vocabulary size of a tokenizer, cached, since many stores have equal ones."""
    if checksum not in _IDENTITIES:
        tokenizer = load_tokenizer(str(path))
        _IDENTITIES[checksum] = tokenizer.fingerprint, tokenizer.vocab_size
    return _IDENTITIES[checksum]
