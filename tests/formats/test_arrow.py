"""arrow: `datasets` reads ours, and what `datasets` saved is read here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.formats.columns_made import messages, save, table
from tests.formats.engines import bring_back, documents_of, loss_of, refuse, write
from tests.formats.peers import run_peer
from tests.formats.steps import expected, read_all
from tests.formats.stores import CASES, Case, make_store

from packline.errors import CorruptStore, InputError, RecipeError
from packline.facade import Store
from packline.formats import arrow, columns
from packline.formats.arrow import ArrowFile, SavedFiles, features_of_saved
from packline.formats.format import get_format
from packline.formats.types import DatasetFile
from packline.store.report import Findings

PEER = """
import datasets
folder, documents, *names = arguments
documents = json.loads(documents)
kinds = {"list": datasets.List, "large": datasets.LargeList}
text = datasets.Value("string")
for name in ("list-int64-one", "list-int32-dict", "large-uint16-one", "large-int64-dict"):
    lists, kind, layout = name.split("-")
    features = datasets.Features({"text": text, "input_ids": kinds[lists](datasets.Value(kind)), "id": text})
    ids = [f"n{n}" for n in range(len(documents))]
    made = datasets.Dataset.from_dict(
        {"text": ["t"] * len(documents), "input_ids": documents, "id": ids}, features=features)
    path = f"{folder}/{name}"
    if layout == "dict":
        rest = made.select(range(5, len(made)))
        both = datasets.DatasetDict({"train": made.select(range(5)), "test": rest})
        both.save_to_disk(path, num_shards={"train": 2, "test": 1})
    else:
        made.with_format("torch").select(range(len(made))[::-1]).save_to_disk(path, num_shards=3)
answer = {}
for name in names:
    loaded = datasets.load_from_disk(f"{folder}/{name}")
    splits = loaded if isinstance(loaded, datasets.DatasetDict) else {str(loaded.split): loaded}
    answer[name] = {split: {"columns": {column: one[column][:] for column in one.column_names},
                            "features": {column: str(kind) for column, kind in one.features.items()}}
                    for split, one in splits.items()}
"""


def edges_of(case: Case) -> Any:
    return "eod" if case.bos_id is None else "both"


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several record batches, and documents longer than one."""
    monkeypatch.setattr(arrow, "BATCH_DOCUMENTS", 7)
    monkeypatch.setattr(arrow, "BATCH_TOKENS", 50)


# ------------------------------------------------------------------------------------------------- the judge


OTHER: dict[str, Any] = {
    "dtype": "int64", "lists": "large_list", "loss": "loss_mask", "provenance": True, "column": "tokens",
}  # fmt: skip
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {"edges": edges_of(case), "shard_tokens": 150}) for name, case in CASES.items()},
    **{edges: ("bos", {"edges": edges}) for edges in ("bos", "none", "eod", "both")},
    **{f"axolotl {name}": (name, {"attention_mask": True}) for name in ("loss", "plain")},
    "other": ("loss", OTHER),
    "no loss": ("loss", {"loss": "none"}),
}


def labels_by_hand(case: Case) -> list[list[int]]:
    """Labels of a store without a loss mask are its ids."""
    masks = case.loss or [[1] * len(one) for one in case.stored]
    return [
        [token if flag else -100 for token, flag in zip(*both, strict=True)]
        for both in zip(case.stored, masks, strict=True)
    ]


