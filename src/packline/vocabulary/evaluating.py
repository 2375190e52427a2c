"""Evaluate a tokenizer: check it before a build, and compare its token counts with those of others.

    ids            every declared special token has its id; eos, bos and pad are tokens; no two share an id
    model          the embedding has a row for every id, and eos, bos, pad of config.json are the tokenizer's
    round trip     hard text is recovered from its ids
    text           strings of control tokens inside documents remain text under packline's default
    engines        fast engines agree with the reference on hard text

A finding is a problem if training would go wrong, and a note if it is only worth knowing. The check does not
prove that two engines agree on every text; a build continues to compare them.

    ratio      bytes / tokens: bytes per token; more is better
    diff       (base - ours) / base x 100: tokens saved by ours, in percent of the baseline's
    fertility  tokens / words, where words are separated by white space
    unused     ids that occur in none of the texts, without special tokens

For both tokenizers every text must be recovered from its ids, or the comparison would be meaningless. Where a
tokenizer is known to lose something (white space, case), that is reported; an unexpected loss is an error. A
vocabulary that has no tokens for a text encodes it as one unknown token, whatever its length. Such tokens are
counted, and for such a text neither tokenizer is called better. The reference encodes, at 1 to 2 MB/s. Token
counts do not show which tokenizer makes the better model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from packline.encoders import ENGINE_NAMES
from packline.encoders.engines import Encodable, load_engines
from packline.encoders.parity import ODD_PROBES, PROBES, Reference, RoundTrip, try_engines
from packline.encoders.special_tokens import without_special_tokens
from packline.encoders.tokenizer import Tokenizer, load_tokenizer, parse_json, unknown_token, vocab_of
from packline.errors import InputError, TokenizerError
from packline.vocabulary.texts import LANGUAGES, PASSAGES

Level = Literal["ok", "note", "problem"]

HARD = (
    *PROBES,
    "\r\n of three \r kinds \n\n\n",
    "\ufeffa byte order mark inside",
    "Z\u0351\u036b\u0343 marks, \u200b\u2028 spaces, \u202eturned",
    "👩‍👩‍👧‍👦 🇯🇵 \U0010fffd \ue000",
    "1234567890 3.14159 1e-9 0xdeadbeef",
    "x" * 2000 + " " * 500 + "日" * 500,
)
TEXTS = [*HARD, *PASSAGES.values(), *LANGUAGES.values()]

CONFIG = "tokenizer_config.json"
OF_MODEL = {"eos_token_id": "eos_token", "bos_token_id": "bos_token", "pad_token_id": "pad_token"}
ROLES = (*OF_MODEL.values(), "unk_token", "sep_token", "cls_token", "mask_token")
PAD_IS_EOS = "the same token as eos: a loss that leaves out padding by its id leaves out every end too"


class Finding(msgspec.Struct, frozen=True):
    """Result of one check."""

    about: str
    level: Level
    text: str


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """Findings of a check."""

    tokenizer: str
    vocab_size: int
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """True if no finding is a problem."""
        return all(finding.level != "problem" for finding in self.findings)


def inspect_tokenizer(name: str, model: str | None = None) -> CheckReport:
    """Check a tokenizer, optionally against a model's config.json."""
    tokenizer = load_tokenizer(name)
    config, ids = _read_config(tokenizer), _ids(tokenizer)
    findings = [*_id_findings(tokenizer, ids), *_special_findings(tokenizer, ids, config)]
    if model is not None:
        findings += _model_findings(tokenizer, ids, config, read_model_config(model))
    tokenizer.reference()
    try:
        reference = plain_reference(tokenizer)
    except TokenizerError as error:
        findings.append(Finding("control tokens", "problem", f"{error}: {error.hint}"))
    else:
        findings += [*_round_trip(reference), *_control_findings(tokenizer, reference)]
        findings += _engine_findings(reference)
    return CheckReport(tokenizer=tokenizer.name, vocab_size=tokenizer.vocab_size, findings=findings)


