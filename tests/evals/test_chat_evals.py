"""MMLU and ARC as chat: tokens, letters and golds worked out a second way; every published layout."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from tests.chat import talks
from tests.evals.test_core import plain_reference

from packline.chat.tasks import Lettered, read_lettered
from packline.encoders.encoder import Encoder
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import InputError, RecipeError, TokenizerError
from packline.evals.making import EvalsSettings, chat_task, find_ask, make_chat


@pytest.fixture(scope="session")
def chat_json(tokenizer_json: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    return talks.with_tokens(tokenizer_json, folder, talks.NANOCHAT_TOKENS) / "tokenizer.json"


@pytest.fixture(scope="session")
def chat_tokenizer(chat_json: Path) -> Tokenizer:
    return load_tokenizer(str(chat_json))


QUESTIONS = [
    Lettered(f"Which is number {n}?", ("A", "B", "C", "D"), ("one", "two", "<|bos|>", f"{n}"), n % 4)
    for n in range(9)
]


def text_of(one: Lettered) -> str:
    """The user's words, by their rule."""
    pairs = zip(one.letters, one.choices, strict=True)
    lines = "".join(f"- {choice}={letter}\n" for letter, choice in pairs)
    question = f"Multiple Choice question: {one.question}\n{lines}\n"
    return question + "Respond only with the letter of the correct answer."


def second_way(
    rows: list[Lettered], encode: Callable[[str], list[int]], special: dict[str, int], longest: int
) -> tuple[list[dict[str, Any]], float]:
    """Contents of stacks' dicts: sequences and baseline."""
    order = np.random.default_rng(42).permutation(len(rows)).tolist()
    found = []
    for number, row in enumerate(rows[place] for place in order):
        tokens = [special["<|bos|>"], special["<|user_start|>"]]
        tokens += encode(text_of(row))
        tokens += [special["<|user_end|>"], special["<|assistant_start|>"]]
        if len(tokens) > longest:
            continue
        letters = [encode(letter) for letter in row.letters]
        assert all(len(one) == 1 for one in letters)
        found.append(
            {
                "tokens": tokens,
                "answer_pos": len(tokens) - 1,
                "letter_token_ids": [one[0] for one in letters],
                "gold": row.gold,
                "example_idx": number,
            }
        )
    shares = [1 / len(one["letter_token_ids"]) for one in found]
    return found, sum(shares) / len(shares)


def check(questions: list[Lettered], tokenizer: Tokenizer, longest: int) -> None:
    bos = tokenizer.special_tokens["<|bos|>"]
    task = chat_task("t", questions, Encoder(tokenizer), bos_id=bos, max_seq_len=longest)
    encode = plain_reference(tokenizer)
    expected, baseline = second_way(questions, encode, tokenizer.special_tokens, longest)
    found = [
        {
            "tokens": task.sequences[place].tolist(),
            "answer_pos": int(task.answer_pos[place]),
            "letter_token_ids": task.letters[place].tolist(),
            "gold": int(task.gold[place]),
            "example_idx": int(task.question[place]),
        }
        for place in range(len(task.sequences))
    ]
    assert found == expected
    assert task.random_baseline == pytest.approx(baseline, rel=1e-12)
    assert task.skipped == len(questions) - len(expected)
    start = tokenizer.special_tokens["<|assistant_start|>"]
    assert all(one["tokens"][one["answer_pos"]] == start for one in found)


def test_questions_are_what_the_rules_say_and_those_too_long_are_counted(chat_tokenizer: Tokenizer) -> None:
    questions = [*QUESTIONS, Lettered("Up?", ("1", "2", "3"), ("a", "b", "c"), 2)]
    check(questions, chat_tokenizer, 2048)
    for place, words in ((3, " really" * 200), (7, " indeed" * 100)):
        questions[place] = replace(questions[place], question=questions[place].question + words)
    check(questions, chat_tokenizer, 150)


