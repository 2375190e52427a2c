"""Conversations, templates and tokenizers for them, and what should be trained on, from raw messages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer

import packline
from packline.facade import Store

NANOCHAT_TOKENS = tuple(
    f"<|{name}|>"
    for name in (
        "bos",
        *("user_start", "user_end", "assistant_start", "assistant_end"),
        *("python_start", "python_end", "output_start", "output_end"),
    )
)

PLAIN = [{"role": "user", "content": "Say a word."}, {"role": "assistant", "content": "A word, then."}]
WEATHER = [
    {"role": "system", "content": "You help."},
    {"role": "user", "content": "Weather in Rome?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c0",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c0", "content": '{"sky": "clear"}'},
    {"role": "assistant", "content": "It is clear in Rome."},
    {"role": "user", "content": "And <|im_end|> means what? <|eot_id|><|bos|>"},
    {"role": "assistant", "content": "It is text here: <|im_start|>assistant\n naïve 日本 <|user_end|>"},
]


def with_tokens(
    base: Path, out: Path, tokens: tuple[str, ...], template: str | None = None, bos: str = ""
) -> Path:
    """A folder with a tokenizer that has these special tokens besides its own, and a chat template."""
    tokenizer = Tokenizer.from_file(str(base))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    config = {"bos_token": bos or None, **({} if template is None else {"chat_template": template})}
    (out / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return out


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a store."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def write(path: Path, records: list[Any]) -> Path:
    """A line a record."""
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records), "utf-8")
    return path


def store_of(records: list[Any], tokenizer: Path, folder: Path, **settings: Any) -> Store:
    """A store of these records."""
    path = write(folder / "chat.jsonl", records)
    return packline.sft(path, tokenizer, out=folder / "store", workers=0, **settings)


def trained_texts(store: Store) -> list[list[str]]:
    """What is trained on in each document, decoded by the tokenizer that is kept with the store."""
    tokenizer = Tokenizer.from_file(str(store.path / "tokenizer" / "tokenizer.json"))
    found = []
    for shard in store.shards:
        assert shard.loss is not None
        start = 0
        for number in range(len(shard)):
            tokens = shard.document(number)
            loss = shard.loss[start : start + len(tokens)]
            start += len(tokens)
            edges = np.flatnonzero(np.diff(np.concatenate([[0], loss, [0]])))
            runs = [tokens[a:b].tolist() for a, b in edges.reshape(-1, 2)]
            found.append([tokenizer.decode(run, skip_special_tokens=False) for run in runs])
    return found


def rejects(store: Store) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Bad records of the only unit: their reasons and places, and what they were."""
    path = store.path / "rejects" / "chat-000000.jsonl"
    kept = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    raw = path.with_suffix(".raw").read_bytes()
    return kept, [raw[one["offset"] : one["offset"] + one["bytes"]] for one in kept]


def whole_texts(store: Store) -> list[str]:
    """All documents, decoded."""
    tokenizer = Tokenizer.from_file(str(store.path / "tokenizer" / "tokenizer.json"))
    return [tokenizer.decode(one.tolist(), skip_special_tokens=False) for one in store.documents]


def messages_of(record: Any) -> list[dict[str, Any]]:
    """Of a raw record."""
    return record if isinstance(record, list) else record["messages"]


def arguments_of(call: dict[str, Any]) -> Any:
    """An object where the string holds one; else the string, as some agents write what is no JSON."""
    text = call["function"]["arguments"]
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, dict) else text


def chatml_said(record: Any) -> list[str]:
    """What an assistant says in ChatML with tools."""
    said = []
    for one in messages_of(record):
        if one["role"] != "assistant":
            continue
        parts = [one["content"]] if one.get("content") else []
        for call in one.get("tool_calls") or []:
            name, given = call["function"]["name"], arguments_of(call)
            inner = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            parts.append(f'<tool_call>\n{{"name": "{name}", "arguments": {inner}}}\n</tool_call>')
        said.append("\n".join(parts) + "<|im_end|>")
    return said


def llama3_said(record: Any) -> list[str]:
    """What an assistant says in Llama 3's headers."""
    said = []
    for one in messages_of(record):
        if one["role"] == "assistant":
            words = (one.get("content") or "").strip()
            for call in one.get("tool_calls") or []:
                arguments = json.dumps(arguments_of(call), ensure_ascii=False)
                words += f'{{"name": "{call["function"]["name"]}", "parameters": {arguments}}}'
            said.append(words + "<|eot_id|>")
    return said


def nanochat_said(record: Any) -> list[str]:
    """What an assistant says in nanochat's scheme: an output interrupts its turn, a user ends it."""
    messages = messages_of(record)
    said: list[str] = []
    for place, one in enumerate(messages):
        if one["role"] != "assistant":
            continue
        words = one.get("content") or ""
        for call in one.get("tool_calls") or []:
            inner = {"name": call["function"]["name"], "arguments": arguments_of(call)}
            words += f"<|python_start|>{json.dumps(inner, ensure_ascii=False)}<|python_end|>"
        after = messages[place + 1]["role"] if place + 1 < len(messages) else None
        said.append(words + ("" if after == "tool" else "<|assistant_end|>"))
    return said


CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\nThese functions may be called, as JSON within <tools></tools>:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nA call is a JSON object with name and arguments within <tool_call></tool_call>." }}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
        {%- if message.content %}
            {{- message.content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- set function = call.function if call.function else call %}
            {%- if not loop.first or message.content %}
                {{- '\\n' }}
            {%- endif %}
            {{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
            {%- if function.arguments is string %}
                {{- function.arguments }}
            {%- else %}
                {{- function.arguments | tojson }}
            {%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA3 = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content + '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
        {%- if message.role == 'assistant' %}
            {%- generation %}
            {{- message.content | trim }}
            {%- for call in message.tool_calls or [] %}
                {{- '{"name": "' + call.function.name + '", "parameters": ' }}
                {{- call.function.arguments | tojson }}
                {{- '}' }}
            {%- endfor %}
            {{- '<|eot_id|>' }}
            {%- endgeneration %}
        {%- else %}
            {{- message.content | trim + '<|eot_id|>' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

NANOCHAT = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|user_start|>' + message.content + '<|user_end|>' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|assistant_start|>' }}
        {%- generation %}{{- message.content + '<|assistant_end|>' }}{%- endgeneration %}
    {%- else %}
        {{- raise_exception('only user and assistant') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant_start|>' }}
{%- endif %}
"""

CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA3_TOKENS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)


def unmarked(template: str) -> str:
    """A template without its generation marks."""
    return re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", template)
