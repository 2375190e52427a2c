"""How fast batches come out of a store, beside bare NumPy and other loaders; and what opening one costs.

`english.jsonl` is built into a store; its tokens in one file, in litdata's chunks and in MDS shards are the
same tokens for everybody. Each run is a fresh process that makes batches of 32 x 4,096 until it is warm, and
is then timed. Everything is in the page cache: this measures loaders, not disks.

The store that is opened has a made-up index (100 million random lengths) and a sparse file of tokens: two
gigabytes of disk, which nothing reads before it is asked for.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.catalogue import Kind, TokenizerFile
from benchmarks.catalogue import packline as build_command
from benchmarks.errors import BenchmarkError
from benchmarks.figures import WORKERS
from benchmarks.process import run_fresh
from benchmarks.results import LoadingRun, OpeningRun, PermutationRun, Results
from benchmarks.suite import ROOT, environment, peer_versions

PEERS = ("torch", "litdata", "mosaicml-streaming", "megatron-core", "ai2-olmo-core")
FOUR, TWO = "tokens, targets, positions, segments", "tokens, targets"
MEGATRON = "tokens, targets, positions, loss mask"
PERMUTED = 100_000_000
BLOCK = 1 << 20
MEAN = 500
"""Tokens of a document of the made-up index."""

Say = Callable[[str], None]


class Contender(msgspec.Struct, frozen=True):
    """One command to measure; `{folder}` in it is where the tokens are."""

    name: str
    kind: Kind
    gives: str
    script: str
    arguments: list[str]


CONTENDERS = [
    Contender("bare NumPy slices", "ceiling", FOUR, "numpy_slices", ["{folder}/tokens.bin"]),
    Contender("packline, Rows.read", "packline", FOUR, "packline_rows", ["{folder}/store"]),
    Contender("packline, Loader", "packline", FOUR, "packline_rows", ["{folder}/store", "--loader"]),
    Contender(
        "packline, Rows.read of two fields",
        "packline",
        TWO,
        "packline_rows",
        ["{folder}/store", "--fields", "tokens,targets"],
    ),
    Contender(
        "packline, Rows.read, best_fit",
        "packline",
        FOUR,
        "packline_rows",
        ["{folder}/store", "--packing", "best_fit", "--plans", "{folder}/plans"],
    ),
    Contender(
        "packline, Loader, mixture of two",
        "packline",
        FOUR,
        "packline_rows",
        ["{folder}/store", "--loader", "--mixture"],
    ),
    Contender(
        "packline, Rows.read, shuffled documents",
        "packline",
        FOUR,
        "packline_rows",
        ["{folder}/store", "--shuffle-documents", "1"],
    ),
]
TORCH_CONTENDERS = [
    Contender(
        f"packline, DataLoader{WORKERS}",
        "packline",
        FOUR,
        "packline_rows",
        ["{folder}/store", "--workers", "2"],
    ),
]
PEER_CONTENDERS = [
    Contender("nanoGPT get_batch", "peer", TWO, "nanogpt_batches", ["{folder}/tokens.bin"]),
    Contender(
        "nanoGPT get_batch, map kept open",
        "peer",
        TWO,
        "nanogpt_batches",
        ["{folder}/tokens.bin", "--keep-map"],
    ),
    Contender("litdata TokensLoader", "peer", TWO, "litdata_tokens", ["{folder}/litdata"]),
    Contender(
        "Megatron GPTDataset",
        "peer",
        MEGATRON,
        "megatron_batches",
        ["{folder}/megatron/train_text_document"],
    ),
    Contender(
        "Megatron GPTDataset, packed documents",
        "peer",
        MEGATRON,
        "megatron_batches",
        ["{folder}/megatron/train_text_document", "--reset"],
    ),
    Contender("OLMo-core, 4 threads", "peer", TWO, "olmo_batches", ["{folder}/tokens.bin"]),
    Contender(
        f"litdata StreamingDataLoader{WORKERS}",
        "peer",
        TWO,
        "litdata_tokens",
        ["{folder}/litdata", "--workers", "2"],
    ),
    Contender(
        f"Megatron GPTDataset{WORKERS}",
        "peer",
        MEGATRON,
        "megatron_batches",
        ["{folder}/megatron/train_text_document", "--workers", "2"],
    ),
    Contender(f"OLMo-core{WORKERS}", "peer", TWO, "olmo_batches", ["{folder}/tokens.bin", "--workers", "2"]),
    Contender("mosaicml-streaming", "peer", TWO, "mosaic_streaming", ["{folder}/mds"]),
    # Views of a file that nothing has read yet: not a batch, so no goal is set by it.
    Contender("blocks of litdata", "peer", "views", "litdata_tokens", ["{folder}/litdata", "--items"]),
]


def measure_loading(
    folder: Path,
    results: Results,
    *,
    tokenizer: TokenizerFile,
    documents: int,
    rounds: int,
    seconds: float,
    peers_python: str | None,
    say: Say,
) -> None:
    """Make the files, run everything in turn, and put the runs into `results`, in place of older ones.

    Raises:
        BenchmarkError: the corpus is absent, or a contender failed.
    """
    results.loading, results.opening, results.permutation = [], [], []
    results.left_out = [line for line in results.left_out if not line.startswith("loading")]
    work = folder / "loading"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        say("loading: a store of english.jsonl, and its tokens as others want them")
        contenders = [*CONTENDERS]
        if find_spec("torch") is None:
            results.left_out.append("loading: packline in DataLoader, since torch is not installed")
        else:
            contenders += TORCH_CONTENDERS
        prepare_tokens(folder / "english.jsonl", work, tokenizer)
        if peers_python is None:
            results.left_out.append("loading: peers, since no interpreter with them was named")
        else:
            contenders += PEER_CONTENDERS
            results.versions |= peer_versions(peers_python, PEERS)
            export_pair(work)
            for name, script in (("litdata", "litdata_tokens"), ("mds", "mosaic_streaming")):
                arguments = [str(work / name), "--prepare", str(work / "tokens.bin")]
                _run(peers_python, script, arguments)
        say(f"loading: an index of {documents:,} documents")
        synthetic_store(work / "store", work / "many", documents)
        for number in range(1, rounds + 1):
            for contender in contenders:
                python = peers_python if contender.kind == "peer" and peers_python else sys.executable
                run = measure_once(contender, work, python, seconds, number)
                say(f"round {number}: {run.contender}: {run.rate:.0f} million tokens/s")
                results.loading.append(run)
            results.opening.append(measure_opening(work / "many", number))
            results.permutation.append(measure_permutation(number))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run(python: str, script: str, arguments: list[str]) -> dict[str, Any]:
    command = [python, "-m", f"benchmarks.contenders.{script}", *arguments]
    return run_fresh(command, cwd=ROOT, env=environment()).report


def prepare_tokens(text: Path, work: Path, tokenizer: TokenizerFile) -> None:
    """`work/store`, built by packline, and `work/tokens.bin`, the same tokens in one file of uint16.

    Raises:
        BenchmarkError: no text, or a vocabulary that does not fit uint16.
    """
    build_store(text, work / "store", tokenizer)
    from packline.store.manifest_check import read_manifest

    manifest = read_manifest(work / "store")
    if manifest.dtype != "uint16":
        raise BenchmarkError(
            f"{tokenizer.name} has {manifest.dtype} tokens: expected a vocabulary that fits uint16",
            hint="name a smaller one last, with --tokenizer PATH",
        )
    with (work / "tokens.bin").open("wb") as whole:
        for shard in manifest.shards:
            with (work / "store" / f"{shard.name}.bin").open("rb") as part:
                shutil.copyfileobj(part, whole, 16 << 20)


def export_pair(work: Path) -> None:
    """`work/megatron`, the tokens of `work/store` in one pair of Megatron's files."""
    command = [sys.executable, "-m", "packline", "export", str(work / "store"), "--json"]
    settings = ["--to", "megatron", "--set", "files=single", "--out", str(work / "megatron")]
    run_fresh([*command, *settings], cwd=ROOT, env=environment())


