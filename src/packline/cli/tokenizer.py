r"""Train a tokenizer, compare it with others, check it, write it for a trainer.

train learns a byte-level BPE from text of any size, with the same merges as
HF's trainer. eval measures bytes per token next to baselines, by kind of text
and by language. check compares a tokenizer with a model's embedding, its own
declarations, hard text and every engine. export writes the files of nanochat.

Examples:

  packline tokenizer train 'web/*.jsonl.zst' --vocab-size 32768 --out tok
  packline tokenizer train corpus/ --vocab-size 32768 --pattern nanochat \
      --specials nanochat --max-chars 2000000000 --doc-chars 10000 --out tok
  packline tokenizer eval tok --against gpt2 --against cl100k_base \
      --text mine=notes.txt --html tok.html
  packline tokenizer check tok --model config.json
  packline tokenizer export tok --to nanochat --out ~/.cache/nanochat/tokenizer
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Group, Parameter

from packline.cli.arguments import Count, Length, option
from packline.cli.main import DONE, FAILED, page_of
from packline.cli.output import Facts, Line, output, table
from packline.cli.progress import some
from packline.conversion import is_toml
from packline.encoders.tiktoken import PatternName
from packline.errors import RecipeError
from packline.viewing.page import Block, Heading, KeyValues, Note, Page, Table
from packline.viewing.text import duration, percent, plural, size

if TYPE_CHECKING:
    from packline.encoders.parity import RoundTrip
    from packline.vocabulary.evaluating import ComparisonRow, Evaluation, Measured, TokenizerComparison
    from packline.vocabulary.trained_folder import TrainingReport
    from packline.vocabulary.training import TrainingProgress

LEARNING = Group("Learning", sort_key=10)
TEXTS = Group("Texts", sort_key=20)
SHOWN = Group("Output format", sort_key=30)
MOODS = {"ok": "good", "note": "warning", "problem": "error"}

PAGE = page_of(sys.modules[__name__])
tokenizer = App(
    name="tokenizer",
    help=PAGE["help"],
    help_epilogue=PAGE["help_epilogue"],
    help_format="plaintext",
    result_action="return_value",
)
"""The command and its own commands."""


@tokenizer.command
def train(
    *inputs: Annotated[str, Parameter(help="Files, folders, globs or URIs of text; or one recipe (.toml).")],
    vocab_size: Annotated[
        Length, Parameter(help="Total number of tokens: bytes, merges and special tokens.", group=LEARNING)
    ],
    out: Annotated[str, Parameter(help="Output folder, new or empty.", alias="-o")],
    pattern: Annotated[
        PatternName, Parameter(help="Pattern that splits text into words before merging.", group=LEARNING)
    ] = "gpt4",
    specials: Annotated[
        Literal["endoftext", "nanochat", "none"],
        Parameter(help="Preset of special tokens; nanochat's nine have the last ids.", group=LEARNING),
    ] = "endoftext",
    special_tokens: Annotated[
        list[str] | None,
        option("Special tokens instead of a preset, in the order of their ids. May be repeated.", LEARNING),
    ] = None,
    specials_last: Annotated[
        bool | None, option("Give special tokens the last ids instead of the first.", LEARNING)
    ] = None,
    eos: Annotated[str | None, option("Special token that ends a document.", LEARNING)] = None,
    bos: Annotated[str | None, option("Special token that begins a document.", LEARNING)] = None,
    text: Annotated[str | None, option("Field of the text. Default: as in build.", TEXTS)] = None,
    max_chars: Annotated[Count | None, option("Maximum characters, from the beginning.", TEXTS)] = None,
    doc_chars: Annotated[Count | None, option("Maximum characters of a document.", TEXTS)] = None,
    memory: Annotated[
        str, Parameter(help="Memory limit; beyond it rare words are dropped and counted.", group=LEARNING)
    ] = "4GiB",
    threads: Annotated[
        int | None, option("Threads that count words. Default: one per usable core.", LEARNING)
    ] = None,
    force: Annotated[bool, Parameter(help="Write into a folder that is not empty.", negative="")] = False,
) -> int:
    """Train a byte-level BPE tokenizer on text.

    The merges are those of HF's trainer, and the folder loads in transformers and with --tokenizer.
    """
    from packline.jobs.resources import keep_freed_memory
    from packline.quantities import parse_bytes
    from packline.recipe import Recipe, Source, check_recipe, load_recipe
    from packline.vocabulary.trained_folder import SPECIALS, train_folder

    if not inputs:
        raise RecipeError("no inputs", hint="name files, folders or globs of text, or a recipe")
    if len(inputs) == 1 and is_toml(inputs[0]):
        if text is not None:
            raise RecipeError("--text belongs to a source: in a recipe, write it under [[sources]]")
        recipe = load_recipe(inputs[0])[0]
    else:
        recipe = check_recipe(Recipe(sources=(Source(inputs=inputs, text=text),), tokenizer=""))
    tokens, place = SPECIALS[specials]
    if special_tokens is not None:
        tokens, place = tuple(special_tokens), "first"
    if specials_last is not None:
        place = "last" if specials_last else "first"
    keep_freed_memory()  # words are counted in short-lived buffers
    with watch_training() as hear:
        report = train_folder(
            recipe,
            vocab_size,
            out,
            pattern=pattern,
            special_tokens=tokens,
            place=place,
            eos=eos,
            bos=bos,
            max_chars=max_chars,
            doc_chars=doc_chars,
            memory_bytes=parse_bytes(memory),
            threads=threads,
            force=force,
            on_progress=hear,
        )
    output.facts(training_facts(report, out, max_chars, doc_chars))
    return output.result("tokenizer train", report, out=out)


@tokenizer.command(name="eval")
def evaluate(
    name: Annotated[str, Parameter(help="Tokenizer: a file, a folder or a hub id.")],
    /,
    *,
    against: Annotated[
        list[str] | None,
        option("Baseline: a file, a folder, a hub id, gpt2, cl100k_base. May be repeated.", TEXTS),
    ] = None,
    text: Annotated[
        list[str] | None,
        option("Your own text in any format of build, or NAME=FILE. May be repeated.", TEXTS),
    ] = None,
    markdown: Annotated[bool, Parameter(help="Print Markdown.", negative="", group=SHOWN)] = False,
    html: Annotated[str | None, option("Write a page that opens offline.", SHOWN)] = None,
) -> int:
    """Compare a tokenizer with others: bytes per token, by kind of text and by language."""
    from packline.encoders.tokenizer import load_tokenizer
    from packline.viewing.html import check_place, write_page
    from packline.vocabulary.evaluating import compare_tokenizers
    from packline.vocabulary.texts import PASSAGES, read_text

    if html is not None:
        check_place(html)
    texts = dict(PASSAGES)
    for given in text or ():
        named, equals, path = given.partition("=")
        named, path = (named, path) if equals and not Path(given).exists() else (Path(given).name, given)
        if named in texts or named == "all":  # the name of their sum
            raise RecipeError(f"two texts are called {named!r}", hint="name one with --text NAME=FILE")
        texts[named] = read_text(path)
    found = compare_tokenizers(load_tokenizer(name), against or (), texts)
    if markdown:
        for line in evaluation_markdown(found).splitlines():
            output.line(line)
    else:
        output.page(evaluation_page(found))
    if html is not None:
        write_page(evaluation_page(found), Path(html))
        output.note(("written: ", "quiet"), html)
    return output.result("tokenizer eval", found)


@tokenizer.command
def check(
    name: Annotated[str, Parameter(help="Tokenizer: a file, a folder or a hub id.")],
    /,
    *,
    model: Annotated[
        str | None, Parameter(help="The model's config.json, or its folder.", show_default=False)
    ] = None,
) -> int:
    """Check a tokenizer: ids, special tokens, round trip, engines, and the model's embedding."""
    from packline.vocabulary.evaluating import inspect_tokenizer

    report = inspect_tokenizer(name, model)
    rows: list[Line] = [
        [(found.level, MOODS[found.level]), (found.about, "quiet"), found.text] for found in report.findings
    ]
    output.lines(table(rows, "lll", width=output.wrap))
    output.line("  ", ("all is well", "good") if report.ok else ("there are problems", "error"))
    return output.result("tokenizer check", report, code=DONE if report.ok else FAILED)


