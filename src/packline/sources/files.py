"""Inputs of a recipe as a list of files with their formats, before any work; what is unclear is refused.

Files are in the order of the inputs, and by name within an input.
"""

from __future__ import annotations

import contextlib
import io
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NoReturn

import msgspec

from packline.errors import InputChanged, InputError, PacklineError, RecipeError, did_you_mean
from packline.recipe import Recipe, Source
from packline.settings import folder_of
from packline.sources.carried import Column
from packline.sources.compression import Compression, DecompressedStream, detect_compression
from packline.sources.json_array import read_array, starts_array
from packline.sources.jsonl import BOM, decode_json, fits_a_type, refuse_nested
from packline.sources.lines import likely_charset
from packline.sources.listing import JSON_LINES, common_folder, describe_alike, list_inputs
from packline.storage.inputs import InputState, ListedFile, open_input, read_fully, read_start

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_ID = "id"
TEXT_FIELDS = ("text", "content", "article", "document")
HEAD_BYTES = 256 << 10
PARQUET_HEAD_BYTES = 64
SHOWN_NAMES = 5
LONGEST_FIRST_RECORD = 64 << 20
"""Maximum size in bytes of a first record that is inspected for fields."""
COMPRESSED_NAMES = (".gz", ".gzip", ".zst", ".zstd")
FileFormat = Literal["jsonl", "json", "parquet", "text"]
"""Format of a file: `json` is one array of records."""


