"""Reading of documents from plain text: a file, a line, or the text between separators.

Text is UTF-8, unchanged except that a byte order mark at the start of a file is removed and, if each line is
a document, the line end (`\\n` or `\\r\\n`). A document with bytes that are not UTF-8 is a bad record. Cost:
decoding, above 1 GB/s per core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from packline.sources.batch import BATCH_BYTES, Batch, Block, Reject, reject_block, without_documents
from packline.sources.delimited import NEWLINE
from packline.sources.texts import Texts

BOM = b"\xef\xbb\xbf"


def decode_records(file: int, block: Block, delimiter: bytes) -> Batch:
    """Decode the documents of a block of lines, or of records that end with a separator.

    >>> list(decode_records(0, Block(memoryview(b"one\\r\\ntwo\\n"), np.array([0, 5]), 0), b"\\n").texts)
    ['one', 'two']
    """
    if block.problem:
        return reject_block(file, block)
    data = bytes(block.data)
    marked = block.position == 0 and data.startswith(BOM)
    try:
        texts = (data[len(BOM) :] if marked else data).decode("utf-8").split(delimiter.decode("utf-8"))
    except UnicodeDecodeError:
        return _decode_one_by_one(file, data, block, delimiter)
    if len(texts) > len(block.starts):
        texts.pop()  # the last delimiter is followed by nothing
    if delimiter == NEWLINE and b"\r" in data:
        texts = [text.removesuffix("\r") for text in texts]
    return Batch(file, Texts.of(texts), block.starts + block.position, consumed_bytes=len(data))


def _decode_one_by_one(file: int, data: bytes, block: Block, delimiter: bytes) -> Batch:
    texts, positions, rejects = [], [], []
    starts = block.starts.tolist()
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        record, position = data[start:end].removesuffix(delimiter), block.position + start
        if position == 0:
            record = record.removeprefix(BOM)
        try:
            text = record.decode("utf-8")
        except UnicodeDecodeError as error:
            detail = _not_utf8(error, position)
            rejects.append(Reject(file, position, "invalid_utf8", detail, record))
            continue
        texts.append(text.removesuffix("\r") if delimiter == NEWLINE else text)
        positions.append(position)
    return Batch(file, Texts.of(texts), np.array(positions, np.int64), None, rejects, len(data))


def read_whole_file(file: int, read: Callable[[int], bytes], max_bytes: int) -> Iterator[Batch]:
    """Read a file as one document; if it is too large, as the pieces of one reject."""
    parts: list[bytes] = []
    size = 0
    while fresh := read(BATCH_BYTES):
        parts.append(fresh)
        size += len(fresh)
        if size > max_bytes:
            yield from _reject_pieces(file, b"".join(parts), read, max_bytes)
            return
    data = b"".join(parts)
    text = data.removeprefix(BOM)
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        detail = _not_utf8(error, len(data) - len(text))
        yield without_documents(file, Reject(file, 0, "invalid_utf8", detail, data), size)
        return
    yield Batch(file, Texts.one(text), np.array([0], np.int64), consumed_bytes=size)


def _reject_pieces(file: int, data: bytes, read: Callable[[int], bytes], max_bytes: int) -> Iterator[Batch]:
    detail = (
        f"a file of more than {max_bytes:,} bytes as one document "
        '(documents = "line" or a separator would cut it)'
    )
    position = 0
    while data:
        reject = Reject(file, position, "too_large", detail, data, continued=position > 0)
        yield without_documents(file, reject, len(data))
        position += len(data)
        data = read(BATCH_BYTES)


def _not_utf8(error: UnicodeDecodeError, base: int) -> str:
    return (
        f"byte 0x{error.object[error.start]:02x} at offset {base + error.start} is not UTF-8: {error.reason}"
    )
