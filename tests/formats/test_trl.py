"""trl: `datasets` reads packed rows, and a collator made from TRL's rules takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.formats.peers import run_peer
from tests.formats.steps import rows_by_hand
from tests.formats.stores import CASES, Case

from packline.facade import Store
from packline.formats import trl
from packline.formats.export import run_export
from packline.formats.row_view import RowView
from packline.packing.options import ExportChoice

LOAD = """
import datasets
answer = {}
for name in arguments[1:]:
    loaded = datasets.load_from_disk(f"{arguments[0]}/{name}")
    row = loaded.with_format("torch")[0]
    answer[name] = {"columns": {column: loaded[column][:] for column in loaded.column_names},
                    "features": {column: str(kind) for column, kind in loaded.features.items()},
                    "tensors": {column: [str(one.dtype), one.tolist()] for column, one in row.items()}}
"""
IGNORED = -100


def width_of(case: Case) -> int:
    """Of rows, where a case may have few tokens in all."""
    return min(32, sum(map(len, case.stored)))


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several record batches a file."""
    monkeypatch.setattr(trl, "BATCH_DOCUMENTS", 3)


def write(store: Store, folder: Path, options: dict[str, Any] | None = None, **choice: Any) -> Any:
    choice = {"seq_len": 32, "min_tail_fraction": 0.0, **choice}
    if choice.get("packing", "concat") != "concat":
        del choice["min_tail_fraction"]
    choice |= {"keep_untrained": True} | ({} if "seed" in choice else {"in_order": True})
    return run_export(
        str(store.path), to="trl", out=folder, options=options, choice=ExportChoice(**choice), workers=0
    )


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


def test_the_library_sees_the_rows_of_the_documents_and_of_the_loader(tmp_path: Path) -> None:
    names = ["plain", "loss", "wide", "bos_loss", "long", "empty"]
    for name in names:
        case = CASES[name]
        store = case.make(tmp_path / "stores" / name)
        done = write(store, tmp_path / name, {"shard_tokens": 200}, seq_len=width_of(case))
        assert {lost.what for lost in done.lost} == {"provenance", "last targets"}
    store = Store(tmp_path / "stores" / "loss")
    ways = [(packing, padded) for packing in ("concat", "best_fit", "pad") for padded in (False, True)]
    for packing, padded in ways:
        options = {"padded": padded, "dtype": "int64"}
        write(store, tmp_path / f"{packing}-{padded}", options, packing=packing, seed=3)
    asked = [*names, *(f"{packing}-{padded}" for packing, padded in ways)]
    loaded = run_peer(LOAD, tmp_path, *asked, modules=("datasets", "torch"))
    for name in names:
        case, found, rows = CASES[name], loaded[name], loaded[name]["columns"]
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
    tensors = loaded["plain"]["tensors"]
    assert {dtype for dtype, _ in tensors.values()} == {"torch.int64"}
    assert tensors["attention_mask"][1] == [1] * 32 and len(tensors["labels"][1]) == 32
    for packing, padded in ways:
        rows = loaded[f"{packing}-{padded}"]["columns"]
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


def test_the_first_label_of_a_row_keeps_the_mask(tmp_path: Path) -> None:
    case = Case("first", ((5, 6, 7, 8, 9, 10),), 300, 0, loss=((1, 0, 1, 0, 1, 1, 0),))
    write(case.make(tmp_path / "store"), tmp_path / "out", seq_len=2)
    with pa.ipc.open_stream(tmp_path / "out" / "data-00000-of-00001.arrow") as reader:
        labels = reader.read_all().column("labels").to_pylist()
    assert labels == [[5, -100], [7, -100], [9, 10], [-100]]
