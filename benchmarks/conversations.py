"""Rate of `packline sft` beside transformers' own rendering, on the same conversations.

Real dialogues, as messages, with a ChatML template that marks what the assistant generates. Both contenders
give the ids and the mask of every conversation; they must be equal, or the rates are of different work. Each
runs in a fresh process, in turn: packline as the whole command with two workers, transformers in one thread.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import zstandard

from benchmarks.catalogue import TokenizerFile
from benchmarks.conversation_run import ConversationRun
from benchmarks.errors import BenchmarkError
from benchmarks.process import run_fresh
from benchmarks.results import busy_cores
from benchmarks.suite import ROOT, environment

Say = Callable[[str], None]
PACKLINE, TRANSFORMERS = "packline sft", "transformers"
ROLES = ("User", "Assistant")
TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.role == 'assistant' -%}
{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}
{%- else %}{{ message.content }}<|im_end|>{% endif %}
{% endfor %}"""


def measure_conversations(
    folder: Path, *, source: Path, tokenizer: TokenizerFile, rounds: int, peers_python: str, say: Say
) -> list[ConversationRun]:
    """Measure both contenders.

    Args:
        folder: folder for the files of the measurement.
        source: dialogues as `.jsonl.zst`, whose texts have lines `User: ...` and `Assistant: ...`.
        peers_python: interpreter with transformers.

    Raises:
        BenchmarkError: no dialogues, or the contenders differ.
    """
    work = folder / "conversations"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        write_messages(source, work / "conversations.jsonl")
        (work / "template.jinja").write_text(TEMPLATE, "utf-8")
        runs: list[ConversationRun] = []
        for number in range(1, rounds + 1):
            for contender in (PACKLINE, TRANSFORMERS):
                run = measure_once(contender, work, tokenizer, number, peers_python)
                rate = run.tokens / run.cpu_seconds / 1e6
                say(
                    f"round {number}: {contender}: {run.wall_seconds:.1f} s, {rate:.2f} M tokens a CPU second"
                )
                runs.append(run)
            check_equal(work)
        return runs
    finally:
        shutil.rmtree(work, ignore_errors=True)


def write_messages(source: Path, target: Path) -> None:
    """Dialogues without empty turns as messages, a conversation per line.

    Raises:
        BenchmarkError: there is no such file, or no dialogue in it.
    """
    try:
        data = zstandard.ZstdDecompressor().stream_reader(source.read_bytes()).read()
    except OSError as error:
        raise BenchmarkError(
            f"no dialogues in {source}: {error}", hint="name them with --dialogues"
        ) from error
    lines = []
    for record in map(json.loads, data.decode().splitlines()):
        turns = [line.partition(": ") for line in record["text"].split("\n")]
        messages = [{"role": role.lower(), "content": text} for role, _, text in turns if role in ROLES]
        if messages and all(message["content"] for message in messages):
            lines.append(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
    if not lines:
        raise BenchmarkError(f"{source} has no lines `User: ...`")
    target.write_text("".join(lines), "utf-8")


def measure_once(
    contender: str, work: Path, tokenizer: TokenizerFile, number: int, peers_python: str
) -> ConversationRun:
    """One run in a fresh process; its output stays in `work`."""
    conversations, template = str(work / "conversations.jsonl"), str(work / "template.jinja")
    if contender == PACKLINE:
        shutil.rmtree(work / "store", ignore_errors=True)
        command = [sys.executable, "-m", "packline", "sft", conversations, "--out", str(work / "store")]
        command += [
            "--tokenizer",
            tokenizer.path,
            "--eod",
            tokenizer.eod,
            "--chat-template",
            template,
            "--json",
        ]
    else:
        script = str(ROOT / "benchmarks" / "contenders" / "chat_rendering.py")
        command = [peers_python, script, conversations, tokenizer.path, template, str(work / "ids")]
    busy = busy_cores()
    before = os.times()
    outcome = run_fresh(command, cwd=ROOT, env=environment())
    after, report = os.times(), outcome.report
    if contender == PACKLINE:
        report = totals_of(work / "store") | {"seconds": report["seconds"]}
    return ConversationRun(
        contender=contender,
        round=number,
        conversations=report["conversations"],
        tokens=report["tokens"],
        trained=report["trained"],
        wall_seconds=outcome.wall_seconds,
        cpu_seconds=after.children_user
        + after.children_system
        - before.children_user
        - before.children_system,
        seconds=report["seconds"],
        busy_cores=busy,
    )


def totals_of(store: Path) -> dict[str, int]:
    """Conversations, tokens and tokens with loss of a store, without the ends of documents."""
    ids, mask = arrays_of(store)
    return {"conversations": documents_of(store), "tokens": len(ids), "trained": int(mask.sum())}


def documents_of(store: Path) -> int:
    """Number of documents."""
    import packline

    return len(packline.open(store).documents)


def arrays_of(store: Path) -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask of all conversations of a store, without the ends of documents, int32 `[N]` each."""
    import packline

    opened = packline.open(store)
    rows = opened.rows(1 + max(len(one) for one in opened.documents), packing="pad")
    ids: list[np.ndarray] = []
    masks: list[np.ndarray] = []
    for number, document in enumerate(opened.documents):
        learned = rows.read(np.array([number]), ("loss_mask",))["loss_mask"][0]
        ids.append(np.asarray(document[:-1], np.int32))
        # The target of a position is the token after it; the first token has no position before it.
        masks.append(np.concatenate([[0], learned[: len(document) - 2]]).astype(np.int32))
    return np.concatenate(ids), np.concatenate(masks)


def check_equal(work: Path) -> None:
    """Compare what the contenders wrote.

    Raises:
        BenchmarkError: ids or masks differ.
    """
    theirs = np.fromfile(work / "ids", np.int32).reshape(2, -1)
    for name, ours, other in zip(("ids", "masks"), arrays_of(work / "store"), theirs, strict=True):
        if not np.array_equal(ours, other):
            raise BenchmarkError(f"the {name} of packline and transformers differ")
