"""How models write a conversation, stated in plain Python from raw messages: text, and what is trained on.

A second computation beside the templates: no Jinja, no normal form, nothing of packline. Every function gives
`(text, trained)` stretches in order. `Unwritable` is raised where a format has no place for something.
`QWEN3_PUBLISHED` is a template of the kind that Qwen3 is published with: no marks, thoughts only after the
last user.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

Stretch = tuple[str, bool]
Messages = list[dict[str, Any]]
Tools = list[dict[str, Any]]
Format = Callable[[Messages, Tools], Iterator[Stretch]]


class Unwritable(Exception):
    """The format has no place for this."""


def dump(value: Any, indent: int | None = None) -> str:
    """JSON as transformers writes it."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def words(message: dict[str, Any]) -> str:
    """What somebody says."""
    return message.get("content") or ""


def calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Calls of tools, arguments as an object where they are one."""
    found = []
    for call in message.get("tool_calls") or []:
        given = call["function"]["arguments"]
        try:
            parsed = json.loads(given) if isinstance(given, str) else given
        except ValueError:
            parsed = given
        name, arguments = call["function"]["name"], parsed if isinstance(parsed, dict) else given
        found.append({"name": name, "arguments": arguments, "id": call.get("id")})
    return found


def instruction(messages: Messages) -> str | None:
    """The system message."""
    return words(messages[0]) if messages[0]["role"] == "system" else None


def refuse_tools_and_thoughts(messages: Messages, tools: Tools) -> None:
    """For formats that have neither."""
    refuse_thoughts(messages)
    if tools or any(one["role"] == "tool" or one.get("tool_calls") for one in messages):
        raise Unwritable


def refuse_thoughts(messages: Messages) -> None:
    """For formats without thoughts that stand apart."""
    if any(one.get("reasoning_content") for one in messages):
        raise Unwritable


def refuse_other_orders(messages: Messages) -> None:
    """For formats that have user and assistant in turn, but for a system message ahead."""
    for place, one in enumerate(messages[instruction(messages) is not None :]):
        if one["role"] != ("user", "assistant")[place % 2]:
            raise Unwritable


def chatml(messages: Messages, tools: Tools) -> Iterator[Stretch]:
    """Every message between two control tokens."""
    refuse_tools_and_thoughts(messages, tools)
    for one in messages:
        yield f"<|im_start|>{one['role']}\n", False
        yield f"{words(one)}<|im_end|>", one["role"] == "assistant"
        yield "\n", False


def qwen25(messages: Messages, tools: Tools) -> Iterator[Stretch]:
    """ChatML with tools, and always a system message."""
    refuse_thoughts(messages)
    default = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    said = instruction(messages)
    return _qwen(messages, tools, default if said is None else said, thinks=False)


def qwen3(messages: Messages, tools: Tools) -> Iterator[Stretch]:
    """ChatML with tools; every turn of the assistant begins with its thoughts, even with none."""
    return _qwen(messages, tools, instruction(messages), thinks=True)


def _qwen(messages: Messages, tools: Tools, system: str | None, thinks: bool) -> Iterator[Stretch]:
    if tools:
        lines = [
            "# Tools",
            "",
            "You may call one or more functions to assist with the user query.",
            "",
            "You are provided with function signatures within <tools></tools> XML tags:",
            "<tools>",
            *map(dump, tools),
            "</tools>",
            "",
            "For each function call, return a json object with function name and arguments within "
            "<tool_call></tool_call> XML tags:",
            "<tool_call>",
            '{"name": <function-name>, "arguments": <args-json-object>}',
            "</tool_call>",
        ]
        system = "\n".join([*([system, ""] if system else []), *lines])
    if system:
        yield f"<|im_start|>system\n{system}<|im_end|>\n", False
    outputs: list[str] = []
    for place, one in enumerate(messages):
        if one["role"] == "user" or (one["role"] == "system" and place):
            yield f"<|im_start|>{one['role']}\n{words(one)}<|im_end|>\n", False
        elif one["role"] == "tool":
            outputs.append(f"\n<tool_response>\n{words(one)}\n</tool_response>")
            if messages[place + 1 :][:1] == [] or messages[place + 1]["role"] != "tool":
                yield f"<|im_start|>user{''.join(outputs)}<|im_end|>\n", False
                outputs = []
        elif one["role"] == "assistant":
            thought, answer = thoughts_of(one) if thinks else ("", words(one))
            parts = [answer] if answer else []
            for call in calls(one):
                given = call["arguments"]
                inner = given if thinks and isinstance(given, str) else dump(given)
                parts.append(f'<tool_call>\n{{"name": "{call["name"]}", "arguments": {inner}}}\n</tool_call>')
            said = "\n".join(parts)
            if thinks:
                said = "<think>\n" + thought.strip("\n") + "\n</think>\n\n" + said.lstrip("\n")
                if answer and not answer.strip("\n") and calls(one):
                    said = said.replace("</think>\n\n", "</think>\n\n\n", 1)  # an answer of empty lines
            yield "<|im_start|>assistant", False
            yield "\n", not thinks
            yield said + "<|im_end|>\n", True


def thoughts_of(message: dict[str, Any]) -> tuple[str, str]:
    """What an assistant thought and what it said, also where both are in its words."""
    if message.get("reasoning_content"):
        return message["reasoning_content"], words(message)
    if "</think>" not in words(message):
        return "", words(message)
    before, after = words(message).split("</think>", 1)
    if "<think>" in before:
        ahead, before = before.split("<think>", 1)
        if ahead.strip() or "<think>" in before:
            raise Unwritable
    if "</think>" in after:
        raise Unwritable
    return before, after.lstrip("\n")


def llama3(messages: Messages, tools: Tools) -> Iterator[Stretch]:
    """A header with the role ahead of every message."""
    refuse_tools_and_thoughts(messages, tools)
    yield "<|begin_of_text|>", False
    for one in messages:
        yield f"<|start_header_id|>{one['role']}<|end_header_id|>\n\n", False
        yield f"{words(one).strip()}<|eot_id|>", one["role"] == "assistant"


def llama31(messages: Messages, tools: Tools) -> Iterator[Stretch]:
    """The same with a date, and tools with the first user; a call is alone in its turn."""
    refuse_thoughts(messages)

    def header(role: str) -> str:
        return f"<|start_header_id|>{role}<|end_header_id|>\n\n"

    yield "<|begin_of_text|>" + header("system") + ("Environment: ipython\n" if tools else ""), False
    dates = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
    yield f"{dates}{(instruction(messages) or '').strip()}<|eot_id|>", False
    turns = messages[instruction(messages) is not None :]
    if tools and (not turns or turns[0]["role"] != "user"):
        raise Unwritable
    first = True
    for one in turns:
        if one["role"] == "system":
            yield header("system") + words(one).strip() + "<|eot_id|>", False
        elif one["role"] == "user":
            preface = ""
            if tools and first:
                preface = (
                    "Given the following functions, please respond with a JSON for a function call with its "
                    'proper arguments that best answers the given prompt.\n\nRespond in the format {"name": '
                    'function name, "parameters": dictionary of argument name and its value}.'
                    "Do not use variables.\n\n" + "".join(dump(tool, 4) + "\n\n" for tool in tools)
                )
            first = False
            yield header("user") + preface + words(one).strip() + "<|eot_id|>", False
        elif one["role"] == "tool":
            yield header("ipython") + dump(words(one)) + "<|eot_id|>", False
        elif one["role"] == "assistant":
            said, made = words(one).strip(), calls(one)
            if len(made) > 1 or (made and said):
                raise Unwritable
            for call in made:
                said = f'{{"name": "{call["name"]}", "parameters": {dump(call["arguments"])}}}'
            yield header("assistant"), False
            yield said + "<|eot_id|>", True


def gemma(messages: Messages, tools: Tools) -> Iterator[Stretch]:
    """Turns of user and model; a system message is the beginning of the first user's turn."""
    refuse_tools_and_thoughts(messages, tools)
    refuse_other_orders(messages)
    system = instruction(messages)
    yield "<bos>", False
    for one in messages[system is not None :]:
        model = one["role"] == "assistant"
        yield f"<start_of_turn>{'model' if model else 'user'}\n", False
        if system is not None:
            yield f"{system}\n\n", False
            system = None
        yield f"{words(one).strip()}<end_of_turn>\n", model


