"""Open a data set with the tokenizer that made it, and check it: all problems with their positions.

    path ── format (given, or recognised) ── options (given, else from packline.json, else the format's)
         └─ metadata ── end and beginning of documents ── marker ──> DatasetReader

Where a marker separates documents, the format opens the data set twice, because the metadata may declare the
marker. Only headers and indexes are read. Ids of one tokenizer are valid ids of another, so a contradiction
with the metadata is refused, and an oddity is noted. A vocabulary that was rounded up, or that lacks added
tokens, is no contradiction; data sets without metadata are accepted.

A check, with or without a tokenizer, reads:

    packline.json   its own checksum; paths, sizes and checksums of all files; no other files  `export_folder`
    headers         sizes, magic numbers, indexes                                               `format.open`
    tokens          ids below the vocabulary, boundary tokens around every document; not of rows

If there is a packline.json, headers and tokens are only checked if all checksums are right, so no parser is
given a damaged file. Cost: one pass over the tokens, about 1 GB/s, and a second one if there are checksums.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from packline.conversion import refuse_toml
from packline.encoders.special_tokens import Boundary, resolve_boundary
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import CorruptStore, InputError, PacklineError, RecipeError, TokenizerError
from packline.formats.boundaries import BoundaryPolicy
from packline.formats.export_folder import (
    RECORD,
    ExportRecord,
    check_export,
    check_places,
    note_strays,
    read_record,
)
from packline.formats.format import (
    DatasetReader,
    DocumentFormat,
    Format,
    RowFormat,
    convert_options,
    get_format,
    recognise,
)
from packline.formats.row_view import UNTRAINED
from packline.formats.types import DocumentBlock, ReadTask
from packline.storage.places import is_remote, without_secrets
from packline.store.files import StoreFiles, reading
from packline.store.report import Findings, OnProgress, Report
from packline.store.shard_check import check_file


@dataclass(slots=True)
class OpenedDataset:
    """A data set whose headers were read, and how to read the rest."""

    format: DocumentFormat
    options: Any
    reader: DatasetReader
    tokenizer: Tokenizer
    boundary: Boundary
    notes: list[str]
    """Oddities that are no contradiction."""

    @property
    def policy(self) -> BoundaryPolicy:
        boundary = self.boundary
        return BoundaryPolicy(self.reader.edges, boundary.eod_id, boundary.bos_id, self.tokenizer.vocab_size)


def find_format(path: Path, name: str | None) -> Format:
    """The format that is given, named by `packline.json`, or recognised without ambiguity."""
    if not path.exists() and not Path(f"{path}.idx").is_file():  # Megatron paths have no suffix
        raise InputError(f"cannot find {path}", hint="check the path")
    if name is not None:
        return get_format(name)
    record = find_record(path)
    return recognise(path) if record is None else get_format(record.format)


def document_format(path: Path, name: str | None) -> DocumentFormat:
    """The format of a data set of documents; see `find_format`."""
    format = find_format(path, name)
    if isinstance(format, DocumentFormat) and format.holds_text:
        raise RecipeError(
            f"{path} holds text ({format.name}): expected tokens",
            hint=f"tokenize it: packline build {path} --text text",
        )
    if not isinstance(format, DocumentFormat):
        raise RecipeError(
            f"{path} holds rows ({format.name}): where documents begin and end is not preserved in them",
            hint="use the store that the rows were made from, or a format of documents (packline formats)",
        )
    return format


def open_dataset(
    path: Path,
    format_name: str | None,
    tokenizer_name: str,
    eod: str | int | None,
    bos: str | int | None,
    options: dict[str, Any],
    findings: Findings,
) -> OpenedDataset:
    """Read the headers of a data set; enter problems of headers and sizes in `findings`."""
    refuse_toml(path, "a dataset of another project")
    format = document_format(path, format_name)
    record = find_record(path)
    if record is not None and path.is_dir():
        check_places(path, record, findings)
    tokenizer = load_tokenizer(tokenizer_name)
    given = make_options(format, options, record)
    if getattr(given, "vocab_size", 0) is None:  # it decides the dtype where no file declares it
        given = msgspec.structs.replace(given, vocab_size=tokenizer.vocab_size)

    def resolve(eod: str | int | None, bos: str | int | None) -> tuple[int | None, int | None]:
        boundary = resolve_boundary(tokenizer, eod, bos)
        return boundary.eod_id, boundary.bos_id

    reader, known, asked = open_marked(format, path, given, (eod, bos), record, resolve, findings)
    boundary = resolve_boundary(tokenizer, *asked)
    if (
        record is not None and path.is_dir()
    ):  # files that would be read although the export did not write them
        note_strays((file.name for file in reader.files), record, findings)
    notes = check_metadata(str(path), tokenizer, boundary.eod_id, record, reader.facts)
    return OpenedDataset(format, known, reader, tokenizer, boundary, notes)


Boundaries = tuple[str | int | None, str | int | None]
"""End and beginning of documents."""


def open_marked(
    format: DocumentFormat,
    path: Path,
    options: Any,
    given: Boundaries,
    record: ExportRecord | None,
    resolve: Callable[[str | int | None, str | int | None], tuple[int | None, int | None]],
    findings: Findings,
) -> tuple[DatasetReader, Any, Boundaries]:
    """Open a data set, again if its metadata declares a marker that the options lack.

    Args:
        given: boundary tokens; those that are None are taken from the metadata.
        resolve: makes ids of them.

    Returns:
        The reader, its options, and the boundary tokens, given or declared.
    """
    reader = read_headers(format, path, options, first := Findings())
    declared = declared_boundary(record, reader.facts)
    eod, bos = (there if one is None else one for one, there in zip(given, declared, strict=True))
    end, begin = resolve(eod, bos)
    marker = begin if reader.edges == "bos" and begin is not None else end
    if getattr(options, "marker", 0) is not None or marker is None:
        findings.include(first)
    else:
        options = msgspec.structs.replace(options, marker=marker)
        reader = read_headers(format, path, options, findings)
    return reader, options, (eod, bos)


def read_headers(format: DocumentFormat, path: Path, options: Any, findings: Findings) -> DatasetReader:
    """Call `format.open`; any problem with the data is an error with its position."""
    with readable(path):
        return format.open(path, options, findings)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Errors of the system and of libraries as errors with the path; see `read_headers`."""
    with reading(path):
        try:
            yield
        except OSError as error:
            if isinstance(error, PacklineError):
                raise
            raise InputError(
                f"cannot read {error.filename or path}: {error.strerror or error}",
                hint="check its permissions",
            ) from error


