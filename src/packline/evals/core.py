"""CORE's bundle as tokens: every task's few-shot prompts, with the range of tokens to score.

    core.yaml           tasks: label, type, shots, delimiter, file
    eval_data/          the questions of each, JSON lines
    eval_meta_data.csv  `Eval Task`, `Random baseline`

    multiple_choice     [bos prompt, bos prompt, ...]   start = length of the common prefix, end = length
    schema              [bos prompt, bos prompt, ...]   start = end - length of the common suffix
    language_modeling   [bos prompt with]               start = length of the prompt without, its prefix

A prompt consists of shots, the question and a possible answer; a shot is the same with the right choice,
followed by an empty line. The context of a language-modeling question, and of its shots, loses white space at
both ends, and so does the whole prompt without the continuation: otherwise its last space would become part
of the first token to predict.

    order of a task     random.Random(1337).shuffle(questions)
    shots of number i   random.Random(1234 + i).sample(all numbers but i, n)

Python keeps both the same from version to version, so every harness that follows this rule samples the same
shots. A sequence that is longer than `max_seq_len` keeps its last tokens, and start and end move along. Text
is encoded a few megabytes at a time; a task's tokens are held in memory, 220 MB for the largest one.

HellaSwag as in llm.c: a context and four endings, each encoded separately.

    context ids | ids of " " + ending      start = length of the context, end = length of the sequence

Known layouts: the published JSON lines (`ctx`, `endings`, `label`) and CORE's (`query`, `choices`, `gold`).
Questions keep their order, and no bos token is added unless requested. A sequence that is longer than
`max_seq_len` keeps its last tokens.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
import numpy as np

from packline.encoders.encoder import Encoder
from packline.errors import InputError, RecipeError
from packline.evals.task import ScoredTask
from packline.ragged import Ragged
from packline.sources.records import files_of, lines_of, records_of

BUNDLE, DATA, BASELINES = "core.yaml", "eval_data", "eval_meta_data.csv"
BATCH_CHARS = 8 << 20
T = TypeVar("T")

ORDER_SEED = 1337
SHOT_SEED = 1234


TaskType = Literal["multiple_choice", "schema", "language_modeling"]
Words: TypeAlias = str | int | float
"""Some published sets have a number in place of its digits."""


class MultipleChoice(msgspec.Struct, frozen=True):
    """A question about the best continuation among choices."""

    query: Words
    choices: list[Words]
    gold: int

    def answered(self, delimiter: str = " ") -> str:
        """The question with its right answer: the text of a shot, and of the contamination check."""
        return f"{self.query}{delimiter}{self.choices[self.gold]}"


class Schema(msgspec.Struct, frozen=True):
    """A question about the context that fits a continuation."""

    context_options: list[Words]
    continuation: Words
    gold: int

    def answered(self, delimiter: str = " ") -> str:
        """The same.

        >>> Schema(["He", "She"], "left.", 1).answered()
        'She left.'
        """
        return f"{self.context_options[self.gold]}{delimiter}{self.continuation}"


class Continuation(msgspec.Struct, frozen=True):
    """A question about the exact continuation."""

    context: Words
    continuation: Words

    def answered(self, delimiter: str = " ") -> str:
        """The same."""
        return f"{str(self.context).strip()}{delimiter}{self.continuation}"


Question: TypeAlias = MultipleChoice | Schema | Continuation
KINDS: dict[TaskType, type[Question]] = {
    "multiple_choice": MultipleChoice,
    "schema": Schema,
    "language_modeling": Continuation,
}


class CoreEntry(msgspec.Struct, frozen=True):
    """A task as listed in core.yaml."""

    label: str
    icl_task_type: TaskType
    num_fewshot: list[int]
    dataset_uri: str
    continuation_delimiter: str = " "


class _Bundle(msgspec.Struct, frozen=True):
    icl_tasks: list[CoreEntry]


def read_bundle(folder: str | Path, labels: Sequence[str] = ()) -> list[CoreEntry]:
    """Read the tasks of a bundle, in its order; only those with `labels`, if given."""
    import yaml  # type: ignore[import-untyped]

    path = Path(folder) / BUNDLE
    try:
        tasks = msgspec.convert(yaml.safe_load(path.read_text("utf-8")), _Bundle).icl_tasks
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}", hint=f"a bundle of CORE is a folder with {BUNDLE}"
        ) from error
    except (yaml.YAMLError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no list of CORE's tasks: {error}") from error
    if unknown := set(labels) - {task.label for task in tasks}:
        known = ", ".join(task.label for task in tasks)
        raise RecipeError(f"{path} has no task {sorted(unknown)[0]!r}: expected one of {known}")
    tasks = [task for task in tasks if not labels or task.label in labels]
    for task in tasks:
        if not task.num_fewshot:
            raise InputError(f"{path}: task {task.label} has no num_fewshot")
        if not (file := Path(folder) / DATA / task.dataset_uri).is_file():
            raise InputError(f"task {task.label}: no file {file}", hint="choose tasks with --task")
    return tasks


def read_baselines(folder: str | Path) -> dict[str, float]:
    """Accuracy of guessing in each task, in percent."""
    path = Path(folder) / BASELINES
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return {row["Eval Task"]: float(row["Random baseline"]) for row in csv.DictReader(file)}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise InputError(
            f"{path}: expected columns `Eval Task` and `Random baseline`, a number: {error!r}"
        ) from error


def read_questions(path: str | Path, task_type: TaskType) -> list[Question]:
    """Read the questions of a task, in the order of their file."""
    questions: list[Question] = []
    for number, line in lines_of(str(path)):
        try:
            question: Question = msgspec.json.decode(line, type=KINDS[task_type])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path}, line {number}: no {task_type} question: {error}") from error
        options = getattr(question, "choices", None) or getattr(question, "context_options", None)
        if options is not None and not 0 <= getattr(question, "gold", 0) < len(options):
            raise InputError(f"{path}, line {number}: gold is not the place of one of {len(options)} options")
        questions.append(question)
    if not questions:
        raise InputError(f"{path} has no questions")
    return questions


def core_task(
    entry: CoreEntry,
    questions: Sequence[Question],
    encoder: Encoder,
    *,
    bos_id: int,
    max_seq_len: int,
    random_baseline: float,
) -> ScoredTask:
    """Convert a task to arrays."""
    ordered = shuffle(questions)
    shots = entry.num_fewshot[0]
    if not 0 <= shots < len(ordered):
        raise InputError(f"task {entry.label}: {shots} shots of {len(ordered)} questions")
    sequences = (
        (number, place, ids, start)
        for number, prompts in _encoded(entry, ordered, shots, encoder)
        for place, (ids, start) in enumerate(_scored(prompts, entry, number))
    )
    arrays = _cut(entry.label, ordered, sequences, bos_id, max_seq_len, encoder.dtype)
    return ScoredTask(entry.label, entry.icl_task_type, random_baseline, *arrays)


def _cut(
    label: str,
    questions: Sequence[Question],
    sequences: Iterable[tuple[int, int, np.ndarray, int]],
    bos_id: int | None,
    max_seq_len: int,
    dtype: np.dtype,
) -> tuple[Ragged, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """Begin sequences with a bos token, and cut them on the left: the arrays of a `ScoredTask`.

    Each is the number of its question, its place in it, its ids, and the first of them to score.
    """
    begin = [] if bos_id is None else [bos_id]
    kept: list[np.ndarray] = []
    bounds: list[tuple[int, int, int, int]] = []
    truncated = 0
    for number, place, ids, start in sequences:
        whole = np.concatenate([begin, ids])
        cut = max(len(whole) - max_seq_len, 0)
        truncated += bool(cut)
        first = start + len(begin) - cut
        if first < 0:
            raise InputError(
                f"task {label}, question {number}: {len(ids) - start:,} tokens are scored, which do not fit "
                f"into {max_seq_len:,}",
                hint="raise --max-seq-len",
            )
        kept.append(whole[cut:])
        bounds.append((first, len(whole) - cut, number, place))
    gold = np.array([getattr(one, "gold", -1) for one in questions], np.int32)
    first_of, end_of, question_of, place_of = np.array(bounds, np.int32).T
    return Ragged.of(kept, dtype), first_of, end_of, question_of, place_of, gold, truncated


def _encoded(
    entry: CoreEntry, ordered: list[Question], shots: int, encoder: Encoder
) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Number of each question and the ids of its prompts; encodes a few megabytes of text at a time."""
    prompts: list[list[str]] = []
    done = size = 0
    for number, question in enumerate(ordered):
        before = [ordered[shot] for shot in draw_shots(number, len(ordered), shots)]
        prompts.append(prompts_of(question, before, entry.continuation_delimiter))
        size += sum(map(len, prompts[-1]))
        if size < BATCH_CHARS and number + 1 < len(ordered):
            continue
        ids = encoder.encode([text for texts in prompts for text in texts])
        each = (ids[place] for place in range(len(ids)))
        yield from enumerate([list(islice(each, len(texts))) for texts in prompts], done)
        prompts, done, size = [], number + 1, 0


