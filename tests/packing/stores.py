"""Small stores of wanted document lengths, made without an encoder, that `verify` finds nothing wrong with.

A token says where it stands: `token_of(document, place)`, so a test knows what it must read without a copy
of the store. The last token of every document is EOD, and a document of length 1 is EOD alone.

    make_store(folder, [[5, 1, 9], [4]])       # two train shards, of three documents and of one
    make_store(folder, [[5], [4]], splits=["train", "val"], labels=["web", None])

Every shard is a unit of its own. A source is made for every label and name that is given, in the order
in which they are met; so shards of one label and name are of one source.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from packline.encoders.tokenizer import load_tokenizer
from packline.facade import Store
from packline.fingerprint import hash_bytes
from packline.ragged import Ragged, offsets_of
from packline.recipe import Recipe
from packline.recipe import Source as SourceSettings
from packline.sources.batch import Batch, Texts
from packline.store.files import FileEntry
from packline.store.ledger import Ledger, total
from packline.store.manifest import (
    FORMAT_VERSION,
    InputEntry,
    InputPiece,
    Manifest,
    Receipt,
    ShardEntry,
    TokenizerEntry,
    to_json,
)
from packline.store.writer import ShardWriter
from packline.version import __version__

EOD, EOD_ID = "<|endoftext|>", 0
VOCAB_SIZE = {"uint16": 1000, "int32": 70_000}


def token_of(
    document: int | np.ndarray, place: int | np.ndarray, vocab_size: int = VOCAB_SIZE["uint16"]
) -> np.ndarray:
    """The token at a place of a document (its global number), never EOD."""
    mixed = np.asarray(document, np.int64) * 7919 + np.asarray(place, np.int64) * 31
    return 1 + mixed % (vocab_size - 1)


def document_tokens(document: int, length: int, vocab_size: int = VOCAB_SIZE["uint16"]) -> list[int]:
    """All tokens of a document, EOD last."""
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
    """Write a store and open it.

    Args:
        folder: is made; must not exist or be empty.
        lengths: tokens of each document (at least 1, EOD included), a list a shard; a shard has documents.
        dtype: of the tokens, uint16 or int32.
        splits: `train` or `val`, one a shard; default all train.
        labels: one a shard; default none.
        sources: the name of the source, one a shard; default `made`, with the label where there is one.
            A source has one label.
        vocab_size: below 65,500 for uint16, else at least that.
    """
    count = len(lengths)
    splits = splits or ["train"] * count
    labels = labels or [None] * count
    names = sources or ["made" if label is None else f"made-{label}" for label in labels]
    vocab_size = vocab_size or VOCAB_SIZE[dtype]
    kinds = list(dict.fromkeys(zip(names, labels, strict=True)))
    assert len(kinds) == len(set(names)), "a source has one label"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "receipts").mkdir()
    (folder / "tokenizer").mkdir()

    receipts: list[Receipt] = []
    inputs: list[InputEntry] = []
    document = 0
    for number, tokens in enumerate(lengths):
        kind = kinds.index((names[number], labels[number]))
        unit = f"{number:06d}"
        shard = _write_shard(
            folder,
            f"{splits[number]}-{unit}",
            splits[number],
            kinds[kind],
            tokens,
            document,
            dtype,
            vocab_size,
        )
        document += len(tokens)
        checksum = hash_bytes(unit.encode())
        size = _text_bytes(tokens)
        inputs.append(InputEntry(f"{unit}.jsonl", kind, size, "jsonl", "", "text", checksum))
        ledger = Ledger(
            documents_in=len(tokens),
            documents=len(tokens),
            text_bytes=size,
            tokens=shard.tokens,
            text_tokens=shard.tokens - len(tokens),
            eod_tokens=len(tokens),
        )
        piece = InputPiece(number, 0, size, checksum)
        receipts.append(Receipt(unit, kind, (piece,), (shard,), (), ledger, 0))
    receipt_files = tuple(
        _write(folder, f"receipts/{receipt.unit}.json", to_json(receipt)) for receipt in receipts
    )
    text = _tokenizer_json(vocab_size)
    tokenizer_file = _write(folder, "tokenizer/tokenizer.json", text)
    ledgers = {
        name: total(receipt.ledger for receipt in receipts if receipt.source == number)
        for number, (name, _) in enumerate(kinds)
    }
    recipe = Recipe(
        sources=tuple(
            SourceSettings(inputs=("*.jsonl",), name=name, format="jsonl", label=label)
            for name, label in kinds
        ),
        tokenizer="made",
        eod=EOD,
        val_fraction=0.5 if "val" in splits else 0.0,
    )
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        packline=__version__,
        recipe=recipe,
        tokenizer=TokenizerEntry(
            name="made",
            kind="huggingface",
            fingerprint=_fingerprint(folder / "tokenizer" / "tokenizer.json", vocab_size),
            vocab_size=vocab_size,
            eod_id=EOD_ID,
            eod=EOD,
            bos_id=None,
            bos=None,
            round_trip="exact",
        ),
        dtype=dtype,
        inputs=tuple(inputs),
        shards=tuple(shard for receipt in receipts for shard in receipt.shards),
        rejects=(),
        receipts=receipt_files,
        tokenizer_files=(tokenizer_file,),
        ledger=total(ledgers.values()),
        sources=ledgers,
    )
    (folder / "manifest.json").write_bytes(to_json(manifest))
    return Store(folder)


def _write_shard(
    folder: Path,
    name: str,
    split: str,
    kind: tuple[str, str | None],
    lengths: Sequence[int],
    first: int,
    dtype: str,
    vocab_size: int,
) -> ShardEntry:
    counts = np.asarray(lengths, np.int64)
    offsets = offsets_of(counts)
    documents = np.repeat(np.arange(first, first + len(counts)), counts)
    places = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    tokens = token_of(documents, places, vocab_size)
    tokens[offsets[1:] - 1] = EOD_ID
    little = np.dtype(dtype).newbyteorder("<")
    writer = ShardWriter(folder, name, split, kind[0], kind[1], little)
    batch = Batch(
        file=0,
        texts=Texts.of(["x" * max(length - 1, 1) for length in lengths]),
        positions=np.arange(len(counts)) * 100,
        ids=[f"d{first + number}" for number in range(len(counts))],
    )
    file = f"{name.partition('-')[2]}.jsonl"
    writer.write(Ragged(tokens.astype(little), offsets), batch, file)
    return writer.close()


def _text_bytes(lengths: Sequence[int]) -> int:
    return sum(max(length - 1, 1) for length in lengths)


def _write(folder: Path, name: str, data: bytes) -> FileEntry:
    (folder / name).write_bytes(data)
    return FileEntry(name, len(data), hash_bytes(data))


@lru_cache(maxsize=4)
def _tokenizer_json(vocab_size: int) -> bytes:
    """A tokenizer whose token n is the word `wn`."""
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


_FINGERPRINTS: dict[int, str] = {}


def _fingerprint(path: Path, vocab_size: int) -> str:
    """Remembered by size: hypothesis makes many stores of one vocabulary."""
    if vocab_size not in _FINGERPRINTS:
        _FINGERPRINTS[vocab_size] = load_tokenizer(str(path)).fingerprint
    return _FINGERPRINTS[vocab_size]
