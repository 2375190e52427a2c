"""Small stores of chosen ids, for the tests of formats: real ones, which `verify` passes.

    make_store(folder, [[5, 6], [], [7]], vocab_size=300, eod_id=0)     three documents, one of them empty
    CASES["empty"].make(folder)                                         the shapes on which formats go wrong

Documents are given by the ids of their text; the boundary tokens are put on. The tokenizer is a byte-level
BPE whose first 256 ordinary ids are single bytes and whose others are words that no merge makes, so any
vocabulary costs nothing to make and every id has bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from packline.facade import Store
from packline.fingerprint import hash_bytes
from packline.ragged import Ragged, dtype_for, offsets_of
from packline.recipe import Recipe, Source
from packline.store.ledger import Ledger
from packline.store.manifest import InputPiece, Receipt
from packline.store.tables import InputEntry, ShardEntry
from packline.store.writer import ShardWriter
from packline.testing import finish_store

EOD = "<|endoftext|>"
BOS = "<|bos|>"
INPUT = "made.txt"
RECORD_BYTES = 100
"""Of the input that provenance names, a document; positions are multiples of it."""


@cache
def tokenizer_text(vocab_size: int, eod_id: int, bos_id: int | None = None) -> str:
    """A tokenizer.json with exactly this vocabulary and these special tokens."""
    from tokenizers import pre_tokenizers

    special = {eod_id: EOD} | ({} if bos_id is None else {bos_id: BOS})
    letters = iter(sorted(pre_tokenizers.ByteLevel.alphabet()))
    vocab = {special.get(number) or next(letters, f"word{number}"): number for number in range(vocab_size)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    whole = {
        "version": "1.0",
        "added_tokens": [
            {"id": number, "content": content, **flags} for number, content in sorted(special.items())
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
        "truncation": None,  # as in every store, so that one that was imported has the same bytes
        "padding": None,
    }
    return msgspec.json.encode(whole).decode()


def write_tokenizer(folder: Path, vocab_size: int, eod_id: int, bos_id: int | None = None) -> Path:
    """The same as a file, as an import is given it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokenizer.json"
    path.write_text(tokenizer_text(vocab_size, eod_id, bos_id), "utf-8")
    return path


def make_store(
    folder: Path,
    documents: Sequence[Sequence[int]],
    *,
    vocab_size: int,
    eod_id: int,
    bos_id: int | None = None,
    loss: Sequence[Sequence[int]] | None = None,
    val: Sequence[int] = (),
    shards: int = 1,
) -> Store:
    """Write a store.

    Args:
        folder: where; made here.
        documents: ids of each document's text, without boundary tokens; an empty one is its end alone.
        vocab_size: of the tokenizer that is made for it; at least 256 and two more.
        eod_id: put behind every document.
        bos_id: put before every document, where given.
        loss: a mask for each document as stored, boundary tokens included; 1 = trained on.
        val: numbers of the documents that belong to the validation split.
        shards: units that the documents are spread over, in order; each has a shard a split.
    """
    write_tokenizer(folder / "tokenizer", vocab_size, eod_id, bos_id)
    before = [] if bos_id is None else [bos_id]
    stored = [[*before, *body, eod_id] for body in documents]
    units = np.array_split(np.arange(len(documents)), shards)
    receipts = [_unit(folder, number, unit, stored, vocab_size, bos_id, loss, val)
                for number, unit in enumerate(units)]  # fmt: skip
    pieces = [receipt.inputs[0].checksum for receipt in receipts]
    checksum = pieces[0] if shards == 1 else hash_bytes("".join(pieces).encode())
    recipe = Recipe(
        sources=(Source(inputs=(INPUT,), name="made"),),
        tokenizer="tokenizer.json",
        eod=EOD,
        bos=None if bos_id is None else BOS,
        val_fraction=0.5 if len(val) else 0.0,
    )
    inputs = [InputEntry("made", INPUT, RECORD_BYTES * len(documents), "text", "", "", checksum)]
    dtype = dtype_for(vocab_size).name
    store = finish_store(folder, recipe, inputs, receipts, dtype=dtype, eod_id=eod_id, bos_id=bos_id)
    assert store.manifest.tokenizer.vocab_size == vocab_size
    return store


