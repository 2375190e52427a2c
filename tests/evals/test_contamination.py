"""Search for questions in stores: edges, long documents, the command, and the questions of every layout."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import result, run
from tests.evals.plainly import WriteJsonl, build
from tests.evals.test_chat_evals import chat_json, mmlu_hub
from tests.evals.test_core import CHOICES, GOES_ON, SCHEMAS, write_bundle

import packline
from packline.errors import CorruptStore, InputError, RecipeError
from packline.evals import contamination, grams
from packline.evals.contamination import find_questions, read_evaluations, record_text
from packline.evals.grams import gram_hashes
from packline.evals.making import EvalsSettings, make_chat, make_core
from packline.evals.task import EvaluationText


def words_of(seed: int, count: int) -> str:
    draw = random.Random(seed)
    return " ".join("".join(draw.choices("abcdefghij", k=draw.randint(2, 5))) for _ in range(count))


QUESTIONS = [words_of(number, 20) for number in range(30)]


@pytest.mark.parametrize("size", [10, 3000])
def test_a_word_longer_than_what_is_kept_of_it_is_no_other_word(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: WriteJsonl, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(contamination, "CHUNK_TOKENS", 20)
    monkeypatch.setattr(grams, "LONGEST", 200)
    texts = [f"{'x' * size}{QUESTIONS[0]}", f"{'x' * size} {QUESTIONS[1]}", QUESTIONS[2]]
    store = build(tmp_path, texts, tokenizer_json, write_jsonl)
    report = find_questions(store, [str(write_jsonl(tmp_path / "q.jsonl", QUESTIONS))])
    found = sorted((one.document, one.question, one.length) for one in report.overlaps)
    assert found == [(0, 0, 19), (1, 1, 20), (2, 2, 20)]


def test_the_last_word_of_a_document_is_its_own_wherever_a_chunk_ends(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: WriteJsonl, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = build(tmp_path, [QUESTIONS[0], ". ! " * 20, QUESTIONS[1]], tokenizer_json, write_jsonl)
    path = str(write_jsonl(tmp_path / "q.jsonl", QUESTIONS))
    for stretch in (40, 50, 60, 70, 80, 90, 100, 110):
        monkeypatch.setattr(contamination, "CHUNK_TOKENS", stretch)
        found = find_questions(store, [path], n=20, workers=0).overlaps
        assert [(one.document, one.question, one.length) for one in found] == [(0, 0, 20), (2, 1, 20)]


@pytest.mark.parametrize("gram_of", ["words", "tokens"])
def test_equal_hashes_alone_are_no_overlap(
    tmp_path: Path,
    tokenizer_json: Path,
    write_jsonl: WriteJsonl,
    monkeypatch: pytest.MonkeyPatch,
    gram_of: Any,
) -> None:
    coarse = np.uint64(50)
    monkeypatch.setattr(grams, "gram_hashes", lambda ids, n: gram_hashes(ids, n) % coarse)
    store = build(tmp_path, [words_of(n, 60) for n in range(3000, 3010)], tokenizer_json, write_jsonl)
    path = str(write_jsonl(tmp_path / "q.jsonl", QUESTIONS))
    assert find_questions(store, [path], gram_of=gram_of, most_texts=1000, workers=0).clean


@pytest.mark.parametrize("gram_of", ["words", "tokens"])
def test_processes_find_what_one_finds(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: WriteJsonl, gram_of: Any
) -> None:
    texts = [words_of(1000 + n, 5 + n) + " " + QUESTIONS[n % 30] * (n % 3) for n in range(60)]
    corpus = write_jsonl(tmp_path / "corpus.jsonl", texts)
    packline.build(corpus, tokenizer_json, out=tmp_path / "store", workers=0, val_fraction=0.5)
    store = packline.open(tmp_path / "store")
    assert len(store.shards) == 2
    path = str(write_jsonl(tmp_path / "q.jsonl", QUESTIONS))
    heard: list[tuple[int, int]] = []
    found = [
        find_questions(
            store, [path], gram_of=gram_of, workers=workers, on_progress=lambda *said: heard.append(said)
        )
        for workers in (0, 2)
    ]
    for report in found:
        report.seconds = 0.0
    assert (
        found[0] == found[1]
        and len(found[0].overlaps) > 10
        and {one.split for one in found[0].overlaps} == {"train", "val"}
    )
    whole = sum(shard.tokens.nbytes for shard in store.shards)
    assert heard[-1] == (whole, whole) and all(read <= whole for read, _ in heard)


@pytest.mark.parametrize("gram_of", ["words", "tokens"])
def test_an_id_outside_the_vocabulary_is_told(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: WriteJsonl, gram_of: Any
) -> None:
    store = build(tmp_path, QUESTIONS, tokenizer_json, write_jsonl)
    path = tmp_path / "store" / f"{store.shards[0].entry.name}.bin"
    tokens = np.fromfile(path, "<u2")
    tokens[5] = 65_000
    tokens.tofile(path)
    question = str(write_jsonl(tmp_path / "q.jsonl", QUESTIONS))
    with pytest.raises(CorruptStore, match=r"an id outside the vocabulary .* found 65,000"):
        find_questions(packline.open(tmp_path / "store"), [question], gram_of=gram_of)


def test_what_many_questions_say_and_what_repeats_itself_is_left_out(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: WriteJsonl
) -> None:
    template = words_of(77, 13)
    questions = [f"{template} {words_of(n, 3)}" for n in range(11)] + ["so " * 20]
    store = build(tmp_path, [f"{template} nothing", "so " * 40], tokenizer_json, write_jsonl)
    path = str(write_jsonl(tmp_path / "q.jsonl", questions))
    report = find_questions(store, [path])
    assert report.found == 0 and report.common_grams == 1 and report.repetitive_grams == 8
    assert (report.unchecked, report.sets["q"].too_short, report.clean) == (
        1,
        0,
        False,
    )  # so so so ...
    assert find_questions(store, [path], most_texts=11).found == 11
    with pytest.raises(RecipeError, match="ngram is 0"):
        find_questions(store, [path], n=0)


def test_only_the_longest_are_listed_and_all_are_counted(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: WriteJsonl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contamination, "MOST_LISTED", 3)
    texts = [" ".join(QUESTIONS[n].split()[: 13 + n]) for n in range(7)]
    store = build(tmp_path, texts, tokenizer_json, write_jsonl)
    report = find_questions(store, [str(write_jsonl(tmp_path / "q.jsonl", QUESTIONS))])
    assert [one.length for one in report.overlaps] == [19, 18, 17]
    assert report.not_listed == 4 and list(report.sources.values()) == [(7, 7)]


# ------------------------------------------------------------------ the command


def test_sets_that_are_called_alike_are_counted_apart(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: WriteJsonl
) -> None:
    store = build(tmp_path, [QUESTIONS[0], QUESTIONS[1], QUESTIONS[2]], tokenizer_json, write_jsonl)
    paths = []
    for number, name in enumerate(("one/test", "two/test", "one/q", "two/q")):
        file = tmp_path / f"{name}.jsonl"
        file.parent.mkdir(exist_ok=True)
        paths.append(str(write_jsonl(file, QUESTIONS[number : number + 1])))
    report = find_questions(store, [*paths, paths[0]])
    names = ["one/test", "two/test", "q", f"q ({paths[3]})"]
    assert list(report.sets) == names
    assert [one.found for one in report.sets.values()] == [1, 1, 1, 0]
    assert [(one.document, one.set, one.question) for one in report.overlaps] == [
        (number, names[number], 0) for number in range(3)
    ]


def test_the_command_lists_documents_and_names_what_it_could_not_check(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: WriteJsonl
) -> None:
    texts = [words_of(9000, 30), f"{words_of(9001, 30)} {QUESTIONS[4]}"]
    build(tmp_path, texts, tokenizer_json, write_jsonl)
    path = write_jsonl(tmp_path / "set.jsonl", QUESTIONS)
    done = run("verify", tmp_path / "store", "--against", path)
    assert done.returncode == 1, done.stderr
    assert "1 question found in 1 document" in done.stdout
    assert re.search(r"1 +corpus\.jsonl at [\d,]+, id n1 +set +4 +20 ", done.stdout)
    found = result(run("verify", tmp_path / "store", "--against", path, "--ngram", "20", "--json"))
    assert (found["exit_code"], found["n"], [one["document"] for one in found["overlaps"]]) == (1, 20, [1])
    unchecked = run("verify", tmp_path / "store", "--against", path, "--ngram", "21")
    assert unchecked.returncode == 4 and "No question was found" not in unchecked.stdout
    assert "clean, but 30 of 30 questions could not be checked" in unchecked.stdout
    assert "30 with fewer than 21 words" in " ".join(unchecked.stdout.split())
    path.write_text("".join(f"{line}\n" for line in path.read_text().splitlines()[5:]))
    clean = run("verify", tmp_path / "store", "--against", path)
    assert clean.returncode == 0 and "No question was found" in clean.stdout
    with path.open("a") as file:
        file.write('{"text": "too short"}\n{"text": "so ' + "so " * 20 + '"}\n')
    some = run("verify", tmp_path / "store", "--against", path)
    assert some.returncode == 4 and "clean, but 2 of 27 questions could not be checked" in some.stdout
    assert "1 of which every gram repeats itself" in " ".join(some.stdout.split())
    values = result(run("verify", tmp_path / "store", "--against", path, "--json"))
    assert [values[key] for key in ("exit_code", "clean", "found", "unchecked")] == [4, False, 0, 2]
    assert (values["sets"]["set"]["unchecked"], values["sets"]["set"]["too_short"]) == (2, 1)
    with path.open("a") as file:
        file.write(json.dumps({"text": QUESTIONS[4]}) + "\n")
    both = run("verify", tmp_path / "store", "--against", path)
    assert both.returncode == 1
    assert "1 question found in 1 document; 2 of 28 questions could not be checked." in both.stdout
    assert run("verify", tmp_path / "store", "--ngram", "5").returncode == 2


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
