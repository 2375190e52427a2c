"""packline.json against itself, and files of exports against it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.formats.stores import CASES

import packline
from packline.errors import CorruptStore
from packline.fingerprint import seal
from packline.formats.check import DatasetReport, check_dataset
from packline.formats.export import run_export
from packline.formats.export_folder import RECORD, check_places, read_record
from packline.store.report import Findings


def problems(report: DatasetReport) -> list[str]:
    return [str(one) for one in report.problems]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    store = CASES["splits"].make(tmp_path / "store")
    run_export(store.path, to="megatron", out=tmp_path / "out", workers=0)
    return tmp_path / "out"


def test_every_flipped_bit_of_the_record_is_found(shards: Path) -> None:
    path = shards / RECORD
    data = path.read_bytes()
    random = np.random.default_rng(3)
    places = [0, len(data) - 1, *random.choice(len(data), 150, replace=False).tolist()]
    path.unlink()  # a link to nothing else, but never write in place
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 1 << int(random.integers(8))
        path.write_bytes(changed)
        with pytest.raises(CorruptStore, match=RECORD):
            read_record(shards)
        assert any(RECORD in one for one in problems(check_dataset(shards, "megatron")))
    path.write_bytes(data)
    record = read_record(shards)
    assert record is not None and seal(record) == data and check_dataset(shards, "megatron").ok


@pytest.mark.parametrize("spelling", ["compact", "doubled key", "nested"])
def test_another_spelling_of_a_record_is_refused(shards: Path, spelling: str) -> None:
    path = shards / RECORD
    data = path.read_bytes()
    changed = {
        "compact": msgspec.json.encode(msgspec.json.decode(data)),
        "doubled key": data.replace(b'{\n "format"', b'{\n "format": "llmc",\n "format"', 1),
        "nested": b"[" * 200_000,
    }[spelling]
    assert changed != data
    path.write_bytes(changed)
    with pytest.raises(CorruptStore, match="is damaged"):
        read_record(shards)


def test_a_record_of_a_newer_version_says_so(shards: Path) -> None:
    record = read_record(shards)
    assert record is not None
    (shards / RECORD).write_bytes(seal(msgspec.structs.replace(record, version=9)))
    with pytest.raises(CorruptStore, match="version 9, newer than 1"):
        read_record(shards)


def test_strays_are_told_and_what_readers_leave_is_not(shards: Path, tmp_path: Path) -> None:
    left = ["train-000000/cache/GPTDataset_indices/a-document_index.npy", ".gitattributes", "README.md"]
    left += ["cache-1a2b3c.arrow", ".cache/huggingface/x.metadata"]
    for name in left:
        (shards / name).parent.mkdir(parents=True, exist_ok=True)
        (shards / name).write_bytes(b"x")
    assert check_dataset(shards, "megatron").ok
    for ending in (".bin", ".idx"):
        os.link(shards / f"train-000000{ending}", shards / f"train-000007{ending}")
    found = problems(check_dataset(shards, "megatron"))
    assert [one.partition(":")[0] for one in found] == ["train-000007.bin", "train-000007.idx"]
    assert all("a stray file" in one for one in found)
    with pytest.raises(CorruptStore, match="stray"):
        tokenizer = tmp_path / "store" / "tokenizer"
        packline.import_(shards, tokenizer=tokenizer, out=tmp_path / "back", workers=0)


def test_a_folder_that_is_a_link_out_of_the_export_is_refused(tmp_path: Path) -> None:
    store = CASES["splits"].make(tmp_path / "store")
    out = tmp_path / "out"
    run_export(store.path, to="arrow", out=out, workers=0)
    (out / "validation").rename(tmp_path / "elsewhere")
    (out / "validation").symlink_to(tmp_path / "elsewhere")
    assert any("link" in one for one in problems(check_dataset(out, "arrow")))
    with pytest.raises(CorruptStore, match="link"):
        packline.import_(out, tokenizer=store.path / "tokenizer", out=tmp_path / "back", workers=0)


def test_every_listed_file_that_is_not_in_its_place_is_found(shards: Path, tmp_path: Path) -> None:
    record = read_record(shards)
    assert record is not None
    names = sorted(entry.name for entry in record.files)
    assert check_places(shards, record, Findings()) == set()
    gone, short, folder, link = names[:4]
    for name in (gone, short, folder, link):
        (shards / name).rename(tmp_path / Path(name).name)
    (shards / short).write_bytes((tmp_path / Path(short).name).read_bytes()[:-1])
    (shards / folder).mkdir()
    (shards / link).symlink_to(tmp_path / Path(link).name)
    wrong = check_places(shards, record, findings := Findings())
    assert wrong == {gone, short, folder, link} == {problem.file for problem in findings.problems}
