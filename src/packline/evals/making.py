"""Make evaluation sets: from files and a tokenizer to a folder, one task at a time.

    make_core        a bundle of CORE      ──┐
    make_chat        MMLU, ARC             ──┼──> folder of tasks, config.json
    make_hellaswag   HellaSwag             ──┘

Only one task is in memory at a time. Tasks that do not fit the chosen format are left out and reported. The
texts of all questions are written next to the tasks, for `packline verify --against`.

MMLU and ARC are asked as chat: after the question, the model's next token should be the right letter.

    <|bos|> <|user_start|> Multiple Choice question: ... <|user_end|> <|assistant_start|>
                                                                      ^ answer_pos

One sequence per question, in nanochat's tokens if the tokenizer has them and no template is named, else by
the tokenizer's chat template. Special-token strings in a question are text. The letters' tokens are compared
at `answer_pos`, its last position. A letter that is not a single token is an error, because it could not be
compared. Questions of more than `max_seq_len` tokens are left out and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from packline.chat.chat_template import ChatTemplate, strips_of
from packline.chat.conversations import Conversation, Message
from packline.chat.named_templates import TEMPLATES, resolve_template
from packline.chat.pieces import TURNS, Piece
from packline.chat.tasks import Kind, Lettered, read_lettered, render, shuffled
from packline.encoders.encoder import Encoder
from packline.encoders.special_tokens import begin_of_sequence
from packline.encoders.tokenizer import Tokenizer, load_tokenizer, read_chat_template
from packline.errors import RecipeError, TokenizerError
from packline.evals.core import (
    DATA,
    core_task,
    hellaswag_task,
    read_baselines,
    read_bundle,
    read_hellaswag,
    read_questions,
)
from packline.evals.task import (
    EvalFormat,
    EvalsWriter,
    EvaluationText,
    LetterTask,
    Task,
    text_encoder,
    texts_of,
)
from packline.ragged import Ragged
from packline.sources.batch import RecordProblem

CHAT: dict[str, Kind] = {"MMLU": "mmlu", "ARC-Easy": "arc", "ARC-Challenge": "arc"}
"""Chat tasks by their labels."""
MAX_SEQ_LEN = 2048
OF_TASK = "label", "task_type", "questions", "truncated", "skipped", "unscored"
"""Fields of the report that a task has under the same names."""


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
        facts: dict[str, Any] = {name: getattr(task, name) for name in OF_TASK}
        facts |= {"sequences": len(task.sequences), "tokens": len(task.sequences.tokens)}
        reports.append(TaskReport(**facts, file=file, reason=reason))
        if on_task is not None:
            on_task(reports[-1])
    if not any(report.file for report in reports):
        raise RecipeError(reports[0].reason, hint="choose another --format")
    writer.finish()
    return reports


USER_START, USER_END, ASSISTANT_START, _ = TURNS
Ask: TypeAlias = Callable[[str], list[Piece]]
"""Function from a question to its pieces."""


def ask_nanochat(question: str) -> list[Piece]:
    """Pieces of a question in nanochat's tokens.

    >>> [piece.text for piece in ask_nanochat("Sky?")]
    ['<|user_start|>', 'Sky?', '<|user_end|>', '<|assistant_start|>']
    """
    begin, *end = (Piece(token, control=True) for token in (USER_START, USER_END, ASSISTANT_START))
    return [begin, Piece(question), *end]


def chat_task(
    label: str,
    questions: Sequence[Lettered],
    encoder: Encoder,
    *,
    bos_id: int | None,
    max_seq_len: int,
    ask: Ask = ask_nanochat,
) -> LetterTask:
    """Convert a set of questions, in the order of their files, to arrays; too long ones are left out."""
    ordered = shuffled(list(questions))
    letters = {letter: 0 for question in ordered for letter in question.letters}
    for letter in letters:
        ids = encoder.reference.encode(letter)
        if len(ids) != 1:
            raise TokenizerError(
                f"task {label}: the letter {letter!r} is {len(ids)} tokens of {encoder.tokenizer.name}, "
                "expected 1",
                hint="answers are compared at one place, so each letter has to be one token",
            )
        letters[letter] = ids[0]
    framed = _encoded([ask(render(question)) for question in ordered], encoder, bos_id)
    kept = [number for number, ids in enumerate(framed) if len(ids) <= max_seq_len]
    included = [ordered[number] for number in kept]
    return LetterTask(
        label,
        guessing(ordered, included),
        Ragged.of([framed[number] for number in kept], encoder.dtype),
        Ragged.of(
            [np.array([letters[one] for one in question.letters]) for question in included], np.dtype("<i4")
        ),
        np.array([question.gold for question in included], np.int32),
        np.array(kept, np.int32),
        len(framed) - len(kept),
    )


def _encoded(included: list[list[Piece]], encoder: Encoder, bos_id: int | None) -> list[np.ndarray]:
    """Ids of each question's pieces: control tokens by their ids, text encoded as text."""
    ids = encoder.tokenizer.special_tokens
    texts = encoder.encode([piece.text for pieces in included for piece in pieces if not piece.control])
    each = (texts[place] for place in range(len(texts)))
    found = []
    for pieces in included:
        parts = [np.array([ids[piece.text]]) if piece.control else next(each) for piece in pieces]
        whole = np.concatenate(parts)
        found.append(whole if bos_id is None or whole[0] == bos_id else np.concatenate([[bos_id], whole]))
    return found


def guessing(ordered: Sequence[Lettered], included: Sequence[Lettered]) -> float:
    """Accuracy of guessing: the mean of 1 / number of choices, over the questions included.

    >>> two, four = (Lettered("?", tuple("ABCD"[:n]), ("x",) * n, 0) for n in (2, 4))
    >>> guessing([two, four], [two, four]), guessing([four], [])
    (0.375, 0.25)
    """
    shares = [1 / len(question.letters) for question in included or ordered]
    return shares[0] if len(set(shares)) == 1 else sum(shares) / len(shares)


def find_ask(tokenizer: Tokenizer, template: str | None = None) -> tuple[Ask, bool]:
    """Find how to prompt with this tokenizer's questions; True if in nanochat's format."""
    missing = [
        token for token in (USER_START, USER_END, ASSISTANT_START) if token not in tokenizer.special_tokens
    ]
    if template is None and not missing:
        return ask_nanochat, True
    if template is not None:
        template = resolve_template(template, tokenizer.special_tokens)
    else:
        template = read_chat_template(tokenizer.name)
    if template is None:
        raise TokenizerError(
            f"{tokenizer.name} has no special token {missing[0]} and no chat template: chat questions "
            "need one of them",
            hint=f"choose one with --chat-template: {', '.join(TEMPLATES)}, or a file; or train a tokenizer "
            "with --specials nanochat",
        )
    ask = _ask_by(template, tokenizer)
    ask("What is one and one?")
    return ask, False


def _ask_by(template: str, tokenizer: Tokenizer) -> Ask:
    variables = {"bos_token": tokenizer.bos_token or "", "eos_token": tokenizer.eos_token or ""}
    chat = ChatTemplate(template, strips_of(tokenizer.json), variables, masked=False)

    def ask(question: str) -> list[Piece]:
        try:
            pieces = chat.prompt(Conversation((Message("user", question),)))
        except RecordProblem as error:
            raise RecipeError(f"the chat template refuses a question: {error.detail}") from error
        if not pieces:
            raise RecipeError("the chat template writes nothing for a question")
        return pieces

    return ask
