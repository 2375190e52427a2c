"""Checking foreign data sets: what is whole passes, and every damage is told with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.stores import CASES, EOD, write_tokenizer

import packline
from packline.encoders.tokenizer import load_tokenizer
from packline.errors import InputError, RecipeError, TokenizerError
from packline.formats.check import (
    DatasetReport,
    check_dataset,
    check_metadata,
    find_format,
    make_options,
    open_dataset,
)
from packline.formats.export import run_export
from packline.formats.export_folder import read_record
from packline.formats.format import get_format
from packline.store.report import Findings


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """An export to llm.c's shards, some documents over two of them."""
    store = CASES["plain"].make(tmp_path / "store")
    packline.export(store, to="llmc", out=tmp_path / "shards", options={"shard_tokens": 300}, workers=0)
    return tmp_path / "shards"


def problems(report: DatasetReport) -> str:
    return "\n".join(map(str, report.problems))


def test_progress_reaches_the_end(shards: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = check_dataset(shards, "llmc", on_progress=lambda done, whole: seen.append((done, whole)))
    assert report.ok and [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert 0.5 < seen[-1][0] / seen[-1][1] <= 1


def test_what_cannot_be_checked_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(np.array([5, 6, 0, 7], "<u2").tobytes())
    report = check_dataset(tmp_path / "train.bin", "nanogpt")
    assert report.ok and report.tokens == 4
    assert len(report.notes) == 3 and "checksums" in report.notes[0]
    assert "vocabulary" in report.notes[1] and "boundaries" in report.notes[2]
    report = check_dataset(tmp_path / "train.bin", "nanogpt", eod=0)
    assert report.ok and report.documents == 2
    assert report.notes[2] == "documents that the data's beginning or end cuts off: 1"


def test_requests_that_make_no_sense_are_refused(shards: Path) -> None:
    with pytest.raises(RecipeError, match="no tokenizer was named"):
        check_dataset(shards, "llmc", eod="</s>")


def test_a_pair_of_megatron_is_named_without_an_ending(tmp_path: Path) -> None:
    store = CASES["plain"].make(tmp_path / "store")
    options = {"files": "single", "prefix": "web.v1_"}
    packline.export(store, to="megatron", out=tmp_path / "out", options=options, workers=0)
    (tmp_path / "out/packline.json").unlink()
    prefix, tokenizer = tmp_path / "out/web.v1_train_text_document", tmp_path / "out/tokenizer.json"
    report = check_dataset(prefix, "megatron", tokenizer, eod=EOD)
    assert report.ok and report.documents == len(CASES["plain"].documents) and report.files == 2
    back = packline.import_(prefix, tokenizer=tokenizer, eod=EOD, out=tmp_path / "back", workers=0)
    assert [one.tolist() for one in back.documents] == [one.tolist() for one in store.documents]
    with pytest.raises(InputError, match="cannot find"):
        check_dataset(prefix.with_name("web.v1"), "megatron")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "tokenizer", 1000, 0)


@pytest.mark.parametrize(
    ("facts", "fine"),
    [
        ({}, True),
        ({"vocab_size": 1000}, True),
        ({"vocab_size": 1024}, True),
        ({"vocab_size": 1023}, False),
        ({"vocab_size": 5000}, False),
        ({"vocab_size": 500}, False),
        ({"eod_id": 0}, True),
        ({"eod_id": 7}, False),
    ],
)
def test_what_the_data_says_of_its_vocabulary_must_be_possible(
    facts: dict[str, Any], fine: bool, tokenizer: Path
) -> None:
    loaded = load_tokenizer(str(tokenizer))
    if fine:
        assert check_metadata("data", loaded, 0, None, facts) == []
    else:
        with pytest.raises(TokenizerError, match="data"):
            check_metadata("data", loaded, 0, None, facts)


def test_another_name_of_the_tokenizer_is_noted(tokenizer: Path) -> None:
    loaded = load_tokenizer(str(tokenizer))
    (note,) = check_metadata("data", loaded, 0, None, {"tokenizer": "openai-community/gpt2"})
    assert "gpt2" in note
    names = {"tokenizer": f"elsewhere/{tokenizer.parent.parent.name}"}
    assert check_metadata("data", loaded, 0, None, names) == []


def test_options_are_the_given_ones_else_those_of_the_export_else_the_defaults(tmp_path: Path) -> None:
    store = CASES["plain"].make(tmp_path / "store")
    out = tmp_path / "out"
    run_export(store.path, to="forager", out=out, options={"dtype": "uint32", "edges": "bos"}, workers=0)
    record, format = read_record(out), get_format("forager")
    assert record is not None
    kept, other = make_options(format, {}, record), make_options(format, {"edges": "eod"}, record)
    assert (kept.dtype, kept.edges, other.dtype, other.edges) == ("uint32", "bos", "uint32", "eod")
    assert make_options(get_format("olmo"), {}, record) == make_options(get_format("olmo"), {}, None)
    name = str(store.path / "tokenizer" / "tokenizer.json")
    for given, wanted in (({}, (1000, 0)), ({"vocab_size": "7", "marker": "3"}, (7, 3))):  # what is set stays
        filled = open_dataset(out, "forager", name, None, None, given, Findings()).options
        assert (filled.vocab_size, filled.marker) == wanted
    (out / "packline.json").rename(tmp_path / "packline.json")
    with pytest.raises(InputError, match="cannot find"):
        find_format(tmp_path / "absent", "forager")
    assert find_format(out, "olmo").name == "olmo"
