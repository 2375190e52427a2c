"""MMLU and ARC as chat: after the question, the model's next token should be the right letter.

    <|bos|> <|user_start|> Multiple Choice question: ... <|user_end|> <|assistant_start|>
                                                                      ^ answer_pos

One sequence per question, in nanochat's tokens or by a chat template (`asking`); the letters' tokens are
compared at `answer_pos`, its last position. A letter that is not a single token is an error, because it could
not be compared. Questions of more than `max_seq_len` tokens are left out and counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packline.chat.pieces import Piece
from packline.chat.questions import Lettered, render, shuffled
from packline.encoders.encoder import Encoder
from packline.errors import TokenizerError
from packline.evals.asking import Ask, ask_nanochat
from packline.evals.task import LetterTask
from packline.ragged import Ragged, offsets_of


def chat_task(
    label: str,
    questions: Sequence[Lettered],
    encoder: Encoder,
    *,
    bos_id: int | None,
    max_seq_len: int,
    ask: Ask = ask_nanochat,
) -> LetterTask:
    """Convert a set of questions to arrays.

    Args:
        label: name of the task.
        questions: in the order of their files; shuffled here.
        encoder: encoder of a tokenizer with the control tokens of the prompt.
        bos_id: begins every sequence, once; None for the prompt's own beginning.
        max_seq_len: questions of more tokens are left out.
        ask: function from a question to its pieces.

    Raises:
        TokenizerError: a letter that is not one token.
    """
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
    asked = [ordered[number] for number in kept]
    return LetterTask(
        label,
        guessing(ordered, asked),
        _ragged([framed[number] for number in kept], encoder.dtype),
        _ragged(
            [np.array([letters[one] for one in question.letters]) for question in asked], np.dtype("<i4")
        ),
        np.array([question.gold for question in asked], np.int32),
        np.array(kept, np.int32),
        len(framed) - len(kept),
    )


def _encoded(asked: list[list[Piece]], encoder: Encoder, bos_id: int | None) -> list[np.ndarray]:
    """Ids of each question's pieces: control tokens by their ids, text encoded as text."""
    ids = encoder.tokenizer.special_tokens
    texts = encoder.encode([piece.text for pieces in asked for piece in pieces if not piece.control])
    each = (texts[place] for place in range(len(texts)))
    found = []
    for pieces in asked:
        parts = [np.array([ids[piece.text]]) if piece.control else next(each) for piece in pieces]
        whole = np.concatenate(parts)
        found.append(whole if bos_id is None or whole[0] == bos_id else np.concatenate([[bos_id], whole]))
    return found


def guessing(ordered: Sequence[Lettered], asked: Sequence[Lettered]) -> float:
    """Accuracy of guessing: the mean of 1 / number of choices, over the questions included.

    >>> two, four = (Lettered("?", tuple("ABCD"[:n]), ("x",) * n, 0) for n in (2, 4))
    >>> guessing([two, four], [two, four]), guessing([four], [])
    (0.375, 0.25)
    """
    shares = [1 / len(question.letters) for question in asked or ordered]
    return shares[0] if len(set(shares)) == 1 else sum(shares) / len(shares)


def _ragged(arrays: list[np.ndarray], dtype: np.dtype) -> Ragged:
    tokens = np.concatenate(arrays).astype(dtype) if arrays else np.empty(0, dtype)
    return Ragged(tokens, offsets_of([len(one) for one in arrays]))