def read_model_config(path: str) -> dict[str, Any]:
    """Read a model's config.json."""
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        found = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"cannot read the model's {file}: {error}", hint="give its config.json") from error
    if not isinstance(found, dict):
        raise InputError(f"{file} is no config.json: expected an object, found a {type(found).__name__}")
    text = found.get("text_config")  # multimodal models nest the config of the text model
    return (
        {**text, **{key: found[key] for key in found if key not in text}} if isinstance(text, dict) else found
    )


def _read_config(tokenizer: Tokenizer) -> dict[str, Any]:
    path = Path(tokenizer.name).expanduser()
    file = (path if path.is_dir() else path.parent) / CONFIG
    if tokenizer.revision is not None:  # from the hub: already in the cache
        from huggingface_hub import try_to_load_from_cache

        from packline.encoders.tokenizer import hub_id

        repository, _ = hub_id(tokenizer.name) or (tokenizer.name, None)
        cached = try_to_load_from_cache(repository, CONFIG, revision=tokenizer.revision)
        file = Path(cached) if isinstance(cached, str) else Path()
    if tokenizer.kind == "tiktoken" or not file.is_file():
        return {}
    found = msgspec.json.decode(file.read_bytes())  # already read by `load_tokenizer`
    return found if isinstance(found, dict) else {}


def _ids(tokenizer: Tokenizer) -> dict[str, int]:
    whole = msgspec.json.decode(tokenizer.json)
    return vocab_of(whole) | {token["content"]: token["id"] for token in whole.get("added_tokens") or []}


def _id_findings(tokenizer: Tokenizer, ids: dict[str, int]) -> list[Finding]:
    found = []
    by_id: dict[int, str] = {}
    for token, number in ids.items():
        if number in by_id and tokenizer.special_tokens.keys() & {token, by_id[number]}:
            text = f"{token!r} and {by_id[number]!r} both have id {number}: expected one token an id"
            found.append(Finding("ids", "problem", text))
        by_id[number] = token
    if missing := tokenizer.vocab_size - len(by_id):
        found.append(Finding("ids", "note", f"{missing:,} ids below {tokenizer.vocab_size:,} have no token"))
    return found


def _special_findings(tokenizer: Tokenizer, ids: dict[str, int], config: dict[str, Any]) -> list[Finding]:
    found = []
    count = len(tokenizer.special_tokens)
    found.append(Finding("special tokens", "ok" if count else "note", f"{count} in tokenizer.json"))
    found += [Finding("special tokens", "problem", text) for text in _contradictions(tokenizer, ids, config)]
    for role in ROLES:
        token = _declared(tokenizer, config, role)
        if token is None:
            found += [Finding(role, "note", "none is declared")] if role in OF_MODEL.values() else []
        elif problem := _not_special(tokenizer, ids, token):
            found.append(Finding(role, "problem", problem))
        else:
            found.append(Finding(role, "ok", f"{token} is id {ids[token]}"))
    eos, pad = (_declared(tokenizer, config, role) for role in ("eos_token", "pad_token"))
    if pad is not None and pad == eos:
        found.append(Finding("pad_token", "note", PAD_IS_EOS))
    return found


def _contradictions(tokenizer: Tokenizer, ids: dict[str, int], config: dict[str, Any]) -> Iterator[str]:
    decoder = config.get("added_tokens_decoder")
    for number, entry in decoder.items() if isinstance(decoder, dict) else ():
        content = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(content, str):
            continue
        if str(ids.get(content)) != number:
            has = f"has id {ids[content]}" if content in ids else "is not in tokenizer.json"
            yield f"{CONFIG} gives {content!r} id {number}, but it {has}"
        elif entry.get("special") and content not in tokenizer.special_tokens:
            yield f"{CONFIG} calls {content!r} special, tokenizer.json does not: text can become it"
    for field in ("additional_special_tokens", "extra_special_tokens"):
        more = config.get(field) or []
        for token in map(_content, more.values() if isinstance(more, dict) else more):
            if problem := _not_special(tokenizer, ids, token):
                yield f"{problem} ({field} of {CONFIG})"


