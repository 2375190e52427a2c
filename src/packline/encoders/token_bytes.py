r"""Bytes of each token, derived from a tokenizer.json, to compute the size of a text from its ids.

    byte-level BPE, tiktoken     letters for bytes, `Ġthe`     -> b" the"           raw bytes, exact
    metaspace, byte fallback     `▁the`, `<0x0A>`              -> b" the", b"\n"   exact except one space
    WordPiece                    `the`, `##re`                 -> b" the", b"re"    inexact: spaces are added
    no decoder (WordLevel, ...)  `the`                         -> b" the"           inexact: spaces are added

A space at the very beginning that decoding removes is not counted. If a normalizer changes text (NFC), the
bytes are those of the normalized text. Special tokens have 0 bytes.

`ranks_of` converts a tokenizer.json to tiktoken's ranks, the reverse of `tiktoken`. tiktoken has no merges:
it joins the neighbours whose bytes are the token of lowest id. Ids are the same if they rise in the order of
the merges, and every merge is the last step by which ranks alone make its token (`last_pair`). Everything
else is refused.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from packline.encoders.tiktoken import LETTERS, SPLIT_50K, UNUSED, last_pair
from packline.encoders.tokenizer import Tokenizer, merge_pairs, parse_json, steps_of, vocab_of
from packline.errors import TokenizerError

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
LETTERS_ONLY = re.compile(f"[{re.escape(''.join(LETTERS))}]*")
BYTE_OF_LETTER = {ord(letter): byte for letter, byte in LETTERS.items()}
NORMAL_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
SPACED = "a space before every token"
BYTES, STARTS = "token_bytes.npy", "token_starts.npy"


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """Bytes of every token, by id; empty for special tokens and for ids without a token."""
    found, steps = _pieces(tokenizer)
    names = [one for one in found if isinstance(one, str)]
    if [step["type"] for step in steps] == ["ByteLevel"] and LETTERS.keys() >= set("".join(names)):
        data, ends = _of_letters("".join(names)), itertools.accumulate(map(len, names), initial=0)
        decoded = iter([data[start:end] for start, end in itertools.pairwise(ends)])
    else:
        decoded = (_decode(name, steps) for name in names)
    return [next(decoded) if isinstance(one, str) else one for one in found]


def keeps_text(tokenizer: Tokenizer) -> bool:
    """True if the bytes of tokens are those of the encoded text.

    Unicode normalization (such as NFC) and a space at the very beginning are ignored. False if case, accents,
    white space or characters without a token may be lost.
    """
    whole = parse_json(tokenizer.json)
    kinds = {step["type"] for step in _steps(whole.get("decoder"))}
    every_byte = "ByteLevel" in kinds or bool(whole["model"].get("byte_fallback"))
    return every_byte and all(
        step["type"] in NORMAL_FORMS
        or step["type"] == "Prepend"
        or (step["type"] == "Replace" and step.get("pattern") == {"String": " "})
        for step in steps_of(whole.get("normalizer"), "normalizers")
    )


def puts_spaces(tokenizer: Tokenizer) -> bool:
    """True if decoding puts a space before every word, whatever the text contained."""
    steps = _steps(parse_json(tokenizer.json).get("decoder"))
    return any(step["type"] in ("WordPiece", SPACED) for step in steps)


def drops_first_space(tokenizer: Tokenizer) -> bool:
    """True if decoding removes a space from the beginning of a text."""
    return any(
        step["type"] in ("WordPiece", SPACED)
        or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        or (step["type"] == "Strip" and step.get("content") == " " and step.get("start", 0) > 0)
        for step in _steps(parse_json(tokenizer.json).get("decoder"))
    )


class TextBytes:
    """Sizes of the texts of documents in bytes, computed from their ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        found = token_bytes(tokenizer)
        self.sizes = np.array([len(one) for one in found], np.int32)
        """Bytes of each token, int32 `[V]`."""
        self._largest = int(self.sizes.max(initial=0))
        # Numbers of one byte suffice for most vocabularies; their sums take half the time.
        self._narrow = self.sizes.astype(np.min_scalar_type(self._largest))
        self._first: np.ndarray | None = None
        """1 for tokens that begin with a space, if decoding drops the first one, int32 `[V]`."""
        if drops_first_space(tokenizer):
            self._first = np.array([one.startswith(b" ") for one in found], np.int32)

    def of(self, tokens: np.ndarray, offsets: np.ndarray, before: int = 0, after: int = 0) -> np.ndarray:
        """Size of each document's text in bytes, int64 `[D]`.

        Args:
            tokens: ids below the vocabulary, `[T]`.
            offsets: int64 `[D+1]`, the first 0.
            before: number of boundary tokens at the beginning of every document, which are not text.
            after: the same at the end.
        """
        sizes = self._sizes_of(tokens)
        starts, ends = offsets[:-1], offsets[1:]
        for place in range(before):
            sizes[starts + place] = 0
        for place in range(after):
            sizes[ends - 1 - place] = 0
        counts = np.zeros(len(starts), np.int64)
        filled = ends > starts  # an empty range would get the token after it
        if filled.any():
            # Twice as fast as in 64 bits, where no sum needs them.
            exact = np.int32 if len(tokens) * self._largest < 1 << 31 else np.int64
            counts[filled] = np.add.reduceat(sizes, starts[filled], dtype=exact)
        if self._first is not None:
            texts = ends - starts > before + after
            counts[texts] -= self._first[tokens[starts[texts] + before]]
        return counts

    def _sizes_of(self, tokens: np.ndarray) -> np.ndarray:
        """Bytes of each token, unsigned integers `[T]`, by Arrow, which takes half the time of NumPy."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not len(tokens):
            return np.empty(0, self._narrow.dtype)
        ids = tokens.view(f"u{tokens.itemsize}")
        if int(ids.max()) >= len(self.sizes):
            return self._narrow.take(tokens, mode="clip")
        found = pc.take(pa.array(self._narrow), pa.array(ids), boundscheck=False)
        return np.frombuffer(found.buffers()[1], self._narrow.dtype, len(tokens))


def _pieces(tokenizer: Tokenizer) -> tuple[list[str | bytes], list[dict[str, Any]]]:
    whole = parse_json(tokenizer.json)
    found: list[str | bytes] = [b""] * tokenizer.vocab_size
    for piece, number in vocab_of(whole).items():
        if not (tokenizer.kind == "tiktoken" and piece.startswith(UNUSED)):
            found[number] = piece
    for token in whole.get("added_tokens") or []:
        found[token["id"]] = b"" if token.get("special") else token["content"].encode("utf-8")
    return found, _steps(whole.get("decoder"))


def _steps(decoder: Any) -> list[dict[str, Any]]:
    return [{"type": SPACED}] if decoder is None else steps_of(decoder, "decoders")


def _decode(piece: str, steps: list[dict[str, Any]]) -> bytes:
    """Apply decoder steps to one token that is not the first of a document."""
    for step in steps:
        kind = step["type"]
        if kind == "ByteLevel":
            if LETTERS_ONLY.fullmatch(piece):
                return _of_letters(piece)
        elif kind == "Metaspace":
            piece = piece.replace(step.get("replacement", "▁"), " ")
        elif kind == "Replace" and "String" in step.get("pattern", {}):
            piece = piece.replace(step["pattern"]["String"], step["content"])
        elif kind == "ByteFallback" and (byte := BYTE.fullmatch(piece)):
            return bytes([int(byte[1], 16)])
        elif kind == "WordPiece":
            prefix = step.get("prefix", "##")
            piece = piece.removeprefix(prefix) if piece.startswith(prefix) else f" {piece}"
        elif kind == "BPEDecoder":
            piece = piece.replace(step.get("suffix", "</w>"), " ")
        elif kind == SPACED:
            piece = f" {piece}"
    return piece.encode("utf-8", "surrogatepass")


def _of_letters(letters: str) -> bytes:
    return letters.translate(BYTE_OF_LETTER).encode("latin-1")


class TokenText:
    """Bytes of every token of a vocabulary, for gathering without an object per token.

    The bytes of token t of a sequence are `data[begins[t]:begins[t + 1]]`. Cost: about 5 ns per token.

    Args:
        data: bytes of all tokens back to back, uint8.
        starts: start of each token's bytes in `data`, and the end, int64 `[V+1]`.

    >>> data, begins = TokenText.of_tokens([b"the", b" cat", b""]).gather(np.array([0, 1, 2, 1]))
    >>> data.tobytes(), begins.tolist()
    (b'the cat cat', [0, 3, 7, 7, 11])
    """

    def __init__(self, data: np.ndarray, starts: np.ndarray) -> None:
        import pyarrow as pa

        self.data, self.starts = data, starts
        buffers = [None, pa.py_buffer(starts.astype(np.int32)), pa.py_buffer(data)]
        self._array = pa.Array.from_buffers(pa.binary(), len(starts) - 1, buffers)

    @classmethod
    def of_tokens(cls, tokens: Sequence[bytes]) -> TokenText:
        """Build from the bytes of tokens by id, the result of `token_bytes`."""
        starts = np.zeros(len(tokens) + 1, np.int64)
        np.cumsum([len(one) for one in tokens], out=starts[1:])
        return cls(np.frombuffer(b"".join(tokens), np.uint8), starts)

    @classmethod
    def load(cls, folder: Path) -> TokenText:
        return cls(np.load(folder / BYTES), np.load(folder / STARTS))

    def save(self, folder: Path) -> None:
        np.save(folder / BYTES, self.data)
        np.save(folder / STARTS, self.starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def of(self, token: int) -> bytes:
        return self.data[self.starts[token] : self.starts[token + 1]].tobytes()

    def gather(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of tokens back to back, uint8 `[N]`, and the start of each token, int32 `[T+1]`.

        Args:
            tokens: integers `[T]` below the size of the vocabulary, which is not checked; of at most 2 GB.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        _, offsets, text = pc.take(self._array, pa.array(tokens), boundscheck=False).buffers()
        begins = np.frombuffer(offsets, np.int32, len(tokens) + 1)
        return np.frombuffer(text or b"", np.uint8, int(begins[-1])), begins


LEVEL = {"type": "ByteLevel", "add_prefix_space": False}
REPEATED = re.compile(r"\{\d*,?\d*\}\+")
"""A possessive quantifier for tiktoken, and a repeated group for HF tokenizers."""


class Ranks(msgspec.Struct, frozen=True):
    pattern: str
    """Regular expression whose matches are merged separately."""
    ranks: dict[bytes, int]
    special_tokens: dict[str, int]


def ranks_of(tokenizer: Tokenizer) -> Ranks:
    """Ranks of a byte-level BPE, for which tiktoken gives the same ids."""

    def check(holds: bool, why: str) -> None:
        if not holds:
            raise TokenizerError(
                f"{tokenizer.name} has no equal encoding of tiktoken: {why}",
                hint="packline tokenizer train makes one that has: --pattern nanochat --specials nanochat",
            )

    whole = msgspec.json.decode(tokenizer.json)
    model, added = whole["model"], {token["content"]: token for token in whole.get("added_tokens") or ()}
    other = any(
        model.get(name) for name in ("byte_fallback", "continuing_subword_prefix", "end_of_word_suffix")
    )
    bpe = model.get("type", "BPE") == "BPE" and "merges" in model and not other
    check(bpe, "it is not a byte-level BPE")
    check(whole.get("normalizer") is None, "it normalizes text, which tiktoken does not")
    *splits, level = steps_of(whole.get("pre_tokenizer"), "pretokenizers") or [{}]
    plain = all(level.get(name) == value for name, value in LEVEL.items())
    alone = len(splits) <= 1 and level.get("use_regex", True) != bool(splits)
    check(plain and alone, "its pre-tokenizer is not one regular expression and a byte level")
    expression = SPLIT_50K
    for split in splits:
        expression = split.get("pattern", {}).get("Regex") or ""
        isolated = split.get("behavior") == "Isolated" and not split.get("invert")
        check(isolated and bool(expression), "its pre-tokenizer does not isolate matches of an expression")
    check(not REPEATED.search(expression), "its regular expression has `}+`, which is read differently")
    check(all(token["special"] for token in added.values()), "an added token is not special")

    spelled = {
        piece: number
        for piece, number in model["vocab"].items()
        if piece not in added and not piece.startswith(UNUSED)
    }
    check(LETTERS_ONLY.fullmatch("".join(spelled)) is not None, "a token is not spelled in bytes")
    ranks = {_of_letters(piece): number for piece, number in spelled.items()}
    check(all(bytes([byte]) in ranks for byte in range(256)), "some single bytes are no tokens")
    merges = {left + right: (left, right) for left, right in merge_pairs(model["merges"])}
    numbers = [spelled.get(piece, -1) for piece in merges]
    ordered = len(merges) == len(model["merges"]) and numbers == sorted(set(numbers)) and -1 not in numbers
    check(ordered, "the ids of its tokens do not rise in the order of its merges")
    for piece in spelled:
        made = last_pair(piece, spelled) if len(piece) > 1 else None
        whole_word = made is None and len(piece) > 1 and not model.get("ignore_merges")
        why = f"ranks alone do not make the token {piece!r} by its merge"
        check(made == merges.get(piece) and not whole_word, why)
    return Ranks(expression, ranks, {text: token["id"] for text, token in added.items()})
