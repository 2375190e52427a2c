"""MMLU and ARC as chat: after the question, the model's next token should be the right letter.

    <|bos|> <|user_start|> Multiple Choice question: ... <|user_end|> <|assistant_start|>
                                                                      ^ answer_pos

One sequence per question, in nanochat's tokens if the tokenizer has them and no template is named, else by
the tokenizer's chat template. Special-token strings in a question are text. The letters' tokens are compared
at `answer_pos`, its last position. A letter that is not a single token is an error, because it could not be
compared. Questions of more than `max_seq_len` tokens are left out and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from packline.chat.chat_template import ChatTemplate, strips_of
from packline.chat.conversations import Conversation, Message
from packline.chat.named_templates import TEMPLATES, resolve_template
from packline.chat.pieces import TURNS, Piece
from packline.chat.tasks import Lettered, render, shuffled
from packline.encoders.encoder import Encoder
from packline.encoders.tokenizer import Tokenizer, read_chat_template
from packline.errors import RecipeError, TokenizerError
from packline.evals.task import LetterTask
from packline.ragged import Ragged
from packline.sources.batch import RecordProblem

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
