"""Tokenizers as data: any supported format as one tokenizer.json with its metadata.

Truncation, padding and dropout, which some published files contain, are removed: they would cut documents
short, or make ids random. No code that comes with a tokenizer is run, and no pickle is read.

Names that are no path, such as gpt2 or Qwen/Qwen3-8B@COMMIT, are those of the Hugging Face hub: one question
gives the commit and the names of its files, and those that are not in the cache are fetched. `HF_HOME`,
`HF_TOKEN`, `HF_ENDPOINT` and `HF_HUB_OFFLINE` apply. With `HF_HUB_OFFLINE`, and where the hub does not
answer, the cache is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from packline.errors import TokenizerError, did_you_mean
from packline.fingerprint import hash_value

if TYPE_CHECKING:
    import tokenizers

Kind = Literal["huggingface", "tiktoken", "sentencepiece"]

JSON = "tokenizer.json"
MODELS = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
OF_HUB = (JSON, *MODELS)
"""Files of a repository that may be its tokenizer; the first that is there is taken."""
CONFIG, SPECIAL_TOKENS_MAP = "tokenizer_config.json", "special_tokens_map.json"
CHAT_TEMPLATE = "chat_template.jinja"
ACCEPTED = "a tokenizer.json, a folder with one, a hub id, a .tiktoken rank file or a SentencePiece .model"


class Tokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """A tokenizer.json and the metadata in the files next to it."""

    name: str
    """Path or hub id, as given by the user."""
    kind: Kind
    """Format that was converted to the tokenizer.json."""
    json: str
    """Compact tokenizer.json without truncation, padding and dropout."""
    vocab_size: int
    """Largest id plus one, including added tokens."""
    special_tokens: dict[str, int]
    """Ids of the added tokens that are marked special, by their strings."""
    eos_token: str | None = None
    """End-of-sequence token declared by its files, which may be the end of a turn."""
    bos_token: str | None = None
    chat: bool = False
    """True if it comes with a chat template."""
    revision: str | None = None
    """Commit on the hub from which it was read."""

    @property
    def fingerprint(self) -> str:
        """Hash of everything that affects ids: 32 hexadecimal digits.

        Covers normalizer, pre-tokenizer, model, decoder and added tokens, independent of the order of keys
        and of the notation of merges. Excludes the post-processor, which is not applied to documents. Cost:
        one parse and one sorted rewrite, 0.3 s for 150,000 tokens; cached for a few tokenizers.
        """
        return _fingerprint(self.json)

    def reference(self) -> tokenizers.Tokenizer:
        """Build the tokenizer of HF `tokenizers`, whose ids are correct by definition; takes about 0.5 s."""
        import tokenizers

        with refusals(f"{self.name} is not a tokenizer that HF tokenizers reads"):
            return tokenizers.Tokenizer.from_str(self.json)


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Convert any exception of a library, including a panic of Rust code, to a `TokenizerError`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic is not an `Exception`
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TokenizerError(f"{what}: {message}") from error


_PARSED: dict[str, dict[str, Any]] = {}
"""Contents of the last two tokenizers that were written or read: parsing 11 MB takes 0.2 s."""


def parse_json(json: str) -> dict[str, Any]:
    """Contents of a tokenizer.json, which must not be changed."""
    if (contents := _PARSED.get(json)) is None:
        contents = msgspec.json.decode(json)
        _keep_parsed(json, contents)
    return contents


def make_json(contents: dict[str, Any], order: Literal["sorted"] | None = None) -> str:
    """The tokenizer.json of contents, which must not be changed any more."""
    json = msgspec.json.encode(contents, order=order).decode()
    _keep_parsed(json, contents)
    return json


def _keep_parsed(json: str, contents: dict[str, Any]) -> None:
    for other in list(_PARSED)[:-1]:
        _PARSED.pop(other, None)
    _PARSED[json] = contents


@lru_cache(maxsize=4)
def _fingerprint(text: str) -> str:
    whole = parse_json(text)
    model = dict(whole["model"])
    if "merges" in model:
        model["merges"] = merge_pairs(model["merges"])
    parts = ("normalizer", "pre_tokenizer", "decoder", "added_tokens")
    return hash_value({"model": model} | {part: whole.get(part) for part in parts})


def vocab_of(contents: dict[str, Any]) -> dict[str, int]:
    """Ids of the tokens of the model of a tokenizer.json, by their strings."""
    vocab = contents["model"]["vocab"]
    return vocab if isinstance(vocab, dict) else {piece: number for number, (piece, _) in enumerate(vocab)}


def unknown_token(model: dict[str, Any]) -> str | None:
    """String of the token for text that the vocabulary of a model does not know, if there is one."""
    if model.get("unk_id") is not None:  # Unigram
        return str(model["vocab"][model["unk_id"]][0])
    token: str | None = model.get("unk_token")
    return token


def steps_of(part: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    """Steps of a normalizer, pre-tokenizer or decoder: itself, or those of a sequence under the name `inner`.

    >>> steps_of({"type": "Sequence", "normalizers": [{"type": "NFC"}]}, "normalizers")
    [{'type': 'NFC'}]
    """
    if part is None or part.get("type") != "Sequence":
        return [] if part is None else [part]
    return [step for one in part.get(inner) or [] for step in steps_of(one, inner)]


def merge_pairs(merges: list[Any]) -> list[list[str]]:
    """Merges as pairs of tokens: files have `"a b"` or, newer ones, `["a", "b"]`."""
    return [pair.split(" ") if isinstance(pair, str) else pair for pair in merges]


def load_tokenizer(name: str, encoding: str | None = None) -> Tokenizer:
    """Read a tokenizer in any supported format and convert it to one tokenizer.json.

    An existing path is read; anything else is looked up on the hub, or in its cache. The
    format of a file is detected from its content.
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
    neighbors = _read_neighbors(file) if file.name == JSON or file.suffix == ".model" else {}
    kind, contents, declared = _contents(data, encoding, str(file))
    vocab_size, special_tokens = _ids(contents, str(file))
    contents |= {"truncation": None, "padding": None}
    if contents["model"].get("dropout") is not None:
        contents["model"]["dropout"] = None
    declared |= neighbors
    return Tokenizer(
        name=name,
        kind=kind,
        json=make_json(contents),
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        eos_token=declared.get("eos_token"),
        bos_token=declared.get("bos_token"),
        chat=bool(declared.get("chat")),
        revision=revision,
    )


