"""Engines: three libraries, one protocol, one result.

An engine encodes texts to ids, as one `Ragged` of uint32 without boundary tokens. All engines are built from
the same tokenizer.json, so the choice of engine affects the duration of a build but never its output;
`parity` checks that.

    gigatoken    BPE, byte-level or with byte fallback; fastest where words repeat (its cache grows)
    fastokens    BPE, byte-level; fastest cold and on Chinese, Japanese, Korean
    tokenizers   all tokenizers; the reference, about 100 times slower

The first two are loaded only for tokenizers whose features are all in their table (`features`). Texts with
characters that one of them is known to handle differently are encoded by the reference instead. An engine is
not thread-safe and runs in one thread: processes scale, threads do not.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from packline.encoders import EngineName
from packline.encoders.features import read_otherwise, tokenizer_features, unsupported
from packline.encoders.special import BytesCounter
from packline.encoders.tokenizer import refusals
from packline.errors import TokenizerError
from packline.ragged import Ragged, concatenate, offsets_of
from packline.sources.batch import Texts

if TYPE_CHECKING:
    import tokenizers

FEW = 512
"""Number of single-text calls of gigatoken that cost as much as the fixed cost of one batch call."""


class Engine(Protocol):
    """Interface of an encoding engine."""

    name: EngineName

    def encode(self, texts: Texts) -> Ragged:
        """Encode each text: `tokens` uint32 `[T]`, `offsets` int64 `[D+1]`."""


class GigatokenEngine:
    """gigatoken on the calling thread."""

    name: EngineName = "gigatoken"

    def __init__(self, json: str) -> None:
        import awkward  # noqa: F401  gigatoken needs it for its first result: load it now, once
        import gigatoken

        self._tokenizer = gigatoken.Tokenizer.from_json(json)

    def encode(self, texts: Texts) -> Ragged:
        if len(texts) <= FEW:
            return of_documents([self._tokenizer.encode(text) for text in texts.strings or texts.raw()])
        layout = self._tokenizer.encode_batch(_as_awkward(texts), parallel=False).layout
        offsets = np.asarray(layout.offsets.data, np.int64)
        tokens = np.asarray(layout.content.data)
        return Ragged(tokens[offsets[0] : offsets[-1]], offsets - offsets[0])


class FastokensEngine:
    """fastokens, limited to one thread."""

    name: EngineName = "fastokens"

    def __init__(self, json: str) -> None:
        from fastokens._native import Tokenizer

        self._tokenizer = Tokenizer.from_json_str(json)
        self._single_threaded = False

    def encode(self, texts: Texts) -> Ragged:
        if not self._single_threaded:
            # Not before the first use: a pool of threads does not survive the fork of its process.
            _with_one_thread(lambda: self._tokenizer.encode_batch_flat(["a", "b"]))
            self._single_threaded = True
        tokens, offsets = self._tokenizer.encode_batch_flat(texts.to_list())
        return Ragged(np.frombuffer(tokens, np.uint32), np.frombuffer(offsets, np.int64))


class TokenizersEngine:
    """HF tokenizers: the reference."""

    name: EngineName = "tokenizers"

    def __init__(self, json: str) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        import tokenizers

        self._tokenizer: tokenizers.Tokenizer = tokenizers.Tokenizer.from_str(json)

    def encode(self, texts: Texts) -> Ragged:
        # Its only output is a list of Python ints: the one engine that makes one object per token.
        encodings = self._tokenizer.encode_batch_fast(texts.to_list(), add_special_tokens=False)
        return of_documents([np.array(encoding.ids, np.uint32) for encoding in encodings])


class GuardedEngine:
    """An engine, with the reference for texts that contain characters the engine handles differently.

    Cost: a search for these characters, at several GB/s. The reference is loaded at the first such text.
    """

    def __init__(self, engine: Engine, json: str, characters: tuple[bytes, ...]) -> None:
        self.name = engine.name
        self._engine, self._json = engine, json
        self._counter = BytesCounter(characters)
        self._reference: Engine | None = None

    def encode(self, texts: Texts) -> Ragged:
        """Encode each text."""
        found = self._counter.count(texts) > 0
        if not found.any():
            return self._engine.encode(texts)
        if self._reference is None:
            self._reference = TokenizersEngine(self._json)
        others, ours = np.flatnonzero(found), np.flatnonzero(~found)
        parts = [self._reference.encode(texts.take(others))]
        if len(ours):
            parts.append(self._engine.encode(texts.take(ours)))
        places = np.empty(len(texts), np.int64)
        places[np.concatenate([others, ours])] = np.arange(len(texts))
        return concatenate(parts).take(places)


ENGINES: dict[EngineName, Callable[[str], Engine]] = {
    "gigatoken": GigatokenEngine,
    "fastokens": FastokensEngine,
    "tokenizers": TokenizersEngine,
}


def load_engine(name: EngineName, json: str) -> Engine:
    """Build an engine from a tokenizer.json.

    Raises:
        TokenizerError: the engine does not support this kind of tokenizer, or has not been shown to match the
            reference on it.
    """
    if (feature := unsupported(name, json)) is not None:
        raise TokenizerError(
            f"{name} is not used for this tokenizer: it has not been shown to equal the reference with"
            f" the feature '{feature}'"
        )
    with refusals(f"{name} cannot do this tokenizer"):
        engine = ENGINES[name](json)
    characters = read_otherwise(name, json)
    return GuardedEngine(engine, json, characters) if characters else engine


def load_engines(names: tuple[EngineName, ...], json: str) -> dict[EngineName, Engine | str]:
    """Build several engines in parallel; one that does not support the tokenizer is replaced by the reason.

    Loading is native code that releases the GIL, so three engines take little longer than the slowest one.
    """
    from concurrent.futures import ThreadPoolExecutor

    def load(name: EngineName) -> Engine | str:
        try:
            return load_engine(name, json)
        except TokenizerError as error:
            return str(error)

    tokenizer_features(json)  # cached, so that the threads do not each compute them
    with ThreadPoolExecutor(len(names)) as pool:
        return dict(zip(names, pool.map(load, names), strict=True))


def of_documents(ids: list[np.ndarray]) -> Ragged:
    """Combine the ids of single documents."""
    lengths = np.array([len(one) for one in ids], np.int64)
    return Ragged(np.concatenate(ids) if ids else np.empty(0, np.uint32), offsets_of(lengths))


def _as_awkward(texts: Texts) -> Any:
    """The texts in gigatoken's input format, without a copy."""
    import awkward
    from awkward.contents import ListOffsetArray, NumpyArray
    from awkward.index import Index64

    characters = NumpyArray(np.frombuffer(texts.data, np.uint8), parameters={"__array__": "char"})
    strings = ListOffsetArray(Index64(texts.offsets), characters, parameters={"__array__": "string"})
    return awkward.Array(strings)


def _with_one_thread(first_use: Callable[[], object]) -> None:
    """Limit a library that sizes its thread pool at first use to one core.

    fastokens has no setting for this; it uses the CPU affinity of the process.
    """
    if not hasattr(os, "sched_setaffinity"):
        first_use()
        return
    allowed = os.sched_getaffinity(0)
    before = set(_threads())
    os.sched_setaffinity(0, {min(allowed)})
    try:
        first_use()
    finally:
        os.sched_setaffinity(0, allowed)
        for thread in set(_threads()) - before:
            os.sched_setaffinity(thread, allowed)


def _threads() -> list[int]:
    try:
        return [int(thread) for thread in os.listdir("/proc/self/task")]
    except OSError:
        return []
