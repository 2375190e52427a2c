"""trl: `datasets` reads packed rows, a collator made from TRL's rules takes them, and they come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.formats.columns_made import save, table
from tests.formats.engines import loss_of, tokenizer_of
from tests.formats.peers import run_peer
from tests.formats.row_trips import rows_by_hand, stored_documents, there_and_back
from tests.formats.steps import read_all
from tests.formats.stores import CASES, EOD, Case, make_store

from packline.api import import_dataset
from packline.errors import CorruptStore, RecipeError
from packline.facade import Store
from packline.formats import trl
from packline.formats.exporting.rows import RowView
from packline.formats.exporting.run import export
from packline.formats.exporting.source import Choice
from packline.formats.registry import recognise

LOAD = """
import datasets
answer = {}
for name in arguments[1:]:
    loaded = datasets.load_from_disk(f"{arguments[0]}/{name}")
    answer[name] = {"columns": {column: loaded[column][:] for column in loaded.column_names},
                    "features": {column: str(kind) for column, kind in loaded.features.items()}}
"""
TENSORS = """
import datasets
row = datasets.load_from_disk(arguments[0]).with_format("torch")[0]
answer = {column: [str(values.dtype), values.tolist()] for column, values in row.items()}
"""
IGNORED = -100
ALL_TRAIN = {name: case for name, case in CASES.items() if not case.val}


def width_of(case: Case) -> int:
    """Of rows, where a case may have few tokens in all."""
    return min(32, sum(map(len, case.stored)))


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several record batches a file."""
    monkeypatch.setattr(trl, "BATCH_DOCUMENTS", 3)


def load(folder: Path, *names: str) -> dict[str, Any]:
    """What `load_from_disk` makes of the folders of these names."""
    found: dict[str, Any] = run_peer(LOAD, folder, *names, modules=("datasets",))
    return found


def write(store: Store, folder: Path, options: dict[str, Any] | None = None, **choice: Any) -> Any:
    choice = {"seq_len": 32, "min_tail_fraction": 0.0, **choice}
    if choice.get("packing", "concat") != "concat":
        del choice["min_tail_fraction"]
    return export(str(store.path), to="trl", out=folder, options=options, choice=Choice(**choice), workers=0)


def shifted(labels: list[int]) -> list[int]:
    """What each place of a row predicts: the label of the next, as the loss of `transformers` has it."""
    return [*labels[1:], IGNORED]


def flatten(rows: dict[str, Any]) -> tuple[list[int], list[int], list[int]]:
    """What TRL's collator does without padding: rows back to back, positions from seq_lengths, and no label
    where a position is 0."""
    ids = [token for row in rows["input_ids"] for token in row]
    positions = [place for row in rows["seq_lengths"] for length in row for place in range(length)]
    labels = [label for row in rows["labels"] for label in row]
    assert len(ids) == len(positions) == len(labels)
    masked = [IGNORED if place == 0 else label for place, label in zip(positions, labels, strict=True)]
    return ids, positions, masked


# ------------------------------------------------------------------------------------------------- the judge


def test_the_library_sees_the_rows_of_the_documents(tmp_path: Path) -> None:
    names = ["plain", "loss", "wide", "bos_loss", "long", "empty"]
    for name in names:
        case = CASES[name]
        store = case.make(tmp_path / "stores" / name)
        done = write(store, tmp_path / name, {"shard_tokens": 200}, seq_len=width_of(case))
        assert {lost.what for lost in done.lost} == {"provenance", "last targets"}
    for name, found in load(tmp_path, *names).items():
        case, rows = CASES[name], found["columns"]
        tokens, targets, lengths = rows_by_hand(case.stored, width_of(case), case.eod_id, case.loss)
        assert rows["input_ids"] == [row[:length] for row, length in zip(tokens, lengths, strict=True)]
        assert [shifted(row)[:-1] for row in rows["labels"]] == [
            row[: length - 1] for row, length in zip(targets, lengths, strict=True)
        ]
        assert rows["attention_mask"] == [[1] * length for length in lengths]
        assert [sum(row) for row in rows["seq_lengths"]] == lengths
        ids, positions, labels = flatten(rows)
        assert positions == [place for row in rows["position_ids"] for place in row]
        assert ids == [token for document in case.stored for token in document]
        assert all(label in (IGNORED, token) for label, token in zip(labels, ids, strict=True))
        assert found["features"]["input_ids"] == found["features"]["labels"] == "List(Value('int32'))"


