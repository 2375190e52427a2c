"""`results.json`: every run as it was, and what follows from the runs.

The runs are the data; spreads and figures are computed from them, here and nowhere else. A ratio is
taken round by round, between runs that were minutes apart, and its median is what is reported, so
that a machine that slows down slows both sides. MB is 10^6 bytes of UTF-8 text, not of the file.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

import packline
from benchmarks.catalogue import Kind
from benchmarks.conversation_run import ConversationRun
from benchmarks.corpus import Facts
from benchmarks.errors import BenchmarkError
from benchmarks.units_run import UnitsRun

BUSY_CORES = 0.3
"""More than this at the start means that others use the cores too."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One fresh process, or tree of processes, that did the whole job once."""

    contender: str
    kind: Kind
    corpus: str
    tokenizer: str
    round: int
    documents: int
    tokens: int
    text_bytes: int
    wall_seconds: float
    """Of the process, from start to end, measured from outside."""
    seconds: float
    """Of the job as the contender counts it: without its imports and without loading the tokenizer."""
    first_unit_seconds: float | None = None
    """packline: from the start of the process to the first unit's encoding."""
    tokenizer_seconds: float | None = None
    worker_bytes: int = 0
    """The largest peak of resident memory of any process but the first."""

    @property
    def whole(self) -> float:
        """MB/s of the whole command."""
        return self.text_bytes / self.wall_seconds / 1e6

    @property
    def job(self) -> float:
        """MB/s of the job alone."""
        return self.text_bytes / self.seconds / 1e6

    @property
    def steady(self) -> float:
        """MB/s from the first unit's encoding to the end of the process; of packline only."""
        if self.first_unit_seconds is None:
            raise BenchmarkError(f"{self.contender} does not say when its first unit began")
        return self.text_bytes / (self.wall_seconds - self.first_unit_seconds) / 1e6

    @property
    def fixed_seconds(self) -> float:
        """From the start to the first unit's encoding, beyond loading the tokenizer once."""
        if self.first_unit_seconds is None or self.tokenizer_seconds is None:
            raise BenchmarkError(f"{self.contender} does not say what it spent before its first unit")
        return self.first_unit_seconds - self.tokenizer_seconds


class Parity(msgspec.Struct, frozen=True):
    """An engine against HF tokenizers on documents spread over a corpus."""

    corpus: str
    tokenizer: str
    engine: str
    documents: int
    text_bytes: int
    different: int


class MemoryRun(msgspec.Struct, frozen=True):
    """A build of an input of some size, its processes watched from outside."""

    tokenizer: str
    input_bytes: int
    documents: int
    wall_seconds: float
    worker_resident_bytes: int
    worker_private_bytes: int
    main_resident_bytes: int
    together_private_bytes: int
    reported_bytes: int
    """What packline says of itself."""


class PackingRun(msgspec.Struct, frozen=True, kw_only=True):
    """Documents of made-up lengths laid out in rows by one fresh process on one core."""

    contender: str
    """`packline`, or `naive`: best fit decreasing one piece at a time."""
    documents: int
    seq_len: int
    round: int
    tokens: int
    rows: int
    wall_seconds: float
    """Time of the process, from start to end, imports included."""
    seconds: float
    """From the first length read to the plan on disk."""
    resident_bytes: int

    @property
    def padding_share(self) -> float:
        """Share of the rows' places that hold nothing."""
        return 1 - self.tokens / (self.rows * self.seq_len)


class SelectingRun(msgspec.Struct, frozen=True, kw_only=True):
    """Documents of a synthetic store, selected by one fresh process."""

    case: str
    """`where`, `where, again`, `unique` or `exclude`."""
    documents: int
    round: int
    selected: int
    wall_seconds: float
    """Time of the process, from start to end, imports included."""
    seconds: float
    """From opening the store to the finished selection."""
    cpu_seconds: float
    """Processor time of all threads of the process."""
    resident_bytes: int
    plan_bytes: int
    """Bytes that were kept for the next time."""


class LoadingRun(msgspec.Struct, frozen=True, kw_only=True):
    """Batches of 32 rows of 4,096 tokens, made by one fresh process for some seconds."""

    contender: str
    kind: Kind
    """`ceiling` is bare NumPy."""
    gives: str
    """Which arrays, in words."""
    round: int
    tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        """Million tokens a second."""
        return self.tokens / self.seconds / 1e6