def _tokenizer_file(folder: Path) -> Path:
    """Tokenizer file of a folder; if there is none, the error lists the contents of the folder."""
    if (folder / JSON).is_file():
        return folder / JSON
    for pattern in ("*.model", "*.tiktoken"):
        found = sorted(folder.glob(pattern))
        if len(found) > 1:
            names = ", ".join(file.name for file in found)
            raise TokenizerError(f"{folder} has several tokenizers: {names}", hint="name one of these files")
        if found:
            return found[0]
    there = ", ".join(sorted(entry.name for entry in folder.iterdir())[:5]) or "nothing"
    raise TokenizerError(
        f"no tokenizer in {folder}: expected {JSON}, a .model or a .tiktoken file, found {there}",
        hint=f"give {ACCEPTED}",
    )


def _contents(data: bytes, encoding: str | None, where: str) -> tuple[Kind, dict[str, Any], dict[str, Any]]:
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
    """True for pickles of protocols 2 to 5, by their header, and for zip files of torch.save."""
    return (data[:1] == b"\x80" and data[1:2] in (b"\2", b"\3", b"\4", b"\5")) or data[:4] == b"PK\3\4"


def _parse(data: bytes, where: str) -> dict[str, Any]:
    try:
        contents = msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TokenizerError(f"{where} is not JSON: {error}") from error
    if not isinstance(contents, dict):
        raise TokenizerError(
            f"{where} is no tokenizer: expected an object, found a {type(contents).__name__}"
        )
    return contents


