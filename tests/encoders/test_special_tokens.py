"""Special-token strings: counted in each text as if it stood alone, and kept from becoming special tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.encoders.fuzzed_files import GPT2, added, tokenizer_of

from packline.encoders.parity import Reference
from packline.encoders.special_tokens import BytesCounter, json_to_encode, without_special_tokens
from packline.encoders.tiktoken import LETTERS
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import TokenizerError
from packline.sources.batch import Texts

SPECIAL = {"<s>": 0, "x<s>y": 1, "<s><s>": 2, "é": 3, "|": 4}


def count_alone(text: str) -> int:
    """From the left, the longest that begins there; then behind it."""
    found = place = 0
    while place < len(text):
        longest = max((len(token) for token in SPECIAL if text.startswith(token, place)), default=0)
        found += longest > 0
        place += longest or 1
    return found


@given(st.lists(st.text(st.sampled_from("<s>xyé|è"), max_size=9), max_size=8))
@example(["x", "<s>", "y"])
@example(["<s", ">", "<s>", ""])
@example(["", "x<s>", "y<s>", "<s>"])
@example(["a\u00e8", "", "|"])
def test_each_text_is_counted_as_if_alone(texts: list[str]) -> None:
    counter = BytesCounter(SPECIAL)
    assert counter.count(Texts.of(texts)).tolist() == [count_alone(text) for text in texts]
    inside = Texts(Texts.of(["<s>", *texts, "<s>"]).array[1:-1])
    assert counter.count(inside).tolist() == [count_alone(text) for text in texts]


def test_without_special_tokens_there_are_none() -> None:
    assert BytesCounter({}).count(Texts.of(["<s>", ""])).tolist() == [0, 0]


def tokenizer_with(special: str, merges: list[list[str]]) -> Tokenizer:
    tokens = [*sorted(LETTERS), *("".join(pair) for pair in merges)]
    vocab = {token: number for number, token in enumerate(dict.fromkeys([*tokens, special]))}
    model = {"type": "BPE", "vocab": vocab, "merges": merges}
    entry = added(special, vocab[special], special=True)
    return tokenizer_of({"added_tokens": [entry], "pre_tokenizer": GPT2, "model": model}, name="mine")


@pytest.mark.parametrize(
    ("special", "merges"),
    [
        ("foo", [["f", "o"], ["fo", "o"]]),
        ("!", []),
        ("f", [["f", "o"]]),
    ],
)
def test_a_special_token_that_text_is_made_of_is_refused(special: str, merges: list[list[str]]) -> None:
    tokenizer = tokenizer_with(special, merges)
    with pytest.raises(
        TokenizerError, match=f"the special token '{special}' of mine is also a token"
    ) as caught:
        without_special_tokens(tokenizer)
    assert "special_tokens = 'parse'" in caught.value.hint
    tokenizer.reference()  # as it is, it can be read


def test_a_special_token_of_the_vocabulary_that_no_merge_makes_is_only_renamed() -> None:
    tokenizer = tokenizer_with("food", [["f", "o"], ["fo", "o"]])
    reference = Reference(without_special_tokens(tokenizer))
    assert [reference.decode([number]) for number in reference.encode("food!")] == ["foo", "d", "!"]


def test_no_text_is_a_renamed_special_token(tokenizer_json: Path) -> None:
    """Names such as U+FFFF 0 U+FFFF could stand in a document; the real ones are random."""
    tokenizer = load_tokenizer(str(tokenizer_json))
    reference = Reference(without_special_tokens(tokenizer))
    special = set(tokenizer.special_tokens.values())
    for number in range(4):
        assert not special & set(reference.encode(f"a\uffff{number}\uffffb"))


@pytest.mark.parametrize(
    ("merges", "spelled"),
    [
        ([["f", "o"], ["fo", "o"]], str),
        (["f o", "fo o"], str),
        ([["f", "o"], ["fo", " o"]], list),  # a string of this merge would be of three words
        ([["#", "v"], ["#v", "e"]], str),
        ([["#version", "o"]], list),  # the reference would skip this string
    ],
)
def test_the_spelling_that_engines_load_is_the_same_tokenizer(merges: list[Any], spelled: type) -> None:
    pairs = [merge.split() if isinstance(merge, str) else merge for merge in merges]
    pieces = [*sorted(LETTERS), *(piece for pair in pairs for piece in (*pair, "".join(pair)))]
    vocab = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    model = {"type": "BPE", "vocab": vocab, "merges": merges}
    plain = tokenizer_of({"model": model, "pre_tokenizer": GPT2, "added_tokens": []})
    json = json_to_encode(plain, parse=True)
    assert json == json_to_encode(plain, parse=False)  # it has no special tokens
    assert {type(merge) for merge in msgspec.json.decode(json)["model"]["merges"]} == {spelled}
    assert msgspec.structs.replace(plain, json=json).fingerprint == plain.fingerprint
    if spelled is str:
        words = "foo fo of #version #v e food"
        assert Reference(json).encode(words) == Reference(plain.json).encode(words)
