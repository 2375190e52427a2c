"""One trainer on one file of JSONL: `python -m benchmarks.contenders.training WHO FILE VOCAB PATTERN`.

All get the same texts, already in memory, and the same expression; timed from there to the merges.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any


def packline(texts: list[str], vocab_size: int, pattern: str) -> list[tuple[bytes, bytes]]:
    """Ours, as `packline tokenizer train` runs it."""
    from packline.encoders.patterns import pattern_of
    from packline.encoders.training import MEMORY_BYTES, WORDS_SHARE, find_merges
    from packline.encoders.word_counts import batches_of, count_words

    memory = MEMORY_BYTES // WORDS_SHARE
    return find_merges(
        count_words(batches_of(texts), pattern_of(pattern), memory_bytes=memory), vocab_size - 256
    )


def rustbpe(texts: list[str], vocab_size: int, pattern: str) -> None:
    """nanochat's; its ties are its own, so its merges are not compared."""
    import rustbpe as peer  # type: ignore[import-not-found, import-untyped, unused-ignore]

    from packline.encoders.patterns import pattern_of

    tokenizer = peer.Tokenizer()
    tokenizer.train_from_iterator(iter(texts), vocab_size, pattern=pattern_of(pattern).expression)


def gigatoken(texts: list[str], vocab_size: int, pattern: str) -> list[tuple[bytes, bytes]]:
    """gigatoken's trainer, which knows GPT-2's pattern alone."""
    import gigatoken as peer

    if pattern != "gpt2":
        raise SystemExit("gigatoken trains with GPT-2's pattern alone")
    separator = b"\xff\xfe\xff"
    data = separator.join(text.encode() for text in texts)
    _, merges = peer.train_bpe(data, vocab_size, [], tie_breaking="huggingface", separator=separator)
    return list(merges)


def huggingface(texts: list[str], vocab_size: int, pattern: str) -> list[tuple[bytes, bytes]]:
    """The reference."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    from packline.encoders.patterns import pattern_of
    from packline.encoders.tiktoken import ALPHABET

    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern == "gpt2")
    split = pre_tokenizers.Split(Regex(pattern_of(pattern).expression), "isolated")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = level if pattern == "gpt2" else pre_tokenizers.Sequence([split, level])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    letters = {chr(letter): byte for byte, letter in ALPHABET.items()}
    pairs = json.loads(tokenizer.to_str())["model"]["merges"]
    return [(bytes(letters[x] for x in left), bytes(letters[x] for x in right)) for left, right in pairs]


TRAINERS: dict[str, Any] = {
    "packline": packline,
    "rustbpe": rustbpe,
    "gigatoken": gigatoken,
    "huggingface": huggingface,
}


def main() -> None:
    """Train once and print what it took."""
    import resource

    who, path, vocab_size, pattern = sys.argv[1:5]
    with Path(path).open("rb") as file:  # bytes: a line of text may hold other ends of line
        texts = [json.loads(line)["text"] for line in file]
    text_bytes = sum(len(text.encode()) for text in texts)
    started, cpu = time.perf_counter(), time.process_time()
    merges = TRAINERS[who](texts, int(vocab_size), pattern)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    report = {
        "trainer": who,
        "pattern": pattern,
        "vocab_size": int(vocab_size),
        "text_bytes": text_bytes,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "merges": hashlib.sha256(repr(merges).encode()).hexdigest() if merges else None,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
