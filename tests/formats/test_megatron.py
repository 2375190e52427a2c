"""Megatron's pairs: megatron-core reads ours, and what its builder wrote is read here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.peers import run_peer
from tests.formats.steps import expected, flat, read_all, write_all
from tests.formats.stores import CASES

from packline.formats import megatron

# Documents are given as lists of sequences: Megatron's preprocessing may split one into sentences.
PEER = """
import numpy as np, torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
folder, made, *prefixes = arguments
for name, documents in json.loads(made):
    builder = IndexedDatasetBuilder(f"{folder}/{name}.bin", dtype=np.int32)
    for sequences in documents:
        for sequence in sequences:
            builder.add_item(torch.tensor(sequence, dtype=torch.int64))
        builder.end_document()
    builder.finalize(f"{folder}/{name}.idx")
answer = {}
for prefix in prefixes:
    data = IndexedDataset(prefix, mmap=True)
    answer[prefix] = {
        "dtype": data.index.dtype.__name__,
        "document_indices": data.document_indices.tolist(),
        "documents": [np.asarray(data[place]).tolist() for place in range(len(data))],
    }
"""

WAYS: dict[str, dict[str, Any]] = {
    "many": {},
    "single": {"files": "single", "prefix": "web_"},
    "bos": {"edges": "bos", "shard_tokens": 64},
    "none": {"edges": "none", "files": "single"},
}


def prefixes(folder: Path) -> list[Path]:
    return sorted(path.with_suffix("") for path in folder.glob("*.idx"))


SENTENCES = [[[5, 6], [7, 0]], [[8, 0]], [], [[9], [], [10, 0]]]
PLAIN = [[[number, number + 1, 0]] for number in range(3, 90)]


def test_megatron_reads_ours_and_its_own_are_read_and_have_the_same_bytes(tmp_path: Path) -> None:
    for name, case in CASES.items():
        store = case.make(tmp_path / name / "store")
        for way, options in WAYS.items():
            write_all(store, "megatron", tmp_path / name / way, options)
    paths = [path for name in CASES for way in WAYS for path in prefixes(tmp_path / name / way)]
    (theirs := tmp_path / "theirs").mkdir()
    made = [("web_train_text_document", SENTENCES), ("web_valid_text_document", PLAIN)]
    made.append(("ours", [[document] for document in CASES["wide"].stored]))
    found = run_peer(PEER, theirs, json.dumps(made), *paths, modules=("megatron", "torch"))
    for name, case in CASES.items():
        for way, options in WAYS.items():
            edges = options.get("edges", "eod")
            documents: dict[str, list[list[int]]] = {}
            for path in prefixes(tmp_path / name / way):
                one = found[str(path)]
                assert one["dtype"] == ("int32" if case.vocab_size > 65_499 else "uint16")
                assert one["document_indices"] == list(range(len(one["documents"]) + 1))
                split = "val" if "val" in path.name else "train"
                documents.setdefault(split, []).extend(one["documents"])
            assert documents == expected(case, edges), (name, way)
    for ending in (".bin", ".idx"):
        ours = (tmp_path / "wide" / "single" / f"web_train_text_document{ending}").read_bytes()
        assert ours == (theirs / f"ours{ending}").read_bytes()
        (theirs / f"ours{ending}").unlink()
    back = read_all("megatron", theirs)
    assert back.problems == [] and back.reader.dtype == np.dtype("<i4")
    assert back.documents == {"train": list(map(flat, SENTENCES)), "val": list(map(flat, PLAIN))}
    assert back.reader.documents == len(SENTENCES) + len(PLAIN)
    assert back.places[:4] == [("web_train_text_document.bin", place) for place in (0, 16, 24, 24)]


def test_what_is_left_behind_is_said(tmp_path: Path) -> None:
    store = CASES["bos_loss"].make(tmp_path / "store")
    documents, tokens = len(CASES["bos_loss"].documents), store.manifest.tokens
    lost = {
        edges: [
            (one.what, one.count)
            for one in write_all(store, "megatron", tmp_path / edges, {"edges": edges}).lost
        ]
        for edges in ("both", "eod")
    }
    provenance = ("provenance", documents)
    assert lost["both"] == [("loss mask", tokens), provenance]
    assert lost["eod"] == [
        ("begin-of-document tokens", documents), ("loss mask", tokens - documents), provenance
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["train-000001", "train-000001.bin", "train-000001.idx"])
def test_one_pair_may_be_named(tmp_path: Path, path: str) -> None:
    case = CASES["shards"]
    write_all(case.make(tmp_path / "store"), "megatron", tmp_path / "out")
    assert read_all("megatron", tmp_path / "out" / path).documents == {"train": case.stored[10:20]}


def test_an_index_of_several_blocks_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CASES["plain"].make(tmp_path / "store")
    options = {"files": "single", "edges": "bos"}
    write_all(store, "megatron", tmp_path / "whole", options)
    monkeypatch.setattr(megatron, "BLOCK", 3)
    write_all(store, "megatron", tmp_path / "out", options)
    name = "train_text_document"
    index = (tmp_path / "out" / f"{name}.idx").read_bytes()
    assert index == (tmp_path / "whole" / f"{name}.idx").read_bytes()
    assert read_all("megatron", tmp_path / "out", options).documents == expected(CASES["plain"], "bos")
    # Lengths begin at 34, bytes of 40 documents at 194, documents at 514: damage far into each.
    for place, what in ((34 + 4 * 31, "byte where sequence 32"), (194 + 8 * 33, "byte where sequence 33"),
                        (514 + 8 * 36, "end of document 36")):  # fmt: skip
        changed = index[:place] + bytes([index[place] ^ 64, *index[place + 1 :]])
        changed = changed if "document" not in what else index[:place] + bytes(8) + index[place + 8 :]
        (tmp_path / "out" / f"{name}.idx").write_bytes(changed)
        (problem,) = read_all("megatron", tmp_path / "out").problems
        assert what in problem
