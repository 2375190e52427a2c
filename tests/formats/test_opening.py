"""Opening of data sets: the format is found, options have an order, and a wrong tokenizer is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.formats.stores import CASES, write_tokenizer

from packline.encoders.tokenizer import load_tokenizer
from packline.errors import InputError, TokenizerError
from packline.formats.check import (
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
