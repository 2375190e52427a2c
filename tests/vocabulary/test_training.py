"""Training: the tokenizer that comes out is the one that HF's own trainer finds."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tokenizers
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import HARD_TEXTS, python_sources
from tests.formats.peers import run_peer
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from packline.chat.pieces import NANOCHAT_TOKENS
from packline.encoders.tiktoken import ALPHABET, PATTERNS, Pattern, pattern_of
from packline.errors import RecipeError, StoreError, TokenizerError
from packline.recipe import Recipe, Source
from packline.vocabulary.texts import TrainingTexts
from packline.vocabulary.trained_folder import SPECIALS, TrainingReport, train_folder
from packline.vocabulary.training import train_batches, train_bpe
from packline.vocabulary.word_counts import batches_of, count_words

LETTERS = {chr(letter): byte for byte, letter in ALPHABET.items()}


def trained_by_hf(
    texts: list[str], vocab_size: int, special: tuple[str, ...], pattern: str = "gpt2"
) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERNS[pattern].expression), "isolated")
    tokenizer.pre_tokenizer = (
        pre_tokenizers.ByteLevel(add_prefix_space=False)
        if pattern == "gpt2"
        else pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def corpus(shared: Path, names: list[str], each_bytes: int) -> list[str]:
    texts = []
    for name in names:
        volume = 0
        with zstandard.open(shared / "corpora" / f"{name}.jsonl.zst", "rb") as raw:
            for line in io.TextIOWrapper(raw, "utf-8"):
                texts.append(json.loads(line)["text"])
                volume += len(texts[-1].encode())
                if volume > each_bytes:
                    break
    return texts


def assert_equal(ours: tokenizers.Tokenizer, reference: tokenizers.Tokenizer) -> None:
    one, other = (json.loads(tokenizer.to_str())["model"] for tokenizer in (ours, reference))
    assert one["merges"] == other["merges"]
    assert one["vocab"] == other["vocab"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_merges_and_ids_are_those_of_the_reference_trainer(pattern: Any) -> None:
    special = {"gpt2": ("<s>", "</s>", "<|pad|>"), "gpt4": ()}.get(pattern, ("<|endoftext|>",))
    texts = [text for _, text in python_sources(150_000)] + [text for text in HARD_TEXTS if "<" not in text]
    ours = tokenizers.Tokenizer.from_str(train_bpe(texts, 900, special, pattern=pattern))
    reference = trained_by_hf(texts, 900, special, pattern)
    assert_equal(ours, reference)
    for text in HARD_TEXTS:
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == reference.encode(text, add_special_tokens=False).ids
        assert ours.decode(ids, skip_special_tokens=False) == text


CORPORA = ["imdb_en", "code_mixed", "wikipedia_zh", "reviews_ko", "hindi", "latex_math", "unicode_stress"]


def test_merges_of_corpora_of_many_scripts_are_those_of_the_reference_trainer(shared: Path) -> None:
    # Of a vocabulary of this size most merges are of pairs that occur a few dozen times: nearly all are ties.
    vocab_size = 8_000
    texts = corpus(shared, CORPORA, 150_000)
    ours = tokenizers.Tokenizer.from_str(train_bpe(texts, vocab_size, pattern="gpt4"))
    assert ours.get_vocab_size() == vocab_size
    reference = trained_by_hf(texts, vocab_size, ("<|endoftext|>",), "gpt4")
    assert_equal(ours, reference)
    for text in texts[::50]:
        assert ours.encode(text[:2000]).ids == reference.encode(text[:2000]).ids


@given(
    st.lists(st.text("ab", min_size=1, max_size=14), min_size=1, max_size=30),
    st.integers(260, 300),
)
def test_ties_and_runs(words: list[str], vocab_size: int) -> None:
    # Words of two letters are where pairs overlap and where most counts are equal.
    texts = [" ".join(words)]
    assert_equal(
        tokenizers.Tokenizer.from_str(train_bpe(texts, vocab_size, ())), trained_by_hf(texts, vocab_size, ())
    )


@pytest.mark.parametrize(
    ("texts", "vocab_size", "said"), [([], 300, "no text"), (["a"], 257, "vocab_size is 257")]
)
@pytest.mark.parametrize("pattern", ["gpt2", "o200k"])
def test_what_cannot_be_trained_is_refused(
    texts: list[str], vocab_size: int, said: str, pattern: Any
) -> None:
    with pytest.raises(TokenizerError, match=said):
        train_bpe(texts, vocab_size, pattern=pattern)


def test_batches_and_threads_change_nothing() -> None:
    texts = [text for _, text in python_sources(80_000)]
    pattern = pattern_of("gpt4")
    found = {
        train_batches(batches_of(texts, size), 500, (), pattern=pattern, threads=threads).json
        for size, threads in [(1 << 20, 1), (5_000, 3), (70_000, 2)]
    }
    assert len(found) == 1


def test_where_words_do_not_fit_the_rarest_are_forgotten_and_counted() -> None:
    common = ["the same few words again and again"] * 3000
    rare = [f"{'x' * 40}{number:08d}" for number in range(20_000)]
    texts = [text for pair in zip(rare[:3000], common, strict=True) for text in pair] + rare[3000:]
    found = count_words(batches_of(texts, 40_000), Pattern("w", "", "spaces"), memory_bytes=200_000)
    assert found.data.nbytes + 16 * len(found) <= 200_000
    assert found.forgotten_words > 15_000
    assert found.counts.sum() + found.forgotten == 3000 * 7 + 2 * 20_000  # letters and digits are two words
    assert found.counts.max() >= 6000


GROWING = """
import sys, resource
from packline.encoders.tiktoken import pattern_of
from packline.vocabulary.training import train_batches
from packline.vocabulary.word_counts import batches_of
words = [f"w{i * 7919 % 300000:x}q{i % 17}" for i in range(300000)]
def text(i):
    start = i * 2011 % 297000
    return " ".join(words[start : start + 3000])
