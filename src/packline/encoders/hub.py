"""Tokenizers of the Hugging Face hub: well-known names, one question, and the cache without an answer.

    gpt2, openai-community/gpt2, Qwen/Qwen3-8B@COMMIT      names
    one question to the hub                                its commit and the names of its files
    files of that commit that are not in the cache         fetched

`HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT` and `HF_HUB_OFFLINE` apply. With `HF_HUB_OFFLINE`, and where the hub does
not answer, the cache is used.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from packline.errors import TokenizerError, did_you_mean

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


def fetch_files(name: str, wanted: tuple[str, ...], neighbors: tuple[str, ...]) -> tuple[Path, str]:
    """The first wanted file of a repository and its commit; it and its neighbors are fetched to the cache."""
    from huggingface_hub import HfApi, constants, hf_hub_download

    repository, revision = hub_id(name) or (name, None)
    if constants.HF_HUB_OFFLINE:
        return _cached(repository, revision, wanted) or _absent(name, wanted, "HF_HUB_OFFLINE is set")
    try:
        # Both HTTP clients that the library has had take a pair; its signature has one number.
        patience: Any = (CONNECT_SECONDS, ANSWER_SECONDS)
        info = HfApi().model_info(repository, revision=revision, timeout=patience)
        there = {file.rfilename for file in info.siblings or ()}
        first = next((file for file in wanted if file in there), None)
        if first is None or info.sha is None:
            raise TokenizerError(
                f"no tokenizer {name} in the hub: expected one of {', '.join(wanted)}, found none",
                hint="a tokenizer that needs its own code is not read; save it as a tokenizer.json first",
            )
        cached = _cached(repository, revision, (first,))
        if cached is not None and cached[1] == info.sha:
            path, commit = cached
        else:  # by the revision's name, so that the cache finds the commit by that name later
            path = Path(hf_hub_download(repository, first, revision=revision))
            commit = path.parent.name
        for file in neighbors:
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
    return _cached(repository, revision, wanted) or _absent(name, wanted, silence)


def _cached(repository: str, revision: str | None, wanted: tuple[str, ...]) -> tuple[Path, str] | None:
    from huggingface_hub import try_to_load_from_cache

    for file in wanted:
        if isinstance(found := try_to_load_from_cache(repository, file, revision=revision), str):
            return Path(found), Path(found).parent.name  # the cache has one folder per commit
    return None


def _absent(name: str, wanted: tuple[str, ...], why: str) -> tuple[Path, str]:
    raise TokenizerError(
        f"no tokenizer {name}: no file or folder of that name here, none in the cache of the hub, and {why}",
        hint=f"{_suggestion(name)}give the path of a {wanted[0]}, or of a folder with one; without a "
        "network, packline tokenizer train makes one of your text",
    )


def _suggestion(name: str) -> str:
    return "" if "/" in name or name.lower() in KNOWN_NAMES else did_you_mean(name, KNOWN_NAMES)


def _is_answer(error: Exception) -> bool:
    """True if the hub has answered: with a refusal, or with files that cannot be stored here."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return (status is not None and status < 500) or (status is None and isinstance(error, ValueError))
