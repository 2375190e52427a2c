"""Which fields records have: so that a misspelt one is told before any work, and not by an empty store.

    named in the recipe     text, id, fields of filters          none of the records looked at has it: refused
    looked at               16 files spread over a source, of each the records in the first 256 KiB;
                            of a Parquet file its columns

A field that one record of one of these files has is there, however rare it is. One that is rarer than that is
named in the source's `rare_fields`, which says that it is meant. A filter `missing` is never refused: it asks
for just that.

Cost: up to 16 files of a source are read a little, and only where the recipe names fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from packline.errors import RecipeError, did_you_mean
from packline.filesystem import open_input, read_fully
from packline.recipe import Source
from packline.sources.compression import DecompressedStream
from packline.sources.files import HEAD_BYTES, InputFile, first_line, first_records
from packline.sources.odd_json import ABSENT, value_at

if TYPE_CHECKING:
    import pyarrow as pa

LOOKED_FILES = 16
MOST_RECORDS = 4096
"""Of one file."""
SHOWN_FIELDS = 20
DEEPEST = 3
"""Levels of objects whose fields are listed."""


RARE = 'a field that is only rare is named in the recipe, under its [[sources]]: rare_fields = ["{}"]'


class Looked(NamedTuple):
    """What was seen of a source's files."""

    files: int
    records: list[dict[str, Any]]
    """Of a Parquet file one that has every column, with nulls."""

    def has(self, path: str) -> bool:
        """Whether any record has a field, `a.b` for a nested one; also with null."""
        names = path.split(".")
        return any(value_at(record, names) is not ABSENT for record in self.records)

    def fields(self) -> list[str]:
        """All that there are, nested ones with dots."""
        return list(dict.fromkeys(name for record in self.records for name in _names(record)))


def look_at(files: Sequence[InputFile]) -> Looked:
    """Look at the first records of some of a source's files.

    Raises:
        InputError: a file that cannot be read.
    """
    step = max(len(files) // LOOKED_FILES, 1)
    chosen = files[::step][:LOOKED_FILES]
    return Looked(len(chosen), [record for file in chosen for record in first_of(file)])


def named_fields(source: Source) -> list[tuple[str, str]]:
    """Fields that a source names and whose records should have them, each with what it is for."""
    named = [("the text", source.text), ("the id", source.id)]
    named += [("a filter", one.field) for one in source.where or () if one.op != "missing"]
    return [(purpose, field) for purpose, field in named if field]


def refuse_strange(rare: Sequence[str], where: str, looked: Looked, named: Iterable[tuple[str, str]]) -> None:
    """Refuse fields that no record has.

    Args:
        rare: fields that need not be seen.
        where: the source, for the message.
        named: what each is for, and its name.

    Raises:
        RecipeError: with the field that was probably meant, and those there are.
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
    """What stands for a column: an object with all its fields, or null."""
    import pyarrow as pa

    if not pa.types.is_struct(kind):
        return None
    return {kind.field(place).name: _nulls(kind.field(place).type) for place in range(kind.num_fields)}


def _names(record: dict[str, Any], before: str = "", depth: int = 1) -> Iterator[str]:
    for name, value in record.items():
        yield f"{before}{name}"
        if isinstance(value, dict) and depth < DEEPEST:
            yield from _names(value, f"{before}{name}.", depth + 1)