class OpeningRun(msgspec.Struct, frozen=True, kw_only=True):
    """A store of many documents with a made-up index, opened by a fresh process."""

    documents: int
    rows: int
    round: int
    open_seconds: float
    """From the path to the store."""
    rows_seconds: float
    """From the store to its rows."""
    batch_seconds: float
    """The first batch, its pages not mapped yet."""
    resident_bytes: int
    """By how much the process had grown when it had its rows."""


class ColdRun(msgspec.Struct, frozen=True, kw_only=True):
    """A store read by one fresh process, its tokens dropped from the page cache before."""

    contender: str
    round: int
    bytes: int
    """Bytes of the tokens that were read."""
    seconds: float
    busy_cores: float = 0.0
    """Cores busy with other work, before it began."""
    disk: str = ""
    """File system and device, as mounted."""

    @property
    def rate(self) -> float:
        """Million bytes a second."""
        return self.bytes / self.seconds / 1e6


class PermutationRun(msgspec.Struct, frozen=True, kw_only=True):
    """Indices permuted by one fresh process on one core."""

    size: int
    round: int
    indices: int
    seconds: float


class ReuseRun(msgspec.Struct, frozen=True, kw_only=True):
    """A build that reuses an earlier store, or the first build, by one command."""

    contender: str
    round: int
    files: int
    changed: int
    """Files whose text is another than in the earlier store."""
    text_bytes: int
    run_text_bytes: int
    """Bytes of text that this build encoded."""
    units: int
    units_reused: int
    wall_seconds: float
    """Time of the command, from start to end."""
    seconds: float
    """Without its imports."""
    busy_cores: float = 0.0
    """Cores busy with other work when the build began."""


class RemoteRun(msgspec.Struct, frozen=True, kw_only=True):
    """A build from the disk or from an object server, on this machine or on Ray, by one command."""

    contender: str
    input: str
    """Name of the input file."""
    round: int
    text_bytes: int
    wall_seconds: float
    """Time of the command, from start to end."""
    startup_seconds: float
    """Until the first text was encoded."""
    seconds: float
    """Seconds of the build, without its imports."""
    cpu_seconds: float
    """Processor seconds of all processes of the build, without the server."""
    largest_worker_bytes: int
    """Peak of resident memory of the largest worker."""
    checksum: str
    """Checksum of all receipts; equal for equal stores."""
    base: str
    """Contender to compare with."""
    busy_cores: float = 0.0
    """Cores busy with other work when the build began."""

    @property
    def steady_rate(self) -> float:
        """Bytes of text a second after start-up."""
        return self.text_bytes / max(self.seconds - self.startup_seconds, 1e-9)


class MergeRun(msgspec.Struct, frozen=True, kw_only=True):
    """A merge of two stores, or a comparison with another store, by one command."""

    case: str
    round: int
    store_bytes: int
    """Size of the merged store."""
    documents: int
    shards: int
    changed: int
    """Shards that differ between the stores that are compared."""
    wall_seconds: float
    """Time of the command, from start to end."""
    peak_bytes: int
    """Peak resident memory."""
    busy_cores: float = 0.0
    """Cores busy with other work when the command began."""


class ExportRun(msgspec.Struct, frozen=True, kw_only=True):
    """A store written in another layout by one command, and a copy of what was written."""

    contender: str
    format: str
    round: int
    store_bytes: int
    """Of its tokens."""
    output_bytes: int
    shared_bytes: int
    """Of them, in files that are the store's own, linked or copied."""
    files: int
    encodes: bool = False
    """It is the work of an encoder of columns, which a copy is not."""
    wall_seconds: float
    """Time of the command, from start to end."""
    seconds: float
    """Without its imports."""
    copy_seconds: float | None = None
    """Of a copy of the output; none where it was linked."""
    busy_cores: float = 0.0
    """Cores busy with other work when the round began."""

    @property
    def rate(self) -> float:
        """MB of output a second, of the whole command."""
        return self.output_bytes / self.wall_seconds / 1e6

    @property
    def copy_rate(self) -> float:
        """The same of the copy."""
        return self.output_bytes / self.copy_seconds / 1e6 if self.copy_seconds else 0.0

    @property
    def ratio(self) -> float:
        """The one to the other."""
        return self.rate / self.copy_rate


class TrainingRun(msgspec.Struct, frozen=True, kw_only=True):
    """A tokenizer trained once."""

    contender: str
    pattern: str
    vocab_size: int
    round: int
    text_bytes: int
    seconds: float
    """From texts in memory to merges; of a whole command, of its process."""
    resident_bytes: int
    """The peak, the texts in memory included."""
    merges: str | None = None
    """Their hash, of trainers that follow HF's rules."""


