"""Engines: three libraries, one protocol, one result.

An engine takes texts and gives their ids as one `Ragged` of uint32, without boundary tokens.
All engines are built from the same tokenizer.json, so which of them runs may change how long a build
takes but never a byte of it; `parity` holds them to that.

    gigatoken    BPE, byte-level or with byte fallback; fastest where words repeat (its cache grows)
    fastokens    BPE, byte-level; fastest cold and on Chinese, Japanese, Korean
    tokenizers   everything; the reference, about 100 times slower

The first two are loaded only for tokenizers within their table of features (`features`), and texts with
characters that one of them is known to read otherwise are encoded by the reference in its place.

An engine is not for use by several threads, and runs in one thread: processes scale, threads do not.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from packline.encoders.features import features_of, read_otherwise, unsupported
from packline.encoders.report import EngineName
from packline.encoders.special import BytesCounter
from packline.encoders.tokenizer import refusals
from packline.errors import TokenizerError
from packline.ragged import Ragged, concatenate, offsets_of
from packline.sources.texts import Texts

if TYPE_CHECKING:
    import tokenizers

FEW = 512
"""A call of gigatoken with a batch costs as much as this many with one text, before anything is encoded."""


class Engine(Protocol):
    """What encodes."""

    name: EngineName

    def encode(self, texts: Texts) -> Ragged:
        """Ids of each text: `tokens` uint32 `[T]`, `offsets` int64 `[D+1]`."""


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
    """fastokens, kept to one thread."""

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
        # Its only way out is a list of Python ints: the one engine that makes an object a token.
        encodings = self._tokenizer.encode_batch_fast(texts.to_list(), add_special_tokens=False)
        return of_documents([np.array(encoding.ids, np.uint32) for encoding in encodings])


class GuardedEngine:
    """An engine, and the reference for texts with characters that the engine reads otherwise.

    Cost: a search for the characters at several GB/s. The reference is loaded with the first such text.
    """

    def __init__(self, engine: Engine, json: str, characters: tuple[bytes, ...]) -> None:
        self.name = engine.name
        self._engine, self._json = engine, json
        self._counter = BytesCounter(characters)
        self._reference: Engine | None = None

    def encode(self, texts: Texts) -> Ragged:
        """Ids of each text."""
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
        TokenizerError: the engine cannot do this kind of tokenizer, or has not been shown to do it as the
            reference does.
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
    """Build several engines at once; for one that cannot do this tokenizer, the reason.

    Loading is native code that lets go of the interpreter, so three take little longer than the slowest.
    """
    from concurrent.futures import ThreadPoolExecutor

    def load(name: EngineName) -> Engine | str:
        try:
            return load_engine(name, json)
        except TokenizerError as error:
            return str(error)

    features_of(json)  # remembered: or each thread would find them
    with ThreadPoolExecutor(len(names)) as pool:
        return dict(zip(names, pool.map(load, names), strict=True))


def of_documents(ids: list[np.ndarray]) -> Ragged:
    """Ids that came document by document."""
    lengths = np.array([len(one) for one in ids], np.int64)
    return Ragged(np.concatenate(ids) if ids else np.empty(0, np.uint32), offsets_of(lengths))


def _as_awkward(texts: Texts) -> Any:
    """The texts as gigatoken takes them, without a copy."""
    import awkward
    from awkward.contents import ListOffsetArray, NumpyArray
    from awkward.index import Index64

    characters = NumpyArray(np.frombuffer(texts.data, np.uint8), parameters={"__array__": "char"})
    strings = ListOffsetArray(Index64(texts.offsets), characters, parameters={"__array__": "string"})
    return awkward.Array(strings)


def _with_one_thread(first_use: Callable[[], object]) -> None:
    """Let a library that sizes its thread pool at first use see one core.

    fastokens heeds no setting for it, but asks how many cores the process may use.
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
