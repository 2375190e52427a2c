"""`packline evals`: evaluation sets as tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from packline.chat.named_templates import TEMPLATES
from packline.cli.arguments import make_options, option
from packline.cli.output import output
from packline.cli.sft import read_template
from packline.errors import RecipeError
from packline.evals.making import (
    MAX_SEQ_LEN,
    EvalsSettings,
    TaskReport,
    make_chat,
    make_core,
    make_hellaswag,
)
from packline.viewing.page import Table
from packline.viewing.text import plural

QUESTIONS = Group("Questions", sort_key=5)
TOKENS = Group("Tokens", sort_key=20)
FILES = Group("Files", sort_key=30)
OF_EVALS = {
    TOKENS: {
        "chat_template": f"chat: template to ask by: {', '.join(TEMPLATES)}; or a file. Default: nanochat's "
        "tokens where the tokenizer has them, else its own template.",
        "bos": "First token of every sequence: its string or id. Default: <|bos|> or the tokenizer's own; "
        "for hellaswag none; with a chat template as it writes.",
        "max_seq_len": "Maximum tokens; longer prompts lose their beginning, or are left out in chat. "
        f"Default: {MAX_SEQ_LEN:,}.",
    },
    FILES: {
        "format": "Format of the files: npz (default), safetensors, pt (stacks' dicts), llmc.",
        "force": "Replace existing sets.",
    },
}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EvalOptions(make_options((EvalsSettings,), OF_EVALS)):  # type: ignore[misc]
    """Settings of sets; None for those not given."""


_OPTIONS = EvalOptions()


def evals(
    kind: Annotated[Literal["core", "chat", "hellaswag"], Parameter(help="Kind of evaluation.")],
    path: Annotated[
        str | None,
        Parameter(help="core: the folder with core.yaml; hellaswag: its file.", show_default=False),
    ] = None,
    /,
    *,
    tokenizer: Annotated[
        str,
        option("A tokenizer.json, a folder with one, a hub id, a .tiktoken or SentencePiece file.", TOKENS),
    ],
    out: Annotated[str, option("Output folder; created if missing.", FILES, alias="-o")],
    mmlu: Annotated[
        str | None, option("chat: file or folder of MMLU; its test split, if there are several.", QUESTIONS)
    ] = None,
    arc_easy: Annotated[str | None, option("chat: file or folder of ARC-Easy.", QUESTIONS)] = None,
    arc_challenge: Annotated[str | None, option("chat: file or folder of ARC-Challenge.", QUESTIONS)] = None,
    task: Annotated[
        list[str] | None, option("core: only this task, by its label. May be repeated.", QUESTIONS)
    ] = None,
    options: EvalOptions = _OPTIONS,
) -> int:
    r"""Tokenize evaluation sets and mark the scored tokens.

    KIND is core (PATH: a bundle of the CORE benchmark), chat (MMLU and ARC as
    questions to an assistant, in nanochat's tokens or by the chat template; files
    by --mmlu, --arc-easy, --arc-challenge) or hellaswag (PATH: its JSON lines).
    Few-shot prompts, seeds, truncation, start and end are those of nanochat and
    stacks. Writes one file per task, and config.json.

    Examples:

      packline evals core eval_bundle --tokenizer my/tokenizer.json --out core
      packline evals core eval_bundle --tokenizer gpt2/tokenizer.json \
          --bos '<|endoftext|>' --max-seq-len 1024 --task copa --out core
      packline evals chat --mmlu mmlu/test --arc-easy arc/easy \
          --tokenizer my/tokenizer.json --out chat
      packline evals chat --mmlu mmlu/test --tokenizer qwen3 \
          --chat-template chatml.jinja --out chat
      packline evals hellaswag hellaswag_val.jsonl --format llmc \
          --tokenizer gpt2/tokenizer.json --out hellaswag
    """
    chat = {"MMLU": mmlu, "ARC-Easy": arc_easy, "ARC-Challenge": arc_challenge}
    given = options.given()
    files = {f"--{label.lower()}": place for label, place in chat.items()}
    _check(kind, {"PATH": path, "--task": task, "--chat-template": given.get("chat_template"), **files})
    if "chat_template" in given:
        given["chat_template"] = read_template(given["chat_template"])
    settings = EvalsSettings(tokenizer=tokenizer, out=out, **given)

    def hear(report: TaskReport) -> None:
        output.note(f"  {report.label}  {plural(report.sequences, 'sequence')}")

    if kind == "core":
        reports = make_core(path or "", settings, labels=tuple(task or ()), on_task=hear)
    elif kind == "chat":
        named = {label: place for label, place in chat.items() if place is not None}
        reports = make_chat(named, settings, on_task=hear)
    else:
        reports = make_hellaswag(path or "", settings, on_task=hear)
    output.blocks(task_table(reports))
    for report in reports:
        if report.reason:
            output.warning(report.reason, "")
    return output.result("evals", kind=kind, out=out, tasks=reports)


OF_KIND = {
    "core": ("PATH", "--task"),
    "chat": ("--mmlu", "--arc-easy", "--arc-challenge", "--chat-template"),
    "hellaswag": ("PATH",),
}
"""Options of each kind of evaluation."""


def _check(kind: str, given: dict[str, Any]) -> None:
    """Refuse what does not belong to a kind, and a kind without its path."""
    for name, value in given.items():
        if value and name not in OF_KIND[kind]:
            raise RecipeError(f"{name} is not for {kind}, which takes {', '.join(OF_KIND[kind])}")
    if kind != "chat" and given["PATH"] is None:
        wanted = "the folder of a bundle" if kind == "core" else "a file of questions"
        raise RecipeError(f"{kind} needs {wanted}", hint=f"packline evals {kind} PATH")


def task_table(reports: list[TaskReport]) -> Table:
    head = ("task", "kind", "questions", "sequences", "tokens", "cut on the left", "too long", "not scored")
    rows = tuple(
        (
            one.label,
            one.task_type,
            *(f"{n:,}" for n in (one.questions, one.sequences, one.tokens)),
            *(f"{n:,}" if n else "" for n in (one.truncated, one.skipped, one.unscored)),
        )
        for one in reports
    )
    return Table("", head, rows, "llrrrrrr")
