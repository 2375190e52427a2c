"""How long the pages of `packline serve` take on a store of ten million documents.

    python -m benchmarks.viewer demo/store --out big --documents 10000000      make the store and measure
    python -m benchmarks.viewer --out big                                      measure one that is there

Each page is asked for with random numbers, over a real connection to a server in a process of its own, as
a browser would. What is told is the time to the last byte: of the first request, median, 95th percentile and
worst; and the processor time of the server a request, which other work on the machine does not change.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlsplit

from benchmarks.many_documents import make_store
from packline.facade import Store

WORDS = ("language", "the of", "however, the", "def __init__", "quixotic", "zzyzx road", "München")


def main(arguments: list[str] | None = None) -> int:
    """Print a table of pages and times."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.viewer")
    parser.add_argument("original", nargs="?", type=Path, help="a small store to make the large one of")
    parser.add_argument("--out", type=Path, required=True, help="the large store")
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--requests", type=int, default=50, help="of each page")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.original is not None:
        print(make_store(options.original, options.out, documents=options.documents))
    store = Store(options.out)
    command = [sys.executable, "-m", "packline", "serve", str(options.out), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = urlsplit(json.loads(server.stdout.readline())["url"])
            measure(f"{url.hostname}:{url.port}", store, server.pid, options.requests, options.seed)
        finally:
            server.terminate()
    return 0


def measure(address: str, store: Store, server: int, requests: int, seed: int) -> None:
    """Ask for every page so many times and print a line each."""
    documents, tokens = len(store.documents), store.manifest.tokens
    rows = tokens * 9 // 10 // 2048  # of the training split, with room
    steps = rows // 32
    chance = random.Random(seed)
    below = chance.randrange
    pages: dict[str, Callable[[], str]] = {
        "overview": lambda: "/",
        "sources": lambda: "/sources",
        "documents": lambda: f"/documents?page={below(documents // 25)}",
        "documents of a source": lambda: f"/documents?source=web&split=train&page={below(documents // 100)}",
        "document": lambda: f"/document/{below(documents)}",
        "rows, concat": lambda: f"/rows?page={below(rows // 25)}",
        "row, concat": lambda: f"/row/{below(rows)}",
        "row, pad": lambda: f"/row/{below(documents * 9 // 10)}?packing=pad&seq_len=512",
        "row of 8,192 tokens": lambda: f"/row/{below(rows // 4)}?seq_len=8192",
        "batch": lambda: f"/batch?step={below(steps)}&batch_size=32&seed=1",
        "search, text": lambda: f"/search?q={quote(chance.choice(WORDS))}&after={below(tokens)}",
        "search, text not there": lambda: f"/search?by=ids&q=50255+50255+50255&after={below(tokens)}",
        "search, id": lambda: (
            f"/search?by=id&q=web-{below(100):04x}{below(60_000):06x}&after={below(documents)}"
        ),
        "compare tokenizers": lambda: f"/compare/tokenizers?document={below(documents)}",
        "no such document": lambda: f"/document/{documents + below(99)}",
    }
    print(f"{store.path}: {documents:,} documents, {tokens:,} tokens; {requests} requests a page, ms\n")
    print(f"{'page':<24}{'first':>9}{'median':>9}{'95%':>9}{'worst':>9}{'CPU':>9}{'size, kB':>10}")
    for name, make in pages.items():
        before = processor_seconds(server)
        found = [ask(address, make()) for _ in range(requests)]
        spent = (processor_seconds(server) - before) / requests
        times = sorted(seconds for seconds, _ in found)
        late = times[min(int(0.95 * len(times)), len(times) - 1)]
        size = statistics.mean(length for _, length in found)
        columns = [found[0][0], statistics.median(times), late, times[-1], spent]
        print(f"{name:<24}" + "".join(f"{1e3 * one:>9.1f}" for one in columns) + f"{size / 1e3:>10.0f}")


def processor_seconds(process: int) -> float:
    """What a process has spent so far, in hundredths; not a number where the system does not tell."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(address: str, path: str) -> tuple[float, int]:
    """Seconds to the last byte, and how many bytes."""
    start = time.perf_counter()
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status not in (200, 404):
        raise SystemExit(f"{path}: {response.status}")
    return time.perf_counter() - start, len(body)


if __name__ == "__main__":
    sys.exit(main())
