"""Speed of the working tree beside a commit, in minutes, on text that every machine has.

    make bench-quick WITH=COMMIT

The text is the library of this machine's Python, and the tokenizer is trained on it, unless one is given: no
corpus, peer or tokenizer needs to be installed. The tasks are those of `against`. The commit's sources are
extracted into a temporary folder.

A task counts as slower if its ratio is below `SLOWER` and even its fastest run is slower than the slowest of
the commit. With five rounds and equal speed, the second happens by chance in one of 252 cases.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from benchmarks.against import TASKS, Compared, measure_against, table
from benchmarks.catalogue import read_tokenizer
from benchmarks.errors import BenchmarkError
from benchmarks.options import ROOT
from packline.cli.demo import VOCAB_SIZE, gather
from packline.vocabulary.training import train_bpe

SLOWER = 0.85
SECONDS = 0.5
"""Duration of each measurement of batches and rows."""
LEFT_OUT = ("packline --version", "build, one worker", "export llmc", "trace a step")
"""Tasks whose code others run too."""


def measure_quick(
    commit: str, tokenizer: Path | None, eod: str, *, rounds: int, say: Callable[[str], None]
) -> None:
    """Compare the working tree with a commit, and print the table.

    Raises:
        BenchmarkError: a task is slower, or failed; there is no such commit.
    """
    with tempfile.TemporaryDirectory(prefix="packline-") as scratch:
        folder = Path(scratch)
        extract_sources(commit, folder / "commit")
        say("text and tokenizer: the library of this machine's Python")
        path = write_text(folder, tokenizer, eod)
        found = measure_against(
            folder,
            folder / "commit",
            Path(read_tokenizer(path, eod).path),
            eod,
            rounds=rounds,
            names=[name for name in TASKS if name not in LEFT_OUT],
            seconds=SECONDS,
            say=say,
        )
    for line in table(found):
        say(line)
    if names := slower(found):
        raise BenchmarkError(
            f"slower than {commit}: {', '.join(f'{name} ({found[name].ratio:.2f})' for name in names)}",
            hint="python -m benchmarks against --other CHECKOUT --only TASK --rounds 10",
        )


def slower(found: Mapping[str, Compared]) -> list[str]:
    """Tasks that are slower by more than chance.

    >>> slower({"a": Compared([2.0, 2.1], [1.0, 1.9]), "b": Compared([2.0, 2.1], [1.0, 2.0])})
    ['a']
    """
    return [name for name, one in found.items() if one.ratio < SLOWER and min(one.this) > max(one.other)]


def extract_sources(commit: str, folder: Path) -> None:
    """Write the sources of a commit into a new folder.

    Raises:
        BenchmarkError: this is no git repository, or it has no such commit.
    """
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", commit, "src"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"no sources of {commit!r}: {done.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as files:
        files.extractall(folder, filter="data")


def write_text(folder: Path, tokenizer: Path | None, eod: str) -> Path:
    """Write the text into `english.jsonl`; return the path of the tokenizer, trained if there is none."""
    corpus = gather(folder)
    encode = msgspec.json.Encoder().encode
    with (folder / "english.jsonl").open("wb") as lines:
        for text in corpus.texts():
            lines.write(encode({"text": text}) + b"\n")
    if tokenizer is not None:
        return tokenizer
    corpus.tokenizer.write_text(train_bpe(corpus.texts(), VOCAB_SIZE, (eod,)), encoding="utf-8")
    return corpus.tokenizer