@tokenizer.command
def export(
    name: Annotated[str, Parameter(help="Tokenizer: a file, a folder or a hub id.")],
    /,
    *,
    to: Annotated[Literal["nanochat"], Parameter(help="Trainer that reads the files.")],
    out: Annotated[str, Parameter(help="Output folder, new or empty.", alias="-o")],
    force: Annotated[bool, Parameter(help="Write into a folder that is not empty.", negative="")] = False,
) -> int:
    """Write a tokenizer in a trainer's own files, with equal ids, or refuse it."""
    from packline.vocabulary.trained_folder import export_to_nanochat

    report = export_to_nanochat(name, out, force=force)
    checked = f"tiktoken gives equal ids for {report.checked_texts} hard texts"
    missing = f"{', '.join(report.missing_tokens)}: nanochat pretrains, but does not fine-tune"
    output.facts(
        {
            "written": f"{out}: {', '.join(report.files)}",
            "tokens": f"{report.vocab_size:,}",
            "checked": checked if report.checked_texts else "merges only: tiktoken is not installed",
            "use": "as the folder tokenizer in $NANOCHAT_BASE_DIR",
            "missing": missing if report.missing_tokens else "",
        }
    )
    return output.result("tokenizer export", report, to=to, out=out)


def training_state(now: TrainingProgress, seconds: float) -> tuple[float, str]:
    """Share of the merges that are found, and the progress of a training as one line."""
    learned = f"{plural(now.documents, 'document')}, {size(now.text_bytes)} of text"
    if now.merges:
        return now.merges / now.wanted, f"{learned}  {now.merges:,} of {now.wanted:,} merges"
    return 0.0, f"counting words of {learned}  {size(int(now.text_bytes / max(seconds, 0.1)))}/s"


