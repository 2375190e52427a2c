"""Check of a data set alone: sizes, indexes, ids, boundaries; all problems with their positions.

    packline.json   its own checksum; paths, sizes and checksums of all files; no other files   `export_files`
    headers         sizes, magic numbers, indexes                                               `format.open`
    tokens          ids below the vocabulary, boundary tokens around every document; not of rows

If there is a packline.json, headers and tokens are only checked if all checksums are right, so no parser is
given a damaged file.

The vocabulary and the boundary tokens are those of the given tokenizer, or else those that the data set
declares (`packline.json`, metadata). Checks that were skipped for lack of either are listed in the notes.

Cost: one pass over the tokens, about 1 GB/s, and a second one if there are checksums; memory is one block.
Does not compare with a store (import it, and export it again), or repair anything.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
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
    check_metadata,
    declared_boundary,
    find_format,
    find_record,
    make_options,
    open_dataset,
    read_document_blocks,
    read_headers,
    readable,
    with_marker,
)
from packline.formats.row_view import UNTRAINED
from packline.formats.types import ReadTask
from packline.storage.places import is_remote, without_secrets
from packline.store.files import StoreFiles
from packline.store.report import Findings, OnProgress, Report
from packline.store.shard_check import check_file

ANY_VOCABULARY = 2**31


class DatasetReport(Report, eq=False):
    """Report on a data set in another format."""

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
    """Check a data set.

    Args:
        path: a file or folder.
        format: a name from `packline.formats.format`; by default recognised, if unambiguous.
        tokenizer: the tokenizer that made the ids; by default the vocabulary that the data set declares.
        options: options of the format, by name.
        eod: end of document; a string needs the tokenizer.
        bos: begin of document; a string needs the tokenizer.
        on_progress: called with the bytes read so far and the total bytes.

    Raises:
        InputError: a missing data set, one in another format, or a URI.
        RecipeError: invalid options.

    >>> check_dataset("nowhere", "nanogpt")
    Traceback (most recent call last):
    packline.errors.InputError: cannot find nowhere
    """
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
            plan = _Plan(opened.reader, opened.policy, opened.notes)
        else:
            plan = _without_tokenizer(chosen, path, record, options or {}, eod, bos, findings)
    except (TokenizerError, CorruptStore) as error:
        findings.add(path.name, str(error))
        return _report(findings, chosen, notes, started)
    plan.notes[:0] = notes
    if chosen.holds_text:
        plan.notes.append("text is not tokenized: checksums and headers were checked")
    sizes = sum(file.bytes for file in plan.reader.files)
    findings.expect(findings.bytes + sizes, on_progress)
    if record is None:
        findings.files += len(plan.reader.files)
    for unit in plan.reader.units:
        _check_unit(plan, unit, findings)
    plan.notes += _warnings(chosen, plan.reader, record, path) if not findings.problems else ()
    if plan.truncated:
        plan.notes.append(f"documents that the data's beginning or end cuts off: {plan.truncated:,}")
    return _report(findings, chosen, plan.notes, started)


@dataclass(slots=True)
class _Plan:
    """Data set to check, and how to check it."""

    reader: DatasetReader
    policy: BoundaryPolicy
    notes: list[str]
    truncated: int = 0


def _check_rows(
    format: Format,
    path: Path,
    tokenizer: str | Path | None,
    eod: str | int | None,
    record: ExportRecord | None,
    options: dict[str, Any],
    findings: Findings,
) -> list[str]:
    """Check headers of rows, and the tokenizer against their metadata; return notes."""
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
    eod: str | int | None,
    bos: str | int | None,
    findings: Findings,
) -> _Plan:
    """Plan based on the metadata of the data set."""
    for role, requested in (("eod", eod), ("bos", bos)):
        if isinstance(requested, str):
            raise RecipeError(
                f"{role} {requested!r} is a token's string: expected an id, as no tokenizer was named",
                hint="name the tokenizer with --tokenizer, or the token by its id",
            )
    given = make_options(format, options, record)
    reader = read_headers(format, path, given, Findings())
    declared_eod, declared_bos = declared_boundary(record, reader.facts)
    end, begin = (declared_eod if eod is None else eod), (declared_bos if bos is None else bos)
    assert not isinstance(end, str) and not isinstance(begin, str)
    known = with_marker(given, begin if reader.edges == "bos" and begin is not None else end)
    reader = read_headers(format, path, known, findings)
    notes: list[str] = []
    size = record.tokenizer.vocab_size if record else reader.facts.get("vocab_size")
    if not isinstance(size, int):
        notes.append("ids were not compared with a vocabulary: name it with --tokenizer")
        size = ANY_VOCABULARY
    if end is None:
        notes.append("boundaries of documents were not checked: name the end with --tokenizer or --eod")
        return _Plan(reader, BoundaryPolicy("none", 0, None, size), notes)
    return _Plan(reader, BoundaryPolicy(reader.edges, end, begin, size), notes)


def _warnings(
    format: Format, reader: DatasetReader, record: ExportRecord | None, path: Path
) -> Iterator[str]:
    """Reasons why a trainer may stop: from the record of an export, or else based on the existing files."""
    if record is not None:
        yield from record.warnings
    elif path.is_dir():
        yield from format.missing(unit.split for unit in reader.units)


def _check_unit(plan: _Plan, unit: ReadTask, findings: Findings) -> None:
    name = plan.reader.files[unit.file].name
    checks_ends = plan.policy.edges != "none" or plan.reader.edges == "none"
    try:
        for block in read_document_blocks(plan.reader, unit):
            for wrong in plan.policy.problems(block):
                at = "" if block.positions is None else f" at {int(block.positions[wrong.document]):,}"
                place = (
                    f"{wrong.what} ({wrong.count:,}), the first in the document{at}, token {wrong.token:,}"
                )
                findings.add(name, place, wrong.expected, wrong.found)
            if block.truncated is None or checks_ends:
                findings.documents += len(block)
            if block.truncated is not None and checks_ends:
                plan.truncated += int(np.count_nonzero(block.truncated))
            findings.tokens += len(block.tokens)
            findings.read(block.tokens.nbytes)
    except PacklineError as error:
        findings.add(name, str(error))


def _report(findings: Findings, format: Format, notes: list[str], started: float) -> DatasetReport:
    report = findings.report(None, time.perf_counter() - started)
    fields = {name: getattr(report, name) for name in Report.__struct_fields__}
    return DatasetReport(**fields, format=format.name, notes=notes)
