"""Pieces: a rendered conversation as parts of text and control tokens, each with or without loss.

    <|im_start|>  "assistant\\n"   "hello"  <|im_end|>  "\\n"
    control       text             text     control     text
    -             -                trained  trained     -

The text of a piece can never become a control token, whatever it contains; control tokens come from the
scheme alone. Pieces are encoded separately, so that no token spans the beginning or end of a trained range:
the model is trained to generate exactly what it will have to generate after the same prompt.

`check_pieces` compares pieces with the conversation: the trained text must be the assistant's words, all of
them, in order, and in one range per turn of the assistant, and outputs of tools must not be lost. Only then
the messages without loss are muted. Cost: one search per message.

nanochat's token scheme renders conversations as nine control tokens and the words between them:

    <|bos|> <|user_start|> hi <|user_end|> <|assistant_start|> hello <|assistant_end|> ...
                                                               ^^^^^^^^^^^^^^^^^^^^^^^ trained

Within an assistant's turn, code is between `<|python_start|>` and `<|python_end|>` (with loss), and its
output between `<|output_start|>` and `<|output_end|>` (without loss). A tool call is written as code, as one
JSON object, and the tool's answer as output; the assistant continues in the same turn. A system message is
put before the first user's words, separated by an empty line. `<|bos|>` is a boundary token of the store and
therefore not included. Cost: a microsecond per message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from packline.chat.conversations import Call, Conversation, Message
from packline.encoders.encoder import Encoder
from packline.encoders.special_tokens import Boundary
from packline.encoders.tokenizer import Tokenizer
from packline.ragged import Ragged, concatenate
from packline.sources.batch import RecordProblem


class Piece(NamedTuple):
    """A part of text, or one control token."""

    text: str
    trained: bool = False
    control: bool = False


class Layout(NamedTuple):
    """Order of control tokens and texts in a rendered conversation, without the texts."""

    controls: tuple[str | None, ...]
    """String of each control token; None for a text."""
    trained: tuple[bool, ...]


class Rendered(NamedTuple):
    """A rendered conversation: its layout, which conversations of one shape share, and its texts."""

    layout: Layout
    texts: list[str]
    """The texts between control tokens, none of them empty."""
    whole: str
    """The whole text, control tokens included."""

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> Rendered:
        """Build from pieces."""
        layout = Layout(
            tuple(piece.text if piece.control else None for piece in pieces),
            tuple(piece.trained for piece in pieces),
        )
        texts = [piece.text for piece in pieces if not piece.control]
        return cls(layout, texts, "".join(piece.text for piece in pieces))

    def pieces(self) -> list[Piece]:
        """The same as pieces.

        >>> Rendered.of([Piece("<s>", control=True), Piece("a", trained=True)]).pieces()[1]
        Piece(text='a', trained=True, control=False)
        """
        texts = iter(self.texts)
        return [
            Piece(next(texts), trained) if control is None else Piece(control, trained, control=True)
            for control, trained in zip(*self.layout, strict=True)
        ]


def join_pieces(pieces: Iterable[Piece]) -> list[Piece]:
    """Join adjacent texts of the same kind, and remove empty ones.

    >>> join_pieces([Piece("a"), Piece("b"), Piece(""), Piece("c", trained=True)])
    [Piece(text='ab', trained=False, control=False), Piece(text='c', trained=True, control=False)]
    """
    joined: list[Piece] = []
    for piece in pieces:
        if not piece.text:
            continue
        last = joined[-1] if joined else None
        if last and not last.control and not piece.control and last.trained == piece.trained:
            joined[-1] = Piece(last.text + piece.text, piece.trained)
        else:
            joined.append(piece)
    return joined


def trained_runs(pieces: Iterable[Piece]) -> list[str]:
    """Text of each trained range, including control tokens."""
    runs: list[str] = []
    before = False
    for piece in pieces:
        if piece.trained:
            if not before:
                runs.append("")
            runs[-1] += piece.text
        before = piece.trained
    return runs


def turns_of(conversation: Conversation) -> list[list[str | Call]]:
    """Words and calls of the assistant, in order, for each of its uninterrupted turns."""
    turns: list[list[str | Call]] = []
    for message in conversation.messages:
        if message.role != "assistant":
            continue
        turns.append([])
        for part in message.parts:
            if part.kind == "python_output":
                turns.append([])
            else:
                turns[-1].append(part.text)
        if not message.parts:
            turns[-1].append(message.content)
        turns[-1] += message.calls
    return turns


def check_pieces(conversation: Conversation, pieces: list[Piece]) -> None:
    """Check that the trained ranges are the assistant's, and that no output or later instruction is lost.

    >>> from packline.chat.conversations import Message
    >>> talk = Conversation((Message("user", "hi"), Message("assistant", "hello")))
    >>> check_pieces(talk, [Piece("hi"), Piece("hello", trained=True)])
    >>> check_pieces(talk, [Piece("hi", trained=True), Piece("hello")])
    Traceback (most recent call last):
    packline.sources.batch.RecordProblem: mask: turn 0 of the assistant: 'hello' is not trained on
    """
    runs, turns = trained_runs(pieces), turns_of(conversation)
    if len(runs) != len(turns):
        raise RecordProblem(
            "mask", f"the assistant speaks {len(turns)} times, and {len(runs)} are trained on"
        )
    for number, (run, turn) in enumerate(zip(runs, turns, strict=True)):
        at = 0
        for words in turn:
            wanted = _wanted(words)
            found = run.find(wanted, at)
            if found < 0:
                said = wanted if len(wanted) < 40 else f"{wanted[:40]}..."
                raise RecordProblem("mask", f"turn {number} of the assistant: {said!r} is not trained on")
            at = found + len(wanted)
    losable = [one for one in enumerate(conversation.messages) if may_be_lost(one[0], one[1].role)]
    whole = "".join(piece.text for piece in pieces) if losable else ""
    for number, message in losable:
        words = message.content.strip()
        if words not in whole and json.dumps(words, ensure_ascii=False)[1:-1] not in whole:
            raise RecordProblem("template", f"message {number}: what the {message.role} says is not written")


def may_be_lost(number: int, role: str) -> bool:
    """True for what some templates leave out: outputs of tools, and system messages but the first."""
    return role == "tool" or (role == "system" and number > 0)


def mute(conversation: Conversation, pieces: list[Piece]) -> list[Piece]:
    """Remove the loss from untrained messages; the pieces must have passed `check_pieces`.

    >>> from packline.chat.conversations import Message
    >>> talk = Conversation((Message("user", "hi"), Message("assistant", "hello", trained=False)))
    >>> mute(talk, [Piece("hi"), Piece("hello", trained=True)])
    [Piece(text='hi', trained=False, control=False), Piece(text='hello', trained=False, control=False)]
    """
    learned: list[bool] = []
    for message in conversation.messages:
        if message.role == "assistant":
            outputs = sum(part.kind == "python_output" for part in message.parts)
            learned += [message.trained] * (1 + outputs)
    if all(learned):
        return pieces
    muted: list[Piece] = []
    turn, before = -1, False
    for piece in pieces:
        turn += piece.trained and not before
        before = piece.trained
        muted.append(piece._replace(trained=piece.trained and learned[turn]))
    return muted


def _wanted(words: str | Call) -> str:
    """Text of words or a call that must be found. A template may remove white space and reasoning."""
    if isinstance(words, Call):
        return words.name
    return words.rpartition("</think>")[2].strip()


def call_text(call: Call) -> str:
    """Format a call as one JSON object.

    >>> call_text(Call("add", {"a": 1}))
    '{"name": "add", "arguments": {"a": 1}}'
    """
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


BOS = "<|bos|>"
TURNS = ("<|user_start|>", "<|user_end|>", "<|assistant_start|>", "<|assistant_end|>")
CODE = ("<|python_start|>", "<|python_end|>")
OUTPUT = ("<|output_start|>", "<|output_end|>")
NANOCHAT_TOKENS = (BOS, *TURNS, *CODE, *OUTPUT)
"""All nine control tokens, in the order of their ids."""


def render_nanochat(conversation: Conversation) -> list[Piece]:
    """Render a conversation to pieces, without `<|bos|>`.

    >>> talk = Conversation((Message("user", "hi"), Message("assistant", "hello")))
    >>> "".join(piece.text for piece in render_nanochat(talk))
    '<|user_start|>hi<|user_end|><|assistant_start|>hello<|assistant_end|>'
    >>> [piece.text for piece in render_nanochat(talk) if piece.trained]
    ['hello', '<|assistant_end|>']
    """
    user_start, user_end, assistant_start, assistant_end = TURNS
    pieces: list[Piece] = []
    inside = False  # True inside an assistant's turn
    messages = _merge_system(conversation.messages)
    for before, message in zip((None, *messages), messages, strict=False):
        _check_turn(before, message)
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


def _check_turn(before: Message | None, message: Message) -> None:
    """Check that a message may follow another; an output continues the assistant's turn."""
    role, ahead = message.role, before.role if before else "nothing"
    after = {"user": ("nothing", "assistant"), "assistant": ("user", "tool"), "tool": ("assistant", "tool")}
    if ahead not in after.get(role, ()):
        detail = f"nanochat's scheme has user and assistant in turn, found {role} after {ahead}"
        raise RecordProblem("roles_out_of_order", detail)


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


