"""Engines words and nanotoken: the ids of the reference on any text, whether its words are new or known."""

from __future__ import annotations

import base64
import json
from functools import cache
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import HARD_TEXTS
from tests.encoders.fuzzed_files import contents_of
from tests.encoders.hostile_texts import hostile_texts
from tests.encoders.test_sentencepiece import trained

from packline.encoders import EngineName
from packline.encoders import word_table as table_module
from packline.encoders import words as words_module
from packline.encoders.engines import TokenizersEngine, load_engine
from packline.encoders.sentencepiece import read_model
from packline.encoders.supported import unsupported
from packline.encoders.unigrams import Unigrams
from packline.encoders.word_table import PADDING, WordTable
from packline.ragged import Ragged, offsets_of
from packline.sources.batch import Texts

BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
BERT |= {"strip_accents": None, "lowercase": True}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
RUNS = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
STRIP = {"type": "Strip", "strip_left": False, "strip_right": True}
SPLIT = {"type": "WhitespaceSplit"}
QUOTES = [{"type": "Replace", "pattern": {"String": quotes}, "content": '"'} for quotes in ("``", "''")]
PLAINER = [{"type": "NFKD"}, {"type": "StripAccents"}]


def _precompiled(*more: dict[str, Any]) -> dict[str, Any]:
    charsmap = read_model(trained("unigram", "nmt_nfkc", False, False), "").charsmap
    step = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
    return {"type": "Sequence", "normalizers": [step, *more]} if more else step


def _contents(name: str) -> dict[str, Any]:
    """Tokenizers whose parts are those of published ones."""
    sequence = {"type": "Sequence", "pretokenizers": [SPLIT, {**METASPACE, "prepend_scheme": "always"}]}
    after = _precompiled()
    spaces = {**RUNS, "content": " "}
    albert = {"type": "Sequence", "normalizers": [*QUOTES, *PLAINER, {"type": "Lowercase"}, after]}
    deberta = {"type": "Sequence", "normalizers": [{**STRIP, "strip_left": True}, after, spaces]}
    kinds: dict[str, tuple[str, Any, Any]] = {
        "albert": ("Unigram", albert, sequence),
        "xlnet": ("Unigram", {"type": "Sequence", "normalizers": [*QUOTES, after, spaces]}, sequence),
        "deberta": ("Unigram", deberta, {**METASPACE, "prepend_scheme": "always"}),
        "bert": ("WordPiece", BERT, {"type": "BertPreTokenizer"}),
        "bert cased": ("WordPiece", {**BERT, "lowercase": False}, {"type": "BertPreTokenizer"}),
        "bert plain": ("WordPiece", None, {"type": "BertPreTokenizer"}),
        "word level": ("WordLevel", None, {"type": "Whitespace"}),
        "t5": ("Unigram", _precompiled(STRIP, RUNS), METASPACE),
        "runs": ("Unigram", _precompiled(RUNS), {**METASPACE, "prepend_scheme": "always"}),
        "xlm": ("Unigram", _precompiled(), sequence),
        "xlm runs": ("Unigram", _precompiled(RUNS), sequence),
        "unigram": ("Unigram", None, {**METASPACE, "prepend_scheme": "never"}),
        "both": ("Unigram", _precompiled(), {"type": "BertPreTokenizer"}),
    }
    kind, normalizer, pre_tokenizer = kinds[name]
    tokens = ["<unk>", "[CLS]", ("qzx", {"lstrip": True})]
    if kind != "WordPiece":
        tokens = [*tokens[:2], ("qzx", {"single_word": True}), (" z", {"lstrip": True, "rstrip": True})]
    return contents_of(kind, normalizer=normalizer, pre_tokenizer=pre_tokenizer, tokens=tokens)


NAMES = (
    "bert",
    "bert cased",
    "bert plain",
    "word level",
    "t5",
    "runs",
    "xlm",
    "xlm runs",
    "unigram",
    "both",
    "albert",
    "xlnet",
    "deberta",
)


@cache
def engines(name: str) -> tuple[Any, TokenizersEngine]:
    contents = _contents(name)
    whole = json.dumps(contents)
    engine: EngineName = "nanotoken" if contents["model"]["type"] == "WordPiece" else "words"
    assert unsupported(engine, whole) is None
    return load_engine(engine, whole), TokenizersEngine(whole)


def check(name: str, texts: list[str]) -> None:
    """Both engines give the same ids, for new words and for known ones."""
    ours, theirs = engines(name)
    expected = theirs.encode(Texts.of(texts))
    for batch in (Texts.of(texts), Texts(Texts.of(["before", *texts]).array[1:])):
        found = ours.encode(batch)
        assert found.tokens.dtype == np.uint32 and len(found) == len(texts)
        for place, text in enumerate(texts):
            assert found[place].tolist() == expected[place].tolist(), (text, place)


LATIN = [
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    ",",
    ".",
    '."',
    "the",
    "cat,",
    "aa",
    "aaaa",
    "[CLS]",
    "qzx",
    " z",
    "##s",
]
OTHERS = [
    "{",
    "{}",
    "\u0600",
    "\u0301",
    "e\u0301",
    "\u200d",
    "\u00a0",
    "\u3000",
    "漢",
    "한국",
    "\u1100",
    "\0",
    "ﬁ",
]
pieces = st.sampled_from([*LATIN, *OTHERS, "▁", "🧑\u200d🚀"])
texts = st.lists(st.lists(pieces | st.text(max_size=5), max_size=12).map("".join), max_size=5)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150)
@given(texts=texts)
def test_ids_are_those_of_the_reference(name: str, texts: list[str]) -> None:
    check(name, texts)


