"""Drafts of recipes from a survey of the data or a preset; comments list guesses and alternatives.

Each kind of file (a format, and the fields of the text) becomes a source, whose globs match no file of
another kind; its fields are those of the first records of some files.
"""

from __future__ import annotations

import glob
import json
import os
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from packline.errors import InputError, PacklineError, RecipeError
from packline.recipe import OWN_COLUMNS, Recipe, Source, Split
from packline.sources.files import (
    COMPRESSED_NAMES,
    DEFAULT_ID,
    TEXT_FIELDS,
    InputFile,
    list_files,
    refuse_all,
)
from packline.sources.jsonl import fits_a_type
from packline.sources.listing import map_files, spread
from packline.sources.records import first_objects
from packline.storage.places import is_remote
from packline.where.conditions import field_value, kind_of

MOST_FILES, MOST_ALIKE, MOST_RECORDS = 4, 64, 200
"""Numbers of files of a kind whose fields are shown, of files with the same ending, of records of a file."""
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


MOST_VALUES, SHORT = 5, 40
"""Number and length of the values of a field that are shown."""


@dataclass(slots=True)
class Field:
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

    def describe(self, records: int) -> str:
        """Kind, presence and values, for comments and messages."""
        parts = [" or ".join(sorted(kind for kind in self.kinds if kind != "null")) or "null"]
        if self.there < records:
            parts.append(f"in {self.there} of {records}")
        if self.numbers:
            parts.append(f"{min(self.numbers):g} to {max(self.numbers):g}")
        elif self.characters:
            if 1 <= len(self.values) <= MOST_VALUES and sum(self.values.values()) == self.there:
                shown = ", ".join(quoted(value) for value, _ in self.values.most_common())
                parts.append(shown if len(shown) <= SHORT else f"{len(self.values)} values")
            else:
                parts.append(f"{statistics.fmean(self.characters):,.0f} characters on average")
        return ", ".join(parts)

    @property
    def there(self) -> int:
        return sum(count for kind, count in self.kinds.items() if kind != "null")


Kind = tuple[str, ...]
"""Format, and fields of the text; empty for a file without records."""


class Looked(NamedTuple):
    records: list[dict[str, Any]]
    bad: int
    kind: Kind = ()


@dataclass(slots=True)
class Fields:
    looked: Sequence[Looked]
    records: int = field(init=False)
    fields: dict[str, Field] = field(init=False, default_factory=dict)
    conversations: str | None = field(init=False)
    """Field that contains lists of messages."""

    def __post_init__(self) -> None:
        records = [record for one in self.looked for record in one.records]
        self.records, self.conversations = len(records), _conversations(records)
        for record in records:
            for name, value in record.items():
                nested = value.items() if isinstance(value, dict) else ()
                for path, one in [(name, value), *((f"{name}.{inner}", each) for inner, each in nested)]:
                    self.fields.setdefault(path, Field(path)).take(one)

    @property
    def bad(self) -> int:
        return sum(one.bad for one in self.looked)

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

    def parts(self) -> tuple[str, ...]:
        """Fields that the text is likely to consist of, if they are several: messages, or a pair."""
        names = {one.name for one in self.strings()}
        if names & set(TEXT_FIELDS):
            return ()
        if self.conversations is not None:
            return (self.conversations,)
        return next((pair for pair in PAIRS if names.issuperset(pair)), ())

    def template(self) -> str | None:
        match self.parts():
            case (messages,):
                who, what = CONVERSATIONS[messages]
                loop = f"{{% for m in {messages} %}}{{{{ m.{who} }}}}: {{{{ m.{what} }}}}"
                return f"{loop}{{% if not loop.last %}}\n\n{{% endif %}}{{% endfor %}}"
            case (first, second):
                names = {one.name for one in self.strings()}
                extra = "{% if input %}\n\n{{ input }}{% endif %}" if "input" in names else ""
                return f"{{{{ {first} }}}}{extra}\n\n{{{{ {second} }}}}"
        return None

    def of_text(self) -> tuple[str, ...]:
        """Fields by which files belong to one source or to several; empty if there is no text."""
        if not (found := self.parts()) and (text := self.text_field()):
            names = sorted(one.name for one in self.strings() if one.name != "id")
            found = (text,) if text in TEXT_FIELDS else tuple(names)
        return found


class Survey(NamedTuple):
    name: str
    """Input, with the format if its files are of several kinds."""
    inputs: list[str]
    """Paths and globs of the files."""
    plain: bool
    """True for plain text, which has no fields."""
    seen: Fields
    left_out: list[PacklineError]
    """Files of the input that are of no kind, with the reasons; of its first survey only."""


