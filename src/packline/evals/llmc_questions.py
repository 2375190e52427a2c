"""Question file of llm.c, read by its HellaSwag evaluation.

    0     int32   20240522
    4     int32   1
    8     int32   questions
    12    int32   bytes of the longest question
    1024  uint16  for each question: 65535, its bytes, its number, gold, 4, then the number of tokens of the
                  context and these tokens, then the same for each of the four endings

Ids are below 65,535, a question has fewer than 65,536 bytes, a file fewer than 65,536 questions, and each
question four sequences with one context. Other tasks are refused.
"""

from __future__ import annotations

import numpy as np

from packline.errors import RecipeError
from packline.evals.task import ScoredTask

MAGIC, VERSION, HEADER_BYTES = 20240522, 1, 1024
MARK = 65_535
ENDINGS = 4


def llmc_questions(task: ScoredTask) -> bytes:
    """Encode a task as the bytes of a file.

    Raises:
        RecipeError: the task does not fit the format; with the reason.
    """

    def refuse(reason: str) -> RecipeError:
        return RecipeError(
            f"task {task.label} does not fit into llm.c's file: {reason}",
            hint="choose another --format, or other tasks",
        )

    if task.task_type != "multiple_choice" or set(task.sequences_of_question.tolist()) != {ENDINGS}:
        raise refuse(f"expected {ENDINGS} choices a question")
    if task.questions >= MARK + 1:
        raise refuse(f"{task.questions:,} questions")
    if len(task.sequences.tokens) and int(task.sequences.tokens.max()) >= MARK:
        raise refuse(f"ids of {MARK:,} and more")
    parts: list[np.ndarray] = []
    longest = 0
    for number in range(task.questions):
        places = range(number * ENDINGS, (number + 1) * ENDINGS)
        starts = [int(task.start[place]) for place in places]
        context = task.sequences[places[0]][: starts[0]]
        if any(
            start != starts[0] or not np.array_equal(task.sequences[place][:start], context)
            for place, start in zip(places, starts, strict=True)
        ):
            raise refuse(f"question {number} has no common context, as it was cut")
        endings = [task.sequences[place][starts[0] : task.end[place]] for place in places]
        size = 2 * (6 + len(context) + sum(1 + len(one) for one in endings))
        if size > MARK:
            raise refuse(f"question {number} takes {size:,} bytes")
        longest = max(longest, size)
        parts += [np.array([MARK, size, number, task.gold[number], ENDINGS, len(context)]), context]
        for one in endings:
            parts += [np.array([len(one)]), one]
    header = np.zeros(HEADER_BYTES // 4, "<i4")
    header[:4] = MAGIC, VERSION, task.questions, longest
    return header.tobytes() + np.concatenate(parts).astype("<u2").tobytes()