batches = batches_of(map(text, range(int(sys.argv[1]))))
found = train_batches(batches, 400, (), pattern=pattern_of("gpt4"), memory_bytes=256 << 20, threads=2)
print(found.text_bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus() -> None:
    def peak(batches: int) -> tuple[int, int]:
        done = subprocess.run(
            [sys.executable, "-c", GROWING, str(batches)], capture_output=True, text=True, check=True
        )
        size, resident = map(int, done.stdout.split())
        return size, resident

    (small, first), (large, second) = peak(500), peak(2900)
    assert large - small > 60 << 20
    assert second - first < 32 << 20


# ------------------------------------------------------------------------------------ folder


@pytest.fixture(scope="module")
def jsonl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    texts = [text for _, text in python_sources(120_000)] + [*HARD_TEXTS, "漢字とかな 한국어 नमस्ते café"] * 3
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    path.write_text("\n".join([*lines, '{"text": 5}', "{broken"]) + "\n", "utf-8")
    return path


def recipe(*inputs: Path, **more: Any) -> Recipe:
    return Recipe(sources=(Source(inputs=tuple(map(str, inputs)), **more),), tokenizer="")


@pytest.fixture(scope="module")
def trained(jsonl: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingReport]:
    out = tmp_path_factory.mktemp("trained") / "tok"
    special, place = SPECIALS["nanochat"]
    report = train_folder(recipe(jsonl), 1000, out, pattern="nanochat", special_tokens=special, place=place)
    return out, report


def test_the_nine_of_nanochat_have_the_last_ids_in_order(trained: tuple[Path, TrainingReport]) -> None:
    folder, report = trained
    assert report.vocab_size == 1000
    assert list(report.special_tokens.items()) == list(zip(NANOCHAT_TOKENS, range(991, 1000), strict=True))
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("a<|output_end|>").ids[-1] == 999
    assert tokenizer.get_vocab_size() == 1000


def test_token_bytes_are_the_raw_bytes_of_every_token(trained: tuple[Path, TrainingReport]) -> None:
    folder, report = trained
    sizes = np.load(folder / "token_bytes.npy", allow_pickle=False)
    assert sizes.dtype == np.int32
    assert sizes.shape == (1000,)
    # A second way: the vocabulary's letters are bytes, one each.
    vocab = msgspec.json.decode((folder / "tokenizer.json").read_bytes())["model"]["vocab"]
    raw = {
        number: bytes(LETTERS[letter] for letter in token)
        for token, number in vocab.items()
        if token not in NANOCHAT_TOKENS
    }
    assert {number: len(data) for number, data in raw.items()} == dict(enumerate(sizes[:991].tolist()))
    assert sizes[991:].tolist() == [0] * 9
    ordinary = sizes[:991]
    found = report.token_bytes
    assert (found.min, found.max) == (ordinary.min(), ordinary.max())
    assert found.mean == pytest.approx(sum(ordinary.tolist()) / 991)
    assert found.std == pytest.approx((sum((x - found.mean) ** 2 for x in ordinary.tolist()) / 991) ** 0.5)


def test_transformers_loads_every_folder_and_gives_the_same_ids(
    trained: tuple[Path, TrainingReport], jsonl: Path, tmp_path: Path
) -> None:
    """Every pattern and every preset of special tokens, and some of the user's own in the last place."""
    kinds = [(name, *SPECIALS["endoftext"]) for name in PATTERNS]
    kinds += [
        ("gpt2", *SPECIALS["nanochat"]),
        ("gpt4", *SPECIALS["none"]),
        ("qwen2", ("<s>", "</s>"), "last"),
    ]
    folders = [trained[0]]
    for number, (pattern, special, place) in enumerate(kinds):
        folders.append(tmp_path / str(number))
        given: Any = {"pattern": pattern, "special_tokens": special, "place": place}
        train_folder(recipe(jsonl), 400, folders[-1], **given, max_chars=60_000)
    specials = "<|bos|>hi<|user_end|> <|endoftext|>\n<s>a</s> <|endoftext|"
    texts = [*(text[:3000] for text in HARD_TEXTS), python_sources(100_000)[0][1][:5000], specials]
    code = """
from transformers import AutoTokenizer
texts = json.loads(open(arguments[0], encoding="utf-8").read())
answer = []
for folder in arguments[1:]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    answer.append({"ids": ids, "texts": [tokenizer.decode(one) for one in ids],
                   "by default": tokenizer(texts).input_ids,
                   "bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id, "size": len(tokenizer),
                   "special": dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids))})
"""
    path = tmp_path / "texts.json"
    path.write_text(json.dumps(texts), "utf-8")
    answers = run_peer(code, path, *folders, modules=("transformers",))
    for folder, answer in zip(folders, answers, strict=True):
        report = msgspec.json.decode((folder / "report.json").read_bytes(), type=TrainingReport)
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        expected = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        assert answer["ids"] == expected, report.pattern
        assert answer["by default"] == expected, report.pattern
        assert answer["texts"] == texts, report.pattern
        control = report.special_tokens
        assert answer["special"] == control
        assert (answer["bos"], answer["eos"]) == (
            control.get(report.bos_token or ""),
            control.get(report.eos_token or ""),
        )
        assert answer["size"] == report.vocab_size
        # The strings of its own special tokens become them, and no others.
        assert set(expected[-1]) & set(control.values()) == {
            number for token, number in control.items() if token in specials
        }
    assert answers[0]["bos"] == 991


def test_bad_records_are_counted_and_take_nothing_with_them(trained: tuple[Path, TrainingReport]) -> None:
    _, report = trained
    assert report.bad_records == {"not_a_string": 1, "malformed_json": 1}
    texts = [text for _, text in python_sources(120_000)] + [*HARD_TEXTS, "漢字とかな 한국어 नमस्ते café"] * 3
    assert report.documents == len(texts)
    assert report.characters == sum(map(len, texts))
    assert report.text_bytes == sum(len(text.encode()) for text in texts)


@settings(max_examples=40)
@given(st.integers(1, 400), st.integers(1, 60) | st.none())
def test_limits_by_characters(most: int, each: int | None) -> None:
    texts = ["한" * 7, "a" * 100, "", "été" * 30, "b" * 50]
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        reading = TrainingTexts(recipe(path), most, each)
        found = [text for batch in reading.batches() for text in batch]
    expected, left = [], most
    for text in filter(None, texts):
        part = text[:each][:left]
        if part:
            expected.append(part)
            left -= len(part)
    assert found == expected
    assert reading.characters == sum(map(len, expected))
    assert reading.documents == len(expected)
    whole = list(filter(None, texts))[: len(expected)]
    assert reading.cut_documents == sum(len(text) > (each or len(text)) for text in whole)


def test_a_folder_in_use_is_refused_unless_forced(jsonl: Path, tmp_path: Path) -> None:
    # None of these alone is what a killed run leaves.
    for name in ("tokenizer_config.json", "report.json", "mine.txt"):
        (tmp_path / name).write_text("keep me")
        with pytest.raises(StoreError, match="not empty"):
            train_folder(recipe(jsonl), 300, tmp_path)
        if name == "tokenizer_config.json":
            assert (tmp_path / name).read_text() == "keep me"
            (tmp_path / name).unlink()
    assert (tmp_path / "report.json").read_text() == "keep me"
    train_folder(recipe(jsonl), 300, tmp_path, max_chars=50_000, force=True)
    assert (tmp_path / "mine.txt").read_text() == "keep me"
    assert (tmp_path / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"special_tokens": ("a", "a")}, "comes twice"),
        ({"special_tokens": ("",)}, "is empty"),
        ({"special_tokens": ("a",)}, "'a' is a token of text too"),
        ({"threads": 0}, "threads is 0"),
        ({"memory_bytes": 0}, "memory is 0 bytes"),
        ({"eos": "x", "special_tokens": ()}, "there are none"),
        ({"eos": "<none>"}, "no special token"),
        ({"pattern": "gpt5"}, "no pattern"),
        ({"max_chars": 0}, "max_chars is 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_work(
    jsonl: Path, tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        train_folder(recipe(jsonl), 300, tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("pattern", ["gpt4", "o200k"])
def test_a_special_token_that_merges_make_is_refused(tmp_path: Path, pattern: str) -> None:
    # Text would become it, and the tokenizer could not be read without it.
    (tmp_path / "a.txt").write_text("the cat and the dog, the end. " * 50)
    with pytest.raises(RecipeError, match="'the' is a token of text too"):
        train_folder(
            recipe(tmp_path / "a.txt"), 270, tmp_path / "out", special_tokens=("the",), pattern=pattern
        )
    assert not (tmp_path / "out").exists()


def test_no_text_says_why(jsonl: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd.jsonl"
    odd.write_text('{"text": 7}\n{"text": 8}\n{"text"\n')
    with pytest.raises(TokenizerError, match=r"no text to train on: .*2 not_a_string, 1 malformed_json"):
        train_folder(recipe(odd, text="text"), 300, tmp_path / "out")
    with pytest.raises(RecipeError, match="no record has the field 'nowhere'"):
        train_folder(recipe(jsonl, text="nowhere"), 300, tmp_path / "out")
    with pytest.raises(TokenizerError, match="left out by length"):
        train_folder(recipe(jsonl, min_chars=10**9), 300, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_place_where_nothing_can_be_written_is_known_before_the_work(jsonl: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for out, force in (("file", True), ("file", False), ("file/below", False)):
        with pytest.raises(StoreError, match=r"a file: expected a folder|cannot make the folder"):
            train_folder(recipe(jsonl), 300, tmp_path / out, force=force)
    assert (tmp_path / "file").read_text() == "x"


def test_texts_that_run_out_of_pairs_are_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abab")
    report = train_folder(recipe(tmp_path / "a.txt"), 1000, tmp_path / "out")
    assert (report.asked_vocab_size, report.vocab_size, report.merges) == (1000, 259, 2)
