"""Conversations: conversion of records in several published formats to one normal form.

    {"messages": [{"role": "user", "content": "hi"}, ...], "tools": [...]}      OpenAI
    {"conversations": [{"from": "human", "value": "hi"}, ...]}                   ShareGPT
    [{"role": "user", "content": "hi"}, ...]                                     a bare list
    {"prompt": "hi", "response": "hello"}                                        prompt and response

Roles may come in any order that the template renders; an assistant must speak. An output of a tool answers a
call that was made before it, or words of the assistant that may be one (as in Hermes and ToolACE). Nothing is
repaired: an invalid record is `RecordProblem`, with a reason that is counted, and so is an answer that is not
to be learned: `chosen` and `rejected`, or `"label": false`.

Cost: a few microseconds per message. `chat_template` and `pieces` render conversations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from packline.sources.batch import RecordProblem

Role = Literal["system", "user", "assistant", "tool"]
PartKind = Literal["text", "python", "python_output"]

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
PLAIN_ROLES = ("user", "assistant", "system")
LISTS = ("messages", "conversations", "conversation")
PAIRS = (
    ("prompt", "response"),
    ("prompt", "completion"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "answer"),
)
SHAPES = "messages, conversations, a list of messages, or prompt and response"
PAIR_OF_ANSWERS = (
    "preference data (chosen, rejected) are not supported; TRL's DPOTrainer reads them as they are; to train "
    "on the chosen answers, name their field if it has whole conversations (--field chosen), else write "
    "records of prompt and completion"
)
BAD_ANSWER = (
    "preference data: the label is false, so the answer is not to be learned; TRL's KTOTrainer reads such "
    "data as they are; if the label means anything else, give it another name"
)


class Part(msgspec.Struct, frozen=True):
    """A part of an assistant message, as in nanochat: words, code, or the output of code."""

    kind: PartKind
    text: str


class Call(msgspec.Struct, frozen=True):
    """A call of a tool."""

    name: str
    arguments: Any
    """An object; or the original string, if it is not a JSON object."""
    id: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: Role
    content: str = ""
    """Text of the message; of parts only the text."""
    parts: tuple[Part, ...] = ()
    """Parts of an assistant message that contains code; otherwise empty."""
    calls: tuple[Call, ...] = ()
    call_id: str | None = None
    """Call that a tool's output answers, if the record contains it."""
    name: str | None = None
    reasoning: str | None = None
    """Reasoning of an assistant, if it is a separate field."""
    trained: bool = True
    """False for assistant messages without loss: OpenAI's `"weight": 0`."""


