"""Index of a Megatron pair from another writer: checked completely, then used for the ends of documents.

    sequences   |0    |1  |2      |3 |        begins, lengths: back to back, to the end of the .bin
    documents   |0        |1      |2 |        document_indices 0 2 3 4: each a run of sequences

Every entry is checked once, a block at a time, at memory speed: sequences have to lie back to back from byte
0 to the end of the token file, and documents have to cover all of them in order. So no later read can go out
of bounds. The arrays stay mapped. `megatron` describes the layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from packline.store.shard import HEADER, MAGIC

if TYPE_CHECKING:
    from packline.formats.types import ForeignFile
    from packline.store.report import Findings

READ_CODES: dict[int, np.dtype] = {
    1: np.dtype("u1"),
    2: np.dtype("i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    8: np.dtype("<u2"),
}
"""dtypes by code; 6 and 7 are floats, which cannot be tokens."""
BLOCK = 1 << 18
"""Number of entries checked at a time."""


@dataclass(frozen=True)
class DocumentEnds:
    """Ends of documents, in tokens, from a mapped index."""

    dtype: np.dtype
    begins: np.ndarray
    """int64 `[S]`: start of each sequence, in bytes."""
    documents: np.ndarray
    """int64 `[D+1]`: first sequence of each document, then S."""
    tokens: int

    def __len__(self) -> int:
        return len(self.documents) - 1

    def __getitem__(self, key: Any, /) -> Any:
        """End of a document, or of those of a slice: the start of the sequence after its last one."""
        behind = self.documents[1:][key]
        inside = behind < len(self.begins)
        if not len(self.begins):
            return behind * 0
        places = self.begins[np.where(inside, behind, 0)] // self.dtype.itemsize
        ends = np.where(inside, places, self.tokens)
        return int(ends) if ends.ndim == 0 else ends


def open_index(index: ForeignFile, tokens: ForeignFile, findings: Findings) -> DocumentEnds | None:
    """Check a pair by its index, a block at a time; None if it cannot be read."""
    with open(index.path, "rb") as file:
        head = file.read(HEADER.size)
    if len(head) < HEADER.size or not head.startswith(MAGIC):
        findings.add(index.name, "first bytes", str(MAGIC), str(head[: len(MAGIC)]))
        return None
    _, version, code, sequences, entries = HEADER.unpack(head)
    if not findings.compare(index.name, "version", 1, version):
        return None
    if code not in READ_CODES:
        findings.add(index.name, "dtype code", "an integer's: 1 to 5, or 8", code)
        return None
    size = HEADER.size + 12 * sequences + 8 * entries
    if index.bytes == size + sequences and sequences:
        findings.add(index.name, "kinds of input behind the documents", "none, as in text", "multimodal data")
        return None
    if not findings.compare(index.name, "size in bytes", size, index.bytes):
        return None
    mapped = np.asarray(np.memmap(index.path, np.uint8, "r"))
    cuts = [HEADER.size, HEADER.size + 4 * sequences, HEADER.size + 12 * sequences]
    lengths, begins = mapped[cuts[0] : cuts[1]].view("<i4"), mapped[cuts[1] : cuts[2]].view("<i8")
    documents = mapped[cuts[2] :].view("<i8")
    dtype = READ_CODES[code]
    whole = _check_sequences(index.name, lengths, begins, dtype, findings)
    if whole is None or not _check_documents(index.name, documents, sequences, findings):
        return None
    if not findings.compare(tokens.name, "size in bytes", whole * dtype.itemsize, tokens.bytes):
        return None
    return DocumentEnds(dtype, begins, documents, whole)


def _check_sequences(
    name: str, lengths: np.ndarray, begins: np.ndarray, dtype: np.dtype, findings: Findings
) -> int | None:
    """Check that sequences lie back to back; return their total number of tokens, or None."""
    place = 0
    for start in range(0, len(lengths), BLOCK):
        block = lengths[start : start + BLOCK].astype(np.int64)
        expected = place + np.cumsum(block) - block
        wrong = (block < 0) | (begins[start : start + BLOCK] != expected * dtype.itemsize)
        if wrong.any():
            at = int(np.argmax(wrong))
            if block[at] < 0:
                findings.add(name, f"tokens of sequence {start + at:,}", "none or more", int(block[at]))
            else:
                found, place = int(begins[start + at]), int(expected[at]) * dtype.itemsize
                findings.add(name, f"byte where sequence {start + at:,} begins", place, found)
            return None
        place = int(expected[-1] + block[-1])
    return place


def _check_documents(name: str, documents: np.ndarray, sequences: int, findings: Findings) -> bool:
    """Check that documents cover all sequences, in order."""
    if not len(documents):
        findings.add(name, "entries of document_indices", "one or more", 0)
        return False
    if not findings.compare(name, "first sequence of document 0", 0, int(documents[0])):
        return False
    for start in range(0, len(documents) - 1, BLOCK):
        block = documents[start : start + BLOCK + 1]
        if len(wrong := np.flatnonzero(block[1:] < block[:-1])):
            at = int(wrong[0])
            what = f"first sequence of document {start + at + 1:,}"
            findings.add(name, what, f"at least {block[at]}", int(block[at + 1]))
            return False
    return findings.compare(name, "sequences, by the last document", sequences, int(documents[-1]))
