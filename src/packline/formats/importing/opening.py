"""Opening of a foreign data set with the tokenizer that made it: the first step of import and check.

    path ── format (given, or recognised) ── options (given, else from packline.json, else the format's)
         └─ metadata ── end and beginning of documents ── marker ──> Foreign

Where a marker separates documents, the format opens the data set twice, because the metadata may declare the
marker. Only headers and indexes are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packline.encoders.boundary import Boundary, resolve_boundary
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import InputError, PacklineError, RecipeError
from packline.formats.export_files import check_places
from packline.formats.export_record import RECORD, ExportRecord
from packline.formats.format import DocumentFormat, Foreign, Format
from packline.formats.importing.facts import (
    check_tokenizer,
    find_record,
    make_options,
    said_boundary,
    with_marker,
    with_vocabulary,
)
from packline.formats.importing.restoring import Restoring
from packline.formats.registry import get_format, recognise
from packline.formats.types import Block, ForeignUnit
from packline.store.files import reading
from packline.store.report import Findings


@dataclass(slots=True)
class Opened:
    """A data set whose headers were read, and how to read the rest."""

    format: DocumentFormat
    options: Any
    foreign: Foreign
    tokenizer: Tokenizer
    boundary: Boundary
    notes: list[str]
    """Oddities that are no contradiction."""

    @property
    def restoring(self) -> Restoring:
        """Conversion of its documents to stored ones."""
        boundary = self.boundary
        return Restoring(self.foreign.edges, boundary.eod_id, boundary.bos_id, self.tokenizer.vocab_size)


def find_format(path: Path, name: str | None) -> Format:
    """The format that is given, named by `packline.json`, or recognised without ambiguity.

    Raises:
        InputError: a missing data set, or an unclear format.
    """
    if not path.exists() and not Path(f"{path}.idx").is_file():  # Megatron paths have no suffix
        raise InputError(f"cannot find {path}", hint="check the path")
    if name is not None:
        return get_format(name)
    record = find_record(path)
    return recognise(path) if record is None else get_format(record.format)


def document_format(path: Path, name: str | None) -> DocumentFormat:
    """The format of a data set of documents; see `find_format`.

    Raises:
        RecipeError: it holds rows.
    """
    format = find_format(path, name)
    if not isinstance(format, DocumentFormat):
        raise RecipeError(
            f"{path} holds rows ({format.name}): where documents begin and end is not preserved in them",
            hint="use the store that the rows were made from, or a format of documents (packline formats)",
        )
    return format


def open_foreign(
    path: Path,
    format_name: str | None,
    tokenizer_name: str,
    eod: str | int | None,
    bos: str | int | None,
    options: dict[str, Any],
    findings: Findings,
) -> Opened:
    """Read the headers of a data set; enter problems of headers and sizes in `findings`.

    Raises:
        InputError: a missing data set, or one in another format.
        RecipeError: invalid options, or a data set of rows.
        TokenizerError: the wrong tokenizer, or an unclear end of document.
    """
    format = document_format(path, format_name)
    record = find_record(path)
    if record is not None and path.is_dir():
        check_places(path, record, findings)
    tokenizer = load_tokenizer(tokenizer_name)
    given = with_vocabulary(make_options(format, options, record), tokenizer.vocab_size)
    foreign = read_headers(format, path, given, first := Findings())
    said_eod, said_bos = said_boundary(record, foreign.facts)
    boundary = resolve_boundary(tokenizer, said_eod if eod is None else eod, said_bos if bos is None else bos)
    before = foreign.edges == "bos" and boundary.bos_id is not None
    known = with_marker(given, boundary.bos_id if before else boundary.eod_id)
    if known is not given:
        foreign = read_headers(format, path, known, findings)
    else:
        for problem in first.problems:
            findings.add(problem.file, problem.what, problem.expected, problem.found)
        findings.not_listed += first.not_listed
    if record is not None and path.is_dir():
        _refuse_strays(foreign, record, findings)
    notes = check_tokenizer(str(path), tokenizer, boundary.eod_id, record, foreign.facts)
    return Opened(format, known, foreign, tokenizer, boundary, notes)


def _refuse_strays(foreign: Foreign, record: ExportRecord, findings: Findings) -> None:
    """Note files that would be read although the export did not write them."""
    listed = {entry.name for entry in record.files}
    for file in foreign.files:
        if file.name not in listed:
            findings.add(file.name, "a stray file", "nothing", f"a file that {RECORD} does not list")


def read_headers(format: DocumentFormat, path: Path, options: Any, findings: Findings) -> Foreign:
    """Call `format.open`; any problem with the data is an error with its position.

    Raises:
        InputError: a file disappears or cannot be read.
        CorruptStore: a library cannot parse a file.
    """
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


def read_blocks(foreign: Foreign, unit: ForeignUnit) -> Iterator[Block]:
    """`foreign.blocks(unit)`, with errors of a library as `CorruptStore` with the file."""
    with reading(foreign.files[unit.file].path):
        yield from foreign.blocks(unit)
