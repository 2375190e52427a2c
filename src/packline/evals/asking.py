"""Prompts for an assistant: a question as pieces of text and control tokens, up to the start of the answer.

    nanochat    <|user_start|>  question  <|user_end|>  <|assistant_start|>
    template    output of the tokenizer's chat template, with the generation prompt

Tokenizers with nanochat's tokens use the first, all others their template, unless a template is named.
Special-token strings in a question are text either way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from packline.chat.chat_template import ChatTemplate, strips_of
from packline.chat.conversations import Conversation, Message
from packline.chat.named_templates import TEMPLATES, resolve_template
from packline.chat.pieces import Piece
from packline.encoders.tokenizer import Tokenizer, read_chat_template
from packline.errors import RecipeError, TokenizerError
from packline.sources.batch import RecordProblem

USER_START, USER_END, ASSISTANT_START = "<|user_start|>", "<|user_end|>", "<|assistant_start|>"
Ask: TypeAlias = Callable[[str], list[Piece]]
"""Function from a question to its pieces."""


def ask_nanochat(question: str) -> list[Piece]:
    """Pieces of a question in nanochat's tokens.

    >>> [piece.text for piece in ask_nanochat("Sky?")]
    ['<|user_start|>', 'Sky?', '<|user_end|>', '<|assistant_start|>']
    """
    begin, *end = (Piece(token, control=True) for token in (USER_START, USER_END, ASSISTANT_START))
    return [begin, Piece(question), *end]


def find_ask(tokenizer: Tokenizer, template: str | None = None) -> tuple[Ask, bool]:
    """Find how to prompt with this tokenizer's questions; True if in nanochat's format.

    Args:
        tokenizer: its special tokens decide.
        template: name or text of a chat template to use regardless of the tokenizer.

    Raises:
        TokenizerError: it has neither nanochat's tokens nor a template.
        RecipeError: the template is invalid, or refuses a plain question.
    """
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
            f"{tokenizer.name} has no special token {missing[0]} and no chat template: chat questions are "
            "asked in nanochat's tokens or by a template",
            hint=f"choose one with --chat-template: {', '.join(TEMPLATES)}, or a file; or train a tokenizer "
            "with --specials nanochat",
        )
    ask = _ask_by(template, tokenizer)
    ask("What is one and one?")
    return ask, False


def _ask_by(template: str, tokenizer: Tokenizer) -> Ask:
    added = msgspec.json.decode(tokenizer.json).get("added_tokens") or []
    variables = {"bos_token": tokenizer.bos_token or "", "eos_token": tokenizer.eos_token or ""}
    chat = ChatTemplate(template, strips_of(added), variables, masked=False)

    def ask(question: str) -> list[Piece]:
        try:
            pieces = chat.prompt(Conversation((Message("user", question),)))
        except RecordProblem as error:
            raise RecipeError(f"the chat template refuses a question: {error.detail}") from error
        if not pieces:
            raise RecipeError("the chat template writes nothing where a question is asked")
        return pieces

    return ask
