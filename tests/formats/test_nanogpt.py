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


def windows(path: Path, starts: list[int], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets as nanoGPT takes them: from a map of uint16, at random places."""
    data = np.memmap(path, np.uint16, "r")
    inputs = np.stack([data[start : start + length].astype(np.int64) for start in starts])
    return inputs, np.stack([data[start + 1 : start + 1 + length].astype(np.int64) for start in starts])


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


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.lists(st.integers(2, 299), max_size=12), min_size=1, max_size=12),
    st.booleans(),
    st.integers(1, 3),
    st.integers(1, 8),
)
def test_windows_are_those_of_the_stream(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[list[int]], bos: bool, shards: int, length: int
) -> None:
    folder = tmp_path_factory.mktemp("law")
    case = Case("law", tuple(map(tuple, bodies)), 300, 0, 1 if bos else None, shards=shards)
    write_all(case.make(folder / "store"), "nanogpt", folder / "out")
    stream = flat(expected(case, "eod")["train"])
    if starts := list(range(len(stream) - length)):
        inputs, targets = windows(folder / "out/train.bin", starts, length)
        assert inputs.tolist() == [stream[start : start + length] for start in starts]
        assert targets.tolist() == [stream[start + 1 : start + 1 + length] for start in starts]
    assert read_all("nanogpt", folder / "out", {"marker": 0}).documents == expected(case, "eod")


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


def test_tokens_behind_the_last_end_are_a_document_without_one(tmp_path: Path) -> None:
    np.array([5, 0, 6, 7], "<u2").tofile(tmp_path / "train.bin")
    found = read_all("nanogpt", tmp_path, {"marker": 0})
    assert found.documents == {"train": [[5, 0], [6, 7]]} and found.unfinished == 1
    assert found.places == [("train.bin", 0), ("train.bin", 4)]


def test_it_is_recognised(tmp_path: Path) -> None:
    from packline.formats.nanogpt import FORMAT

    store = CASES["plain"].make(tmp_path / "store")
    write_all(store, "nanogpt", tmp_path / "out")
    assert FORMAT.recognises(tmp_path / "out") and FORMAT.recognises(tmp_path / "out/train.bin")
    assert not FORMAT.recognises(store.path)
    (tmp_path / "out/train.idx").touch()
    assert not FORMAT.recognises(tmp_path / "out")