def mistral(messages: Messages, tools: Tools) -> Iterator[Stretch]:
    """[INST] around a user's words, with a space after control tokens."""
    return _mistral(messages, tools, " ", str.strip)


def mistral_nemo(messages: Messages, tools: Tools) -> Iterator[Stretch]:
    """The same without spaces."""
    return _mistral(messages, tools, "", str)


def _mistral(messages: Messages, tools: Tools, gap: str, trimmed: Callable[[str], str]) -> Iterator[Stretch]:
    refuse_thoughts(messages)
    system = instruction(messages)
    users = sum(one["role"] == "user" for one in messages)
    if users != 1 and (tools or system is not None):
        raise Unwritable
    refuse_other_orders([one for one in messages if one["role"] != "tool" and not one.get("tool_calls")])
    yield "<s>", False
    for one in messages:
        if one["role"] == "user":
            if tools:
                listed = []
                for tool in tools:
                    fields = [
                        f'"{name}": ' + (f'"{value}"' if isinstance(value, str) else dump(value))
                        for name, value in tool["function"].items()
                    ]
                    listed.append('{"type": "function", "function": {' + ", ".join(fields) + "}}")
                yield f"[AVAILABLE_TOOLS]{gap}[{', '.join(listed)}][/AVAILABLE_TOOLS]", False
            preface = f"{system}\n\n" if system is not None else ""
            yield f"[INST]{gap}{preface}{words(one)}[/INST]", False
        elif one["role"] == "tool":
            if len(one.get("tool_call_id") or "") != 9:
                raise Unwritable
            output = f'{{"content": {words(one)}, "call_id": "{one["tool_call_id"]}"}}'
            yield f"[TOOL_RESULTS]{gap}{output}[/TOOL_RESULTS]", False
        elif one["role"] == "assistant":
            made = calls(one)
            if made and (words(one).strip() or any(len(call["id"] or "") != 9 for call in made)):
                raise Unwritable
            said = gap + trimmed(words(one))
            if made:
                said = f"[TOOL_CALLS]{gap}[{', '.join(map(dump, made))}]"
            yield said + "</s>", True


FORMATS: dict[str, Format] = {
    "chatml": chatml,
    "qwen2.5": qwen25,
    "qwen3": qwen3,
    "llama3": llama3,
    "llama3.1": llama31,
    "gemma": gemma,
    "mistral": mistral,
    "mistral-nemo": mistral_nemo,
}

QWEN3_PUBLISHED = """\
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set last = namespace(user=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thought = message.reasoning_content or '' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > last.user and (loop.last or thought) %}
            {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- ('\\n' if message.content or not loop.first else '') + '<tool_call>\\n{"name": "' }}
            {{- call.function.name + '", "arguments": ' }}{{ call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