def _not_special(tokenizer: Tokenizer, ids: dict[str, int], token: Any) -> str:
    """Description of what is wrong with a token declared special; empty if nothing is."""
    if token not in ids:
        return f"{token!r} is declared, but is no token"
    if token not in tokenizer.special_tokens:
        return f"{token!r} (id {ids[token]}) is not marked special: text can become it"
    return ""


def _declared(tokenizer: Tokenizer, config: dict[str, Any], role: str) -> Any:
    """The eos_token, bos_token etc. declared by the tokenizer's files."""
    return _content(config.get(role, getattr(tokenizer, role, None)))


def _content(token: Any) -> Any:
    """String of a token, which may be written as an object."""
    return token.get("content") if isinstance(token, dict) else token


def _model_findings(
    tokenizer: Tokenizer, ids: dict[str, int], config: dict[str, Any], model: dict[str, Any]
) -> list[Finding]:
    found = [_embedding_finding(tokenizer.vocab_size, model.get("vocab_size"))]
    for field, role in OF_MODEL.items():
        given = model.get(field)
        if given is None or given == []:
            continue
        several = given if isinstance(given, list) else [given]
        wanted: list[int] = [number for number in several if type(number) is int]
        text = f"config.json has {', '.join(map(str, wanted))}"
        token = _declared(tokenizer, config, role)
        level: Level = "problem"
        if len(wanted) < len(several):
            text = f"config.json has {given!r}: expected an id"
        elif beyond := [number for number in wanted if not 0 <= number < tokenizer.vocab_size]:
            text = f"config.json has {beyond[0]}, which is no id of the tokenizer"
        elif token in ids and ids[token] not in wanted:
            text += f", the tokenizer {token} is {ids[token]}"
        elif ordinary := [number for number in wanted if number not in tokenizer.special_tokens.values()]:
            text = f"config.json has {ordinary[0]}, which is no special token: text can become it"
        else:
            level = "ok"
        found.append(Finding(field, level, text))
    if model.get("pad_token_id") is not None and model["pad_token_id"] == model.get("eos_token_id"):
        found.append(Finding("pad_token_id", "note", PAD_IS_EOS))
    return found


def _embedding_finding(size: int, rows: Any) -> Finding:
    if type(rows) is not int:
        text = "has no vocab_size" if rows is None else f"has vocab_size {rows!r}: expected a number"
        return Finding("model", "problem", f"its config.json {text}")
    if rows < size:
        text = (
            f"the embedding has {rows:,} rows, but the highest id is {size - 1:,}: expected at least {size:,}"
        )
        return Finding("model", "problem", text)
    if rows > size:
        text = f"{rows - size:,} rows of the embedding beyond the highest id {size - 1:,} are never used"
        return Finding("model", "note", text)
    return Finding("model", "ok", f"the embedding has a row for each of {rows:,} ids")


def _round_trip(reference: Reference) -> Iterator[Finding]:
    if reference.round_trip == "lossy":
        lossy = "decoding does not give the very text back (white space or case)"
        yield Finding("round trip", "note", lossy)
        return
    for text in TEXTS:
        ids = reference.encode(text)
        if not reference.gives_back(text, ids):
            found = reference.decode(ids)
            yield Finding("round trip", "problem", f"{text[:40]!r} comes back as {found[:40]!r}")
            return
    how = "the very text" if reference.round_trip == "exact" else "the normalized text"
    yield Finding("round trip", "ok", f"{how} comes back, of {len(HARD)} hard texts and all passages")
    for text in ODD_PROBES:
        if not reference.gives_back(text, ids := reference.encode(text)):
            found = reference.decode(ids)
            yield Finding("round trip", "note", f"{text[:40]!r} comes back as {found[:40]!r}")


def _control_findings(tokenizer: Tokenizer, reference: Reference) -> list[Finding]:
    if not tokenizer.special_tokens:
        return []
    text = " a ".join(tokenizer.special_tokens)
    special = set(tokenizer.special_tokens.values())
    # Text may legitimately become the token for unknown text.
    if became := (set(reference.encode(text)) & special) - unknown_ids(tokenizer):
        return [Finding("control tokens", "problem", f"text becomes the ids {sorted(became)[:5]}")]
    plain = set(tokenizer.reference().encode(text, add_special_tokens=False).ids) & special
    note = f"used without packline, it turns {len(plain)} such strings in text into control tokens"
    return [
        Finding("control tokens", "ok", "their strings in documents stay text"),
        Finding("control tokens", "note", note),
    ]


