"""Check of a data set alone: sizes, indexes, ids, boundaries; all problems with their positions.

    packline.json   its own checksum; paths, sizes and checksums of all files; no other files  `export_record`
    headers         sizes, magic numbers, indexes                                               `format.open`
    tokens          ids below the vocabulary, boundary tokens around every document; not of rows

If there is a packline.json, headers and tokens are only checked if all checksums are right, so no parser is
given a damaged file. Cost: one pass over the tokens, about 1 GB/s, and a second one if there are checksums.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from packline.encoders.special_tokens import resolve_boundary
from packline.encoders.tokenizer import load_tokenizer
from packline.errors import CorruptStore, InputError, PacklineError, RecipeError, TokenizerError
from packline.formats.boundaries import BoundaryPolicy
from packline.formats.export_record import RECORD, ExportRecord, check_export
from packline.formats.format import DatasetReader, DocumentFormat, Format, RowFormat, convert_options
from packline.formats.opening import (
    Boundaries,
    check_metadata,
    declared_boundary,
    find_format,
    find_record,
    make_options,
    open_dataset,
    open_marked,
    read_document_blocks,
    readable,
)
from packline.formats.row_view import UNTRAINED
from packline.formats.types import ReadTask
from packline.storage.places import is_remote, without_secrets
from packline.store.files import StoreFiles
from packline.store.report import Findings, OnProgress, Report
from packline.store.shard_check import check_file

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
