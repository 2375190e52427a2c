"""Check a tokenizer before anything is built with it, and against the model that will read its ids.

    ids            every declared special token has its id; eos, bos and pad are tokens; no two share an id
    model          the embedding has a row for every id, and eos, bos, pad of config.json are the tokenizer's
    round trip     hard text comes back from its ids
    text           strings of control tokens inside documents stay text under packline's default
    engines        fast engines agree with the reference on hard text

A finding is a problem where training would go wrong, and a note where one should know. What it does not do:
prove that two engines agree on every text; a build goes on checking while it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from packline.encoders.engine import load_engines
from packline.encoders.parity import PROBES, Reference, try_engines
from packline.encoders.passages import LANGUAGES, PASSAGES
from packline.encoders.report import ENGINE_NAMES
from packline.encoders.special import without_special_tokens
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import InputError

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
OF_MODEL = ("eos_token_id", "bos_token_id", "pad_token_id")


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    about: str
    level: Level
    text: str


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found."""

    tokenizer: str
    vocab_size: int
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """Whether no finding is a problem."""
        return all(finding.level != "problem" for finding in self.findings)


def check_tokenizer(name: str, model: str | None = None) -> CheckReport:
    """Check a tokenizer, and against a model's config.json where one is given.

    Args:
        name: a file, a folder or a hub id.
        model: a config.json, or a folder with one.

    Raises:
        TokenizerError: not a tokenizer at all.
        InputError: no config.json, or one that is no JSON object.
    """
    tokenizer = load_tokenizer(name)
    beside = _beside(name)
    findings = [*_special_findings(tokenizer, beside)]
    if model is not None:
        findings += _model_findings(tokenizer, beside, read_model(model))
    findings += [_round_trip(tokenizer), *_control_findings(tokenizer), *_engine_findings(tokenizer)]
    return CheckReport(tokenizer=tokenizer.name, vocab_size=tokenizer.vocab_size, findings=findings)


def read_model(path: str) -> dict[str, Any]:
    """A model's config.json.

    Raises:
        InputError: none there, or no JSON object.
    """
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        found = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"cannot read the model's {file}: {error}", hint="give its config.json") from error
    if not isinstance(found, dict):
        raise InputError(f"{file} is no config.json: expected an object, found a {type(found).__name__}")
    text = found.get("text_config")  # models of several kinds of input keep that of text inside
    return (
        {**text, **{key: found[key] for key in found if key not in text}} if isinstance(text, dict) else found
    )


def _beside(name: str) -> dict[str, Any]:
    """tokenizer_config.json of a folder or of the file's folder."""
    path = Path(name).expanduser()
    file = (path if path.is_dir() else path.parent) / "tokenizer_config.json"
    if not path.exists() or not file.is_file():
        return {}
    try:
        found = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _ids(tokenizer: Tokenizer) -> dict[str, int]:
    whole = msgspec.json.decode(tokenizer.json)
    vocab = whole["model"]["vocab"]
    ids = dict(vocab) if isinstance(vocab, dict) else {piece: i for i, (piece, _) in enumerate(vocab)}
    return ids | {token["content"]: token["id"] for token in whole.get("added_tokens") or []}


def _special_findings(tokenizer: Tokenizer, beside: dict[str, Any]) -> list[Finding]:
    ids, found = _ids(tokenizer), []
    by_id: dict[int, str] = {}
    for token, number in ids.items():
        if number in by_id and (
            token in tokenizer.special_tokens or by_id[number] in tokenizer.special_tokens
        ):
            text = f"{token!r} and {by_id[number]!r} both have id {number}: expected one token an id"
            found.append(Finding("ids", "problem", text))
        by_id[number] = token
    missing = tokenizer.vocab_size - len(by_id)
    if missing:
        found.append(Finding("ids", "note", f"{missing:,} ids below {tokenizer.vocab_size:,} have no token"))
    declared = beside.get("added_tokens_decoder") or {}
    for number, entry in declared.items() if isinstance(declared, dict) else ():
        content = entry.get("content") if isinstance(entry, dict) else None
        if content is not None and ids.get(content) != int(number):
            has = f"has id {ids[content]}" if content in ids else "is not in tokenizer.json"
            text = f"tokenizer_config.json gives {content!r} id {number}, but it {has}"
            found.append(Finding("special tokens", "problem", text))
    for role in ("eos_token", "bos_token", "pad_token"):
        token = _declared(tokenizer, beside, role)
        if token is None:
            found.append(Finding(role, "note", "none is declared"))
        elif token not in ids:
            found.append(Finding(role, "problem", f"{token!r} is declared, but is no token"))
        elif token not in tokenizer.special_tokens:
            text = f"{token!r} (id {ids[token]}) is not marked special: text can become it"
            found.append(Finding(role, "problem", text))
        else:
            found.append(Finding(role, "ok", f"{token} is id {ids[token]}"))
    count = len(tokenizer.special_tokens)
    found.append(Finding("special tokens", "ok" if count else "note", f"{count} in tokenizer.json"))
    return found


