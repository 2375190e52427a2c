"""Folder of a trained tokenizer, with a report of the training.

    tokenizer.json           every engine, `--tokenizer`, HF `tokenizers`
    tokenizer_config.json    lets transformers load the folder
    token_bytes.npy          int32 [V]: raw bytes of each token, 0 for special tokens
    report.json              training texts and results

Bits per byte are computed with `token_bytes`: the loss of the tokens divided by their bytes. A token that is
not valid UTF-8 alone counts its actual bytes, not those of a replacement character.

A folder for nanochat, as its `scripts.tok_train` writes it into `$NANOCHAT_BASE_DIR/tokenizer`:

    tokenizer.pkl     pickled `tiktoken.Encoding`: name, pattern, ranks, special tokens
    token_bytes.pt    torch file, int32 [V]: raw bytes of each token, 0 for special tokens

The pickle names one class, `tiktoken.core.Encoding`, and is written opcode by opcode: neither tiktoken nor
torch is needed, and no pickle is read. If tiktoken is installed, it encodes hard text from the same values
first, and other ids than those of the reference are refused.

Everything except the report is a function of texts and settings alone. tokenizer.json is written last: a run
that is killed at any instant leaves nothing that could be mistaken for a tokenizer, and the same command
replaces what it left.
"""

from __future__ import annotations

import importlib.util
import io
import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
import numpy as np

from packline.chat.pieces import BOS, NANOCHAT_TOKENS
from packline.encoders.parity import PROBES, Reference
from packline.encoders.special_tokens import END_OF_TEXT
from packline.encoders.tiktoken import LETTERS, SpecialPlace, check_specials, pattern_of
from packline.encoders.token_bytes import Ranks, ranks_of, token_bytes
from packline.encoders.tokenizer import CONFIG, JSON, Tokenizer, config_bytes, load_tokenizer, refusals
from packline.errors import RecipeError, StoreError, TokenizerError
from packline.formats.nanogpt import Plain, pickled
from packline.formats.pt import tensor_file
from packline.recipe import Recipe
from packline.storage.local import UNFINISHED, LocalFolder, disk_errors, sync_folder
from packline.storage.places import refuse_remote
from packline.storage.results import Publication
from packline.vocabulary.texts import LANGUAGES, PASSAGES, TrainingTexts
from packline.vocabulary.training import (
    MEMORY_BYTES,
    OnProgress,
    train_batches,
)

FILES = "token_bytes.npy", "report.json", CONFIG, JSON
"""Files in the order in which they are written; the first is one that no other program writes."""
SPECIALS: dict[str, tuple[tuple[str, ...], SpecialPlace]] = {
    "endoftext": (("<|endoftext|>",), "first"),
    "nanochat": (NANOCHAT_TOKENS, "last"),
    "none": ((), "first"),
}
"""Presets: special tokens in order, and whether they get the first or the last ids."""
PICKLE, TENSOR = "tokenizer.pkl", "token_bytes.pt"
ENCODING_NAME = "rustbpe"
"""Name of the encoding, as nanochat's own training gives it."""
BEGINS = ("<|bos|>", "<s>", "<|begin_of_text|>", "<bos>")


OF_TEXTS = "documents", "characters", "cut_documents", "left_out", "held_out", "stopped_early"
OF_TRAINED = "trainer", "merges", "text_bytes", "words", "forgotten_words", "forgotten_share"
"""Fields of the report that texts and training have under the same names."""


class TokenByteCounts(msgspec.Struct, frozen=True):
    """Statistics of the bytes per token, without special tokens."""

    min: int
    max: int
    mean: float
    std: float


class TrainingReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report of a training."""

    pattern: str
    trainer: str
    """"packline", or "HF tokenizers" for patterns that only its trainer supports."""
    asked_vocab_size: int
    vocab_size: int
    """Number of tokens; smaller than requested if the texts ran out of pairs."""
    merges: int
    special_tokens: dict[str, int]
    eos_token: str | None
    bos_token: str | None
    token_bytes: TokenByteCounts
    documents: int
    characters: int
    text_bytes: int
    words: int | None
    forgotten_words: int
    forgotten_share: float
    cut_documents: int
    left_out: int
    held_out: int
    """Number of documents that the recipe reserves for validation and testing."""
    stopped_early: bool
    bad_records: dict[str, int]
    files: int
    fingerprint: str
    seconds: float


def train_folder(
    recipe: Recipe,
    vocab_size: int,
    out: str | Path,
    *,
    pattern: str = "gpt4",
    special_tokens: Sequence[str] = ("<|endoftext|>",),
    place: SpecialPlace = "first",
    eos: str | None = None,
    bos: str | None = None,
    max_chars: int | None = None,
    doc_chars: int | None = None,
    memory_bytes: int = MEMORY_BYTES,
    threads: int | None = None,
    force: bool = False,
    on_progress: OnProgress = lambda progress: None,
) -> TrainingReport:
    """Train a tokenizer on the sources of a recipe and write its folder."""
    started = time.perf_counter()
    refuse_remote(out, "a tokenizer")
    folder = Path(out)
    scheme = pattern_of(pattern)
    check_specials(special_tokens, LETTERS)
    eos = _named(eos, END_OF_TEXT, special_tokens, "eos")
    bos = _named(bos, BEGINS, special_tokens, "bos")
    texts = TrainingTexts(recipe, max_chars, doc_chars)
    check_target_folder(folder, force, FILES)
    try:
        trained = train_batches(
            texts.batches(),
            vocab_size,
            special_tokens,
            pattern=scheme,
            place=place,
            memory_bytes=memory_bytes,
            threads=threads,
            on_progress=on_progress,
        )
    except TokenizerError as error:
        reasons = [f"{count:,} {reason}" for reason, count in texts.bad_records.items()]
        reasons += [f"{texts.left_out:,} left out by length or by where"] if texts.left_out else []
        reasons += [f"{texts.held_out:,} held out of training"] if texts.held_out else []
        if texts.documents or not reasons:
            raise
        raise TokenizerError(
            f"{error}: all records are bad or left out, {', '.join(reasons)}",
            hint="--text names the field of the text",
        ) from error
    tokenizer = Tokenizer(
        name=str(folder),
        kind="huggingface",
        json=trained.json,
        vocab_size=trained.vocab_size,
        special_tokens={
            token["content"]: token["id"] for token in msgspec.json.decode(trained.json)["added_tokens"]
        },
    )
    if Reference(tokenizer.json).round_trip != "exact":
        raise TokenizerError(f"{tokenizer.name} does not give hard text back exactly")
    sizes = np.array([len(one) for one in token_bytes(tokenizer)], "<i4")
    ordinary = np.delete(sizes, list(tokenizer.special_tokens.values()))
    report = TrainingReport(
        pattern=pattern,
        asked_vocab_size=vocab_size,
        vocab_size=tokenizer.vocab_size,
        special_tokens=tokenizer.special_tokens,
        eos_token=eos,
        bos_token=bos,
        token_bytes=TokenByteCounts(
            int(ordinary.min()), int(ordinary.max()), float(ordinary.mean()), float(ordinary.std())
        ),
        bad_records=dict(texts.bad_records),
        files=len(texts.files),
        fingerprint=tokenizer.fingerprint,
        seconds=time.perf_counter() - started,
        **{name: getattr(texts, name) for name in OF_TEXTS},
        **{name: getattr(trained, name) for name in OF_TRAINED},
    )
    array = io.BytesIO()
    np.save(array, sizes, allow_pickle=False)
    indented = msgspec.json.format(msgspec.json.encode(report)) + b"\n"
    contents = (
        array.getvalue(),
        indented,
        config_bytes(special_tokens, eos, bos),
        trained.json.encode() + b"\n",
    )
    publish_files(folder, dict(zip(FILES, contents, strict=True)), force)
    return report


def check_target_folder(folder: Path, force: bool, names: Collection[str]) -> None:
    """Refuse a path where no folder can be written, before the work. Leaves nothing at `folder`.

    `names` are the files in the order in which they are written: the first of them alone are what a killed
    run left, and are replaced.
    """
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file: expected a folder", hint="name a new folder")
    present = set(os.listdir(folder)) if folder.exists() else set()
    present = {name for name in present if not (name.startswith(".") and name.endswith(UNFINISHED))}
    unfinished = len(present) < len(names) and present == {*list(names)[: len(present)]}
    if not force and not unfinished:
        raise StoreError(
            f"{folder} exists and is not empty", hint="name a new folder, or replace it with --force"
        )
    place = folder.resolve()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the folder {folder}: {error.strerror}") from error
    if not os.access(place if place.exists() else place.parent, os.W_OK):
        raise StoreError(f"cannot write into the folder {folder}", hint="name another folder")


def publish_files(folder: Path, files: dict[str, bytes], force: bool) -> None:
    """Write the files of a tokenizer, the main one last: without it there is no tokenizer."""
    check_target_folder(folder, force, files)
    place = folder.resolve()
    with disk_errors(place.parent):
        place.mkdir(exist_ok=True)
        sync_folder(place.parent)
        result = Publication(LocalFolder(place), list(files)[-1])
        result.clear(files)
        result.publish(files)


def _named(given: str | None, usual: Sequence[str], special_tokens: Sequence[str], what: str) -> str | None:
    if given is not None and given not in special_tokens:
        expected = f"expected one of {', '.join(special_tokens)}" if special_tokens else "there are none"
        raise RecipeError(
            f"--{what} {given!r} is no special token: {expected}", hint="name it with --special-tokens too"
        )
    return given or next((token for token in usual if token in special_tokens), None)


class NanochatTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """Report of an export."""

    tokenizer: str
    vocab_size: int
    files: tuple[str, ...]
    checked_texts: int
    """Number of hard texts that tiktoken encoded with equal ids; 0 if it is not installed."""
    missing_tokens: tuple[str, ...]
    """Tokens without which nanochat pretrains, but does not fine-tune on conversations."""


def export_to_nanochat(name: str, out: str | Path, *, force: bool = False) -> NanochatTokenizer:
    """Write a tokenizer's folder for nanochat."""
    refuse_remote(out, "a tokenizer")
    folder = Path(out)
    check_target_folder(folder, force, (TENSOR, PICKLE))
    tokenizer = load_tokenizer(name)
    found = ranks_of(tokenizer)
    if BOS not in found.special_tokens:
        raise TokenizerError(
            f"{name} has no special token {BOS}, which nanochat puts before every document",
            hint="packline tokenizer train --pattern nanochat --specials nanochat makes one that has",
        )
    checked = _check(tokenizer, found)
    sizes = np.array([len(one) for one in token_bytes(tokenizer)], np.int32)
    files = {
        TENSOR: tensor_file(sizes, "token_bytes", "Int"),
        PICKLE: encoding_pickle(found),
    }
    publish_files(folder, files, force)
    return NanochatTokenizer(
        tokenizer=name,
        vocab_size=tokenizer.vocab_size,
        files=tuple(files),
        checked_texts=checked,
        missing_tokens=tuple(token for token in NANOCHAT_TOKENS if token not in found.special_tokens),
    )