def _engine_findings(reference: Reference) -> list[Finding]:
    reports = try_engines(load_engines(ENGINE_NAMES, Encodable.of(reference.json)), reference, TEXTS)
    found = [
        Finding(f"engine {report.name}", "ok" if report.exact else "note", report.note) for report in reports
    ]
    if not any(report.exact and report.name != "tokenizers" for report in reports):
        found.append(Finding("engines", "note", "only the reference encodes it, about 100 times slower"))
    return found


PIECE_CHARS = 1 << 16
WORD = re.compile(r"\S+")


class Measured(msgspec.Struct, frozen=True):
    """Measurements of one tokenizer on one text."""

    tokens: int
    bytes_per_token: float
    fertility: float
    unknown: int = 0
    """Number of tokens for text that the vocabulary does not know."""


class ComparisonRow(msgspec.Struct, frozen=True):
    """Comparison of a baseline and ours on one text."""

    text: str
    bytes: int
    base: Measured
    ours: Measured
    diff_percent: float
    """Positive if ours needs fewer tokens."""
    better: str
    """"ours", "base", "equal", or "neither" if a vocabulary does not know some of the text."""


class TokenizerComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison with one baseline."""

    base: str
    base_vocab_size: int
    base_round_trip: RoundTrip
    rows: list[ComparisonRow]
    whole: ComparisonRow
    """All texts together."""
    languages: list[ComparisonRow]
    """The same sentences in several languages."""
    base_unused: int


class Absent(msgspec.Struct, frozen=True):
    """A baseline that was not available."""

    base: str
    reason: str


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of a tokenizer with baselines."""

    tokenizer: str
    vocab_size: int
    round_trip: RoundTrip
    texts: dict[str, int]
    """Size of each text in bytes."""
    measured: dict[str, Measured]
    """Ours on each text."""
    comparisons: list[TokenizerComparison]
    absent: list[Absent]
    languages: dict[str, Measured]
    """Ours on the same sentences in several languages."""
    unused: int


def compare_tokenizers(
    tokenizer: Tokenizer, against: Sequence[str] = (), texts: Mapping[str, str] | None = None
) -> Evaluation:
    """Measure a tokenizer and compare it with baselines.

    >>> vocab = {"a": 0, "b": 1, "ab": 2}
    >>> model = {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]}
    >>> text = msgspec.json.encode({"model": model, "decoder": {"type": "Fuse"}}).decode()
    >>> tiny = Tokenizer(name="tiny", kind="huggingface", json=text, vocab_size=3, special_tokens={})
    >>> compare_tokenizers(tiny, texts={"mine": "abab"}).measured["mine"].bytes_per_token
    2.0
    """
    texts = dict(PASSAGES if texts is None else texts)
    sizes = _sizes(texts)
    ours = _Measure(tokenizer, texts)
    comparisons, absent = [], []
    for name in against:
        try:
            base = load_tokenizer(name)
        except Exception as error:  # a hub client may raise anything
            absent.append(Absent(name, str(error).splitlines()[0] if str(error) else type(error).__name__))
            continue
        comparisons.append(_compare(name, _Measure(base, texts), ours, sizes))
    return Evaluation(
        tokenizer=tokenizer.name,
        vocab_size=tokenizer.vocab_size,
        round_trip=ours.round_trip,
        texts=sizes,
        measured=ours.found,
        comparisons=comparisons,
        absent=absent,
        languages=ours.languages,
        unused=ours.unused,
    )