def test_the_library_reads_ours_and_what_it_saved_is_imported(tmp_path: Path) -> None:
    lost = {}
    for way, (name, options) in WAYS.items():
        done = write(CASES[name].make(tmp_path / f"{way}-store"), "arrow", tmp_path / way, options)
        lost[way] = {one.what for one in done.lost}
    plain = CASES["plain"]
    found = run_peer(PEER, tmp_path, json.dumps(plain.stored), *WAYS, modules=("datasets", "torch"))
    for way, (name, options) in WAYS.items():
        if way in ("other", "no loss"):
            continue
        case = CASES[name]
        wanted = expected(case, options.get("edges", "eod"))
        assert set(found[way]) == {"validation" if split == "val" else split for split in wanted}
        for split, documents in wanted.items():
            content = found[way]["validation" if split == "val" else split]
            columns = {"input_ids": documents}
            if case.loss is not None or "attention_mask" in options:
                columns["labels"] = labels_by_hand(case)
            if "attention_mask" in options:
                columns["attention_mask"] = [[1] * len(one) for one in documents]
            assert content["columns"] == columns
            assert content["features"]["input_ids"] == "List(Value('int32'))"
    assert set(found["no loss"]["train"]["columns"]) == {"input_ids"}
    assert lost["no loss"] == {"loss mask", "provenance"} and lost["other"] == set()
    case, other = CASES["loss"], found["other"]["train"]
    assert other["features"] == {
        "tokens": "LargeList(Value('int64'))",
        "loss_mask": "LargeList(Value('int8'))",
        "source": "Value('string')",
        "file": "Value('string')",
        "position": "Value('int64')",
        "id": "Value('string')",
    }
    numbers = range(len(case.documents))
    assert other["columns"] == {
        "tokens": case.stored,
        "loss_mask": [list(mask) for mask in case.loss or ()],
        "id": [f"d{number}" for number in numbers],
        "position": [100 * number for number in numbers],
        "file": ["made.txt"] * len(numbers),
        "source": ["made"] * len(numbers),
    }
    original = Store(tmp_path / "plain-store")
    for name in ("list-int64-one", "list-int32-dict", "large-uint16-one", "large-int64-dict"):
        store = bring_back(tmp_path / name, "arrow", original, tmp_path / f"{name}-back")
        assert read_all("arrow", tmp_path / name).reader.dtype == np.dtype(name.split("-")[1])
        if name.endswith("dict"):
            assert documents_of(store) == {"train": plain.stored[:5], "test": plain.stored[5:]}
        else:
            assert documents_of(store) == {"train": plain.stored[::-1]}
            assert [store.provenance(number).id for number in (0, 39)] == ["n39", "n0"]


# ------------------------------------------------------------------------------------------- there and back


# ---------------------------------------------------------------------------------------- made by the library


def test_padding_is_left_out_by_the_attention_mask(tmp_path: Path) -> None:
    made = table(
        {
            "input_ids": [[5, 6, 0, 9, 9], [9, 9, 7, 8, 0], [0, 9, 9, 9, 9]],
            "attention_mask": [[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 0, 0, 0]],
            "labels": [[-100, 6, 0, -100, -100], [-100, -100, -100, 8, 0], [-100] * 5],
            "completion_mask": [[True] * 3 + [False] * 2, [False, False, True, True, False], [False] * 5],
        },
        {
            "attention_mask": pa.list_(pa.int8(), 5),
            "input_ids": pa.list_(pa.int64(), 5),
            "completion_mask": pa.list_(pa.bool_()),
            "labels": pa.large_list(pa.int64()),
        },
    )
    tiny = make_store(tmp_path / "store", [[5]], vocab_size=300, eod_id=0)
    store = bring_back(save(tmp_path / "x", made, made.slice(1, 2)), "arrow", tiny, tmp_path / "back")
    assert documents_of(store)["train"] == [[5, 6, 0], [7, 8, 0], [0], [7, 8, 0], [0]]
    assert loss_of(store)["train"] == [0, 1, 1, 0, 1, 0, 0, 0, 1, 0, 0]
    plain = bring_back(tmp_path / "x", "arrow", tiny, tmp_path / "plain", {"loss": "none"})
    assert documents_of(plain) == documents_of(store) and loss_of(plain) == {}


def test_a_single_stream_is_read_and_an_empty_one_too(tmp_path: Path) -> None:
    path = save(tmp_path / "x", table({"input_ids": [[5, 0], [0], [6, 7, 0]]}))
    found = read_all("arrow", path / "data-00000-of-00001.arrow")
    assert found.problems == [] and found.documents == {"train": [[5, 0], [0], [6, 7, 0]]}
    empty = save(tmp_path / "y", table({"input_ids": [[5]]}).slice(0, 0), table({"input_ids": [[5]]}))
    assert read_all("arrow", empty).documents == {"train": [[5]]}


# ------------------------------------------------------------------------------------------------- refusals


