"""Files of exports that are read back without or against their record; reports of missing files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.peers import run_peer
from tests.formats.stores import CASES, EOD, make_store, random_documents

import packline
from packline.errors import CorruptStore
from packline.formats import token_files
from packline.formats.baked import BakedRows
from packline.formats.check import DatasetReport, check_dataset
from packline.formats.export import ExportPlanned, run_export
from packline.formats.export_folder import RECORD, read_record
from packline.formats.llmc import USUAL_BATCH
from packline.jobs.events import Event
from packline.packing.options import ExportChoice

ROWS = ExportChoice(seq_len=16)


def problems(report: DatasetReport) -> list[str]:
    return [str(one) for one in report.problems]


def test_a_file_of_many_units_is_held_against_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_files, "UNIT_TOKENS", 100)
    store = CASES["plain"].make(tmp_path / "store")
    run_export(store.path, to="nanogpt", out=tmp_path / "out", workers=0, link="copy")
    tokenizer = store.path / "tokenizer"
    back = packline.import_(tmp_path / "out", tokenizer=tokenizer, out=tmp_path / "back", workers=0)
    assert len(back.shards) > 3
    path = tmp_path / "out" / "train.bin"
    tokens = np.fromfile(path, "<u2")
    place = len(tokens) - 3  # of the last unit
    tokens[place] = 7 if tokens[place] != 7 else 8
    tokens.tofile(path)
    with pytest.raises(CorruptStore, match="expected the checksum"):
        packline.import_(tmp_path / "out", tokenizer=tokenizer, out=tmp_path / "no", workers=0)


def test_baked_rows_without_their_record_are_not_whole(tmp_path: Path) -> None:
    store = CASES["loss"].make(tmp_path / "store")
    out = tmp_path / "out"
    run_export(store.path, to="baked", out=out, choice=ROWS, workers=0)
    (out / RECORD).unlink()
    for format in ("baked", None):
        assert any(f"has no {RECORD}" in one for one in problems(check_dataset(out, format)))
    with pytest.raises(CorruptStore, match=f"has no {RECORD}"):
        BakedRows(out)


@pytest.mark.parametrize("ending", [".bin", ".loss", ".rows.parquet"])
def test_baked_rows_are_checked_before_the_first_is_given(tmp_path: Path, ending: str) -> None:
    store = CASES["loss"].make(tmp_path / "store")
    out = tmp_path / "out"
    run_export(store.path, to="baked", out=out, choice=ROWS, options={"file_rows": 8}, workers=0)
    first, *_, last = sorted(out.glob(f"*{ending}"))
    data = bytearray(last.read_bytes())
    data[len(data) // 2] ^= 1
    last.write_bytes(data)
    rows = BakedRows(out)
    fields = ("tokens", "targets", "position_ids")
    assert rows.read(np.arange(8), fields)["tokens"].shape == (8, 16) and first != last
    with pytest.raises(CorruptStore, match=rf"{last.name}: expected the checksum"):
        rows.read(np.array([len(rows) - 1]), fields)
    if ending != ".rows.parquet":
        assert len(BakedRows(out, check=False).read(np.array([len(rows) - 1]))["tokens"]) == 1


# ---------------------------------------------------------------------------------- what trainers miss

WITHOUT_VAL: dict[str, tuple[dict[str, Any], list[str]]] = {
    "nanogpt": ({}, ["no val.bin: nanoGPT's train.py opens it and stops without"]),
    "llmc": ({"shard_tokens": 300}, ["no *_val_*.bin: llm.c and modded-nanogpt open one and stop without"]),
    "npy": ({"shard_tokens": 300}, ["no *_val_*.npy: build-nanogpt opens one and stops without"]),
    "stacks": ({}, ["no *_val_*.bin: the sft_data_generator of stacks opens one and stops without"]),
    "megatron": ({}, ["no pair for val"]),
    "parquet": ({}, []),
    "datatrove": ({}, []),
}


@pytest.mark.parametrize("to", WITHOUT_VAL)
def test_a_file_that_the_trainer_opens_and_that_is_missing_is_told(tmp_path: Path, to: str) -> None:
    options, expected = WITHOUT_VAL[to]
    for case, wanted in (("plain", expected), ("splits", [])):
        store, out, events = CASES[case].make(tmp_path / case), tmp_path / f"{case} {to}", list[Event]()
        done = run_export(store.path, to=to, out=out, options=options, workers=0, on_event=events.append)
        (planned,) = (event for event in events if isinstance(event, ExportPlanned))
        told = [text for text in done.warnings if text.startswith("no ")]
        assert len(told) == len(wanted) and all(map(str.startswith, told, wanted))
        assert planned.warnings == done.warnings  # before the work and after it
        assert run_export(store.path, to=to, out=out, options=options, workers=0).warnings == done.warnings
        report = check_dataset(out, to)
        assert report.ok and report.notes == list(done.warnings)
        (out / RECORD).unlink()  # as if made by somebody else
        notes = check_dataset(out, to, store.path / "tokenizer", eod=store.eod_id).notes
        assert [text for text in notes if text.startswith("no ")] == told


def test_numbers_of_shards_that_stop_a_trainer_are_told(tmp_path: Path) -> None:
    documents = random_documents(300, 1000, longest=60, seed=4)
    store = make_store(tmp_path / "store", documents, vocab_size=1000, eod_id=0, val=(1, 2))

    def warnings(to: str, out: str, **options: Any) -> tuple[str, ...]:
        return run_export(store.path, to=to, out=tmp_path / out, options=options, workers=0).warnings

    (alone,) = warnings("llmc", "one")
    assert alone.startswith("one train shard: modded-nanogpt") and warnings("npy", "npy") == ()
    size = int(alone.rpartition("shard_tokens=")[2].split()[0])
    (short,) = warnings("llmc", "two", shard_tokens=size)
    files = sorted((tmp_path / "two").glob("*train*.bin"))
    assert len(files) >= 2 and "B * T * ranks + 1" in short
    tokens = (files[-1].stat().st_size - 1024) // 2
    assert tokens < USUAL_BATCH and f"the last shard of train has {tokens:,} tokens" in short
    assert warnings("llmc", "dropped", shard_tokens=size, last_shard="drop")[-1:] != (short,)


ASK = """
from transformers import AutoTokenizer
from tokenizers import Tokenizer
answer = []
for folder in arguments:
    found = AutoTokenizer.from_pretrained(folder)
    text = "a text, and " + found.eos_token + " in it"
    same = found.encode(text, add_special_tokens=False)
    same = same == Tokenizer.from_file(folder + "/tokenizer.json").encode(text, add_special_tokens=False).ids
    answer.append([found.eos_token, found.eos_token_id, found.bos_token_id, len(found), same])