def test_rows_are_those_that_the_loader_gives(tmp_path: Path) -> None:
    store = CASES["loss"].make(tmp_path / "store")
    ways = [(packing, padded) for packing in ("concat", "best_fit", "pad") for padded in (False, True)]
    for packing, padded in ways:
        options = {"padded": padded, "dtype": "int64"}
        write(store, tmp_path / f"{packing}-{padded}", options, packing=packing, seed=3)
    found = load(tmp_path, *(f"{packing}-{padded}" for packing, padded in ways))
    for packing, padded in ways:
        rows = found[f"{packing}-{padded}"]["columns"]
        settings: dict[str, Any] = {"min_tail_fraction": 0.0} if packing == "concat" else {}
        view = RowView.of_store(store, seq_len=32, packing=packing, seed=3, **settings)
        arrays, lengths = view.read(0, view.rows), view.lengths(0, view.rows).tolist()
        widths = [32] * view.rows if padded else lengths
        assert [len(row) for row in rows["input_ids"]] == widths
        for number, (width, length) in enumerate(zip(widths, lengths, strict=True)):
            assert rows["input_ids"][number] == arrays["tokens"][number, :width].tolist()
            wanted = np.append(arrays["targets"][number, : width - 1], IGNORED).tolist()
            assert shifted(rows["labels"][number]) == wanted
            assert rows["attention_mask"][number] == [1] * length + [0] * (width - length)
            assert rows["position_ids"][number][:length] == arrays["position_ids"][number, :length].tolist()
            pieces = np.bincount(arrays["segment_ids"][number, :length]).tolist()
            assert rows["seq_lengths"][number] == pieces + ([width - length] if width > length else [])
        _, positions, _ = flatten(rows)
        assert positions == [place for row in rows["position_ids"] for place in row]


def test_tensors_are_what_a_loss_wants(tmp_path: Path) -> None:
    write(CASES["plain"].make(tmp_path / "store"), tmp_path / "out")
    found = run_peer(TENSORS, tmp_path / "out", modules=("datasets", "torch"))
    assert {dtype for dtype, _ in found.values()} == {"torch.int64"}
    assert found["attention_mask"][1] == [1] * 32 and len(found["labels"][1]) == 32


def test_the_first_label_of_a_row_keeps_the_mask(tmp_path: Path) -> None:
    case = Case("first", ((5, 6, 7, 8, 9, 10),), 300, 0, loss=((1, 0, 1, 0, 1, 1, 0),))
    write(case.make(tmp_path / "store"), tmp_path / "out", seq_len=2)
    with pa.ipc.open_stream(tmp_path / "out" / "data-00000-of-00001.arrow") as reader:
        labels = reader.read_all().column("labels").to_pylist()
    assert labels == [[5, -100], [7, -100], [9, 10], [-100]]


# ------------------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("case", ALL_TRAIN.values(), ids=ALL_TRAIN)
def test_documents_come_back_and_go_out_as_the_same_bytes(tmp_path: Path, case: Case, padded: bool) -> None:
    store, options = case.make(tmp_path / "store"), {"shard_tokens": 200, "padded": padded}
    width = width_of(case)
    choice = Choice(seq_len=width, min_tail_fraction=0.0)
    back = there_and_back(store, "trl", tmp_path, choice, options)
    assert stored_documents(back) == stored_documents(store)
    assert recognise(tmp_path / "there").name == "trl"
    if case.loss is None:
        assert loss_of(back) == {}
        return
    # What begins a document behind another has no label, for nothing predicts it; all else is as it was.
    before, after = (np.array(loss_of(one)["train"]) for one in (store, back))
    begins = np.cumsum([0, *map(len, stored_documents(store)[:-1])])
    assert np.array_equal(np.delete(before, begins), np.delete(after, begins))
    assert not after[begins][begins % width != 0].any()