class Conversation(msgspec.Struct, frozen=True):
    """Messages, and the tools that may be called."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()


def read_conversation(record: Any, field: str | None = None) -> Conversation:
    """Convert a record from JSON or Arrow to the normal form.

    >>> read_conversation({"prompt": "hi", "response": "hello"}).messages[1].content
    'hello'
    >>> read_conversation([{"role": "user", "content": "hello"}])
    Traceback (most recent call last):
    packline.sources.batch.RecordProblem: nothing_to_train: no assistant speaks
    """
    raw, system, tools = _messages_of(record, field)
    if system:
        raw = [{"role": "system", "content": system}, *raw]
    messages = tuple(_read_message(number, one) for number, one in enumerate(raw))
    _check_answers(messages)
    return Conversation(messages, tools)


def _messages_of(record: Any, field: str | None) -> tuple[list[Any], Any, tuple[dict[str, Any], ...]]:
    if isinstance(record, list):
        return record, None, ()
    if not isinstance(record, dict):
        raise RecordProblem("not_a_conversation", f"expected {SHAPES}, found a {type(record).__name__}")
    if record.get("label") is False:
        raise RecordProblem("preference_data", BAD_ANSWER)
    system, tools = record.get("system"), _read_tools(record.get("tools"))
    for name in (field,) if field else LISTS:
        if isinstance(found := record.get(name), list):
            if record.get("prompt") and _begins_with_answer(found):
                detail = f"{name} begins with the assistant, beside a prompt: expected prompt and completion"
                raise RecordProblem("not_a_conversation", detail)
            return found, system, tools
        if found is not None:
            raise RecordProblem(
                "not_a_conversation", f"{name}: expected a list, found a {type(found).__name__}"
            )
    if "chosen" in record and "rejected" in record:
        raise RecordProblem("preference_data", PAIR_OF_ANSWERS)
    for asked, answered in () if field else PAIRS:
        if asked in record and answered in record:
            prompt, response = record[asked], record[answered]
            if asked == "instruction" and isinstance(record.get("input"), str) and record["input"]:
                prompt = f"{prompt}\n\n{record['input']}" if isinstance(prompt, str) else prompt
            before = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
            after = response if isinstance(response, list) else [{"role": "assistant", "content": response}]
            return [*before, *after], system, tools
    wanted = field or SHAPES
    raise RecordProblem("not_a_conversation", f"expected {wanted}, found {', '.join(record) or 'no fields'}")


def _begins_with_answer(messages: list[Any]) -> bool:
    first = messages[0] if messages and isinstance(messages[0], dict) else {}
    said = first.get("role", first.get("from"))
    return isinstance(said, str) and ROLES.get(said) == "assistant"


def _read_tools(tools: Any) -> tuple[dict[str, Any], ...]:
    if isinstance(tools, str) and tools.strip():
        try:
            tools = msgspec.json.decode(tools)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RecordProblem("not_a_conversation", f"tools are not JSON: {error}") from error
    if not tools:
        return ()
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RecordProblem("not_a_conversation", "tools: expected a list of objects")
    return tuple(tools)


def _read_message(number: int, raw: Any) -> Message:
    if isinstance(raw, dict) and len(raw) == 2:  # most messages are as plain as that
        said, content = raw.get("role"), raw.get("content")
        if said in PLAIN_ROLES and isinstance(content, str) and content.strip():
            return Message(ROLES[said], _text(number, content))
    where = f"message {number}"
    if not isinstance(raw, dict):
        raise RecordProblem(
            "not_a_conversation", f"{where}: expected an object, found a {type(raw).__name__}"
        )
    raw = {name: value for name, value in raw.items() if value is not None}  # Arrow: null if missing
    said = raw.get("role", raw.get("from"))
    role = ROLES.get(said) if isinstance(said, str) else None
    if role is None:
        raise RecordProblem("unknown_role", f"{where}: expected {', '.join(sorted(ROLES))}, found {said!r}")
    content, calls = raw.get("content", raw.get("value")), _read_calls(number, raw, role)
    if said == "function_call":
        calls, content = (_read_call(number, content),), None
    text, parts = _read_content(number, content, role)
    reasoning = raw.get("reasoning_content", raw.get("reasoning"))
    if reasoning is not None and not isinstance(reasoning, str):
        raise RecordProblem("content_not_text", f"{where}: its reasoning is a {type(reasoning).__name__}")
    said_anything = text.strip() or any(part.text.strip() for part in parts)
    if not said_anything and not calls and role != "tool":
        raise RecordProblem("empty_content", f"{where}: the {role} says nothing")
    weight = raw.get("weight", 1)
    if role == "assistant" and weight not in (0, 1):
        raise RecordProblem("not_a_conversation", f"{where}: expected a weight of 0 or 1, found {weight!r}")
    call_id, name = raw.get("tool_call_id"), raw.get("name")
    return Message(
        role,
        text,
        parts,
        calls,
        call_id if isinstance(call_id, str) else None,
        name if isinstance(name, str) else None,
        reasoning or None,
        role != "assistant" or bool(weight),
    )


def _read_content(number: int, content: Any, role: Role) -> tuple[str, tuple[Part, ...]]:
    """Words, and parts if there is more than text."""
    if content is None:
        return "", ()
    if isinstance(content, str):
        return _text(number, content), ()
    where = f"message {number}"
    if not isinstance(content, list):
        raise RecordProblem("content_not_text", f"{where}: expected text, found a {type(content).__name__}")
    parts = []
    for part in content:
        kind: Any = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if isinstance(part, dict) else None
        known = kind == "text" or (role == "assistant" and kind in ("python", "python_output"))
        if not known or not isinstance(text, str):
            raise RecordProblem(
                "content_not_text", f"{where}: expected parts of text, found {kind or part!r}"
            )
        parts.append(Part(kind, _text(number, text)))
    words = "".join(part.text for part in parts if part.kind == "text")
    return words, () if all(part.kind == "text" for part in parts) else tuple(parts)


def _text(number: int, text: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise RecordProblem("lone_surrogate", f"message {number}: a lone surrogate \\u{code:04x}") from error
    return text


def _read_calls(number: int, raw: dict[str, Any], role: Role) -> tuple[Call, ...]:
    calls = raw.get("tool_calls") or ()
    if not calls and isinstance(raw.get("function_call"), dict):
        calls = [raw["function_call"]]
    if not calls:
        return ()
    if role != "assistant" or not isinstance(calls, list):
        raise RecordProblem("roles_out_of_order", f"message {number}: a {role} that calls a tool")
    return tuple(_read_call(number, call) for call in calls)


def _read_call(number: int, raw: Any) -> Call:
    where = f"message {number}"
    if isinstance(raw, str):
        try:
            raw = msgspec.json.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raw = None
    inner = raw.get("function", raw) if isinstance(raw, dict) else None
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(raw, dict) or not isinstance(inner, dict) or not isinstance(name, str) or not name:
        raise RecordProblem("content_not_text", f"{where}: a call of a tool without a name")
    arguments = inner.get("arguments")
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = {}  # both denote a call without arguments
    if not isinstance(arguments, dict | str):
        found = type(arguments).__name__
        raise RecordProblem(
            "content_not_text", f"{where}: arguments of {name}: expected an object, found a {found}"
        )
    if isinstance(arguments, str):
        try:
            parsed = msgspec.json.decode(arguments)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            parsed = None
        arguments = parsed if isinstance(parsed, dict) else arguments
    call_id = raw.get("id")
    return Call(_text(number, name), arguments, call_id if isinstance(call_id, str) else None)


def _check_answers(messages: tuple[Message, ...]) -> None:
    """Check that an assistant speaks, and that each output answers something."""
    if not messages:
        raise RecordProblem("empty_content", "a conversation without messages")
    if not any(message.role == "assistant" for message in messages):
        raise RecordProblem("nothing_to_train", "no assistant speaks")
    if not any(message.role == "assistant" and message.trained for message in messages):
        raise RecordProblem("nothing_to_train", "all that the assistant says has the weight 0")
    open_calls: list[Call] = []
    in_words = False
    """True if the assistant's last message has words alone, which may be calls."""
    for number, message in enumerate(messages):
        if message.role == "assistant":
            in_words = not message.calls
            open_calls += message.calls
        elif message.role == "tool" and not (in_words and message.call_id is None):
            _answer(number, message, open_calls)


def _answer(number: int, message: Message, open_calls: list[Call]) -> None:
    place: int | None = 0 if open_calls else None
    if open_calls and message.call_id is not None and any(call.id for call in open_calls):
        ids = [call.id for call in open_calls]
        place = ids.index(message.call_id) if message.call_id in ids else None
    if place is None:
        raise RecordProblem("tool_output_without_call", f"message {number}: an output that no call asked for")
    open_calls.pop(place)


def as_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Convert messages to the form for chat templates: dicts with role, content and tool_calls.

    >>> as_messages(read_conversation({"prompt": "a", "response": "b"}).messages)
    [{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': 'b'}]
    """
    found = []
    for message in messages:
        one: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.calls:
            one["tool_calls"] = [
                {
                    **({} if call.id is None else {"id": call.id}),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in message.calls
            ]
        for name, value in (
            ("tool_call_id", message.call_id),
            ("name", message.name),
            ("reasoning_content", message.reasoning),
        ):
            if value is not None:
                one[name] = value
        found.append(one)
    return found
