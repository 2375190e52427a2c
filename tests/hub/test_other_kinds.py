"""Exports, tokenizers and evaluation sets are pushed and pulled, and load straight from the hub."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.evals.test_core import CHOICES, write_bundle
from tests.formats.peers import run_peer
from tests.hub.loopback import LoopbackHub
from tests.hub.test_push import content, of_store

import packline
from packline.encoders.tokenizer import load_tokenizer
from packline.errors import HubError, StoreNotFound
from packline.evals.making import EvalsSettings, make_core
from packline.hub.pull import pull
from packline.hub.push import push
from packline.recipe import Recipe, Source
from packline.vocabulary.trained_folder import train_folder

ONLINE = "import os; os.environ['HF_HUB_OFFLINE'] = '0'\n"
"""Peers are offline otherwise; the loopback hub is named by their environment."""


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text.txt").write_text("the cat sat on the mat, and the dog did not. " * 20)
    recipe = Recipe(sources=(Source(inputs=(str(folder / "text.txt"),)),), tokenizer="")
    train_folder(recipe, 280, folder / "tok", eos="<|endoftext|>")
    return folder / "tok"


def test_bin_files_are_fetched_by_name(hub: LoopbackHub, store: Path, tmp_path: Path) -> None:
    from huggingface_hub import hf_hub_download

    data = tmp_path / "bin"
    packline.export(store, out=data, to="llmc", workers=0)
    push(data, "hf://datasets/org/bin")
    # As modded-nanogpt's data/cached_fineweb10B.py does it.
    name = next(path.name for path in data.glob("*_train_000001.bin"))
    got = hf_hub_download(repo_id="org/bin", filename=name, repo_type="dataset", local_dir=tmp_path / "there")
    assert Path(got).read_bytes() == (data / name).read_bytes()
    header = np.fromfile(got, "<i4", 256)
    assert header[0] == 20240520 and header[2] == (Path(got).stat().st_size - 1024) // 2
    pull("hf://datasets/org/bin", tmp_path / "copy")
    assert content(tmp_path / "copy") == content(data)


@pytest.mark.slow  # the peer's libraries take their time to load
def test_datasets_loads_an_export_and_the_origin_of_documents(
    hub: LoopbackHub, store: Path, tmp_path: Path
) -> None:
    packline.export(store, out=tmp_path / "parquet", to="parquet", workers=0)
    push(tmp_path / "parquet", "hf://datasets/org/rows")
    push(store, "hf://datasets/org/tokens")
    code = f"""{ONLINE}
import datasets
answer = [
    {{split: [rows[column][:] for column in columns] for split, rows in datasets.load_dataset(*name).items()}}
    for name, columns in ((["org/rows"], ["input_ids"]), (["org/tokens", "web"], ["tokens", "file"]))
]
"""
    rows, origins = run_peer(code, modules=("datasets",))
    opened = packline.open(store)
    documents = [document.tolist() for document in opened.documents]
    assert rows == {"train": [[*documents[:3], *documents[4:]]], "validation": [[documents[3]]]}
    assert origins["train"][0] == [50, 10, 90] and origins["validation"][0] == [40]
    assert set(origins["train"][1]) == {"000000.jsonl"}


def test_a_tokenizer_loads_where_it_is_used(hub: LoopbackHub, tokenizer_folder: Path, tmp_path: Path) -> None:
    pushed = push(tokenizer_folder, "hf://org/tok")
    assert pushed.kind == "tokenizer"
    assert of_store(hub.files("org/tok", kind="models")) == content(tokenizer_folder)
    again = load_tokenizer("org/tok")
    assert again.fingerprint == load_tokenizer(str(tokenizer_folder)).fingerprint
    assert again.revision == pushed.revision and again.eos_token == "<|endoftext|>"
    pull(f"hf://org/tok@{pushed.revision}", tmp_path / "copy")
    assert content(tmp_path / "copy") == content(tokenizer_folder)
    assert pull("hf://org/tok", tmp_path / "copy").nothing_to_do


@pytest.mark.slow  # the peer's libraries take their time to load
def test_a_tokenizer_loads_with_transformers(hub: LoopbackHub, tokenizer_folder: Path) -> None:
    push(tokenizer_folder, "hf://org/tok")
    code = f"""{ONLINE}
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("org/tok")
answer = [tokenizer.encode("the cat", add_special_tokens=False), tokenizer.eos_token]
"""
    found = run_peer(code, modules=("transformers",))
    reference = load_tokenizer(str(tokenizer_folder)).reference()
    assert found == [reference.encode("the cat", add_special_tokens=False).ids, "<|endoftext|>"]


def test_a_tokenizer_belongs_to_a_model_repository(hub: LoopbackHub, tokenizer_folder: Path) -> None:
    with pytest.raises(HubError, match="hf://org/tok: found hf://datasets/org/tok"):
        push(tokenizer_folder, "hf://datasets/org/tok")


def test_evaluation_sets_go_there_and_back(hub: LoopbackHub, tokenizer_json: Path, tmp_path: Path) -> None:
    task = {"label": "a", "icl_task_type": "multiple_choice", "continuation_delimiter": " "}
    bundle = write_bundle(tmp_path / "bundle", {**task, "lines": CHOICES})
    made = tmp_path / "evals"
    make_core(str(bundle), EvalsSettings(tokenizer=str(tokenizer_json), out=str(made), bos=0))
    assert push(made, "hf://datasets/org/evals").kind == "evaluation"
    assert pull("hf://datasets/org/evals", tmp_path / "copy").kind == "evaluation"
    assert content(tmp_path / "copy") == content(made)


def test_anything_else_is_refused(hub: LoopbackHub, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").write_text("text")
    with pytest.raises(StoreNotFound, match="has no store, export, tokenizer or evaluation sets"):
        push(tmp_path / "other", "hf://datasets/org/other")
