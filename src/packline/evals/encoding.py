"""Encode texts of an evaluation set with the engines of a build, checked against the reference.

Few-shot prompts are large (a bundle of CORE has a gigabyte of them), so the fastest engine that agrees with
the reference on the first texts is used, and some texts of every batch are encoded again by the reference.
Special-token strings in the text are text. The engine is recreated every 256 MB, which bounds its cache.

Cost: half a second to start. Adds no boundary tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packline.encoders.engine import Engine, load_engine, load_engines
from packline.encoders.parity import Reference, audited, check_document, try_engines
from packline.encoders.report import ENGINE_NAMES, EngineName
from packline.encoders.special import without_special_tokens
from packline.encoders.tokenizer import Tokenizer
from packline.errors import TokenizerError
from packline.ragged import Ragged
from packline.sources.texts import Texts
from packline.store.index import dtype_for

TRIED = 32
"""Number of texts on which engines are compared."""
RENEWED_BYTES = 256 << 20


class TextEncoder:
    """Encode texts as plain text.

    >>> vocab = {"a": 0, "b": 1, "</s>": 2}
    >>> import msgspec
    >>> text = {"model": {"type": "BPE", "vocab": vocab, "merges": []}}
    >>> tokenizer = Tokenizer(
    ...     name="tiny",
    ...     kind="huggingface",
    ...     json=msgspec.json.encode(text).decode(),
    ...     vocab_size=3,
    ...     special_tokens={},
    ... )
    >>> TextEncoder(tokenizer).encode(["ab", "b"]).tokens.tolist()
    [0, 1, 1]
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.dtype = dtype_for(tokenizer.vocab_size)
        self._json = without_special_tokens(tokenizer)
        self._reference = Reference(self._json)
        self._engine: Engine | None = None
        self._encoded = 0

    def encode(self, texts: Sequence[str]) -> Ragged:
        """Encode each text; ids are uint16 or int32.

        Raises:
            EncoderMismatch: the engine differs from the reference.
        """
        if not texts:
            return Ragged(np.empty(0, self.dtype), np.zeros(1, np.int64))
        engine = self._ready(texts)
        batch = Texts.of(list(texts))
        found = engine.encode(batch)
        for number in audited(0, len(texts)):
            check_document(engine, self._reference, texts[number], found[number], f"text {number}")
        self._encoded += len(batch.data)
        return Ragged(found.tokens.astype(self.dtype), found.offsets)

    def encode_one(self, text: str) -> list[int]:
        """Encode one short text with the reference."""
        return self._reference.encode(text)

    def _ready(self, texts: Sequence[str]) -> Engine:
        """Engine to use: chosen at first, recreated after much text."""
        if self._engine is None:
            step = max(len(texts) // TRIED, 1)
            engines = load_engines(ENGINE_NAMES, self._json)
            reports = try_engines(engines, self._reference, list(texts[::step][:TRIED]))
            usable = {
                report.name: report.megabytes_per_second
                for report in reports
                if report.exact and not isinstance(engines[report.name], str)
            }
            if not usable:
                raise TokenizerError(
                    f"no engine encodes as {self.tokenizer.name} does: "
                    + "; ".join(f"{report.name}: {report.note}" for report in reports)
                )
            # A few cold texts do not show it, but any engine is faster than the reference.
            chosen = engines[max(usable, key=lambda name: (name != "tokenizers", usable[name]))]
            assert not isinstance(chosen, str)
            self._engine = chosen
        elif self._encoded > RENEWED_BYTES:
            name: EngineName = self._engine.name
            self._engine, self._encoded = load_engine(name, self._json), 0
        return self._engine


def find_token(tokenizer: Tokenizer, wanted: str | int, role: str) -> int:
    """Find the id of a token given by its string or its id.

    Args:
        role: purpose of the token, as in the option that names it.

    Raises:
        TokenizerError: there is no such token.
    """
    reference = tokenizer.reference()
    if isinstance(wanted, int):
        if reference.id_to_token(wanted) is not None:
            return wanted
    elif (found := reference.token_to_id(wanted)) is not None:
        return int(found)
    raise TokenizerError(
        f"{role} {wanted!r} is no token of {tokenizer.name}; special tokens are {_special(tokenizer)}",
        hint=f"name one with --{role}, by its string or its id",
    )


def _special(tokenizer: Tokenizer) -> str:
    """First special tokens, as suggestions."""
    special = sorted(tokenizer.special_tokens.items(), key=lambda item: item[1])
    return ", ".join(f"{token} ({number})" for token, number in special[:12]) or "none"


def begin_of_sequence(tokenizer: Tokenizer, wanted: str | int | None) -> int:
    """Token that begins every sequence: the requested one, else the one that the tokenizer declares.

    Raises:
        TokenizerError: no such token, or none is declared.
    """
    if wanted is None:
        wanted = "<|bos|>" if "<|bos|>" in tokenizer.special_tokens else tokenizer.bos_token
    if wanted is None:
        raise TokenizerError(
            f"{tokenizer.name} declares no token to begin a sequence with",
            hint=f"name what begins the model's documents with --bos, of {_special(tokenizer)}",
        )
    return find_token(tokenizer, wanted, "bos")
