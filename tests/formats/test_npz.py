"""chuk-mlx's batches: what NumPy finds in them, and what becomes of its own."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.row_steps import write_rows
from tests.formats.row_trips import (
    IGNORED,
    files_of,
    import_of,
    rows_by_hand,
    stored_documents,
    there_and_back,
)
from tests.formats.steps import read_all
from tests.formats.stores import CASES, Case, make_store, random_loss

from packline.api import import_dataset
from packline.errors import CorruptStore, RecipeError, TokenizerError
from packline.facade import Store
from packline.formats.exporting.rows import RowView
from packline.formats.exporting.run import export
from packline.formats.exporting.source import Choice
from packline.formats.registry import get_format
from packline.formats.shared import row_files

KEYS = ["input_tensor", "target_tensor", "attention_mask_tensor", "lengths"]
Arrays = dict[str, Any]


def load(folder: Path, prefix: str = "tokenized") -> list[Arrays]:
    """All batches, in the order in which a trainer counts them up from 1."""
    found: list[Arrays] = []
    while (path := folder / f"{prefix}_batch_{len(found) + 1:04d}.npz").exists():
        with np.load(path, allow_pickle=False) as batch:
            found.append({key: batch[key] for key in batch.files})
    return found


def stacked(batches: list[Arrays]) -> Arrays:
    return {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}


def kept_tail(case: Case, seq_len: int) -> dict[str, Any]:
    """Settings with which no token of a case is left out."""
    longest = sum(len(body) + 1 + (case.bos_id is not None) for body in case.documents)
    return {"seq_len": min(seq_len, longest), "min_tail_fraction": 0.0}


ALL_TRAIN = {name: case for name, case in CASES.items() if not case.val}


@pytest.mark.parametrize("case", ALL_TRAIN.values(), ids=ALL_TRAIN)
def test_numpy_finds_rows_targets_masks_and_true_lengths(tmp_path: Path, case: Case) -> None:
    chosen = kept_tail(case, 16)
    view = RowView.of_store(case.make(tmp_path / "store"), batch_size=3, **chosen)
    plan = write_rows(view, "npz", tmp_path / "out")
    batches = load(tmp_path / "out")
    assert len(batches) == len(list((tmp_path / "out").iterdir())) == -(-view.rows // 3)
    assert [len(batch["lengths"]) for batch in batches[:-1]] == [3] * (len(batches) - 1)
    found = stacked(batches)
    assert list(found) == KEYS and {array.dtype for array in found.values()} == {np.dtype("<i4")}
    tokens, targets, lengths = rows_by_hand(case.stored, view.seq_len, case.eod_id, case.loss)
    assert found["input_tensor"].tolist() == tokens
    assert found["target_tensor"].tolist() == targets
    assert found["lengths"].tolist() == lengths
    mask = [[int(target != IGNORED) for target in row] for row in targets]  # nothing else may be learned
    assert found["attention_mask_tensor"].tolist() == mask
    assert plan.bytes == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())


def test_a_file_is_what_numpy_saves(tmp_path: Path) -> None:
    view = RowView.of_store(CASES["loss"].make(tmp_path / "store"), seq_len=24, batch_size=5)
    write_rows(view, "npz", tmp_path / "out")
    for number, batch in enumerate(load(tmp_path / "out"), 1):
        saved = io.BytesIO()
        np.savez(saved, **batch)
        assert (tmp_path / "out" / f"tokenized_batch_{number:04d}.npz").read_bytes() == saved.getvalue()


@pytest.mark.parametrize("pad_id", [None, 0, 5])
def test_padding_is_never_taken_for_tokens_nor_tokens_for_padding(tmp_path: Path, pad_id: int | None) -> None:
    """Whether it is the end of document, a token 0 that is a real one, or another; the first row is full."""
    documents = [[0, 0, 5, 0, 9, 5, 0], [0], [5, 0], [], [9, 0, 0]]
    store = make_store(tmp_path / "store", documents, vocab_size=300, eod_id=7)
    view = RowView.of_store(store, seq_len=8, packing="pad", pad_id=pad_id, batch_size=2)
    write_rows(view, "npz", tmp_path / "out")
    found = stacked(load(tmp_path / "out"))
    padding = 7 if pad_id is None else pad_id
    for row, body in enumerate(documents):
        real = [*body, 7]
        empty = 8 - len(real)
        assert found["input_tensor"][row].tolist() == real + [padding] * empty
        assert found["target_tensor"][row].tolist() == real[1:] + [IGNORED] * (empty + 1)
        assert found["attention_mask_tensor"][row].tolist() == [1] * len(body) + [0] * (empty + 1)
        assert found["lengths"][row] == len(real)


def test_options(tmp_path: Path) -> None:
    store = CASES["plain"].make(tmp_path / "store")
    view = RowView.of_store(store, seq_len=16, batch_size=100)
    plan = write_rows(
        view, "npz", tmp_path / "out", {"prefix": "books", "dtype": "uint16", "ignore_index": 65_535}
    )
    (batch,) = load(tmp_path / "out", "books")
    assert [batch[key].dtype.name for key in KEYS] == ["uint16", "uint16", "uint16", "int32"]
    wanted = view.read(0, view.rows, ("tokens", "targets"))
    assert np.array_equal(batch["input_tensor"], wanted["tokens"])
    assert np.array_equal(
        batch["target_tensor"], np.where(wanted["targets"] == IGNORED, 65_535, wanted["targets"])
    )
    assert np.array_equal(batch["attention_mask_tensor"], wanted["targets"] != IGNORED)
    assert "loss mask" not in [lost.what for lost in plan.lost]
    taken = write_rows(view, "npz", tmp_path / "zero", {"ignore_index": 0})
    assert "loss mask" in [lost.what for lost in taken.lost]


def test_batches_have_32_rows_if_nobody_says(tmp_path: Path) -> None:
    view = RowView.of_store(CASES["long"].make(tmp_path / "store"), seq_len=16)
    write_rows(view, "npz", tmp_path / "out")
    sizes = [len(batch["lengths"]) for batch in load(tmp_path / "out")]
    assert set(sizes[:-1]) == {32} and sum(sizes) == view.rows


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dtype": "uint16"}, "ignore_index is -100: expected 0 to 65,535"),
        ({"dtype": "int8"}, "largest id is 999: expected -128 to 127"),
        ({"dtype": "float32"}, "expected a dtype of integers"),
        ({"dtype": "tokens"}, "expected a dtype of integers"),
        ({"ignore_index": 2**31}, "ignore_index is 2,147,483,648"),
        ({"prefix": ""}, "expected a prefix"),
        ({"prefix": "a/b"}, "expected a prefix"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, options: dict[str, Any], match: str) -> None:
    view = RowView.of_store(CASES["plain"].make(tmp_path / "store"), seq_len=16)
    with pytest.raises(RecipeError, match=match):
        write_rows(view, "npz", tmp_path / "out", options)


# --------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("case", ALL_TRAIN.values(), ids=ALL_TRAIN)
def test_there_and_back(tmp_path: Path, case: Case) -> None:
    store = case.make(tmp_path / "store")
    imported = there_and_back(store, "npz", tmp_path, Choice(batch_size=3, **kept_tail(case, 16)))
    assert stored_documents(imported) == case.stored
    assert imported.has_loss == store.has_loss
    if case.loss is not None:
        found = np.concatenate([shard.loss for shard in imported.shards if shard.loss is not None])
        wanted = np.concatenate([np.array([1, *mask[1:]]) for mask in case.loss])
        assert found.tolist() == wanted.tolist()  # what no place predicts counts as trained on


@pytest.mark.parametrize(("packing", "seed"), [("best_fit", None), ("pad", None), ("concat", 5)])
def test_rows_that_were_not_cut_from_a_stream_are_read_by_themselves(
    tmp_path: Path, packing: str, seed: int | None
) -> None:
    case = CASES["bos"]
    store = case.make(tmp_path / "store")
    choice = Choice(seq_len=32, packing=packing, seed=seed, batch_size=4)
    export(store.path, to="npz", out=tmp_path / "out", choice=choice, workers=0)
    imported = import_dataset(
        tmp_path / "out", format="npz", tokenizer=store.path / "tokenizer", out=tmp_path / "in", workers=0
    )
    assert imported.verify().ok
    view = RowView.of_store(store, seq_len=32, packing=packing, seed=seed)
    pieces = []  # by hand: the spans of every row, with the ends that they lack
    for row in range(view.rows):
        tokens, spans = view.read(row, row + 1, ("tokens",))["tokens"][0].tolist(), view.spans(row, row + 1)
        for length in spans.lengths.tolist():
            body = [token for token in tokens[:length] if token not in (case.bos_id, case.eod_id)]
            pieces.append([case.bos_id, *body, case.eod_id])
            tokens = tokens[length:]
    assert stored_documents(imported) == pieces


def test_files_are_read_in_units_of_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents go on from one into the next, and rows are numbered through all of them."""
    monkeypatch.setattr(row_files, "UNIT_TOKENS", 100)
    case = CASES["loss"]
    view = RowView.of_store(case.make(tmp_path / "store"), batch_size=3, **kept_tail(case, 16))
    write_rows(view, "npz", tmp_path / "out")
    found = read_all("npz", tmp_path / "out", {"marker": 0})
    assert found.documents == {"train": case.stored}
    begins = np.cumsum([0, *map(len, case.stored[:-1])])
    assert [position for _, position in found.places] == (begins // 16).tolist()
    names = [name for name, _ in found.places]
    assert [unit.start for unit in found.foreign.units] == [0] * len(found.foreign.units)
    assert names == [f"tokenized_batch_{begin // 144 * 3 + 1:04d}.npz" for begin in begins.tolist()]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 299), max_size=12), min_size=1, max_size=12),
    st.integers(2, 20),
    st.integers(1, 5),
    st.booleans(),
)
def test_any_documents_come_back(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[list[int]], seq_len: int, size: int, masked: bool
) -> None:
    folder = tmp_path_factory.mktemp("law")
    bodies = [[token for token in body if token != 7] for body in bodies]
    case = Case("law", tuple(map(tuple, bodies)), 300, 7, loss=random_loss(bodies) if masked else None)
    store = case.make(folder / "store")
    if store.manifest.tokens < 2:
        return
    view = RowView.of_store(store, batch_size=size, **kept_tail(case, seq_len))
    write_rows(view, "npz", folder / "out")
    found = read_all("npz", folder / "out", {"marker": 7, "loss": masked})
    assert found.problems == [] and found.documents == {"train": case.stored}
    places = np.cumsum([0, *map(len, case.stored[:-1])]) // view.seq_len
    assert [position for _, position in found.places] == places.tolist()


