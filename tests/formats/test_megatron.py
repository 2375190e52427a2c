"""Megatron's pairs: megatron-core reads ours, and what its builder wrote is read here."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.damages import Damage, change, cut, more, remove
from tests.formats.peers import run_peer
from tests.formats.steps import expected, flat, read_all, write_all
from tests.formats.stores import CASES, make_store

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


def test_a_single_pair_of_one_shard_is_shared_and_of_several_is_joined(tmp_path: Path) -> None:
    one = write_all(CASES["plain"].make(tmp_path / "a"), "megatron", tmp_path / "one", {"files": "single"})
    assert (tmp_path / "one/train_text_document.bin").samefile(tmp_path / "a/train-made-000000.bin")
    several = write_all(
        CASES["shards"].make(tmp_path / "b"), "megatron", tmp_path / "several", {"files": "single"}
    )
    assert one.bytes == several.shared_bytes == 0 and one.shared_bytes == several.bytes
    for ending in (".bin", ".idx"):  # the same documents, so the same bytes
        name = f"train_text_document{ending}"
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "several" / name).read_bytes()


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


def test_a_wider_dtype_may_be_asked_for(tmp_path: Path) -> None:
    write_all(CASES["plain"].make(tmp_path / "a"), "megatron", tmp_path / "out", {"dtype": "int32"})
    assert (tmp_path / "out/train-000000.bin").read_bytes() == np.array(
        flat(CASES["plain"].stored), "<i4"
    ).tobytes()
    assert read_all("megatron", tmp_path / "out").documents == expected(CASES["plain"], "eod")


@pytest.mark.parametrize("path", ["train-000001", "train-000001.bin", "train-000001.idx"])
def test_one_pair_may_be_named(tmp_path: Path, path: str) -> None:
    case = CASES["shards"]
    write_all(case.make(tmp_path / "store"), "megatron", tmp_path / "out")
    assert read_all("megatron", tmp_path / "out" / path).documents == {"train": case.stored[10:20]}


# ---------------------------------------------------------------------------------------------- damage

DOCUMENTS = [[5, 6, 7], [8], [], [9, 10]]
"""Stored with their end: 10 tokens in 4 documents, so lengths begin at 34, bytes at 50, documents at 82."""


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    store = make_store(tmp_path / "store", DOCUMENTS, vocab_size=300, eod_id=0)
    write_all(store, "megatron", tmp_path / "out", link="copy")
    return tmp_path / "out"


BIN, IDX = "train-000000.bin", "train-000000.idx"
DAMAGE: dict[str, tuple[Damage, str]] = {
    "tokens cut": (cut(BIN, 18), "train-000000.bin: size in bytes: expected 20, found 18"),
    "tokens too many": (more(BIN, b"\0\0"), "train-000000.bin: size in bytes: expected 20, found 22"),
    "index cut": (cut(IDX, 100), "train-000000.idx: size in bytes: expected 122, found 100"),
    "header cut": (cut(IDX, 20), "train-000000.idx: first bytes"),
    "empty": (cut(IDX, 0), "train-000000.idx: first bytes"),
    "magic": (change(IDX, 0, b"X"), "train-000000.idx: first bytes"),
    "version": (change(IDX, 9, b"\2"), "train-000000.idx: version: expected 1, found 2"),
    "floats": (change(IDX, 17, b"\6"), "dtype code: expected an integer's: 1 to 5, or 8, found 6"),
    "other dtype": (change(IDX, 17, b"\4"), "byte where sequence 1 begins: expected 16, found 8"),
    "count": (change(IDX, 18, b"\3"), "size in bytes: expected 110, found 122"),
    "multimodal": (more(IDX, b"\0" * 4), "expected none, as in text, found multimodal data"),
    "negative": (
        change(IDX, 38, struct.pack("<i", -2)),
        "tokens of sequence 1: expected none or more, found -2",
    ),
    "length": (change(IDX, 34, b"\3"), "byte where sequence 1 begins: expected 6, found 8"),
    "last length": (change(IDX, 46, b"\4"), "train-000000.bin: size in bytes: expected 22, found 20"),
    "begin": (change(IDX, 58, b"\7"), "byte where sequence 1 begins: expected 8, found 7"),
    "first document": (change(IDX, 82, b"\1"), "first sequence of document 0: expected 0, found 1"),
    "backwards": (change(IDX, 90, b"\3"), "first sequence of document 2: expected at least 3, found 2"),
    "last document": (change(IDX, 114, b"\5"), "sequences, by the last document: expected 4, found 5"),
    "no tokens": (remove(BIN), "found no such file"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_with_its_place(pair: Path, damage: str) -> None:
    assert read_all("megatron", pair).documents == {"train": [[*one, 0] for one in DOCUMENTS]}
    apply, message = DAMAGE[damage]
    apply(pair)
    (problem,) = read_all("megatron", pair).problems
    assert problem.startswith("train-000000.") and message in problem


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
                        (514 + 8 * 36, "first sequence of document 36")):  # fmt: skip
        changed = index[:place] + bytes([index[place] ^ 64, *index[place + 1 :]])
        changed = changed if "document" not in what else index[:place] + bytes(8) + index[place + 8 :]
        (tmp_path / "out" / f"{name}.idx").write_bytes(changed)
        (problem,) = read_all("megatron", tmp_path / "out").problems
        assert what in problem
