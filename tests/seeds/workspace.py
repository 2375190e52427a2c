"""A folder in which every command of docs/coming-from.md can be run: small files under the page's names.

Hub ids of tokenizers are folders of those names, `hf://` is a folder as well. Texts are Python's own modules.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import AddedToken, Tokenizer

HUB = "hub"
FINEWEB_EDU = "datasets/HuggingFaceFW/fineweb-edu/sample/10BT"
SHUFFLED = "datasets/karpathy/fineweb-edu-100b-shuffle"


def make_workspace(folder: Path, tokenizer_json: Path, texts: Sequence[str]) -> None:
    """Write all that the page's commands read.

    Args:
        folder: an empty one.
        tokenizer_json: a byte-level BPE whose only special token is `<|endoftext|>`.
        texts: more than 100,000 tokens of it.
    """
    _tokenizers(folder, tokenizer_json)
    write_lines(folder / "sample_data/sample_training_data_small.jsonl", [{"text": t} for t in texts[:30]])
    (folder / "sample_data/lines.txt").write_text("a line\nis a document\n", "utf-8")
    write_lines(folder / "texts.jsonl", [{"text": text} for text in texts[:80]])
    (folder / "config.json").write_text(json.dumps({"vocab_size": 4096}), "utf-8")
    for name, first in (("000_00000", 0), ("001_00000", 1)):
        _parquet(folder / HUB / FINEWEB_EDU / f"{name}.parquet", texts[first::2])
    for number in range(9):
        _parquet(folder / HUB / SHUFFLED / f"shard_{number:05d}.parquet", texts[number::9])
    half = len(texts) // 2
    write_lines(folder / "corpus/short.jsonl", [{"text": text} for text in texts[:half]])
    write_lines(folder / "corpus/deep/long.jsonl", [{"text": "\n".join(texts[half:])}])
    asked = [{"question": f"What is {n} and one?", "answer": f"{n + 1}, of course."} for n in range(2000)]
    write_lines(folder / "questions.jsonl", asked)
    _bundle(folder / "eval_bundle")
    _questions(folder)
    _mixture(folder / "data")
    write_lines(folder / "conversations.jsonl", [{"messages": _messages(number)} for number in range(20)])


def write_lines(path: Path, records: Sequence[object]) -> Path:
    """Records as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


def _tokenizers(folder: Path, tokenizer_json: Path) -> None:
    plain = tokenizer_json.read_text("utf-8")
    ends = {"gpt2": "<|endoftext|>", "mistralai/Mistral-7B-Instruct-v0.2": "</s>"}
    for name, end in ends.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "tokenizer.json").write_text(plain.replace("<|endoftext|>", end), "utf-8")
    qwen = Tokenizer.from_str(plain)
    turns = ("<|im_start|>", "<|im_end|>")
    qwen.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in turns])
    place = folder / "Qwen/Qwen3-1.7B"
    place.mkdir(parents=True)
    qwen.save(str(place / "tokenizer.json"))
    (place / "tokenizer_config.json").write_text(json.dumps({"eos_token": turns[1]}), "utf-8")


def _parquet(path: Path, texts: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": list(texts), "id": [f"d{n}" for n in range(len(texts))]}), path)


def _messages(number: int) -> list[dict[str, str]]:
    said = [("user", f"What is {number} and one?"), ("assistant", f"It is {number + 1}.")]
    return [{"role": role, "content": content} for role, content in said * 2]


def _bundle(folder: Path) -> None:
    """A task of each type, as the bundle of CORE has them."""
    choice: list[dict[str, object]] = [
        {"query": f"{n} and", "choices": ["one", "two"], "gold": n % 2} for n in range(4)
    ]
    schema: list[dict[str, object]] = [
        {"context_options": [f"{n} it", f"{n} they"], "continuation": "ran.", "gold": 0} for n in range(4)
    ]
    language: list[dict[str, object]] = [
        {"context": f"After {n}:", "continuation": f"{n + 1}"} for n in range(4)
    ]
    tasks: dict[str, tuple[str, list[dict[str, object]]]] = {
        "copa": ("multiple_choice", choice),
        "wsc": ("schema", schema),
        "jeopardy": ("language_modeling", language),
    }
    lines = ["icl_tasks:"]
    for label, (kind, records) in tasks.items():
        write_lines(folder / f"eval_data/some/{label}.jsonl", records)
        lines += [
            f"- label: {label}",
            f"  dataset_uri: some/{label}.jsonl",
            "  num_fewshot: [2]",
            f"  icl_task_type: {kind}",
        ]
    (folder / "core.yaml").write_text("\n".join(lines) + "\n", "utf-8")
    rows = ["Eval Task,Task Category,Random baseline", *(f"{label},some,50" for label in tasks)]
    (folder / "eval_meta_data.csv").write_text("\n".join(rows) + "\n", "utf-8")


def _questions(folder: Path) -> None:
    rows = [
        "question,choice0,choice1,choice2,choice3,answer",
        *(f"What is {n}?,{n},{n + 1},{n + 2},{n + 3},0" for n in range(5)),
    ]
    (folder / "mmlu/test").mkdir(parents=True)
    (folder / "mmlu/test/counting_test.csv").write_text("\n".join(rows) + "\n", "utf-8")
    for name in ("easy", "challenge"):
        choices = {"text": ["one", "two", "three"], "label": ["A", "B", "C"]}
        records = [{"question": f"How many in {n}?", "choices": choices, "answerKey": "B"} for n in range(5)]
        write_lines(folder / f"arc/{name}.jsonl", records)


def _mixture(folder: Path) -> None:
    """Files of each data set of the preset."""
    talks = [{"messages": _messages(number)} for number in range(8)]
    sums = [
        {"question": f"{n} and 2?", "answer": f"<<{n}+2={n + 2}>>{n + 2}\n#### {n + 2}"} for n in range(8)
    ]
    lettered = [{"question": f"{n}?", "choices": [f"{n}", "x", "y", "z"], "answer": 0} for n in range(8)]
    for name in ("train", "test"):
        write_lines(folder / f"smoltalk/{name}.jsonl", talks)
        write_lines(folder / f"gsm8k/{name}.jsonl", sums)
    for name in ("auxiliary_train", "test"):
        write_lines(folder / f"mmlu/{name}.jsonl", lettered)
    write_lines(folder / "identity_conversations.jsonl", [_messages(number) for number in range(4)])
    words = ("".join(letters) for letters in itertools.product("abcdefg", repeat=3))
    (folder / "words.txt").write_text("\n".join(words), "utf-8")
