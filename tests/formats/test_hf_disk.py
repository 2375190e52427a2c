"""Folders of `datasets`: streams are opened by their headers, and names stay inside the folder."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from tests.formats.columns_made import messages, save, table

from packline.errors import CorruptStore, InputError
from packline.formats.arrow import ArrowFile, SavedFiles, features_of_saved
from packline.formats.types import DatasetFile
from packline.store.report import Findings

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
