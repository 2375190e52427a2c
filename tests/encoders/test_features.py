"""An engine is used only where it gives the reference's ids, whatever the tokenizer and the text."""

from __future__ import annotations

import base64
import json
import os
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.encoders.fuzzed_files import GPT2, LEVEL, _sequence, _split, contents_of, published
from tests.encoders.hostile_texts import forms, hostile_texts
from tests.encoders.test_sentencepiece import trained
from tests.encoders.tokenizer_fuzzer import FAST, Report, try_variant

from packline.encoders import EngineName
from packline.encoders.encoder import Encoder
from packline.encoders.engines import (
    ENGINES,
    SPLITS,
    Encodable,
    load_engine,
    load_engines,
    tokenizer_features,
    unsupported,
)
from packline.encoders.parity import Reference, try_engines
from packline.encoders.sentencepiece import read_model
from packline.encoders.special_tokens import json_to_encode, without_special_tokens
from packline.encoders.tokenizer import load_tokenizer
from packline.errors import TokenizerError
from packline.sources.batch import Texts

BOTH, GIGATOKEN, FASTOKENS = {"gigatoken", "fastokens"}, {"gigatoken"}, {"fastokens"}
NANOTOKEN: set[str] = {"nanotoken"}
NONE: set[str] = set()
EXPECTED = {
    "gpt2": BOTH,
    "gpt_neox": BOTH,
    "roberta": BOTH,
    "starcoder": FASTOKENS,
    "llama3": BOTH,
    "qwen3": BOTH,
    "qwen3.5": BOTH,
    "tiktoken": BOTH,
    "gpt4o": BOTH,
    "tekken": BOTH,
    "nanochat": FASTOKENS,
    "deepseek": FASTOKENS,
    "llama2": GIGATOKEN,
    "mistral": GIGATOKEN,
    "gemma": GIGATOKEN,
    "t5": NONE,
    "bert": NANOTOKEN,
    "words": NONE,
}
PUBLISHED = published()
NFC = {"type": "NFC"}


def save(contents: dict[str, Any], path: Path) -> Path:
    path.write_text(json.dumps(contents), encoding="utf-8")
    return path


def usable(whole: str) -> dict[EngineName, Any]:
    """The engines that a build would use."""
    loaded = load_engines(FAST, Encodable.of(whole))
    reports = try_engines(loaded, Reference(whole), ["some text"])
    return {report.name: loaded[report.name] for report in reports if report.exact}


def differing(whole: str, texts: list[str], engines: dict[EngineName, Any]) -> dict[str, list[str]]:
    """By engine, the texts of which its ids are not the reference's."""
    reference = Reference(whole)
    expected = [reference.encode(text) for text in texts]
    found: dict[str, list[str]] = {}
    for name, engine in engines.items():
        ragged = engine.encode(Texts.of(texts))
        wrong = [text for place, text in enumerate(texts) if ragged[place].tolist() != expected[place]]
        found.update({name: wrong} if wrong else {})
    return found


