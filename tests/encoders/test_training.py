"""Training: the tokenizer that comes out is the one that HF's own trainer finds."""

from __future__ import annotations

import json

import pytest
import tokenizers
from tests.conftest import HARD_TEXTS, python_sources
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from packline.encoders.training import train_bpe
from packline.errors import TokenizerError


def trained_by_hf(texts: list[str], vocab_size: int, special: tuple[str, ...]) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@pytest.mark.parametrize("special", [("<|endoftext|>",), (), ("<s>", "</s>", "<|pad|>")])
def test_merges_and_ids_are_those_of_the_reference_trainer(special: tuple[str, ...]) -> None:
    texts = [text for _, text in python_sources(600_000)] + [text for text in HARD_TEXTS if "<" not in text]
    ours = tokenizers.Tokenizer.from_str(train_bpe(texts, 2000, special))
    reference = trained_by_hf(texts, 2000, special)
    one, other = (json.loads(tokenizer.to_str())["model"] for tokenizer in (ours, reference))
    assert one["merges"] == other["merges"]
    assert one["vocab"] == other["vocab"]
    for text in HARD_TEXTS:
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == reference.encode(text, add_special_tokens=False).ids
        assert ours.decode(ids, skip_special_tokens=False) == text


def test_no_pair_is_counted_across_two_texts() -> None:
    model = json.loads(train_bpe(["ab", "ab", "ba", "ba"] * 5, 300, ()))["model"]
    assert sorted(model["merges"]) == [["a", "b"], ["b", "a"]]


def test_it_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    train_bpe(["some text " * 20], 270)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("texts", "vocab_size", "said"), [([], 300, "no text"), (["a"], 257, "vocab_size is 257")]
)
def test_what_cannot_be_trained_is_refused(texts: list[str], vocab_size: int, said: str) -> None:
    with pytest.raises(TokenizerError, match=said):
        train_bpe(texts, vocab_size)
