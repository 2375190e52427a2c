"""Batches: what is padding is told by lengths, masks and targets, never by the value of an id alone."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packline
from packline.encoders.tokenizer import Tokenizer
from packline.errors import CorruptStore, InputError, TokenizerError
from packline.formats.pt import tensor_file
from packline.viewing.batch_files import BatchFile, read_batch

L = 8


def tokenizer(special: dict[str, int], eos: str | None = None, vocab_size: int = 300) -> Tokenizer:
    return Tokenizer(
        name="tiny",
        kind="huggingface",
        json="{}",
        vocab_size=vocab_size,
        special_tokens=special,
        eos_token=eos,
    )


def save(path: Path, **arrays: Any) -> Path:
    values: Any = {key: np.asarray(value, np.int32) for key, value in arrays.items()}
    np.savez(path, **values)
    return path


rows_of_tokens = st.lists(st.lists(st.integers(0, 3), max_size=L), min_size=1, max_size=5)


def padded(rows: list[list[int]], pad: int) -> np.ndarray:
    return np.array([[*row, *[pad] * (L - len(row))] for row in rows], np.int32)


@given(rows_of_tokens, st.integers(0, 3), st.booleans())
def test_a_mask_or_lengths_tell_whatever_the_ids_are(rows: list[list[int]], pad: int, masked: bool) -> None:
    """Token 0 is a token, and so is the one that pads."""
    lengths = np.array([len(row) for row in rows])
    right = np.arange(L) < lengths[:, None]
    tensors = {"input": padded(rows, pad)}
    if masked:
        tensors["attention_mask"] = right.astype(np.int32)
    batch = BatchFile("b", tensors, np.full(len(rows), L) if masked else lengths, pad)
    if masked or (lengths != L).any():
        assert batch.padding_source == ("the attention mask" if masked else "the lengths")
        assert np.array_equal(batch.real["input"], right)


@given(rows_of_tokens, st.integers(0, 3))
def test_targets_that_are_ignored_tell(rows: list[list[int]], pad: int) -> None:
    """As `packline export` writes them: the next token of the row, ignored behind it."""
    inputs = padded(rows, pad)
    targets = np.full_like(inputs, -100)
    for number, row in enumerate(rows):
        targets[number, : max(len(row) - 1, 0)] = row[1:]
    batch = BatchFile("b", {"input": inputs, "target": targets}, None, pad)
    real = batch.real
    assert np.array_equal(real["target"], targets != -100)
    if not (targets == -100).any():
        return
    for number, row in enumerate(rows):
        told = len(row) if len(row) > 1 else 0
        # Without a target to tell, a lone token is real where it is not what pads.
        last = max((place + 1 for place, token in enumerate(row) if token != pad), default=0)
        assert real["input"][number].sum() == max(told, last)


def test_padding_at_the_end_is_all_there_is_to_go_by() -> None:
    inputs = np.array([[5, 0, 6, 0, 0], [0, 0, 0, 0, 0], [0, 5, 5, 5, 5]])
    batch = BatchFile("b", {"input": inputs}, np.full(3, 5), 0)
    assert batch.padding_source == "the padding tokens (id 0) at the end of each row"
    assert batch.real["input"].sum(axis=1).tolist() == [3, 0, 5]
    unknown = BatchFile("b", {"input": inputs}, None, None)
    assert unknown.real["input"].all() and unknown.padding_source.startswith("nothing")


def test_targets_as_chuk_mlx_shifts_them() -> None:
    """The next token, then what pads; nothing is ignored, and lengths are those of padded rows."""
    inputs = np.array([[5, 6, 7, 0, 0], [5, 6, 7, 8, 9]])
    targets = np.array([[6, 7, 0, 0, 0], [6, 7, 8, 9, 0]])
    batch = BatchFile("b", {"input": inputs, "target": targets}, np.full(2, 5), 0)
    assert batch.real["target"].sum(axis=1).tolist() == [2, 4]
    alone = BatchFile("b", {"target": targets}, None, 0)
    assert alone.real["target"].sum(axis=1).tolist() == [2, 4]


def test_batches_that_packline_writes_are_counted_right(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Callable[..., Path], documents: list[str]
) -> None:
    """`<|endoftext|>` is id 0 and pads: the end of a row's last document must count."""
    path = write_jsonl(tmp_path / "in.jsonl", documents[:60])
    store = packline.build(path, tokenizer_json, out=tmp_path / "s", workers=0, eod="<|endoftext|>")
    settings: Any = {"seq_len": 64, "packing": "best_fit", "batch_size": 16}
    packline.export(store, to="npz", out=tmp_path / "out", **settings, workers=0)
    real = 0
    for file in sorted((tmp_path / "out").glob("*.npz")):
        arrays = dict(np.load(file))
        # The mask of padding that earlier versions wrote, and each of the ways without one.
        mask = {"attention_mask_tensor": (np.arange(64) < arrays["lengths"][:, None]).astype(np.int32)}
        for changes in ({}, mask, mask | {"lengths": None}, {"attention_mask_tensor": None}):
            kept = {key: array for key, array in (arrays | changes).items() if array is not None}
            np.savez(tmp_path / "one.npz", **kept)
            found = read_batch(tmp_path / "one.npz").real["input"].sum(axis=1)
            assert np.array_equal(found, arrays["lengths"])
        real += int(arrays["lengths"].sum())
    counts = store.rows(64, packing="best_fit").counts
    assert real == counts.tokens - counts.dropped_tokens - counts.truncated_tokens


