"""Options of `python -m benchmarks`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results.json"
SHARED = ROOT.parent / "shared"


def make_parser(description: str) -> argparse.ArgumentParser:
    """Options of all commands."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=description)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--folder", type=Path, default=cache / "packline" / "benchmarks", help="folder of the corpus"
    )
    common.add_argument("--results", type=Path, default=RESULTS)
    commands = parser.add_subparsers(dest="command", required=True)

    command = commands.add_parser("corpus", parents=[common], help="gather real text and write the files")
    command.add_argument("--size", default="600MB", help="text in the English corpus")
    command.add_argument("--slice-size", default="40MB", help="text for the slow peers")
    command.add_argument("--memory-size", default="0", help="size of memory.jsonl, for `memory`: 5.2GB")
    command.add_argument("--shared", type=Path, default=SHARED, help="folder with corpora/*.jsonl.zst")

    command = commands.add_parser("run", parents=[common], help="measure rates")
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument("--corpora", default="english,slice,mixed")
    _add_tokenizer(command)
    command.add_argument("--peers-python", help="interpreter with peers.txt installed")

    command = commands.add_parser("memory", parents=[common], help="measure memory on growing inputs")
    command.add_argument("--sizes", default="600MB,1.2GB,2.4GB,5GB")
    _add_tokenizer(command)

    command = commands.add_parser("packing", parents=[common], help="measure best_fit on synthetic lengths")
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument("--documents", type=int, default=100_000_000)
    command.add_argument(
        "--compared", type=int, default=1_000_000, help="documents packed one piece at a time"
    )
    command.add_argument("--seq-len", type=int, default=4096)

    command = commands.add_parser("selecting", parents=[common], help="measure selections of documents")
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--documents", type=int, default=100_000_000)

    command = commands.add_parser("loading", parents=[common], help="measure batches, opening, permuting")
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument("--seconds", type=float, default=3.0, help="time per contender")
    command.add_argument("--documents", type=int, default=100_000_000, help="documents of the opened store")
    _add_tokenizer(command)
    command.add_argument("--peers-python", help="interpreter with the peers of loading")

    command = commands.add_parser("cold", parents=[common], help="measure reading from a cold disk")
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument("--size", default="4GB", help="tokens of the store")
    command.add_argument("--seconds", type=float, default=20.0, help="longest time of one run")

    command = commands.add_parser("export", parents=[common], help="measure the rates of exports")
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument("--size", default="2GB", help="tokens of the large store")
    command.add_argument("--small-size", default="100MB", help="tokens of the small store")
    command.add_argument("--formats", help="formats, separated by commas; default: all")
    _add_tokenizer(command)

    command = commands.add_parser("reuse", parents=[common], help="measure builds that reuse a store")
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--size", default="2GB", help="size of the 20 input files together")
    _add_tokenizer(command)

    command = commands.add_parser("remote", parents=[common], help="measure builds from an object server")
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument("--inputs", help="files of the corpus, separated by commas; default: all three")
    command.add_argument("--reads", action="store_true", help="batches for training instead; not kept")
    command.add_argument("--waits", action="store_true", help="waits for late answers instead; not kept")
    command.add_argument("--steps", type=int, default=1500, help="batches of a run with --reads, --waits")
    _add_tokenizer(command)

    command = commands.add_parser("ray", parents=[common], help="compare Ray with this machine")
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    _add_tokenizer(command)

    command = commands.add_parser("chaos", parents=[common], help="kill processes of builds at random")
    command.add_argument("--kills", type=int, default=200)
    command.add_argument("--seed", type=int, default=15)

    command = commands.add_parser("merge", parents=[common], help="measure merging and comparing stores")
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--size", default="10GB", help="tokens of the merged store")
    _add_tokenizer(command)

    command = commands.add_parser("units", parents=[common], help="measure units without work")
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--workers", type=int, default=2)
    command.add_argument("--counts", default="1k,10k,1M", help="numbers of units, separated by commas")
    command.add_argument(
        "--builds", help="only drivers of builds with these numbers of units, such as 1k,100k"
    )
    _add_tokenizer(command)

    command = commands.add_parser("training", parents=[common], help="measure training of tokenizers")
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--size", default="300MB", help="size of the training text")
    command.add_argument("--vocab-size", type=int, default=32768)
    command.add_argument("--peers-python", help="interpreter with peers.txt installed")

    command = commands.add_parser("sft", parents=[common], help="measure conversations")
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument(
        "--dialogues",
        type=Path,
        default=SHARED / "corpora" / "dialogs.jsonl.zst",
        help="texts with lines `User: ...` and `Assistant: ...`",
    )
    command.add_argument("--peers-python", required=True, help="interpreter with transformers")
    _add_tokenizer(command)

    command = commands.add_parser("steps", parents=[common], help="measure waits of training for batches")
    command.add_argument("--models", default="tiny,124m", help="sizes, separated by commas")
    command.add_argument("--steps", type=int, default=50, help="steps that are counted")
    command.add_argument("--rows", type=int, default=1, help="rows of 8,192 tokens per batch")

    command = commands.add_parser("against", parents=[common], help="compare with another checkout")
    command.add_argument("--other", type=Path, required=True, help="the other checkout")
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument("--only", default="", help="prefixes of task names, separated by commas")
    _add_tokenizer(command)

    command = commands.add_parser("quick", help="compare with a commit, on text that every machine has")
    command.add_argument("--with", dest="commit", default="HEAD", help="the commit; default: HEAD")
    command.add_argument("--rounds", type=int, default=5)
    _add_tokenizer(command)

    command = commands.add_parser("simulate", help="simulate a build on many machines")
    command.add_argument("--nodes", type=int, default=50)
    command.add_argument("--workers", type=int, default=20, help="workers of each node")
    command.add_argument("--units", type=int, default=400_000)
    command.add_argument("--losses", type=float, default=0.5, help="losses a node and hour")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--how", default="ray,slices", help="choice of units")

    command = commands.add_parser("render", parents=[common], help="rewrite the tables")
    command.add_argument("--page", type=Path, default=ROOT / "docs" / "benchmarks.md")
    command.add_argument("--goals", type=Path, default=ROOT / "benchmarks" / "README.md")
    return parser


def _add_tokenizer(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--tokenizer",
        type=Path,
        action="append",
        help="a tokenizer.json or a folder with one; the first is measured on everything",
    )
    command.add_argument("--eod", default="<|endoftext|>")
