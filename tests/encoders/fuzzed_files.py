"""Tokenizer files of every kind, made from a seed: a small model, and a random choice for each other part."""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from packline.encoders import tiktoken
from packline.encoders.engines import SPLITS
from packline.encoders.tiktoken import LETTERS
from packline.encoders.tokenizer import Tokenizer
from packline.vocabulary.texts import LANGUAGES, PASSAGES

BYTES = {f"<0x{byte:02X}>" for byte in range(256)}
SPECIAL = ["<unk>", "<s>", "</s>", "<|endoftext|>"]
CONTENTS = [
    "foo", "foobar", "bar", "ob", "oo", "the", "he", "The", "<tool>", "<tool", "tool>", "  ", "   ", "\n",
    "\n\n", "\t", "é", "e\u0301", "日", "'s", "1", "12", "a", ".", "K", ";", "▁", "Ġ", "<|im_start|>",
    "x y", " z", "w ", "\u2028", "ſ", "İ", "ﬁ", "각", "<0x41>", "a.b", "_", "-foo-", "ß", "\ufffd", "…",
    "\u0301", "🧑‍🚀", "qzx", "",
]  # fmt: skip
LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GPT2 = {**LEVEL, "use_regex": True}


BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
BERT |= {"strip_accents": None, "lowercase": True}
DEEPSEEK = ("3 digits", "deepseek cjk", "deepseek words")
SPACE = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}


def make_contents(rng: Random) -> dict[str, Any]:
    """A tokenizer.json as builtins; not all of them can be read."""
    kinds = ["bytes"] * 10 + ["pieces"] * 5 + ["characters", *["Unigram", "WordPiece"] * 3, "WordLevel"]
    kind = rng.choice(kinds)
    plain = rng.random() < 0.6  # most parts as published tokenizers have them
    model = _model(rng, kind, plain)
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    truncation = rng.choice([None, None, cut])
    steps = _normalizer(rng, kind, plain), _pre_tokenizer(rng, kind, plain), _decoder(rng, kind)
    added_tokens = _added_tokens(rng, model, plain)
    contents = tiktoken.contents_of(added_tokens, *steps, model) | {"truncation": truncation}
    if added_tokens and rng.random() < 0.3:
        contents["post_processor"] = _template(added_tokens[0])
    elif rng.random() < 0.3:
        contents["post_processor"] = GPT2
    return contents


