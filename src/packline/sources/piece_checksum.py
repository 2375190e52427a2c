"""Checksum of a piece of a file as it is now, as reading it computes it, but without decoding JSON or text.

A file whose reading stopped at damage may have another checksum here. It then counts as changed.
"""

from __future__ import annotations

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
    elif file.compression:
        hasher.update(_checksum(file).encode())
    elif can_be_cut(file, source):
        with file.open() as raw:
            start = seek_record(raw, span.start)
            stop = seek_record(raw, span.stop) if span.start < span.stop else start
        return _checksum(file, start, stop)
    else:
        return _checksum(file, span.start, span.stop)
    return str(hasher.hexdigest())


def stream_checksum(file: InputFile, source: Source, max_document_bytes: int) -> str:
    """Checksum of a file that is read slice by slice (`slices.FileEnd`)."""
    if file.format != "parquet":
        return _checksum(file)
    from packline.sources.parquet import group_count

    return piece_checksum(file, source, Span(file.index, 0, group_count(file)), max_document_bytes)


def _checksum(file: InputFile, start: int = 0, stop: int | None = None) -> str:
    hasher = Hasher()
    with file.open() as raw:
        raw.seek(start)
        while data := read_fully(raw, READ_BYTES if stop is None else min(READ_BYTES, stop - start)):
            hasher.update(data)
            start += len(data)
    return str(hasher.hexdigest())