def test_pieces_come_back_where_rows_were_not_cut_from_a_stream(tmp_path: Path) -> None:
    store = CASES["bos"].make(tmp_path / "store")
    write(store, tmp_path / "out", packing="best_fit", seq_len=64, seed=1)
    back = import_dataset(
        tmp_path / "out", format="trl", tokenizer=tokenizer_of(store), out=tmp_path / "back", workers=0
    )
    assert back.verify().ok
    assert sorted(stored_documents(back)) == sorted(stored_documents(store))


# ------------------------------------------------------------------------------------- packed by others


PACK = """
import datasets
datasets.Dataset.from_dict({
    "input_ids": [[5, 6, 0, 7, 0], [8, 9], [0, 4, 4, 4]],
    "seq_lengths": [[3, 2], [2], [1, 3]],
    "completion_mask": [[0, 1, 1, 0, 1], [1, 1], [0, 1, 1, 0]],
}).save_to_disk(arguments[0], num_shards=2)
answer = None
"""


def test_what_was_packed_by_others_is_imported(tmp_path: Path) -> None:
    tiny = make_store(tmp_path / "store", [[5]], vocab_size=300, eod_id=0)
    run_peer(PACK, tmp_path / "theirs", modules=("datasets",))
    assert recognise(tmp_path / "theirs").name == "trl"
    found = {}
    for way in ("auto", "joined"):
        found[way] = import_dataset(
            tmp_path / "theirs",
            format="trl",
            tokenizer=tokenizer_of(tiny),
            eod=EOD,
            out=tmp_path / way,
            options={"rows": way},
            workers=0,
        )
        assert found[way].verify().ok
    assert stored_documents(found["auto"]) == [[5, 6, 0], [7, 0], [8, 9, 0], [0], [4, 4, 4, 0]]
    assert loss_of(found["auto"])["train"][:5] == [0, 1, 1, 0, 1]
    assert stored_documents(found["joined"]) == [[5, 6, 0], [7, 0], [8, 9, 0], [4, 4, 4, 0]]
    places = [found["auto"].provenance(number).position for number in range(5)]
    assert places == [0, 0, 1, 2, 2]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            {"input_ids": [[5, 0], [7, 0]], "seq_lengths": [[2], [1]]},
            "row 1: expected seq_lengths that add up to 2 tokens, found 1",
        ),
        (
            {"input_ids": [[5, 0], [7, 0]], "seq_lengths": [[2], [3, -1]]},
            "expected seq_lengths that add up to",
        ),
        (
            {"input_ids": [[5, 0], [7, 0]], "seq_lengths": [[2], [2]], "labels": [[0, -100], [0, -100]]},
            "row 0, label of token 0: expected 5 or -100, found 0",
        ),
        (
            {"input_ids": [[5, 0], [7, 0]], "seq_lengths": [[2], [2]], "attention_mask": [[1, 1], [1]]},
            "row 1: expected 2 numbers in attention_mask",
        ),
        ({"input_ids": [[5, 0], [300, 0]], "seq_lengths": [[2], [2]]}, "an id outside the vocabulary"),
    ],
)
def test_rows_that_contradict_themselves_are_refused(
    tmp_path: Path, content: dict[str, Any], words: str
) -> None:
    tiny = make_store(tmp_path / "store", [[5]], vocab_size=300, eod_id=0)
    path = save(tmp_path / "x", table(content))
    with pytest.raises(CorruptStore, match=words):
        import_dataset(
            path, format="trl", tokenizer=tokenizer_of(tiny), eod=EOD, out=tmp_path / "back", workers=0
        )
    assert not (tmp_path / "back" / "manifest.json").exists()


def test_a_file_that_was_cut_and_bad_options_are_refused(tmp_path: Path) -> None:
    store = CASES["plain"].make(tmp_path / "store")
    with pytest.raises(RecipeError, match="expected shard_tokens of at least 1, found 0"):
        write(store, tmp_path / "out", {"shard_tokens": 0})
    write(store, tmp_path / "out", {"shard_tokens": 200})
    path = sorted((tmp_path / "out").glob("*.arrow"))[1]
    path.write_bytes(path.read_bytes()[:-9])
    found = read_all("trl", tmp_path / "out", {"marker": 0})
    assert found.problems and found.problems[0].startswith(path.name)
