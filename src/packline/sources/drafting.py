"""Drafts of recipes from a survey of the data or a preset; comments list guesses and alternatives."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from packline.errors import RecipeError
from packline.recipe import OWN_COLUMNS, Split
from packline.sources.files import DEFAULT_ID, TEXT_FIELDS
from packline.sources.jsonl import fits_a_type
from packline.sources.survey import Fields, Survey, quoted
from packline.storage.places import is_remote

MOST_REASONS = 20
PLAIN_KINDS = ({"string"}, {"number"}, {"boolean"})


class Files(NamedTuple):
    name: str
    inputs: str
    split: Split | None = None


class Preset(NamedTuple):
    about: str
    files: tuple[Files, ...]
    text: str = "text"
    id: str | None = None
    val_fraction: float = 0.0
    also: tuple[str, ...] = ()
    """Lines of advice."""


HUB = "hf://datasets"

PRESETS: dict[str, Preset] = {
    "fineweb-edu": Preset(
        "educational pages of the web, the sample of 10 billion tokens",
        (Files("fineweb-edu", f"{HUB}/HuggingFaceFW/fineweb-edu/sample/10BT/*.parquet"),),
        id="id",
        val_fraction=0.001,
        also=(
            "More of it: sample/100BT/*.parquet, sample/350BT/*.parquet, or data/*/*.parquet for all.",
            'Only the best: where = "int_score >= 4"',
        ),
    ),
    "wikitext-103": Preset(
        "good and featured articles of Wikipedia, a paragraph or heading a row",
        (
            Files("train", f"{HUB}/Salesforce/wikitext/wikitext-103-raw-v1/train-*.parquet", "train"),
            Files("validation", f"{HUB}/Salesforce/wikitext/wikitext-103-raw-v1/validation-*.parquet", "val"),
            Files("test", f"{HUB}/Salesforce/wikitext/wikitext-103-raw-v1/test-*.parquet", "test"),
        ),
        also=("About a third of the rows is empty: they are left out and counted.",),
    ),
    "tinystories": Preset(
        "short stories in the words of small children, made by language models",
        (
            Files("train", f"{HUB}/roneneldan/TinyStories/data/train-*.parquet", "train"),
            Files("validation", f"{HUB}/roneneldan/TinyStories/data/validation-*.parquet", "val"),
        ),
    ),
    "openwebtext": Preset(
        "pages that were linked from Reddit",
        (Files("openwebtext", f"{HUB}/Skylion007/openwebtext/plain_text/train-*.parquet"),),
        val_fraction=0.0005,
        also=(
            "A copy by the hub itself: Skylion007/openwebtext@refs/convert/parquet/plain_text/*/*.parquet",
        ),
    ),
    "climbmix": Preset(
        "400 billion tokens of the web, chosen and mixed by cluster, shuffled",
        (Files("climbmix", f"{HUB}/karpathy/climbmix-400b-shuffle/shard_*.parquet"),),
        val_fraction=0.001,
        also=("The first 170 files: shard_000*.parquet and shard_001[0-6]*.parquet.",),
    ),
}


def find_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise RecipeError(f"no preset {name!r}", hint=f"there are {', '.join(sorted(PRESETS))}")
    return PRESETS[name]


PLAIN = (
    'documents = "file"               # "line": a line is a document',
    '# documents = "separator"        # what stands between separators is one:',
    '# separator = "\\n\\n\\n"',
)
CHOICES = (
    "# min_chars = 200                # shorter documents are left out",
    '# label = "knowledge"            # kept with every document, to choose by when reading',
)
READING = (
    "# weight = 1                     # for `packline init --run`, in all sources or in none: its share",
    "# tokens = 1_000_000             # of the rows; or how many tokens of it. No byte depends on it.",
)
RUN = ("", "[run]", "# workers = 8                    # by default all cores", '# memory = "8GiB"', "")


def draft_recipe(
    surveys: Sequence[Survey],
    *,
    tokenizer: str,
    eod: str | None,
    folder: Path,
    notes: Sequence[str] = (),
) -> str:
    """Draft a recipe for surveyed inputs.

    Args:
        eod: token that ends documents; None for the tokenizer's choice.
        folder: where the recipe will be: relative paths are relative to it.
        notes: comments on tokenizer and eod.
    """
    sources = []
    for one, name in zip(surveys, _names([one.name for one in surveys]), strict=True):
        lines = [f"# left out: {_in_comment(str(reason))}" for reason in one.left_out[:MOST_REASONS]]
        if (more := len(one.left_out) - MOST_REASONS) > 0:
            lines.append(f"# left out: and {more:,} more")
        inputs = [quoted(placed(given, folder)) for given in one.inputs]
        shown = ["inputs = [", *(f"    {given}," for given in inputs), "]"]
        lines += ["[[sources]]", f"name = {quoted(name)}"]
        lines += shown if len(inputs) > 1 else [f"inputs = [{inputs[0]}]"]
        sources.append([*lines, *(PLAIN if one.plain else _of_records(one.seen)), *CHOICES])
    return _draft([], sources, tokenizer, eod, folder, notes)


def draft_preset(
    name: str, preset: Preset, *, tokenizer: str, eod: str | None, folder: Path, notes: Sequence[str] = ()
) -> str:
    """Draft a recipe for a well-known data set; arguments as in `draft_recipe`."""
    sources = []
    for files in preset.files:
        lines = ["[[sources]]", f"name = {quoted(files.name)}", f"inputs = [{quoted(files.inputs)}]"]
        lines += ['format = "parquet"', f"text = {quoted(preset.text)}"]
        lines += [f"id = {quoted(preset.id)}"] if preset.id else []
        lines += [f"split = {quoted(files.split)}  # as it was published"] if files.split else []
        sources.append(lines)
    head = [f"# {name}: {preset.about}.", *(f"# {line}" for line in preset.also), "#"]
    return _draft(head, sources, tokenizer, eod, folder, notes, preset.val_fraction)


def _draft(
    head: Sequence[str],
    sources: Sequence[list[str]],
    tokenizer: str,
    eod: str | None,
    folder: Path,
    notes: Sequence[str],
    val_fraction: float = 0.0,
) -> str:
    named = placed(tokenizer, folder) if Path(tokenizer).exists() else tokenizer
    chosen = '# eod = "<|endoftext|>"          # what ends a document; by default the tokenizer\'s own'
    lines = [
        *head,
        "# A packline recipe: packline build THIS --dry-run, then packline build THIS --out store.",
        "# Lines behind # are choices that were not made; the documentation of recipes has all of them.",
        "",
        *(f"# {_in_comment(note)}" for note in notes),
        f"tokenizer = {quoted(named)}",
        chosen if eod is None else f"eod = {quoted(eod)}",
        '# bos = "<s>"                    # before every document; by default nothing',
        f"{'' if val_fraction else '# '}val_fraction = {val_fraction or 0.01}  # share for validation",
        "# test_fraction = 0.01           # share of documents for testing, by the hash of their text",
        "# limit_tokens = 1_000_000_000   # no more than the first so many",
    ]
    for number, source in enumerate(sources):
        lines += ["", *source, *(() if number else READING)]
    return "\n".join([*lines, *RUN])


def _in_comment(text: str) -> str:
    """Escape text from data, which must not end the line of a comment."""
    return text if text.isprintable() else quoted(text)


def placed(path: str, folder: Path) -> str:
    """Make a path relative to a folder; absolute paths and URIs are unchanged."""
    if is_remote(path) or Path(path).is_absolute():
        return path
    return os.path.relpath(path, folder) + ("/" if path.endswith("/") else "")


def _of_records(seen: Fields) -> Iterator[str]:
    bad = f", {seen.bad} more were bad" if seen.bad else ""
    yield f"# {seen.records} records were looked at{bad}. Fields:"
    width = max(len(_in_comment(name)) for name in seen.fields)
    for one in seen.fields.values():
        yield f"#   {_in_comment(one.name):<{width}}  {one.describe(seen.records)}"
    template, text = seen.template(), seen.text_field()
    if template is not None:
        why = "a field of messages" if seen.conversations else "several fields that belong together"
        yield f"# A guess, from {why}. {{{{ a }}}} is field a; the text is what comes out."
        if seen.conversations:
            yield "# To train on the answers only, make a store of conversations instead: packline sft --help"
        yield f"template = {quoted(template)}"
        if text is not None:
            yield f"# text = {quoted(text)}                  # or one field alone"
    elif text is not None:
        guess = "by its name" if text in TEXT_FIELDS else "a guess: the longest string"
        yield f"text = {quoted(text)}                    # {guess}"
        if (without := seen.records - seen.fields[text].kinds["string"]) > 0:
            yield f"# {without} of the {seen.records} records have no string there: such are kept in rejects/"
    if DEFAULT_ID in seen.fields:
        yield f"id = {quoted(DEFAULT_ID)}"
    plain = [one.name for one in seen.fields.values() if set(one.kinds) - {"null"} in PLAIN_KINDS]
    if names := [quoted(name) for name in plain if name not in (text, *OWN_COLUMNS) and fits_a_type(name)]:
        yield f"# columns = [{', '.join(names[:4])}]   # kept with every document, to choose by when reading"


def _names(inputs: Sequence[str]) -> list[str]:
    """Unique names of sources: the last part of their path that is not a wildcard."""
    names: list[str] = []
    for given in inputs:
        parts = [
            part for part in given.split("/") if part not in ("", ".", "..") and not set(part) & set("*?[")
        ]
        name = parts[-1].split(".")[0] if parts and parts[-1].split(".")[0] else "source"
        alike = sum(one == name or one.startswith(f"{name}-") for one in names)
        names.append(f"{name}-{alike + 1}" if alike else name)
    return names