def _ids(contents: dict[str, Any], where: str) -> tuple[int, dict[str, int]]:
    """Size of the vocabulary, and ids of special tokens."""
    model = contents.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, dict | list) or not vocab:
        keys = ", ".join(list(contents)[:6]) or "no keys"
        raise TokenizerError(
            f"{where} is no tokenizer: expected a model with a vocabulary, found {keys}",
            hint="a vocab.json or a config alone is not enough; the file wanted is called tokenizer.json",
        )
    try:
        added = contents.get("added_tokens") or []
        ids = {token["content"]: int(token["id"]) for token in added}
        special = {token["content"]: int(token["id"]) for token in added if token.get("special")}
        largest = max(vocab.values()) if isinstance(vocab, dict) else len(vocab) - 1
        return 1 + max(int(largest), *ids.values(), 0), special
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TokenizerError(
            f"{where} is no tokenizer: a token without an id or a string ({error!r})"
        ) from error


def _read_neighbors(file: Path) -> dict[str, Any]:
    """Declarations of the files next to a tokenizer; tokenizer_config.json overrides the older map."""
    declared: dict[str, Any] = {}
    for config in (SPECIAL_TOKENS_MAP, CONFIG):
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
    if (file.parent / CHAT_TEMPLATE).is_file():
        declared["chat"] = True
    return declared


class AddedToken(msgspec.Struct, frozen=True):
    content: str
    id: int
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


class _Whole(msgspec.Struct, frozen=True):
    added_tokens: list[AddedToken] | None = None


def read_added_tokens(json: str | bytes) -> list[AddedToken]:
    return msgspec.json.decode(json, type=_Whole).added_tokens or []


