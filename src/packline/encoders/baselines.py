"""Tokenizers to compare with: files, folders, and the usual ones of the hub by name.

    a path that exists   read as it is
    anything else        the hub is asked once, with a short wait; where it is silent, the cache of the hub

A comparison goes on without a baseline that cannot be had. So it does not wait for one as a build waits for
its tokenizer, for which the hub's client tries again and again, for minutes.

Cost: a request a baseline. What it does not do: wait longer for slow networks, or try twice.
"""

from __future__ import annotations

from pathlib import Path

from packline.encoders.tokenizer import JSON, Tokenizer, load_tokenizer
from packline.errors import TokenizerError

PATIENCE_SECONDS = 5.0
"""For the hub's first word."""
ON_THE_HUB = {
    "gpt2": "openai-community/gpt2",
    "r50k_base": "openai-community/gpt2",
    "cl100k_base": "Xenova/gpt-4",
    "o200k_base": "Xenova/gpt-4o",
}
"""Where the usual baselines are; a file or folder of such a name goes first."""


def load_baseline(name: str) -> Tokenizer:
    """Read a baseline, or say soon that it is not to be had.

    Args:
        name: a file, a folder, a hub id, or a name of `ON_THE_HUB`.

    Raises:
        TokenizerError: nothing there, not a tokenizer, or neither the hub nor its cache has it.

    >>> load_baseline("./missing.json")
    Traceback (most recent call last):
    packline.errors.TokenizerError: no tokenizer at ./missing.json: expected a file or folder, found nothing
    """
    if Path(name).expanduser().exists():
        return load_tokenizer(name)
    name = ON_THE_HUB.get(name, name)
    if name.endswith((".json", ".model", ".tiktoken")):  # a path, and no business of the hub's
        return load_tokenizer(name)
    return load_tokenizer(_cached_where_the_hub_is_silent(name) or name)


def _cached_where_the_hub_is_silent(name: str) -> str | None:
    """The cached file of a hub id where the hub does not answer; None where it does, or is not to be asked.

    Raises:
        TokenizerError: it does not answer, and the file is not cached.
    """
    from huggingface_hub import constants, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    repository, _, revision = name.partition("@")
    try:
        cached = try_to_load_from_cache(repository, JSON, revision=revision or None)
        address = hf_hub_url(repository, JSON, revision=revision or None)
    except HFValidationError:  # no hub id; whoever loads it says so
        return None
    if constants.HF_HUB_OFFLINE or not (reason := _silence(address)):
        return None
    if isinstance(cached, str):
        return cached
    raise TokenizerError(
        f"no such path here, {name} is not in the cache of the hub, and {constants.ENDPOINT} does not"
        f" answer: {reason}"
    )


def _silence(address: str) -> str:
    """Why there is no answer, or nothing where there is one, be it a refusal."""
    from huggingface_hub import get_session

    try:
        answer = get_session().head(address, timeout=PATIENCE_SECONDS, follow_redirects=False)
    except Exception as error:  # those of its HTTP client, by whatever version
        return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"status {answer.status_code}" if answer.status_code >= 500 else ""
