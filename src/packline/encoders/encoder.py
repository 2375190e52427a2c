"""Encoder: texts to token ids, by the fastest engines whose ids equal the reference's.

Engines are tried on the caller's own texts before the first is encoded, and a few documents of every batch
are encoded again by the reference. The choice of engines affects the duration and never the ids.

Processes forked from the one that loaded an encoder share its memory, but engines that were used before a
fork do not work after it; `choose` can therefore try them in a child.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from packline.encoders import LITTLE_TEXT, Engine, EngineName, EngineReport
from packline.encoders.engines import (
    BY_LOADING,
    Encodable,
    TokenizersEngine,
    load_engine,
    load_engines,
    put_back,
    unsupported,
)
from packline.encoders.parity import Reference, audit_document, audited, try_engines
from packline.encoders.special_tokens import Boundary
from packline.encoders.tokenizer import Tokenizer
from packline.errors import EncoderMismatch, TokenizerError
from packline.ragged import Ragged, dtype_for
from packline.recipe import Engine as RequestedEngine
from packline.sources.batch import Texts

TRIED_TEXTS = 32
"""Maximum number of texts on which engines are tried if the caller does not try them."""

TURNS = 2
"""Number of groups after which the rate of an engine is known; the first includes one-time costs."""
TRIED_BYTES = 128 << 10
"""Bytes of a group that another engine encodes to be tried; documents larger than that are not tried on."""
TRYING = 0.01
"""Share of the time spent on trying engines that are not chosen."""
CLEARLY = 1.4
"""Speed ratio at which the choice changes to another engine."""
MEMORY = 0.5
"""Weight of the previous rate in the moving average; the last group has the rest."""

TOO_LITTLE = 32 << 10
"""Size in bytes below which a group is too small to measure an engine."""
NEARLY_ALL = 0.9

SCRIPTS = ("ascii", "latin", "wide")
"""One byte per character; mostly one; two or three (Greek, Cyrillic, Arabic, Indic, East Asian)."""

RunTrial = Callable[[Callable[[], list[EngineReport]]], list[EngineReport]]


@dataclass(frozen=True, slots=True)
class ChosenEngines:
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
        text_bytes: bytes of text to be encoded, as far as known; for little text, `auto` loads one engine.
        encodable: what engines and reference load, where it was made before.

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
        text_bytes: int | None = None,
        encodable: Encodable | None = None,
    ) -> None:
        started = time.monotonic()
        self.tokenizer, self.boundary = tokenizer, boundary
        self.dtype = dtype_for(tokenizer.vocab_size)
        self.encodable = encodable or Encodable.of_tokenizer(tokenizer, parse=parse_special_tokens)
        self.undecoded = 0
        """Number of audited texts that are not recovered by decoding, with ids equal to the reference's."""
        self._requested, self._cache_bytes = engine, cache_bytes
        names: tuple[EngineName, ...] = BY_LOADING if engine == "auto" else (engine,)
        self._not_loaded: tuple[EngineName, ...] = ()
        if engine == "auto" and text_bytes is not None and text_bytes < LITTLE_TEXT:
            able = [name for name in names if unsupported(name, self.encodable.features) is None]
            names, self._not_loaded = tuple(able[:1]) or names, tuple(able[1:])
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(Reference, self.encodable.json)
            self._loaded = load_engines(names, self.encodable, self._as_engine)
            self.reference = waiting.result()
        if engine != "auto" and isinstance(failed := self._loaded[engine], str):
            raise TokenizerError(failed, hint="--engine auto takes an engine that can")
        if self._has_none():
            self._load_others()
        self._renewed: dict[str, int] = {}
        """Bytes of text that each engine had encoded when it was last loaded."""
        self._chooser = Chooser({})
        self.load_seconds = time.monotonic() - started

    def _has_none(self) -> bool:
        return all(isinstance(one, str) for one in self._loaded.values())

    def _load_others(self) -> None:
        """Load the engines that were left out, or the reference as one if there is no other."""
        if self._not_loaded:
            self._loaded |= load_engines(self._not_loaded, self.encodable, self._as_engine)
            self._not_loaded = ()
        if self._has_none():
            self._loaded["tokenizers"] = self._as_engine()

    def _as_engine(self) -> TokenizersEngine:
        return TokenizersEngine(self.encodable.json, self.reference.tokenizer())

    def choose(self, texts: Callable[[], list[str]], run: RunTrial | None = None) -> ChosenEngines:
        def trial() -> list[EngineReport]:
            return try_engines(self._loaded, self.reference, texts())

        reports = trial() if run is None else run(trial)
        if self._not_loaded and not any(report.exact for report in reports):
            self._load_others()
            reports = trial() if run is None else run(trial)
        chosen = choose_engines(reports, self._requested, others=self._not_loaded)
        loaded = {name: engine for name, engine in self._loaded.items() if not isinstance(engine, str)}
        self._chooser = Chooser({name: loaded.get(name) or self._as_engine() for name in chosen.names})
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
        """
        if not len(texts):
            return Ragged(np.empty(0, self.dtype), np.zeros(1, np.int64))
        if not isinstance(texts, Texts):
            texts = Texts.of(list(texts))
        if not self.engines:
            step = max(len(texts) // TRIED_TEXTS, 1)
            self.choose(lambda: texts.to_list()[::step][:TRIED_TEXTS])
        elif self._cache_bytes is not None:
            self.renew(self._cache_bytes)
        ragged, engines = self._chooser.encode(texts)
        if len(ragged.tokens) and int(ragged.tokens.max()) >= self.tokenizer.vocab_size:
            raise EncoderMismatch(
                f"{place(0)}: {engines[0]} gave id {int(ragged.tokens.max())}, "
                f"outside the vocabulary of {self.tokenizer.vocab_size}",
                hint="run it with --engine tokenizers, and report the tokenizer",
            )
        for number in audited(0, len(texts)) if audit is None else audit:
            engine = self.engines[engines[number]]
            kept = audit_document(engine, self.reference, texts[number], ragged[number], place(number))
            self.undecoded += not kept
        ragged = ragged.astype(self.dtype)
        if self.boundary is None:
            return ragged
        return ragged.surround(self.boundary.bos_id, self.boundary.eod_id)

    @property
    def engines(self) -> dict[EngineName, Engine]:
        return self._chooser.engines

    @property
    def encodes_by_reference(self) -> bool:
        return list(self.engines) == ["tokenizers"]

    @property
    def encoded_bytes(self) -> dict[str, int]:
        return self._chooser.encoded_bytes

    def rates(self) -> dict[str, dict[str, float]]:
        """Latest rates in MB/s of processor time by script and engine."""
        return self._chooser.rates()

    def renew(self, cache_bytes: int = 0) -> None:
        """Load engines anew, which empties their caches of words."""
        engines, encoded = self.engines, self.encoded_bytes
        for name in list(engines):
            if encoded.get(name, 0) - self._renewed.get(name, 0) > cache_bytes:
                del engines[name], self._loaded[name]  # before the new one needs memory
                engines[name] = self._loaded[name] = load_engine(name, self.encodable, self._as_engine)
                self._renewed[name] = encoded[name]


def choose_engines(
    reports: list[EngineReport], requested: RequestedEngine, others: Sequence[EngineName] = ()
) -> ChosenEngines:
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
    if names and others:
        return ChosenEngines(
            names, f"loads faster than {' and '.join(others)}, enough for little text", reports
        )
    if names:
        return ChosenEngines(names, f"the only fast one that is exact here ({left_out})", reports)
    return ChosenEngines(["tokenizers"], f"no faster engine is exact here ({left_out})", reports)


@dataclass
class _Engine:
    """Measurements of one engine on one script."""

    groups: int = 0
    seconds: float = 0.0
    bytes_per_second: float = 0.0
    """Moving average of the rate; 0 before the second group, since the first includes one-time costs."""

    def add(self, size: int, seconds: float) -> None:
        rate = size / max(seconds, 1e-9)
        self.groups += 1
        if self.groups >= TURNS:
            memory = MEMORY if self.groups > TURNS else 0.0
            self.bytes_per_second = memory * self.bytes_per_second + (1 - memory) * rate


@dataclass
class _Script:
    """Choice of an engine for one script."""

    engines: dict[EngineName, _Engine]
    chosen: EngineName

    def choose(self) -> EngineName:
        best = max(self.engines, key=lambda name: self.engines[name].bytes_per_second)
        if self.is_measured and self._rate(best) > CLEARLY * self._rate(self.chosen):
            self.chosen = best
        return self.chosen

    @property
    def is_measured(self) -> bool:
        return self._rate(self.chosen) > 0

    def to_try(self) -> EngineName | None:
        """Another engine, if the time for trying has room for it."""
        others = {name: engine.seconds for name, engine in self.engines.items() if name != self.chosen}
        if not self.is_measured or sum(others.values()) >= TRYING * self.engines[self.chosen].seconds:
            return None
        return min(others, key=others.__getitem__)

    def _rate(self, name: EngineName) -> float:
        return self.engines[name].bytes_per_second


@dataclass
class Chooser:
    """Several engines behind the interface of one, chosen by script while they encode.

    No engine is fastest everywhere: which one wins depends on the script, the tokenizer and the processor, on
    Chinese, Japanese and Korean by factors. So each batch is sorted by script (estimated from the bytes per
    character), each group goes to the engine that is fastest on that script, and the results are put back in
    order:

        batch      en zh en en zh          en en en ──> gigatoken ─┐
                   sorted by script        zh zh    ──> fastokens ─┴─> en zh en en zh

    All text goes to one engine at first, the one that needs no warm-up. A small, bounded share of the time is
    spent on parts of groups that the other engines encode, and the choice changes when one of them turns out
    to be clearly faster. "Clearly", since an engine that sees half of the text is only half as warm: between
    two engines of about equal speed, keeping the current one is faster.

    Rates are of processor time, since the time of other programs does not depend on the engine.

    Cost: two clock readings per call; a batch that goes to several engines is copied once more.
    """

    engines: dict[EngineName, Engine]
    encoded_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes of text encoded by each engine."""
    _scripts: dict[int, _Script] = field(default_factory=dict)

    def encode(self, texts: Texts) -> tuple[Ragged, list[EngineName]]:
        if len(self.engines) == 1:
            name, engine = next(iter(self.engines.items()))
            self._count(name, len(texts.data))
            return engine.encode(texts), [name] * len(texts)
        scripts, sizes = script_of(texts), texts.sizes
        calls = self._plan_calls(scripts, sizes)
        if len(calls) == 1:
            name, _ = calls[0]
            return self._encode(name, texts, scripts, sizes), [name] * len(texts)
        parts, encoded_by = [], [calls[0][0]] * len(texts)
        for name, places in calls:
            parts.append(self._encode(name, texts.take(places), scripts[places], sizes[places]))
            for index in places:
                encoded_by[index] = name
        return put_back(parts, [places for _, places in calls]), encoded_by

    def _plan_calls(self, scripts: np.ndarray, sizes: np.ndarray) -> list[tuple[EngineName, np.ndarray]]:
        """Places of the texts for each engine: scripts together if settled, alone while they are measured."""
        totals = np.bincount(scripts, sizes, minlength=len(SCRIPTS))
        main = self._scripts.get(int(totals.argmax()))
        usual = main.chosen if main else self._default()
        calls: list[tuple[EngineName, np.ndarray]] = []
        settled: dict[EngineName, list[np.ndarray]] = {}
        for script in np.flatnonzero(totals).tolist():
            measures = {name: _Engine() for name in self.engines}
            known = self._scripts.setdefault(script, _Script(measures, usual))
            places, name = np.flatnonzero(scripts == script), known.choose()
            if totals[script] >= TOO_LITTLE:
                if not known.is_measured:
                    calls.append((name, places))
                    continue
                tried = _some(places, sizes)
                if sizes[tried].sum() >= TOO_LITTLE and (other := known.to_try()) is not None:
                    calls.append((other, tried))
                    places = np.setdiff1d(places, tried)
            settled.setdefault(name, []).append(places)
        joined = {name: np.concatenate(groups) for name, groups in settled.items()}
        return calls + [(name, np.sort(places)) for name, places in joined.items() if len(places)]

    def _default(self) -> EngineName:
        """Engine of the first texts: the one that needs no warm-up."""
        return "fastokens" if "fastokens" in self.engines else next(iter(self.engines))

    def _encode(self, name: EngineName, texts: Texts, scripts: np.ndarray, sizes: np.ndarray) -> Ragged:
        """Call an engine once; it counts as a measurement if nearly all of the text is of one script."""
        started = time.process_time()
        ragged = self.engines[name].encode(texts)
        seconds = time.process_time() - started
        totals = np.bincount(scripts, sizes)
        total = int(totals.sum())
        for script in np.flatnonzero(totals).tolist():
            measured = self._scripts[script].engines[name]
            measured.seconds += seconds * totals[script] / total
            if total >= TOO_LITTLE and totals[script] > NEARLY_ALL * total:
                measured.add(total, seconds)
        self._count(name, total)
        return ragged

    def _count(self, name: EngineName, size: int) -> None:
        self.encoded_bytes[name] = self.encoded_bytes.get(name, 0) + size

    def rates(self) -> dict[str, dict[str, float]]:
        """Latest rates in MB/s by script and engine, for reports."""
        return {
            SCRIPTS[script]: {
                name: round(one.bytes_per_second / 1e6, 1) for name, one in known.engines.items()
            }
            for script, known in self._scripts.items()
        }


def _some(places: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    small = places[sizes[places] <= TRIED_BYTES]
    return small[np.cumsum(sizes[small]) <= TRIED_BYTES]


def script_of(texts: Texts) -> np.ndarray:
    """Index into `SCRIPTS` for each text, int64 `[D]`, from its bytes per character."""
    characters = texts.characters()
    extra = texts.sizes - characters
    return (extra > 0).astype(np.int64) + (extra > characters // 3)
