"""Resolution of the inputs of a recipe to a list of files with their formats.

    files, folders, globs, URIs  ->  paths  ->  InputFile: path, size, format, compression, text field

Folders are walked in the order of whole paths; hidden files are skipped and links followed. Files that are
not regular (a pipe would block, `/dev/zero` never ends), circular links, and names that are not UTF-8 are
refused before anything is opened.

This happens before any work, and refuses rather than guesses: an input that matches nothing, a file that
cannot be opened, a Parquet file without the text column. Files are in the order of the inputs, and by name
within an input, so that the order of documents depends on nothing else.
"""

from __future__ import annotations

import glob as globbing
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from packline.errors import InputError, PacklineError, RecipeError, did_you_mean
from packline.recipe import Recipe, Source
from packline.sources.carried import Column
from packline.sources.compression import Compression, DecompressedStream, detect_compression
from packline.sources.json_array import read_array, starts_array
from packline.sources.jsonl import BOM, JsonlDecoder, decode_json, fits_a_type
from packline.storage.inputs import is_remote, open_input, read_start, refuse_irregular, refuse_name, remote

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_ID = "id"
TEXT_FIELDS = ("text", "content", "article", "document")
HEAD_BYTES = 256 << 10
SHOWN_NAMES = 5
LONGEST_FIRST_RECORD = 64 << 20
"""Maximum size in bytes of a first record that is inspected for fields."""
COMPRESSED_NAMES = (".gz", ".gzip", ".zst", ".zstd")
MAGIC = re.compile("[*?[]")
OWN_DESCRIPTORS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Prefixes of paths that depend on the process: another process would open something else."""

FileId = tuple[int, int]
"""Device and inode: identifies a folder whatever its path."""


FileFormat = Literal["jsonl", "json", "parquet", "text"]
"""Format of a file: `json` is one array of records."""


class InputFile(msgspec.Struct, frozen=True, gc=False):
    """One file of a source."""

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
    not_utf8: bool = False
    """True for plain text that does not begin with UTF-8: a PDF, a picture, text in another encoding, ..."""


def list_files(recipe: Recipe) -> list[InputFile]:
    """List all files of a recipe, in the order of their documents; named fields are not checked.

    Raises:
        InputError: nothing found, or files that cannot be read; all of them in one message.
    """
    files: list[InputFile] = []
    problems: list[PacklineError] = []
    for number, source in enumerate(recipe.sources):
        paths = list(dict.fromkeys(path for given in source.inputs for path in expand(given)))
        if not paths:
            raise InputError(
                f"no files in {', '.join(source.inputs)}",
                hint="hidden files and empty folders are passed over; check the path or the glob",
            )
        root = names_folder(source.inputs, paths)
        for path in paths:
            name = path[len(root) :].lstrip("/") if root else path
            try:
                files.append(_describe(len(files), number, name, path, source))
            except PacklineError as problem:
                problems.append(problem)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        shown = "; ".join(str(problem) for problem in problems[:5])
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise InputError(f"{len(problems)} inputs cannot be used: {shown}{more}", hint=problems[0].hint)
    return files


def not_text_notes(files: Iterable[InputFile], names: Sequence[str]) -> list[str]:
    """Notes on files that are read as plain text and are not UTF-8: one line per source that has some.

    Args:
        names: names of the sources, in order.
    """
    by_source: dict[int, list[InputFile]] = {}
    for file in files:
        by_source.setdefault(file.source, []).append(file)
    notes = []
    for number, found in by_source.items():
        if not (bad := [file.name for file in found if file.not_utf8]):
            continue
        shown = ", ".join(bad[:SHOWN_NAMES]) + (", ..." if len(bad) > SHOWN_NAMES else "")
        count = "1 file is" if len(bad) == 1 else f"{len(bad):,} files are"
        endings = Counter(PurePosixPath(file.name).suffix for file in found if not file.not_utf8)
        ending = next((ending for ending, _ in endings.most_common() if ending), ".txt")
        glob = f"{common_folder([file.path for file in found])}**/*{ending}"
        notes.append(
            f"source {names[number]}: {count} not UTF-8 text: {shown}; use a glob such as {glob!r} to leave "
            f"out what is not"
        )
    return notes


def _describe(index: int, number: int, name: str, path: str, source: Source) -> InputFile:
    facts, raw = read_start(path, HEAD_BYTES)
    compression = detect_compression(raw)
    head = raw
    if compression:
        with open_input(path) as file:
            head = DecompressedStream(file, compression).read(HEAD_BYTES)
    kind = _format_of(path, name, head, source)
    text, id = "", None
    if kind == "parquet":
        if compression:
            raise InputError(
                f"{path} is a {compression} file around Parquet",
                hint="decompress it: Parquet is compressed inside",
            )
        text, id = _parquet_fields(path, source)
    elif kind != "text":
        text, id = _json_fields(path, list(first_records(path, kind, compression, head)), source)
    not_utf8 = kind == "text" and not _is_utf8(head)
    return InputFile(
        index,
        number,
        name,
        path,
        facts.size,
        facts.modified,
        kind,
        compression,
        text,
        id,
        not_utf8=not_utf8,
    )


def _is_utf8(head: bytes) -> bool:
    """True if the beginning of a file is UTF-8; if the file is longer, the last character may be cut."""
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return len(head) == HEAD_BYTES and error.end == len(head) and error.reason == "unexpected end of data"
    return True


def _long_head(path: str, compression: Compression, ended: Callable[[bytes], bool]) -> bytes:
    """The start of a file up to the end of its first record, which is long."""
    with open_input(path) as file:
        stream = DecompressedStream(file, compression) if compression else file
        parts: list[bytes] = []
        while sum(map(len, parts)) < LONGEST_FIRST_RECORD and (data := stream.read(1 << 20)):
            parts.append(data)
            if ended(data):
                break
    return b"".join(parts)


def _format_of(path: str, name: str, head: bytes, source: Source) -> FileFormat:
    if source.format != "auto":
        return source.format
    if head.startswith(b"PAR1"):
        return "parquet"
    plain = plain_name(name)
    if plain.endswith(".txt"):
        return "text"
    if plain.endswith((".jsonl", ".ndjson", ".jsonlines")):
        return "jsonl"
    if plain.endswith(".parquet"):
        raise InputError(f"{path} is called Parquet but does not begin like it", hint="leave it out")
    if plain.endswith(".json"):
        return "json" if starts_array(head) else "jsonl"
    return "text"


def plain_name(name: str) -> str:
    """File name in lower case, without the extension of its compression.

    >>> plain_name("A/b.JSON.gz")
    'a/b.json'
    """
    plain = name.lower()
    for ending in COMPRESSED_NAMES:
        plain = plain.removesuffix(ending)
    return plain


def _parquet_fields(path: str, source: Source) -> tuple[str, str | None]:
    from packline.sources.parquet_schema import column_type, is_text, open_parquet

    with open_input(path) as file:
        schema = open_parquet(file, path).schema_arrow
    candidates = (source.text,) if source.text else TEXT_FIELDS
    if source.template:
        return "", _parquet_id(path, schema, source)
    text = next((name for name in candidates if is_text(column_type(schema, name))), None)
    if text is None:
        found = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise InputError(
            f"{path} has no text column: expected {' or '.join(candidates)} of strings, found {found}",
            hint=f"{did_you_mean(source.text or '', schema.names)}name the column with --text",
        )
    refuse_twice(path, schema, [text])
    return text, _parquet_id(path, schema, source)


def _parquet_id(path: str, schema: pa.Schema, source: Source) -> str | None:
    from packline.sources.parquet_schema import column_type

    if source.id and column_type(schema, source.id) is None:
        raise InputError(
            f"{path} has no column {source.id!r}: found {', '.join(schema.names)}",
            hint=f"{did_you_mean(source.id, schema.names)}name the column with --id",
        )
    if source.id:
        refuse_twice(path, schema, [source.id])
        return source.id
    return DEFAULT_ID if schema.names.count(DEFAULT_ID) == 1 else None


def refuse_twice(path: str, schema: pa.Schema, columns: Iterable[str]) -> None:
    """Refuse duplicate columns.

    Raises:
        InputError: a column occurs more than once, so its meaning is ambiguous.
    """
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
            JsonlDecoder(source.text, id)
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
        hint="name the field with --text, for example --text data.body",
    )


def first_records(
    path: str, kind: FileFormat, compression: Compression, head: bytes, most: int = 32
) -> Iterator[dict[str, Any]]:
    """The objects among the first records of a JSON lines file or array.

    Args:
        head: start of the (decompressed) file, `HEAD_BYTES` if it is not the whole file.
    """
    if kind == "json":
        elements = _first_elements(head, most)
        if not elements and len(head) == HEAD_BYTES:
            size = 0

            def ended(data: bytes) -> bool:
                nonlocal size
                size += len(data)
                return size > LONGEST_FIRST_RECORD // 8

            elements = _first_elements(_long_head(path, compression, ended), most)
        lines: Iterable[bytes] = elements
    else:
        if b"\n" not in head and len(head) == HEAD_BYTES:
            head = _long_head(path, compression, lambda data: b"\n" in data)
        lines = head.removeprefix(BOM).split(b"\n", most)[:most]
    for line in lines:
        try:
            record = decode_json(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def _first_elements(head: bytes, most: int) -> list[bytes]:
    elements = islice(read_array(io.BytesIO(head).read, len(head)), most)
    return [one.data for one in elements if not one.problem]


def expand(given: str) -> Iterator[str]:
    """Paths of one input: itself, a folder's files, a glob's matches.

    Raises:
        InputError: nothing found, or not a valid input.
    """
    if is_remote(given):
        yield from _expand_remote(given)
        return
    refuse_name(given)
    if os.path.isdir(given):
        yield from _walk(given)
    elif os.path.lexists(given):
        if given.startswith(OWN_DESCRIPTORS):
            raise InputError(
                f"{given} is what this process has open, not a file that workers could read",
                hint="write it to a file first",
            )
        _refuse_no_file(given)
        yield given
    elif globbing.has_magic(given):
        found = [path for path in sorted(globbing.glob(given, recursive=True)) if not os.path.isdir(path)]
        _refuse_names(found)
        if "**" in given:
            _refuse_circles(found)
        for path in found:
            _refuse_no_file(path)
            yield path
    else:
        raise InputError(f"cannot find {given}", hint="check the path; quote a glob so that it arrives whole")


def names_folder(inputs: Sequence[str], paths: Sequence[str]) -> str:
    """Folder that the names of a source's files are relative to: what its inputs have in common, as given.

    It does not depend on the files that are found, else a new folder of files would rename all others.

    Args:
        inputs: inputs of the source.
        paths: files that they were expanded to.

    >>> names_folder(["web"], ["web/day1/a", "web/day1/b"]), names_folder(["web/*/a*"], ["web/day1/a"])
    ('web/', 'web/')
    >>> names_folder(["web/a", "web/b"], ["web/a", "web/b"]), names_folder(["a"], ["a"])
    ('web/', '')
    """
    found, folders = set(paths), []
    for given in inputs:
        magic = MAGIC.search(given)
        if given in found:
            folders.append(given[: given.rfind("/") + 1])
        elif magic:
            folders.append(given[: given.rfind("/", 0, magic.start()) + 1])
        else:
            folders.append(given if given.endswith("/") else f"{given}/")
    root = common_folder(folders)
    return root if all(path.startswith(root) for path in paths) else common_folder(paths)


def common_folder(paths: Sequence[str]) -> str:
    """Common folder of all paths, with a slash at its end; empty if there is none.

    >>> common_folder(["a/b/x.txt", "a/b/c/y.txt"]), common_folder(["a/bb/x", "a/bc/y"]), common_folder(["x"])
    ('a/b/', 'a/', '')
    """
    first, last = min(paths), max(paths)  # what these two share, all share
    shared = next((at for at, letter in enumerate(first) if last[at] != letter), len(first))
    return first[: first.rfind("/", 0, shared) + 1]


def _walk(folder: str) -> Iterator[str]:
    found: list[str] = []
    waiting: list[tuple[str, dict[FileId, str]]] = [(folder, {_file_id(folder): folder})]
    while waiting:
        parent, above = waiting.pop()
        try:
            with os.scandir(parent) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_file():
                        found.append(entry.path)
                    elif entry.is_dir():
                        inner = _file_id(entry.path)
                        if inner in above:
                            raise _circle(entry.path, above[inner])
                        waiting.append((entry.path, {**above, inner: entry.path}))
                    else:
                        _refuse_no_file(entry.path)
                        found.append(entry.path)
        except OSError as error:
            if isinstance(error, InputError):
                raise
            why = error.strerror or error
            raise InputError(
                f"cannot list {error.filename or parent}: {why}", hint="check its permissions"
            ) from error
    found.sort()
    _refuse_names(found)
    yield from found


def _file_id(path: str) -> FileId:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _circle(path: str, above: str) -> InputError:
    return InputError(
        f"{path} is a link that leads back to {above}: a folder cannot hold itself",
        hint="remove the link, or name the folders that are wanted",
    )


def _refuse_circles(paths: list[str]) -> None:
    """Refuse circular links among the matches of a glob, which follows a circle about forty times."""
    known: dict[str, FileId] = {}
    for folder in sorted({os.path.dirname(path) for path in paths}, key=len):
        above: dict[FileId, str] = {}
        inner = ""
        for part in folder.split("/"):
            inner += f"{part}/" if part or not inner else ""
            here = known.get(inner) or known.setdefault(inner, _file_id(inner))
            if part == "..":
                above = {}
            elif here in above and os.path.islink(inner[:-1]):
                raise _circle(inner[:-1], above[here])
            above[here] = inner[:-1]


def _refuse_no_file(path: str) -> None:
    """Refuse a pipe or a device; missing and inaccessible files are reported when they are opened."""
    try:
        status = os.stat(path)
    except OSError:
        return
    refuse_irregular(path, status.st_mode)


def _refuse_names(paths: Iterable[str]) -> None:
    try:
        "\n".join(paths).encode("utf-8")
    except UnicodeEncodeError:
        for path in paths:
            refuse_name(path)


def _expand_remote(given: str) -> Iterator[str]:
    system, inner = remote(given)
    protocol = given.partition("://")[0]
    if globbing.has_magic(inner):
        found = [name for name, info in system.glob(inner, detail=True).items() if info["type"] == "file"]
    elif system.isfile(inner):
        yield given
        return
    elif system.isdir(inner):
        found = [name for name, info in system.find(inner, detail=True).items() if info["type"] == "file"]
    else:
        raise InputError(f"cannot find {given}", hint="check the URI and your credentials for it")
    for name in sorted(found):
        if not name.rpartition("/")[2].startswith("."):
            yield name if "://" in name else f"{protocol}://{name}"
