"""Pieces to tokens with a loss mask: text by the store's tokenizer, control tokens by their ids.

    pieces   <|user|>  "hi"  <|end|>  <|assistant|>  "hello there"  <|end|>        + EOD
    tokens   7         4 9   8        6              3 1 5          8              0
    loss     0         0 0   0        0              1 1 1          1              0

Each piece of text is encoded alone, by the tokenizer without its special tokens. Equal texts of a batch, such
as the fixed words of a scheme, are encoded once. A tokenizer that puts a space before every text (Metaspace)
would do so within a turn; with such tokenizers the reference encodes adjacent texts as one, and a token that
crosses the start of a trained part makes the conversation a bad record.

Cost: encoding, and about a microsecond per piece. Some documents of each unit are encoded again by the
reference, as in a build.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from packline.chat.pieces import Piece
from packline.encoders.encoder import Encoder
from packline.encoders.special_tokens import Boundary
from packline.encoders.tokenizer import Tokenizer
from packline.ragged import Ragged, concatenate
from packline.sources.batch import RecordProblem


@dataclass(frozen=True, slots=True)
class Encoded:
    """One conversation as a document: tokens uint16 or int32 `[T]`, loss uint8 `[T]`."""

    tokens: np.ndarray
    loss: np.ndarray


class PieceEncoder:
    """Encodes rendered conversations in this process."""

    def __init__(self, tokenizer: Tokenizer, boundary: Boundary) -> None:
        self._boundary = boundary
        self._encoder = Encoder(tokenizer)
        reference = self._encoder.reference
        self._ids = tokenizer.special_tokens | {boundary.eod: boundary.eod_id}
        if boundary.bos is not None and boundary.bos_id is not None:
            self._ids[boundary.bos] = boundary.bos_id
        self._spaced = reference.decode(reference.encode("a") + reference.encode("b")) != "ab"
        self._whole = None
        if self._spaced:
            import tokenizers

            self._whole = tokenizers.Tokenizer.from_str(self._encoder.json)

    def encode(
        self, conversations: Sequence[list[Piece]], audit: Sequence[int] = (), where: str = ""
    ) -> list[Encoded | RecordProblem]:
        """Documents with their boundary tokens, or the reason why one cannot be masked.

        Args:
            conversations: pieces of each conversation.
            audit: positions of those that the reference encodes again.
            where: names of the conversations in messages.

        Raises:
            EncoderMismatch: an engine and the reference disagree.
        """
        whole = [self._with_boundaries(pieces) for pieces in conversations]
        numbers: dict[str, int] = {}
        for pieces in whole:
            for piece in pieces:
                if not piece.control:
                    numbers.setdefault(piece.text, len(numbers))
        texts = list(numbers)
        audited = (piece.text for place in audit for piece in whole[place] if not piece.control)
        positions = [numbers[text] for text in dict.fromkeys(audited)]
        ragged = self._encoder.encode(texts, audit=positions, place=lambda _: where)
        control = list(self._ids)
        places = {token: len(texts) + number for number, token in enumerate(control)}
        ids = np.array([self._ids[one] for one in control], self._encoder.dtype)
        table = concatenate([ragged, Ragged(ids, np.arange(len(ids) + 1))])
        return [self._assemble(pieces, table, numbers, places) for pieces in whole]

    def _with_boundaries(self, pieces: list[Piece]) -> list[Piece]:
        """Add boundary tokens if the scheme has not."""
        boundary = self._boundary
        if boundary.bos is not None and not (pieces and pieces[0].control and pieces[0].text == boundary.bos):
            pieces = [Piece(boundary.bos, control=True), *pieces]
        last = pieces[-1] if pieces else None
        ended = last is not None and last.control and last.text == boundary.eod and len(pieces) > 1
        return pieces if ended else [*pieces, Piece(boundary.eod, control=True)]

    def _assemble(
        self, pieces: list[Piece], table: Ragged, numbers: dict[str, int], places: dict[str, int]
    ) -> Encoded | RecordProblem:
        if self._spaced and any(not one.control and not other.control for one, other in pairwise(pieces)):
            try:
                return self._assemble_spaced(pieces)
            except RecordProblem as error:
                return error
        order = np.array([(places if one.control else numbers)[one.text] for one in pieces], np.int64)
        taken = table.take(order)
        trained = np.fromiter((one.trained for one in pieces), np.uint8, len(pieces))
        return Encoded(taken.tokens, np.repeat(trained, taken.lengths))

    def _assemble_spaced(self, pieces: list[Piece]) -> Encoded:
        """Encode adjacent texts as one, and cut between tokens."""
        assert self._whole is not None
        tokens: list[int] = []
        loss: list[int] = []
        place = 0
        while place < len(pieces):
            if pieces[place].control:
                tokens.append(self._ids[pieces[place].text])
                loss.append(int(pieces[place].trained))
                place += 1
                continue
            last = place
            while last < len(pieces) and not pieces[last].control:
                last += 1
            group = pieces[place:last]
            encoding = self._whole.encode("".join(one.text for one in group), add_special_tokens=False)
            ends = np.cumsum([len(one.text) for one in group])
            for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                first, final = np.searchsorted(ends, [start, max(end - 1, start)], "right").tolist()
                first, final = min(first, len(group) - 1), min(final, len(group) - 1)
                if group[first].trained != group[final].trained:
                    raise RecordProblem("mask", "a token reaches over the edge of what the assistant said")
                tokens.append(number)
                loss.append(int(group[first].trained))
            place = last
        return Encoded(np.array(tokens, self._encoder.dtype), np.array(loss, np.uint8))
