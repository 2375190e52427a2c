"""Largest document that fits into the memory of a worker.

    memory of a worker  >=  its memory with engines  +  READING * bytes of the record that it reads
                                                     or ENCODING * bytes of the text that it encodes

A text cannot be split for tokenization without knowing the pattern of its tokenizer, so a document is encoded
as a whole. One that does not fit stops the build, with the setting that would allow it. It is not left out:
the contents of a store depend on the recipe alone, never on the memory of a machine.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from packline.encoders import EngineName
from packline.errors import OutOfMemory

READING = 8
"""Bytes of memory per byte of a record: the growing buffer, the text as a string, the text as UTF-8."""
ENCODING: dict[EngineName, int] = {"gigatoken": 16, "fastokens": 18, "tokenizers": 160}
"""Bytes of memory per byte of text, reading included. Measured on documents of 11 to 80 MB of real text:
up to 14.5, 16.2 and 140.
"""
LEAST = 1 << 20
"""Lower bound of the limits, in bytes: batches are about this large."""
LARGE = 4 << 20
"""Size from which documents are checked, in bytes."""
UNBOUNDED = 1 << 62


class Room(msgspec.Struct, frozen=True):
    """Largest record and largest document that fit into the memory of a worker, in bytes.

    >>> room = room_for(1 << 30, 512 << 20, ["gigatoken"])
    >>> room.record >> 20, room.document >> 20
    (64, 32)
    """

    record: int = UNBOUNDED
    document: int = UNBOUNDED
    memory: int = UNBOUNDED
    """Memory of a worker, in bytes."""
    factor: int = 0
    """Bytes of memory per byte of encoded text."""

    def refuse(self, place: str, size: int) -> None:
        """Stop at a document that does not fit.

        Args:
            place: location of the document, for the message.
            size: size of its record or text, in bytes.

        Raises:
            OutOfMemory: always.
        """
        base = max(self.memory - self.factor * self.document, 0)
        needed = -(-(base + self.factor * size) // (1 << 28)) / 4
        raise OutOfMemory(
            f"{place}: a document of {size / 1e6:,.1f} MB does not fit into the memory of a worker: expected "
            f"at most {self.document / 1e6:,.1f} MB with {self.memory / 2**30:,.2f} GiB",
            hint=f"give each worker {needed:,.2f} GiB (--memory is for all of them together; --workers says "
            "how many), or start a new build in which larger documents are bad records: "
            f"--max-document-size {max(self.document >> 20, 1)}MiB",
        )


def room_for(memory: int, base: int, engines: Iterable[EngineName]) -> Room:
    """Compute the limits for a worker.

    Args:
        memory: memory of a worker, in bytes.
        base: bytes that it holds before the first document.
        engines: engines that it encodes with.
    """
    left = memory - base
    factor = max(ENCODING[name] for name in engines)
    return Room(max(left // READING, LEAST), max(left // factor, LEAST), memory, factor)
