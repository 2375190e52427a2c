"""Engines: four libraries, one protocol, one result; and the features for which each was shown to be exact.

    gigatoken    BPE, byte-level or with byte fallback; fast where words repeat (its cache grows)
    fastokens    BPE, byte-level; fast cold, and fastest on Chinese, Japanese, Korean
    nanotoken    WordPiece
    tokenizers   all tokenizers; the reference, about 100 times slower

A fast engine ignores what it does not know in a tokenizer.json, which changes the ids of only a few texts; a
sample need not contain them. So it is loaded only if `SUPPORTED` has all features of the tokenizer: those for
which `tests/encoders/tokenizer_fuzzer.py` found equal ids on hostile text. Normalizer and pre-tokenizer are
one feature each, with all their settings, so an unknown setting makes a feature that is in no table. Texts
with characters that an engine is known to handle differently are encoded by the reference.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import msgspec
import numpy as np

from packline.encoders import Engine, EngineName
from packline.encoders.parity import load_reference
from packline.encoders.special_tokens import BytesCounter, added_token_features, json_to_encode
from packline.encoders.tiktoken import LETTERS, PATTERNS, SPLIT_50K
from packline.encoders.tokenizer import Tokenizer, parse_json, refusals, steps_of
from packline.errors import TokenizerError
from packline.ragged import Ragged, concatenate, offsets_of
from packline.recipe import Engine as RequestedEngine
from packline.sources.batch import Texts

LETTERS_OF_TEXT = frozenset(
    letter for letter, byte in LETTERS.items() if byte < 0xF5 and byte not in (0xC0, 0xC1)
)
"""Letters of the bytes that occur in UTF-8."""
BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))

SPLITS: dict[str, str] = {
    SPLIT_50K: "gpt2",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+": "cl100k",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+": "qwen3.5",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+": "tekken",
    r"\p{N}{1,3}": "3 digits",
    "[一-龥\u3040-ゟ゠-ヿ]+": "deepseek cjk",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+": "deepseek words",
    "[0-9][0-9][0-9]": "3 ASCII digits",
} | {pattern.expression: name for name, pattern in PATTERNS.items() if name not in ("gpt2", "gpt4")}
"""Names of published regular expressions; any other expression is a separate feature."""


class Encodable(msgspec.Struct, frozen=True):
    """A tokenizer as engines and reference load it: made once for a build, and sent to its processes."""

    json: str
    """Its tokenizer.json."""
    features: tuple[str, ...]

    @classmethod
    def of(cls, json: str) -> Encodable:
        return cls(json, tokenizer_features(json))

    @classmethod
    def of_tokenizer(cls, tokenizer: Tokenizer, *, parse: bool) -> Encodable:
        return cls.of(json_to_encode(tokenizer, parse=parse))


@lru_cache(maxsize=1)
def tokenizer_features(json: str) -> tuple[str, ...]:
    """Features of a tokenizer.json that affect ids, each once, in processing order."""
    whole = parse_json(json)
    normalizer = _chain(whole.get("normalizer"), "normalizers")
    pre_tokenizer = _chain(whole.get("pre_tokenizer"), "pretokenizers")
    model, added = whole["model"], whole.get("added_tokens") or []
    found = [
        *_of_model(model, added, "ByteLevel" in normalizer + pre_tokenizer),
        f"normalizer {normalizer}",
        f"pre-tokenizer {pre_tokenizer}",
        *added_token_features(added, normalizer, "add_prefix_space" in pre_tokenizer),
    ]
    return tuple(dict.fromkeys(found))


def _chain(step: dict[str, Any] | None, inner: str) -> str:
    return " + ".join(map(_spelled, steps_of(step, inner))) or "none"


def _spelled(step: dict[str, Any]) -> str:
    """Description of a step and its settings, without default settings."""
    rest = dict(step)
    kind = str(rest.pop("type", "?"))
    words = [kind]
    if kind == "ByteLevel":
        rest.pop("trim_offsets", None)
        words += ["add_prefix_space"] if rest.pop("add_prefix_space", True) else []
        words += [] if rest.pop("use_regex", True) else ["without words"]
    elif kind == "Split":
        pattern = rest.pop("pattern", None) or {}
        expression = pattern.get("Regex")
        words.append(SPLITS.get(expression, repr(expression)) if expression else repr(pattern.get("String")))
        behavior, invert = str(rest.pop("behavior", "?")), rest.pop("invert", False)
        words += [behavior] if behavior != "Isolated" else []
        words += ["inverted"] if invert else []
    elif kind == "Metaspace":
        older = {True: "always", False: "never", None: "always"}[rest.pop("add_prefix_space", None)]
        words.append(rest.pop("prepend_scheme", None) or older)
        words += ["split"] if rest.pop("split", True) else []
        words += [] if rest.get("replacement") == "▁" else [repr(rest.get("replacement"))]
        rest.pop("replacement", None)
    elif kind == "Replace":
        pattern = rest.pop("pattern", None) or {}
        words += [repr(pattern.get("String", pattern)), "by", repr(rest.pop("content", None))]
    elif kind == "Precompiled":
        rest.pop("precompiled_charsmap", None)  # maps single graphemes, whatever they are
    elif kind == "Prepend":
        words.append(repr(rest.pop("prepend", None)))
    return " ".join([*words, *(f"{key}={repr(value)[:40]}" for key, value in sorted(rest.items()))])


def _of_model(model: dict[str, Any], added: list[dict[str, Any]], byte_level: bool) -> Iterator[str]:
    kind = model.get("type", "BPE")
    yield f"model {kind}"
    vocab = model["vocab"]
    if kind != "BPE" or not isinstance(vocab, dict):
        return
    fallback = bool(model.get("byte_fallback"))
    yield "model of bytes" if byte_level else "model byte_fallback" if fallback else "model of characters"
    if byte_level and fallback:
        yield "model of bytes with byte_fallback"
    if fallback and model.get("ignore_merges"):
        yield "model byte_fallback with ignore_merges"
    settings = ("ignore_merges", "unk_token", "fuse_unk", "continuing_subword_prefix", "end_of_word_suffix")
    for setting in (*settings, "dropout"):
        if model.get(setting):
            yield f"model {setting}"
    if byte_level:
        if not vocab.keys() >= LETTERS_OF_TEXT:
            yield "byte without a token"
        yield from _spelled_otherwise(vocab, {token.get("content") for token in added})
    elif fallback and not vocab.keys() >= BYTE_TOKENS:
        yield "byte without a token"
    yield from _of_merges(vocab, model.get("merges") or [])


def _spelled_otherwise(vocab: dict[str, int], added: set[Any]) -> Iterator[str]:
    """Tokens of a byte-level vocabulary that are not written in the byte-level alphabet."""
    own = [token for token in vocab if token not in added]
    if LETTERS.keys() >= set("".join(own)):
        return
    others = [token for token in own if not LETTERS.keys() >= set(token)]
    if any(" " not in token for token in others):
        yield "token spelled with other letters than bytes have"
    elif others:
        yield "token spelled with a space"


def _of_merges(vocab: dict[str, int], merges: list[Any]) -> Iterator[str]:
    ids = set(vocab.values())
    if len(ids) < len(vocab):
        yield "several tokens of one id"
    if vocab and max(ids) >= len(vocab):
        yield "ids with gaps"
    results = [one.replace(" ", "") if isinstance(one, str) else "".join(one) for one in merges]
    made = [-1 if id is None else id for id in map(vocab.get, results)]
    if len(set(made)) < len(made):
        if len({one if isinstance(one, str) else tuple(one) for one in merges}) < len(merges):
            yield "merge stated twice"
        yield "several merges of one token"
    if made != sorted(made):
        yield "merges not in the order of ids"


WITH_SPLIT = ("gpt2", "llama3", "qwen2", "qwen3.5", "o200k", "tekken")
COMMON = frozenset(
    {
        "model BPE",
        "model of bytes",
        "model ignore_merges",
        "token spelled with a space",
        "merges not in the order of ids",
        "several merges of one token",
        "normalizer none",
        "pre-tokenizer ByteLevel",
        "pre-tokenizer ByteLevel add_prefix_space",
        *(f"pre-tokenizer Split {name} + ByteLevel without words" for name in WITH_SPLIT),
        *("added token", "added token lstrip", "added token rstrip"),
    }
)
_BERT = [
    f"normalizer BertNormalizer clean_text={clean} handle_chinese_chars={chinese} lowercase={lower}"
    f" strip_accents={strip}"
    for clean, chinese, lower, strip in product(*3 * [(True, False)], (True, False, None))
]
SUPPORTED: dict[EngineName, frozenset[str]] = {
    "gigatoken": COMMON
    | {
        "ids with gaps",
        "normalizer NFC",
        "model byte_fallback",
        "model unk_token",
        "model fuse_unk",
        "normalizer Prepend '▁' + Replace ' ' by '▁'",
        "normalizer Replace ' ' by '▁'",
        "pre-tokenizer none",
        *(f"pre-tokenizer Metaspace {prepend}" for prepend in ("always", "first", "never")),
        *(f"pre-tokenizer Metaspace {prepend} split" for prepend in ("always", "first", "never")),
        "pre-tokenizer Split ' ' MergedWithPrevious",
        "added token normalized, with Prepend '▁' + Replace ' ' by '▁'",
        "added token normalized, with Replace ' ' by '▁'",
    },
    "fastokens": COMMON
    | {
        "normalizer NFC",
        "pre-tokenizer Split cl100k + ByteLevel without words",
        "pre-tokenizer Split 3 digits + Split deepseek cjk + Split deepseek words + ByteLevel without words",
        "pre-tokenizer Split nanochat + ByteLevel without words",
        *(f"pre-tokenizer Digits individual_digits={single} + ByteLevel" for single in (True, False)),
        "added token single_word",
        "added token normalized, of characters that NFC makes or changes",
        "added token that is not ASCII, with NFC",
    },
    "nanotoken": frozenset(
        {
            *("model WordPiece", "normalizer none", *_BERT),
            *("pre-tokenizer BertPreTokenizer", "pre-tokenizer Whitespace", "pre-tokenizer WhitespaceSplit"),
            *("added token", "added token lstrip", "added token rstrip"),
        }
    ),
}
"""Features on which each fast engine has been shown to match the reference."""

BY_LOADING: tuple[EngineName, ...] = ("gigatoken", "fastokens", "nanotoken")
"""The fast engines, the one that loads in less time first: 0.4 and 1.2 s for 150,000 tokens."""


def fast_engine(requested: RequestedEngine, features: Collection[str]) -> EngineName | None:
    """Engine for little text that is faster than the reference; None if there is none."""
    names = BY_LOADING if requested == "auto" else (requested,)
    return next((name for name in names if name in SUPPORTED and unsupported(name, features) is None), None)


def unsupported(name: EngineName, features: Collection[str]) -> str | None:
    """First feature of a tokenizer that rules out an engine; None if there is none."""
    if name not in SUPPORTED:
        return None
    return next((feature for feature in features if feature not in SUPPORTED[name]), None)


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
