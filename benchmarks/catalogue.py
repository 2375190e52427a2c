"""Who is compared with whom, on what: every contender as a command line.

- english: the ceiling in all its variants; packline from JSONL, Parquet and one `.jsonl.zst`;
  gigatoken in Megatron's style;
- slice: datatrove; HF datasets (their rates are compared, not their times);
- mixed: the ceiling in all its variants; packline choosing its engine, and held to each.

A second tokenizer is measured on English alone: ceiling, and packline from JSONL.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.errors import BenchmarkError

Kind = Literal["ceiling", "packline", "peer"]

CEILINGS = {
    "gigatoken, one process per core": ["--engine", "gigatoken"],
    "gigatoken, one process per core, 8 MiB batches": [
        "--engine",
        "gigatoken",
        "--batch-bytes",
        str(8 << 20),
    ],
    "gigatoken, one process per core, Arrow": ["--engine", "gigatoken", "--arrow"],
    "gigatoken, its own threads": ["--engine", "gigatoken", "--threads", "--batch-bytes", str(8 << 20)],
    "fastokens, one process per core": ["--engine", "fastokens"],
    "fastokens, one process per core, 8 MiB batches": [
        "--engine",
        "fastokens",
        "--batch-bytes",
        str(8 << 20),
    ],
    "fastokens, one process per core, unpinned": ["--engine", "fastokens", "--unpinned"],
    "fastokens, its own threads": ["--engine", "fastokens", "--threads", "--batch-bytes", str(8 << 20)],
}


class TokenizerFile(msgspec.Struct, frozen=True):
    """A tokenizer.json, what tables call it, and its end of document."""

    name: str
    path: str
    eod: str
    eod_id: int


class Contender(msgspec.Struct, frozen=True):
    """One command to measure. `{out}` in it becomes a fresh folder, removed afterwards."""

    name: str
    kind: Kind
    corpus: str
    tokenizer: str
    command: list[str]


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _Model(msgspec.Struct):
    vocab: dict[str, int] | msgspec.Raw


class _TokenizerJson(msgspec.Struct):
    model: _Model
    added_tokens: list[_AddedToken] = []


def read_tokenizer(path: Path, eod: str) -> TokenizerFile:
    """Find the id of the end of document, which peers want as a number.

    Raises:
        BenchmarkError: no tokenizer.json there, or no such token in it.
    """
    if path.is_dir():
        path = path / "tokenizer.json"
    try:
        content = msgspec.json.decode(path.read_bytes(), type=_TokenizerJson)
    except (OSError, msgspec.DecodeError) as error:
        raise BenchmarkError(f"{path} is no tokenizer.json: {error}", hint="--tokenizer PATH") from error
    ids = dict(content.model.vocab) if isinstance(content.model.vocab, dict) else {}
    ids |= {token.content: token.id for token in content.added_tokens}
    if eod not in ids:
        raise BenchmarkError(f"{path} has no token {eod!r}", hint="name the end of document with --eod")
    return TokenizerFile(path.parent.name, str(path.resolve()), eod, ids[eod])


def ceilings(corpus: str, file: Path, tokenizer: TokenizerFile, engines: set[str]) -> list[Contender]:
    """Every variant of the ceiling for the engines that proved exact here."""
    script = [sys.executable, "-m", "benchmarks.contenders.ceiling", str(file), tokenizer.path]
    processes = len(os.sched_getaffinity(0))
    return [
        Contender(name, "ceiling", corpus, tokenizer.name, [*script, *options])
        for name, options in CEILINGS.items()
        if options[1] in engines and (processes > 1 or "--threads" not in options)
    ]


def packline(name: str, corpus: str, file: Path, tokenizer: TokenizerFile, *options: str) -> Contender:
    """`packline build` of one file, as a user would type it."""
    command = [sys.executable, "-m", "packline", "build", str(file), "--tokenizer", tokenizer.path]
    command += ["--eod", tokenizer.eod, "--out", "{out}", "--json", *options]
    return Contender(name, "packline", corpus, tokenizer.name, command)


def peer(
    name: str, corpus: str, script: str, python: str, *arguments: str, tokenizer: TokenizerFile
) -> Contender:
    """One of the scripts in `contenders`, under the interpreter that has the peers."""
    command = [python, "-m", f"benchmarks.contenders.{script}", tokenizer.path, *arguments]
    return Contender(name, "peer", corpus, tokenizer.name, command)


def all_contenders(
    folder: Path,
    corpora: list[str],
    tokenizers: list[TokenizerFile],
    engines: dict[tuple[str, str], set[str]],
    peers_python: str | None,
) -> list[Contender]:
    """Everything that is measured in one round, in this order.

    Args:
        folder: where the corpus lies.
        corpora: which of english, slice and mixed to measure.
        tokenizers: the first is measured on everything, others on English alone.
        engines: the exact engines, by (corpus, tokenizer name).
        peers_python: an interpreter with the peers, or None to leave them out.
    """
    contenders: list[Contender] = []
    first = tokenizers[0]
    english = folder / "english.jsonl"
    for tokenizer in tokenizers if "english" in corpora else []:
        contenders += ceilings("english", english, tokenizer, engines["english", tokenizer.name])
        contenders.append(packline("packline, JSONL", "english", english, tokenizer))
    if "english" in corpora:
        contenders.append(packline("packline, Parquet", "english", folder / "english.parquet", first))
        contenders.append(
            packline("packline, one .jsonl.zst", "english", folder / "english.jsonl.zst", first)
        )
    if "english" in corpora and peers_python:
        for name, options in {"Megatron style": [], "Megatron style, JSON in Python": ["--decode"]}.items():
            arguments = [str(first.eod_id), "{out}", str(english), *options]
            contenders.append(peer(name, "english", "megatron", peers_python, *arguments, tokenizer=first))
    if "slice" in corpora and peers_python:
        part = str(folder / "slice")
        for name, script, eod in (
            ("datatrove", "datatrove_tokenizer", first.eod),
            ("HF datasets map", "datasets_map", str(first.eod_id)),
        ):
            contenders.append(peer(name, "slice", script, peers_python, eod, "{out}", part, tokenizer=first))
    if "mixed" in corpora:
        mixed = folder / "mixed.jsonl"
        contenders += ceilings("mixed", mixed, first, engines["mixed", first.name])
        contenders.append(packline("packline, JSONL", "mixed", mixed, first))
        for engine in sorted(engines["mixed", first.name]):
            name = f"packline, {engine} only"
            contenders.append(packline(name, "mixed", mixed, first, "--engine", engine))
    return contenders
