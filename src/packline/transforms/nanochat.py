"""nanochat's token scheme: a conversation as its nine control tokens and the words between.

    <|bos|> <|user_start|> hi <|user_end|> <|assistant_start|> hello <|assistant_end|> ...
                                                               ^^^^^^^^^^^^^^^^^^^^^^^ trained

Within an assistant's turn, code stands between `<|python_start|>` and `<|python_end|>` (trained on), and what
it gave between `<|output_start|>` and `<|output_end|>` (never). A call of a tool is such code, as one JSON
object, and the tool's answer such output; the assistant goes on in the same turn. A system message is put
in front of the first user's words, with an empty line between. `<|bos|>` is a boundary token of the store and
so not part of what is given here.

Cost: a microsecond a message.
"""

from __future__ import annotations

from collections.abc import Iterator

from packline.transforms.conversations import Conversation, Malformed, Message
from packline.transforms.pieces import Piece, call_text

BOS = "<|bos|>"
TURNS = ("<|user_start|>", "<|user_end|>", "<|assistant_start|>", "<|assistant_end|>")
CODE = ("<|python_start|>", "<|python_end|>")
OUTPUT = ("<|output_start|>", "<|output_end|>")
TOKENS = (BOS, *TURNS, *CODE, *OUTPUT)
"""All nine, in the order of their ids."""


def render_nanochat(conversation: Conversation) -> list[Piece]:
    """The pieces of a conversation, without `<|bos|>`.

    Raises:
        Malformed: a system message that no user follows.

    >>> talk = Conversation((Message("user", "hi"), Message("assistant", "hello")))
    >>> "".join(piece.text for piece in render_nanochat(talk))
    '<|user_start|>hi<|user_end|><|assistant_start|>hello<|assistant_end|>'
    >>> [piece.text for piece in render_nanochat(talk) if piece.trained]
    ['hello', '<|assistant_end|>']
    """
    user_start, user_end, assistant_start, assistant_end = TURNS
    pieces: list[Piece] = []
    inside = False  # an assistant's turn that has begun
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
        raise Malformed("roles_out_of_order", "message 0: a system message that no user follows")
    return (Message("user", f"{first.content}\n\n{rest[0].content}"), *rest[1:])


def _assistant(message: Message) -> Iterator[Piece]:
    if message.reasoning:
        raise Malformed("template", "nanochat's scheme has no place for reasoning that stands apart")
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