@cache
def _trained(kind: str) -> str:
    """A small model as JSON."""
    quiet: dict[str, Any] = {"show_progress": False}
    unknown = quiet | {"special_tokens": ["<unk>"]}
    alphabet = quiet | {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    pieces = (
        models.BPE(unk_token="<unk>"),
        pre_tokenizers.Metaspace(),
        trainers.BpeTrainer(vocab_size=900, limit_alphabet=120, **unknown),
    )
    parts: dict[str, tuple[Any, Any, Any]] = {
        "bytes": (
            models.BPE(),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            trainers.BpeTrainer(vocab_size=900, **alphabet),
        ),
        "pieces": pieces,
        "characters": pieces,
        "Unigram": (
            models.Unigram(),
            pre_tokenizers.Metaspace(),
            trainers.UnigramTrainer(vocab_size=600, unk_token="<unk>", **unknown),
        ),
        "WordPiece": (
            models.WordPiece(unk_token="<unk>"),
            pre_tokenizers.BertPreTokenizer(),
            trainers.WordPieceTrainer(vocab_size=600, **unknown),
        ),
        "WordLevel": (
            models.WordLevel(unk_token="<unk>"),
            pre_tokenizers.Whitespace(),
            trainers.WordLevelTrainer(vocab_size=600, **unknown),
        ),
    }
    model, pre_tokenizer, trainer = parts[kind]
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator([*PASSAGES.values(), *LANGUAGES.values()], trainer)
    return json.dumps(json.loads(tokenizer.to_str())["model"])


def _model(rng: Random, kind: str, plain: bool) -> dict[str, Any]:
    model: dict[str, Any] = json.loads(_trained(kind))
    if kind not in ("bytes", "pieces", "characters"):
        return model
    if rng.random() < 0.4:
        model = _random_merges(rng, kind)
    if kind == "pieces":
        model |= {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": rng.random() < 0.7}
        _renumber(model, [*SPECIAL[:3], *sorted(BYTES), *model["vocab"]])
    model["dropout"] = rng.choice([None, None, 0.0, 0.5])
    if rng.random() < 0.3:
        model["ignore_merges"] = True
    if rng.random() < 0.15:
        order = list(model["vocab"])
        rng.shuffle(order)
        _renumber(model, order)
    if rng.random() < 0.1:
        model["vocab"]["Ġgap"] = len(model["vocab"]) + rng.randrange(1, 50)
    if plain:
        return model
    odd = rng.random()
    if odd < 0.2:
        model["unk_token"] = "<unk>"
        model["vocab"].setdefault("<unk>", len(model["vocab"]))
        model["fuse_unk"] = rng.random() < 0.5
    elif odd < 0.3:
        model["continuing_subword_prefix"] = "##"  # the reference ends the process for others
    elif odd < 0.4:
        model["end_of_word_suffix"] = rng.choice(["</w>", "e"])
    elif odd < 0.55:
        gone = rng.choice(sorted(LETTERS if kind == "bytes" else BYTES))
        if model["vocab"].pop(gone, None) is not None:
            model["merges"] = [
                pair for pair in model["merges"] if gone not in pair and gone not in "".join(pair)
            ]
    elif odd < 0.7:
        for raw in ("日", "é", "the cat", "<unused 1>"):
            model["vocab"].setdefault(raw, len(model["vocab"]))
    elif odd < 0.8:
        model["merges"] = [*model["merges"], *model["merges"][:3]]
    elif odd < 0.9:
        model["merges"] = [" ".join(pair) for pair in model["merges"] if " " not in "".join(pair)]
    return model


def _renumber(model: dict[str, Any], order: list[str]) -> None:
    model["vocab"] = {token: number for number, token in enumerate(dict.fromkeys(order))}


def _random_merges(rng: Random, kind: str) -> dict[str, Any]:
    """Merges over few letters, so that many of them compete for one text."""
    letters = ["a", "b", "t", "h", "e", "1", "."]
    letters += ["Ġ", "Ċ", "Ã", "©"] if kind == "bytes" else ["▁", "日"]
    base = sorted(LETTERS) if kind == "bytes" else ["<unk>", *letters, "é", "s", "o", "f", "r"]
    tokens, merges = list(letters), []
    for _ in range(rng.choice((5, 30, 120))):
        pair = (rng.choice(tokens), rng.choice(tokens))
        if pair in merges or len("".join(pair)) > 12:
            continue
        merges.append(pair)
        if "".join(pair) not in tokens:
            tokens.append("".join(pair))
    if rng.random() < 0.5:  # as converted tokenizers: every way to make a token
        made = [token for token in tokens if len(token) > 1]
        merges = [
            (token[:at], token[at:])
            for token in made
            for at in range(1, len(token))
            if token[:at] in tokens and token[at:] in tokens
        ]
        if rng.random() < 0.3:
            rng.shuffle(merges)
    order = [*base, *tokens]
    if rng.random() < 0.5:
        order = [*base, *("".join(pair) for pair in merges), *tokens]
    model = tiktoken.bpe_model({}, [list(pair) for pair in merges])
    _renumber(model, order)
    return model


def _normalizer(rng: Random, kind: str, plain: bool) -> dict[str, Any] | None:
    metaspace: list[dict[str, Any]] = [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]
    if kind == "pieces" and rng.random() < 0.5:
        both: dict[str, Any] = {"type": "Sequence", "normalizers": metaspace}
        return rng.choice([both, metaspace[1]])
    if plain and kind == "WordPiece":
        bert = {name: rng.random() < 0.5 for name in ("clean_text", "handle_chinese_chars", "lowercase")}
        return {"type": "BertNormalizer", **bert, "strip_accents": rng.choice([None, True, False])}
    if plain:
        return {"type": "NFC"} if rng.random() < 0.25 else None
    names = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel")
    one: list[dict[str, Any]] = [{"type": name} for name in names]
    one += [{"type": "Strip", "strip_left": True, "strip_right": rng.random() < 0.5}, *metaspace]
    one += [{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": rng.choice(["▁", " "])}, BERT]
    chosen = rng.sample(one, rng.choice((1, 1, 2)))
    return chosen[0] if len(chosen) == 1 else {"type": "Sequence", "normalizers": chosen}


def _split(expression: str, behavior: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": behavior, "invert": invert}


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _metaspace(rng: Random) -> dict[str, Any]:
    scheme = rng.choice(["first", "always", "never"])
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": rng.random() < 0.5}


def _pre_tokenizer(rng: Random, kind: str, plain: bool) -> dict[str, Any] | None:
    digits = {"type": "Digits", "individual_digits": rng.random() < 0.6}
    punctuation = {"type": "Punctuation", "behavior": rng.choice(["Isolated", "Contiguous"])}
    if kind in ("pieces", "characters") and (plain or rng.random() < 0.5):
        return rng.choice([None, _metaspace(rng), _metaspace(rng), SPACE])
    if kind == "Unigram" and plain:
        return _metaspace(rng)
    if kind in ("WordPiece", "WordLevel") and plain:
        return {"type": rng.choice(["BertPreTokenizer", "Whitespace", "WhitespaceSplit"])}
    splits = list(SPLITS)
    whole = [expression for expression in splits if "\\s+" in expression]
    three = [expression for expression in splits if SPLITS[expression] in DEEPSEEK]
    common = [
        GPT2,
        GPT2,
        {**GPT2, "add_prefix_space": True},
        *(_sequence(_split(expression), LEVEL) for expression in whole),
        _sequence(*map(_split, three), LEVEL),
        _sequence(digits, GPT2),
        _sequence(punctuation, GPT2, digits, _split("[0-9][0-9][0-9]")),
    ]
    if plain:
        return rng.choice(common)
    expression = rng.choice(splits)
    behavior = rng.choice(["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"])
    return rng.choice(
        [
            LEVEL,
            {**LEVEL, "add_prefix_space": True},
            _sequence(_split(expression), {**LEVEL, "add_prefix_space": True}),
            _sequence(_split(expression), GPT2),
            _sequence(_split(expression, behavior, rng.random() < 0.3), LEVEL),
            _sequence(_split(r"\p{L}+"), LEVEL),
            _sequence(_split(r"\s+|\w+|[^\w\s]+"), LEVEL),
            _sequence(_split(r" ?\p{L}+| ?[^\s\p{L}]+|\s+", "Removed", True), LEVEL),
            _sequence(_split(expression), digits, LEVEL),
            _sequence(digits, _split(expression), LEVEL),
            _sequence({"type": "WhitespaceSplit"}, LEVEL),
            _sequence(punctuation, LEVEL),
            _sequence(LEVEL),
            _metaspace(rng),
            {**SPACE, "behavior": "MergedWithNext"},
            {"type": "BertPreTokenizer"},
            {"type": "UnicodeScripts"},
            None,
        ]
    )


def _decoder(rng: Random, kind: str) -> dict[str, Any] | None:
    if rng.random() < 0.2:
        return rng.choice([None, {"type": "Fuse"}, {"type": "WordPiece", "prefix": "##", "cleanup": True}])
    if kind == "bytes":
        return GPT2
    pieces = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return json.loads(pieces.__getstate__()) if kind == "pieces" else None


def _added_tokens(rng: Random, model: dict[str, Any], plain: bool) -> list[dict[str, Any]]:
    vocab = model["vocab"]
    known = (
        dict(vocab) if isinstance(vocab, dict) else {piece: number for number, (piece, _) in enumerate(vocab)}
    )
    contents = rng.sample(SPECIAL, rng.randrange(3)) + rng.sample(CONTENTS, rng.choice((0, 0, 1, 2, 5)))
    if rng.random() < 0.2:
        contents += rng.sample(list(known), min(3, len(known)))
    odds = 0.0 if rng.random() < 0.4 else 0.25
    found: list[dict[str, Any]] = []
    size, largest = len(known), -1
    for content in dict.fromkeys(contents):
        if not content and plain:
            continue
        number = known.get(content, largest + 1 if largest >= size else size)
        flags = {flag: rng.random() < odds for flag in ("lstrip", "rstrip", "normalized")}
        flags["single_word"] = not plain and rng.random() < odds
        found.append({"id": number, "content": content, **flags, "special": rng.random() < 0.4})
        largest = max(largest, number) if content else largest
    found.sort(key=lambda token: token["id"])
    if not plain and found and rng.random() < 0.05:
        found[-1]["id"] += rng.choice((-1, 1, 7))
    return found


def _template(token: dict[str, Any]) -> dict[str, Any]:
    special = {"SpecialToken": {"id": token["content"], "type_id": 0}}
    single = [special, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    ids = {"id": token["content"], "ids": [token["id"]], "tokens": [token["content"]]}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": {token["content"]: ids},
    }


def added(content: str, number: int, **flags: bool) -> dict[str, Any]:
    """An entry of `added_tokens`."""
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return {"id": number, "content": content, **usual, **flags}


def tokenizer_of(contents: dict[str, Any], **settings: Any) -> Tokenizer:
    """The tokenizer of a tokenizer.json, as if it had been loaded."""
    tokens = contents.get("added_tokens") or []
    ids = [*contents["model"]["vocab"].values(), *(token["id"] for token in tokens)]
    found = {"name": "tiny", "kind": "huggingface", "vocab_size": 1 + max(ids)}
    special = {token["content"]: token["id"] for token in tokens if token["special"]}
    return Tokenizer(**found | {"json": json.dumps(contents), "special_tokens": special} | settings)


def contents_of(kind: str, **parts: Any) -> dict[str, Any]:
    """A small tokenizer: `bytes`, `pieces`, `characters`, `Unigram`, `WordPiece` or `WordLevel`.

    Args:
        parts: of the file, by name; of the model, with `model_` before the name. `tokens` are strings of
            added tokens, or such strings and their flags.
    """
    model = json.loads(_trained(kind))
    if kind == "pieces":
        model |= {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
        _renumber(model, [*SPECIAL[:3], *sorted(BYTES), *model["vocab"]])
    own = ((name.removeprefix("model_"), name) for name in parts if name.startswith("model_"))
    model |= {setting: parts[name] for setting, name in own}
    names = [piece for piece, _ in model["vocab"]] if kind == "Unigram" else list(model["vocab"])
    entries: list[dict[str, Any]] = []
    size = len(names)
    for token in parts.get("tokens", ("<|endoftext|>", "<tool>", "</tool>")):
        content, flags = (token, {}) if isinstance(token, str) else token
        special = content in ("<|endoftext|>", *SPECIAL)
        number = names.index(content) if content in names else size
        size += number == size
        entries.append(added(content, number, **{"special": special, **flags}))
    decoder = parts.get("decoder", GPT2 if kind == "bytes" else None)
    return tiktoken.contents_of(entries, parts.get("normalizer"), parts.get("pre_tokenizer"), decoder, model)


def published() -> dict[str, dict[str, Any]]:
    """Small tokenizers whose parts are those of published ones, by name."""
    by_name = {name: expression for expression, name in SPLITS.items()}
    nfc = {"type": "NFC"}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]}
    digits = {"type": "Digits", "individual_digits": True}
    unspaced = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    decoder = {"type": "Sequence", "decoders": [*unspaced, strip]}
    words: dict[str, Any] = {name: _sequence(_split(by_name[name]), LEVEL) for name in by_name}
    deepseek = _sequence(*(_split(by_name[name]) for name in DEEPSEEK), LEVEL)
    runs = [("  " * count, {"normalized": True}) for count in (1, 2, 4, 8)]
    pieces = {"tokens": ["<unk>", "<s>", "</s>"], "decoder": decoder}
    return {
        "gpt2": contents_of("bytes", pre_tokenizer=GPT2),
        "gpt_neox": contents_of("bytes", pre_tokenizer=GPT2, normalizer=nfc, tokens=["<|endoftext|>", *runs]),
        "roberta": contents_of(
            "bytes", pre_tokenizer={**GPT2, "add_prefix_space": True}, tokens=[("<mask>", {"lstrip": True})]
        ),
        "starcoder": contents_of("bytes", pre_tokenizer=_sequence(digits, GPT2)),
        "llama3": contents_of("bytes", pre_tokenizer=words["llama3"], model_ignore_merges=True),
        "qwen3": contents_of("bytes", pre_tokenizer=words["qwen2"], normalizer=nfc),
        "qwen3.5": contents_of("bytes", pre_tokenizer=words["qwen3.5"], normalizer=nfc),
        "tiktoken": contents_of(
            "bytes",
            pre_tokenizer=words["llama3"],
            model_ignore_merges=True,
            model_vocab=json.loads(_trained("bytes"))["vocab"] | {"<unused token 900>": 900},
        ),
        "gpt4o": contents_of("bytes", pre_tokenizer=words["o200k"]),
        "tekken": contents_of("bytes", pre_tokenizer=words["tekken"], model_ignore_merges=True),
        "nanochat": contents_of("bytes", pre_tokenizer=words["nanochat"]),
        "deepseek": contents_of("bytes", pre_tokenizer=deepseek),
        "llama2": contents_of("pieces", normalizer=prepend, **pieces),
        "mistral": contents_of("pieces", pre_tokenizer=metaspace, **pieces),
        "gemma": contents_of(
            "pieces",
            normalizer=replace,
            pre_tokenizer=SPACE,
            **{**pieces, "decoder": {"type": "Sequence", "decoders": unspaced}},
        ),
        "t5": contents_of("Unigram", pre_tokenizer={**metaspace, "split": True}, tokens=["<unk>", "</s>"]),
        "bert": contents_of(
            "WordPiece",
            normalizer=BERT,
            pre_tokenizer={"type": "BertPreTokenizer"},
            tokens=["<unk>", "[CLS]"],
        ),
        "words": contents_of("WordLevel", pre_tokenizer={"type": "Whitespace"}, tokens=["<unk>"]),
    }
