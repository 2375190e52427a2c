"""Checksum of a piece of a file as it is now, as reading it computes it, but without decoding JSON or text.

A file whose reading stopped at damage may have another checksum here. It then counts as changed.
"""

from __future__ import annotations

from typing import Any

from packline.fingerprint import Hasher
from packline.recipe import Source
from packline.sources.files import InputFile
from packline.sources.lines import seek_record
from packline.sources.reader import Span, can_be_cut, read_span
from packline.storage.inputs import READ_BYTES, read_fully


def piece_checksum(file: InputFile, source: Source, span: Span, max_document_bytes: int) -> str:
    """Checksum of the records that begin in a span, or of a whole file that cannot be cut."""
    hasher = Hasher()
    if file.format == "parquet":
        for _ in read_span(file, source, span, max_document_bytes, hasher):
            pass
        return str(hasher.hexdigest())
    if file.compression:
        hasher.update(file_checksum(file).encode())
        return str(hasher.hexdigest())
    start, stop = span.start, span.stop
    if can_be_cut(file, source):
        with file.open() as raw:
            start = seek_record(raw, span.start)
            stop = seek_record(raw, span.stop) if span.start < span.stop else start
    _hash_bytes(hasher, file, start, stop)
    return str(hasher.hexdigest())


def stream_checksum(file: InputFile, source: Source, max_document_bytes: int) -> str:
    """Checksum of a file that is read slice by slice (`slices.FileEnd`)."""
    if file.format != "parquet":
        return file_checksum(file)
    from packline.sources.parquet import group_count

    return piece_checksum(file, source, Span(file.index, 0, group_count(file)), max_document_bytes)


def file_checksum(file: InputFile) -> str:
    """Checksum of all bytes of a file."""
    hasher = Hasher()
    _hash_bytes(hasher, file, 0, None)
    return str(hasher.hexdigest())


def _hash_bytes(hasher: Any, file: InputFile, start: int, stop: int | None) -> None:
    with file.open() as raw:
        raw.seek(start)
        while data := read_fully(raw, READ_BYTES if stop is None else min(READ_BYTES, stop - start)):
            hasher.update(data)
            start += len(data)
