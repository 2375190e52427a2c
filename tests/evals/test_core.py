"""CORE: sequences, starts and ends equal those that are worked out a second way, on every task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.evals import second_way

from packline.encoders.encoder import Encoder
from packline.encoders.special_tokens import begin_of_sequence
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import InputError, RecipeError, TokenizerError
from packline.evals.core import core_task, read_baselines, read_bundle, read_questions
from packline.evals.making import EvalsSettings, make_core
from packline.evals.task import ScoredTask

LABELS = [
    "jeopardy", "bigbench_qa_wikidata", "arc_easy", "arc_challenge", "copa", "commonsense_qa", "piqa",
    "openbook_qa", "lambada_openai", "winograd", "winogrande", "bigbench_dyck_languages", "agi_eval_lsat_ar",
    "bigbench_cs_algorithms", "bigbench_operators", "bigbench_repeat_copy_logic", "boolq",
    "hellaswag_zeroshot", "hellaswag", "bigbench_language_identification",
]  # fmt: skip
READ = 60
"""Questions of a task that are read."""
LOOKED_AT = 6
"""Questions of them that are worked out again; of a task of fewer, all."""


@pytest.fixture(scope="session")
def bundle(shared: Path) -> Path:
    folder = shared / "evals" / "core_eval_bundle"
    if not folder.is_dir():
        pytest.skip("no bundle of CORE beside the project")
    return folder


@pytest.fixture(scope="session")
def gpt2(shared: Path) -> Tokenizer:
    return load_tokenizer(str(shared / "tokenizers" / "gpt2"))


@pytest.fixture(scope="session")
def encoder(gpt2: Tokenizer) -> Encoder:
    return Encoder(gpt2)


def sequences_of(task: ScoredTask, number: int) -> list[tuple[list[int], int, int]]:
    places = np.flatnonzero(task.question == number).tolist()
    assert task.place[places].tolist() == list(range(len(places)))
    return [(task.sequences[p].tolist(), int(task.start[p]), int(task.end[p])) for p in places]


def tasks_of(bundle: Path) -> dict[str, dict[str, Any]]:
    import yaml  # type: ignore[import-untyped]

    return {task["label"]: task for task in yaml.safe_load((bundle / "core.yaml").read_text())["icl_tasks"]}


def check(
    bundle: Path, label: str, gpt2: Tokenizer, encoder: Encoder, longest: int, looked_at: int = LOOKED_AT
) -> ScoredTask:
    """Compare a spread of a task's questions, its golds and its counts with the second way."""
    (entry,) = read_bundle(bundle, [label])
    baseline = read_baselines(bundle)[label]
    questions = read_questions(bundle / "eval_data" / entry.dataset_uri, entry.icl_task_type)[:READ]
    found = core_task(entry, questions, encoder, bos_id=50256, max_seq_len=longest, random_baseline=baseline)
    task = tasks_of(bundle)[label]
    data = second_way.load(bundle, task, READ)
    reference = gpt2.reference()

    def encode(text: str) -> list[int]:
        return list(reference.encode(text, add_special_tokens=False).ids)

    looked = sorted({*range(0, len(data), max(len(data) // looked_at, 1)), len(data) - 1})
    for number in looked:
        assert sequences_of(found, number) == second_way.expected(data, number, task, encode, 50256, longest)
    assert found.random_baseline == second_way.baselines(bundle)[label]
    assert found.questions == len(data)
    assert found.gold.tolist() == [item.get("gold", -1) for item in data]
    options = [item.get("choices") or item.get("context_options") or [""] for item in data]
    assert found.sequences_of_question.tolist() == [len(choices) for choices in options]
    assert found.sequences.lengths.max() <= longest
    assert (found.end == found.sequences.lengths).all()
    return found


@pytest.mark.parametrize("label", LABELS)
def test_a_task_is_what_its_rules_say(bundle: Path, gpt2: Tokenizer, encoder: Encoder, label: str) -> None:
    check(bundle, label, gpt2, encoder, 2048)


def test_every_task_of_the_bundle_is_looked_at(bundle: Path) -> None:
    assert sorted(LABELS) == sorted(tasks_of(bundle))


@pytest.mark.parametrize("label", ["agi_eval_lsat_ar", "bigbench_dyck_languages", "winograd"])
def test_what_is_too_long_loses_its_beginning(
    bundle: Path, gpt2: Tokenizer, encoder: Encoder, label: str
) -> None:
    whole = check(bundle, label, gpt2, encoder, 2048, 4)
    longest = int(np.median(whole.sequences.lengths))
    found = check(bundle, label, gpt2, encoder, longest)
    assert found.truncated == int((whole.sequences.lengths > longest).sum()) > 0
    kept = found.sequences.lengths == whole.sequences.lengths
    assert all(found.sequences[p][0] == 50256 for p in np.flatnonzero(kept).tolist())


# ------------------------------------------------------------- a bundle of one's own, without the shared one


def write_bundle(
    folder: Path, *tasks: dict[str, Any], table: str = "Eval Task,Random baseline\na,25\n"
) -> Path:
    """A bundle; each task's `lines` are its file."""
    (folder / "eval_data").mkdir(parents=True)
    entries = []
    for task in tasks:
        lines = "".join(f"{json.dumps(line)}\n" for line in task.pop("lines"))
        (folder / "eval_data" / f"{task['label']}.jsonl").write_text(lines, "utf-8")
        entries.append({"dataset_uri": f"{task['label']}.jsonl", "num_fewshot": [0], **task})
    (folder / "core.yaml").write_text(json.dumps({"icl_tasks": entries}), "utf-8")  # JSON is YAML
    (folder / "eval_meta_data.csv").write_text(table, "utf-8")
    return folder


CHOICES = [{"query": f"Number {n}:", "choices": ["one", "two", 3], "gold": n % 3} for n in range(6)]
SCHEMAS = [
    {"context_options": ["He", "She and I"], "continuation": f"left {n}.", "gold": 0} for n in range(6)
]
GOES_ON = [{"context": f"  after {n} comes \n", "continuation": str(n + 1)} for n in range(6)]


@pytest.mark.parametrize(
    ("kind", "lines"),
    [("multiple_choice", CHOICES), ("schema", SCHEMAS), ("language_modeling", GOES_ON)],
)
@pytest.mark.parametrize("shots", [0, 3])
def test_a_small_bundle_is_what_the_rules_say(
    tmp_path: Path, tokenizer_json: Path, kind: str, lines: list[dict[str, Any]], shots: int
) -> None:
    task = {
        "label": "a",
        "icl_task_type": kind,
        "num_fewshot": [shots],
        "continuation_delimiter": "\n<|endoftext|> ",
    }
    bundle = write_bundle(tmp_path / "bundle", {**task, "lines": lines})
    (entry,) = read_bundle(bundle)
    questions = read_questions(bundle / "eval_data" / "a.jsonl", entry.icl_task_type)
    tokenizer = load_tokenizer(str(tokenizer_json))
    found = core_task(entry, questions, Encoder(tokenizer), bos_id=0, max_seq_len=64, random_baseline=25.0)
    plain = plain_reference(tokenizer)
    data = second_way.load(bundle, {"dataset_uri": "a.jsonl"})
    for number in range(len(data)):
        expected = second_way.expected(data, number, task, plain, 0, 64)
        assert sequences_of(found, number) == expected
    # The string of a special token in a prompt is text: only what begins a sequence is the token.
    counts = [np.count_nonzero(found.sequences[place] == 0) for place in range(len(found.sequences))]
    whole = found.sequences.lengths < 64
    assert [count for count, one in zip(counts, whole, strict=True) if one] == [1] * int(whole.sum())


def plain_reference(tokenizer: Tokenizer) -> second_way.Encode:
    """Ids by HF tokenizers, told that special-token strings are text."""
    from tokenizers import Tokenizer as Reference

    whole = json.loads(tokenizer.json)
    whole["added_tokens"] = []
    reference = Reference.from_str(json.dumps(whole))
    return lambda text: list(reference.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lines": [{"query": "a", "choices": ["b"], "gold": 1}]}, "line 1: gold is not the place"),
        ({"lines": [{"query": "a", "gold": 0}]}, "line 1: no multiple_choice question"),
        ({"lines": []}, "has no questions"),
        ({"lines": CHOICES[:2], "num_fewshot": [2]}, "2 shots of 2 questions"),
        ({"lines": CHOICES, "icl_task_type": "essay"}, "no list of CORE's tasks"),
        ({"lines": CHOICES, "label": "b"}, "no random baseline for b"),
    ],
)
def test_a_bundle_that_is_wrong_is_refused(
    tmp_path: Path, tokenizer_json: Path, change: dict[str, Any], said: str
) -> None:
    task = {"label": "a", "icl_task_type": "multiple_choice", **change}
    bundle = write_bundle(tmp_path / "bundle", task)
    settings = EvalsSettings(tokenizer=str(tokenizer_json), out=str(tmp_path / "out"), bos=0)
    with pytest.raises((InputError, RecipeError), match=said):
        make_core(str(bundle), settings)
    assert not (tmp_path / "out" / "config.json").exists()


def test_what_is_scored_has_to_fit(tmp_path: Path, tokenizer_json: Path) -> None:
    lines = [{"query": "a", "choices": ["b c d e f g h i j k l m n o p", "z"], "gold": 0}] * 2
    bundle = write_bundle(tmp_path / "b", {"label": "a", "icl_task_type": "multiple_choice", "lines": lines})
    settings = EvalsSettings(tokenizer=str(tokenizer_json), out=str(tmp_path / "out"), bos=0, max_seq_len=8)
    with pytest.raises(InputError, match=r"task a, question 0: \d+ tokens are scored"):
        make_core(str(bundle), settings)


def test_a_missing_task_or_file_is_named(tmp_path: Path) -> None:
    task = {"label": "a", "icl_task_type": "multiple_choice", "lines": CHOICES}
    bundle = write_bundle(tmp_path / "b", task)
    with pytest.raises(RecipeError, match="has no task 'z': expected one of a"):
        read_bundle(bundle, ["z"])
    (bundle / "eval_data" / "a.jsonl").unlink()
    with pytest.raises(InputError, match=r"task a: no file .*a\.jsonl"):
        read_bundle(bundle)
    with pytest.raises(InputError, match="cannot read"):
        read_bundle(tmp_path)


def test_what_begins_a_sequence_is_named_or_declared_never_guessed(tokenizer_json: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_json))
    assert begin_of_sequence(tokenizer, "<|endoftext|>") == begin_of_sequence(tokenizer, 0) == 0
    with pytest.raises(TokenizerError, match="declares no token to begin"):
        begin_of_sequence(tokenizer, None)
    with pytest.raises(TokenizerError, match="bos '<s>' is not one token") as caught:
        begin_of_sequence(tokenizer, "<s>")
    assert "<|endoftext|> (0)" in caught.value.hint