# ------------------------------------------------------------------ chat templates

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{- bos_token }}{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + "
    "'<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
UNPROVEN = (  # what is rendered before a turn depends on what comes after: no mask, but a prompt
    "{{ messages | length }}"
    "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"
)
TOKENS_OF = {
    CHATML: ("<|im_start|>", "<|im_end|>"),
    LLAMA3: ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    UNPROVEN: ("<|im_start|>", "<|im_end|>"),
}


def prompts_by_jinja(template: str, folder: Path, texts: list[str]) -> list[list[int]]:
    """Jinja and HF tokenizers alone: what `apply_chat_template` of transformers does."""
    import jinja2
    from tokenizers import Tokenizer as Reference

    reference = Reference.from_file(str(folder / "tokenizer.json"))
    page = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(template)
    begin = json.loads((folder / "tokenizer_config.json").read_text()).get("bos_token") or ""
    found = []
    for text in texts:
        messages = [{"role": "user", "content": text}]
        whole = page.render(messages=messages, bos_token=begin, add_generation_prompt=True)
        found.append(list(reference.encode(whole, add_special_tokens=False).ids))
    return found


@pytest.mark.parametrize("template", [CHATML, LLAMA3, UNPROVEN], ids=["chatml", "llama3", "unproven"])
def test_questions_are_asked_by_the_template_of_the_tokenizer(
    tmp_path: Path, tokenizer_json: Path, template: str
) -> None:
    bos = TOKENS_OF[template][0] if template == LLAMA3 else ""
    folder = talks.with_tokens(tokenizer_json, tmp_path / "model", TOKENS_OF[template], template, bos)
    (tmp_path / "mmlu").mkdir()
    mmlu_hub(tmp_path / "mmlu")
    settings = EvalsSettings(tokenizer=str(folder), out=str(tmp_path / "out"))
    make_chat({"MMLU": str(tmp_path / "mmlu")}, settings)
    arrays = np.load(tmp_path / "out" / "MMLU.npz")
    rows = [arrays["tokens"][a:b].tolist() for a, b in pairwise(arrays["offsets"])]
    order = np.random.default_rng(42).permutation(len(QUESTIONS)).tolist()
    texts = [text_of(QUESTIONS[n]) for n in order]
    assert rows == prompts_by_jinja(template, folder, texts)
    assert arrays["answer_pos"].tolist() == [len(row) - 1 for row in rows]
    assert arrays["gold"].tolist() == [QUESTIONS[n].gold for n in order]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    begin = rows[0][0] if template == LLAMA3 else None
    assert config["bos_id"] == begin


def test_a_special_token_in_a_question_stays_text_under_a_template(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    folder = talks.with_tokens(tokenizer_json, tmp_path / "model", TOKENS_OF[CHATML], CHATML)
    tokenizer = load_tokenizer(str(folder))
    ask, nanochat = find_ask(tokenizer)
    odd = Lettered("What is <|im_end|>?", ("A", "B"), ("<|im_start|>", "an end"), 1)
    task = chat_task("t", [odd], Encoder(tokenizer), bos_id=None, max_seq_len=999, ask=ask)
    ids = task.sequences[0].tolist()
    start, end = (tokenizer.special_tokens[token] for token in TOKENS_OF[CHATML])
    assert not nanochat and (ids.count(start), ids.count(end)) == (2, 1)
    said = tokenizer.reference().decode(ids, skip_special_tokens=True)
    assert "What is <|im_end|>?\n- <|im_start|>=A\n- an end=B" in said


def test_a_template_that_is_named_wins_and_a_token_before_it_stands_once(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    tokens = (*talks.NANOCHAT_TOKENS, *TOKENS_OF[CHATML])
    tokenizer = load_tokenizer(str(talks.with_tokens(tokenizer_json, tmp_path / "model", tokens)))
    assert find_ask(tokenizer)[1]
    ask, nanochat = find_ask(tokenizer, CHATML)
    assert not nanochat and ask("x")[0].text == "<|im_start|>"
    rows = []
    for token in (None, "<|bos|>", "<|im_start|>"):
        begin = None if token is None else tokenizer.special_tokens[token]
        task = chat_task("t", QUESTIONS[:1], Encoder(tokenizer), bos_id=begin, max_seq_len=999, ask=ask)
        rows.append(task.sequences[0].tolist())
    assert rows[1] == [tokenizer.special_tokens["<|bos|>"], *rows[0]] and rows[2] == rows[0]


def test_a_tokenizer_that_cannot_ask_is_refused(tmp_path: Path, tokenizer_json: Path) -> None:
    tokenizer = load_tokenizer(str(talks.with_tokens(tokenizer_json, tmp_path / "model", ())))
    with pytest.raises(TokenizerError, match=r"no special token <\|user_start\|> and no chat template"):
        find_ask(tokenizer)
    with pytest.raises(RecipeError, match=r"the chat template refuses a question: .*no users"):
        find_ask(tokenizer, "{{ raise_exception('no users here') }}")
    with pytest.raises(RecipeError, match="writes nothing"):
        find_ask(tokenizer, "{% if false %}x{% endif %}")
    with pytest.raises(RecipeError, match="the chat template is not one"):
        find_ask(tokenizer, "{% for %}")
    with pytest.raises(RecipeError, match="no questions were named"):
        make_chat({}, EvalsSettings(tokenizer=tokenizer.name, out=str(tmp_path / "out"), bos=0))
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------ layouts


def mmlu_hub(folder: Path) -> None:
    for split, questions in (("test", QUESTIONS), ("dev", QUESTIONS[:2]), ("validation", QUESTIONS[:1])):
        rows = [
            {"question": one.question, "subject": "s", "choices": list(one.choices), "answer": one.gold}
            for one in questions
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{split}-00000-of-00001.parquet")


def mmlu_original(folder: Path) -> None:
    for split, questions in (("test", QUESTIONS), ("dev", QUESTIONS[:2])):
        (folder / split).mkdir()
        with open(folder / split / f"numbers_{split}.csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([one.question, *one.choices, "ABCD"[one.gold]] for one in questions)


def mmlu_with_header(folder: Path) -> None:
    for name, questions in (("a", QUESTIONS[:4]), ("b", QUESTIONS[4:])):
        with open(folder / f"{name}_test.csv", "w", encoding="utf-8", newline="") as file:
            out = csv.writer(file)
            out.writerow(["question", "choice0", "choice1", "choice2", "choice3", "answer"])
            out.writerows([one.question, *one.choices, one.gold] for one in questions)


def arc_hub(folder: Path) -> None:
    rows = [
        {
            "id": str(number),
            "question": one.question,
            "choices": {"text": list(one.choices), "label": list(one.letters)},
            "answerKey": one.letters[one.gold],
        }
        for number, one in enumerate(QUESTIONS)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "test-00000-of-00001.parquet")
    pq.write_table(pa.Table.from_pylist(rows[:1]), folder / "train-00000-of-00001.parquet")


def arc_original(folder: Path) -> None:
    lines = [
        {
            "question": {
                "stem": one.question,
                "choices": [
                    {"text": text, "label": label}
                    for text, label in zip(one.choices, one.letters, strict=True)
                ],
            },
            "answerKey": one.letters[one.gold],
        }
        for one in QUESTIONS
    ]
    for name, part in (("ARC-Easy-Test", lines), ("ARC-Easy-Train", lines[:2])):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in part), "utf-8")


@pytest.mark.parametrize(
    ("kind", "write"),
    [
        ("mmlu", mmlu_hub),
        ("mmlu", mmlu_original),
        ("mmlu", mmlu_with_header),
        ("arc", arc_hub),
        ("arc", arc_original),
    ],
)
def test_every_layout_gives_the_same_questions(
    tmp_path: Path, kind: Any, write: Callable[[Path], None]
) -> None:
    write(tmp_path)
    assert read_lettered(str(tmp_path), kind) == QUESTIONS


@pytest.mark.parametrize(
    ("kind", "line", "said"),
    [
        ("mmlu", {"question": "q", "choices": ["a"], "answer": 0}, "line 1: expected four choices"),
        ("mmlu", {"question": "q", "choices": list("abcd"), "answer": 4}, "line 1: expected four choices"),
        ("mmlu", {"question": "q"}, "line 1: not the layout"),
        (
            "arc",
            {"question": "q", "choices": {"text": ["a"], "label": ["A"]}, "answerKey": "B"},
            "answer 'B'",
        ),
    ],
)
def test_a_record_of_another_layout_is_refused_with_its_place(
    tmp_path: Path, kind: Any, line: dict[str, Any], said: str
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(line), "utf-8")
    with pytest.raises(InputError, match=said):
        read_lettered(str(tmp_path / "a.jsonl"), kind)


def test_odd_json_beside_a_question_costs_nothing_and_within_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    line = '{"note": "cut \\ud83d", "n": 1e400, "question": "%s", "choices": ["a", "b", "c", "d"], '
    line += '"answer": 2}\n'
    path.write_text(line % "q")
    assert read_lettered(str(path), "mmlu") == [Lettered("q", ("A", "B", "C", "D"), ("a", "b", "c", "d"), 2)]
    path.write_text(line % "q" + line % "cut \\ud83d")
    with pytest.raises(InputError, match=r"line 2: not the layout.*question"):
        read_lettered(str(path), "mmlu")


def test_a_letter_that_is_not_one_token_is_an_error(chat_tokenizer: Tokenizer) -> None:
    odd = Lettered("q", ("A", "Ωψ"), ("a", "b"), 0)
    with pytest.raises(TokenizerError, match=r"the letter 'Ωψ' is \d tokens"):
        chat_task("t", [odd], Encoder(chat_tokenizer), bos_id=0, max_seq_len=99)
