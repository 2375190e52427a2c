"""Named templates beside transformers: equal ids and masks for chats of any shape, or a refusal by name.

transformers renders the named template itself, and TRL's template of the same model where TRL has one.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tests.chat import talks
from tests.chat.shapes import as_record, chats
from tests.conftest import SHARED
from tests.formats.peers import run_peer

import packline
from packline.chat.named_templates import TEMPLATES
from packline.encoders.tiktoken import PATTERNS

TRL_TEMPLATES = {
    "qwen2.5": "qwen2_5_training",
    "qwen3": "qwen3_training",
    "llama3": "llama3_training",
    "llama3.1": "llama3_1",  # without marks: ids alone
    "gemma": "gemma3_training",
}
BOS = {"llama3": "<|begin_of_text|>", "llama3.1": "<|begin_of_text|>", "gemma": "<bos>"}
RENDER = """
import importlib.util, json, logging
from pathlib import Path
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template
logging.disable(logging.WARNING)
answer = {}
for job in json.loads(Path(arguments[0]).read_text("utf-8")):
    template = job["template"]
    if template is None:
        folder = Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"
        template = (folder / f"{job['trl']}.jinja").read_text("utf-8")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=job["tokenizer"], bos_token=job["bos"])
    found = []
    for messages, tools in job["chats"]:
        given = dict(tools=tools or None, chat_template=template)
        try:
            one = tokenizer.apply_chat_template(
                messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True, **given
            )
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
            continue
        (text,), (spans,) = render_jinja_template(
            [messages], return_assistant_tokens_mask=True, bos_token=job["bos"], **given
        )
        edges = [0, *(edge for span in spans for edge in span), len(text)]
        parts = [text[start:stop] for start, stop in zip(edges, edges[1:])]
        ids = [tokenizer(part, add_special_tokens=False)["input_ids"] for part in parts]
        cut = [token for part in ids for token in part]
        mask = [number % 2 for number, part in enumerate(ids) for _ in part]
        found.append([one["input_ids"], one["assistant_masks"], cut, mask])
    answer[job["name"]] = found
"""
Chat = tuple[str, list[dict[str, Any]], list[dict[str, Any]]]


class Result(NamedTuple):
    """A chat as packline stores it: ids and mask without the end of the document, or why it is refused."""

    ids: list[int]
    mask: list[int]
    refused: str


def stored(records: list[Any], name: str, tokenizer: Path, out: Path) -> list[Result]:
    """Result of `sft` for each record."""
    path = talks.write(out.with_suffix(".jsonl"), records)
    store = packline.sft(path, tokenizer, out=out, chat_template=name, eod="<|endoftext|>", workers=0)
    lines = path.read_bytes().splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    found: dict[int, Result] = {}
    document = 0
    for shard in store.shards:
        assert shard.loss is not None
        start = 0
        for number in range(len(shard)):
            tokens = shard.document(number).tolist()
            mask = shard.loss[start : start + len(tokens)].tolist()
            start += len(tokens)
            position = store.provenance(document).position
            found[position] = Result(tokens[:-1], mask[:-1], "")
            document += 1
    for rejects in sorted((store.path / "rejects").glob("*.jsonl")):
        for line in rejects.read_text("utf-8").splitlines():
            one = json.loads(line)
            found[one["position"]] = Result([], [], f"{one['reason']}: {one['detail']}")
    return [found[start] for start in starts]


def as_transformers_takes_it(record: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Messages and tools of a published record: arguments are objects."""
    messages = json.loads(json.dumps(talks.messages_of(record)))
    for message in messages:
        message["content"] = message.get("content") or ""
        for call in message.get("tool_calls") or []:
            call["function"]["arguments"] = talks.arguments_of(call)
    return messages, record.get("tools") or [] if isinstance(record, dict) else []


def tokenizer_for(name: str, base: Path, folder: Path) -> Path:
    tokens = [*TEMPLATES[name].tokens, "<|endoftext|>"]
    return talks.with_tokens(base, folder, tuple(tokens), bos=BOS.get(name, ""))


def split_as_models_do(base: Path, out: Path) -> Path:
    """A tokenizer that splits text as those of chat models do: line breaks apart from what follows."""
    found = json.loads(base.read_text("utf-8")) | {"pre_tokenizer": PATTERNS["qwen2"].pre_tokenizer()}
    out.write_text(json.dumps(found), "utf-8")
    return out


def rendered(folder: Path, some: list[Chat], tokenizers: dict[str, Path]) -> dict[str, list[Any]]:
    """Rendering of the chats by transformers, by the named templates and by TRL's."""
    jobs = [
        {
            "name": f"{name} {kind}",
            "template": TEMPLATES[name].text if kind == "own" else None,
            "trl": TRL_TEMPLATES.get(name),
            "tokenizer": str(tokenizers[name] / "tokenizer.json"),
            "bos": BOS.get(name, ""),
            "chats": [(messages, tools) for _, messages, tools in some],
        }
        for name in tokenizers
        for kind in ("own", "trl")
        if kind == "own" or name in TRL_TEMPLATES
    ]
    path = folder / "jobs.json"
    path.write_text(json.dumps(jobs), "utf-8")
    found: dict[str, list[Any]] = run_peer(RENDER, path, modules=("transformers", "trl"))
    return found


def test_chats_of_any_shape_are_as_transformers_renders_them_or_refused(
    tokenizer_json: Path, tmp_path: Path
) -> None:
    some = chats(80)
    records: list[Any] = [
        as_record(messages, tools, sharegpt=number % 3 == 0)
        for number, (_, messages, tools) in enumerate(some)
    ]
    for path in sorted((SHARED / "evals" / "chat").glob("*.jsonl")):
        for line in path.read_text("utf-8").splitlines()[:8]:
            records.append(json.loads(line))
            some.append(("real", *as_transformers_takes_it(records[-1])))
    base = split_as_models_do(tokenizer_json, tmp_path / "tokenizer.json")
    tokenizers = {name: tokenizer_for(name, base, tmp_path / name) for name in TEMPLATES}
    wanted = rendered(tmp_path, some, tokenizers)
    counts: dict[str, Counter[str]] = {}
    for name in TEMPLATES:
        count = counts.setdefault(name, Counter())
        results = stored(records, name, tokenizers[name], tmp_path / f"{name} store")
        for number, ((shape, _, _), result) in enumerate(zip(some, results, strict=True)):
            for kind in ("own", "trl"):
                if f"{name} {kind}" not in wanted:
                    continue
                reference = wanted[f"{name} {kind}"][number]
                if result.refused:
                    count[f"{kind}: refused, {result.refused}"] += 1
                    continue
                assert not isinstance(reference, str), (name, kind, shape, number, reference)
                ids, mask, cut, cut_mask = reference
                if name == "llama3.1" and kind == "trl":
                    mask = cut_mask = result.mask
                if (result.ids, result.mask) == (ids, mask):
                    count[f"{kind}: equal"] += 1
                else:
                    # Encoded at once, a token would reach over the edge of what the assistant said.
                    assert (result.ids, result.mask) == (cut, cut_mask), (name, kind, shape, number)
                    assert (name, shape) == ("chatml", "odd spaces")
                    count[f"{kind}: equal when cut at the edges of the mask"] += 1
    equal = {name: count["own: equal"] for name, count in counts.items()}
    assert equal["qwen3"] == len(some) and equal["qwen2.5"] == len(some) - 8
    assert min(equal.values()) >= 8