def encoding_pickle(found: Ranks) -> bytes:
    """Pickle (protocol 3) of a `tiktoken.Encoding`, made by tiktoken when it is read.

    >>> encoding_pickle(Ranks("a", {b"a": 0}, {}))[:28]
    b'\\x80\\x03ctiktoken.core\\nEncoding\\n)\\x81'
    """
    state: dict[str, Plain] = {
        "name": ENCODING_NAME,
        "pat_str": found.pattern,
        "mergeable_ranks": found.ranks,
        "special_tokens": found.special_tokens,
    }
    # GLOBAL, EMPTY_TUPLE, NEWOBJ, the state, BUILD, STOP
    return b"\x80\x03ctiktoken.core\nEncoding\n)\x81" + pickled(state) + b"b."


def _check(tokenizer: Tokenizer, found: Ranks) -> int:
    """Compare tiktoken's ids of hard text with the reference's; return the number of texts."""
    if importlib.util.find_spec("tiktoken") is None:
        return 0
    import tiktoken

    with refusals(f"tiktoken refuses {tokenizer.name}"):
        encoding = tiktoken.Encoding(
            ENCODING_NAME,
            pat_str=found.pattern,
            mergeable_ranks=found.ranks,
            special_tokens=found.special_tokens,
        )
    reference = tokenizer.reference()
    texts = [*PROBES, *PASSAGES.values(), *LANGUAGES.values()]
    texts = [text for text in texts if not any(token in text for token in found.special_tokens)]
    for text in texts:
        ids, expected = encoding.encode_ordinary(text), reference.encode(text, add_special_tokens=False).ids
        if ids != expected:
            raise TokenizerError(
                f"{tokenizer.name}: tiktoken gives other ids for {text[:40]!r}: "
                f"expected {expected[:8]}, found {ids[:8]}",
                hint="its regular expression is read differently there; train one with --pattern nanochat",
            )
    return len(texts)
