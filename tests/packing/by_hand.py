"""Every packing carried out on lists, a token at a time: what prices are held against."""

from __future__ import annotations

import bisect

import msgspec

from packline.packing.packer import Counts

Rows = list[list[int]]
"""Each row as the documents of its tokens, one entry a token."""


def concat(lengths: list[int], seq_len: int) -> tuple[Rows, int, int]:
    """Rows, dropped tokens and truncated tokens; a tail of less than half a row is dropped."""
    run = [document for document, length in enumerate(lengths) for _ in range(length)]
    rows = [run[start : start + seq_len] for start in range(0, len(run), seq_len)]
    dropped = rows.pop() if 2 * len(rows[-1]) < seq_len else []
    return rows, len(dropped), 0


def best_fit(lengths: list[int], seq_len: int) -> tuple[Rows, int, int]:
    """Best fit decreasing, a piece at a time."""
    full: Rows = [
        [number] * seq_len for number, length in enumerate(lengths) for _ in range(length // seq_len)
    ]
    pieces = sorted(((length % seq_len, number) for number, length in enumerate(lengths)), reverse=True)
    packed: list[list[int]] = []
    rooms: list[tuple[int, int]] = []
    for length, number in pieces:
        if not length:
            continue
        place = bisect.bisect_left(rooms, (length, -1))
        if place == len(rooms):
            packed.append([])
            room, row = seq_len, len(packed) - 1
        else:
            room, row = rooms.pop(place)
        packed[row] += [number] * length
        bisect.insort(rooms, (room - length, row))
    return full + packed, 0, 0


def pad(lengths: list[int], seq_len: int, overflow: str) -> tuple[Rows, int, int]:
    """A document a row."""
    rows: Rows = []
    dropped = truncated = 0
    for number, length in enumerate(lengths):
        if length <= seq_len:
            rows.append([number] * length)
        elif overflow == "truncate":
            rows.append([number] * seq_len)
            truncated += length - seq_len
        elif overflow == "split":
            for start in range(0, length, seq_len):
                rows.append([number] * min(seq_len, length - start))
        else:
            dropped += length
    return rows, dropped, truncated


def price(lengths: list[int], seq_len: int, rows: Rows, dropped: int, truncated: int) -> Counts:
    """Counted from the rows themselves."""
    return Counts(
        rows=len(rows),
        documents=len(lengths),
        tokens=sum(lengths),
        padding_tokens=sum(seq_len - len(row) for row in rows),
        dropped_tokens=dropped,
        truncated_tokens=truncated,
        split_documents=sum(
            sum(number in row for row in map(set, rows)) > 1 for number in range(len(lengths))
        ),
        rows_with_several_documents=sum(len(set(row)) > 1 for row in rows),
    )


def prices(lengths: list[int], seq_len: int) -> dict[str, Counts]:
    """The price of every packing, by the name that it has in the list."""
    made = {
        "concat": concat(lengths, seq_len),
        "best_fit": best_fit(lengths, seq_len),
        "pad, truncate": pad(lengths, seq_len, "truncate"),
        "pad, split": pad(lengths, seq_len, "split"),
        "pad, drop": pad(lengths, seq_len, "drop"),
    }
    return {name: price(lengths, seq_len, *rows) for name, rows in made.items()}


def same(found: Counts, expected: Counts, name: str) -> bool:
    """Whether a price is right.

    Best fit leaves open which of several rows with equal room is taken. How many rows hold several documents
    depends on that; the number of rows and the padding do not.
    """
    if name == "best_fit":
        several = found.rows_with_several_documents
        expected = msgspec.structs.replace(expected, rows_with_several_documents=several)
    return found == expected