def _scored(prompts: list[np.ndarray], entry: CoreEntry, number: int) -> list[tuple[np.ndarray, int]]:
    """Sequences of a question and the start of their scored tokens, without the bos token."""
    if entry.icl_task_type == "multiple_choice":
        common = common_length(prompts)
        return [(ids, common) for ids in prompts]
    if entry.icl_task_type == "schema":
        common = common_length([ids[::-1] for ids in prompts])
        # If all are the same, so is their beginning.
        common += all(len(ids) == common for ids in prompts)
        return [(ids, len(ids) - common) for ids in prompts]
    without, whole = prompts
    if not len(without) < len(whole) or common_length(prompts) < len(without):
        raise InputError(
            f"task {entry.label}, question {number}: the ids of the prompt do not begin those of the prompt "
            "with its continuation",
            hint="this tokenizer joins the two; leave the task out by naming the others with --task",
        )
    return [(whole, len(without))]


def common_length(sequences: Sequence[np.ndarray]) -> int:
    """Length of the common prefix of all sequences.

    >>> common_length([np.array([1, 2, 3]), np.array([1, 2, 4, 5])])
    2
    """
    shortest = min(map(len, sequences))
    first = sequences[0][:shortest]
    differs = np.zeros(shortest, np.bool_)
    for other in sequences[1:]:
        differs |= first != other[:shortest]
    return int(differs.argmax()) if differs.any() else shortest


