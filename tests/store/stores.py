"""What the tests of the store share: building one, damaging one, and making the damage hold together.

A flipped bit is found by a checksum. To see that what lies behind the checksums is checked too, `reseal`
writes receipts and manifest anew, as somebody would who changed a store and covered the traces.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import packline
from packline.facade import Store
from packline.fingerprint import hash_bytes
from packline.store.files import FileEntry
from packline.store.ledger import total
from packline.store.manifest import Manifest, Receipt, ShardEntry, read_manifest, to_json

EOD = "<|endoftext|>"


def build_store(source: Path, tokenizer: Path, out: Path, **settings: Any) -> Store:
    """A store, built in this process."""
    return packline.build(source, tokenizer, out=out, workers=0, **{"eod": EOD, **settings})


def names(manifest: Manifest) -> list[str]:
    """All files that a manifest names."""
    shards = [entry for shard in manifest.shards for entry in shard.files]
    entries = (*shards, *manifest.rejects, *manifest.receipts, *manifest.tokenizer_files)
    return [entry.name for entry in entries]


def edit_tokens(folder: Path, shard: str, change: Callable[[np.ndarray], None]) -> None:
    """Change the tokens of a shard, and nothing else."""
    path = folder / f"{shard}.bin"
    tokens = np.fromfile(path, np.dtype(read_manifest(folder).dtype))
    change(tokens)
    tokens.tofile(path)


def relist(folder: Path) -> Store:
    """Write into the manifest what the shards' files are now, loss masks that were added included."""

    def shard(old: ShardEntry) -> ShardEntry:
        entries = []
        for ending in ("bin", "idx", "docs.parquet", "loss"):
            path = folder / f"{old.name}.{ending}"
            if path.exists():
                data = path.read_bytes()
                entries.append(FileEntry(path.name, len(data), hash_bytes(data)))
        return msgspec.structs.replace(old, files=tuple(entries))

    manifest = read_manifest(folder)
    manifest = msgspec.structs.replace(manifest, shards=tuple(map(shard, manifest.shards)))
    (folder / "manifest.json").write_bytes(to_json(manifest))
    return Store(folder)


def reseal(
    folder: Path,
    change_receipt: Callable[[Receipt], Receipt] = lambda receipt: receipt,
    change_manifest: Callable[[Manifest], Manifest] = lambda manifest: manifest,
) -> None:
    """Write receipts and manifest so that every size and checksum is that of the file as it is now."""
    manifest = read_manifest(folder)

    def entry(old: FileEntry) -> FileEntry:
        data = (folder / old.name).read_bytes()
        return FileEntry(old.name, len(data), hash_bytes(data))

    def shard(old: ShardEntry) -> ShardEntry:
        return msgspec.structs.replace(old, files=tuple(map(entry, old.files)))

    receipts = []
    for old in manifest.receipts:
        path = folder / old.name
        if path.name.endswith(".stream.json"):
            continue
        receipt = msgspec.json.decode(path.read_bytes(), type=Receipt)
        receipt = msgspec.structs.replace(
            receipt, shards=tuple(map(shard, receipt.shards)), rejects=tuple(map(entry, receipt.rejects))
        )
        receipt = change_receipt(receipt)
        path.write_bytes(to_json(receipt))
        receipts.append(receipt)
    sources = {
        name: total(receipt.ledger for receipt in receipts if receipt.source == name)
        for name in manifest.sources
    }
    manifest = msgspec.structs.replace(
        manifest,
        shards=tuple(one for receipt in receipts for one in receipt.shards),
        rejects=tuple(one for receipt in receipts for one in receipt.rejects),
        receipts=tuple(map(entry, manifest.receipts)),
        tokenizer_files=tuple(map(entry, manifest.tokenizer_files)),
        ledger=total(sources.values()),
        sources=sources,
    )
    (folder / "manifest.json").write_bytes(to_json(change_manifest(manifest)))