@pytest.fixture
def exported(tmp_path: Path) -> tuple[Path, Any]:
    """Two files of plain documents without packline.json, and the store that they are of."""
    store = CASES["plain"].make(tmp_path / "store")
    write(store, "arrow", tmp_path / "out", {"shard_tokens": 400})
    (tmp_path / "out" / "packline.json").unlink()
    return tmp_path / "out", store


def first(folder: Path) -> Path:
    return sorted(folder.glob("*.arrow"))[0]


def test_flipped_bytes_never_crash_and_never_pass_for_other_documents(exported: tuple[Path, Any]) -> None:
    """A body has no checksum, so other ids may be read (packline.json has one); lists never go astray."""
    folder, _ = exported
    whole = read_all("arrow", folder)
    data = first(folder).read_bytes()
    bodies = np.array(messages(first(folder)))
    for place in [*range(0, int(bodies[1]), 11)]:
        first(folder).write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        try:
            found = read_all("arrow", folder)
        except OSError:
            continue
        if not found.problems:
            assert len(found.documents["train"]) == len(whole.documents["train"])


@pytest.mark.parametrize(
    ("columns_", "kinds", "words"),
    [
        ({"input_ids": [[5, 0], None]}, {}, "row 1: expected a list of numbers in input_ids, found null"),
        (
            {"input_ids": [[5, 0], [None, 0]]},
            {},
            "row 1: expected a list of numbers in input_ids, found null",
        ),
        (
            {"input_ids": [[5, 6, 0], [7, 0]], "labels": [[5, 6, 0], [0, -100]]},
            {},
            "row 1, label of token 0: expected 7 or -100, found 0",
        ),
        (
            {"input_ids": [[5, 6, 0], [7, 0]], "labels": [[5, 6, 0], [0]]},
            {},
            "row 1: expected 2 numbers in labels, as many as there are tokens, found 1",
        ),
        (
            {"input_ids": [[5, 6, 0], [7, 0]], "loss_mask": [[0, 1, 1], [1, 2]]},
            {},
            "row 1: expected 0 or 1 in loss_mask, found 2",
        ),
        ({"tokens": [[5, 0]]}, {}, "column input_ids: expected lists of integers, found columns tokens"),
        (
            {"input_ids": [[0.5]]},
            {"input_ids": pa.list_(pa.float32())},
            "column input_ids: expected lists of integers, found list<item: float>",
        ),
        (
            {"input_ids": [[5, 0]], "kind": ["a"]},
            {"kind": pa.dictionary(pa.int8(), pa.string())},
            "columns: expected none that is dictionary-encoded, found kind",
        ),
    ],
)
def test_documents_that_cannot_be_are_refused_with_their_row(
    tmp_path: Path, columns_: dict[str, Any], kinds: dict[str, Any], words: str
) -> None:
    store = make_store(tmp_path / "store", [[5]], vocab_size=300, eod_id=0)
    refuse(save(tmp_path / "x", table(columns_, kinds)), "arrow", store, tmp_path / "back", words)


def test_files_of_different_types_are_refused(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [[5]], vocab_size=300, eod_id=0)
    narrow, wide = (
        table({"input_ids": [[5, 0]]}),
        table({"input_ids": [[5, 0]]}, {"input_ids": pa.list_(pa.int64())}),
    )
    words = "data-00001-of-00002.arrow: type of ids, as in the first file: expected int32, found int64"
    refuse(save(tmp_path / "x", narrow, wide), "arrow", store, tmp_path / "back", words)
    masked = table({"input_ids": [[5, 0]], "labels": [[5, 0]]})
    words = "data-00001-of-00002.arrow: loss mask, where other files have one: expected True, found False"
    refuse(save(tmp_path / "y", masked, narrow), "arrow", store, tmp_path / "back2", words)


def test_a_folder_that_lacks_something_is_refused(tmp_path: Path, exported: tuple[Path, Any]) -> None:
    folder, store = exported
    first(folder).unlink()
    refuse(folder, "arrow", store, tmp_path / "a", "expected the name of a file that is there")
    state = folder / "state.json"
    state.write_text('{"_data_files": [{"filename": "../x.arrow"}], "_indices_data_files": [1]}')
    assert len(read_all("arrow", folder).problems) == 2
    for content in ("{", "[]", "{}"):
        state.write_text(content)
        with pytest.raises(InputError, match=r"state\.json"):
            read_all("arrow", folder)
    state.unlink()
    with pytest.raises(InputError, match=r"expected state\.json, as Dataset\.save_to_disk writes it"):
        read_all("arrow", folder)


