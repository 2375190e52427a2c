"""Ways to read records of tokens: as documents, as one stream, or row by row; and how one is chosen.

    records             a b c END | d e f g | h END . .
    rows = "items"      each record is a document
    rows = "joined"     one stream, cut at a marker: a b c END, d e f g h END
    rows = "separate"   each record is cut alone: a b c END, d e f g, h END

Other projects store documents in records, one each, or rows of one length cut from a stream; a record does
not show which, so it is an option. For an export of packline, its `packline.json` decides. Rows that were not
simply cut from a stream in order (another packing, a shuffled order) were not neighbours: a document that
continued in another row becomes two (`separate_rows`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packline.errors import RecipeError
from packline.formats.export_record import read_record
from packline.formats.shared.row_files import RowFileOptions, are_separate, folder_of
from packline.formats.types import Edges, Options

Way = Literal["items", "joined", "separate"]


class RecordOptions(Options, frozen=True):
    """Options for reading records; they have no effect on writing."""

    rows: Literal["auto", "items", "joined", "separate"] = "auto"
    """Reading: each record is a document, or all are one stream that a marker cuts into documents, or each
    is cut by itself; auto: as packline.json says, else items."""
    edges: Literal["auto", "eod", "bos", "both", "none"] = "auto"
    """Reading: which boundary tokens documents have; auto: as packline.json says, else eod."""
    marker: int | None = None
    """Reading rows: the token between documents; default that of the tokenizer."""
    overlap: int | None = None
    """Reading rows: tokens at the end of each that the next begins with, or that are not of it; default as
    packline.json says, else 0."""
    padding: int | None = None
    """Reading joined rows: padding at the end of the last, in tokens; default as packline.json says, or 0."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Resolved way to read records."""

    way: Way
    edges: Edges
    overlap: int = 0
    padding: int = 0
    bos_id: int | None = None
    """Begin-of-document token of the rows' store, if known."""


def settle(format: str, path: Path, options: RecordOptions, *, own_overlap: int) -> Settled:
    """Determine how a data set is read.

    Args:
        own_overlap: overlap of rows that packline wrote in this format.

    Raises:
        RecipeError: contradictory options.
        CorruptStore: packline.json is damaged.

    >>> settle("mds", Path("nowhere"), RecordOptions(rows="joined", overlap=1), own_overlap=0)
    Settled(way='joined', edges='eod', overlap=1, padding=0, bos_id=None)
    >>> settle("mds", Path("nowhere"), RecordOptions(rows="items", overlap=1), own_overlap=0)
    Traceback (most recent call last):
    packline.errors.RecipeError: mds: overlap 1, padding 0: expected 0 where rows are items
    """
    record = read_record(folder_of(path))
    bos_id = None if record is None else record.tokenizer.bos_id
    edges: Edges = "eod" if bos_id is None else "both"
    if options.edges != "auto":
        edges = options.edges
    way: Way = "items"
    overlap = padding = 0
    if record is not None and record.seq_len is not None and record.rows is not None:
        way = "separate" if are_separate(path, RowFileOptions()) else "joined"
        overlap, padding = own_overlap, record.rows * record.seq_len - record.tokens
    if options.rows != "auto":
        way = options.rows
    overlap = 0 if way == "items" else overlap
    padding = padding if way == "joined" else 0
    overlap = overlap if options.overlap is None else options.overlap
    padding = padding if options.padding is None else options.padding
    if min(overlap, padding) < 0 or (way == "items" and overlap) or (way != "joined" and padding):
        wanted = {"joined": "0 or more", "separate": "no padding", "items": "0 where rows are items"}[way]
        raise RecipeError(f"{format}: overlap {overlap}, padding {padding}: expected {wanted}")
    return Settled(way, edges, overlap, padding, bos_id)
