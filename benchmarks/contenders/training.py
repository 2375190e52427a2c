"""One trainer on one file of JSONL.

    python -m benchmarks.contenders.training WHO FILE VOCAB_SIZE PATTERN EXPRESSION

All get the same texts, already in memory, and the same expression; timed from there to the merges.
"""

from __future__ import annotations

import hashlib
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

Merges = list[tuple[str, str]]


def packline(texts: list[str], vocab_size: int, pattern: str, expression: str) -> Merges:
    """Ours, as `packline tokenizer train` runs it."""
    from packline.jobs.resources import keep_freed_memory
    from packline.vocabulary.training import train_bpe

    keep_freed_memory()
    return _merges(train_bpe(texts, vocab_size, (), pattern=pattern))  # type: ignore[arg-type]


def rustbpe(texts: list[str], vocab_size: int, pattern: str, expression: str) -> None:
    """nanochat's; its ties are its own, so its merges are not compared."""
    import rustbpe as peer  # type: ignore[import-not-found, import-untyped, unused-ignore]

    peer.Tokenizer().train_from_iterator(iter(texts), vocab_size, pattern=expression)


def gigatoken(texts: list[str], vocab_size: int, pattern: str, expression: str) -> Merges:
    """gigatoken's trainer, which knows GPT-2's pattern alone."""
    import gigatoken as peer
    from tokenizers import pre_tokenizers

    if pattern != "gpt2":
        raise SystemExit("gigatoken trains with GPT-2's pattern alone")
    separator = b"\xff\xfe\xff"
    data = separator.join(text.encode() for text in texts)
    _, merges = peer.train_bpe(data, vocab_size, [], tie_breaking="huggingface", separator=separator)
    letters = _byte_letters(pre_tokenizers.ByteLevel.alphabet())
    return [("".join(letters[x] for x in left), "".join(letters[x] for x in right)) for left, right in merges]


def huggingface(texts: list[str], vocab_size: int, pattern: str, expression: str) -> Merges:
    """The reference."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern == "gpt2")
    split = pre_tokenizers.Split(Regex(expression), "isolated")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = level if pattern == "gpt2" else pre_tokenizers.Sequence([split, level])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _merges(tokenizer.to_str())


def _merges(tokenizer_json: str) -> Merges:
    return [(left, right) for left, right in json.loads(tokenizer_json)["model"]["merges"]]


def _byte_letters(alphabet: list[str]) -> list[str]:
    """The letter of each byte: printable bytes stand for themselves, the others follow from 256 on."""
    printable = {ord(letter) for letter in alphabet if ord(letter) < 256}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


TRAINERS: dict[str, Any] = {
    "packline": packline,
    "rustbpe": rustbpe,
    "gigatoken": gigatoken,
    "HF tokenizers": huggingface,
}


def main() -> None:
    """Train once and print what it took."""
    who, path, vocab_size, pattern, expression = sys.argv[1:6]
    with Path(path).open("rb") as lines:  # bytes: a text may hold what Python takes for the end of a line
        texts = [json.loads(line)["text"] for line in lines]
    text_bytes = sum(len(text.encode()) for text in texts)
    started = time.perf_counter()
    merges = TRAINERS[who](texts, int(vocab_size), pattern, expression)
    seconds = time.perf_counter() - started
    report = {
        "text_bytes": text_bytes,
        "seconds": seconds,
        "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "merges": hashlib.sha256(json.dumps(merges).encode()).hexdigest() if merges else None,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