def test_options_that_cannot_be_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CASES["long"].make(tmp_path / "store")
    monkeypatch.setattr(columns, "MOST_VALUES", 2000)
    with pytest.raises(RecipeError, match="a document has 2,695 tokens: expected at most 2,000 in a list"):
        write(store, "arrow", tmp_path / "out")
    write(store, "arrow", tmp_path / "out", {"lists": "large_list"})
    assert read_all("arrow", tmp_path / "out").documents == {"train": CASES["long"].stored}
    assert get_format("arrow").needs == ()


ROWS = [[5, 0], [6, 6, 0], [0], [7, 0], [8, 8, 8, 0]]


def opened(path: Path) -> tuple[ArrowFile | None, list[str]]:
    findings = Findings()
    file = ArrowFile.open([DatasetFile.of(path, path.parent)], 0, "train", "input_ids", True, findings)
    return file, [str(one) for one in findings.problems]


def test_headers_give_the_places_and_sizes_of_all_record_batches(tmp_path: Path) -> None:
    path = next(save(tmp_path / "x", table({"input_ids": ROWS})).glob("*.arrow"))
    file, problems = opened(path)
    assert file is not None and problems == []
    assert file.begins.tolist() == messages(path)[:-1]
    assert (file.rows.tolist(), file.tokens.tolist()) == ([0, 2, 4, 5], [5, 3, 4])
    for number in (2, 0, 1):  # in any order
        (batch,) = file.batches(number, number + 1)
        assert batch.column(0).to_pylist() == ROWS[2 * number : 2 * number + 2]


def test_a_stream_cut_at_any_byte_is_found_when_it_is_opened(tmp_path: Path) -> None:
    path = next(save(tmp_path / "x", table({"input_ids": ROWS})).glob("*.arrow"))
    data = path.read_bytes()
    for size in [*range(1, len(data), 13), *messages(path), len(data) - 1]:
        path.write_bytes(data[:size])
        _, problems = opened(path)
        assert problems, size
    path.write_bytes(data + b"x")
    assert any("end mark" in one for one in opened(path)[1])


def test_a_batch_that_changed_since_it_was_opened_is_refused(tmp_path: Path) -> None:
    path = next(save(tmp_path / "x", table({"input_ids": ROWS})).glob("*.arrow"))
    file, _ = opened(path)
    assert file is not None
    other = table({"input_ids": [[5, 0]]})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, other.schema) as writer:
        writer.write_table(other)
    for number in range(3):
        with pytest.raises(CorruptStore, match=r"cannot read|expected a record batch of 2 rows, found 1"):
            next(file.batches(number, number + 1))


@pytest.mark.parametrize("name", ["../data.arrow", "/etc/passwd", "a/b.arrow", "", "..", None, 7])
def test_names_of_files_outside_the_folder_are_refused(tmp_path: Path, name: object) -> None:
    folder = save(tmp_path / "x", table({"input_ids": ROWS}))
    (tmp_path / "data.arrow").write_bytes(b"x")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    saved = SavedFiles(folder, findings := Findings())
    assert saved.streams == [] and "expected the name of a file" in str(findings.problems[0])
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": [name]}))
    with pytest.raises(InputError, match="expected names of splits"):
        SavedFiles(tmp_path, Findings())


def test_a_dictionary_has_the_streams_of_every_split(tmp_path: Path) -> None:
    for name, count in (("train", 2), ("validation", 1)):
        save(tmp_path / name, *[table({"input_ids": ROWS})] * count)
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "validation"]}))
    saved = SavedFiles(tmp_path, findings := Findings())
    assert not findings.problems
    places = [(Path(saved.files[number].name).parent.name, split) for number, split in saved.streams]
    assert places == [("train", "train"), ("train", "train"), ("validation", "val")]
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {file.name for file in saved.files} == written
    assert features_of_saved(tmp_path) == {"input_ids": {}} and features_of_saved(tmp_path.parent) == {}
