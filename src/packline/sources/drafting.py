"""Drafting of a recipe from a survey of the data or a preset, with comments on guesses and alternatives.

    survey of each input ──> one [[sources]] each, with comments ──> recipe.toml

A survey reads the first megabyte of up to four files; its results are guesses from these records. A preset is
a recipe for a well-known data set on the Hugging Face hub (`hf://`): nothing is fetched before `plan` or
`build` reads it, published splits are kept, and without any a share of documents is reserved by hash.

The drafted recipe builds without changes; its comments list the alternatives. `packline.recipe.load_recipe`
reads it.
"""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from packline.errors import InputError, RecipeError
from packline.fingerprint import Hasher
from packline.recipe import OWN_COLUMNS, Recipe, Source, Split
from packline.sources.files import DEFAULT_ID, TEXT_FIELDS, InputFile, list_files
from packline.sources.jsonl import fits_a_type
from packline.sources.reader import Span, read_span
from packline.storage.places import is_remote
from packline.where.conditions import Field as WhereField
from packline.where.records import field_value, kind_of

MOST_FILES, MOST_RECORDS = 4, 200
MOST_VALUES = 5
PLAIN_KINDS = ({"string"}, {"number"}, {"boolean"})
ENOUGH = 0.9
"""Minimum share of records with a string in a field that may be the text."""
PAIRS = (
    ("question", "answer"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("prompt", "response"),
    ("prompt", "completion"),
    ("problem", "solution"),
    ("query", "answer"),
)
CONVERSATIONS = {
    "messages": ("role", "content"),
    "conversations": ("from", "value"),
    "conversation": ("role", "content"),
}


@dataclass(slots=True)
class Field:
    """Statistics of one field in the surveyed records."""

    name: str
    kinds: Counter[str] = field(default_factory=Counter)
    values: Counter[str] = field(default_factory=Counter)
    """Counts of short strings, numbers and booleans, as text."""
    characters: list[int] = field(default_factory=list)
    """Length of each string."""
    numbers: list[float] = field(default_factory=list)

    def take(self, value: Any) -> None:
        kind = kind_of(value)
        self.kinds[kind] += 1
        if isinstance(value, str):
            self.characters.append(len(value))
        if kind == "number":
            self.numbers.append(value)
        if isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= 40):
            self.values[str(value)] += 1

    @property
    def there(self) -> int:
        """Number of records in which it is present and not null."""
        return sum(count for kind, count in self.kinds.items() if kind != "null")


@dataclass(slots=True)
class Survey:
    """Result of the survey of one input."""

    files: list[InputFile]
    records: int
    bad: int
    fields: dict[str, Field]
    conversations: str | None = None
    """Field that contains lists of messages."""

    @property
    def formats(self) -> list[str]:
        """Formats of its files."""
        return sorted({file.format for file in self.files})

    @property
    def plain(self) -> bool:
        """True if there are no fields."""
        return self.formats == ["text"]

    @property
    def bytes(self) -> int:
        """Size of its files on disk."""
        return sum(file.size for file in self.files)

    def strings(self) -> list[Field]:
        """Fields that are strings in most records, longest first."""
        least = ENOUGH * self.records
        whole = [one for one in self.fields.values() if one.kinds["string"] >= least and one.characters]
        found = [one for one in whole if fits_a_type(one.name)]
        return sorted(found, key=lambda one: -sum(one.characters))

    def text_field(self) -> str | None:
        """The field that most likely is the text."""
        names = [one.name for one in self.strings() if one.name != "id"]
        return next((name for name in TEXT_FIELDS if name in names), names[0] if names else None)

    def template(self) -> str | None:
        """Suggested template, if the text is likely to consist of several fields."""
        names = {one.name for one in self.strings()}
        if names & set(TEXT_FIELDS):
            return None
        if self.conversations is not None:
            who, what = CONVERSATIONS[self.conversations]
            loop = f"{{% for m in {self.conversations} %}}{{{{ m.{who} }}}}: {{{{ m.{what} }}}}"
            return f"{loop}{{% if not loop.last %}}\n\n{{% endif %}}{{% endfor %}}"
        for first, second in PAIRS:
            if first in names and second in names:
                extra = "{% if input %}\n\n{{ input }}{% endif %}" if "input" in names else ""
                return f"{{{{ {first} }}}}{extra}\n\n{{{{ {second} }}}}"
        return None


