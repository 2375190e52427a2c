"""Check that the fields named in a recipe exist, so that a misspelt one is reported before any work.

    named in the recipe     text, id, fields of filters          refused if no sampled record has it
    sampled                 16 files spread over a source, of each the records in the first 256 KiB;
                            of a Parquet file its columns

A field that one sampled record has counts as present, however rare it is. A field that is too rare to be
sampled must be listed in `rare_fields` of the source. Fields of a filter `missing` are never refused.

Cost: reading the beginnings of up to 16 files per source, only if the recipe names fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from packline.errors import RecipeError, did_you_mean
from packline.recipe import Source
from packline.sources.compression import DecompressedStream
from packline.sources.files import HEAD_BYTES, InputFile, first_line, first_records
from packline.sources.odd_json import ABSENT, value_at
from packline.storage.inputs import open_input, read_fully

if TYPE_CHECKING:
    import pyarrow as pa

LOOKED_FILES = 16
MOST_RECORDS = 4096
"""Maximum number of records per file."""
SHOWN_FIELDS = 20
DEEPEST = 3
"""Levels of objects whose fields are listed."""


RARE = 'a field that is only rare is named in the recipe, under its [[sources]]: rare_fields = ["{}"]'


class Looked(NamedTuple):
    """Sample of the records of a source."""

    files: int
    records: list[dict[str, Any]]
    """Sampled records; for a Parquet file one record with every column, with nulls."""

    def has(self, path: str) -> bool:
        """True if any record has a field, even with null; `a.b` for a nested one."""
        names = path.split(".")
        return any(value_at(record, names) is not ABSENT for record in self.records)

    def fields(self) -> list[str]:
        """All fields found, nested ones with dots."""
        return list(dict.fromkeys(name for record in self.records for name in _names(record)))


def look_at(files: Sequence[InputFile]) -> Looked:
    """Sample the first records of some of a source's files.

    Raises:
        InputError: a file that cannot be read.
    """
    step = max(len(files) // LOOKED_FILES, 1)
    chosen = files[::step][:LOOKED_FILES]
    return Looked(len(chosen), [record for file in chosen for record in first_of(file)])


def named_fields(source: Source) -> list[tuple[str, str]]:
    """Fields that a source names and its records should have, each with its purpose."""
    named = [("the text", source.text), ("the id", source.id)]
    named += [("a filter", one.field) for one in source.where or () if one.op != "missing"]
    return [(purpose, field) for purpose, field in named if field]


def refuse_strange(rare: Sequence[str], where: str, looked: Looked, named: Iterable[tuple[str, str]]) -> None:
    """Refuse fields that no record has.

    Args:
        rare: fields that need not occur in the sample.
        where: the source, for the message.
        named: purpose and name of each field.

    Raises:
        RecipeError: a field is missing; the message suggests similar and existing fields.
    """
    if not looked.records:
        return
    for purpose, field in named:
        if field in rare or looked.has(field):
            continue
        known = looked.fields()
        shown = ", ".join(known[:SHOWN_FIELDS]) + (", ..." if len(known) > SHOWN_FIELDS else "")
        raise RecipeError(
            f"{where}: no record has the field {field!r} of {purpose}: looked at the beginning of "
            f"{looked.files} of its files, found {shown or 'no fields'}",
            hint=did_you_mean(field, known) + RARE.format(field),
        )


def first_of(file: InputFile) -> Iterator[dict[str, Any]]:
    """The first records of a file; of a Parquet file one with nulls; of plain text none."""
    if file.format == "parquet":
        from packline.sources.parquet import open_parquet

        with open_input(file.path) as raw:
            schema = open_parquet(raw, file.path).schema_arrow
        yield _row_of_nulls(schema)
    elif file.format == "jsonl":
        with open_input(file.path) as raw:
            if file.compression:
                head = DecompressedStream(raw, file.compression).read(HEAD_BYTES)
            else:
                head = read_fully(raw, HEAD_BYTES)
        if b"\n" not in head and len(head) == HEAD_BYTES:
            head = first_line(file.path, file.compression)
        yield from first_records(head, MOST_RECORDS)


def _row_of_nulls(schema: pa.Schema) -> dict[str, Any]:
    """A row with every column; one whose name has dots is found as a nested field is."""
    row: dict[str, Any] = {}
    for column in schema:
        value = _nulls(column.type)
        for name in reversed(column.name.split(".")[1:]):
            value = {name: value}
        head = column.name.partition(".")[0]
        there = row.get(head)
        row[head] = there | value if isinstance(there, dict) and isinstance(value, dict) else value
    return row


def _nulls(kind: pa.DataType) -> Any:
    """Placeholder for a column: an object with all its fields, or null."""
    import pyarrow as pa

    if not pa.types.is_struct(kind):
        return None
    return {kind.field(place).name: _nulls(kind.field(place).type) for place in range(kind.num_fields)}


def _names(record: dict[str, Any], before: str = "", depth: int = 1) -> Iterator[str]:
    for name, value in record.items():
        yield f"{before}{name}"
        if isinstance(value, dict) and depth < DEEPEST:
            yield from _names(value, f"{before}{name}.", depth + 1)
