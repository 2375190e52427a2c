"""A tokenizer as data: whatever it came as, one tokenizer.json and what it says of itself.

    tokenizer.json, or a folder or hub repository with one ──────────────────┐
    NAME.tiktoken rank file + its encoding ── ranks to merges ───────────────┼─> Tokenizer.json
    SentencePiece NAME.model (BPE, Unigram) ── pieces to merges or scores ───┘

Every engine reads this one text, so all are given the same tokenizer. Truncation, padding and dropout,
which some published files carry, are taken out: they would cut documents short, or make ids random.

Cost: one parse and one compact rewrite, 0.3 s for a vocabulary of 150,000; 1 to 2 s for a rank file.
A tokenizer is a frozen value of a few megabytes that can be sent to a worker as it is.

What it does not do: encode, or decide what ends a document (`boundary`). It never runs code that comes
with a tokenizer, and reads no pickle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from packline.errors import TokenizerError
from packline.fingerprint import hash_value

if TYPE_CHECKING:
    import tokenizers

Kind = Literal["huggingface", "tiktoken", "sentencepiece"]

JSON = "tokenizer.json"
MODELS = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
ACCEPTED = "a tokenizer.json, a folder with one, a hub id, a .tiktoken rank file or a SentencePiece .model"


class Tokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """A tokenizer.json and what its files say about it.

    >>> vocab = {"a": 0, "b": 1}
    >>> text = msgspec.json.encode({"model": {"type": "BPE", "vocab": vocab, "merges": []}}).decode()
    >>> tokenizer = Tokenizer(name="ab", kind="huggingface", json=text, vocab_size=2, special_tokens={})
    >>> tokenizer.reference().encode("ba").ids
    [1, 0]
    """

    name: str
    """What the user wrote: a path or a hub id."""
    kind: Kind
    """What it was before it became a tokenizer.json."""
    json: str
    """A tokenizer.json, compact, without truncation, padding and dropout."""
    vocab_size: int
    """One more than the largest id, added tokens included."""
    special_tokens: dict[str, int]
    """The added tokens that are marked special, by their strings."""
    eos_token: str | None = None
    """What its own files call the end of a sequence, which may be the end of a turn."""
    bos_token: str | None = None
    chat: bool = False
    """Whether it comes with a chat template."""
    revision: str | None = None
    """The commit on the hub that it was read from."""

    @property
    def fingerprint(self) -> str:
        """The hash of what decides ids: 32 hexadecimal digits.

        Covers normalizer, pre-tokenizer, model, decoder and added tokens, whatever the order of keys
        and however merges are written. Leaves out the post-processor, which documents do not pass.
        Cost: a parse and a sorted rewrite, 0.3 s for 150,000 tokens; remembered for a few tokenizers.
        """
        return _fingerprint(self.json)

    def reference(self) -> tokenizers.Tokenizer:
        """Build the tokenizer of HF `tokenizers`, whose ids are right by definition; about 0.5 s.

        Raises:
            TokenizerError: `tokenizers` cannot read it.
        """
        import tokenizers

        with refusals(f"{self.name} is not a tokenizer that HF tokenizers reads"):
            return tokenizers.Tokenizer.from_str(self.json)


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Turn whatever a library raises, a panic of Rust code included, into a `TokenizerError`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic is no `Exception`
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TokenizerError(f"{what}: {said}") from error


@lru_cache(maxsize=4)
def _fingerprint(text: str) -> str:
    whole = msgspec.json.decode(text)
    model = dict(whole["model"])
    if "merges" in model:  # "a b" in older files, ["a", "b"] in newer ones
        model["merges"] = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    parts = ("normalizer", "pre_tokenizer", "decoder", "added_tokens")
    return hash_value({"model": model} | {part: whole.get(part) for part in parts})


def load_tokenizer(name: str, encoding: str | None = None) -> Tokenizer:
    """Read a tokenizer of any kind and turn it into one tokenizer.json.

    A path that exists is read, anything else is looked up on the hub, where `HF_HOME`, `HF_TOKEN`,
    `HF_ENDPOINT` and `HF_HUB_OFFLINE` hold. What a file is, its content decides.

    Args:
        name: a tokenizer.json, a folder with one (or with one `.model` or `.tiktoken` file), a hub id
            (`owner/name`, or `owner/name@revision`), a rank file, a SentencePiece model.
        encoding: the encoding of a rank file whose name does not tell it.

    Raises:
        TokenizerError: nothing there, or something that is no tokenizer, with what was found.

    >>> load_tokenizer("a/tokenizer.json")
    Traceback (most recent call last):
    packline.errors.TokenizerError: no tokenizer at a/tokenizer.json: expected a file or folder, found nothing
    """
    path = Path(name).expanduser()
    revision = None
    if not path.exists():
        path, revision = _from_hub(name)
    file = _tokenizer_file(path) if path.is_dir() else path
    try:
        data = file.read_bytes()
    except OSError as error:
        raise TokenizerError(f"cannot read the tokenizer {file}: {error.strerror}") from error
    beside = _beside(file) if file.name == JSON or file.suffix == ".model" else {}
    kind, contents, declared = _contents(data, encoding, str(file))
    return _tokenizer(name, kind, contents, declared | beside, revision, str(file))


def _tokenizer_file(folder: Path) -> Path:
    """The file of a folder that is the tokenizer, or a refusal that lists what is there instead."""
    if (folder / JSON).is_file():
        return folder / JSON
    for pattern in ("*.model", "*.tiktoken"):
        found = sorted(folder.glob(pattern))
        if len(found) > 1:
            names = ", ".join(file.name for file in found)
            raise TokenizerError(f"{folder} has several tokenizers: {names}", hint="name one of these files")
        if found:
            return found[0]
    there = sorted(entry.name for entry in folder.iterdir())
    found_there = ", ".join(there[:5]) or "nothing"
    found_there += f" and {len(there) - 5} more" if len(there) > 5 else ""
    raise TokenizerError(
        f"no tokenizer in {folder}: expected {JSON}, a .model or a .tiktoken file, found {found_there}",
        hint=f"give {ACCEPTED}",
    )


def _contents(data: bytes, encoding: str | None, where: str) -> tuple[Kind, dict[str, Any], dict[str, Any]]:
    """Kind, tokenizer.json as builtins, and what the file itself declares."""
    if _is_pickle(data):
        raise TokenizerError(
            f"{where} is a pickled object: expected {ACCEPTED}",
            hint="a pickle can run code when it is read; save the tokenizer as a tokenizer.json instead",
        )
    if data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return "huggingface", _parse(data, where), {}
    if where.endswith(".tiktoken") or re.match(rb"[A-Za-z0-9+/]+=* \d+\r?\n", data):
        from packline.encoders.tiktoken import END, convert_ranks

        return "tiktoken", convert_ranks(data, encoding, where), {"eos_token": END}
    if where.endswith(".json"):
        found = f"{data[:20]!r}" if data else "an empty file"
        raise TokenizerError(f"{where} is not JSON: expected an object, found {found}")
    from packline.encoders.sentencepiece import convert_model

    contents, declared = convert_model(data, where)
    return "sentencepiece", contents, declared


def _is_pickle(data: bytes) -> bool:
    """Protocols 2 to 5 by their header; the zip file of torch.save, which holds pickles, too."""
    return (data[:1] == b"\x80" and data[1:2] in (b"\2", b"\3", b"\4", b"\5")) or data[:4] == b"PK\3\4"


def _parse(data: bytes, where: str) -> dict[str, Any]:
    try:
        contents = msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{where} is not JSON: {error}") from error
    if not isinstance(contents, dict):
        raise TokenizerError(
            f"{where} is no tokenizer: expected an object, found a {type(contents).__name__}"
        )
    return contents


def _tokenizer(
    name: str,
    kind: Kind,
    contents: dict[str, Any],
    declared: dict[str, Any],
    revision: str | None,
    where: str,
) -> Tokenizer:
    model = contents.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, dict | list) or not vocab:
        keys = ", ".join(list(contents)[:6]) or "no keys"
        raise TokenizerError(
            f"{where} is no tokenizer: expected a model with a vocabulary, found {keys}",
            hint="a vocab.json or a config alone is not enough; the file wanted is called tokenizer.json",
        )
    try:
        added = {token["content"]: int(token["id"]) for token in contents.get("added_tokens") or []}
        special = {
            token["content"]: int(token["id"])
            for token in contents.get("added_tokens") or []
            if token.get("special")
        }
        largest = max(vocab.values()) if isinstance(vocab, dict) else len(vocab) - 1
        vocab_size = 1 + max(int(largest), *added.values(), 0)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TokenizerError(
            f"{where} is no tokenizer: a token without an id or a string ({error!r})"
        ) from error
    contents["truncation"] = None
    contents["padding"] = None
    if isinstance(model, dict) and model.get("dropout") is not None:
        model["dropout"] = None
    return Tokenizer(
        name=name,
        kind=kind,
        json=msgspec.json.encode(contents).decode(),
        vocab_size=vocab_size,
        special_tokens=special,
        eos_token=declared.get("eos_token"),
        bos_token=declared.get("bos_token"),
        chat=bool(declared.get("chat")),
        revision=revision,
    )


def _beside(file: Path) -> dict[str, Any]:
    """What the files beside a tokenizer declare; tokenizer_config.json wins over the older map."""
    declared: dict[str, Any] = {}
    for config in ("special_tokens_map.json", "tokenizer_config.json"):
        path = file.parent / config
        if not path.is_file():
            continue
        table = _parse(path.read_bytes(), str(path))
        for field in ("eos_token", "bos_token"):
            token = table.get(field)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str) and token:
                declared[field] = token
        if table.get("chat_template"):
            declared["chat"] = True
    if (file.parent / "chat_template.jinja").is_file():
        declared["chat"] = True
    return declared


def _from_hub(name: str) -> tuple[Path, str | None]:
    """Fetch a tokenizer and the small files beside it, all of one commit: its file and the commit."""
    repository, _, revision = name.partition("@")
    looks_like_path = name.startswith(("/", ".", "~")) or name.endswith((".json", ".model", ".tiktoken"))
    if looks_like_path or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", repository):
        raise TokenizerError(
            f"no tokenizer at {name}: expected a file or folder, found nothing", hint=f"give {ACCEPTED}"
        )
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    def fetch(file: str, commit: str | None) -> Path | None:
        try:
            return Path(hf_hub_download(repository, file, revision=commit))
        except LocalEntryNotFoundError:
            if constants.HF_HUB_OFFLINE:  # perhaps just not there: look for the next one
                return None
            raise  # no network: the next one would wait as long
        except EntryNotFoundError:
            return None

    try:
        for wanted in (JSON, *MODELS):
            if file := fetch(wanted, revision or None):
                commit = file.parent.name  # the cache has a folder a commit
                for small in BESIDE:
                    fetch(small, commit)
                return file, commit
    except Exception as error:  # the hub's own errors, those of its HTTP client, a full disk
        reason = str(error).strip().partition("\n")[0]
        raise TokenizerError(
            f"cannot load the tokenizer {name}: no such path here, and from the hub"
            f" {type(error).__name__}: {reason}",
            hint=f"give {ACCEPTED}; a private or gated repository needs HF_TOKEN",
        ) from error
    where = "the cache of the hub (HF_HUB_OFFLINE is set)" if constants.HF_HUB_OFFLINE else "the hub"
    raise TokenizerError(
        f"no tokenizer {name} in {where}: expected {JSON} or one of {', '.join(MODELS)}, found neither",
        hint="a tokenizer that needs code of its own is not read; have it saved as a tokenizer.json first",
    )