class InputFile(msgspec.Struct, frozen=True, gc=False):
    index: int
    """Index among all files of the recipe."""
    source: int
    """Index of its source in the recipe."""
    name: str
    """Path relative to the source's common folder: its name in provenance."""
    path: str
    size: int
    modified: str
    format: FileFormat
    compression: Compression
    text: str = ""
    """Field or column of the text; empty for plain text."""
    id: str | None = None
    columns: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Columns of a Parquet file that a template or filter needs."""
    carried: tuple[Column, ...] | msgspec.UnsetType = msgspec.UNSET
    """Columns that the source carries, the same for all its files."""
    not_utf8: str = ""
    """Likely encoding of plain text that does not begin with UTF-8, or is a PDF, a picture, ...; else ""."""
    dos_lines: bool = False
    """True for plain text whose lines end with `\\r\\n`."""
    is_assumed: bool = False
    """True if it was planned as the other files of its kind, without looking at it (`alike`)."""

    @property
    def state(self) -> InputState:
        return InputState(self.size, self.modified)

    def open(self, start: int | None = None, stop: int | None = None) -> BinaryIO:
        """Open for reading bytes, in the planned state."""
        return open_input(self.path, self.state, start, stop)


def list_files(recipe: Recipe, problems: dict[str, PacklineError] | None = None) -> list[InputFile]:
    """List all files of a recipe, in the order of their documents; named fields are not checked.

    Args:
        problems: takes the errors by path, which are raised otherwise.
    """
    files: list[InputFile] = []
    refused: dict[str, PacklineError] = {}
    for number, source in enumerate(recipe.sources):
        listed = list_inputs(source.inputs, folder_of(recipe))
        described = describe_alike(listed, partial(_describe, number, source), file_kind)
        for file, found in zip(listed, described, strict=True):
            if isinstance(found, PacklineError):
                refused[file.path] = found
            else:
                files.append(found)
    if problems is not None:
        problems.update(refused)
    elif refused:
        refuse_all(list(refused.values()))
    return [msgspec.structs.replace(file, index=index) for index, file in enumerate(files)]


def refuse_all(problems: Sequence[PacklineError]) -> NoReturn:
    if len(problems) == 1:
        raise problems[0]
    shown = "; ".join(str(problem) for problem in problems[:5])
    more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
    raise InputError(f"{len(problems)} inputs cannot be used: {shown}{more}", hint=problems[0].hint)


def not_text_notes(files: Iterable[InputFile], names: Sequence[str]) -> list[str]:
    """Notes on plain text that is not UTF-8, or has line ends of DOS: one line per source that has some."""
    by_source: dict[int, list[InputFile]] = {}
    for file in files:
        by_source.setdefault(file.source, []).append(file)
    notes = []
    for number, found in by_source.items():
        if dos := [file.name for file in found if file.dos_lines]:
            which = f"{_some_files(dos, 'has', 'have')} line ends of DOS: {_listed(dos)}"
            notes.append(f"source {names[number]}: {which}; for those of Unix: newlines = 'unix' in a recipe")
        if not (bad := [file.name for file in found if file.not_utf8]):
            continue
        charset, _ = Counter(file.not_utf8 for file in found if file.not_utf8).most_common(1)[0]
        endings = Counter(PurePosixPath(file.name).suffix for file in found if not file.not_utf8)
        ending = next((ending for ending, _ in endings.most_common() if ending), ".txt")
        glob = f"{common_folder([file.path for file in found])}**/*{ending}"
        # A glob helps against files of other kinds, not against text in another encoding.
        others = any(PurePosixPath(name).suffix != ending for name in bad)
        leave_out = f"use a glob such as {glob!r} to leave out what is not, or " if others else ""
        which = f"{_some_files(bad, 'is', 'are')} not UTF-8 text: {_listed(bad)}"
        notes.append(
            f"source {names[number]}: {which}; {leave_out}name the encoding of text: "
            f"charset = '{charset}' in a recipe, --charset {charset} on the command line"
        )
    return notes


def _some_files(names: Sequence[str], one: str, many: str) -> str:
    return f"1 file {one}" if len(names) == 1 else f"{len(names):,} files {many}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN_NAMES]) + (", ..." if len(names) > SHOWN_NAMES else "")


def _describe(number: int, source: Source, listed: ListedFile) -> InputFile | PacklineError:
    path = listed.path
    # The rest of a Parquet file is known from its footer.
    parquet = source.format in ("auto", "parquet") and plain_name(listed.name).endswith(".parquet")
    try:
        state, raw = read_start(path, PARQUET_HEAD_BYTES if parquet else HEAD_BYTES)
        if listed.state is not None and listed.state != state:
            raise InputChanged(
                f"{path} changed while the inputs were listed: expected {listed.state.size:,} bytes, "
                f"found {state.size:,} bytes, modified since",
                hint="let it come to rest, then try again",
            )
        found = InputFile(0, number, listed.name, path, state.size, state.modified, "text", "")
        return describe_head(found, raw, lambda: open_input(path, state), source)
    except PacklineError as problem:
        return problem


def describe_head(file: InputFile, raw: bytes, reopen: Callable[[], BinaryIO], source: Source) -> InputFile:
    """The file with what its beginning decides: format, compression, text and id."""
    path, head, compression = file.path, raw, detect_compression(raw)
    if compression:
        with reopen() as packed:
            head = DecompressedStream(packed, compression).read(HEAD_BYTES)
    kind = _format_of(path, file.name, head, source)
    found = file
    if kind != file.format or compression != file.compression:
        found = msgspec.structs.replace(file, format=kind, compression=compression)
    if kind == "parquet":
        if compression:
            raise InputError(
                f"{path} is a {compression} file around Parquet",
                hint="decompress it: Parquet is compressed inside",
            )
        text, id = _parquet_fields(found, source)
    elif kind != "text":
        text, id = _json_fields(path, first_records(found, head), source)
    else:
        wrong = "" if source.charset or _is_utf8(head) else likely_charset(head)
        dos = source.documents == "file" and not (source.newlines or wrong) and b"\r\n" in head
        return msgspec.structs.replace(found, not_utf8=wrong, dos_lines=dos) if wrong or dos else found
    return msgspec.structs.replace(found, text=text, id=id)


def _is_utf8(head: bytes) -> bool:
    """True if the beginning of a file is UTF-8; if the file is longer, the last character may be cut."""
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return len(head) == HEAD_BYTES and error.end == len(head) and error.reason == "unexpected end of data"
    return True


def _long_head(file: InputFile, most: int, end: bytes | None = None) -> bytes:
    """The start of a file whose first record is long: about `most` bytes, or up to `end`."""
    parts: list[bytes] = []
    with file.open() as raw:
        stream = DecompressedStream(raw, file.compression)
        while sum(map(len, parts)) <= most and (data := stream.read(1 << 20)):
            parts.append(data)
            if end is not None and end in data:
                break
    return b"".join(parts)


def _format_of(path: str, name: str, head: bytes, source: Source) -> FileFormat:
    if source.format != "auto":
        return source.format
    if head.startswith(b"PAR1"):
        return "parquet"
    plain = plain_name(name)
    if plain.endswith((".csv", ".tsv")):
        raise InputError(
            f"{path} is {plain[-3:].upper()}, which is not read: "
            "expected JSON lines, a JSON array, Parquet or text",
            hint="make it Parquet with pyarrow.csv.read_csv and pyarrow.parquet.write_table, leave it out "
            "with a glob or a recipe of packline init, or take it as it is with --format text",
        )
    if plain.endswith(".txt"):
        return "text"
    if plain.endswith(JSON_LINES):
        return "jsonl"
    if plain.endswith(".parquet"):
        raise InputError(f"{path} is called Parquet but does not begin like it", hint="leave it out")
    if plain.endswith(".json"):
        return "json" if starts_array(head) else "jsonl"
    return "text"


def plain_name(name: str) -> str:
    """File name in lower case, without the extension of its compression."""
    plain = name.lower()
    if not plain.endswith(COMPRESSED_NAMES):
        return plain
    for ending in COMPRESSED_NAMES:
        plain = plain.removesuffix(ending)
    return plain


def _parquet_fields(file: InputFile, source: Source) -> tuple[str, str | None]:
    from packline.sources.parquet import column_type, is_text, open_parquet

    path = file.path
    with file.open() as raw:
        schema = open_parquet(raw, path).schema_arrow
    candidates = (source.text,) if source.text else TEXT_FIELDS
    text = next((name for name in candidates if is_text(column_type(schema, name))), None)
    if text is None and not source.template:
        found = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise InputError(
            f"{path} has no text column: expected {' or '.join(candidates)} of strings, found {found}",
            hint=f"{did_you_mean(source.text or '', schema.names)}name the column with --text"
            + _or_draft(source),
        )
    if source.id and column_type(schema, source.id) is None:
        raise InputError(
            f"{path} has no column {source.id!r}: found {', '.join(schema.names)}",
            hint=f"{did_you_mean(source.id, schema.names)}name the column with --id",
        )
    text = "" if source.template or text is None else text
    refuse_twice(path, schema, [name for name in (text, source.id) if name])
    return text, source.id or (DEFAULT_ID if schema.names.count(DEFAULT_ID) == 1 else None)


def refuse_twice(path: str, schema: pa.Schema, columns: Iterable[str]) -> None:
    for name in (column.partition(".")[0] for column in columns):
        if schema.names.count(name) > 1:
            raise InputError(
                f"{path} has {schema.names.count(name)} columns called {name!r}: expected one",
                hint="write the file again with different names, or leave it out",
            )


def _json_fields(path: str, records: list[dict[str, object]], source: Source) -> tuple[str, str | None]:
    """The text field, by the first record that has one; the id is taken wherever a record has one."""
    id: str | None = source.id or DEFAULT_ID
    if source.template:
        return "", id
    for field in (source.text, source.id):
        if field is not None and not fits_a_type(field):
            raise RecipeError(
                f"{path}: the name {field!r} has quotes, backslashes or control characters",
                hint=f"a template can read it: {{{{ record[{field!r}] }}}}",
            )
    if source.text:
        if source.id is None and source.text.startswith(f"{DEFAULT_ID}."):
            id = None  # it holds the text, so it is no id
        try:
            refuse_nested([source.text, *([id] if id else [])])
        except RecipeError as error:
            raise RecipeError(f"{path}: {error}") from error
        return source.text, id
    for name in TEXT_FIELDS:
        if any(isinstance(record.get(name), str) for record in records):
            return name, id
    if not records:
        return TEXT_FIELDS[0], id  # nothing readable at its head: its records will be judged one by one
    found = ", ".join(map(str, records[0])) or "none"
    raise InputError(
        f"{path} has no text field: expected {', '.join(TEXT_FIELDS)}, found {found}",
        hint=f"name the field with --text, for example --text data.body{_or_draft(source)}",
    )


def _or_draft(source: Source) -> str:
    """End of a hint for files that need settings of their own."""
    more = " ..." if len(source.inputs) > SHOWN_NAMES else ""
    inputs = shlex.join(source.inputs[:SHOWN_NAMES]) + more
    return f"; for files of several kinds, this writes a recipe: packline init {inputs}"


def first_records(file: InputFile, head: bytes, most: int = 32) -> list[dict[str, Any]]:
    """The objects among the first records of a JSON lines file or array.

    Args:
        head: start of the (decompressed) file, `HEAD_BYTES` if it is not the whole file.
    """
    if file.format == "json":
        lines: Iterable[bytes] = _first_elements(head, most)
        if not lines and len(head) == HEAD_BYTES:
            lines = _first_elements(_long_head(file, LONGEST_FIRST_RECORD // 8), most)
    else:
        if b"\n" not in head and len(head) == HEAD_BYTES:
            head = _long_head(file, LONGEST_FIRST_RECORD, b"\n")
        lines = head.removeprefix(BOM).split(b"\n", most)[:most]
    records = []
    for line in filter(None, lines):
        with contextlib.suppress(ValueError, RecursionError):
            records.append(decode_json(line))
    return [record for record in records if isinstance(record, dict)]


def _first_elements(head: bytes, most: int) -> list[bytes]:
    elements = islice(read_array(io.BytesIO(head).read, len(head)), most)
    return [one.data for one in elements if not one.problem]


def file_kind(file: InputFile | PacklineError) -> tuple[object, ...] | None:
    return None if isinstance(file, PacklineError) else (file.format, file.compression, file.text, file.id)


def check_assumed(file: InputFile, source: Source, raw: BinaryIO) -> None:
    """Compare a file with its plan, if that was made without looking at it; the position stays."""
    if not file.is_assumed:
        return
    head = read_fully(raw, HEAD_BYTES)
    raw.seek(0)
    found = describe_head(file, head, lambda: io.BytesIO(head), source)
    if file_kind(found) != file_kind(file):
        raise InputError(
            f"{file.path} is unlike other files of its kind: expected {_words(file)}, found {_words(found)}",
            hint="put such files into a source of their own, or name the field of the text with --text",
        )


def _words(file: InputFile) -> str:
    text = f" with the text in {file.text!r}" if file.text else ""
    return f"{file.compression} {file.format}{text}".strip()