@pytest.mark.parametrize("name", ["plain", "loss"])
def test_a_mask_of_padding_changes_nothing_else_and_is_read_alike(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    view = RowView.of_store(case.make(tmp_path / "store"), batch_size=3, **kept_tail(case, 16))
    read = {}
    for mask in ("loss", "padding"):
        write_rows(view, "npz", tmp_path / mask, {"mask": mask})
        read[mask] = read_all("npz", tmp_path / mask, {"marker": case.eod_id})
        assert read[mask].problems == [] and read[mask].documents == {"train": case.stored}
    assert read["loss"].places == read["padding"].places
    loss, padding = stacked(load(tmp_path / "loss")), stacked(load(tmp_path / "padding"))
    assert [key for key in KEYS if not np.array_equal(loss[key], padding[key])] == [KEYS[2]]
    inside = np.arange(view.seq_len) < loss["lengths"][:, None]
    assert np.array_equal(padding[KEYS[2]], inside)


def save(folder: Path, number: int = 1, **arrays: Any) -> Path:
    """As chuk-mlx's scripts do it."""
    folder.mkdir(exist_ok=True)
    path = folder / f"sample_batch_{number:04d}.npz"
    made: Arrays = {key: np.asarray(value, np.int32) for key, value in arrays.items()}
    np.savez(path, **made)
    return path


PLAIN = Case("plain", (), 300, 7)


def test_its_own_batches_of_padded_texts(tmp_path: Path) -> None:
    """A line a row, padded with the end of document, and `lengths` that are those of padded rows."""
    rows = [[1, 2, 3, 7, 7], [4, 5, 6, 8, 9], [7, 7, 7, 7, 7]]
    save(tmp_path / "in", 1, input_tensor=rows[:2], target_tensor=np.roll(rows[:2], -1), lengths=[5, 5])
    save(tmp_path / "in", 2, input_tensor=rows[2:], target_tensor=np.roll(rows[2:], -1), lengths=[5])
    store = import_of(
        tmp_path / "in", "npz", PLAIN, tmp_path / "out", rows="separate", edges="none", pad_id=7
    )
    assert stored_documents(store) == [[1, 2, 3, 7], [4, 5, 6, 8, 9, 7]]
    assert not store.has_loss and [store.provenance(number).position for number in (0, 1)] == [0, 1]


def test_its_own_batches_of_inputs_alone(tmp_path: Path) -> None:
    save(tmp_path / "in", 1, input_tensor=[[1, 2, 7, 4], [5, 6, 7, 8]])
    joined = import_of(tmp_path / "in", "npz", PLAIN, tmp_path / "a")
    assert stored_documents(joined) == [[1, 2, 7], [4, 5, 6, 7], [8, 7]]
    separate = import_of(tmp_path / "in", "npz", PLAIN, tmp_path / "b", rows="separate")
    assert stored_documents(separate) == [[1, 2, 7], [4, 7], [5, 6, 7], [8, 7]]


def test_the_mask_is_believed_before_lengths_of_padded_rows(tmp_path: Path) -> None:
    mask = [[1, 1, 1, 0], [1, 1, 1, 1]]
    tokens = [[1, 2, 7, 7], [3, 4, 5, 7]]
    save(tmp_path / "in", 1, input_tensor=tokens, attention_mask_tensor=mask, lengths=[4, 4])
    store = import_of(tmp_path / "in", "npz", PLAIN, tmp_path / "out")
    assert stored_documents(store) == [[1, 2, 7], [3, 4, 5, 7]]


def test_a_mask_that_only_a_later_batch_shows_is_no_secret(tmp_path: Path) -> None:
    save(tmp_path / "in", 1, input_tensor=[[1, 2, 7, 3]], target_tensor=[[2, 7, IGNORED, 4]])
    save(tmp_path / "in", 2, input_tensor=[[4, 5, 6, 7]], target_tensor=[[5, IGNORED, 7, IGNORED]])
    with pytest.raises(CorruptStore, match=r"0002.npz: row 0: expected a target at every token") as caught:
        import_of(tmp_path / "in", "npz", PLAIN, tmp_path / "out")
    assert "loss=true" in caught.value.hint
    masked = import_of(tmp_path / "in", "npz", PLAIN, tmp_path / "masked", loss=True)
    assert masked.shards[0].loss is not None
    assert masked.shards[0].loss.tolist() == [1, 1, 1, 1, 1, 1, 0, 1]
    assert not import_of(tmp_path / "in", "npz", PLAIN, tmp_path / "plain", loss=False).has_loss


# ---------------------------------------------------------------------------------------------- damage


def cut(folder: Path) -> None:
    path = folder / "tokenized_batch_0002.npz"
    path.write_bytes(path.read_bytes()[:-50])


def flip(folder: Path) -> None:
    path = folder / "tokenized_batch_0002.npz"
    data = bytearray(path.read_bytes())
    data[300] ^= 1  # among the tokens
    path.write_bytes(data)


def change(**changes: Callable[[np.ndarray], np.ndarray | None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "tokenized_batch_0002.npz"
        with np.load(path) as batch:
            arrays = {key: batch[key].copy() for key in batch.files}
        for key, make in changes.items():
            made = make(arrays.pop(key))
            if made is not None:
                arrays[key] = made
        np.savez(path, **arrays)

    return damage


def put(value: int) -> Callable[[np.ndarray], np.ndarray]:
    def make(array: np.ndarray) -> np.ndarray:
        array.flat[2] = value
        return array

    return make


def remove(folder: Path) -> None:
    (folder / "tokenized_batch_0002.npz").unlink()


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut off": (cut, "0002.npz: File is not a zip file"),
    "flipped bit": (flip, "0002.npz: input_tensor: Bad CRC-32"),
    "mixed dtype": (
        change(input_tensor=lambda array: array.astype(np.int64)),
        "0002.npz: dtype, as of the first file: expected int32, found int64",
    ),
    "floats": (change(input_tensor=lambda array: array.astype(np.float32)), "of integers, found"),
    "another length": (change(target_tensor=lambda array: array[:, 1:]), r"target_tensor of shape \(3, 16\)"),
    "no tokens": (change(input_tensor=lambda array: None), "input_tensor: expected this array, found none"),
    "objects": (change(input_tensor=lambda array: array.astype(object)), "0002.npz: input_tensor: "),
    "id outside": (change(input_tensor=put(1000)), "expected below 1,000, found 1,000"),
    "negative id": (change(input_tensor=put(-1)), "expected below 1,000, found -1"),
    "holes in a mask": (change(attention_mask_tensor=put(0)), "mask of row 0: expected ones, then zeros"),
    "length": (change(lengths=put(1)), r"length of row 2: expected at least \d+, .* found 1"),
    "length of a padded row": (
        change(lengths=put(5), attention_mask_tensor=np.ones_like),
        "length of row 2: expected 16 as in the mask, found 5",
    ),
    "missing file": (remove, "0003.npz: number of the batch: expected 2, found 3"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_told_with_its_place_and_nothing_is_published(tmp_path: Path, name: str) -> None:
    damage, match = DAMAGES[name]
    store = CASES["plain"].make(tmp_path / "store")
    choice = Choice(seq_len=16, batch_size=3)
    export(store.path, to="npz", out=tmp_path / "out", choice=choice, workers=0)
    (tmp_path / "out" / "packline.json").unlink()  # which would tell it before the layout does
    damage(tmp_path / "out")
    with pytest.raises(CorruptStore, match=match):
        import_dataset(
            tmp_path / "out",
            format="npz",
            tokenizer=store.path / "tokenizer",
            out=tmp_path / "no",
            workers=0,
        )
    assert not (tmp_path / "no" / "manifest.json").exists()


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    store = CASES["plain"].make(tmp_path / "store")
    export(store.path, to="npz", out=tmp_path / "out", choice=Choice(seq_len=16), workers=0)
    with pytest.raises(TokenizerError, match="another tokenizer"):
        import_of(tmp_path / "out", "npz", PLAIN, tmp_path / "no")
    assert not (tmp_path / "no" / "manifest.json").exists()


def test_what_it_is_recognised_by(tmp_path: Path) -> None:
    path, format = save(tmp_path / "in", 1, input_tensor=[[1, 2]]), get_format("npz")
    assert format.recognises(tmp_path / "in") and format.recognises(path)
    np.savez(path, other=np.ones(3))
    assert not format.recognises(path)
    path.write_bytes(b"PK")
    assert not format.recognises(path) and not format.recognises(tmp_path)


def test_equal_exports_have_equal_bytes(tmp_path: Path) -> None:
    store: Store = CASES["shards"].make(tmp_path / "store")
    choice = Choice(seq_len=16, batch_size=3, seed=1)
    for name in ("a", "b"):
        export(store.path, to="npz", out=tmp_path / name, choice=choice, workers=0)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