"""


def test_transformers_knows_the_end_of_document_of_an_export(tmp_path: Path) -> None:
    documents = random_documents(12, 300, longest=20, seed=1)
    cases = {"megatron": (7, None), "llmc": (0, 5), "npz": (299, 3), "mds": (7, None)}
    for name, (eod_id, bos_id) in cases.items():
        store = make_store(
            tmp_path / f"{name}.store", documents, vocab_size=300, eod_id=eod_id, bos_id=bos_id
        )
        choice = ExportChoice(seq_len=16) if name in ("npz", "mds") else ExportChoice()
        run_export(store.path, to=name, out=tmp_path / name, choice=choice, workers=0)
    found = run_peer(ASK, *(tmp_path / name for name in cases), modules=("transformers",))
    assert found == [[EOD, eod_id, bos_id, 300, True] for eod_id, bos_id in cases.values()]


@pytest.mark.parametrize("bos_id", [None, 4])
def test_it_is_recorded_and_the_same_for_equal_exports(tmp_path: Path, bos_id: int | None) -> None:
    documents = random_documents(12, 300, longest=20, seed=1)
    store = make_store(tmp_path / "store", documents, vocab_size=300, eod_id=7, bos_id=bos_id)
    for name in ("a", "b"):
        run_export(store.path, to="nanogpt", out=tmp_path / name, workers=0)
    text = (tmp_path / "a" / "tokenizer_config.json").read_bytes()
    assert text == (tmp_path / "b" / "tokenizer_config.json").read_bytes()
    config = json.loads(text)
    assert config["eos_token"] == store.manifest.tokenizer.eod == EOD
    assert config.get("bos_token") == store.manifest.tokenizer.bos
    record = read_record(tmp_path / "a")
    assert record is not None and "tokenizer_config.json" in [entry.name for entry in record.files]
