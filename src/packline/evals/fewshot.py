"""Few-shot examples of a question, and the order of a task's questions.

    order of a task     random.Random(1337).shuffle(questions)
    shots of number i   random.Random(1234 + i).sample(all numbers but i, n)

Python keeps both the same from version to version, so every harness that follows this rule samples the same
shots. Sampling costs microseconds: the numbers without i are a range with a gap, which is never materialized.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

ORDER_SEED = 1337
SHOT_SEED = 1234


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

    Args:
        number: from 0, after `shuffle`.
        questions: number of questions of the task.
        shots: number of shots; fewer than `questions`.

    >>> draw_shots(2, 5, 3)
    [4, 3, 1]
    """
    if not shots:
        return []
    places = random.Random(SHOT_SEED + number).sample(range(questions - 1), shots)
    return [place + (place >= number) for place in places]