def read_document_blocks(reader: DatasetReader, unit: ReadTask) -> Iterator[DocumentBlock]:
    """`reader.blocks(unit)`, with errors of a library as `CorruptStore` with the file."""
    with reading(reader.files[unit.file].path):
        yield from reader.blocks(unit)


MOST_ROUNDED = 1024
"""Most ids by which a vocabulary may be rounded up."""


def find_record(path: Path) -> ExportRecord | None:
    """The `packline.json` of an export, if there is one."""
    return read_record(path if path.is_dir() else path.parent)


def make_options(format: Format, options: dict[str, Any], record: ExportRecord | None) -> Any:
    """Options of a format: the given ones, else those of the export, else the format's defaults."""
    if record is not None and record.format == format.name:
        options = record.options | options
    return convert_options(format, options)


def declared_boundary(
    record: ExportRecord | None, facts: dict[str, Any]
) -> tuple[str | int | None, str | int | None]:
    """End and beginning of documents, as far as the data set declares them."""
    if record is not None:
        return record.tokenizer.eod_id, record.tokenizer.bos_id
    eod, bos = facts.get("eod_id"), facts.get("bos_id")
    return (eod if isinstance(eod, int) else None), (bos if isinstance(bos, int) else None)


def check_metadata(
    where: str, tokenizer: Tokenizer, eod_id: int, record: ExportRecord | None, facts: dict[str, Any]
) -> list[str]:
    """Check a tokenizer against the metadata of a data set.

    Returns:
        Notes on oddities.
    """
    hint = "name the tokenizer that made these ids"
    if record is not None and record.tokenizer.fingerprint != tokenizer.fingerprint:
        own = record.tokenizer
        raise TokenizerError(
            f"{where} was made with another tokenizer: expected {own.name} ({own.fingerprint[:12]}), "
            f"found {tokenizer.name} ({tokenizer.fingerprint[:12]})",
            hint=hint,
        )
    size = facts.get("vocab_size")
    if isinstance(size, int) and not _same_vocabulary(size, tokenizer):
        raise TokenizerError(
            f"{where} was made with another tokenizer: expected a vocabulary of {size:,}, "
            f"found {tokenizer.vocab_size:,} of {tokenizer.name}",
            hint=hint,
        )
    declared_eod = facts.get("eod_id")
    if isinstance(declared_eod, int) and declared_eod != eod_id:
        raise TokenizerError(
            f"{where}: expected {declared_eod} at the end of documents, by its metadata, found {eod_id}",
            hint="name the right tokenizer, or that token with --eod",
        )
    name = facts.get("tokenizer")
    if isinstance(name, str) and name and not _parts(name) & (_parts(tokenizer.name) | {tokenizer.kind}):
        return [f"{where} names the tokenizer {name}, and not {tokenizer.name}"]
    return []