def build_store(text: Path, out: Path, tokenizer: TokenizerFile) -> None:
    """Build a store, as a user would.

    Raises:
        BenchmarkError: no text.
    """
    if not text.exists():
        raise BenchmarkError(f"{text} is absent", hint="python -m benchmarks corpus")
    command = build_command("", "", text, tokenizer).command
    run_fresh([word.replace("{out}", str(out)) for word in command], cwd=ROOT, env=environment())


def measure_once(contender: Contender, work: Path, python: str, seconds: float, number: int) -> LoadingRun:
    """One run of one contender."""
    arguments = [word.replace("{folder}", str(work)) for word in contender.arguments]
    report = _run(python, contender.script, [*arguments, "--seconds", str(seconds)])
    return LoadingRun(
        contender=contender.name,
        kind=contender.kind,
        gives=contender.gives,
        round=number,
        tokens=report["tokens"],
        seconds=report["seconds"],
    )


def measure_opening(store: Path, number: int) -> OpeningRun:
    """Open a store in a fresh process."""
    return OpeningRun(round=number, **_run(sys.executable, "opening", [str(store)]))


def measure_permutation(number: int, *, size: int = PERMUTED, indices: int = 10_000_000) -> PermutationRun:
    """Permute in a fresh process."""
    arguments = ["--permute", str(size), "--indices", str(indices)]
    return PermutationRun(round=number, **_run(sys.executable, "opening", arguments))