def config_bytes(special_tokens: Sequence[str], eos: str | None, bos: str | None) -> bytes:
    """Build the contents of tokenizer_config.json, with which transformers loads a folder.

    A tokenizer.json does not declare which token ends a document; trainers read it from here.
    """
    named = {"eos_token": eos, "bos_token": bos}
    config: dict[str, str | bool | list[str]] = {
        name: token for name, token in named.items() if token is not None
    }
    config |= {
        "additional_special_tokens": [token for token in special_tokens if token not in (eos, bos)],
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    return msgspec.json.format(msgspec.json.encode(config)) + b"\n"


def read_chat_template(tokenizer: str) -> str | None:
    """Read the chat template next to a tokenizer as text; None if there is none.

    It is in `chat_template.jinja` or, as a string or as one of a list of {name, template}, in
    `tokenizer_config.json`; the separate file takes precedence, as in transformers.
    """
    path = Path(tokenizer).expanduser()
    if not path.exists():
        path, _ = _from_hub(tokenizer)
    folder = path if path.is_dir() else path.parent
    try:
        if (folder / CHAT_TEMPLATE).is_file():
            return (folder / CHAT_TEMPLATE).read_text("utf-8")
        if not (folder / CONFIG).is_file():
            return None
        config = msgspec.json.decode((folder / CONFIG).read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TokenizerError(f"cannot read the chat template of {tokenizer}: {error}") from error
    value = config.get("chat_template") if isinstance(config, dict) else None
    if value is None or isinstance(value, str):
        return value or None
    named = {one.get("name"): one.get("template") for one in value if isinstance(one, dict)}
    found = named.get("default", next(iter(named.values())) if len(named) == 1 else None)
    if not isinstance(found, str):
        raise TokenizerError(
            f"{tokenizer} has several chat templates and no default: found {', '.join(map(str, named))}",
            hint="write the one to use to a file, and name it with --chat-template",
        )
    return found


KNOWN_NAMES = {
    "cl100k_base": "Xenova/gpt-4",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "gpt-neox": "EleutherAI/gpt-neox-20b",
    "gpt2": "openai-community/gpt2",
    "llama3": "meta-llama/Meta-Llama-3-8B",
    "mistral": "mistralai/Mistral-7B-v0.1",
    "o200k_base": "Xenova/gpt-4o",
    "olmo2": "allenai/OLMo-2-1124-7B",
    "phi-4": "microsoft/phi-4",
    "qwen2.5": "Qwen/Qwen2.5-7B",
    "qwen3": "Qwen/Qwen3-8B",
    "r50k_base": "openai-community/gpt2",
    "smollm2": "HuggingFaceTB/SmolLM2-1.7B",
}
"""Hub ids of well-known tokenizers; a local file or folder of the same name takes precedence."""
CONNECT_SECONDS, ANSWER_SECONDS = 2.0, 5.0
"""Patience with the hub: for a connection, and for its answer."""

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def hub_id(name: str) -> tuple[str, str | None] | None:
    """Repository and revision that a name stands for; None if it looks like a path."""
    repository, _, revision = name.partition("@")
    if name.startswith(("/", ".", "~")) or name.endswith((".json", ".model", ".tiktoken")):
        return None
    if not _NAME.fullmatch(repository):
        return None
    return KNOWN_NAMES.get(repository.lower(), repository), revision or None


def _from_hub(name: str) -> tuple[Path, str]:
    """Fetch a tokenizer and the small files next to it, all of one commit; return its file and the commit."""
    if (found := hub_id(name)) is None:
        raise TokenizerError(
            f"no tokenizer at {name}: expected a file or folder, found nothing", hint=f"give {ACCEPTED}"
        )
    from huggingface_hub import HfApi, constants, hf_hub_download

    repository, revision = found
    if constants.HF_HUB_OFFLINE:
        return _cached(repository, revision, OF_HUB) or _absent(name, "HF_HUB_OFFLINE is set")
    try:
        # Both HTTP clients that the library has had take a pair; its signature has one number.
        patience: Any = (CONNECT_SECONDS, ANSWER_SECONDS)
        info = HfApi().model_info(repository, revision=revision, timeout=patience)
        there = {file.rfilename for file in info.siblings or ()}
        first = next((file for file in OF_HUB if file in there), None)
        if first is None or info.sha is None:
            raise TokenizerError(
                f"no tokenizer {name} in the hub: expected one of {', '.join(OF_HUB)}, found none",
                hint="a tokenizer that needs its own code is not read; save it as a tokenizer.json first",
            )
        cached = _cached(repository, revision, (first,))
        if cached is not None and cached[1] == info.sha:
            path, commit = cached
        else:  # by the revision's name, so that the cache finds the commit by that name later
            path = Path(hf_hub_download(repository, first, revision=revision))
            commit = path.parent.name
        for file in (CONFIG, SPECIAL_TOKENS_MAP, CHAT_TEMPLATE):
            if file in there:
                hf_hub_download(repository, file, revision=commit)
        return path, commit
    except TokenizerError:
        raise
    except Exception as error:  # errors of the hub or its HTTP client, a full disk
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        if _is_answer(error):
            raise TokenizerError(
                f"cannot load the tokenizer {name}: no file or folder of that name here, and from the hub"
                f" {reason}",
                hint=f"{_suggestion(name)}a private or gated repository needs HF_TOKEN",
            ) from error
    silence = f"{constants.ENDPOINT} does not answer: {reason}"
    return _cached(repository, revision, OF_HUB) or _absent(name, silence)


def _cached(repository: str, revision: str | None, wanted: tuple[str, ...]) -> tuple[Path, str] | None:
    from huggingface_hub import try_to_load_from_cache

    for file in wanted:
        if isinstance(found := try_to_load_from_cache(repository, file, revision=revision), str):
            return Path(found), Path(found).parent.name  # the cache has one folder per commit
    return None


def _absent(name: str, why: str) -> tuple[Path, str]:
    raise TokenizerError(
        f"no tokenizer {name}: no file or folder of that name here, none in the cache of the hub, and {why}",
        hint=f"{_suggestion(name)}give the path of a {JSON}, or of a folder with one; without a "
        "network, packline tokenizer train makes one of your text",
    )


def _suggestion(name: str) -> str:
    return "" if "/" in name or name.lower() in KNOWN_NAMES else did_you_mean(name, KNOWN_NAMES)


def _is_answer(error: Exception) -> bool:
    """True if the hub has answered: with a refusal, or with files that cannot be stored here."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return (status is not None and status < 500) or (status is None and isinstance(error, ValueError))
