"""Make evaluation sets: from files and a tokenizer to a folder, one task at a time.

    make_core        a bundle of CORE      ──┐
    make_chat        MMLU, ARC             ──┼──> folder of tasks, config.json
    make_hellaswag   HellaSwag             ──┘

Only one task is in memory at a time. Tasks that do not fit the chosen format are left out and reported. The
texts of all questions are written next to the tasks, for `packline verify --against`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from packline.chat.tasks import Kind, read_lettered
from packline.encoders.encoder import Encoder
from packline.encoders.special_tokens import begin_of_sequence
from packline.encoders.tokenizer import load_tokenizer
from packline.errors import RecipeError
from packline.evals.chat_evals import chat_task, find_ask
from packline.evals.core import (
    DATA,
    core_task,
    hellaswag_task,
    read_baselines,
    read_bundle,
    read_hellaswag,
    read_questions,
)
from packline.evals.evaluation_texts import texts_of
from packline.evals.task import (
    EvalFormat,
    EvalsWriter,
    EvaluationText,
    Task,
    text_encoder,
)

CHAT: dict[str, Kind] = {"MMLU": "mmlu", "ARC-Easy": "arc", "ARC-Challenge": "arc"}
"""Chat tasks by their labels."""
MAX_SEQ_LEN = 2048


class TaskReport(msgspec.Struct, frozen=True):
    """Result of one task."""

    label: str
    task_type: str
    questions: int
    sequences: int
    tokens: int
    truncated: int
    """Sequences that lost tokens on the left."""
    skipped: int
    """Questions left out because they are too long."""
    unscored: int
    """Sequences without a token to score, because of the data."""
    file: str
    """Empty if the task did not fit the format."""
    reason: str = ""
    """Reason why the task did not fit."""


OnTask = Callable[[TaskReport], None]
Made: TypeAlias = tuple[Task, list[EvaluationText]]
"""A task, and its questions with their right answers, in the order of their file."""


class EvalsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings common to all kinds."""

    tokenizer: str
    out: str
    encoding: str | None = None
    bos: str | int | None = None
    """Token that begins every sequence; None for the tokenizer's own, or the chat template's beginning."""
    chat_template: str | None = None
    """Text of a chat template to use for chat tasks, regardless of the tokenizer."""
    max_seq_len: int = MAX_SEQ_LEN
    format: EvalFormat = "npz"
    force: bool = False


def make_core(
    bundle: str, settings: EvalsSettings, *, labels: tuple[str, ...] = (), on_task: OnTask | None = None
) -> list[TaskReport]:
    """Write the tasks of a bundle of CORE."""
    entries, baselines = read_bundle(bundle, labels), read_baselines(bundle)
    without = [entry.label for entry in entries if entry.label not in baselines]
    if without:
        raise RecipeError(
            f"{bundle} has no random baseline for {', '.join(without)}", hint="choose tasks with --task"
        )
    encoder = _encoder(settings)
    bos_id = begin_of_sequence(encoder.tokenizer, settings.bos)

    def tasks() -> Iterator[Made]:
        files = set()
        for entry in entries:
            questions = read_questions(Path(bundle) / DATA / entry.dataset_uri, entry.icl_task_type)
            task = core_task(
                entry,
                questions,
                encoder,
                bos_id=bos_id,
                max_seq_len=settings.max_seq_len,
                random_baseline=baselines[entry.label],
            )
            again = entry.dataset_uri in files  # the same questions with other shots
            files.add(entry.dataset_uri)
            yield task, [] if again else texts_of(entry.label, questions, entry.continuation_delimiter)

    return _write(tasks(), settings, bos_id, on_task)


def make_chat(
    paths: Mapping[str, str], settings: EvalsSettings, *, on_task: OnTask | None = None
) -> list[TaskReport]:
    """Write MMLU and ARC as chat."""
    if not paths:
        raise RecipeError("no questions were named", hint="give --mmlu, --arc-easy or --arc-challenge")
    encoder = _encoder(settings)
    tokenizer = encoder.tokenizer
    ask, nanochat = find_ask(tokenizer, settings.chat_template)
    begin = bos_id = None
    if nanochat or settings.bos is not None:
        begin = bos_id = begin_of_sequence(tokenizer, settings.bos)
    elif (first := ask("?")[0]).control and first.text == tokenizer.bos_token:
        bos_id = tokenizer.special_tokens[first.text]

    def tasks() -> Iterator[Made]:
        for label, kind in CHAT.items():
            if label not in paths:
                continue
            questions = read_lettered(paths[label], kind)
            longest = settings.max_seq_len
            task = chat_task(label, questions, encoder, bos_id=begin, max_seq_len=longest, ask=ask)
            yield task, texts_of(label, questions)

    return _write(tasks(), settings, bos_id, on_task)


def make_hellaswag(path: str, settings: EvalsSettings, *, on_task: OnTask | None = None) -> list[TaskReport]:
    """Write HellaSwag in llm.c's form: no bos token unless `settings.bos` names one."""
    questions = read_hellaswag(path)
    encoder = _encoder(settings)
    bos_id = None if settings.bos is None else begin_of_sequence(encoder.tokenizer, settings.bos)
    task = hellaswag_task(questions, encoder, bos_id=bos_id, max_seq_len=settings.max_seq_len)
    return _write(iter([(task, texts_of(task.label, questions))]), settings, bos_id, on_task)


def _encoder(settings: EvalsSettings) -> Encoder:
    if settings.max_seq_len < 2:
        raise RecipeError(f"max_seq_len is {settings.max_seq_len}: expected 2 or more")
    return text_encoder(load_tokenizer(settings.tokenizer, settings.encoding))


def _write(
    tasks: Iterator[Made], settings: EvalsSettings, bos_id: int | None, on_task: OnTask | None
) -> list[TaskReport]:
    writer = EvalsWriter(
        settings.out,
        format=settings.format,
        max_seq_len=settings.max_seq_len,
        bos_id=bos_id,
        force=settings.force,
    )
    reports = []
    for task, texts in tasks:
        file = reason = ""
        try:
            file = writer.write(task, texts).name
        except RecipeError as error:
            reason = error.message
        reports.append(_report(task, file, reason))
        if on_task is not None:
            on_task(reports[-1])
    if not any(report.file for report in reports):
        raise RecipeError(reports[0].reason, hint="choose another --format")
    writer.finish()
    return reports


def _report(task: Task, file: str, reason: str) -> TaskReport:
    own = ("label", "task_type", "questions", "truncated", "skipped", "unscored")
    facts: dict[str, Any] = {name: getattr(task, name) for name in own}
    facts |= {"sequences": len(task.sequences), "tokens": len(task.sequences.tokens)}
    return TaskReport(**facts, file=file, reason=reason)
