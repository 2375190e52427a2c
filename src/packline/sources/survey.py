"""Survey of data for which a recipe is drafted: kinds of files, and fields of their first records.

Each kind (a format, and the fields of the text) becomes a source whose globs match no file of another kind.
"""

from __future__ import annotations

import glob
import json
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from packline.errors import InputError, PacklineError
from packline.recipe import Recipe, Source
from packline.sources.files import COMPRESSED_NAMES, TEXT_FIELDS, InputFile, list_files, refuse_all
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
