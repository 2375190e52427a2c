"""A task as arrays: what a model reads, and what of it is scored.

    ScoredTask    several sequences a question; of each, tokens start to end are scored (CORE, HellaSwag)
    LetterTask    one sequence a question; the letters' tokens are compared at its last place (chat)

`S` sequences, `Q` questions. To be written or scored, not to be changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packline.ragged import Ragged


@dataclass(frozen=True, slots=True)
class ScoredTask:
    """Sequences of which a stretch is scored."""

    label: str
    task_type: str
    random_baseline: float
    """Accuracy of guessing, in percent, as the bundle's table has it."""
    sequences: Ragged
    """Tokens of each, uint16 or int32 `[T]`."""
    start: np.ndarray
    """int32 `[S]`: the first token that is scored."""
    end: np.ndarray
    """int32 `[S]`: behind the last one."""
    question: np.ndarray
    """int32 `[S]`: of which question, from 0."""
    place: np.ndarray
    """int32 `[S]`: which of the question's sequences, from 0."""
    gold: np.ndarray
    """int32 `[Q]`: the place of the right one; -1 where the sequence itself is right."""
    truncated: int = 0
    """Sequences that lost tokens on the left."""

    @property
    def questions(self) -> int:
        """How many questions."""
        return len(self.gold)

    @property
    def sequences_of_question(self) -> np.ndarray:
        """How many sequences each question has, int64 `[Q]`."""
        return np.bincount(self.question, minlength=self.questions)

    @property
    def unscored(self) -> int:
        """Sequences without a token to score: a choice that is how another one begins."""
        return int((self.start >= self.end).sum())


@dataclass(frozen=True, slots=True)
class LetterTask:
    """Sequences after which the next token is a letter."""

    label: str
    random_baseline: float
    """Accuracy of guessing, from 0 to 1."""
    sequences: Ragged
    letters: Ragged
    """The token of each letter that may be the answer, by sequence, int32."""
    gold: np.ndarray
    """int32 `[S]`: the place of the right letter."""
    question: np.ndarray
    """int32 `[S]`: of which question; questions that are too long have none."""
    skipped: int = 0
    """Questions that are too long."""

    @property
    def answer_pos(self) -> np.ndarray:
        """int32 `[S]`: the place whose next token is the answer, the last one."""
        return (self.sequences.lengths - 1).astype(np.int32)
