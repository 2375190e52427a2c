"""Tokens as cells: the bytes of each token, cells of a range of tokens, strips of documents and rows.

    ids      12  262   165   108  95  50256       0      0
    bytes    d   ' of' e6    bc   a2  --          --     --
    cells    d | ' of' | 漢 (three tokens) | <|endoftext|> | padding | padding

A cell is one token, or several tokens that only together form a character: it continues while its last
character is incomplete. Bytes that are not UTF-8, such as half a character at the edge of a row, are shown as
`\\xNN` and do not affect neighbouring cells. A cell costs about 2.5 microseconds. The vocabulary of a store
is read once per process, because a tokenizer of 150,000 tokens takes half a second and 20 MB.
"""

from __future__ import annotations

import codecs
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import msgspec
import numpy as np

from packline.encoders.token_bytes import token_bytes
from packline.encoders.tokenizer import Tokenizer
from packline.errors import TokenizerError
from packline.packing.layout import IGNORED
from packline.packing.rows import Rows
from packline.store.files import FileEntry, StoreFiles
from packline.store.manifest import TokenizerEntry, load_kept_tokenizer
from packline.store.provenance import Provenance
from packline.store.reader import StoreReader, document_number, provenance_of
from packline.viewing.columns import value_text
from packline.viewing.page import Cell, DocumentOrigin, TokenStrip
from packline.viewing.text import JOINERS, MARKS_MOST, visible
from packline.viewing.turns import with_turns

MOST = 2048
LONGEST_VALUE = 40
LOSS = {1: True, 0: False, -1: None}

