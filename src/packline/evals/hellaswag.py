"""HellaSwag as in llm.c: a context and four endings, each encoded separately.

    context ids | ids of " " + ending      start = length of the context, end = length of the sequence

Known layouts: the published JSON lines (`ctx`, `endings`, `label`) and CORE's (`query`, `choices`, `gold`).
Questions keep their order, and no bos token is added unless requested. A sequence that is longer than
`max_seq_len` keeps its last tokens.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from packline.encoders.encoder import Encoder
from packline.errors import InputError
from packline.evals.core import MultipleChoice
from packline.evals.task import ScoredTask
from packline.ragged import Ragged, offsets_of
from packline.sources.records import files_of, records_of

LABEL = "hellaswag"


class _Published(msgspec.Struct):
    ctx: str
    endings: list[str]
    label: int | str
    """A number in the original, its digit on the hub."""


def read_hellaswag(path: str) -> list[MultipleChoice]:
    """Read the questions of a file.

    Raises:
        InputError: a record of another layout, or one without its answer.
    """
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
            one = msgspec.convert(record, _Published)
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
    """Convert the questions to arrays.

    Args:
        questions: in their order.
        encoder: encoder of the tokenizer.
        bos_id: begins every sequence; None for nothing.
        max_seq_len: longer sequences lose tokens on the left.

    Raises:
        InputError: an ending of more than `max_seq_len` tokens.
    """
    texts = encoder.encode(
        [text for one in questions for text in (str(one.query), *(f" {end}" for end in one.choices))]
    )
    begin = [] if bos_id is None else [bos_id]
    kept: list[np.ndarray] = []
    bounds: list[tuple[int, int, int, int]] = []
    at = truncated = 0
    for number, question in enumerate(questions):
        context = texts[at]
        for place in range(len(question.choices)):
            ending = texts[at + 1 + place]
            whole = np.concatenate([begin, context, ending]).astype(encoder.dtype)
            cut = max(len(whole) - max_seq_len, 0)
            start = len(whole) - len(ending) - cut
            if start < 0:
                raise InputError(
                    f"hellaswag, question {number}: an ending of {len(ending):,} tokens does not fit into "
                    f"{max_seq_len:,}",
                    hint="raise --max-seq-len",
                )
            truncated += bool(cut)
            kept.append(whole[cut:])
            bounds.append((start, len(whole) - cut, number, place))
        at += 1 + len(question.choices)
    start_of, end_of, question_of, place_of = np.array(bounds, np.int32).T
    choices = {len(question.choices) for question in questions}
    return ScoredTask(
        LABEL,
        "multiple_choice",
        100 / max(choices),
        Ragged(np.concatenate(kept), offsets_of([len(one) for one in kept])),
        start_of,
        end_of,
        question_of,
        place_of,
        np.array([question.gold for question in questions], np.int32),
        truncated,
    )