def _same_vocabulary(size: int, tokenizer: Tokenizer) -> bool:
    whole = tokenizer.vocab_size
    without_added = len(msgspec.json.decode(tokenizer.json)["model"]["vocab"])
    rounded = size % 8 == 0 and whole <= size <= whole + MOST_ROUNDED
    return without_added <= size <= whole or rounded


def _parts(name: str) -> set[str]:
    """Words by which a path and a hub id of the same tokenizer are compared."""
    parts = {part.partition("@")[0].partition(".")[0].lower() for part in name.replace("\\", "/").split("/")}
    return parts - {"", "tokenizer", "tokenizers"}


ANY_VOCABULARY = 2**31


class DatasetReport(Report, eq=False):
    format: str = ""
    notes: list[str] = msgspec.field(default_factory=list)
    """Skipped checks, and oddities that are not errors."""


def check_dataset(
    path: str | Path,
    format: str | None = None,
    tokenizer: str | Path | None = None,
    options: dict[str, Any] | None = None,
    *,
    eod: str | int | None = None,
    bos: str | int | None = None,
    on_progress: OnProgress | None = None,
) -> DatasetReport:
    """Check a data set."""
    started = time.perf_counter()
    if is_remote(path):
        shown, name = without_secrets(str(path)), format or "FORMAT"
        raise InputError(
            f"{shown}: a data set is checked in a local folder, found a URI",
            hint=f"copy it first, then check the copy: packline pull {shown} DIR --verify && "
            f"packline verify DIR --from {name}",
        )
    path, findings = Path(path), Findings()
    chosen = find_format(path, format)
    record = None
    try:
        record = find_record(path)
    except CorruptStore as error:
        findings.add(RECORD, str(error))
    notes: list[str] = []
    if record is not None and path.is_dir():
        findings.expect(2 * sum(entry.bytes for entry in record.files), on_progress)
        if not check_export(path, record, findings):
            return _report(findings, chosen, ["tokens were not checked: files are damaged"], started)
    elif record is not None:
        for entry in record.files:
            if entry.name == path.name:
                check_file(StoreFiles(path.parent), entry, findings)
    elif not findings.problems:
        notes.append(f"files were not compared with checksums: there is no {RECORD}")
    try:
        if not isinstance(chosen, DocumentFormat):
            notes += _check_rows(chosen, path, tokenizer, eod, record, options or {}, findings)
            return _report(findings, chosen, notes, started)
        if tokenizer is not None:
            opened = open_dataset(path, chosen.name, str(tokenizer), eod, bos, options or {}, findings)
            reader, policy, more = opened.reader, opened.policy, opened.notes
        else:
            given = (eod, bos)
            reader, policy, more = _without_tokenizer(chosen, path, record, options or {}, given, findings)
    except (TokenizerError, CorruptStore) as error:
        findings.add(path.name, str(error))
        return _report(findings, chosen, notes, started)
    notes += more
    if chosen.holds_text:
        notes.append("text is not tokenized: checksums and headers were checked")
    findings.expect(findings.bytes + sum(file.bytes for file in reader.files), on_progress)
    if record is None:
        findings.files += len(reader.files)
    truncated = sum(_check_unit(reader, policy, unit, findings) for unit in reader.units)
    if not findings.problems and (record is not None or path.is_dir()):  # why a trainer may stop
        splits = (unit.split for unit in reader.units)
        notes += chosen.missing(splits) if record is None else record.warnings
    if truncated:
        notes.append(f"documents that the data's beginning or end cuts off: {truncated:,}")
    return _report(findings, chosen, notes, started)