def _declared(tokenizer: Tokenizer, beside: dict[str, Any], role: str) -> Any:
    """What the tokenizer's files call eos_token, bos_token or pad_token."""
    token = beside.get(role, getattr(tokenizer, role, None))
    return token.get("content") if isinstance(token, dict) else token


def _model_findings(tokenizer: Tokenizer, beside: dict[str, Any], model: dict[str, Any]) -> list[Finding]:
    rows = model.get("vocab_size")
    if not isinstance(rows, int):
        return [Finding("model", "problem", "its config.json has no vocab_size")]
    found = []
    highest = tokenizer.vocab_size - 1
    if rows <= highest:
        text = f"the embedding has {rows:,} rows, but the highest id is {highest:,}"
        text += f": expected at least {highest + 1:,}"
        found.append(Finding("model", "problem", text))
    elif rows > highest + 1:
        text = (
            f"{rows - highest - 1:,} rows of the embedding beyond the highest id {highest:,} are never used"
        )
        found.append(Finding("model", "note", text))
    else:
        found.append(Finding("model", "ok", f"the embedding has a row for each of {rows:,} ids"))
    ids = _ids(tokenizer)
    for field in OF_MODEL:
        wanted = model.get(field)
        wanted = [wanted] if isinstance(wanted, int) else wanted
        role = field.removesuffix("_id")
        token = _declared(tokenizer, beside, role)
        if not isinstance(wanted, list) or not wanted:
            continue
        beyond = [number for number in wanted if not 0 <= number < tokenizer.vocab_size]
        if beyond:
            text = f"config.json says {beyond[0]}, which is no id of the tokenizer"
            found.append(Finding(field, "problem", text))
        elif token in ids and ids[token] not in wanted:
            says = ", ".join(map(str, wanted))
            text = f"config.json says {says}, the tokenizer {token} is {ids[token]}"
            found.append(Finding(field, "problem", text))
        elif ordinary := [number for number in wanted if number not in tokenizer.special_tokens.values()]:
            text = f"config.json says {ordinary[0]}, which is no special token: text can become it"
            found.append(Finding(field, "problem", text))
        else:
            found.append(Finding(field, "ok", f"config.json says {', '.join(map(str, wanted))}"))
    return found


def _round_trip(tokenizer: Tokenizer) -> Finding:
    reference = Reference(without_special_tokens(tokenizer))
    if reference.round_trip == "lossy":
        return Finding(
            "round trip", "note", "decoding does not give the very text back (white space or case)"
        )
    for text in (*HARD, *PASSAGES.values(), *LANGUAGES.values()):
        ids = reference.encode(text)
        if not reference.gives_back(text, ids):
            found = reference.decode(ids)
            return Finding("round trip", "problem", f"{text[:40]!r} comes back as {found[:40]!r}")
    how = "the very text" if reference.round_trip == "exact" else "the normalized text"
    return Finding("round trip", "ok", f"{how} comes back, of {len(HARD)} hard texts and all passages")


def _control_findings(tokenizer: Tokenizer) -> list[Finding]:
    if not tokenizer.special_tokens:
        return []
    text = " a ".join(tokenizer.special_tokens)
    special = set(tokenizer.special_tokens.values())
    kept = set(Reference(without_special_tokens(tokenizer)).encode(text)) & special
    plain = set(tokenizer.reference().encode(text, add_special_tokens=False).ids) & special
    note = f"by itself, the tokenizer turns {len(plain)} such strings in text into control tokens"
    unknown = _unknown(tokenizer)
    if kept - unknown:
        return [Finding("control tokens", "problem", f"text becomes the ids {sorted(kept - unknown)[:5]}")]
    return [
        Finding("control tokens", "ok", "their strings in documents stay text"),
        Finding("control tokens", "note", note),
    ]


def _unknown(tokenizer: Tokenizer) -> set[int]:
    """What text may rightly become: the token for what a vocabulary does not know."""
    model = msgspec.json.decode(tokenizer.json)["model"]
    token = model.get("unk_token")
    ids = {tokenizer.special_tokens[token]} if token in tokenizer.special_tokens else set()
    return ids | ({model["unk_id"]} if model.get("unk_id") is not None else set())


def _engine_findings(tokenizer: Tokenizer) -> list[Finding]:
    json = without_special_tokens(tokenizer)
    reports = try_engines(
        load_engines(ENGINE_NAMES, json), Reference(json), [*HARD, *PASSAGES.values(), *LANGUAGES.values()]
    )
    found = [
        Finding(f"engine {report.name}", "ok" if report.exact else "note", report.note) for report in reports
    ]
    if not any(report.exact and report.name != "tokenizers" for report in reports):
        found.append(Finding("engines", "note", "only the reference encodes it, about 100 times slower"))
    return found