@contextmanager
def watch_training() -> Iterator[Callable[[TrainingProgress], None]]:
    """Show a running training. Yields the function that receives its progress."""
    began = time.monotonic()
    with output.progress() as show:
        show(0.0, "looking at the inputs ...")
        yield lambda progress: show(*training_state(progress, time.monotonic() - began))


def training_facts(report: TrainingReport, out: str, max_chars: int | None, doc_chars: int | None) -> Facts:
    one = report.token_bytes
    special = ", ".join(f"{token} {number}" for token, number in report.special_tokens.items())
    learned = f"{plural(report.documents, 'document')} of {plural(report.files, 'file')}"
    cut, left_out, held_out, notes = report.cut_documents, report.left_out, report.held_out, []
    if report.vocab_size < report.asked_vocab_size:
        notes.append(f"no pair was left to merge: {report.asked_vocab_size:,} tokens were requested")
    if report.forgotten_words:
        forgotten = f"{report.forgotten_words:,} rare words did not fit into memory"
        notes.append(f"{forgotten}, {percent(report.forgotten_share)} of the distinct ones")
    return {
        "tokenizer": (out, "title"),
        "vocabulary": f"{report.vocab_size:,} tokens, {report.merges:,} merges, pattern {report.pattern}",
        "special tokens": f"{len(report.special_tokens)}: {special}" if special else "none",
        "token bytes": f"min {one.min}, max {one.max}, mean {one.mean:.2f}, std {one.std:.2f}",
        "learned from": f"{learned}, {size(report.text_bytes)}",
        "words": some(report.words, f"{report.words or 0:,} distinct"),
        "stopped": some(report.stopped_early, f"at {max_chars or 0:,} characters; what follows was not read"),
        "cut": some(cut, f"{plural(cut, 'document')} at {doc_chars or 0:,} characters"),
        "left out": some(left_out, f"{plural(left_out, 'document')} that are empty or filtered"),
        "held out": some(held_out, f"{plural(held_out, 'document')} for validation and testing"),
        "time": f"{duration(report.seconds)}, trained by {report.trainer}",
        "note": notes,
        "bad records": [f"{count:,} {reason}" for reason, count in report.bad_records.items()],
    }


OURS = ("Text Type", "Bytes", "Tokens", "Ratio", "Fertility")
LEGEND = (
    "Ratio: bytes per token, more is better. Relative Diff: how many fewer tokens ours needs"
    " than the other. Fertility: tokens per word, of words between white space."
)
ROUND_TRIPS: dict[RoundTrip, str] = {
    "exact": "exact, checked on every text",
    "normalized": "exact for the normalized text, checked on every text",
    "lossy": "lossy: white space, case or letters are changed",
}


