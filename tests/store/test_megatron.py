"""The `.bin`/`.idx` pair in megatron-core's own reader, for both dtypes.

Megatron reads in its own environment and gives back hashes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.formats.peers import run_peer
from tests.store.stores import build_store

from packline.fingerprint import hash_bytes

READ = """
import numpy as np
import xxhash
from megatron.core.datasets.indexed_dataset import IndexedDataset

answer = {}
for prefix in arguments:
    data = IndexedDataset(prefix, mmap=True)
    documents = [np.asarray(data[place]) for place in range(len(data))]
    answer[prefix] = {
        "dtype": data.index.dtype.__name__,
        "document_indices": data.document_indices.tolist(),
        "hashes": [xxhash.xxh3_128_hexdigest(one.tobytes()) for one in documents],
    }
"""


def large_tokenizer(small: Path, folder: Path) -> Path:
    """The same tokenizer with so many more special tokens that ids need 32 bits."""
    whole = json.loads(small.read_text())
    size = len(whole["model"]["vocab"])
    token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    more = [{"id": number, "content": f"<|{number}|>", **token} for number in range(size, 66_000)]
    whole["added_tokens"] += more
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(whole))
    return path


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_megatron_reads_the_same_documents(
    tmp_path: Path, tokenizer_json: Path, documents: list[str], write_jsonl: Callable[..., Path], dtype: str
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents)
    large = dtype == "int32"
    tokenizer = large_tokenizer(tokenizer_json, tmp_path) if large else tokenizer_json
    eod = "<|65999|>" if large else "<|endoftext|>"
    store = build_store(source, tokenizer, tmp_path / "store", val_fraction=0.2, eod=eod, engine="gigatoken")
    assert store.manifest.dtype == dtype
    assert len(store.shards) == 2
    prefixes = [str(store.path / shard.name) for shard in store.manifest.shards]
    found = run_peer(READ, *prefixes, modules=("megatron", "torch", "xxhash"))
    first = 0
    for prefix, shard in zip(prefixes, store.shards, strict=True):
        own = store.documents[first : first + len(shard)]
        first += len(shard)
        assert found[prefix]["dtype"] == dtype
        assert found[prefix]["document_indices"] == list(range(len(shard) + 1))
        assert found[prefix]["hashes"] == [hash_bytes(one.tobytes()) for one in own]
    assert first == len(documents)
