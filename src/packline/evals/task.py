"""A task as arrays: the sequences for the model, and the tokens to score.

    ScoredTask    several sequences per question; tokens start to end of each are scored (CORE, HellaSwag)
    LetterTask    one sequence per question; the letters' tokens are compared at its last position (chat)

`S` sequences, `Q` questions. Treat the arrays as read-only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packline.encoders.encoder import Encoder
from packline.encoders.tokenizer import Tokenizer
from packline.ragged import Ragged

CACHE_BYTES = 256 << 20
"""Bytes of text after which engines are loaded anew: few-shot prompts of CORE are a gigabyte."""


def text_encoder(tokenizer: Tokenizer) -> Encoder:
    """Build the encoder of evaluation texts: special tokens in them are text."""
    return Encoder(tokenizer, cache_bytes=CACHE_BYTES)


@dataclass(frozen=True, slots=True)
class ScoredTask:
    """Sequences of which a range of tokens is scored."""

    label: str
    task_type: str
    random_baseline: float
    """Accuracy of guessing, in percent, from the bundle's table."""
    sequences: Ragged
    """Tokens of each sequence, uint16 or int32 `[T]`."""
    start: np.ndarray
    """int32 `[S]`: first token to score."""
    end: np.ndarray
    """int32 `[S]`: end of the tokens to score (exclusive)."""
    question: np.ndarray
    """int32 `[S]`: number of the question, from 0."""
    place: np.ndarray
    """int32 `[S]`: number of the sequence within its question, from 0."""
    gold: np.ndarray
    """int32 `[Q]`: number of the right sequence; -1 if the sequence itself is right."""
    truncated: int = 0
    """Sequences that lost tokens on the left."""

    @property
    def questions(self) -> int:
        """Number of questions."""
        return len(self.gold)

    @property
    def sequences_of_question(self) -> np.ndarray:
        """Number of sequences of each question, int64 `[Q]`."""
        return np.bincount(self.question, minlength=self.questions)

    @property
    def unscored(self) -> int:
        """Sequences without a token to score: a choice that is a prefix of another one."""
        return int((self.start >= self.end).sum())


@dataclass(frozen=True, slots=True)
class LetterTask:
    """Sequences after which the next token is a letter."""

    label: str
    random_baseline: float
    """Accuracy of guessing, from 0 to 1."""
    sequences: Ragged
    letters: Ragged
    """Tokens of the letters that may be the answer, by sequence, int32."""
    gold: np.ndarray
    """int32 `[S]`: number of the right letter."""
    question: np.ndarray
    """int32 `[S]`: number of the question; questions that are too long are absent."""
    skipped: int = 0
    """Questions that are too long."""

    @property
    def answer_pos(self) -> np.ndarray:
        """int32 `[S]`: position whose next token is the answer, the last one."""
        return (self.sequences.lengths - 1).astype(np.int32)
