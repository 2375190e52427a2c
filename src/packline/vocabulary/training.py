"""Training of a byte-level BPE tokenizer: texts in, a tokenizer.json out.

    texts ── words by a pattern, counted (`word_counts`) ── merges (`merging`) ──> tokenizer.json

The merges are those that HF's trainer finds on the same texts, including ties, in a fraction of the time, and
a corpus may be larger than memory. Patterns that `word_counts` does not support (o200k) are left to HF's
trainer.

Limits: trains byte-level BPE only. `trained_folder` chooses the texts.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from packline.encoders.tiktoken import ALPHABET, Pattern, PatternName, pattern_of, special_entries
from packline.errors import RecipeError, TokenizerError
from packline.sources.batch import Texts
from packline.vocabulary.word_counts import WordCounts, batches_of, count_words

SpecialPlace = Literal["first", "last"]

MEMORY_BYTES = 4 << 30
LEAST_MEMORY_BYTES = 1_000_000
WORDS_SHARE = 32
"""Memory for finding merges, as a multiple of that of the distinct words."""

LETTERS = {chr(letter): byte for byte, letter in ALPHABET.items()}

NANOCHAT = (
    "<|bos|>",
    "<|user_start|>",
    "<|user_end|>",
    "<|assistant_start|>",
    "<|assistant_end|>",
    "<|python_start|>",
    "<|python_end|>",
    "<|output_start|>",
    "<|output_end|>",
)
SPECIALS: dict[str, tuple[tuple[str, ...], SpecialPlace]] = {
    "endoftext": (("<|endoftext|>",), "first"),
    "nanochat": (NANOCHAT, "last"),
    "none": ((), "first"),
}
"""Presets: special tokens in order, and whether they get the first or the last ids."""


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """A trained tokenizer and statistics of its texts."""

    json: str
    """Contents of a tokenizer.json."""
    trainer: str
    merges: int
    vocab_size: int
    documents: int
    text_bytes: int
    words: int | None
    """Number of distinct words; None if HF's trainer counted them."""
    forgotten_words: int = 0
    """Number of distinct words that did not fit into memory: the rarest."""
    forgotten_share: float = 0.0
    """Their share of all distinct words seen."""


class TrainingProgress(msgspec.Struct, frozen=True):
    """Progress of a training: first texts are read, then merges are found."""

    documents: int
    text_bytes: int
    merges: int
    wanted: int
    """Number of merges to find, if the texts have that many."""


OnProgress = Callable[[TrainingProgress], None]


def train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: Sequence[str] = ("<|endoftext|>",),
    *,
    pattern: PatternName = "gpt2",
    place: SpecialPlace = "first",
) -> str:
    """Train on a few texts.

    Args:
        texts: training texts.
        vocab_size: total number of tokens: 256 bytes, the special tokens, and merges.
        special_tokens: tokens that text never becomes.
        pattern: pattern that cuts text into words.
        place: whether special tokens get the first or the last ids.

    Returns:
        Contents of a tokenizer.json. It has fewer tokens if the texts run out of pairs to merge.

    Raises:
        TokenizerError: no texts, or no room for a single merge.

    >>> tokenizer = msgspec.json.decode(train_bpe(["low lower lowest"] * 9, 262))
    >>> tokenizer["model"]["merges"]
    [['l', 'o'], ['lo', 'w'], ['Ġ', 'low'], ['Ġlow', 'e'], ['s', 't']]
    """
    return train_batches(
        batches_of(texts), vocab_size, special_tokens, pattern=pattern_of(pattern), place=place
    ).json


