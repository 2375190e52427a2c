"""A store of very many documents, for what must stay quick on one: real tokens, cut short and repeated.

    make_store(Path("demo/store"), Path("big"), documents=10_000_000)

Each document is a stretch of the original's tokens with a lognormal length (median 50). They are spread over
three sources and units of 65,000 documents, one in fifty of which are of the validation split. Ids and
positions are like those of crawled data. It is a store that can be read as any other, not one that `verify`
passes: its inputs do not exist.

Cost: 2 microseconds and about 160 bytes of disk a document.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np

from packline.facade import Store
from packline.fingerprint import hash_bytes
from packline.ragged import Ragged, offsets_of
from packline.recipe import Source
from packline.store.files import FileEntry
from packline.store.ledger import Ledger
from packline.store.manifest import InputPiece, Receipt, assemble, to_json
from packline.store.tables import InputEntry, ShardEntry
from packline.store.writer import ShardWriter
from packline.testing import write_manifest

SOURCES = (("web", "general"), ("books", "prose"), ("code", None))
UNIT = 65_000
MEDIAN, SIGMA, LONGEST = 50, 0.9, 20_000
SEED = 7


def make_store(original: Path, out: Path, *, documents: int) -> Store:
    """Write the store.

    Args:
        original: a small store whose tokens and tokenizer are taken.
        out: a folder; a store that is there is replaced.
        documents: how many.
    """
    small = Store(original)
    shutil.rmtree(out, ignore_errors=True)
    (out / "receipts").mkdir(parents=True)
    shutil.copytree(original / "tokenizer", out / "tokenizer")
    tokens = np.concatenate([shard.tokens for shard in small.shards])
    counts = [UNIT] * (documents // UNIT) + ([documents % UNIT] if documents % UNIT else [])
    receipts = [_unit(out, number, count, tokens, small) for number, count in enumerate(counts)]
    receipts.sort(key=lambda receipt: receipt.shards[0].split != "train")
    manifest = small.manifest
    sources = tuple(Source(inputs=(name,), name=name, label=label) for name, label in SOURCES)
    manifest = assemble(
        receipts,
        recipe=msgspec.structs.replace(manifest.recipe, sources=sources, val_fraction=0.02),
        tokenizer=manifest.tokenizer,
        dtype=manifest.dtype,
        inputs=(
            InputEntry(name, f"{name}.jsonl", 1 << 40, "jsonl", "", "text", hash_bytes(name.encode()))
            for name, _ in SOURCES
        ),
        receipt_files=(_entry(out, f"receipts/{receipt.unit}.json") for receipt in receipts),
        tokenizer_files=manifest.tokenizer_files,
    )
    write_manifest(out, manifest)
    return Store(out)


def _unit(out: Path, number: int, count: int, tokens: np.ndarray, small: Store) -> Receipt:
    """One shard and its receipt."""
    random = np.random.default_rng((SEED, number))
    lengths = np.clip(random.lognormal(np.log(MEDIAN), SIGMA, count), 2, LONGEST).astype(np.int64)
    offsets = offsets_of(lengths)
    start = int(random.integers(0, len(tokens)))
    held = np.take(tokens, np.arange(start, start + int(offsets[-1])), mode="wrap")
    held[held == small.eod_id] = 0
    held[offsets[1:] - 1] = small.eod_id
    source = number % len(SOURCES)
    split = "val" if number % 50 == 49 else "train"
    name, label = SOURCES[source]
    positions = offsets[:-1] * 4 + number * (UNIT * 500)
    unit = f"{name}-{number // len(SOURCES):06d}"
    writer = ShardWriter(out, f"{split}-{unit}", split, name, label, small.dtype)
    ids: list[str | None] = [f"{name}-{number:04x}{place:06x}" for place in range(count)]
    writer.append(Ragged(held, offsets), f"{name}.jsonl", positions, ids, lengths * 4, None)
    shard: ShardEntry = writer.close()
    ledger = Ledger(
        documents_in=count,
        documents=count,
        text_bytes=int(lengths.sum()) * 4,
        tokens=len(held),
        text_tokens=len(held) - count,
        eod_tokens=count,
    )
    piece = InputPiece(f"{name}.jsonl", number, number + 1, hash_bytes(f"piece {number}".encode()))
    receipt = Receipt(unit, name, (piece,), (shard,), (), ledger, 0)
    (out / "receipts" / f"{receipt.unit}.json").write_bytes(to_json(receipt))
    return receipt


def _entry(folder: Path, name: str) -> FileEntry:
    data = (folder / name).read_bytes()
    return FileEntry(name, len(data), hash_bytes(data))
