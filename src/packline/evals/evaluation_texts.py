"""Texts of evaluation sets: each question with its right answer, by set.

    a bundle of CORE (folder with core.yaml)        one set per task
    a folder that `packline evals` wrote            the sets it was made of, from its questions.jsonl
    anything else                                   one set per file, or one for all CSV files of a folder; a
                                                    file named after its split also has its folder's name

Layouts are those that `packline evals` reads; of any other record, such as GSM8K's `question` and `answer`,
all strings are used. In a folder with several splits, only the test split is read. Wrong choices are left
out, because they often occur in other questions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from packline.chat.tasks import Arc, Mmlu, OriginalArc, lettered_mmlu
from packline.errors import InputError
from packline.evals.core import BUNDLE, DATA, KINDS, HellaSwag, read_bundle, read_questions
from packline.evals.task import CONFIG, QUESTIONS, EvaluationText
from packline.sources.listing import expand
from packline.sources.records import files_of, lines_of, records_of

LAYOUTS: tuple[Any, ...] = (*KINDS.values(), HellaSwag, Mmlu, Arc, OriginalArc)
"""Layouts of records whose right answer is known."""
HEADER = ("question", "answer")
"""First and last field of a CSV header."""


SPLIT = re.compile(r"(train|test|validation|valid|val|dev)(?:-\d+-of-\d+)?", re.IGNORECASE)
"""Names of files that name their split but not their dataset."""


def read_evaluations(path: str) -> Iterator[EvaluationText]:
    """Read the texts of a file, a folder or a bundle."""
    if (Path(path) / BUNDLE).is_file():
        seen = set()
        for entry in read_bundle(path):
            if entry.dataset_uri in seen:  # the same questions with other shots
                continue
            seen.add(entry.dataset_uri)
            questions = read_questions(Path(path) / DATA / entry.dataset_uri, entry.icl_task_type)
            yield from texts_of(entry.label, questions, entry.continuation_delimiter)
        return
    if (Path(path) / QUESTIONS).is_file() and (Path(path) / CONFIG).is_file():
        yield from _read_recorded(str(Path(path) / QUESTIONS))
        return
    if _is_written(Path(path)):
        raise InputError(
            f"{path} holds ids with few-shot prompts, and no {QUESTIONS} with the questions themselves",
            hint="make it again with packline evals, or give what it was made of: the bundle, or files",
        )
    inner = sorted(
        {PurePosixPath(file.path).parent for file in expand(path) if file.path.endswith(f"/{BUNDLE}")}
    )
    if inner:
        raise InputError(
            f"{path} is not one evaluation set: {inner[0]} is a bundle of CORE",
            hint="name each set with a separate --against",
        )
    counts: dict[str, int] = {}
    for file in files_of(path):
        name = _name_of(PurePosixPath(path if file.lower().endswith(".csv") else file))
        for _, record in records_of(file):
            if isinstance(record, list) and (record[0], record[-1]) == HEADER:
                continue
            number = counts.get(name, 0)
            counts[name] = number + 1
            yield EvaluationText(name, number, record_text(record))


def _name_of(path: PurePosixPath) -> str:
    """Name of a set: its file's or folder's; both if the file is named after a split, as in `gsm8k/test`.

    >>> [_name_of(PurePosixPath(path)) for path in ("a/q.jsonl", "gsm8k/test.jsonl.gz", "test.csv")]
    ['q', 'gsm8k/test', 'test']
    """
    stem = path.name.partition(".")[0]
    split = SPLIT.fullmatch(stem)
    return f"{path.parent.name}/{split[1]}" if split and path.parent.name else stem


def texts_of(label: str, questions: Sequence[Any], delimiter: str = " ") -> list[EvaluationText]:
    """Texts of questions already read, in the form of `read_evaluations`.

    >>> from packline.evals.core import MultipleChoice
    >>> texts_of("sky", [MultipleChoice("Sky?", ["red", "blue"], 1)])
    [EvaluationText(set='sky', number=0, text='Sky? blue')]
    """
    answers = (question.answered(delimiter) for question in questions)
    return [EvaluationText(label, number, text) for number, text in enumerate(answers)]


def _read_recorded(path: str) -> Iterator[EvaluationText]:
    for number, line in lines_of(path):
        try:
            yield msgspec.json.decode(line, type=EvaluationText)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path}, line {number}: no question of packline evals: {error}") from error


def _is_written(folder: Path) -> bool:
    try:
        config = msgspec.json.decode((folder / CONFIG).read_bytes())
    except (OSError, msgspec.DecodeError):
        return False
    return isinstance(config, dict) and {"max_seq_len", "bos_id", "tasks"} <= config.keys()


def record_text(record: Any) -> str:
    """Text of a record: its question and, if the layout is known, only the right answer.

    >>> record_text({"question": "Sky?", "choices": ["red", "blue"], "answer": 1})
    'Sky? blue'
    >>> record_text({"prompt": "Sky?", "more": {"notes": ["is", 3, "blue"]}})
    'Sky? is blue'
    """
    if isinstance(record, list):
        try:
            question = lettered_mmlu(record, "")
        except InputError:
            question = None
        return question.answered() if question else " ".join(record)
    for kind in LAYOUTS:
        try:
            return msgspec.convert(record, kind).answered()
        except (msgspec.ValidationError, IndexError, ValueError):
            continue
    return " ".join(_strings(record))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)
