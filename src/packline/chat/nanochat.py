"""nanochat's token scheme: conversations as nine control tokens and the words between them.

    <|bos|> <|user_start|> hi <|user_end|> <|assistant_start|> hello <|assistant_end|> ...
                                                               ^^^^^^^^^^^^^^^^^^^^^^^ trained

Within an assistant's turn, code is between `<|python_start|>` and `<|python_end|>` (with loss), and its
output between `<|output_start|>` and `<|output_end|>` (without loss). A tool call is written as code, as one
JSON object, and the tool's answer as output; the assistant continues in the same turn. A system message is
put before the first user's words, separated by an empty line. `<|bos|>` is a boundary token of the store and
therefore not included.

Cost: a microsecond per message.
"""

from __future__ import annotations

from collections.abc import Iterator

from packline.chat.conversations import Conversation, Message
from packline.chat.pieces import Piece, call_text
from packline.sources.batch import RecordProblem

BOS = "<|bos|>"
TURNS = ("<|user_start|>", "<|user_end|>", "<|assistant_start|>", "<|assistant_end|>")
CODE = ("<|python_start|>", "<|python_end|>")
OUTPUT = ("<|output_start|>", "<|output_end|>")
TOKENS = (BOS, *TURNS, *CODE, *OUTPUT)
"""All nine control tokens, in the order of their ids."""


def render_nanochat(conversation: Conversation) -> list[Piece]:
    """Render a conversation to pieces, without `<|bos|>`.

    Raises:
        RecordProblem: a system message that is not followed by a user message.

    >>> talk = Conversation((Message("user", "hi"), Message("assistant", "hello")))
    >>> "".join(piece.text for piece in render_nanochat(talk))
    '<|user_start|>hi<|user_end|><|assistant_start|>hello<|assistant_end|>'
    >>> [piece.text for piece in render_nanochat(talk) if piece.trained]
    ['hello', '<|assistant_end|>']
    """
    user_start, user_end, assistant_start, assistant_end = TURNS
    pieces: list[Piece] = []
    inside = False  # True inside an assistant's turn
    for message in _merge_system(conversation.messages):
        if message.role == "user":
            if inside:
                pieces.append(Piece(assistant_end, trained=True, control=True))
            inside = False
            pieces += (Piece(user_start, control=True), Piece(message.content), Piece(user_end, control=True))
            continue
        if not inside:
            pieces.append(Piece(assistant_start, control=True))
            inside = True
        if message.role == "tool":
            pieces += _fenced(message.content, OUTPUT, trained=False)
        else:
            pieces += _assistant(message)
    if inside and conversation.messages[-1].role == "assistant":
        pieces.append(Piece(assistant_end, trained=True, control=True))
    return [piece for piece in pieces if piece.text]


def _merge_system(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    first, *rest = messages
    if first.role != "system":
        return messages
    if not rest or rest[0].role != "user":
        raise RecordProblem("roles_out_of_order", "message 0: a system message that no user follows")
    return (Message("user", f"{first.content}\n\n{rest[0].content}"), *rest[1:])


def _assistant(message: Message) -> Iterator[Piece]:
    if message.reasoning:
        raise RecordProblem("template", "nanochat's scheme has no place for reasoning that stands apart")
    for part in message.parts:
        if part.kind == "text":
            yield Piece(part.text, trained=True)
        else:
            code = part.kind == "python"
            yield from _fenced(part.text, CODE if code else OUTPUT, trained=code)
    if not message.parts:
        yield Piece(message.content, trained=True)
    for call in message.calls:
        yield from _fenced(call_text(call), CODE, trained=True)


def _fenced(text: str, fence: tuple[str, str], *, trained: bool) -> tuple[Piece, Piece, Piece]:
    first, last = (Piece(token, trained, control=True) for token in fence)
    return first, Piece(text, trained), last