def test_no_engine_differs_within_its_table() -> None:
    report = Report()
    for seed in range(80):
        report.add(try_variant(seed, 4_000))
    assert not report.wrong, report.lines()
    for name in FAST:  # the table is no empty promise, and the fuzzer goes beyond it
        counts = report.by_engine
        assert counts[name, "used"] > 0 and counts[name, "differs"] + counts[name, "refused"] > 0


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("special", ["text", "parse"])
def test_published_kinds_keep_their_fast_engines_and_the_references_ids(
    name: str, special: str, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(str(save(PUBLISHED[name], tmp_path / "tokenizer.json")))
    whole = json_to_encode(tokenizer, parse=special == "parse")
    engines = usable(whole)
    assert set(engines) == EXPECTED[name]
    words = [token["content"] for token in PUBLISHED[name]["added_tokens"]]
    assert not differing(whole, hostile_texts(Random(7), words, 30_000), engines)


REAL = ("gpt2", "gpt_neox", "qwen3", "mistral", "t5", "bert", "tiktoken/cl100k_base.tiktoken")


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_tokenizers_keep_their_fast_engines_and_the_references_ids(name: str, shared: Path) -> None:
    tokenizer = load_tokenizer(str(shared / "tokenizers" / name))
    whole = without_special_tokens(tokenizer)
    engines = usable(whole)
    assert set(engines) == EXPECTED[name.partition("/")[0]]
    assert not differing(whole, hostile_texts(Random(8), [*tokenizer.special_tokens], 100_000), engines)


BYTE_SPLIT = _sequence(_split(next(text for text, name in SPLITS.items() if name == "cl100k")), LEVEL)
READ_OTHERWISE: dict[str, tuple[EngineName, dict[str, Any], str]] = {
    "single_word": (
        "gigatoken",
        contents_of("bytes", pre_tokenizer=GPT2, tokens=[("qzx", {"single_word": True})]),
        "aqzxb",
    ),
    "rstrip before white space": (
        "gigatoken",
        contents_of("bytes", pre_tokenizer=GPT2, tokens=[("oo", {"rstrip": True}), "\n"]),
        "oo\n",
    ),
    "normalized and not": (
        "fastokens",
        contents_of("bytes", pre_tokenizer=GPT2, tokens=["foo", ("-foo-", {"normalized": True})]),
        "-foo-",
    ),
    "what NFC makes": (
        "gigatoken",
        contents_of("bytes", pre_tokenizer=GPT2, normalizer=NFC, tokens=["\uac01"]),
        "\u1100\u1161\u11a8",
    ),
    "prefix space": (
        "gigatoken",
        contents_of("bytes", pre_tokenizer={**GPT2, "add_prefix_space": True}, tokens=[" z"]),
        "z",
    ),
    "white space at the end": (
        "gigatoken",
        contents_of("bytes", pre_tokenizer=BYTE_SPLIT),
        "\n ",
    ),
    "pieces looked up whole": (
        "gigatoken",
        contents_of("pieces", model_ignore_merges=True, tokens=["<unk>"]),
        "<0xE4>",
    ),
}


@pytest.mark.parametrize("case", READ_OTHERWISE)
def test_what_an_engine_reads_otherwise_is_not_given_to_it(case: str) -> None:
    name, contents, text = READ_OTHERWISE[case]
    whole = json.dumps(contents)
    raw = ENGINES[name](whole)
    assert differing(whole, [text], {name: raw}), "the engine has learnt it: take the feature into its table"
    with pytest.raises(TokenizerError, match="not been shown to equal the reference"):
        load_engine(name, Encodable.of(whole))
    loaded = load_engines(FAST, Encodable.of(whole))
    engines = {one: engine for one, engine in loaded.items() if not isinstance(engine, str)}
    assert not differing(whole, [text, *forms(text)], engines)


@pytest.mark.parametrize(
    ("name", "contents", "text"),
    [
        ("gigatoken", contents_of("bytes", pre_tokenizer=GPT2, normalizer=NFC), "e\u07fd\u0323\u0301"),
        ("gigatoken", contents_of("bytes", pre_tokenizer=GPT2, normalizer=NFC, tokens=["OK"]), "O\u212a"),
        (
            "fastokens",
            contents_of("bytes", pre_tokenizer=_sequence(_split(next(iter(SPLITS))), LEVEL)),
            "  \u180e",
        ),
    ],
)
def test_characters_that_an_engine_reads_otherwise_go_to_the_reference(
    name: EngineName, contents: dict[str, Any], text: str
) -> None:
    whole = json.dumps(contents)
    assert differing(whole, [text], {name: ENGINES[name](whole)})
    texts = ["before", text, "", f"and {text} inside", "after", text]
    engine = load_engine(name, Encodable.of(whole))
    assert engine.name == name
    assert not differing(whole, texts, {name: engine})
    assert not differing(whole, texts[:1], {name: engine})


@cache
def characters() -> list[str]:
    """All that may matter: of large blocks whose characters are alike, a few."""
    alike = [(0x3400, 0x4DC0), (0x4E10, 0x9FF0), (0xAC10, 0xD7A0), (0xE000, 0xF900), (0x17010, 0x18CF0)]
    alike += [(0x20000, 0xE0000), (0xE0200, 0x110000)]
    found = []
    for number in range(0x110000):
        inside = any(start <= number < stop for start, stop in alike)
        if not 0xD800 <= number < 0xE000 and (not inside or number % 499 == 0):
            found.append(chr(number))
    return found


AROUND = "a{}b  {}x 1{}2 '{}x .{}. \n{}\n {}  {}{}\n\n{}1 {} \r\n{}  \n{} A{}B e{}\u0301\u0323 \u1100{}\u1161"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, engines in EXPECTED.items() if engines])
def test_every_character_is_read_as_the_reference_reads_it(name: str) -> None:
    """A 16th of all characters for each, not the same, a 4th for two of them (`make test-long`: all)."""
    whole = json.dumps(PUBLISHED[name])
    step = 1 if os.environ.get("PACKLINE_ALL") else 4 if name in ("gpt2", "qwen3") else 16
    start = list(EXPECTED).index(name) % step
    texts = [AROUND.replace("{}", character) for character in characters()[start::step]]
    assert not {one: wrong[:9] for one, wrong in differing(whole, texts, usable(whole)).items()}


def test_an_unknown_setting_is_a_feature_that_no_engine_has() -> None:
    plain = contents_of("bytes", pre_tokenizer=GPT2)
    features = tokenizer_features(json.dumps(plain))
    assert [unsupported(name, features) for name in FAST] == [None, None, "model BPE"]
    for part in ("normalizer", "pre_tokenizer"):
        odd = {**plain, part: {"type": "ByteLevel", "a_new_setting": 3}}
        assert all(unsupported(name, tokenizer_features(json.dumps(odd))) for name in FAST)
    odd = {**plain, "model": {**plain["model"], "type": "New"}}
    assert all(unsupported(name, tokenizer_features(json.dumps(odd))) == "model New" for name in FAST)


def test_pieces_reach_across_runs_of_spaces_that_became_one_letter(tmp_path: Path) -> None:
    charsmap = base64.b64encode(read_model(trained("unigram", "nmt_nfkc", False, False), "").charsmap)
    steps = [
        {"type": "Precompiled", "precompiled_charsmap": charsmap.decode()},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"},
    ]
    normalizer = {"type": "Sequence", "normalizers": steps}
    pieces = [["<unk>", 0.0], ["▁", -2.0], ["a", -2.0], ["b", -2.0], ["▁a▁", -1.0]]
    split = {"type": "WhitespaceSplit"}
    parts = {"normalizer": normalizer, "pre_tokenizer": split, "model_vocab": pieces, "tokens": []}
    contents = contents_of("Unigram", **parts)
    encoder = Encoder(load_tokenizer(str(save(contents, tmp_path / "tokenizer.json"))))
    assert encoder.choose(lambda: ["a b"]).names == ["tokenizers"]
    assert encoder.encode(["a  a  b"], audit=[])[0].tolist() == [2, 4, 3]
