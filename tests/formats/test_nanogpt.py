"""nanoGPT's two files: a loader that was written from its rules, and NumPy."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.steps import expected, flat, read_all, write_all
from tests.formats.stores import BOS, CASES, EOD, Case

FITTING = {name: case for name, case in CASES.items() if case.vocab_size <= 65_536}


@pytest.mark.parametrize("edges", ["eod", "bos"])
@pytest.mark.parametrize("case", FITTING.values(), ids=FITTING)
def test_files_are_the_tokens_and_come_back(tmp_path: Path, case: Case, edges: str) -> None:
    write_all(case.make(tmp_path / "store"), "nanogpt", tmp_path / "out", {"edges": edges})
    documents = expected(case, edges)  # type: ignore[arg-type]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{split}.bin" for split in documents}
    for split, wanted in documents.items():
        assert np.fromfile(tmp_path / "out" / f"{split}.bin", "<u2").tolist() == flat(wanted)
    marker = case.eod_id if case.bos_id is None or edges == "eod" else case.bos_id
    found = read_all("nanogpt", tmp_path / "out", {"edges": edges, "marker": marker})
    assert found.problems == [] and found.unfinished == 0 and found.documents == documents


def test_the_vocabulary_as_nanogpt_keeps_it(tmp_path: Path) -> None:
    case = CASES["bos"]
    store = case.make(tmp_path / "store")
    write_all(store, "nanogpt", tmp_path / "out", {"meta_pkl": True})
    meta = pickle.loads((tmp_path / "out/meta.pkl").read_bytes())
    assert set(meta) == {"vocab_size", "itos", "stoi"} and meta["vocab_size"] == case.vocab_size
    texts = [store.tokenizer.decode([number], skip_special_tokens=False) for number in range(1000)]
    assert meta["itos"] == dict(enumerate(texts))
    assert (texts[0], texts[1]) == (EOD, BOS)
    assert meta["stoi"] == {text: texts.index(text) for text in texts}
    letters = "packline"
    assert "".join(meta["itos"][meta["stoi"][letter]] for letter in letters) == letters


@settings(max_examples=20)
@given(st.lists(st.text(max_size=5), max_size=30))
def test_any_texts_survive_the_pickle(texts: list[str]) -> None:
    from packline.formats.nanogpt import meta_pickle

    meta = pickle.loads(meta_pickle(texts))
    assert meta == {
        "vocab_size": len(texts),
        "itos": dict(enumerate(texts)),
        "stoi": {text: texts.index(text) for text in texts},
    }


def test_what_is_cut_off_or_has_a_header_is_found(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(np.array([5, 0, 6, 0], "<u2").tobytes()[:-1])
    (tmp_path / "val.bin").write_bytes(struct.pack("<3i", 20240520, 1, 1).ljust(1024, b"\0") + b"\0\0")
    assert read_all("nanogpt", tmp_path, {"marker": 0}).problems == [
        "train.bin: size in bytes, a multiple of 2: expected 6, found 7",
        "val.bin: header: expected none, found llm.c's, of version 1 (--from llmc)",
    ]


def test_it_is_recognised(tmp_path: Path) -> None:
    from packline.formats.nanogpt import FORMAT

    store = CASES["plain"].make(tmp_path / "store")
    write_all(store, "nanogpt", tmp_path / "out")
    assert FORMAT.recognises(tmp_path / "out") and FORMAT.recognises(tmp_path / "out/train.bin")
    assert not FORMAT.recognises(store.path)
    (tmp_path / "out/train.idx").touch()
    assert not FORMAT.recognises(tmp_path / "out")
