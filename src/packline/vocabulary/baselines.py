"""Baseline tokenizers for comparisons: files, folders, and common tokenizers of the hub by name.

    a path that exists   read directly
    anything else        one request to the hub, with a short timeout; without an answer, the hub's local
    cache

A comparison continues without a baseline that is not available, so the timeout is short and there are no
retries. (When a build loads its tokenizer, the hub's client retries for minutes.)

Cost: one request per baseline.
"""

from __future__ import annotations

from pathlib import Path

from packline.encoders.tokenizer import JSON, Tokenizer, load_tokenizer
from packline.errors import TokenizerError

PATIENCE_SECONDS = 5.0
"""Timeout for the hub's response."""
ON_THE_HUB = {
    "gpt2": "openai-community/gpt2",
    "r50k_base": "openai-community/gpt2",
    "cl100k_base": "Xenova/gpt-4",
    "o200k_base": "Xenova/gpt-4o",
}
"""Hub ids of common baselines; a local file or folder of the same name takes precedence."""


def load_baseline(name: str) -> Tokenizer:
    """Read a baseline, or fail quickly if it is not available.

    Args:
        name: a file, a folder, a hub id, or a key of `ON_THE_HUB`.

    Raises:
        TokenizerError: nothing found, not a tokenizer, or in neither the hub nor its cache.

    >>> load_baseline("./missing.json")
    Traceback (most recent call last):
    packline.errors.TokenizerError: no tokenizer at ./missing.json: expected a file or folder, found nothing
    """
    if Path(name).expanduser().exists():
        return load_tokenizer(name)
    name = ON_THE_HUB.get(name, name)
    if name.endswith((".json", ".model", ".tiktoken")):  # a path, never a hub id
        return load_tokenizer(name)
    return load_tokenizer(_cached_where_the_hub_is_silent(name) or name)


def _cached_where_the_hub_is_silent(name: str) -> str | None:
    """The cached file of a hub id if the hub does not answer; None if it does, or must not be contacted.

    Raises:
        TokenizerError: the hub does not answer, and the file is not cached.
    """
    from huggingface_hub import constants, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    repository, _, revision = name.partition("@")
    try:
        cached = try_to_load_from_cache(repository, JSON, revision=revision or None)
        address = hf_hub_url(repository, JSON, revision=revision or None)
    except HFValidationError:  # not a hub id; loading it reports that
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
    """The reason why the hub does not answer; empty if it answers, even with a refusal."""
    from huggingface_hub import get_session

    try:
        answer = get_session().head(address, timeout=PATIENCE_SECONDS, follow_redirects=False)
    except Exception as error:  # errors of the HTTP client, which depend on its version
        return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"status {answer.status_code}" if answer.status_code >= 500 else ""
