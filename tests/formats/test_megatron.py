"""Megatron's pairs: megatron-core reads ours, and what its builder wrote is read here."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.peers import run_peer
from tests.formats.steps import expected, flat, read_all, write_all
from tests.formats.stores import CASES

import packline
from packline.cli.main import main
from packline.errors import RecipeError
from packline.formats import megatron
from packline.formats.export import Exported
from packline.formats.files import split_of_name

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


RECIPE = """
tokenizer = "{tokenizer}"
eod = "<|endoftext|>"
[[sources]]
name = "web"
inputs = ["web.txt"]
documents = "line"
weight = 0.7
[[sources]]
name = "test"
inputs = ["code.txt"]
documents = "line"
weight = 0.3
"""


@pytest.fixture
def recipe(tokenizer_json: Path, tmp_path: Path) -> Path:
    for name, count in (("web", 30), ("code", 9)):
        text = "\n".join(f"Line {n} of the {name}, a document of its own." for n in range(count))
        (tmp_path / f"{name}.txt").write_text(text + "\n", "utf-8")
    (path := tmp_path / "recipe.toml").write_text(RECIPE.format(tokenizer=tokenizer_json), "utf-8")
    return path


def export(source: Any, out: Path, **options: Any) -> tuple[Exported, list[str], list[str]]:
    """An export; the words of its blend line, without folders, and of `data_args.json`."""
    done = packline.export(source, out=out, to="megatron", options=options, workers=0)
    (line,) = (line for line in done.trainer_lines if line.startswith("--train-data-path"))
    words = [word.removeprefix(f"{out}/") for word in shlex.split(line)[1:]]
    return done, words, json.loads((out / "data_args.json").read_bytes())["train"]


def test_pairs_have_the_names_of_the_stores_shards(recipe: Path, tmp_path: Path) -> None:
    store = packline.build(recipe, out=tmp_path / "store", workers=0)
    names = [shard.name for shard in store.manifest.shards]
    _, line, listed = export(store, tmp_path / "a")
    assert sorted(line) == sorted(listed) and listed == names == ["train-web-000000", "train-test-000000"]
    _, line, listed = export(store, tmp_path / "b", edges="none", shard_tokens=100)
    assert sorted(line) == sorted(listed) and len(listed) > 4
    assert {re.sub(r"\d{6}$", "", name) for name in listed} == {"train-web-", "train-test-"}
    packline.export(store.path, out=tmp_path / "c", to="megatron", shuffle_documents=1, options={}, workers=0)
    assert json.loads((tmp_path / "c/data_args.json").read_bytes())["train"] == ["train-000000"]
    assert split_of_name("train-test-000000.idx") == "train"


@pytest.mark.parametrize("files", ["many", "single"])
def test_the_weights_of_a_recipe_are_in_the_blend(recipe: Path, tmp_path: Path, files: str) -> None:
    _, line, listed = export(recipe, tmp_path / "out", files=files)
    pairs = {"many": "train-{}-000000", "single": "train_{}_text_document"}[files]
    assert [*line[2:], *line[:2]] == listed == ["0.7", pairs.format("web"), "0.3", pairs.format("test")]
    again = packline.export(recipe, out=tmp_path / "out", to="megatron", options={"files": files}, workers=0)
    assert again.nothing_to_do and again.trainer_lines
    assert packline.verify(tmp_path / "out.store").ok
    assert main(["verify", str(tmp_path / "out"), "--from", "megatron"]) == 0


def test_the_command_line_takes_the_weights_too(recipe: Path, tmp_path: Path) -> None:
    assert main(["export", str(recipe), "--to", "megatron", "--out", str(tmp_path / "out")]) == 0
    listed = json.loads((tmp_path / "out/data_args.json").read_bytes())["train"]
    assert listed == ["0.7", "train-web-000000", "0.3", "train-test-000000"]
    store = str(tmp_path / "out.store")
    words = ["export", store, "--to", "megatron", "--set", "weights=web=3,test=1", "--set", "edges=none"]
    assert main([*words, "--set", "shard_tokens=100", "--out", str(tmp_path / "cut")]) == 0
    listed = json.loads((tmp_path / "cut/data_args.json").read_bytes())["train"]
    weights = {name: float(weight) for weight, name in zip(listed[::2], listed[1::2], strict=True)}
    assert sum(weight for name, weight in weights.items() if "web" in name) == pytest.approx(3, 1e-4)
    assert sum(weight for name, weight in weights.items() if "test" in name) == pytest.approx(1, 1e-4)
    assert len(weights) > 4


def test_weights_that_say_nothing_are_refused(recipe: Path, tmp_path: Path) -> None:
    store = packline.build(recipe, out=tmp_path / "store", workers=0)
    for weights, words in (
        (["web=1"], "no weight for the source 'test'"),
        (["web"], "expected weights as NAME=NUMBER"),
        (["web=0", "test=1"], "above 0, found 'web=0'"),
    ):
        with pytest.raises(RecipeError, match=words):
            export(store, tmp_path / "out", weights=weights)
    with pytest.raises(RecipeError, match="--shuffle-documents mixes them"):
        packline.export(
            store, out=tmp_path / "out", to="megatron", shuffle_documents=1,
            options={"weights": ["web=1", "test=1"]}, workers=0,
        )  # fmt: skip
