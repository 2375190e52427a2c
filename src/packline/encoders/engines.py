"""Engines: four libraries, one protocol, one result.

    gigatoken    BPE, byte-level or with byte fallback; fast where words repeat (its cache grows)
    fastokens    BPE, byte-level; fast cold, and fastest on Chinese, Japanese, Korean
    nanotoken    WordPiece
    tokenizers   all tokenizers; the reference, about 100 times slower

All but the last are loaded only for tokenizers whose features have all been shown to match the reference.
Texts with characters that an engine is known to handle differently are encoded by the reference.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from packline.encoders import Engine, EngineName
from packline.encoders.features import Encodable, unsupported
from packline.encoders.parity import load_reference
from packline.encoders.special_tokens import BytesCounter
from packline.encoders.tokenizer import refusals
from packline.errors import TokenizerError
from packline.ragged import Ragged, concatenate, offsets_of
from packline.sources.batch import Texts

FEW = 512
"""Number of single-text calls of gigatoken that cost as much as the fixed cost of one batch call."""
MANY = 1 << 16
"""Number of single-text calls that cost about as much as loading awkward, which batch calls need: 0.2 s."""
THREADS = "/proc/self/task"


class GigatokenEngine:
    name: EngineName = "gigatoken"

    def __init__(self, json: str) -> None:
        import gigatoken

        self._tokenizer = gigatoken.Tokenizer.from_json(json)
        self._encoded = 0

    def encode(self, texts: Texts) -> Ragged:
        self._encoded += len(texts)
        if len(texts) <= FEW or (self._encoded < MANY and "awkward" not in sys.modules):
            return _of_documents([self._tokenizer.encode(text) for text in texts.strings or texts.raw()])
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
        # Its tables are made at the first use, in 0.2 s: here, since every forked process would make its own.
        # On one thread, since the pool of threads that it would start there does not survive a fork.
        _with_one_thread(lambda: self._tokenizer.encode_batch_flat(["a", "b"]))

    def encode(self, texts: Texts) -> Ragged:
        tokens, offsets = self._tokenizer.encode_batch_flat(texts.to_list())
        return Ragged(np.frombuffer(tokens, np.uint32), np.frombuffer(offsets, np.int64))


class NanotokenEngine:
    name: EngineName = "nanotoken"

    def __init__(self, json: str) -> None:
        from nanotoken.nanotoken_rs import WordPieceTokenizer

        self._tokenizer = WordPieceTokenizer.from_json(json)

    def encode(self, texts: Texts) -> Ragged:
        strings = texts.strings or texts.raw()
        return Ragged(*self._tokenizer.encode_batch(strings, add_special_tokens=False, parallel=False))


class TokenizersEngine:
    """HF tokenizers: the reference."""

    name: EngineName = "tokenizers"

    def __init__(self, json: str, loaded: Any = None) -> None:
        """Load a tokenizer.json, or use its `tokenizers.Tokenizer` that is loaded already."""
        self.tokenizer = load_reference(json) if loaded is None else loaded

    def encode(self, texts: Texts) -> Ragged:
        # Its only output is a list of Python ints: the one engine that makes one object per token.
        encodings = self.tokenizer.encode_batch_fast(texts.to_list(), add_special_tokens=False)
        return _of_documents([np.array(encoding.ids, np.uint32) for encoding in encodings])


class GuardedEngine:
    """An engine, with the reference for texts that contain characters the engine handles differently.

    Cost: a search for these characters, at several GB/s.
    """

    def __init__(
        self, engine: Engine, characters: tuple[bytes, ...], reference: Callable[[], Engine]
    ) -> None:
        self.name = engine.name
        self._engine, self._load = engine, reference
        self._counter = BytesCounter(characters)
        self._reference: Engine | None = None

    def encode(self, texts: Texts) -> Ragged:
        found = self._counter.count(texts) > 0
        if not found.any():
            return self._engine.encode(texts)
        if self._reference is None:
            self._reference = self._load()
        others, ours = np.flatnonzero(found), np.flatnonzero(~found)
        parts = [self._reference.encode(texts.take(others))]
        if len(ours):
            parts.append(self._engine.encode(texts.take(ours)))
        return put_back(parts, [others, ours])


def put_back(parts: Sequence[Ragged], places: Sequence[np.ndarray]) -> Ragged:
    """Documents of several parts in one order, by the place of each."""
    order = np.concatenate(places)
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return concatenate(parts).take(back)


ENGINES: dict[EngineName, Callable[[str], Engine]] = {
    "gigatoken": GigatokenEngine,
    "fastokens": FastokensEngine,
    "nanotoken": NanotokenEngine,
    "tokenizers": TokenizersEngine,
}


def load_engine(
    name: EngineName,
    tokenizer: Encodable,
    reference: Callable[[], TokenizersEngine] | None = None,
) -> Engine:
    """Build an engine.

    Args:
        reference: returns the reference, for texts that the engine would read differently; called when it is
            first needed. By default it is loaded then.
    """
    if (feature := unsupported(name, tokenizer.features)) is not None:
        raise TokenizerError(
            f"{name} is not used for this tokenizer: it has not been shown to equal the reference with"
            f" the feature '{feature}'"
        )
    with refusals(f"{name} cannot do this tokenizer"):
        load = reference or (lambda: TokenizersEngine(tokenizer.json))
        engine = ENGINES[name](tokenizer.json)
    characters = read_otherwise(name, tokenizer.features)
    return GuardedEngine(engine, characters, load) if characters else engine


def load_engines(
    names: tuple[EngineName, ...],
    tokenizer: Encodable,
    reference: Callable[[], TokenizersEngine] | None = None,
) -> dict[EngineName, Engine | str]:
    """Build several engines in parallel; one that does not support the tokenizer is replaced by the reason.

    See `load_engine` for `reference`.

    fastokens loads without the interpreter's lock, so the others are loaded meanwhile.
    """
    from concurrent.futures import ThreadPoolExecutor

    def load(name: EngineName) -> Engine | str:
        try:
            return load_engine(name, tokenizer, reference)
        except TokenizerError as error:
            return str(error)

    with ThreadPoolExecutor(len(names)) as pool:
        return dict(zip(names, pool.map(load, names), strict=True))


def _of_documents(ids: list[np.ndarray]) -> Ragged:
    lengths = np.array([len(one) for one in ids], np.int64)
    return Ragged(np.concatenate(ids) if ids else np.empty(0, np.uint32), offsets_of(lengths))


def _as_awkward(texts: Texts) -> Any:
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
    before = set(os.listdir(THREADS)) if os.path.isdir(THREADS) else set()
    os.sched_setaffinity(0, {min(allowed)})
    try:
        first_use()
    finally:
        os.sched_setaffinity(0, allowed)
        for thread in set(os.listdir(THREADS)) - before if before else ():
            os.sched_setaffinity(int(thread), allowed)


_MARKS = (
    "dfbd e0a2 e0a3 e0a7be e0b0bc e0b4bb e0b4bc e0baba e19c95 e1aabf e1ab e1b7b6 e1b7b7 e1b7b8 e1b7b9 e1b7ba"
    " eaa0ac f09097 f090b4 f090b5 f090ba f090bb f090bd f090be f09181 f0918cbb f0918e f0918f f09191 f091a0"
    " f091a4 f091a5 f091a7 f091a8 f091a9 f091aa f091b5 f091b6 f091bc f091bd f09684 f096b5 f096bf f09e82"
    " f09e84 f09e8a f09e8b f09e93 f09e97 f09e9b cdbe e1bfaf e284aa"
)
MARKS = tuple(bytes.fromhex(beginning) for beginning in _MARKS.split())
"""UTF-8 prefixes of the combining characters (and a few others) added to Unicode since version 10.

The reference's NFC does not know them; gigatoken's does, and orders and composes them. The last three become
ASCII: gigatoken looks for added tokens both before and after NFC.
"""
MONGOLIAN_SEPARATOR = ("\u180e".encode(),)
"""White space in the regular expressions of fastokens, but not in those of the reference."""


def read_otherwise(name: EngineName, features: Collection[str]) -> tuple[bytes, ...]:
    """UTF-8 prefixes of the strings for which the ids of an engine may differ from the reference's.

    >>> len(read_otherwise("gigatoken", ["normalizer NFC"])), read_otherwise("fastokens", ["normalizer NFC"])
    (53, ())
    """
    if name == "gigatoken" and "normalizer NFC" in features:
        return MARKS
    if name == "fastokens" and any(" Split " in feature for feature in features):
        return MONGOLIAN_SEPARATOR
    return ()
