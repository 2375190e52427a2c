"""CORE a second way: straight from its rules, in plain Python, a question at a time, with lists of ids.

Nothing of packline is imported. `encode` is given, and is the reference tokenizer's.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

Encode = Callable[[str], list[int]]


def load(bundle: Path, task: dict[str, Any], count: int | None = None) -> list[dict[str, Any]]:
    with open(bundle / "eval_data" / task["dataset_uri"], encoding="utf-8") as file:
        data = [json.loads(line) for line in file if line.strip()][:count]
    random.Random(1337).shuffle(data)
    return data


def baselines(bundle: Path) -> dict[str, float]:
    with open(bundle / "eval_meta_data.csv", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    name, value = header.index("Eval Task"), header.index("Random baseline")
    return {row[name]: float(row[value]) for row in rows}


def expected(
    data: list[dict[str, Any]],
    index: int,
    task: dict[str, Any],
    encode: Encode,
    bos: int,
    longest: int,
) -> list[tuple[list[int], int, int]]:
    """Tokens, start and end of each sequence of one question."""
    kind, count = task["icl_task_type"], task["num_fewshot"][0]
    between = task.get("continuation_delimiter", " ")
    others = [number for number in range(len(data)) if number != index]
    shots = [data[n] for n in random.Random(1234 + index).sample(others, count)] if count else []

    prompt = ""
    for shot in shots:
        if kind == "multiple_choice":
            prompt += shot["query"] + between + str(shot["choices"][shot["gold"]])
        elif kind == "schema":
            prompt += shot["context_options"][shot["gold"]] + between + shot["continuation"]
        else:
            prompt += shot["context"].strip() + between + shot["continuation"]
        prompt += "\n\n"

    item = data[index]
    if kind == "multiple_choice":
        texts = [prompt + item["query"] + between + str(choice) for choice in item["choices"]]
    elif kind == "schema":
        texts = [prompt + context + between + item["continuation"] for context in item["context_options"]]
    else:
        bare = prompt + item["context"].strip() + between
        texts = [bare.strip(), bare + item["continuation"]]
    ids = [[bos, *encode(text)] for text in texts]

    if kind == "multiple_choice":
        same = 0
        while all(same < len(one) and one[same] == ids[0][same] for one in ids):
            same += 1
        found = [(one, same, len(one)) for one in ids]
    elif kind == "schema":
        same = 0
        while all(same < len(one) and one[-1 - same] == ids[0][-1 - same] for one in ids):
            same += 1
        found = [(one, len(one) - same, len(one)) for one in ids]
    else:
        without, whole = ids
        assert whole[: len(without)] == without and len(without) < len(whole)
        found = [(whole, len(without), len(whole))]

    cut = []
    for one, start, end in found:
        over = max(len(one) - longest, 0)
        assert start - over >= 0
        cut.append((one[over:], start - over, end - over))
    return cut
