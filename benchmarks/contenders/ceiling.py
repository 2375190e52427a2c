"""How fast an engine encodes documents that are already in memory, on all cores: the ceiling.

A process a core, or one process with the engine's own threads. Every process first decodes its
share of the documents and loads the tokenizer; then all wait for each other, and only encoding is
timed, from the first start to the last end. Nothing is read, written or kept: ids are counted and
dropped. So no tool that reads and writes can be faster with this engine.

    python -m benchmarks.contenders.ceiling english.jsonl TOKENIZER --engine gigatoken

Special-token strings in documents are plain text, as in a build.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

Encode = Callable[[Any], int]
"""Encodes a batch of documents and returns the number of ids."""


def main() -> None:
    """Run all processes, or, with --share, be one of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("corpus", help="a JSONL file with the field text")
    parser.add_argument("tokenizer", help="a tokenizer.json")
    parser.add_argument("--engine", choices=["gigatoken", "fastokens"], required=True)
    parser.add_argument("--threads", action="store_true", help="one process with the engine's own threads")
    parser.add_argument("--unpinned", action="store_true", help="do not tie each process to a core")
    parser.add_argument("--arrow", action="store_true", help="documents as Arrow strings (gigatoken)")
    parser.add_argument("--batch-bytes", type=int, default=1 << 20)
    parser.add_argument("--share", help="I/N: be process I of N")
    arguments = parser.parse_args()
    if arguments.share:
        be_one_process(arguments)
    else:
        run_all_processes(1 if arguments.threads else len(os.sched_getaffinity(0)))


def run_all_processes(count: int) -> None:
    """Start `count` copies of this command, let them begin together, and add up."""
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmarks.contenders.ceiling",
                *sys.argv[1:],
                "--share",
                f"{number}/{count}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    for process in processes:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise SystemExit(f"a process of the ceiling ended with {process.wait()} before it began")
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    reports = [json.loads(process.communicate()[0]) for process in processes]
    total = {key: sum(report[key] for report in reports) for key in ("documents", "tokens", "text_bytes")}
    # The clock is the machine's, the same in every process.
    seconds = max(report["end"] for report in reports) - min(report["start"] for report in reports)
    print(json.dumps({**total, "seconds": seconds, "tokenizer_seconds": reports[0]["tokenizer_seconds"]}))


def be_one_process(arguments: argparse.Namespace) -> None:
    """Decode every N-th document, get ready, wait for the word, encode, report."""
    number, count = map(int, arguments.share.split("/"))
    if count > 1 and not arguments.unpinned:
        # Before the engine is imported: a pool of threads is made for the cores that a process may use.
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[number]})
    batches, text_bytes = read_batches(arguments.corpus, number, count, arguments.batch_bytes)
    documents = sum(len(batch) for batch in batches)
    began = time.perf_counter()
    encode = load_engine(arguments.engine, arguments.tokenizer, threads=arguments.threads)
    tokenizer_seconds = time.perf_counter() - began
    prepared = [_as_arrow(batch) for batch in batches] if arguments.arrow else batches
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    tokens = 0
    for batch in prepared:
        tokens += encode(batch)
    end = time.perf_counter()
    report = {"documents": documents, "tokens": tokens, "text_bytes": text_bytes, "start": start, "end": end}
    print(json.dumps({**report, "tokenizer_seconds": tokenizer_seconds}))


def read_batches(corpus: str, number: int, count: int, batch_bytes: int) -> tuple[list[list[str]], int]:
    """Every `count`-th document from `number` on, in batches of about `batch_bytes`; and their bytes."""
    import msgspec

    class Record(msgspec.Struct):
        text: str

    decoder = msgspec.json.Decoder(Record)
    batches: list[list[str]] = []
    batch: list[str] = []
    text_bytes = batch_size = 0
    with open(corpus, "rb") as file:
        for index, line in enumerate(file):
            if index % count != number:
                continue
            text = decoder.decode(line).text
            size = len(text) if text.isascii() else len(text.encode())
            text_bytes += size
            batch_size += size
            batch.append(text)
            if batch_size >= batch_bytes:
                batches.append(batch)
                batch, batch_size = [], 0
    return [*batches, batch] if batch else batches, text_bytes


def load_engine(engine: str, tokenizer: str, *, threads: bool) -> Encode:
    """A function that encodes a batch without adding tokens or obeying special-token strings."""
    if engine == "gigatoken":
        import awkward as ak  # gigatoken needs it at its first batch; half a second that is not encoding
        import gigatoken

        giga = gigatoken.Tokenizer.from_json(without_special_tokens(tokenizer))
        assert ak is not None
        return lambda batch: int(giga.encode_batch(batch, parallel=threads).layout.offsets[-1])
    from fastokens._native import Tokenizer

    fast = Tokenizer.from_file(tokenizer)
    return lambda batch: len(fast.encode_batch_flat(batch, split_special_tokens=True)[0]) // 4


def without_special_tokens(tokenizer: str) -> str:
    """The tokenizer.json with its special added tokens taken out: their strings become plain text."""
    with open(tokenizer, encoding="utf-8") as file:
        content = json.load(file)
    content["added_tokens"] = [token for token in content.get("added_tokens", []) if not token["special"]]
    return json.dumps(content)


def _as_arrow(batch: list[str]) -> Any:
    import awkward as ak
    import pyarrow as pa

    return ak.from_arrow(pa.array(batch, pa.large_string()))


if __name__ == "__main__":
    main()
