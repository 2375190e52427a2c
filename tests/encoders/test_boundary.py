"""Which token ends a document: chosen where there is one answer, refused with the candidates elsewhere."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.encoders.fuzzed_files import added, tokenizer_of

from packline.encoders.special_tokens import END_OF_TEXT, END_OF_TURN, resolve_boundary
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import TokenizerError


def tokenizer_with(*special: str, eos: str | None = None, bos: str | None = None) -> Tokenizer:
    """A tokenizer of the letters a to d, whose special tokens follow from id 10."""
    vocab = {letter: number for number, letter in enumerate("abcd")}
    ids = {token: 10 + number for number, token in enumerate(special)}
    contents = {
        "added_tokens": [added(token, number, special=True) for token, number in ids.items()],
        "model": {"type": "BPE", "vocab": vocab | ids, "merges": []},
    }
    return tokenizer_of(contents, name="letters", eos_token=eos, bos_token=bos)


@given(st.sampled_from(sorted(END_OF_TEXT)), st.booleans())
def test_the_only_end_of_text_token_is_chosen(end: str, declared: bool) -> None:
    tokenizer = tokenizer_with("<pad>", end, eos=end if declared else None)
    boundary = resolve_boundary(tokenizer, None, None)
    assert (boundary.eod, boundary.eod_id, boundary.bos, boundary.bos_id) == (end, 11, None, None)


@given(
    st.sampled_from(sorted(END_OF_TEXT)), st.sampled_from(sorted(END_OF_TURN)), st.sampled_from([None, 0, 1])
)
def test_an_end_of_turn_token_beside_it_is_refused_whatever_is_declared(
    end: str, turn: str, eos: int | None
) -> None:
    declared = None if eos is None else (end, turn)[eos]
    with pytest.raises(TokenizerError) as caught:
        resolve_boundary(tokenizer_with(turn, end, eos=declared), None, None)
    assert f"{turn} (10), {end} (11)" in str(caught.value)
    assert caught.value.hint == f"choose one, for example --eod '{end}'"


def test_a_declared_eos_decides_between_two_ends_of_text() -> None:
    tokenizer = tokenizer_with("</s>", "<|endoftext|>", eos="<|endoftext|>")
    assert resolve_boundary(tokenizer, None, None).eod_id == 11
    with pytest.raises(TokenizerError, match=r"None; candidates are </s> \(10\), <\|endoftext\|> \(11\)"):
        resolve_boundary(tokenizer_with("</s>", "<|endoftext|>"), None, None)


@pytest.mark.parametrize(
    ("special", "eos", "reason"),
    [
        (("<pad>", "<s>"), None, r"its eos is None; candidates are <pad> \(10\), <s> \(11\)"),
        (("</s>",), "<odd>", "its eos is <odd>; candidates are </s>"),
        (("</s>", "<odd>"), "<odd>", r"its eos is <odd>; candidates are </s> \(10\), <odd> \(11\)"),
        ((), None, "candidates are none"),
        (("<|im_end|>",), "<|im_end|>", r"its eos is <\|im_end\|>; candidates are <\|im_end\|> \(10\)"),
    ],
)
def test_what_is_unclear_is_refused(special: tuple[str, ...], eos: str | None, reason: str) -> None:
    with pytest.raises(TokenizerError, match=reason):
        resolve_boundary(tokenizer_with(*special, eos=eos), None, None)


def test_a_plain_vocabulary_entry_is_never_chosen_by_itself_but_may_be_asked_for() -> None:
    tokenizer = msgspec.structs.replace(tokenizer_with("</s>"), special_tokens={})
    with pytest.raises(TokenizerError):
        resolve_boundary(tokenizer, None, None)
    assert resolve_boundary(tokenizer, "b", None).eod_id == 1


@given(st.sampled_from(["a", "d", "</s>"]), st.sampled_from([None, "b", "</s>"]))
def test_strings_and_ids_name_the_same_tokens(eod: str, bos: str | None) -> None:
    tokenizer = tokenizer_with("</s>")
    by_string = resolve_boundary(tokenizer, eod, bos)
    assert resolve_boundary(tokenizer, by_string.eod_id, by_string.bos_id) == by_string
    assert (by_string.eod, by_string.bos) == (eod, bos)


@pytest.mark.parametrize("number", [-1, 4, 11])
def test_an_id_without_a_token_is_refused(number: int) -> None:
    message = f"bos {number} is no token of letters: expected an id from 0 to 10"
    with pytest.raises(TokenizerError, match=message):
        resolve_boundary(tokenizer_with("</s>"), "a", number)


def test_a_string_of_several_tokens_is_refused_with_their_number() -> None:
    message = r"eod 'abc' is not one token .* found text of 3 tokens: \[0, 1, 2\]"
    with pytest.raises(TokenizerError, match=message):
        resolve_boundary(tokenizer_with("</s>"), "abc", None)
    with pytest.raises(TokenizerError, match="bos '10' is not one token"):
        resolve_boundary(tokenizer_with("</s>"), "a", "10")


@pytest.mark.parametrize(
    ("name", "eod", "number"),
    [
        ("gpt2", "<|endoftext|>", 50256),
        ("mistral", "</s>", 2),
        ("t5", "</s>", 1),
        ("tiktoken/r50k_base.tiktoken", "<|endoftext|>", 50256),
    ],
)
def test_real_tokenizers_with_one_answer(name: str, eod: str, number: int, shared: Path) -> None:
    boundary = resolve_boundary(load_tokenizer(str(shared / "tokenizers" / name)), None, None)
    assert (boundary.eod, boundary.eod_id, boundary.bos) == (eod, number, None)


def test_where_only_a_beginning_parts_documents_the_hint_names_it_and_not_the_end_of_a_turn() -> None:
    tokenizer = tokenizer_with("<|bos|>", "<|user_end|>", "<|assistant_end|>", bos="<|bos|>")
    with pytest.raises(TokenizerError, match=r"<\|bos\|> \(10\), <\|user_end\|> \(11\)") as caught:
        resolve_boundary(tokenizer, None, None)
    assert caught.value.hint == "choose one, for example --eod '<|bos|>'"


def test_real_tokenizers_without_one_are_refused(shared: Path) -> None:
    with pytest.raises(
        TokenizerError, match=r"<\|endoftext\|> \(151643\), <\|im_end\|> \(151645\)"
    ) as caught:
        resolve_boundary(load_tokenizer(str(shared / "tokenizers/qwen3")), None, None)
    assert caught.value.hint == "choose one, for example --eod '<|endoftext|>'"
    cl100k = load_tokenizer(str(shared / "tokenizers/tiktoken/cl100k_base.tiktoken"))
    with pytest.raises(TokenizerError, match="eod 100256 is no token"):  # a gap before special tokens
        resolve_boundary(cl100k, 100256, None)
    with pytest.raises(TokenizerError) as newline:
        resolve_boundary(cl100k, "\n", None)
    assert "--eod 198" in newline.value.hint
