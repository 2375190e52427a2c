"""Random chats in the shapes that public data sets have, as messages for chat templates and as records.

`SHAPES` gives messages in the form that transformers documents (arguments are objects); `as_record` writes
the same as data sets publish it: arguments as JSON in a string, null for no words, ShareGPT's names.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

Messages = list[dict[str, Any]]
Shape = Callable[[random.Random], Messages]

WORDS = (
    *(
        "Book a table",
        "for two",
        "at noon",
        "It's done.",
        "42",
        "naïve café",
        "日本語です",
        "שלום",
        "👩‍👩‍👧‍👦",
        "e\u0301",
    ),
    *(
        "def f(x):\n    return x",
        "a\tb",
        "line\nline",
        "{'a': 1}",
        "<b>",
        "100 %",
        "{{ x }}",
        "\\n",
        '"quoted"',
    ),
)
ODD = ("\n", " ", "\n\n", "\t", "\r\n", "\u00a0", "\u2028", "\u3000", "  \n ", "\u200b", "\ufeff")
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city — now.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def words(chance: random.Random) -> str:
    """A few words."""
    return " ".join(chance.choices(WORDS, k=chance.randint(1, 4)))


def said(role: str, chance: random.Random) -> dict[str, Any]:
    """A message of words."""
    return {"role": role, "content": words(chance)}


def called(chance: random.Random, count: int = 1, content: str = "") -> dict[str, Any]:
    """A message of calls, with ids as Mistral has them."""
    calls = [
        {
            "id": f"call{chance.randint(0, 99_999):05d}",
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": words(chance), "days": number}},
        }
        for number in range(count)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def outputs(message: dict[str, Any], chance: random.Random) -> Messages:
    """An output for each call, JSON as a string."""
    return [
        {
            "role": "tool",
            "tool_call_id": call["id"],
            "content": json.dumps({"sky": words(chance)}, ensure_ascii=False),
        }
        for call in message["tool_calls"]
    ]


def turns(chance: random.Random, most: int = 3) -> Messages:
    """User and assistant in turn."""
    return [said(role, chance) for _ in range(chance.randint(1, most)) for role in ("user", "assistant")]


def _calls_last(chance: random.Random) -> Messages:
    system = [said("system", chance)] if chance.random() < 0.4 else []
    return [*system, *turns(chance)[: chance.choice((0, 2))], said("user", chance), called(chance)]


def _parallel_calls(chance: random.Random) -> Messages:
    asks = called(chance, chance.randint(2, 3), chance.choice(("", "", words(chance))))
    answers = outputs(asks, chance)
    return [said("user", chance), asks, *answers[: chance.choice((0, 1, 3))], said("assistant", chance)]


def _assistant_first(chance: random.Random) -> Messages:
    return [said("assistant", chance), *turns(chance)]


def _system_within(chance: random.Random) -> Messages:
    first = [said("system", chance)] if chance.random() < 0.5 else []
    return [*first, *turns(chance), said("system", chance), *turns(chance)[chance.choice((0, 1)) :]]


def _thoughts_and_no_words(chance: random.Random) -> Messages:
    asks = called(chance) | {"reasoning_content": words(chance)}
    more = [*outputs(asks, chance), said("assistant", chance) | {"reasoning_content": words(chance)}]
    return [said("user", chance), asks, *(more if chance.random() < 0.6 else [])]


def _assistant_twice(chance: random.Random) -> Messages:
    return [*turns(chance), said("assistant", chance), *turns(chance)[: chance.choice((0, 2))]]


def _user_twice(chance: random.Random) -> Messages:
    return [said("user", chance), *turns(chance), said("user", chance), *turns(chance)]


def _no_user(chance: random.Random) -> Messages:
    system = [said("system", chance)] if chance.random() < 0.6 else []
    return [*system, *(said("assistant", chance) for _ in range(chance.randint(1, 2)))]


def _outputs_of_calls(chance: random.Random) -> Messages:
    asks = called(chance)
    after: Messages = [said("user", chance)] if chance.random() < 0.3 else []
    return [said("user", chance), asks, *outputs(asks, chance), *after, said("assistant", chance)]


def _odd_spaces(chance: random.Random) -> Messages:
    messages = turns(chance)
    for one in messages:
        ahead, behind = (chance.choice(("", *ODD)) for _ in range(2))
        one["content"] = ahead + one["content"] + behind
    return messages


SHAPES: dict[str, Shape] = {
    "calls last": _calls_last,
    "parallel calls": _parallel_calls,
    "assistant first": _assistant_first,
    "system within": _system_within,
    "thoughts and no words": _thoughts_and_no_words,
    "assistant twice": _assistant_twice,
    "user twice": _user_twice,
    "no user": _no_user,
    "outputs of calls": _outputs_of_calls,
    "odd spaces": _odd_spaces,
}


def chats(count: int, seed: int = 0) -> list[tuple[str, Messages, list[dict[str, Any]]]]:
    """Shape, messages and tools of so many random chats, each shape as often as any other."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        name = list(SHAPES)[number % len(SHAPES)]
        messages = SHAPES[name](chance)
        calls = any("tool_calls" in one for one in messages)
        found.append((name, messages, [TOOL] if calls and chance.random() < 0.6 else []))
    return found


def as_record(messages: Messages, tools: list[dict[str, Any]], sharegpt: bool = False) -> dict[str, Any]:
    """The chat as a data set publishes it."""
    raw = []
    for one in messages:
        message = (
            {"from" if name == "role" else name: value for name, value in one.items()}
            if sharegpt
            else {**one}
        )
        if sharegpt:
            message["value"] = message.pop("content")
        if "tool_calls" in one:
            message["tool_calls"] = [
                {
                    **call,
                    "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])},
                }
                for call in one["tool_calls"]
            ]
            message["value" if sharegpt else "content"] = one["content"] or None
        raw.append(message)
    return {"conversations" if sharegpt else "messages": raw, **({"tools": tools} if tools else {})}
