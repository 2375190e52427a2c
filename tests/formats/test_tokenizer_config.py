"""The tokenizer in the folder of an export: transformers finds its end of document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.formats.peers import run_peer
from tests.formats.stores import EOD, make_store, random_documents

from packline.formats.export import run_export
from packline.formats.export_folder import read_record
from packline.packing.options import ExportChoice

ASK = """
from transformers import AutoTokenizer
from tokenizers import Tokenizer
answer = []
for folder in arguments:
    found = AutoTokenizer.from_pretrained(folder)
    text = "a text, and " + found.eos_token + " in it"
    same = found.encode(text, add_special_tokens=False)
    same = same == Tokenizer.from_file(folder + "/tokenizer.json").encode(text, add_special_tokens=False).ids
    answer.append([found.eos_token, found.eos_token_id, found.bos_token_id, len(found), same])
"""


def test_transformers_knows_the_end_of_document_of_an_export(tmp_path: Path) -> None:
    documents = random_documents(12, 300, longest=20, seed=1)
    cases = {"megatron": (7, None), "llmc": (0, 5), "npz": (299, 3), "mds": (7, None)}
    for name, (eod_id, bos_id) in cases.items():
        store = make_store(
            tmp_path / f"{name}.store", documents, vocab_size=300, eod_id=eod_id, bos_id=bos_id
        )
        choice = ExportChoice(seq_len=16) if name in ("npz", "mds") else ExportChoice()
        run_export(store.path, to=name, out=tmp_path / name, choice=choice, workers=0)
    found = run_peer(ASK, *(tmp_path / name for name in cases), modules=("transformers",))
    assert found == [[EOD, eod_id, bos_id, 300, True] for eod_id, bos_id in cases.values()]


@pytest.mark.parametrize("bos_id", [None, 4])
def test_it_is_recorded_and_the_same_for_equal_exports(tmp_path: Path, bos_id: int | None) -> None:
    documents = random_documents(12, 300, longest=20, seed=1)
    store = make_store(tmp_path / "store", documents, vocab_size=300, eod_id=7, bos_id=bos_id)
    for name in ("a", "b"):
        run_export(store.path, to="nanogpt", out=tmp_path / name, workers=0)
    text = (tmp_path / "a" / "tokenizer_config.json").read_bytes()
    assert text == (tmp_path / "b" / "tokenizer_config.json").read_bytes()
    config = json.loads(text)
    assert config["eos_token"] == store.manifest.tokenizer.eod == EOD
    assert config.get("bos_token") == store.manifest.tokenizer.bos
    record = read_record(tmp_path / "a")
    assert record is not None and "tokenizer_config.json" in [entry.name for entry in record.files]
