"""Slices of a store: each unit is in exactly one, and together they find what the whole finds."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.servers import Bucket
from tests.store.remote import PLACE, Faults, standing_for_bucket, upload
from tests.store.stores import build_store, reseal, with_rows

import packline
from packline.cli.main import main
from packline.jobs import cut_inputs
from packline.store.manifest import units_of
from packline.store.manifest_check import read_manifest
from packline.store.report import Report
from packline.store.verify import verify
from packline.testing import StoreShape, make_store, store_shapes

SLICES = 3


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], tokenizer_json: Path, write_jsonl: Any
) -> Path:
    """Several units, of two splits and with rejects, and a stream."""
    folder = tmp_path_factory.mktemp("slices")
    for number in range(4):
        path = write_jsonl(folder / f"in/{number}.jsonl", [*documents[number::12], ""])
        with path.open("ab") as file:
            file.write(b'{"text": "cut off\n')
    (folder / "in/4.jsonl.gz").write_bytes(gzip.compress((folder / "in/0.jsonl").read_bytes()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut_inputs, "UNIT_BYTES", ())
        patch.setattr(cut_inputs, "LARGEST_UNIT", 24 << 10)
        build_store(folder / "in", tokenizer_json, folder / "store", val_fraction=0.3)
    return folder / "store"


def slices_of(place: Any, count: int = SLICES, **settings: Any) -> list[Report]:
    return [verify(place, slice=(number, count), **settings) for number in range(count)]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


@settings(max_examples=20)
@given(store_shapes(), st.integers(1, 4))
def test_each_unit_is_in_one_slice_with_all_of_its_files(shape: StoreShape, count: int) -> None:
    with shape.opened() as store:
        manifest = store.manifest
        units = list(units_of(manifest))
        assert [shard for unit in units for shard in unit.shards] == list(manifest.shards)
        assert sorted(unit.name for unit in units) == manifest.units.names("unit")
        listed = [file for unit in units for file in (*unit.files, unit.receipt)]
        own = [*manifest.tokenizer_files, *manifest.tables]
        assert sorted(map(str, [*listed, *own])) == sorted(map(str, manifest.files()))
        parts = [list(units_of(manifest, (number, count))) for number in range(count)]
        assert sorted(unit for part in parts for unit in part) == sorted(units)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_slices_of_a_clean_store_are_clean_and_read_everything_of_a_unit_once(whole: Path) -> None:
    reports, everything = [], verify(whole)
    for number in range(SLICES):
        steps: list[tuple[int, int]] = []
        hear = partial(lambda steps, *step: steps.append(step), steps)
        reports.append(report := verify(whole, slice=(number, SLICES), on_progress=hear))
        assert report.ok and steps[-1] == (report.bytes, report.bytes)
    assert [report.slice for report in reports] == [(0, 3), (1, 3), (2, 3)]
    assert sum(report.documents for report in reports) == everything.documents
    assert sum(report.tokens for report in reports) == everything.tokens
    assert all(0 < report.documents < everything.documents for report in reports)
    assert verify(whole, slice=(0, 1)) == everything


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_a_flipped_byte_of_a_shard_is_found_by_the_slice_that_has_it(
    whole: Path, data: st.DataObject
) -> None:
    names = sorted(path.name for path in whole.glob("*-*.*") if path.is_file())
    path = whole / data.draw(st.sampled_from(names))
    at = data.draw(st.integers(0, path.stat().st_size - 1))
    manifest = read_manifest(whole)
    owner = next(
        number
        for number in range(SLICES)
        for unit in units_of(manifest, (number, SLICES))
        for file in unit.files
        if file.name == path.name
    )
    flip(path, at)
    try:
        reports, everything = slices_of(whole), verify(whole)
    finally:
        flip(path, at)
    assert [report.ok for report in reports] == [number != owner for number in range(SLICES)]
    assert reports[owner].problems == everything.problems


def lose_unit(folder: Path) -> None:
    manifest = read_manifest(folder)
    units, shards = list(manifest.units), list(manifest.shards)
    lost = units.pop(2)
    kept = [shard for shard in shards if not shard.name.endswith(lost.unit)]
    packline.testing.write_manifest(folder, with_rows(manifest, units=units, shards=kept))


def unlist_units(folder: Path) -> None:
    manifest = read_manifest(folder)
    packline.testing.write_manifest(folder, with_rows(manifest, units=()))


def wrong_token(folder: Path) -> None:
    path = sorted(folder.glob("train-*.bin"))[-1]
    tokens = np.fromfile(path, np.uint16)
    tokens[0] = 4096
    tokens.tofile(path)
    reseal(folder)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "a receipt": lambda folder: sorted((folder / "receipts").iterdir())[1].unlink(),
    "rejects": lambda folder: sorted((folder / "rejects").iterdir())[-1].write_bytes(b""),
    "the tokenizer": lambda folder: flip(folder / "tokenizer/tokenizer.json", 9),
    "a table": lambda folder: flip(folder / "units.parquet", 90),
    "the manifest": lambda folder: flip(folder / "manifest.json", 90),
    "a stray file": lambda folder: (folder / "train-x-000000.bin").write_bytes(b"x"),
    "a lost unit": lose_unit,
    "units that are not listed": unlist_units,
    "a token": wrong_token,
}


@pytest.mark.parametrize("what", DAMAGE)
def test_all_slices_together_find_what_the_whole_finds(whole: Path, tmp_path: Path, what: str) -> None:
    shutil.copytree(whole, folder := tmp_path / "store")
    DAMAGE[what](folder)
    everything, reports = verify(folder), slices_of(folder)
    assert not everything.ok
    found = {str(problem) for report in reports for problem in report.problems}
    assert found == set(map(str, everything.problems))
    if what in ("the tokenizer", "a table", "the manifest"):  # without it, no slice can be checked
        assert not any(report.ok for report in reports)


def test_a_slice_of_a_remote_store(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, folder := tmp_path / "store")
    flip(sorted(folder.glob("val-*.bin"))[-1], 3)
    with standing_for_bucket(Faults(folder)) as storage:
        remote = slices_of(PLACE)
        assert [one.problems for one in remote] == [one.problems for one in slices_of(folder)]
        assert sum(not one.ok for one in remote) == 1
        storage.requests.clear()
        assert verify(PLACE, slice=(1, SLICES)) == remote[1]
        asked = {name for name in storage.requests if name.endswith(".bin")}
    manifest = read_manifest(folder)
    expected = {file.name for unit in units_of(manifest, (1, SLICES)) for file in unit.files}
    assert asked == {name for name in expected if name.endswith(".bin")}


def test_the_deep_check_of_slices_covers_that_of_the_whole(whole: Path) -> None:
    reports = slices_of(whole, deep=True)
    assert all(report.ok and report.deep is not None and not report.deep.notes for report in reports)
    assert sum(report.deep.shards for report in reports if report.deep) == len(read_manifest(whole).shards)


def test_the_command_says_that_it_checked_one_slice(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = make_store(tmp_path / "store", [[3, 4], [5], [6, 2]])
    upload(local.path, place := bucket.place("store"))
    assert main(["verify", place, "--slice", "1/3"]) == 0
    said = capsys.readouterr().out
    assert "no problem in slice 1 of 3; the others were not checked" in said and "all is well" not in said
    flip(local.path / "train-made-000001.bin", 0)
    codes = [main(["verify", str(local.path), "--slice", f"{number}/3", "--json"]) for number in range(3)]
    assert codes == [0, 1, 0]
    assert '"slice": [' in capsys.readouterr().out
    assert main(["verify", place, "--slice", "3/3"]) == 2
    assert main(["verify", place, "--slice", "0/3", "--from", "npz"]) == 2
