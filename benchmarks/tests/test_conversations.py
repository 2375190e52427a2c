"""Conversations of the benchmark: what both contenders read, and what is compared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zstandard
from tests.formats.stores import make_store

from benchmarks.conversations import arrays_of, write_messages
from benchmarks.errors import BenchmarkError


def write_dialogues(path: Path, texts: list[str]) -> Path:
    data = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    path.write_bytes(zstandard.ZstdCompressor().compress(data))
    return path


def test_dialogues_with_an_empty_turn_are_left_out(tmp_path: Path) -> None:
    texts = ["User: a: b\nAssistant: c", "User: \nAssistant: d", "no dialogue"]
    write_messages(write_dialogues(tmp_path / "d.zst", texts), tmp_path / "out")
    (one,) = map(json.loads, (tmp_path / "out").read_text("utf-8").splitlines())
    expected = [("user", "a: b"), ("assistant", "c")]
    assert [(message["role"], message["content"]) for message in one["messages"]] == expected


def test_files_without_dialogues_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", write_dialogues(tmp_path / "d.zst", ["text"])):
        with pytest.raises(BenchmarkError):
            write_messages(path, tmp_path / "out")


def test_ids_and_masks_are_those_of_the_documents_without_their_ends(tmp_path: Path) -> None:
    documents = [[5, 6, 7], [8], [9, 10]]
    loss = [[0, 1, 1, 0], [0, 0], [0, 1, 1]]
    make_store(tmp_path / "store", documents, vocab_size=99, eod_id=1, loss=loss)
    ids, mask = arrays_of(tmp_path / "store")
    assert np.array_equal(ids, [5, 6, 7, 8, 9, 10])
    assert np.array_equal(mask, [0, 1, 1, 0, 0, 1])