def evaluation_page(found: Evaluation) -> Page:
    blocks: list[Block] = [
        KeyValues(
            (
                ("vocabulary", f"{found.vocab_size:,} tokens"),
                ("unused by these texts", _unused(found.unused, found.vocab_size)),
                ("round trip", ROUND_TRIPS[found.round_trip]),
            )
        ),
        Note(LEGEND),
    ]
    if not found.comparisons:
        rows = tuple(
            (name, f"{found.texts[name]:,}", *_measured(one)) for name, one in found.measured.items()
        )
        blocks.append(Table("Ours", OURS, rows, "lrrrr"))
        languages = tuple((name, *_measured(one)) for name, one in found.languages.items())
        blocks.append(
            Table("The same sentences in several languages", ("Language", *OURS[2:]), languages, "lrrr")
        )
    blocks += _unknown(found.tokenizer, found.measured | found.languages)
    for one in found.comparisons:
        blocks += [Heading(f"Compared with {one.base}"), _facts(one)]
        blocks.append(Table("By kind of text", head(one), _cells([*one.rows, one.whole]), "lrrrrrrl"))
        blocks.append(
            Table(
                "The same sentences in several languages",
                ("Language", *head(one)[1:]),
                _cells(one.languages),
                "lrrrrrrl",
            )
        )
        blocks += _unknown(one.base, {row.text: row.base for row in [*one.rows, *one.languages]})
    blocks += [Note(f"{one.base} is not available: {one.reason}", "warning") for one in found.absent]
    return Page(f"Tokenizer {found.tokenizer}", tuple(blocks))


def head(one: TokenizerComparison) -> tuple[str, ...]:
    base = one.base.rstrip("/").rpartition("/")[2]
    return (
        "Text Type",
        "Bytes",
        f"{base} Tokens",
        "Ratio",
        "Ours Tokens",
        "Ratio",
        "Relative Diff %",
        "Better",
    )


def _unknown(name: str, texts: Mapping[str, Measured]) -> list[Block]:
    """Warnings about text that a vocabulary has no tokens for, where a low token count means nothing."""
    counts = {text: one.unknown for text, one in texts.items() if one.unknown}
    if not counts:
        return []
    listed = ", ".join(f"{text} {count:,}" for text, count in counts.items())
    return [
        Note(
            f"{name} has no tokens for parts of these texts, so low counts there mean nothing."
            f" Unknown tokens: {listed}.",
            "warning",
        )
    ]


def _measured(one: Measured) -> tuple[str, str, str]:
    return f"{one.tokens:,}", f"{one.bytes_per_token:.2f}", f"{one.fertility:.2f}"


def _unused(count: int, whole: int) -> str:
    return f"{count:,} tokens, {percent(count / max(whole, 1))}"


def _facts(one: TokenizerComparison) -> KeyValues:
    return KeyValues(
        (
            ("vocabulary", f"{one.base_vocab_size:,} tokens"),
            ("unused by these texts", _unused(one.base_unused, one.base_vocab_size)),
            ("round trip", ROUND_TRIPS[one.base_round_trip]),
            ("tokens per word", f"{one.whole.base.fertility:.2f}, ours {one.whole.ours.fertility:.2f}"),
        )
    )


def _cells(rows: Sequence[ComparisonRow]) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (
            row.text,
            f"{row.bytes:,}",
            f"{row.base.tokens:,}",
            f"{row.base.bytes_per_token:.2f}",
            f"{row.ours.tokens:,}",
            f"{row.ours.bytes_per_token:.2f}",
            f"{row.diff_percent:+.1f}%" if row.better != "neither" else "-",
            row.better,
        )
        for row in rows
    )


def evaluation_markdown(found: Evaluation) -> str:
    lines = [f"# Tokenizer {_safe(found.tokenizer)}"]
    for block in evaluation_page(found).blocks:
        lines.append("")
        if isinstance(block, Heading):
            lines.append(f"## {_safe(block.text)}")
        elif isinstance(block, Note):
            lines.append(_safe(block.text))
        elif isinstance(block, KeyValues):
            lines += [f"- {name}: {_safe(str(value))}" for name, value in block.rows]
        elif isinstance(block, Table):
            lines += [f"### {block.caption}", "", _line(block.head_texts)]
            lines.append("|" + "|".join("---:" if side == "r" else "---" for side in block.align) + "|")
            lines += [_line(tuple(map(str, row))) for row in block.rows]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_safe(cell) for cell in cells) + " |"


def _safe(text: str) -> str:
    """Escape a text, such as a file name, so that it cannot act as Markdown."""
    return "".join(f"\\{letter}" if letter in "\\`|<>[]*_#" else letter for letter in text).replace("\n", " ")
