"""Survey of the first records of inputs: their fields, values, and candidates for the text.

Cost: reading the first megabyte of up to four files. The results are guesses from these records.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from packline.errors import InputError
from packline.fingerprint import Hasher
from packline.recipe import Recipe, Source
from packline.sources.files import TEXT_FIELDS, InputFile, list_files
from packline.sources.filters import field_value, kind_of
from packline.sources.jsonl import fits_a_type
from packline.sources.reader import Span, read_span

MOST_FILES, MOST_RECORDS = 4, 200
MOST_VALUES = 5
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
        from packline.sources.parquet import open_parquet
        from packline.storage.inputs import open_input

        with open_input(file.path) as raw:
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
