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

from packline.facade import Store
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


@pytest.fixture
def stores(
    tmp_path: Path, tokenizer_json: Path, documents: list[str], write_jsonl: Callable[..., Path]
) -> dict[str, Store]:
    """Stores of 16 bits a token and of 32, each with two shards."""
    source = write_jsonl(tmp_path / "a.jsonl", documents)
    large = large_tokenizer(tokenizer_json, tmp_path)
    kinds = {"uint16": (tokenizer_json, "<|endoftext|>"), "int32": (large, "<|65999|>")}
    return {
        dtype: build_store(source, tokenizer, tmp_path / dtype, val_fraction=0.2, eod=eod, engine="gigatoken")
        for dtype, (tokenizer, eod) in kinds.items()
    }


def test_megatron_reads_the_same_documents(stores: dict[str, Store], documents: list[str]) -> None:
    places = [str(store.path / shard.name) for store in stores.values() for shard in store.manifest.shards]
    found = run_peer(READ, *places, modules=("megatron", "torch", "xxhash"))
    for dtype, store in stores.items():
        assert store.manifest.dtype == dtype
        assert len(store.shards) == 2
        first = 0
        for shard, one in zip(store.manifest.shards, store.shards, strict=True):
            own = store.documents[first : first + len(one)]
            first += len(one)
            read = found[str(store.path / shard.name)]
            assert read["dtype"] == dtype
            assert read["document_indices"] == list(range(len(one) + 1))
            assert read["hashes"] == [hash_bytes(document.tobytes()) for document in own]
        assert first == len(documents)