def _check_rows(
    format: Format,
    path: Path,
    tokenizer: str | Path | None,
    eod: str | int | None,
    record: ExportRecord | None,
    options: dict[str, Any],
    findings: Findings,
) -> list[str]:
    assert isinstance(format, RowFormat)
    convert_options(format, options)  # refuses unknown ones; those of the export decide nothing here
    problems = len(findings.problems)
    metadata: dict[str, Any] = {}
    for folder in format.find_folders(path) or [path]:
        with readable(folder):
            found = format.check(folder, inner := Findings())
        findings.include(inner, "" if folder == path else f"{folder.name}/")
        metadata |= found.metadata
        if record is None:
            findings.files += len(found.files)
            findings.read(sum(file.bytes for file in found.files))
    notes = ["tokens of rows are not read: checksums and headers were checked"]
    if record is not None:
        notes += [*record.warnings, *(str(lost) for lost in record.lost if lost.what == UNTRAINED)]
    if tokenizer is None or len(findings.problems) > problems:
        return notes
    loaded = load_tokenizer(str(tokenizer))
    declared_eod, _ = declared_boundary(record, metadata)
    boundary = resolve_boundary(loaded, declared_eod if eod is None else eod, None)
    return notes + check_metadata(str(path), loaded, boundary.eod_id, record, metadata)


def _without_tokenizer(
    format: DocumentFormat,
    path: Path,
    record: ExportRecord | None,
    options: dict[str, Any],
    given: Boundaries,
    findings: Findings,
) -> tuple[DatasetReader, BoundaryPolicy, list[str]]:
    def resolve(*tokens: str | int | None) -> tuple[int | None, int | None]:
        for role, token in zip(("eod", "bos"), tokens, strict=True):
            if isinstance(token, str):
                raise RecipeError(
                    f"{role} {token!r} is a token's string: expected an id, as no tokenizer was named",
                    hint="name the tokenizer with --tokenizer, or the token by its id",
                )
        return tokens  # type: ignore[return-value]

    made = make_options(format, options, record)
    reader, _, found = open_marked(format, path, made, given, record, resolve, findings)
    end, begin = resolve(*found)
    notes: list[str] = []
    size = record.tokenizer.vocab_size if record else reader.facts.get("vocab_size")
    if not isinstance(size, int):
        notes.append("ids were not compared with a vocabulary: name it with --tokenizer")
        size = ANY_VOCABULARY
    if end is None:
        notes.append("boundaries of documents were not checked: name the end with --tokenizer or --eod")
        return reader, BoundaryPolicy("none", 0, None, size), notes
    return reader, BoundaryPolicy(reader.edges, end, begin, size), notes


def _check_unit(reader: DatasetReader, policy: BoundaryPolicy, unit: ReadTask, findings: Findings) -> int:
    """Check the documents of a unit; return how many are cut off by the beginning or end of the data."""
    name, truncated = reader.files[unit.file].name, 0
    checks_ends = policy.edges != "none" or reader.edges == "none"
    try:
        for block in read_document_blocks(reader, unit):
            for wrong in policy.problems(block):
                at = "" if block.positions is None else f" at {int(block.positions[wrong.document]):,}"
                place = (
                    f"{wrong.what} ({wrong.count:,}), the first in the document{at}, token {wrong.token:,}"
                )
                findings.add(name, place, wrong.expected, wrong.found)
            if block.truncated is None or checks_ends:
                findings.documents += len(block)
            if block.truncated is not None and checks_ends:
                truncated += int(np.count_nonzero(block.truncated))
            findings.tokens += len(block.tokens)
            findings.read(block.tokens.nbytes)
    except PacklineError as error:
        findings.add(name, str(error))
    return truncated


def _report(findings: Findings, format: Format, notes: list[str], started: float) -> DatasetReport:
    report = findings.report(None, time.perf_counter() - started)
    fields = {name: getattr(report, name) for name in Report.__struct_fields__}
    return DatasetReport(**fields, format=format.name, notes=notes)
