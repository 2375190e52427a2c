"""Encoder: texts to token ids, by the fastest engines whose ids equal the reference's.

    tokenizer.json ──┬── reference ───────── try ─┐
                     └── gigatoken, fastokens ────┴─> chosen engines ──> encode ──> audit ──> boundaries

Builds, estimates, conversations and evaluation sets encode with this class. Engines are tried on the caller's
own texts before the first is encoded, and a few documents of every batch are encoded again by the reference.
The choice of engines affects the duration and never the ids.

Cost: 1 to 2 s to load a vocabulary of 150,000. Processes forked from the one that loaded an encoder share its
memory, but engines that were used before a fork do not work after it; `choose` can therefore try them in a
child.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from packline.encoders.boundary import Boundary
from packline.encoders.choosing import Chooser
from packline.encoders.engine import Engine, TokenizersEngine, load_engine, load_engines
from packline.encoders.parity import Reference, audited, check_document, try_engines
from packline.encoders.report import EngineName, EngineReport
from packline.encoders.special import without_special_tokens
from packline.encoders.tokenizer import Tokenizer
from packline.errors import EncoderMismatch, TokenizerError
from packline.ragged import Ragged, dtype_for
from packline.recipe import Engine as RequestedEngine
from packline.sources.texts import Texts

TRIED_TEXTS = 32
"""Maximum number of texts on which engines are tried if the caller does not try them."""

RunTrial = Callable[[Callable[[], list[EngineReport]]], list[EngineReport]]


@dataclass(frozen=True, slots=True)
class ChosenEngines:
    """Engines that an encoder uses, and why."""

    names: list[EngineName]
    reason: str
    reports: list[EngineReport]
    """Reports of all engines that were tried."""


class Encoder:
    """Encodes texts with one tokenizer.

    Args:
        tokenizer: the tokenizer.
        engine: requested engine; "auto" chooses.
        parse_special_tokens: encode strings of special tokens in texts as these tokens; otherwise as text.
        boundary: tokens to put around every text; None for none.
        cache_bytes: bytes of text after which the engines are loaded anew, to bound their caches of words;
            None for never.

    Raises:
        TokenizerError: the requested engine does not support this tokenizer.

    >>> import msgspec
    >>> model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
    >>> json = msgspec.json.encode({"model": model}).decode()
    >>> tokenizer = Tokenizer(name="ab", kind="huggingface", json=json, vocab_size=2, special_tokens={})
    >>> Encoder(tokenizer).encode(["ab", "b"]).tokens.tolist()
    [0, 1, 1]
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        engine: RequestedEngine = "auto",
        parse_special_tokens: bool = False,
        boundary: Boundary | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        started = time.monotonic()
        self.tokenizer, self.boundary = tokenizer, boundary
        self.dtype = dtype_for(tokenizer.vocab_size)
        self.json = tokenizer.json if parse_special_tokens else without_special_tokens(tokenizer)
        """The tokenizer.json of engines and reference."""
        self.undecoded = 0
        """Number of audited texts that are not recovered by decoding, with ids equal to the reference's."""
        self._requested, self._cache_bytes = engine, cache_bytes
        names: tuple[EngineName, ...] = ("gigatoken", "fastokens") if engine == "auto" else (engine,)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(Reference, self.json)
            self._loaded = load_engines(names, self.json)
            self.reference = waiting.result()
        if engine != "auto" and isinstance(failed := self._loaded[engine], str):
            raise TokenizerError(failed, hint="--engine auto takes an engine that can")
        if all(isinstance(one, str) for one in self._loaded.values()):
            self._loaded["tokenizers"] = TokenizersEngine(self.json)
        self._renewed: dict[str, int] = {}
        """Bytes of text that each engine had encoded when it was last loaded."""
        self._chooser: Chooser | None = None
        self.load_seconds = time.monotonic() - started

    def choose(self, texts: Sequence[str], run: RunTrial | None = None) -> ChosenEngines:
        """Try the engines on texts and choose those to encode with.

        Args:
            texts: some of the texts to be encoded.
            run: function that runs the trial elsewhere, such as in a forked process, and returns its result.

        Raises:
            TokenizerError: the requested engine differs from the reference.
        """

        def trial() -> list[EngineReport]:
            return try_engines(self._loaded, self.reference, list(texts))

        reports = trial() if run is None else run(trial)
        chosen = choose_engines(reports, self._requested)
        self._chooser = Chooser({name: self._engine(name) for name in chosen.names})
        return chosen

    def encode(
        self,
        texts: Texts | Sequence[str],
        *,
        audit: Sequence[int] | None = None,
        place: Callable[[int], str] = "text {}".format,
    ) -> Ragged:
        """Encode each text to ids of the smallest dtype for the vocabulary, with the boundary tokens.

        Args:
            texts: the texts; if `choose` was not called, engines are tried on some of the first batch.
            audit: positions of texts to compare with the reference; by default a few of them.
            place: function from the position of a text to its description in messages.

        Raises:
            EncoderMismatch: an engine and the reference disagree.
        """
        if not len(texts):
            return Ragged(np.empty(0, self.dtype), np.zeros(1, np.int64))
        if not isinstance(texts, Texts):
            texts = Texts.of(list(texts))
        chooser = self._ready(texts)
        ragged, engines = chooser.encode(texts)
        if len(ragged.tokens) and int(ragged.tokens.max()) >= self.tokenizer.vocab_size:
            raise EncoderMismatch(
                f"{place(0)}: {engines[0]} gave id {int(ragged.tokens.max())}, "
                f"outside the vocabulary of {self.tokenizer.vocab_size}",
                hint="run it with --engine tokenizers, and report the tokenizer",
            )
        for number in audited(0, len(texts)) if audit is None else audit:
            engine = chooser.engines[engines[number]]
            kept = check_document(engine, self.reference, texts[number], ragged[number], place(number))
            self.undecoded += not kept
        ragged = ragged.astype(self.dtype)
        if self.boundary is None:
            return ragged
        return ragged.surround(self.boundary.bos_id, self.boundary.eod_id)

    @property
    def engines(self) -> dict[EngineName, Engine]:
        """Chosen engines."""
        return {} if self._chooser is None else self._chooser.engines

    @property
    def encodes_by_reference(self) -> bool:
        """True if no faster engine is exact."""
        return list(self.engines) == ["tokenizers"]

    @property
    def encoded_bytes(self) -> dict[str, int]:
        """Bytes of text encoded by each engine."""
        return {} if self._chooser is None else self._chooser.encoded_bytes

    def rates(self) -> dict[str, dict[str, float]]:
        """Latest rates in MB/s by script and engine."""
        return {} if self._chooser is None else self._chooser.rates()

    def _ready(self, texts: Texts) -> Chooser:
        """Engines to encode with: chosen before the first batch, loaded anew after `cache_bytes` of text."""
        if self._chooser is None:
            step = max(len(texts) // TRIED_TEXTS, 1)
            self.choose(texts.to_list()[::step][:TRIED_TEXTS])
            assert self._chooser is not None
        elif self._cache_bytes is not None:
            for name, engine in self._chooser.engines.items():
                size = self._chooser.encoded_bytes.get(name, 0)
                if size - self._renewed.get(name, 0) > self._cache_bytes:
                    self._chooser.engines[name] = load_engine(engine.name, self.json)
                    self._renewed[name] = size
        return self._chooser

    def _engine(self, name: EngineName) -> Engine:
        loaded = self._loaded.get(name)
        return TokenizersEngine(self.json) if loaded is None or isinstance(loaded, str) else loaded


def choose_engines(reports: list[EngineReport], requested: RequestedEngine) -> ChosenEngines:
    """Choose among the tried engines.

    Raises:
        TokenizerError: the requested engine differs from the reference.
    """
    exact = [report for report in reports if report.exact]
    if requested != "auto":
        if not exact:
            raise TokenizerError(
                f"{requested} is not exact for this tokenizer: {reports[0].note}",
                hint="--engine auto takes one that is",
            )
        return ChosenEngines([requested], "requested", reports)
    left_out = "; ".join(f"{report.name}: {report.note}" for report in reports if not report.exact)
    names: list[EngineName] = [report.name for report in exact if report.name != "tokenizers"]
    if len(names) > 1:
        return ChosenEngines(names, "the faster one for each script, measured while running", reports)
    if names:
        return ChosenEngines(names, f"the only fast one that is exact here ({left_out})", reports)
    return ChosenEngines(["tokenizers"], f"no faster engine is exact here ({left_out})", reports)
