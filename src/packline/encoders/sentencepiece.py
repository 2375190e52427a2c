"""Conversion of a SentencePiece model, a protobuf of pieces and a normalizer, to a tokenizer.json.

BPE becomes merges, in the order of the scores of the merged pieces; Unigram remains a list of pieces and
scores:

    text ─ charsmap ─ spaces: collapse, strip, ▁ before ─ " " to ▁ ─ cut ─ BPE merges | Unigram lattice
           └────────────── normalizer ───────────────────────────┘  └ pre-tokenizer

Control and unknown pieces are special tokens and never come from text; user-defined pieces are cut out of the
normalized text whole. What no tokenizer.json can express is refused.

Four differences remain, none of them seen in ordinary text. HF tokenizers applies a charsmap to one grapheme
at a time where SentencePiece takes the longest match; NFC before and after compensates for that, except that
a combining mark is lost after a character of few bytes that the charsmap replaces (a fullwidth letter). A
document that consists of one user-defined piece gets no space before it. Where two segmentations of a Unigram
have the same score, SentencePiece decides by the rounding of its 32-bit sums. A text that spells a control
piece is cut wrongly by a Unigram that has normal pieces across all its parts.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterator
from typing import Any

import msgspec

from packline.encoders.tiktoken import bpe_model, contents_of, last_pair, special_entries
from packline.errors import TokenizerError

SPACE = "▁"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2
COMPOSING = ("nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf")
"""Charsmaps that ship with SentencePiece, whose longest matches compose all characters that can be."""
MODEL_TYPES = {UNIGRAM: "unigram", BPE: "bpe", 3: "word", 4: "char"}


class ModelPiece(msgspec.Struct, frozen=True):
    """An entry of the vocabulary; its id is its index."""

    text: str
    score: float
    type: int


class Model(msgspec.Struct, kw_only=True):
    """Contents of a `.model` file that affect ids; defaults are those of the format."""

    pieces: list[ModelPiece]
    model_type: int = UNIGRAM
    byte_fallback: bool = False
    space_behind: bool = False
    bos: str = "<s>"
    eos: str = "</s>"
    normalization: str = ""
    charsmap: bytes = b""
    dummy_prefix: bool = True
    collapse_spaces: bool = True
    escape_spaces: bool = True

    def of_type(self, *types: int) -> list[ModelPiece]:
        return [piece for piece in self.pieces if piece.type in types]


def convert_model(data: bytes, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    model = read_model(data, where)
    _refuse_inexact(model, where)
    controls = {piece.text for piece in model.of_type(CONTROL)}
    declared = {"bos_token": model.bos, "eos_token": model.eos}
    converted = _bpe(model, where) if model.model_type == BPE else _unigram(model)
    steps = _normalizer(model), _pre_tokenizer(model), _decoder(model)
    contents = contents_of(_added_tokens(model), *steps, converted)
    return contents, {role: token for role, token in declared.items() if token in controls}


def read_model(data: bytes, where: str) -> Model:
    try:
        model = Model(pieces=[])
        for number, value in _fields(data):
            if number == 1:
                piece = dict(_fields(value))
                (score,) = struct.unpack("<f", piece.get(2, b"\0\0\0\0"))
                model.pieces.append(ModelPiece(piece.get(1, b"").decode(), score, piece.get(3, NORMAL)))
            elif number in (2, 3):
                _read_settings(model, value, TRAINER if number == 2 else NORMALIZER)
    except (ValueError, TypeError, AttributeError, IndexError, struct.error) as error:
        # AttributeError: a field has a number where text is expected.
        found = f"{data[:16]!r}, {len(data)} bytes"
        raise TokenizerError(
            f"{where} is no tokenizer: expected a SentencePiece model, found {found}"
        ) from error
    if len(model.of_type(UNKNOWN)) != 1 or len(model.pieces) < 2:
        raise TokenizerError(
            f"{where} is no SentencePiece model: expected pieces, one of them for unknown text,"
            f" found {len(model.pieces)} pieces and {len(model.of_type(UNKNOWN))} for unknown text"
        )
    return model


TRAINER = {3: "model_type", 24: "space_behind", 35: "byte_fallback", 46: "bos", 47: "eos"}
NORMALIZER = {
    **{1: "normalization", 2: "charsmap", 3: "dummy_prefix"},
    **{4: "collapse_spaces", 5: "escape_spaces"},
}
"""Fields of `Model` by their numbers in the protobuf."""


def _read_settings(model: Model, data: bytes, names: dict[int, str]) -> None:
    for number, value in _fields(data):
        if name := names.get(number):
            kind = type(getattr(model, name))
            setattr(model, name, value.decode() if kind is str else kind(value))


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Fields of a protobuf message: number and value, an int or bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire == 2:
            length, at = _varint(data, at)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if key < 8 or at + length > len(data):
            raise ValueError(f"a field that is longer than the message at byte {at}")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError(f"a number without an end at byte {at}")


def _inexact(where: str, expected: str, found: str) -> TokenizerError:
    return TokenizerError(
        f"{where} cannot be turned into a tokenizer.json exactly: expected {expected}, found {found}",
        hint="use the tokenizer.json of its publisher if there is one",
    )


def _refuse_inexact(model: Model, where: str) -> None:
    kind = MODEL_TYPES.get(model.model_type, str(model.model_type))
    if model.model_type not in (UNIGRAM, BPE):
        raise _inexact(where, "a unigram or bpe model", f"a {kind} model")
    if model.space_behind:
        raise _inexact(where, "spaces before words", "treat_whitespace_as_suffix")
    if unused := model.of_type(UNUSED):
        raise _inexact(where, "no unused pieces", f"{len(unused)}, the first is {unused[0].text!r}")
    texts = {piece.text for piece in model.pieces}
    if len(texts) != len(model.pieces):
        raise _inexact(where, "every piece once", f"{len(model.pieces) - len(texts)} twice")
    _refuse_changed_users(model, where)


def _refuse_changed_users(model: Model, where: str) -> None:
    """Refuse user-defined pieces that the normalizer would change.

    SentencePiece does not normalize them; here they are matched after normalization.
    """
    users = model.of_type(USER_DEFINED)
    if not users:
        return
    import tokenizers

    empty = {"model": {"type": "BPE", "vocab": {}, "merges": []}, "normalizer": _normalizer(model)}
    normalizer = tokenizers.Tokenizer.from_str(msgspec.json.encode(empty).decode()).normalizer
    for piece in users if normalizer else []:
        if (changed := normalizer.normalize_str(piece.text)) != piece.text:
            expected = "user-defined pieces that its normalizer leaves alone"
            raise _inexact(where, expected, f"{piece.text!r}, which becomes {changed!r}")


def _bpe(model: Model, where: str) -> dict[str, Any]:
    normal = sorted(model.of_type(NORMAL), key=lambda piece: -piece.score)
    ranks = {piece.text: rank for rank, piece in enumerate(normal)}
    vocab = {piece.text: number for number, piece in enumerate(model.pieces)}
    merges = []
    made: ModelPiece | None = None
    for piece in normal:
        if len(piece.text) < 2 or (pair := last_pair(piece.text, ranks)) is None:
            continue
        if made and made.score == piece.score:
            raise _inexact(
                where, "scores that order the merges", f"{made.text!r} and {piece.text!r} at {piece.score}"
            )
        if missing := [part for part in pair if part not in vocab]:
            raise _inexact(where, "pieces made of pieces", f"{piece.text!r} made of {missing[0]!r}")
        made = piece
        merges.append(list(pair))
    return bpe_model(vocab, merges, model.of_type(UNKNOWN)[0].text, model.byte_fallback)


def _unigram(model: Model) -> dict[str, Any]:
    types = [piece.type for piece in model.pieces]
    return {
        "type": "Unigram",
        "unk_id": types.index(UNKNOWN),
        "vocab": [[piece.text, piece.score] for piece in model.pieces],
        "byte_fallback": model.byte_fallback,
    }


def _added_tokens(model: Model) -> list[dict[str, Any]]:
    """Added tokens: control pieces, which no text matches; user-defined ones, cut out of normalized text."""
    added = {
        one.text: at for at, one in enumerate(model.pieces) if one.type in (UNKNOWN, CONTROL, USER_DEFINED)
    }
    return [
        entry | {"normalized": is_user, "special": not is_user}
        for entry in special_entries(added)
        for is_user in [model.pieces[entry["id"]].type == USER_DEFINED]
    ]


def _normalizer(model: Model) -> dict[str, Any] | None:
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        charsmap = base64.b64encode(model.charsmap).decode()
        compose = [{"type": "NFC"}] if model.normalization in COMPOSING else []
        steps += [*compose, {"type": "Precompiled", "precompiled_charsmap": charsmap}, *compose]
    if model.collapse_spaces:
        end = rf"[ {SPACE}]+\z" if model.escape_spaces else r" +\z"  # stripped after spaces are replaced
        steps += [_replace(r"\A +", ""), _replace(r" {2,}", " "), _replace(end, "")]
    prefix = SPACE if model.escape_spaces else " "
    if model.dummy_prefix:
        users = model.of_type(USER_DEFINED)
        if users:  # the pieces themselves are normalized too, and must not change
            steps.append(_replace(rf"\A(?!(?:{_any_of(users)})\z)", prefix))
        else:
            steps.append({"type": "Prepend", "prepend": prefix})
    if model.escape_spaces:
        steps.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
    return {"type": "Sequence", "normalizers": steps} if steps else None


def _pre_tokenizer(model: Model) -> dict[str, Any] | None:
    if model.model_type == BPE:
        return None
    normal = model.of_type(NORMAL)
    steps = [_split({"Regex": _cuts(model)}, "MergedWithPrevious")]
    words = all(SPACE not in piece.text[1:] for piece in normal) and any(
        piece.text == SPACE for piece in normal
    )
    if words:  # no piece spans two words, so words can be encoded and cached separately
        steps.append(_split({"String": SPACE}, "MergedWithNext"))
    return {"type": "Sequence", "pretokenizers": steps}


def _cuts(model: Model) -> str:
    """Regular expression that cuts text which spells a control or byte piece, so that it does not become one.

    The lattice of a tokenizer.json uses any entry of the vocabulary; SentencePiece uses normal pieces only.
    The cut is made where no normal piece, or the fewest, could span it.
    """
    across: dict[str, list[str]] = {}
    for piece in model.of_type(NORMAL):
        for at in range(len(piece.text) - 1):
            across.setdefault(piece.text[at : at + 2], []).append(piece.text)
    known = {piece.text for piece in model.of_type(NORMAL)}

    def unknown(around: str) -> bool:
        """True if a cut would be visible, as between two unknown characters, which are one piece."""
        return not any(character in known for character in around)

    tails: dict[str, list[str]] = {}
    for piece in model.of_type(CONTROL, UNKNOWN, BYTE):
        text = piece.text
        if len(text) > 1:
            at = min(
                range(1, len(text)),
                key=lambda at: _crossing(text, at, across) + unknown(text[at - 1 : at + 1]),
            )
            tails.setdefault(text[:at], []).append(text[at:])
    return "|".join(
        f"{re.escape(head)}(?={'|'.join(map(re.escape, sorted(rest)))})"
        for head, rest in sorted(tails.items())
    )


def _crossing(text: str, at: int, across: dict[str, list[str]]) -> int:
    """Number of pieces that could span a position in a text and match the text where they overlap."""
    head, tail = text[:at], text[at:]
    count = 0
    for piece in across.get(text[at - 1 : at + 1], []):
        for inside in range(1, len(piece)):
            before, behind = piece[:inside], piece[inside:]
            agrees_before = head.endswith(before) or before.endswith(head)
            agrees_behind = tail.startswith(behind) or behind.startswith(tail)
            count += agrees_before and agrees_behind
    return count


def _decoder(model: Model) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}]
    if model.byte_fallback:
        steps.append({"type": "ByteFallback"})
    steps.append({"type": "Fuse"})
    if model.dummy_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _split(pattern: dict[str, str], behavior: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": False}


def _any_of(pieces: list[ModelPiece]) -> str:
    return "|".join(re.escape(piece.text) for piece in sorted(pieces, key=lambda piece: -len(piece.text)))
