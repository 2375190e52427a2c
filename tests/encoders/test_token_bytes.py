"""Bytes of tokens: the sums are the sizes of the texts that were encoded, by the tokenizers of the field."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.encoders.fuzzed_files import tokenizer_of

from packline.encoders.special_tokens import without_special_tokens
from packline.encoders.token_bytes import TextBytes, token_bytes
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.ragged import offsets_of

TEXTS = [
    "Plain words, in 1 or 2 sentences.",
    "  spaces   before, within and after  ",
    "tabs\tand\nnew\r\nlines\n\n",
    "naïve café – “quotes” … €5",
    "漢字とかな 한국어 العربية हिन्दी 🧑‍🚀",
    "x",
    "",
    " ",
]


def ragged(tokenizer: Tokenizer, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    import tokenizers

    reference = tokenizers.Tokenizer.from_str(without_special_tokens(tokenizer))
    ids = [reference.encode(text, add_special_tokens=False).ids for text in texts]
    return np.array([token for one in ids for token in one], np.int32), offsets_of([len(one) for one in ids])


@pytest.mark.parametrize("name", ["gpt2", "qwen3", "mistral", "tiktoken/cl100k_base.tiktoken"])
def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(name: str, shared: Path) -> None:
    tokenizer = load_tokenizer(str(shared / "tokenizers" / name))
    # A metaspace tokenizer itself does not know of a space at the very beginning.
    texts = TEXTS if name != "mistral" else [text.lstrip(" ") for text in TEXTS]
    tokens, offsets = ragged(tokenizer, texts)
    assert TextBytes(tokenizer).of(tokens, offsets).tolist() == [len(text.encode()) for text in texts]
    if name != "mistral":
        pieces = token_bytes(tokenizer)
        assert b"".join(pieces[token] for token in tokens.tolist()) == "".join(texts).encode()


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_where_the_tokenizer_is_only_near_so_are_the_bytes(name: str, shared: Path) -> None:
    tokenizer = load_tokenizer(str(shared / "tokenizers" / name))
    texts = ["plain words in two or three sentences", "another plain text", "word"]
    tokens, offsets = ragged(tokenizer, texts)
    assert TextBytes(tokenizer).of(tokens, offsets).tolist() == [len(text) for text in texts]


def make(model: dict[str, object], decoder: object, special: dict[str, int], size: int) -> Tokenizer:
    added = [{"id": number, "content": token, "special": True} for token, number in special.items()]
    return tokenizer_of({"model": model, "decoder": decoder, "added_tokens": added}, vocab_size=size)


def test_byte_fallback_specials_added_tokens_and_holes() -> None:
    vocab = {"▁a": 0, "<0x0A>": 1, "b": 2, "</s>": 3}
    decoder = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    tokenizer = make({"type": "BPE", "vocab": vocab, "merges": []}, decoder, {"</s>": 3}, 6)
    assert token_bytes(tokenizer) == [b" a", b"\n", b"b", b"", b"", b""]
    tokens = np.array([0, 1, 3, 2, 0, 3, 3], np.int32)
    assert TextBytes(tokenizer).of(tokens, np.array([0, 3, 6, 7]), after=1).tolist() == [2, 3, 0]


def test_letters_are_bytes_together_and_one_by_one() -> None:
    vocab = {token: number for number, token in enumerate(["Ġ", "ab", "Ċc", "é", "ĠÃ©", "日"])}
    expected = [b" ", b"ab", b"\nc", b"\xe9", " é".encode(), "日".encode()]
    for size in (5, 6):  # the last is no letter of a byte, and makes the tokens be decoded one by one
        model: dict[str, object] = {"type": "BPE", "vocab": dict([*vocab.items()][:size]), "merges": []}
        assert token_bytes(make(model, {"type": "ByteLevel"}, {}, size)) == expected[:size]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=6), st.integers(0, 1))
def test_documents_of_any_length_are_summed_each_by_itself(bodies: list[list[int]], bos: int) -> None:
    sizes = [1, 2, 7, 5]  # of what stands for them; the last is a boundary here, and no text at the edges
    vocab = {"x" * size: number for number, size in enumerate(sizes)}
    tokenizer = make({"type": "BPE", "vocab": vocab, "merges": []}, {"type": "Fuse"}, {}, 4)
    stored = [[3] * bos + body + [3] for body in bodies]
    tokens = np.array([token for one in stored for token in one], np.uint16)
    found = TextBytes(tokenizer).of(tokens, offsets_of([len(one) for one in stored]), bos, 1)
    assert found.tolist() == [sum(sizes[token] for token in body) for body in bodies]