@dataclass(frozen=True, slots=True)
class Encoded:
    """One conversation as a document: tokens uint16 or int32 `[T]`, loss uint8 `[T]`."""

    tokens: np.ndarray
    loss: np.ndarray


class _Slots(NamedTuple):
    """A layout with boundary tokens, as arrays."""

    places: np.ndarray
    """Number of each control token, or `TEXT`: int64 `[N]`."""
    trained: np.ndarray
    """Loss of each: uint8 `[N]`."""


TEXT = -1
MOST_LAYOUTS = 4096
"""Layouts whose slots are kept."""


class PieceEncoder:
    """Encodes rendered conversations in this process."""

    def __init__(self, tokenizer: Tokenizer, boundary: Boundary, text_bytes: int | None = None) -> None:
        self._boundary = boundary
        self.encoder = Encoder(tokenizer, text_bytes=text_bytes)
        reference = self.encoder.reference
        self._ids = tokenizer.special_tokens | {boundary.eod: boundary.eod_id}
        if boundary.bos is not None and boundary.bos_id is not None:
            self._ids[boundary.bos] = boundary.bos_id
        ids = np.array(list(self._ids.values()), self.encoder.dtype)
        self._control = Ragged(ids, np.arange(len(ids) + 1))
        self._slots = lru_cache(MOST_LAYOUTS)(self._make_slots)
        self._spaced = reference.decode(reference.encode("a") + reference.encode("b")) != "ab"
        self._whole = None
        if self._spaced:
            import tokenizers

            self._whole = tokenizers.Tokenizer.from_str(self.encoder.encodable.json)

    def encode(
        self, conversations: Sequence[Rendered], audit: Sequence[int] = (), where: str = ""
    ) -> list[Encoded | RecordProblem]:
        """Documents with their boundary tokens, or the reason why one cannot be masked.

        The reference encodes those at the positions `audit` again; `where` names them in messages.
        """
        if not conversations:
            return []
        numbers: dict[str, int] = {}
        order = [
            numbers.setdefault(text, len(numbers))
            for conversation in conversations
            for text in conversation.texts
        ]
        audited = (text for place in audit for text in conversations[place].texts)
        positions = [numbers[text] for text in dict.fromkeys(audited)]
        ragged = self.encoder.encode(list(numbers), audit=positions, place=lambda _: where)
        table = concatenate([self._control, ragged])
        slots = [self._slots(conversation.layout) for conversation in conversations]
        places = np.concatenate([one.places for one in slots])
        places[places == TEXT] = np.array(order, np.int64) + len(self._ids)
        taken = table.take(places)
        loss = np.repeat(np.concatenate([one.trained for one in slots]), taken.lengths)
        ends = taken.offsets[np.cumsum([0, *(len(one.places) for one in slots)])].tolist()
        return [
            self._spaced_or(conversation, Encoded(taken.tokens[start:end], loss[start:end]))
            for conversation, (start, end) in zip(conversations, pairwise(ends), strict=True)
        ]

    def _make_slots(self, layout: Layout) -> _Slots:
        controls, trained = self._with_boundaries(layout)
        numbers = {token: number for number, token in enumerate(self._ids)}
        places = [TEXT if one is None else numbers[one] for one in controls]
        return _Slots(np.array(places, np.int64), np.array(trained, np.uint8))

    def _with_boundaries(self, layout: Layout) -> Layout:
        """Add boundary tokens if the scheme has not."""
        boundary, (controls, trained) = self._boundary, layout
        if boundary.bos is not None and controls[:1] != (boundary.bos,):
            controls, trained = (boundary.bos, *controls), (False, *trained)
        if len(controls) > 1 and controls[-1] == boundary.eod:
            return Layout(controls, trained)
        return Layout((*controls, boundary.eod), (*trained, False))

    def _spaced_or(self, conversation: Rendered, encoded: Encoded) -> Encoded | RecordProblem:
        """A document; encoded as a whole if the tokenizer joins adjacent texts otherwise."""
        if not self._spaced or all(one or other for one, other in pairwise(conversation.layout.controls)):
            return encoded
        try:
            layout = self._with_boundaries(conversation.layout)
            return self._assemble_spaced(conversation._replace(layout=layout).pieces())
        except RecordProblem as error:
            return error

    def _assemble_spaced(self, pieces: list[Piece]) -> Encoded:
        """Encode adjacent texts as one, and cut between tokens."""
        assert self._whole is not None
        tokens: list[int] = []
        loss: list[int] = []
        place = 0
        while place < len(pieces):
            if pieces[place].control:
                tokens.append(self._ids[pieces[place].text])
                loss.append(int(pieces[place].trained))
                place += 1
                continue
            last = place
            while last < len(pieces) and not pieces[last].control:
                last += 1
            group = pieces[place:last]
            encoding = self._whole.encode("".join(one.text for one in group), add_special_tokens=False)
            ends = np.cumsum([len(one.text) for one in group])
            for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                first, final = np.searchsorted(ends, [start, max(end - 1, start)], "right").tolist()
                first, final = min(first, len(group) - 1), min(final, len(group) - 1)
                if group[first].trained != group[final].trained:
                    raise RecordProblem("mask", "a token reaches over the edge of what the assistant said")
                tokens.append(number)
                loss.append(int(group[first].trained))
            place = last
        return Encoded(np.array(tokens, self.encoder.dtype), np.array(loss, np.uint8))
