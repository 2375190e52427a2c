"""Folder of a tokenizer for nanochat: what its `scripts.tok_train` writes.

    tokenizer.pkl     pickled `tiktoken.Encoding`: name, pattern, ranks, special tokens
    token_bytes.pt    torch file, int32 [V]: raw bytes of each token, 0 for special tokens

nanochat reads both from `$NANOCHAT_BASE_DIR/tokenizer`. The pickle names one class, `tiktoken.core.Encoding`,
and is written opcode by opcode: neither tiktoken nor torch is needed, and no pickle is read. If tiktoken is
installed, it encodes hard text from the same values first, and other ids than those of the reference are
refused.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import msgspec
import numpy as np

from packline.encoders.parity import PROBES
from packline.encoders.token_bytes import Ranks, ranks_of, token_bytes
from packline.encoders.tokenizer import Tokenizer, load_tokenizer, refusals
from packline.errors import TokenizerError
from packline.formats.nanogpt import Plain, pickled
from packline.formats.pt import tensor_file
from packline.storage.places import refuse_remote
from packline.vocabulary.passages import LANGUAGES, PASSAGES
from packline.vocabulary.trained_folder import check_target_folder, publish_files

PICKLE, TOKEN_BYTES = "tokenizer.pkl", "token_bytes.pt"
BOS = "<|bos|>"
"""Token that nanochat puts before every document; it looks it up by this name."""
NAME = "rustbpe"
"""Name of the encoding, as nanochat's own training gives it."""
CHAT = (
    "<|user_start|>", "<|user_end|>", "<|assistant_start|>", "<|assistant_end|>",
    "<|python_start|>", "<|python_end|>", "<|output_start|>", "<|output_end|>",
)  # fmt: skip
"""Tokens that nanochat's fine-tuning and chat look up in addition to `BOS`."""


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
    """Write a tokenizer's folder for nanochat.

    Args:
        name: a file, a folder or a hub id.
        out: a folder, new or empty, unless `force`.

    Raises:
        TokenizerError: tiktoken has no equal encoding, or there is no `<|bos|>`.
        StoreError: `out` is in use.
    """
    refuse_remote(out, "a tokenizer")
    folder = Path(out)
    check_target_folder(folder, force, (TOKEN_BYTES, PICKLE))
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
        TOKEN_BYTES: tensor_file(sizes, "token_bytes", "Int"),
        PICKLE: encoding_pickle(found),
    }
    publish_files(folder, files, force)
    return NanochatTokenizer(
        tokenizer=name,
        vocab_size=tokenizer.vocab_size,
        files=tuple(files),
        checked_texts=checked,
        missing_tokens=tuple(token for token in CHAT if token not in found.special_tokens),
    )


def encoding_pickle(found: Ranks) -> bytes:
    """Pickle (protocol 3) of a `tiktoken.Encoding`, made by tiktoken when it is read.

    >>> encoding_pickle(Ranks("a", {b"a": 0}, {}))[:28]
    b'\\x80\\x03ctiktoken.core\\nEncoding\\n)\\x81'
    """
    state: dict[str, Plain] = {
        "name": NAME,
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
            NAME, pat_str=found.pattern, mergeable_ranks=found.ranks, special_tokens=found.special_tokens
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
