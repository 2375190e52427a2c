"""HellaSwag: known layouts are one set of questions, and the right tokens are scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.evals.test_task import HELLASWAG, read_llmc

from packline.encoders.tokenizer import load_tokenizer
from packline.errors import InputError
from packline.evals.core import read_hellaswag
from packline.evals.making import EvalsSettings, make_hellaswag


@pytest.mark.parametrize("layout", ["published", "hub", "core"])
def test_hellaswag_for_llmc(tmp_path: Path, tokenizer_json: Path, layout: str) -> None:
    lines: list[dict[str, Any]] = HELLASWAG
    if layout == "hub":
        lines = [{**one, "label": str(one["label"])} for one in HELLASWAG]
    elif layout == "core":
        lines = [{"query": one["ctx"], "choices": one["endings"], "gold": one["label"]} for one in HELLASWAG]
    path = tmp_path / "hellaswag_val.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    settings = EvalsSettings(tokenizer=str(tokenizer_json), out=str(tmp_path / "out"), format="llmc")
    make_hellaswag(str(path), settings)
    reference = load_tokenizer(str(tokenizer_json)).reference()

    def encode(text: str) -> list[int]:
        return list(reference.encode(text, add_special_tokens=False).ids)

    expected = [
        (one["label"], encode(one["ctx"]), [encode(" " + ending) for ending in one["endings"]])
        for one in HELLASWAG
    ]
    assert read_llmc((tmp_path / "out" / "hellaswag.bin").read_bytes()) == expected


def test_hellaswag_with_a_beginning_and_cut_on_the_left(tmp_path: Path, tokenizer_json: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in HELLASWAG))
    for number, longest in enumerate((2048, 9)):
        out = str(tmp_path / f"out{number}")
        settings = EvalsSettings(tokenizer=str(tokenizer_json), out=out, bos=0, max_seq_len=longest)
        make_hellaswag(str(path), settings)
    reference = load_tokenizer(str(tokenizer_json)).reference()
    whole = np.load(tmp_path / "out0" / "hellaswag.npz")
    cut = np.load(tmp_path / "out1" / "hellaswag.npz")
    for place, (a, b) in enumerate(zip(whole["offsets"], whole["offsets"][1:], strict=False)):
        line = HELLASWAG[place // 4]
        endings: Any = line["endings"]
        context = [0, *reference.encode(line["ctx"], add_special_tokens=False).ids]
        ending = reference.encode(" " + endings[place % 4], add_special_tokens=False).ids
        assert whole["tokens"][a:b].tolist() == context + ending
        bounds = [int(whole["start_idx"][place]), int(whole["end_idx"][place])]
        assert bounds == [len(context), len(context) + len(ending)]
        short = cut["tokens"][cut["offsets"][place] : cut["offsets"][place + 1]].tolist()
        assert short == (context + ending)[-9:]
        scored = short[cut["start_idx"][place] : cut["end_idx"][place]]
        assert scored == ending
    with pytest.raises(InputError, match="tokens are scored, which do not fit into 2"):
        make_hellaswag(
            str(path), EvalsSettings(tokenizer=str(tokenizer_json), out=str(tmp_path / "n"), max_seq_len=2)
        )


def test_hellaswag_without_answers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text(json.dumps({**HELLASWAG[0], "label": ""}))
    with pytest.raises(InputError, match=r"line 1: the right ending is not among 4"):
        read_hellaswag(str(tmp_path / "test.jsonl"))


@pytest.mark.parametrize(
    "change",
    [{"label": 4}, {"label": -1}, {"label": "1.0"}, {"endings": []}, {"endings": "four"}, {"ctx": 3}],
)
def test_a_damaged_question_is_refused_with_its_line(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in [*HELLASWAG, {**HELLASWAG[0], **change}]))
    with pytest.raises(InputError, match=rf"h\.jsonl, line {len(HELLASWAG) + 1}: "):
        read_hellaswag(str(path))