Href = Callable[[int], str]
"""Function from the number of a document to the address of its page."""
Kind = Literal["text", "space", "break", "escape"]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens of a tokenizer."""

    name: str
    data: Sequence[bytes]
    """Bytes of each token by id; empty for special tokens and for ids without a token."""
    special: dict[int, str]
    """Names of special tokens by id, including those that begin and end documents."""
    eod_id: int | None = None
    """End-of-document token, if known."""

    def __len__(self) -> int:
        return len(self.data)

    @classmethod
    def of_tokenizer(cls, tokenizer: Tokenizer, *, eod_id: int | None = None) -> Vocabulary:
        """Build the vocabulary of a loaded tokenizer."""
        special = {number: name for name, number in tokenizer.special_tokens.items()}
        return cls(tokenizer.name, token_bytes(tokenizer), special, eod_id)

    @classmethod
    def of_store(cls, store: StoreReader) -> Vocabulary:
        entry = store.manifest.tokenizer
        files = store.tokenizer_file, store.manifest.tokenizer_files
        return _of_store(store.files, *files, msgspec.json.encode(entry))

    def text(self, number: int) -> str:
        """Text of a token, or its name if it is special."""
        if number in self.special:
            return self.special[number]
        return self.data[number].decode("utf-8", "backslashreplace") or f"id {number}"

    def check(self, ids: np.ndarray, what: str) -> None:
        if not ids.size or (int(ids.min()) >= 0 and int(ids.max()) < len(self)):
            return
        wrong = int(ids[(ids < 0) | (ids >= len(self))].flat[0])
        raise TokenizerError(
            f"{what}: token id {wrong:,} is outside the vocabulary of {self.name}: "
            f"expected 0 to {len(self) - 1:,}",
            hint="another tokenizer made these tokens; name that one with --tokenizer",
        )


@lru_cache(maxsize=4)
def _of_store(
    store: StoreFiles, file: FileEntry, files: tuple[FileEntry, ...], entry_json: bytes
) -> Vocabulary:
    entry = msgspec.json.decode(entry_json, type=TokenizerEntry)
    store.read(file)  # raises an error if it is damaged
    tokenizer = load_kept_tokenizer(store, files)
    kind = "tiktoken" if entry.kind == "tiktoken" else tokenizer.kind
    found = Vocabulary.of_tokenizer(
        msgspec.structs.replace(tokenizer, name=entry.name, kind=kind), eod_id=entry.eod_id
    )
    found.special[entry.eod_id] = entry.eod
    if entry.bos_id is not None and entry.bos is not None:
        found.special[entry.bos_id] = entry.bos
    return found


def cells_of(
    vocabulary: Vocabulary,
    ids: np.ndarray,
    *,
    learned: np.ndarray | None = None,
    position_ids: np.ndarray | None = None,
    segment_ids: np.ndarray | None = None,
    first: int = 0,
) -> tuple[Cell, ...]:
    """Cells of a range of tokens.

    Args:
        ids: integers `[T]`.
        learned: int8 `[T]`: 1 for a token that is a target, 0 for one that is not, -1 if unknown.
        position_ids: integers `[T]`; default: count from `first`.
        segment_ids: integers `[T]`, -1 at padding; default: one segment.
    """
    vocabulary.check(ids, "these tokens")
    count = len(ids)
    positions = (np.arange(first, first + count) if position_ids is None else position_ids).tolist()
    segments = [0] * count if segment_ids is None else segment_ids.tolist()
    known: list[int] = [-1] * count if learned is None else learned.tolist()
    numbers, data, special = ids.tolist(), vocabulary.data, vocabulary.special
    cells: list[Cell] = []
    for start, stop in _groups(numbers, segments, vocabulary):
        held = tuple(numbers[start:stop])
        padding, name = segments[start] < 0, None
        if stop - start == 1:
            name, content, loss = special.get(held[0]), data[held[0]], LOSS[known[start]]
        else:
            flags = known[start:stop]
            content = b"".join([data[one] for one in held])
            loss = LOSS[0 if 0 in flags else min(flags)]
        if padding or name is not None:
            content = b""
        elif not content:
            name = f"id {held[0]}"  # an id without a token: a gap in the vocabulary
        cells.append(
            Cell(
                text=name if name is not None else content.decode("utf-8", "backslashreplace"),
                ids=held,
                data=content,
                position=positions[start],
                segment=segments[start],
                special=name is not None and not padding,
                padding=padding,
                loss=loss,
                starts=not padding and (start == 0 or segments[start - 1] != segments[start]),
            )
        )
    return tuple(cells)


def learned_of(targets: np.ndarray, position_ids: np.ndarray | None = None) -> np.ndarray:
    """Tokens of a row that are learned, int8 `[L]`: 1 or 0, and -1 (unknown) for the first.

    A token is learned if it is the target of the position before it. The first token of a document is never
    learned.

    Args:
        targets: integers `[L]`, -100 where there is none.
        position_ids: integers `[L]`, positions within documents.
    """
    found = np.empty(len(targets), np.int8)
    if len(found):
        found[1:] = targets[:-1] != IGNORED
        begins = position_ids is not None and position_ids[0] == 0
        found[0] = 0 if begins else -1
    return found


def _groups(ids: list[int], segments: list[int], vocabulary: Vocabulary) -> Iterator[tuple[int, int]]:
    """Start and end positions of the tokens of each cell."""
    data, special = vocabulary.data, vocabulary.special
    start, tail = 0, b""
    for place, number in enumerate(ids):
        one = data[number]
        alone = number in special or not one or segments[place] < 0
        if tail and (alone or segments[place] != segments[place - 1] or not _continues(tail, one)):
            yield start, place
            start, tail = place, b""
        if alone:
            yield place, place + 1
            start = place + 1
            continue
        whole = tail + one
        if whole.isascii():
            yield start, place + 1
            start = place + 1
            continue
        _, taken = codecs.utf_8_decode(whole, "backslashreplace", False)
        tail = whole[taken:]
        if not tail:
            yield start, place + 1
            start = place + 1
    if tail:
        yield start, len(ids)


def _continues(tail: bytes, more: bytes) -> bool:
    """True if `more` completes, or at least continues, the character that begins with the bytes `tail`."""
    lead = tail[0]
    length = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    try:
        codecs.utf_8_decode((tail + more)[:length], "strict", False)
    except UnicodeDecodeError:
        return False
    return True


def visible_pieces(cell: Cell, marks: int = -1) -> list[tuple[str, Kind]]:
    """Split the text of a cell into pieces that can be rendered anywhere, each with its kind.

    A line end is `↵` of kind `break`: a new line may follow it. Tabs, and white space that would be hidden,
    are of kind `space`. Bytes that are not UTF-8, and characters with an effect on a page, are of kind
    `escape`, so that they differ from a text that looks the same. A combining mark without a letter to be on
    gets a dotted circle.
    """
    if cell.special or cell.padding:
        return [(visible(cell.text), "text")]
    if cell.data.isascii() and not cell.data.isspace():
        text = cell.data.decode()
        if text.isprintable():
            return [(text, "text")]
    pieces: list[tuple[str, Kind]] = []
    for text, valid in _parts(cell.data):
        pieces += _pieces(text, marks if not pieces else -1) if valid else [(text, "escape")]
    if all(kind == "space" or text.isspace() for text, kind in pieces):
        pieces = [(text.replace(" ", "·"), "space") for text, _ in pieces]
    return _joined(pieces)


def _parts(data: bytes) -> Iterator[tuple[str, bool]]:
    """Split bytes into text (True) and escapes of bytes that are not UTF-8 (False)."""
    while data:
        try:
            yield data.decode(), True
            return
        except UnicodeDecodeError as error:
            if error.start:
                yield data[: error.start].decode(), True
            yield "".join(f"\\x{byte:02x}" for byte in data[error.start : error.end]), False
            data = data[error.end :]


def _pieces(text: str, marks: int) -> Iterator[tuple[str, Kind]]:
    marks, base = max(marks, 0), marks >= 0
    for character in text:
        category = unicodedata.category(character)
        if category[0] == "M":
            marks += 1
            if category != "Mc" and not base:
                yield "◌" + character, "text"  # it would combine with the character before the cell
                base = True
            elif marks > MARKS_MOST:
                yield _escaped(character), "escape"
            else:
                yield character, "text"
            continue
        joiner = character in JOINERS
        marks = marks if joiner else 0
        if joiner and base:
            yield character, "text"
            continue
        base = False
        if character == "\n":
            yield "↵", "break"
        elif character == "\t":
            yield "→", "space"
        elif joiner or (category == "Zs" and character not in " \u3000") or visible(character) != character:
            yield _escaped(character), "escape"
        else:
            base = True
            yield character, "text"


def _escaped(character: str) -> str:
    """Escape of a character as its number; `\\x9b` is reserved for the byte, which differs from U+009B."""
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _joined(pieces: list[tuple[str, Kind]]) -> list[tuple[str, Kind]]:
    """Join neighbouring pieces of one kind, but keep each line end separate."""
    joined: list[tuple[str, Kind]] = []
    for text, kind in pieces:
        if joined and joined[-1][1] == kind != "break":
            joined[-1] = (joined[-1][0] + text, kind)
        else:
            joined.append((text, kind))
    return joined


def describe_origin(provenance: Provenance) -> str:
    """Origin of a document, in one line.

    >>> describe_origin(Provenance("web", "a.jsonl", 1234, "x7", None, "train", 10, 3))
    'web/a.jsonl at 1,234, id x7'
    """
    named = f", id {provenance.id}" if provenance.id is not None else ""
    label = f", label {provenance.label}" if provenance.label is not None else ""
    values = (
        f", {name} {value_text(value, LONGEST_VALUE)}"
        for name, value in provenance.columns.items()
        if value is not None
    )
    return f"{provenance.source}/{provenance.file} at {provenance.position:,}{named}{label}{''.join(values)}"


def document_strip(
    store: StoreReader,
    document: int,
    *,
    first: int = 0,
    most: int = MOST,
    provenance: Provenance | None = None,
) -> TokenStrip:
    document = document_number(store, document)
    shard, inner = store.locate(document)
    tokens = shard.document(inner)
    learned = None
    if shard.loss is not None:
        place = int(shard.places(slice(inner, inner + 1))[0])
        learned = (shard.loss[place : place + len(tokens)] != 0).astype(np.int8)[first : first + most]
    shown = tokens[first : first + most]
    cells = cells_of(Vocabulary.of_store(store), shown, learned=learned, first=first)
    provenance = provenance or provenance_of(store, np.array([document]))[0]
    origin = DocumentOrigin(0, document, describe_origin(provenance))
    return TokenStrip("", cells, (origin,), max(len(tokens) - first - len(shown), 0))


def row_strip(
    rows: Rows,
    index: int,
    *,
    caption: str | None = None,
    most: int = MOST,
    provenances: Sequence[Provenance] | None = None,
    href: Href | None = None,
) -> TokenStrip:
    """Strip of the tokens of a row, with the edges of its documents and the turns of its conversations."""
    spans = rows.spans(np.array([index]))
    arrays = {name: array[0] for name, array in rows.read(np.array([index])).items()}
    if provenances is None:
        begins = np.cumsum(spans.lengths) - spans.lengths
        provenances = provenance_of(rows.store, spans.documents[begins < most])
    positions = _in_documents(arrays["position_ids"], arrays["segment_ids"], spans.starts)
    strip = batch_strip(
        Vocabulary.of_store(rows.store),
        arrays["tokens"],
        learned=learned_of(arrays["targets"], positions),
        position_ids=positions,
        segment_ids=arrays["segment_ids"],
        origins=[
            DocumentOrigin(segment, document, describe_origin(provenance), href(document) if href else "")
            for segment, (document, provenance) in enumerate(
                zip(spans.documents.tolist(), provenances, strict=False)
            )
        ],
        caption=f"row {index:,}" if caption is None else caption,
        most=most,
    )
    return with_turns(strip)


def batch_strip(
    vocabulary: Vocabulary,
    tokens: np.ndarray,
    *,
    learned: np.ndarray | None,
    position_ids: np.ndarray | None = None,
    segment_ids: np.ndarray,
    origins: Sequence[DocumentOrigin] = (),
    caption: str = "",
    most: int = MOST,
) -> TokenStrip:
    """Strip of a row of arrays from any source; see `cells_of`. Padding beyond `most` is not counted."""
    count = len(tokens)
    cells = cells_of(
        vocabulary,
        tokens[:most],
        learned=None if learned is None else learned[:most],
        position_ids=None if position_ids is None else position_ids[:most],
        segment_ids=segment_ids[:most],
    )
    there = {cell.segment for cell in cells}
    return TokenStrip(
        caption, cells, tuple(one for one in origins if one.segment in there), max(count - most, 0)
    )


def _in_documents(position_ids: np.ndarray, segment_ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Convert positions within spans to positions within documents."""
    firsts = np.append(starts, 0)  # the last entry is for padding, segment -1
    return position_ids + firsts[segment_ids]