def _unit(
    folder: Path,
    number: int,
    members: np.ndarray,
    stored: list[list[int]],
    vocab_size: int,
    bos_id: int | None,
    loss: Sequence[Sequence[int]] | None,
    val: Sequence[int],
) -> Receipt:
    """One unit: a shard a split, and the receipt that names them."""
    dtype = dtype_for(vocab_size)
    ledger = Ledger(documents_in=len(members), documents=len(members), eod_tokens=len(members))
    ledger.bos_tokens = 0 if bos_id is None else len(members)
    entries: list[ShardEntry] = []
    for split in ("train", "val"):
        chosen = [int(place) for place in members if (int(place) in val) == (split == "val")]
        if not chosen:
            continue
        lengths = np.array([len(stored[place]) for place in chosen], np.int64)
        tokens = np.array([token for place in chosen for token in stored[place]], dtype)
        mask = None
        if loss is not None:
            mask = np.array([flag for place in chosen for flag in loss[place]], np.uint8)
        text_bytes = np.maximum(lengths - 1 - (bos_id is not None), 1)
        writer = ShardWriter(
            folder, f"{split}-made-{number:06d}", split, "made", None, dtype, with_loss=mask is not None
        )
        writer.append(
            Ragged(tokens, offsets_of(lengths)),
            INPUT,
            np.array(chosen, np.int64) * RECORD_BYTES,
            [f"d{place}" for place in chosen],
            text_bytes,
            None,
            mask,
        )
        entries.append(writer.close())
        ledger.text_bytes += int(text_bytes.sum())
        ledger.tokens += len(tokens)
    ledger.text_tokens = ledger.tokens - ledger.eod_tokens - ledger.bos_tokens
    start, stop = (int(members[0]), int(members[-1]) + 1) if len(members) else (0, 0)
    checksum = hash_bytes(f"piece {number}".encode())
    piece = InputPiece(INPUT, start * RECORD_BYTES, stop * RECORD_BYTES, checksum)
    return Receipt(f"made-{number:06d}", "made", (piece,), tuple(entries), (), ledger, 0)


@dataclass(frozen=True, slots=True)
class Case:
    """A store to export, and what it was made from."""

    name: str
    documents: tuple[tuple[int, ...], ...]
    """Ids of the texts, in the order of the store (train before val, unit by unit)."""
    vocab_size: int = 1000
    eod_id: int = 0
    bos_id: int | None = None
    loss: tuple[tuple[int, ...], ...] | None = None
    val: tuple[int, ...] = ()
    shards: int = 1

    def make(self, folder: Path) -> Store:
        """Write it."""
        given: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        del given["name"]
        return make_store(folder, **given)

    @property
    def stored(self) -> list[list[int]]:
        """The documents as the store has them, boundary tokens included, in the order they were given."""
        before = [] if self.bos_id is None else [self.bos_id]
        return [[*before, *body, self.eod_id] for body in self.documents]


def random_documents(
    count: int, vocab_size: int, *, longest: int = 40, seed: int = 0, without: Sequence[int] = (0, 1)
) -> tuple[tuple[int, ...], ...]:
    """Documents of 0 to `longest` ids; the largest id of the vocabulary is among them."""
    random = np.random.default_rng(seed)
    ordinary = np.setdiff1d(np.arange(vocab_size), without)
    made = [tuple(random.choice(ordinary, int(size)).tolist())
            for size in random.integers(0, longest + 1, count)]  # fmt: skip
    made[count // 2] = (*made[count // 2], int(ordinary[-1]))
    return tuple(made)


def random_loss(
    documents: Sequence[Sequence[int]], boundary_tokens: int = 1, seed: int = 1
) -> tuple[tuple[int, ...], ...]:
    """A mask for each document as stored."""
    random = np.random.default_rng(seed)
    return tuple(tuple(random.integers(0, 2, len(body) + boundary_tokens).tolist()) for body in documents)


def _cases() -> dict[str, Case]:
    some = random_documents(40, 1000)
    wide = random_documents(30, 70_000, seed=2, without=(69_999,))
    both = random_documents(25, 1000, seed=3)
    found = (
        Case("plain", some),
        Case("wide", wide, vocab_size=70_000, eod_id=69_999),
        Case("bos", both, bos_id=1),
        Case("loss", some, loss=random_loss(some)),
        Case("bos_loss", both, bos_id=1, loss=random_loss(both, 2)),
        Case("empty", ((), (), (5,), ())),
        Case("one", ((3, 4, 5, 6, 7),)),
        Case("long", (*some[:5], tuple(range(2, 900)) * 3, *some[5:9])),
        Case("shards", some, shards=4),
        Case("splits", some, val=(1, 7, 8, 20, 39), shards=3),
    )
    return {case.name: case for case in found}


CASES = _cases()
"""By name: `@pytest.mark.parametrize("case", CASES.values(), ids=CASES)`."""