def quoted(text: str) -> str:
    """Format a string as TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def survey(given: str) -> list[Survey]:
    """Survey one input: a file, a folder, a glob or a URI. One result for each kind of its files."""
    # With a template no field has to be the text, and nothing is refused for having none.
    source = Source(inputs=(given,), template="-")
    problems: dict[str, PacklineError] = {}
    kinds = _kinds(list_files(Recipe(sources=(source,), tokenizer="none"), problems), problems)
    if not kinds:
        refuse_all(list(problems.values()))
    alone = len(kinds) == 1
    groups = [[file.path for file in files] for files, _ in kinds.values()]
    inputs = [[given]] if alone and not problems else _globs(given, [*groups, list(problems)])
    left_out = [problems[path] for path in sorted(problems)]
    found: list[Survey] = []
    for (kind, (_, looked)), globs in zip(kinds.items(), inputs, strict=False):
        name = given if alone else f"{given.rstrip('/')}-{kind[0]}"
        seen = Fields(looked[:: max(len(looked) // MOST_FILES, 1)][:MOST_FILES])
        found.append(Survey(name, globs, kind[0] == "text", seen, [] if found else left_out))
    return found


def _kinds(
    files: list[InputFile], problems: dict[str, PacklineError]
) -> dict[Kind, tuple[list[InputFile], list[Looked]]]:
    """Files of each kind, and what was looked at; files without text are added to the problems."""
    kinds: dict[Kind, tuple[list[InputFile], list[Looked]]] = {}
    alike: dict[tuple[str, ...], list[InputFile]] = {}
    not_text: list[InputFile] = []
    no_records: list[InputFile] = []
    for file in files:
        if file.format != "text":
            key = (file.format, file.path.rpartition("/")[0], *_endings(file.path))
            alike.setdefault(key, []).append(file)
        elif file.not_utf8:
            not_text.append(file)
        else:
            kinds.setdefault(("text",), ([], []))[0].append(file)
    for group in alike.values():
        most = MOST_FILES if is_remote(group[0].path) else MOST_ALIKE
        some = spread(group, most)
        looked = list(map_files(_look, some))
        found = {isinstance(one, Looked) and one.kind for one in looked}
        if len(some) < len(group) and (len(found) > 1 or False in found):
            some, looked = group, list(map_files(_look, group))
        known = {file.path: one for file, one in zip(some, looked, strict=True)}
        for file in group:
            one = known.get(file.path, looked[0])
            if isinstance(one, PacklineError):
                problems[file.path] = one
            elif not one.kind:
                no_records.append(file)
            else:
                own, records = kinds.setdefault(one.kind, ([], []))
                own.append(file)
                records += [one] if file.path in known else []
    for file in no_records:
        if like := next((own for kind, (own, _) in kinds.items() if kind[0] == file.format), None):
            like.append(file)
        else:
            problems[file.path] = InputError(f"{file.path}: no records", hint="leave it out")
    if not_text and not kinds:
        return {("text",): (not_text, [])}
    problems |= {file.path: InputError(f"{file.path} is not UTF-8 text") for file in not_text}
    return kinds


def _look(file: InputFile) -> Looked | PacklineError:
    try:
        records, bad = first_objects(file, MOST_RECORDS)
    except PacklineError as error:
        return error
    if not records and not bad:
        return Looked([], 0)
    if not records:
        return InputError(
            f"{file.path}: no record could be read at its beginning", hint="look at the first lines"
        )
    seen = Fields([Looked(records, bad)])
    if not (fields := seen.of_text()):
        found = ", ".join(f"{one.name} ({one.describe(len(records))})" for one in seen.fields.values())
        return InputError(
            f"{file.path}: no field is a string in most records: found {found}",
            hint='write a recipe with a template, such as template = "{{ title }}: {{ body }}"',
        )
    return Looked(records, bad, (file.format, *fields))


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


def _globs(given: str, groups: list[list[str]]) -> list[list[str]]:
    """Inputs for each group of paths below an input: the widest globs that match no path of another group."""
    folder = f"{given.rstrip('/')}/"
    if not all(path.startswith(folder) for group in groups for path in group):
        folder = ""

    def globs(path: str) -> Iterator[str]:
        endings = [glob.escape(ending) for ending in _endings(path)]
        parent = f"{glob.escape(path.rpartition('/')[0])}/*"
        if folder:
            yield from (f"{glob.escape(folder)}**/*{ending}" for ending in endings)
            yield from (parent + ending for ending in [*endings, ""])
        elif given.endswith("/*"):
            yield from (given + ending for ending in endings)
        yield path

    owners: dict[str, set[int]] = {}
    for number, group in enumerate(groups):
        for path in group:
            for one in globs(path):
                owners.setdefault(one, set()).add(number)
    return [
        list(dict.fromkeys(next(one for one in globs(path) if len(owners[one]) == 1) for path in group))
        for group in groups
    ]


def _endings(path: str) -> list[str]:
    """Endings of a file's name, as written: with and without that of the format before a compression's."""
    endings = PurePosixPath(path).suffixes[-2:]
    packed = bool(endings) and endings[-1].lower() in COMPRESSED_NAMES
    return ["".join(endings), *endings[1:]] if packed else endings[-1:]


MOST_REASONS = 20
PLAIN_KINDS = ({"string"}, {"number"}, {"boolean"})


class Files(NamedTuple):
    name: str
    inputs: str
    split: Split | None = None


class Preset(NamedTuple):
    name: str
    about: str
    files: tuple[Files, ...]
    id: str | None = None
    val_fraction: float = 0.0
    also: tuple[str, ...] = ()
    """Lines of advice."""


HUB = "hf://datasets"

PRESETS = (
    Preset(
        "fineweb-edu",
        "educational pages of the web, the sample of 10 billion tokens",
        (Files("fineweb-edu", f"{HUB}/HuggingFaceFW/fineweb-edu/sample/10BT/*.parquet"),),
        id="id",
        val_fraction=0.001,
        also=(
            "More of it: sample/100BT/*.parquet, sample/350BT/*.parquet, or data/*/*.parquet for all.",
            'Only the best: where = "int_score >= 4"',
        ),
    ),
    Preset(
        "wikitext-103",
        "good and featured articles of Wikipedia, a paragraph or heading a row",
        (
            Files("train", f"{HUB}/Salesforce/wikitext/wikitext-103-raw-v1/train-*.parquet", "train"),
            Files("validation", f"{HUB}/Salesforce/wikitext/wikitext-103-raw-v1/validation-*.parquet", "val"),
            Files("test", f"{HUB}/Salesforce/wikitext/wikitext-103-raw-v1/test-*.parquet", "test"),
        ),
        also=("About a third of the rows is empty: they are left out and counted.",),
    ),
    Preset(
        "tinystories",
        "short stories in the words of small children, made by language models",
        (
            Files("train", f"{HUB}/roneneldan/TinyStories/data/train-*.parquet", "train"),
            Files("validation", f"{HUB}/roneneldan/TinyStories/data/validation-*.parquet", "val"),
        ),
    ),
    Preset(
        "openwebtext",
        "pages that were linked from Reddit",
        (Files("openwebtext", f"{HUB}/Skylion007/openwebtext/plain_text/train-*.parquet"),),
        val_fraction=0.0005,
        also=(
            "A copy by the hub itself: Skylion007/openwebtext@refs/convert/parquet/plain_text/*/*.parquet",
        ),
    ),
    Preset(
        "climbmix",
        "400 billion tokens of the web, chosen and mixed by cluster, shuffled",
        (Files("climbmix", f"{HUB}/karpathy/climbmix-400b-shuffle/shard_*.parquet"),),
        val_fraction=0.001,
        also=("The first 170 files: shard_000*.parquet and shard_001[0-6]*.parquet.",),
    ),
)


def find_preset(name: str) -> Preset:
    found = {one.name: one for one in PRESETS}
    if name not in found:
        raise RecipeError(f"no preset {name!r}", hint=f"there are {', '.join(sorted(found))}")
    return found[name]


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
    preset: Preset | None = None,
) -> str:
    """Draft a recipe for surveyed inputs, or for a well-known data set.

    Args:
        eod: token that ends documents; None for the tokenizer's choice.
        folder: where the recipe will be: relative paths are relative to it.
        notes: comments on tokenizer and eod.
    """
    names = _names([one.name for one in surveys])
    sources = [_of_survey(one, name, folder) for one, name in zip(surveys, names, strict=True)]
    head, val_fraction = list[str](), 0.0
    if preset is not None:
        sources, val_fraction = [_of_preset(preset, files) for files in preset.files], preset.val_fraction
        head = [f"# {preset.name}: {preset.about}.", *(f"# {line}" for line in preset.also), "#"]
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


def _of_survey(one: Survey, name: str, folder: Path) -> list[str]:
    lines = [f"# left out: {_in_comment(str(reason))}" for reason in one.left_out[:MOST_REASONS]]
    if (more := len(one.left_out) - MOST_REASONS) > 0:
        lines.append(f"# left out: and {more:,} more")
    inputs = [quoted(placed(given, folder)) for given in one.inputs]
    shown = ["inputs = [", *(f"    {given}," for given in inputs), "]"]
    lines += ["[[sources]]", f"name = {quoted(name)}"]
    lines += shown if len(inputs) > 1 else [f"inputs = [{inputs[0]}]"]
    return [*lines, *(PLAIN if one.plain else _of_records(one.seen)), *CHOICES]


def _of_preset(preset: Preset, files: Files) -> list[str]:
    lines = ["[[sources]]", f"name = {quoted(files.name)}", f"inputs = [{quoted(files.inputs)}]"]
    lines += ['format = "parquet"', 'text = "text"']
    lines += [f"id = {quoted(preset.id)}"] if preset.id else []
    lines += [f"split = {quoted(files.split)}  # as it was published"] if files.split else []
    return lines


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
