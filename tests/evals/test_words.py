"""Words of any script, against a second way; what a search finds in scripts without spaces."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.evals.plainly import WriteJsonl, plain_kind, plain_words

import packline
from packline.evals.contamination import find_questions
from packline.evals.words import (
    BETWEEN,
    LETTER,
    LOWER,
    MARK,
    SINGLE,
    character_class,
    classes,
    split_words,
)


def split(text: str) -> list[str]:
    words = split_words(np.frombuffer(text.encode().translate(LOWER), np.uint8))
    return [word.decode() for word in words.spellings()]


MIXED = "aB9 .,\n\té’—…\u00a0\u3000。漢字北京カがか\u3099ｶﾞｰー々〇ㄅ，！ＧＰ５ｔ"
MIXED += "ﬁ①Ωе\u0301\u0308\u0323한국\u1112\u1161\u11ab"
MIXED += (
    "สวัสดีนู้\u0e49\u0e38๕ลາວខ្មែរမြန်မာ။བོད་ཡིག།हिन्दी़।عَرَّ،؟\U0001f600\ufe0f\u200d\u2f00\u2ec5\ufa10\U00020000㈱½Ａ"
)
"""Every kind of character, and those that NFKC changes, joins or exchanges."""


@given(st.text(st.sampled_from(MIXED), max_size=60))
@example("\u03aa\u0301")  # composes in lower case alone
@settings(max_examples=200)
def test_words_are_those_of_the_page(text: str) -> None:
    assert split(text) == plain_words(text)


@given(st.text(max_size=30))
def test_words_of_any_text_are_those_of_the_page(text: str) -> None:
    assert split(text) == plain_words(text)


def test_every_character_has_the_class_that_its_script_and_category_give() -> None:
    names = {"letter": LETTER, "between": BETWEEN, "single": SINGLE, "mark": MARK}
    wrong = []
    for code in (*range(0x80, 0xD800), *range(0xE000, 0x20000), *range(0x20000, 0x110000, 997)):
        character = chr(code)
        if unicodedata.category(character) not in ("Cn", "Co"):
            expected = names[plain_kind(character)]
            alone = character_class(character) if code < 0x20000 else expected
            if classes()[code] != expected or alone != expected:
                wrong.append(character)
    assert wrong == []


@given(st.text(st.sampled_from(MIXED), min_size=1, max_size=60), st.data())
def test_a_part_of_a_text_is_cut_as_the_whole_but_for_its_first_and_last_word(
    text: str, data: st.DataObject
) -> None:
    raw = text.encode().translate(LOWER)
    start = data.draw(st.integers(0, len(raw)))
    stop = data.draw(st.integers(start, len(raw)))
    part = split_words(np.frombuffer(raw[start:stop], np.uint8))
    whole = split_words(np.frombuffer(raw, np.uint8))
    inner = list(zip((part.starts + start).tolist(), part.spellings(), strict=True))
    inner = inner[start > 0 : len(inner) - (stop < len(raw))]
    ours = list(zip(whole.starts.tolist(), whole.spellings(), strict=True))
    assert set(inner) <= set(ours)
    ends = [*whole.starts.tolist(), len(raw)][1:]
    kept = [one for one, end in zip(ours, ends, strict=True) if one[0] >= start and end <= stop]
    assert len(kept) - len(inner) <= 2


@given(st.binary(max_size=50))
def test_any_bytes_are_split(data: bytes) -> None:
    words = split_words(np.frombuffer(data.translate(LOWER), np.uint8))
    said = words.spellings()
    assert (np.diff(words.starts) > 0).all() and len(said) == len(words.starts)
    assert all(said) and not any(b" " in word for word in said)
    if data.isascii():
        assert said == data.translate(LOWER).split()


def test_a_tokenizer_that_loses_case_and_accents_is_applied_to_questions_too(
    tmp_path: Path, write_jsonl: WriteJsonl
) -> None:
    words = "le café du coin était fermé à noël dans la forêt près de chez théo".split()  # noqa: SIM905
    bare = [unicodedata.normalize("NFD", word).encode("ascii", "ignore").decode() for word in words]
    vocab = {word: number for number, word in enumerate(dict.fromkeys(["[UNK]", "[SEP]", *bare]))}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer()
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.decoder = tokenizers.decoders.WordPiece()
    made.add_special_tokens(["[UNK]", "[SEP]"])
    tokenizer = tmp_path / "tokenizer.json"
    made.save(str(tokenizer))
    corpus = write_jsonl(tmp_path / "corpus.jsonl", [" ".join(words)])
    packline.build(corpus, tokenizer, out=tmp_path / "store", eod="[SEP]", workers=0)
    store = packline.open(tmp_path / "store")
    asked = [" ".join(words).upper(), "какие слова не знает этот словарь из немногих слов на другом языке"]
    report = find_questions(store, [str(write_jsonl(tmp_path / "q.jsonl", asked))])
    assert [(one.question, one.length) for one in report.overlaps] == [(0, len(words))]
    assert (report.found, report.unchecked) == (1, 1)  # of the other the tokenizer keeps nothing
