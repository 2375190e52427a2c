"""Texts of evaluation sets: every layout gives each question with its right answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.evals.test_chat_evals import chat_json, mmlu_hub
from tests.evals.test_core import CHOICES, GOES_ON, SCHEMAS, write_bundle

from packline.errors import InputError
from packline.evals.contamination import read_evaluations, record_text
from packline.evals.making import EvalsSettings, make_chat, make_core
from packline.evals.task import EvaluationText

__all__ = ["chat_json"]  # a fixture
words = st.text("abc", min_size=1, max_size=4)


@given(words, st.lists(words, min_size=4, max_size=4), st.integers(0, 3))
def test_one_question_has_one_text_in_every_layout(question: str, choices: list[str], gold: int) -> None:
    letters = ["A", "B", "C", "D"]
    labelled = [{"text": text, "label": letter} for text, letter in zip(choices, letters, strict=True)]
    layouts: list[Any] = [
        {"query": question, "choices": choices, "gold": gold},
        {"context_options": [question] * 4, "continuation": choices[gold], "gold": gold},
        {"context": question, "continuation": choices[gold]},
        {"ctx": question, "endings": choices, "label": gold},
        {"ctx": question, "endings": choices, "label": str(gold)},
        {"question": question, "choices": choices, "answer": gold},
        {"question": question, "choices": {"text": choices, "label": letters}, "answerKey": letters[gold]},
        {"question": {"stem": question, "choices": labelled}, "answerKey": letters[gold]},
        [question, *choices, letters[gold]],
        [question, *choices, str(gold)],
    ]
    assert {record_text(layout) for layout in layouts} == {f"{question} {choices[gold]}"}


def test_questions_are_read_with_their_right_answers(tmp_path: Path) -> None:
    (tmp_path / "core.yaml").write_text(
        json.dumps(
            {
                "icl_tasks": [
                    {
                        "label": label,
                        "icl_task_type": "multiple_choice",
                        "num_fewshot": [shots],
                        "dataset_uri": "a.jsonl",
                        "continuation_delimiter": " -> ",
                    }
                    for label, shots in (("a", 0), ("a_more", 10))
                ]
            }
        )
    )
    (tmp_path / "eval_data").mkdir()
    line = json.dumps({"query": "q", "choices": ["x", "y"], "gold": 1})
    (tmp_path / "eval_data" / "a.jsonl").write_text(line)
    assert list(read_evaluations(str(tmp_path))) == [EvaluationText("a", 0, "q -> y")]
    table = tmp_path / "table"
    table.mkdir()
    (table / "one_test.csv").write_text("question,a,b,c,d,answer\nq,1,2,3,4,2\n")
    (table / "two_test.csv").write_text("r,5,6,7,8,D\n")
    assert list(read_evaluations(str(table))) == [
        EvaluationText("table", 0, "q 3"),
        EvaluationText("table", 1, "r 8"),
    ]
    lines = [
        {"ctx": "h", "endings": ["i", "j"], "label": "1"},
        {"question": "k", "choices": {"text": ["l", "m"], "label": ["A", "B"]}, "answerKey": "B"},
        {"question": "n", "answer": "o <<1+1=2>>2"},
    ]
    (tmp_path / "mixed.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    found = [one.text for one in read_evaluations(str(tmp_path / "mixed.jsonl"))]
    assert found == ["h j", "k m", "n o <<1+1=2>>2"]
    with pytest.raises(InputError, match="found no such file"):
        list(read_evaluations(str(tmp_path / "eval_data" / "nothing*")))


def test_a_folder_of_several_sets_is_refused_where_a_bundle_would_be_overlooked(tmp_path: Path) -> None:
    task = {"label": "a", "icl_task_type": "multiple_choice", "lines": CHOICES}
    write_bundle(tmp_path / "bundle", task)
    (tmp_path / "test.jsonl").write_text('{"prompt": "q"}')
    with pytest.raises(InputError, match=r"is not one evaluation set: .*/bundle is a bundle of CORE"):
        list(read_evaluations(str(tmp_path)))


def test_a_folder_that_evals_wrote_is_read_as_what_it_was_made_of(
    tmp_path: Path, chat_json: Path, write_jsonl: Callable[..., Path]
) -> None:
    kinds = [("a", "multiple_choice", CHOICES), ("b", "schema", SCHEMAS), ("c", "language_modeling", GOES_ON)]
    tasks: list[dict[str, Any]] = [
        {"label": label, "icl_task_type": kind, "lines": lines, "continuation_delimiter": " -> "}
        for label, kind, lines in kinds
    ]
    table = "Eval Task,Random baseline\na,25\nb,50\nc,0\na_more,25\n"
    bundle = write_bundle(tmp_path / "bundle", *tasks, table=table)
    entries = json.loads((bundle / "core.yaml").read_text())["icl_tasks"]
    entries.append({**entries[0], "label": "a_more", "num_fewshot": [2]})  # the same questions once more
    (bundle / "core.yaml").write_text(json.dumps({"icl_tasks": entries}))
    (tmp_path / "MMLU").mkdir()
    mmlu_hub(tmp_path / "MMLU")
    for format in ("npz", "pt", "safetensors"):
        if format == "pt":
            pytest.importorskip("torch")
        settings = EvalsSettings(tokenizer=str(chat_json), out=str(tmp_path / format), format=format)
        make_core(str(bundle), settings)
        assert list(read_evaluations(str(tmp_path / format))) == list(read_evaluations(str(bundle)))
    settings = EvalsSettings(tokenizer=str(chat_json), out=str(tmp_path / "chat"), max_seq_len=50)
    (report,) = make_chat({"MMLU": str(tmp_path / "MMLU")}, settings)
    assert report.skipped  # of these too the words are recorded
    found = [(one.number, one.text) for one in read_evaluations(str(tmp_path / "chat"))]
    asked = read_evaluations(str(tmp_path / "MMLU" / "test-00000-of-00001.parquet"))
    assert found == [(one.number, one.text) for one in asked] and len(found) == 9
    (tmp_path / "chat" / "questions.jsonl").write_text('{"set": "MMLU"}\n')
    with pytest.raises(InputError, match=r"questions\.jsonl, line 1: no question of packline evals"):
        list(read_evaluations(str(tmp_path / "chat")))
    (tmp_path / "chat" / "questions.jsonl").unlink()
    with pytest.raises(InputError, match=r"holds ids with few-shot prompts, and no questions\.jsonl"):
        list(read_evaluations(str(tmp_path / "chat")))