@pytest.mark.parametrize(
    "special, eos, pad",
    [
        ({"<pad>": 7, "</s>": 2}, "</s>", 7),
        ({"[PAD]": 3}, None, 3),
        ({"</s>": 2}, "</s>", 2),
        ({"</s>": 2}, None, 0),
    ],
)
def test_what_pads_is_the_tokenizers(
    tmp_path: Path, special: dict[str, int], eos: str | None, pad: int
) -> None:
    path = save(tmp_path / "b.npz", input_tensor=[[5, pad, pad]])
    assert read_batch(path, tokenizer(special, eos)).pad_id == pad
    assert read_batch(path, tokenizer(special, eos), 9).pad_id == 9
    assert read_batch(path).pad_id == 0


def test_other_names_of_tensors(tmp_path: Path) -> None:
    path = save(tmp_path / "b.npz", input_ids=[[5, 6]], labels=[[6, -100]], attention_mask=[[1, 1]])
    assert list(read_batch(path, tokenizer({})).tensors) == ["input", "target", "attention_mask"]


def test_a_row_of_torch(tmp_path: Path) -> None:
    with open(tmp_path / "chunk_000000.pt", "wb") as file:
        file.write(tensor_file(np.arange(6), "chunk_000000"))
    batch = read_batch(tmp_path / "chunk_000000.pt", tokenizer({}))
    assert batch.tensors["input"].tolist() == [[0, 1, 2, 3, 4, 5]]
    (tmp_path / "x.pt").write_bytes(b"not a file of torch")
    with pytest.raises(CorruptStore):
        read_batch(tmp_path / "x.pt")


@pytest.mark.parametrize("wrong", [300, -1, 2**31 - 1])
def test_ids_of_another_tokenizer_are_an_error_with_their_place(tmp_path: Path, wrong: int) -> None:
    path = save(tmp_path / "b.npz", input_tensor=[[5, 6], [7, wrong]], target_tensor=[[6, -100], [7, -100]])
    with pytest.raises(TokenizerError) as error:
        read_batch(path, tokenizer({}))
    assert f"input tensor, row 1, place 1: expected an id below 300 of tiny, found {wrong:,}" in str(
        error.value
    )
    assert error.value.hint == "name the tokenizer that made the batch"
    read_batch(path)  # without a tokenizer there is nothing to hold them against


@pytest.mark.parametrize(
    "arrays, said",
    [
        ({"weights": [[1]]}, "is not a batch: expected input_tensor or target_tensor, found weights"),
        ({"input_tensor": [1, 2]}, "input: expected integers"),
        ({"input_tensor": [[1, 2]], "target_tensor": [[1]]}, r"target: .*\[1, 2\], found \[1, 1\]"),
        ({"input_tensor": [[1, 2]], "lengths": [3]}, r"lengths: expected 1 from 0 to 2, found .* up to 3"),
        ({"input_tensor": [[1, 2]], "lengths": [1, 1]}, "lengths: expected 1 from 0 to 2"),
    ],
)
def test_what_is_no_batch_is_refused(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    with pytest.raises((InputError, CorruptStore), match=said):
        read_batch(save(tmp_path / "b.npz", **arrays))


def test_damage_and_objects_are_refused(tmp_path: Path) -> None:
    whole = io.BytesIO()
    np.savez(whole, input_tensor=np.ones((4, 9), np.int32))
    objects = io.BytesIO()
    np.savez(objects, input_tensor=np.array([[object()]], object))
    flipped = bytearray(whole.getvalue())
    flipped[200] ^= 1
    path = tmp_path / "b.npz"
    for data, said in (
        (whole.getvalue()[:-30], r"b\.npz"),
        (flipped, "CRC"),
        (objects.getvalue(), "no archive of arrays of numbers"),
        (b"nothing of the kind", r"b\.npz"),
    ):
        path.write_bytes(data)
        with pytest.raises(CorruptStore, match=said):
            read_batch(path)
    with pytest.raises(InputError, match="cannot find"):
        read_batch(tmp_path / "none.npz")
    np.savez(path, input_tensor=np.ones((2, 2), np.float32))
    with pytest.raises(CorruptStore, match=r"found .* of float32"):
        read_batch(path)