@pytest.mark.parametrize("name", NAMES)
def test_hard_and_hostile_texts(name: str) -> None:
    check(name, [*HARD_TEXTS, *hostile_texts(Random(3), ["[CLS]", "qzx"], 20_000)])


ODD = [
    *LATIN,
    *OTHERS,
    "\x01",
    "\x7f",
    "´",
    "\u00ad",
    "\u2003",
    "\ufeff",
    "가",
    "é",
    "“",
    "x\u0600",
    "a)",
    "!!",
    "``",
    "'",
    "x''",
    "'x",
]


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_beside_white_space_and_at_the_ends(name: str) -> None:
    beside = ["".join(parts) for parts in product(ODD, (" ", "\n", "\r\n", "  ", ""), ODD)]
    check(name, [*beside[::3], *(f"b{text}b" for text in beside[1::3]), *(f"{text}, b" for text in ODD)])


def test_a_full_table_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words_module, "MOST", 50)
    monkeypatch.setattr(table_module, "AT_ONCE", 7)
    ours, theirs = load_engine("words", json.dumps(_contents("t5"))), engines("t5")[1]
    for seed in range(4):
        some = Texts.of(hostile_texts(Random(seed), [], 5_000))
        found, expected = ours.encode(some), theirs.encode(some)
        assert found.tokens.tolist() == expected.tokens.tolist()
        assert found.offsets.tolist() == expected.offsets.tolist()


def test_other_tokenizers_are_not_given_to_it() -> None:
    left = {**_contents("t5"), "normalizer": {**STRIP, "strip_left": True}}
    assert unsupported("words", json.dumps(left)) == "normalizer Strip strip_left=True strip_right=True"
    whole = {**_contents("t5"), "pre_tokenizer": {**METASPACE, "split": False}}
    assert unsupported("words", json.dumps(whole)) == "pre-tokenizer Metaspace first"


@given(st.lists(st.lists(st.binary(max_size=20), max_size=30), max_size=4), st.integers(0, 3))
def test_a_table_is_a_dict(batches: list[list[bytes]], bits: int) -> None:
    encoded: list[bytes] = []

    def encode(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> tuple[Ragged, np.ndarray]:
        """Number words as they come; those of odd size are known."""
        words = [data[start : start + size].tobytes() for start, size in zip(starts, sizes, strict=True)]
        ids = np.arange(len(encoded), len(encoded) + len(words), dtype=np.uint32)
        encoded.extend(words)
        return Ragged(ids, np.arange(len(ids) + 1)), sizes % 2 > 0

    table = WordTable(encode)
    for batch in batches:
        words = [word[: 1 + bits * 6] for word in batch]
        data = np.frombuffer(b"-".join([*words, b""]) + bytes(PADDING), np.uint8)
        sizes = np.array([*map(len, words)], np.int64)
        slots = table.find(data, offsets_of(sizes + 1)[:-1], sizes)
        assert [b"".join(encoded[id] for id in table.words[slot]) for slot in slots] == words
        assert table.known[slots].tolist() == [len(word) % 2 > 0 or not word for word in words]
    assert len(encoded) == len(set(encoded)) == len(table) - 1


def test_divisions_of_one_score_are_left_to_the_reference() -> None:
    pieces = [["<unk>", 0.0], ["▁", -1.0], ["a", -1.0], ["aa", -1.5]]
    model = Unigrams({"vocab": pieces, "unk_id": 0}, str, b" ")
    data = np.frombuffer(b" aa aaa a", np.uint8)
    tokens, known = model.encode(data, np.array([0, 3, 7]), np.array([3, 4, 2]))
    assert known.tolist() == [True, False, True]
    assert tokens.tokens.tolist() == [1, 3, 1, 2]


TIED = [["<unk>", 0.0], ["▁", -1.0], ["a", -1.0], ["aa", -1.5], ["b", -1.0], ["-", -1.0], ["x{", -9.0]]
TIED += [[".", -1.7], ["<", -2.0], ["u", -3.0], ["n", -3.0], ["k", -3.0], [">", -2.0], ["ab", -1.3]]


_reference = cache(TokenizersEngine)


@pytest.mark.parametrize("long", [4, words_module.LONG])
@given(st.lists(st.lists(st.sampled_from([*"aaab-.<>{ x", "<unk>", "é", "aaa", "a" * 40]), max_size=30)))
def test_parts_of_words_are_as_in_the_whole(long: int, parts: list[list[str]]) -> None:
    model = {"type": "Unigram", "unk_id": 0, "vocab": TIED, "byte_fallback": False}
    contents = {**_contents("unigram"), "model": model, "added_tokens": []}
    whole, texts = json.dumps(contents), Texts.of(list(map("".join, parts)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words_module, "LONG", long)
        found = load_engine("words", whole).encode(texts)
    expected = _reference(whole).encode(texts)
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert found.offsets.tolist() == expected.offsets.tolist()