class _Measure:
    def __init__(self, tokenizer: Tokenizer, texts: Mapping[str, str]) -> None:
        reference = plain_reference(tokenizer)
        self.vocab_size = tokenizer.vocab_size
        self.round_trip = reference.round_trip
        self._name, self._reference = tokenizer.name, reference
        self._unknown = unknown_ids(tokenizer)
        self._used = np.zeros(tokenizer.vocab_size, np.bool_)
        self.languages = {name: self._measure(name, text) for name, text in LANGUAGES.items()}
        self._used[:] = False
        self._used[list(tokenizer.special_tokens.values())] = True
        self.found = {name: self._measure(name, text) for name, text in texts.items()}
        self.unused = int(np.count_nonzero(~self._used))

    def _measure(self, name: str, text: str) -> Measured:
        tokens = unknown = 0
        for piece in pieces_of(text):
            ids = self._reference.encode(piece)
            if not self._reference.gives_back(piece, ids):
                where = _difference(piece, self._reference.decode(ids))
                raise TokenizerError(
                    f"{self._name} does not give the text {name!r} back: {where}",
                    hint="packline tokenizer check shows details",
                )
            self._used[ids] = True
            tokens += len(ids)
            unknown += sum(number in self._unknown for number in ids) if self._unknown else 0
        words = len(WORD.findall(text))
        size = len(text.encode("utf-8"))
        return Measured(tokens, size / max(tokens, 1), tokens / max(words, 1), unknown)


def plain_reference(tokenizer: Tokenizer) -> Reference:
    """Build the reference tokenizer for which control tokens in a text are plain text."""
    tokenizer.reference()  # its error names the tokenizer
    return Reference(without_special_tokens(tokenizer))


def unknown_ids(tokenizer: Tokenizer) -> set[int]:
    """Id of the token for text that the vocabulary does not know, if there is one.

    >>> model = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    >>> text = msgspec.json.encode({"model": model}).decode()
    >>> tiny = Tokenizer(name="tiny", kind="huggingface", json=text, vocab_size=2, special_tokens={})
    >>> unknown_ids(tiny)
    {1}
    """
    contents = parse_json(tokenizer.json)
    ids = vocab_of(contents) | tokenizer.special_tokens
    token = unknown_token(contents["model"])
    return {ids[token]} if token in ids else set()


def _sizes(texts: Mapping[str, str]) -> dict[str, int]:
    return {name: len(text.encode("utf-8")) for name, text in texts.items()}


def pieces_of(text: str) -> list[str]:
    """Cut a long text before white space into pieces that are encoded separately."""
    pieces = []
    start = 0
    while len(text) - start > PIECE_CHARS:
        cut = text.rfind("\n", start + 1, start + PIECE_CHARS)
        cut = cut if cut > start else start + PIECE_CHARS
        pieces.append(text[start:cut])
        start = cut
    return [*pieces, text[start:]]


def _difference(text: str, decoded: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(text, decoded, strict=False)) if a != b), -1)
    at = at if at >= 0 else min(len(text), len(decoded))
    return f"at character {at} expected {text[at : at + 20]!r}, found {decoded[at : at + 20]!r}"


def _compare(name: str, base: _Measure, ours: _Measure, sizes: dict[str, int]) -> TokenizerComparison:
    rows = [_row(text, size, base.found[text], ours.found[text]) for text, size in sizes.items()]
    return TokenizerComparison(
        base=name,
        base_vocab_size=base.vocab_size,
        base_round_trip=base.round_trip,
        rows=rows,
        languages=[
            _row(text, size, base.languages[text], ours.languages[text])
            for text, size in _sizes(LANGUAGES).items()
        ],
        whole=_row("all", sum(sizes.values()), _sum(base, sizes), _sum(ours, sizes)),
        base_unused=base.unused,
    )


def _sum(one: _Measure, sizes: dict[str, int]) -> Measured:
    tokens = sum(found.tokens for found in one.found.values())
    words = sum(found.tokens / found.fertility for found in one.found.values() if found.fertility)
    unknown = sum(found.unknown for found in one.found.values())
    return Measured(tokens, sum(sizes.values()) / max(tokens, 1), tokens / max(words, 1), unknown)


def _row(text: str, size: int, base: Measured, ours: Measured) -> ComparisonRow:
    diff = (base.tokens - ours.tokens) / max(base.tokens, 1) * 100
    better = "equal" if base.tokens == ours.tokens else "ours" if diff > 0 else "base"
    better = "neither" if base.unknown or ours.unknown else better
    return ComparisonRow(text, size, base, ours, diff, better)