def prompts_of(question: Question, shots: Sequence[Question], delimiter: str) -> list[str]:
    """Prompts of one question.

    >>> shot = MultipleChoice("Grass?", ["green", "red"], 0)
    >>> prompts_of(MultipleChoice("Sky?", ["red", "blue"], 1), [shot], " A: ")
    ['Grass? A: green\\n\\nSky? A: red', 'Grass? A: green\\n\\nSky? A: blue']
    >>> prompts_of(Continuation("One, two, ", "three"), [], " ")
    ['One, two,', 'One, two, three']
    """
    before = "".join(f"{shot.answered(delimiter)}\n\n" for shot in shots)
    if isinstance(question, MultipleChoice):
        return [f"{before}{question.query}{delimiter}{choice}" for choice in question.choices]
    if isinstance(question, Schema):
        after = f"{delimiter}{question.continuation}"
        return [f"{before}{context}{after}" for context in question.context_options]
    without = f"{before}{str(question.context).strip()}{delimiter}"
    return [without.strip(), f"{without}{question.continuation}"]


def shuffle(questions: Sequence[T]) -> list[T]:
    """Shuffle the questions of a task into the order in which they are numbered.

    >>> shuffle("abcde")
    ['b', 'a', 'd', 'c', 'e']
    """
    ordered = list(questions)
    random.Random(ORDER_SEED).shuffle(ordered)
    return ordered


def draw_shots(number: int, questions: int, shots: int) -> list[int]:
    """Numbers of the questions to put before question `number`, in their order.

    >>> draw_shots(2, 5, 3)
    [4, 3, 1]
    """
    if not shots:
        return []
    places = random.Random(SHOT_SEED + number).sample(range(questions - 1), shots)
    return [place + (place >= number) for place in places]


LABEL = "hellaswag"


class HellaSwag(msgspec.Struct):
    """A question as it is published."""

    ctx: str
    endings: list[str]
    label: int | str
    """A number in the original, its digit on the hub."""

    def answered(self, delimiter: str = " ") -> str:
        """The question with its right ending."""
        return f"{self.ctx}{delimiter}{self.endings[int(self.label)]}"


def read_hellaswag(path: str) -> list[MultipleChoice]:
    """Read the questions of a file."""
    questions = []
    for file in files_of(path):
        for where, record in records_of(file):
            questions.append(_question(record, where))
    if not questions:
        raise InputError(f"{path} has no questions")
    return questions


def _question(record: Any, where: str) -> MultipleChoice:
    try:
        if isinstance(record, dict) and "endings" in record:
            one = msgspec.convert(record, HellaSwag)
            gold = int(one.label) if str(one.label).isdecimal() else -1
            question = MultipleChoice(one.ctx, list(one.endings), gold)
        else:
            question = msgspec.convert(record, MultipleChoice)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: no question of HellaSwag: {error}") from error
    if not 0 <= question.gold < len(question.choices):
        raise InputError(
            f"{where}: the right ending is not among {len(question.choices)}",
            hint="the published test split keeps its answers back; take the validation split",
        )
    return question


def hellaswag_task(
    questions: list[MultipleChoice], encoder: Encoder, *, bos_id: int | None, max_seq_len: int
) -> ScoredTask:
    """Convert the questions to arrays."""
    texts = encoder.encode(
        [text for one in questions for text in (str(one.query), *(f" {end}" for end in one.choices))]
    )
    each = (texts[place] for place in range(len(texts)))
    sequences = (
        (number, place, np.concatenate([context, next(each)]), len(context))
        for number, question in enumerate(questions)
        for context in [next(each)]
        for place in range(len(question.choices))
    )
    arrays = _cut(LABEL, questions, sequences, bos_id, max_seq_len, encoder.dtype)
    baseline = 100 / max(len(question.choices) for question in questions)
    return ScoredTask(LABEL, "multiple_choice", baseline, *arrays)
