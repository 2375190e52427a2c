"""Rank files turned into a tokenizer.json give the ids of tiktoken itself."""

from __future__ import annotations

import base64
import json
import re
from functools import lru_cache
from pathlib import Path

import msgspec
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from packline.encoders.tiktoken import (
    ENCODINGS,
    Encoding,
    convert_ranks,
    last_pair,
    read_ranks,
    tokenizer_of_ranks,
)
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import TokenizerError

SHARED = Path(__file__).resolve().parents[3] / "shared"
tiktoken = pytest.importorskip("tiktoken", reason="compares with the tiktoken package")

BYTES = {bytes([byte]): byte for byte in range(256)}
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
STRESS = "a \n ,\r\n\t b\u00a0\u3000 don't DON'T x'ſ 1234567 éḗ 漢字かな한글 हिन्दी "
STRESS += "🙂\u200d👩 \x00\x7f ... --- </s>  "


def rank_file(ranks: dict[bytes, int]) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())


def reference(contents: dict[str, object]) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(msgspec.json.encode(contents).decode())


# Any ranks, not just trained ones: tokens that no merges lead to, parts that rank above their whole.
words = st.text("ab ", min_size=2, max_size=6).map(str.encode)
vocabularies = st.lists(words, unique=True, max_size=40)


@settings(max_examples=150, deadline=None)
@given(vocabularies, st.lists(st.text("ab é", max_size=30), min_size=1, max_size=8))
@pytest.mark.parametrize("split", [None, r"\s*\S+|\s+"])
def test_any_rank_table_gives_the_ids_of_tiktoken(
    split: str | None, tokens: list[bytes], texts: list[str]
) -> None:
    ranks = BYTES | {token: 256 + rank for rank, token in enumerate(tokens)}
    scheme = Encoding(split, len(ranks), {"<|end|>": len(ranks) + 3})
    ours = reference(tokenizer_of_ranks(ranks, scheme))
    theirs = tiktoken.Encoding(
        "any", pat_str=split or GPT2_SPLIT, mergeable_ranks=ranks, special_tokens=scheme.special_tokens
    )
    for text in texts:
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == theirs.encode_ordinary(text)
        assert ours.decode(ids) == text
    assert ours.encode("a<|end|>b").ids == theirs.encode("a<|end|>b", allowed_special="all")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"YQ== 0\nYg==\n", "line 2: expected a token"),
        (b"Y!Q== 1\n", "line 1"),
        (b"YQ== 0\nYg== 0\n", "twice"),
    ],
)
def test_a_damaged_rank_file_is_refused_with_its_place(data: bytes, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        read_ranks(data, "damaged.tiktoken")


def test_what_is_not_this_encodings_file_is_refused() -> None:
    with pytest.raises(TokenizerError, match="expected 100256 ranks, found 256"):
        convert_ranks(rank_file(BYTES), "cl100k_base", "mine.tiktoken")
    with pytest.raises(TokenizerError, match="expected 50256 ranks, found 256"):
        convert_ranks(rank_file(BYTES), None, "r50k_base.tiktoken")
    with pytest.raises(TokenizerError, match="'cl200k' is not a known encoding") as unknown:
        convert_ranks(rank_file(BYTES), "cl200k", "mine.tiktoken")
    with pytest.raises(TokenizerError, match="expected the name of its encoding") as unnamed:
        convert_ranks(rank_file(BYTES), None, "mine.tiktoken")
    assert all(name in caught.value.hint for name in ENCODINGS for caught in (unknown, unnamed))
    with pytest.raises(TokenizerError, match="which is a rank"):
        tokenizer_of_ranks(BYTES, Encoding(None, 256, {"<|end|>": 7}))
    with pytest.raises(TokenizerError, match="lack 1 single bytes, the first is 97"):
        tokenizer_of_ranks(
            {token: rank for token, rank in BYTES.items() if token != b"a"}, Encoding(None, 255, {})
        )


def test_a_token_that_no_merges_lead_to_has_no_last_pair() -> None:
    assert last_pair(b"abc", {b"a": 0, b"b": 1, b"c": 2}) is None
    assert last_pair("aaa", {"a": 0, "aa": 1}) == ("aa", "a")
    assert last_pair(b"a", {b"a": 0}) is None


def test_special_tokens_and_patterns_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    public = pytest.importorskip("tiktoken_ext.openai_public", reason="compares with the tiktoken package")
    monkeypatch.setattr(public, "load_tiktoken_bpe", lambda *_, **__: {})
    for name, scheme in ENCODINGS.items():
        assert getattr(public, name)()["special_tokens"] == scheme.special_tokens, name
    assert public.o200k_base()["pat_str"] == ENCODINGS["o200k_base"].split


@pytest.mark.parametrize("name", ["r50k_base", "cl100k_base", "o200k_base"])
@settings(max_examples=150, deadline=None)
@given(
    st.text(st.sampled_from(STRESS + " \n" * 20 + "\u0085\u2028\u01c5ʰ/"), max_size=12),
    st.sampled_from(".a1"),
)
def test_text_is_cut_into_the_pieces_of_the_package(name: str, text: str, end: str) -> None:
    """Spaces after the last newline of a text are another matter: see the next test."""
    theirs = _pieces_of_package(name)
    text += end
    scheme = ENCODINGS[name]
    contents = tokenizer_of_ranks(BYTES, Encoding(scheme.split, 256, {}))
    cut = reference(contents).pre_tokenizer.pre_tokenize_str(text)
    assert [text[begin:end] for _, (begin, end) in cut] == theirs(text)


@lru_cache
def _pieces_of_package(name: str):
    import regex

    public = pytest.importorskip("tiktoken_ext.openai_public", reason="compares with the tiktoken package")
    load = public.load_tiktoken_bpe
    public.load_tiktoken_bpe = lambda *_, **__: {}
    try:
        pattern = getattr(public, name)()["pat_str"]
    finally:
        public.load_tiktoken_bpe = load
    return regex.compile(pattern).findall


needs_shared = pytest.mark.skipif(not (SHARED / "corpora").is_dir(), reason="needs ../shared")


@lru_cache
def real_texts() -> list[str]:
    import zstandard

    texts = [STRESS, STRESS * 3]
    for file in sorted((SHARED / "corpora").glob("*.jsonl.zst")):
        with file.open("rb") as raw:
            data = zstandard.ZstdDecompressor().stream_reader(raw).read(250_000)
        texts += [json.loads(line)["text"][:4000] for line in data.splitlines()[:-1][:15]]
    return texts


@lru_cache
def real(name: str) -> tuple[Tokenizer, list[list[int]]]:
    public = pytest.importorskip("tiktoken_ext.openai_public", reason="compares with the tiktoken package")
    path = SHARED / "tokenizers" / "tiktoken" / f"{name}.tiktoken"
    load = public.load_tiktoken_bpe
    public.load_tiktoken_bpe = lambda *_, **__: read_ranks(path.read_bytes(), name)
    try:
        theirs = tiktoken.Encoding(**getattr(public, name)())
    finally:
        public.load_tiktoken_bpe = load
    return load_tokenizer(str(path)), [theirs.encode_ordinary(text) for text in real_texts()]


@needs_shared
def test_where_a_text_ends_in_spaces_the_pieces_of_cl100k_differ_but_never_the_ids() -> None:
    """The package takes "\\n " at the end whole, the older pattern does not; no token lies across."""
    tokens = read_ranks(
        (SHARED / "tokenizers" / "tiktoken" / "cl100k_base.tiktoken").read_bytes(), "cl100k_base"
    )
    assert not [token for token in tokens if re.search(r"[\r\n][^\S\r\n]+\Z", token.decode(errors="replace"))]


@needs_shared
@pytest.mark.parametrize("name", ["r50k_base", "cl100k_base"])
def test_real_rank_files_give_the_ids_of_tiktoken_on_real_text(name: str) -> None:
    tokenizer, expected = real(name)
    assert tokenizer.vocab_size == {"r50k_base": 50257, "cl100k_base": 100277}[name]
    found = tokenizer.reference().encode_batch_fast(real_texts(), add_special_tokens=False)
    assert [encoding.ids for encoding in found] == expected
