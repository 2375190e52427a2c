"""Stores and a run file that several commands look at."""

from __future__ import annotations

import json
from pathlib import Path

from tests.store.stores import build_store

ESCAPE = "\x1b[2J\x1b]0;title\x07"
"""A text that would repaint a terminal."""


def write_runs(folder: Path, tokenizer: Path, texts: dict[str, list[str]], run: str) -> Path:
    """Stores with these texts, whose ids are the store's name and a number, and `run.toml`."""
    for name, own in texts.items():
        lines = [json.dumps({"text": text, "id": f"{name}{n}"}) + "\n" for n, text in enumerate(own)]
        (folder / f"{name}.jsonl").write_text("".join(lines), "utf-8")
        build_store(folder / f"{name}.jsonl", tokenizer, folder / name)
    (folder / "run.toml").write_text(run, "utf-8")
    return folder


def mixture(loader: str, tokens: int, **sources: str) -> str:
    """A run file with one stage of sources by their stores, in rows of 32 tokens."""
    stage = f"[loader]\n{loader}\n[[stages]]\nseq_len = 32\ntokens = {tokens}\n"
    return stage + "".join(f'[[stages.sources]]\nstore = "{one}"\n{more}\n' for one, more in sources.items())