def train_batches(
    batches: Iterable[Texts],
    vocab_size: int,
    special_tokens: Sequence[str],
    *,
    pattern: Pattern,
    place: SpecialPlace = "first",
    memory_bytes: int = MEMORY_BYTES,
    threads: int | None = None,
    on_progress: OnProgress = lambda progress: None,
) -> Trained:
    """Train on batches of texts, each of bounded size.

    Args:
        memory_bytes: memory limit; beyond it rare words are dropped. It does not apply to HF's trainer, which
            is used for patterns with other rules.
        threads: number of threads that count words; default all cores that this process may use.
        on_progress: called for each batch, and from time to time while merges are found.

    Raises:
        RecipeError: special tokens that are empty, duplicate or also tokens of text; too few threads or too
            little memory.
        TokenizerError: no text, or no room for a single merge.
    """
    check_specials(special_tokens)
    if threads is not None and threads < 1:
        raise RecipeError(f"threads is {threads}: expected at least 1")
    if memory_bytes < LEAST_MEMORY_BYTES:
        raise RecipeError(f"memory is {memory_bytes:,} bytes: expected at least {LEAST_MEMORY_BYTES:,}")
    room = vocab_size - 256 - len(special_tokens)
    if room < 1:
        least = 257 + len(special_tokens)
        raise TokenizerError(
            f"vocab_size is {vocab_size}: expected at least {least}, which is 256 bytes, the special tokens"
            " and one merge"
        )
    batches = _told(batches, room, on_progress)
    if pattern.rules == "other":
        return _train_by_hf(batches, room, special_tokens, pattern, place)
    counted = count_words(batches, pattern, memory_bytes=memory_bytes // WORDS_SHARE, threads=threads)
    if not len(counted):
        raise TokenizerError("no text to train on")
    merges = find_merges(
        counted,
        room,
        lambda done: on_progress(TrainingProgress(counted.documents, counted.text_bytes, done, room)),
    )
    seen = counted.forgotten_words + len(counted)
    return Trained(
        json=tokenizer_json(merges, special_tokens, pattern, place),
        trainer="packline",
        merges=len(merges),
        vocab_size=_vocab_size(merges, special_tokens),
        documents=counted.documents,
        text_bytes=counted.text_bytes,
        words=len(counted),
        forgotten_words=counted.forgotten_words,
        forgotten_share=counted.forgotten_words / seen,
    )


def check_specials(special_tokens: Sequence[str]) -> None:
    """Refuse special tokens that cannot be distinguished from each other or from a byte.

    >>> check_specials(["<s>", "<s>"])
    Traceback (most recent call last):
    packline.errors.RecipeError: the special token '<s>' comes twice: expected every one once
    """
    for token in special_tokens:
        if not token:
            raise RecipeError("a special token is empty")
        if list(special_tokens).count(token) > 1:
            raise RecipeError(f"the special token {token!r} comes twice: expected every one once")
        _check_apart(token, LETTERS)


def _check_apart(token: str, others: Container[str]) -> None:
    if token in others:
        raise RecipeError(
            f"the special token {token!r} is a token of text too, and text would become it",
            hint="choose a string that no word is, such as '<|end|>'",
        )


def _told(batches: Iterable[Texts], room: int, on_progress: OnProgress) -> Iterator[Texts]:
    """Pass batches through and report the progress of each."""
    documents = text_bytes = 0
    for texts in batches:
        yield texts
        documents += len(texts)
        text_bytes += len(texts.data)
        on_progress(TrainingProgress(documents, text_bytes, 0, room))


def find_merges(
    counted: WordCounts, room: int, on_merges: Callable[[int], None] = lambda done: None
) -> list[tuple[bytes, bytes]]:
    """Find merges that add `room` tokens to the 256 bytes, or fewer if pairs run out."""
    from packline.vocabulary.merging import Merger

    return Merger(counted.data, counted.offsets, counted.counts).run(room, on_merges)


def _train_by_hf(
    batches: Iterable[Texts], room: int, special_tokens: Sequence[str], pattern: Pattern, place: SpecialPlace
) -> Trained:
    """Train with the reference trainer: an order of magnitude slower, with all distinct words in memory."""
    import tokenizers
    from tokenizers import Regex, models, pre_tokenizers, trainers

    seen = [0, 0]

    def texts() -> Iterable[list[str]]:
        for batch in batches:
            seen[0] += len(batch)
            seen[1] += len(batch.data)
            yield batch.to_list()

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern.expression), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=room + 256, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts(), trainer)
    if not seen[1]:
        raise TokenizerError("no text to train on")
    pairs = msgspec.json.decode(tokenizer.to_str())["model"]["merges"]
    merges = [
        (bytes(LETTERS[letter] for letter in left), bytes(LETTERS[letter] for letter in right))
        for left, right in pairs
    ]
    return Trained(
        json=tokenizer_json(merges, special_tokens, pattern, place),
        trainer="HF tokenizers",
        merges=len(merges),
        vocab_size=_vocab_size(merges, special_tokens),
        documents=seen[0],
        text_bytes=seen[1],
        words=None,
    )


def _vocab_size(merges: list[tuple[bytes, bytes]], special_tokens: Sequence[str]) -> int:
    return 256 + len(special_tokens) + len({left + right for left, right in merges})


def tokenizer_json(
    merges: list[tuple[bytes, bytes]],
    special_tokens: Sequence[str],
    pattern: Pattern,
    place: SpecialPlace = "first",
) -> str:
    """Build a tokenizer.json from merges. Ids: bytes in the order of their characters, then merges in order.

    Raises:
        RecipeError: a special token is also the result of a merge.
    """
    pairs = [(_written(left), _written(right)) for left, right in merges]
    # Two merges may produce the same string; the first one is the token.
    names = dict.fromkeys([*sorted(LETTERS), *(left + right for left, right in pairs)])
    special = dict.fromkeys(special_tokens)
    for token in special:
        _check_apart(token, names)
    vocab = {
        name: number for number, name in enumerate(special | names if place == "first" else names | special)
    }
    model: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": pairs,
    }
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special_entries({token: vocab[token] for token in special_tokens}),
        "normalizer": None,
        "pre_tokenizer": pattern.pre_tokenizer(),
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": model,
    }
    return msgspec.json.encode(whole).decode()


def _written(token: bytes) -> str:
    """Write a token in the printable alphabet of byte-level vocabularies."""
    return token.decode("latin-1").translate(ALPHABET)
