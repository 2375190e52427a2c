"""Stores and a run file that several commands look at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.store.stores import build_store

ESCAPE = "\x1b[2J\x1b]0;title\x07"
"""A text that would repaint a terminal."""


def write_runs(
    folder: Path,
    tokenizer: Path,
    write_jsonl: Callable[..., Path],
    texts: dict[str, list[str]],
    run: str,
) -> Path:
    """Stores with these texts, whose ids are the store's name and a number, and `run.toml`."""
    for name, own in texts.items():
        records: list[dict[str, Any]] = [{"text": text, "id": f"{name}{n}"} for n, text in enumerate(own)]
        build_store(write_jsonl(folder / f"{name}.jsonl", records), tokenizer, folder / name)
    (folder / "run.toml").write_text(run, "utf-8")
    return folder


def mixture(loader: str, tokens: int, **sources: str) -> str:
    """A run file with one stage of sources by their stores, in rows of 32 tokens."""
    stage = f"[loader]\n{loader}\n[[stages]]\nseq_len = 32\ntokens = {tokens}\n"
    return stage + "".join(f'[[stages.sources]]\nstore = "{one}"\n{more}\n' for one, more in sources.items())