class _Taker:
    """Transform that only collects records."""

    fields: tuple[str, ...] | None = None

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def text(self, record: dict[str, Any]) -> str:
        self.records.append(record)
        return ""


def survey(given: str) -> Survey:
    """Survey one input: a file, a folder, a glob or a URI.

    Raises:
        InputError: nothing found, or nothing readable.
    """
    # With a template no field has to be the text, and nothing is refused for having none.
    source = Source(inputs=(given,), template="-")
    files = list_files(Recipe(sources=(source,), tokenizer="none"))
    formats = {file.format for file in files}
    if "text" in formats and len(formats) > 1:
        names = ", ".join(sorted(formats))
        raise InputError(
            f"{given} holds {names} together", hint="name them apart: folder/*.jsonl folder/*.txt"
        )
    if formats == {"text"}:
        return Survey(files, 0, 0, {})
    records: list[dict[str, Any]] = []
    bad = 0
    for file in files[:: max(len(files) // MOST_FILES, 1)][:MOST_FILES]:
        found, rejected = _first_records(file, source)
        records += found
        bad += rejected
    if not records:
        raise InputError(f"{given}: no record could be read at its beginning", hint="look at the first lines")
    fields: dict[str, Field] = {}
    for record in records:
        for name, value in record.items():
            nested = value.items() if isinstance(value, dict) else ()
            for path, one in [(name, value), *((f"{name}.{inner}", each) for inner, each in nested)]:
                fields.setdefault(path, Field(path)).take(one)
    return Survey(files, len(records), bad, fields, _conversations(records))


def _first_records(file: InputFile, source: Source) -> tuple[list[dict[str, Any]], int]:
    import msgspec

    taker = _Taker()
    if file.format == "parquet":
        from packline.sources.parquet_schema import open_parquet

        with file.open() as raw:
            columns = tuple(open_parquet(raw, file.path).schema_arrow.names)
        file = msgspec.structs.replace(file, columns=columns)
    span = Span(file.index, 0, 1 if file.format == "parquet" else file.size)
    batches = read_span(file, source, span, 64 << 20, Hasher(), taker)
    bad = sum(len(batch.rejects) for batch in islice(batches, 1))
    return taker.records[:MOST_RECORDS], bad


def _conversations(records: list[dict[str, Any]]) -> str | None:
    for name, (who, what) in CONVERSATIONS.items():
        lists = [
            value for record in records if isinstance(value := field_value(record, [name]), list) and value
        ]
        if lists and all(
            isinstance(one, dict) and isinstance(one.get(who), str) and isinstance(one.get(what), str)
            for messages in lists
            for one in messages
        ):
            return name
    return None


SHORT = 40


class Files(NamedTuple):
    """Files of one split as they were published."""

    name: str
    inputs: str
    split: Split | None = None


class Preset(NamedTuple):
    """One data set."""

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
    """Look up a preset by name.

    Raises:
        RecipeError: no such preset; the message lists all presets.

    >>> find_preset("tinystories").text
    'text'
    """
    if name not in PRESETS:
        raise RecipeError(f"no preset {name!r}", hint=f"there are {', '.join(sorted(PRESETS))}")
    return PRESETS[name]


def draft_recipe(
    surveys: Sequence[tuple[str, Survey]],
    *,
    tokenizer: str,
    eod: str | None,
    folder: Path,
    notes: Sequence[str] = (),
) -> str:
    """Draft a recipe for surveyed inputs.

    Args:
        surveys: each input as given by the user, and its survey.
        tokenizer: tokenizer as given by the user.
        eod: token that ends documents; None for the tokenizer's choice.
        folder: where the recipe will be: relative paths are relative to it.
        notes: comments on tokenizer and eod.

    Raises:
        InputError: an input has no field that could be a text.
    """
    lines = [*_head(tokenizer, eod, folder, notes), *_splits(0.0)]
    names = _names([given for given, _ in surveys])
    for number, ((given, seen), name) in enumerate(zip(surveys, names, strict=True)):
        lines += ["", "[[sources]]", f"name = {quoted(name)}", f"inputs = [{quoted(placed(given, folder))}]"]
        lines += _plain_source() if seen.plain else _record_source(given, seen)
        lines += _reading() if number == 0 else []
    return "\n".join([*lines, *_run(), ""])


def draft_preset(
    name: str, preset: Preset, *, tokenizer: str, eod: str | None, folder: Path, notes: Sequence[str] = ()
) -> str:
    """Draft a recipe for a well-known data set; arguments as in `draft_recipe`."""
    lines = [f"# {name}: {preset.about}.", *(f"# {line}" for line in preset.also), "#"]
    lines += [*_head(tokenizer, eod, folder, notes), *_splits(preset.val_fraction)]
    for number, files in enumerate(preset.files):
        lines += ["", "[[sources]]", f"name = {quoted(files.name)}", f"inputs = [{quoted(files.inputs)}]"]
        lines += ['format = "parquet"', f"text = {quoted(preset.text)}"]
        lines += [f"id = {quoted(preset.id)}"] if preset.id else []
        lines += (
            [f"split = {quoted(files.split)}                # as it was published"] if files.split else []
        )
        lines += _reading() if number == 0 else []
    return "\n".join([*lines, *_run(), ""])


def quoted(text: str) -> str:
    """Format a string as TOML.

    >>> print(quoted('a "b"\\n'))
    "a \\"b\\"\\n"
    """
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _in_comment(text: str) -> str:
    """Escape text from data, which must not end the line of a comment."""
    return text if text.isprintable() else quoted(text)


def placed(path: str, folder: Path) -> str:
    """Make a path relative to a folder; absolute paths and URIs are unchanged.

    >>> placed("data/*.jsonl", Path("recipes")), placed("s3://b/x", Path("recipes"))
    ('../data/*.jsonl', 's3://b/x')
    """
    if is_remote(path) or Path(path).is_absolute():
        return path
    return os.path.relpath(path, folder) + ("/" if path.endswith("/") else "")


def _head(tokenizer: str, eod: str | None, folder: Path, notes: Sequence[str]) -> Iterator[str]:
    yield "# A packline recipe: packline plan THIS, then packline build THIS --out store."
    yield "# Lines behind # are choices that were not made; docs/recipe.md has all of them."
    yield ""
    for note in notes:
        yield f"# {_in_comment(note)}"
    yield f"tokenizer = {quoted(placed(tokenizer, folder) if Path(tokenizer).exists() else tokenizer)}"
    if eod is None:
        yield '# eod = "<|endoftext|>"          # what ends a document; by default the tokenizer\'s own'
    else:
        yield f"eod = {quoted(eod)}"
    yield '# bos = "<s>"                    # before every document; by default nothing'


def _splits(val_fraction: float) -> Iterator[str]:
    if val_fraction:
        yield f"val_fraction = {val_fraction}           # for validation, by hash of their text"
    else:
        yield "# val_fraction = 0.01            # documents for validation, by the hash of their text"
    yield "# test_fraction = 0.01           # share of documents for testing"
    yield "# limit_tokens = 1_000_000_000   # no more than the first so many"


def _plain_source() -> Iterator[str]:
    yield 'documents = "file"               # "line": a line is a document'
    yield '# documents = "separator"        # what stands between separators is one:'
    yield '# separator = "\\n\\n\\n"'
    yield from _choices([])


def _record_source(given: str, seen: Survey) -> Iterator[str]:
    bad = f", {seen.bad} more were bad" if seen.bad else ""
    yield f"# {seen.records} records were looked at{bad}. Fields:"
    width = max(len(_in_comment(name)) for name in seen.fields)
    for one in seen.fields.values():
        yield f"#   {_in_comment(one.name):<{width}}  {_described(one, seen.records)}"
    template, text = seen.template(), seen.text_field()
    if template is not None:
        why = "a field of messages" if seen.conversations else "several fields that belong together"
        yield f"# A guess, from {why}. {{{{ a }}}} is field a; the text is what comes out."
        if seen.conversations:
            yield "# To train on the answers only, make a store of conversations instead: packline sft --help"
        yield f"template = {quoted(template)}"
        if text is not None:
            yield f"# text = {quoted(text)}                  # or one field alone"
    elif text is None:
        found = ", ".join(f"{one.name} ({_described(one, seen.records)})" for one in seen.fields.values())
        raise InputError(
            f"{given}: no field is a string in most records: found {found}",
            hint="write a recipe with a template: docs/recipe.md shows how",
        )
    else:
        guess = "by its name" if text in TEXT_FIELDS else "a guess: the longest string"
        yield f"text = {quoted(text)}                    # {guess}"
        if (without := seen.records - seen.fields[text].kinds["string"]) > 0:
            yield f"# {without} of the {seen.records} records have no string there: such are kept in rejects/"
        others = [one.name for one in seen.strings() if one.name != text and "." not in one.name]
        if title := next((name for name in ("title", "headline", "name") if name in others), None):
            sample = f"{{{{ {title} }}}}\n\n{{{{ {text} }}}}"
            yield f"# template = {quoted(sample)}   # instead of text: made of several fields"
    if DEFAULT_ID in seen.fields:
        yield f"id = {quoted(DEFAULT_ID)}"
    lengths = sorted(seen.fields[text].characters) if text is not None and template is None else []
    yield from _choices(lengths)
    if filters := list(_filters(seen, text)):
        yield from (f"# where = {quoted(one)}" for one in filters)
    plain = [one.name for one in seen.fields.values() if set(one.kinds) - {"null"} in PLAIN_KINDS]
    if names := [quoted(name) for name in plain if name not in (text, *OWN_COLUMNS) and fits_a_type(name)]:
        yield f"# columns = [{', '.join(names[:4])}]   # kept with every document, to choose by when reading"


def _choices(lengths: list[int]) -> Iterator[str]:
    if len(lengths) > 1:
        low, middle, high = (lengths[(len(lengths) - 1) * part // 20] for part in (1, 10, 19))
        yield f"# Characters: half of the texts up to {middle:,}, a 20th up to {low:,} or from {high:,}"
    yield "# min_chars = 200                # shorter documents are left out"
    yield '# label = "knowledge"            # kept with every document, to choose by when reading'


def _filters(seen: Survey, text: str | None) -> Iterator[str]:
    for one in seen.fields.values():
        name = WhereField(one.name)
        if one.name == text or one.kinds["string"] + one.kinds["number"] < seen.records / 2:
            continue
        if one.numbers and len(one.numbers) > len(one.characters):
            middle = statistics.median_low(one.numbers)
            yield f"{name} >= {middle}"
        elif 1 < len(one.values) <= MOST_VALUES and sum(one.values.values()) == one.there:
            kept = ", ".join(repr(value) for value, _ in one.values.most_common(2))
            yield f"{name} in [{kept}]"


def _reading() -> Iterator[str]:
    yield "# weight = 1                     # for `packline init --run`, in all sources or in none: its share"
    yield "# tokens = 1_000_000             # of the rows; or how many tokens of it. No byte depends on it."


def _run() -> Iterator[str]:
    yield from ("", "[run]", "# workers = 8                    # by default all cores", '# memory = "8GiB"')


def _described(one: Field, records: int) -> str:
    kinds = " or ".join(sorted(kind for kind in one.kinds if kind != "null")) or "null"
    parts = [kinds]
    if one.there < records:
        parts.append(f"in {one.there} of {records}")
    if one.numbers:
        parts.append(f"{min(one.numbers):g} to {max(one.numbers):g}")
    elif one.characters:
        if 1 <= len(one.values) <= MOST_VALUES and sum(one.values.values()) == one.there:
            shown = ", ".join(quoted(value) for value, _ in one.values.most_common())
            parts.append(shown if len(shown) <= SHORT else f"{len(one.values)} values")
        else:
            parts.append(f"{statistics.fmean(one.characters):,.0f} characters on average")
    return ", ".join(parts)


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