def synthetic_store(model: Path, folder: Path, documents: int) -> None:
    """A store of one shard with random lengths and no tokens on the disk: a hole reads as zeros.

    Args:
        model: a store, whose manifest is taken and changed.
        folder: is made.
        documents: how many.
    """
    from packline.store.files import FileEntry
    from packline.store.manifest import with_tables
    from packline.store.manifest_check import read_manifest
    from packline.store.shard import HEADER, MAGIC, index_size
    from packline.store.tables import ShardEntry, ShardRows
    from packline.testing import write_manifest

    folder.mkdir()
    name, generator = "train-000000", np.random.default_rng(5)
    with (folder / f"{name}.idx").open("wb") as index:
        index.write(HEADER.pack(MAGIC, 1, 8, documents, documents + 1))
        index.truncate(index_size(documents))
        tokens = 0
        for start in range(0, documents, BLOCK):
            lengths = generator.integers(1, 2 * MEAN, min(BLOCK, documents - start)).astype("<i4")
            ends = tokens + np.cumsum(lengths, dtype=np.int64)
            index.seek(HEADER.size + 4 * start)
            index.write(lengths.tobytes())
            index.seek(HEADER.size + 4 * documents + 8 * start)
            index.write(((ends - lengths) * 2).astype("<i8").tobytes())
            tokens = int(ends[-1])
        index.seek(HEADER.size + 12 * documents)
        for start in range(0, documents + 1, BLOCK):
            index.write(np.arange(start, min(start + BLOCK, documents + 1), dtype="<i8").tobytes())
    with (folder / f"{name}.bin").open("wb") as file:
        file.truncate(2 * tokens)
    # Checksums of indexes are compared when a shard is opened; those of tokens by `packline verify` alone.
    index_file, unread = folder / f"{name}.idx", "0" * 32
    files = (
        FileEntry(f"{name}.bin", 2 * tokens, unread),
        FileEntry(f"{name}.idx", index_file.stat().st_size, _checksum_of(index_file)),
        FileEntry(f"{name}.docs.parquet", 0, unread),
        FileEntry(f"{name}.sums", 0, unread),
    )
    manifest = read_manifest(model)
    (source,) = manifest.sources
    shards = ShardRows.from_entries([("000000", source, ShardEntry(name, "train", documents, tokens, files))])
    write_manifest(folder, with_tables(manifest, shards=shards))


def _checksum_of(path: Path) -> str:
    from packline.fingerprint import Hasher

    hasher = Hasher()
    with path.open("rb") as file:
        while data := file.read(1 << 24):
            hasher.update(data)
    return str(hasher.hexdigest())