class Spread(msgspec.Struct, frozen=True):
    """Median, least and greatest of the rounds."""

    median: float
    least: float
    greatest: float


class Figure(msgspec.Struct, frozen=True):
    """A number that the project is judged by, and the goal that was set for it."""

    name: str
    corpus: str
    tokenizer: str
    spread: Spread
    goal: float | None = None
    at_most: bool = False
    """The goal is an upper bound."""

    @property
    def reached(self) -> bool:
        """Whether the median is on the right side of the goal, if there is one."""
        if self.goal is None:
            return True
        return self.spread.median <= self.goal if self.at_most else self.spread.median >= self.goal


class Results(msgspec.Struct, kw_only=True):
    """The whole file."""

    date: str
    machine: dict[str, str | int | float]
    versions: dict[str, str]
    corpora: dict[str, Facts]
    parity: list[Parity] = []
    runs: list[Run] = []
    memory: list[MemoryRun] = []
    packing: list[PackingRun] = []
    selecting: list[SelectingRun] = []
    loading: list[LoadingRun] = []
    cold: list[ColdRun] = []
    opening: list[OpeningRun] = []
    permutation: list[PermutationRun] = []
    exporting: list[ExportRun] = []
    reusing: list[ReuseRun] = []
    remote: list[RemoteRun] = []
    merging: list[MergeRun] = []
    units: list[UnitsRun] = []
    training: list[TrainingRun] = []
    conversations: list[ConversationRun] = []
    left_out: list[str] = []
    """What was not measured, and why."""
    figures: list[Figure] = []


def spread_of(values: Iterable[float]) -> Spread:
    """Median, least and greatest.

    >>> spread_of([3.0, 1.0, 2.0])
    Spread(median=2.0, least=1.0, greatest=3.0)
    """
    numbers = list(values)
    return Spread(statistics.median(numbers), min(numbers), max(numbers))


def runs_of(results: Results, corpus: str, tokenizer: str, contender: str) -> list[Run]:
    """The runs of one contender, in the order of their rounds."""
    found = [
        r for r in results.runs if (r.corpus, r.tokenizer, r.contender) == (corpus, tokenizer, contender)
    ]
    return sorted(found, key=lambda run: run.round)


def best_of(
    results: Results, corpus: str, tokenizer: str, kind: Kind, rate: Callable[[Run], float]
) -> list[Run]:
    """The runs of the contender of this kind with the greatest median rate; none if none ran."""
    names = {
        r.contender for r in results.runs if (r.corpus, r.tokenizer, r.kind) == (corpus, tokenizer, kind)
    }
    groups = [runs_of(results, corpus, tokenizer, name) for name in sorted(names)]
    return max(groups, key=lambda runs: statistics.median(map(rate, runs)), default=[])


def compare(
    above: list[Run], over: Callable[[Run], float], below: list[Run], under: Callable[[Run], float]
) -> Spread:
    """The ratio of two rates, round by round."""
    return spread_of(over(one) / under(other) for one, other in zip(above, below, strict=True))


def machine_facts() -> dict[str, str | int | float]:
    """Cores that may be used, processor, memory, system, and how busy it was; no name of the machine."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": model,
        "memory_gib": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "busy_cores_at_start": busy_cores(),
    }


def busy_cores(seconds: float = 2.0) -> float:
    """How many cores' worth of work the machine does while this process waits."""

    def ticks() -> tuple[int, int]:
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    total, idle = ticks()
    time.sleep(seconds)
    later_total, later_idle = ticks()
    share = 1 - (later_idle - idle) / max(1, later_total - total)
    return round(share * (os.cpu_count() or 1), 1)


def versions_of(*names: str) -> dict[str, str]:
    """Versions of installed packages; those that are absent are left out."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def new_results(corpora: dict[str, Facts]) -> Results:
    """Empty, with today's date and this machine's facts."""
    return Results(
        date=datetime.date.today().isoformat(),
        machine=machine_facts(),
        versions={"packline": packline.__version__}
        | versions_of("gigatoken", "fastokens", "tokenizers", "numpy", "pyarrow"),
        corpora=corpora,
    )


def load_results(path: Path) -> Results:
    """Read the file.

    Raises:
        BenchmarkError: it is absent or not what this version writes.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except (OSError, msgspec.DecodeError) as error:
        raise BenchmarkError(f"no results in {path}: {error}", hint="python -m benchmarks run") from error


def save_results(path: Path, results: Results) -> None:
    """Write the file whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    temporary.replace(path)
