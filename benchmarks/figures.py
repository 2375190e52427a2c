"""The figures that the project is judged by, from the runs.

Each is written out once, with the goal that was set for it. A figure whose runs are missing (a peer
that is not installed, a corpus that was not measured) is left out, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.results import Figure, Results, Run, best_of, compare, runs_of, spread_of

Rate = Callable[[Run], float]


def steady(run: Run) -> float:
    """From the first unit's encoding to the end."""
    return run.steady


def whole(run: Run) -> float:
    """From the start of the process to its end."""
    return run.whole


def job(run: Run) -> float:
    """As the contender itself counts, without imports and loading."""
    return run.job


def all_figures(results: Results) -> list[Figure]:
    """Every figure for which there are runs."""
    return [
        *(ratio for name in _tokenizers(results) for ratio in ceiling_ratios(results, name)),
        *(ratio for name in _tokenizers(results) for ratio in peer_ratios(results, name)),
        *(ratio for name in _tokenizers(results) for ratio in mixed_ratios(results, name)),
        *fixed_costs(results),
        *memory_figures(results),
        *packing_figures(results),
        *loading_figures(results),
        *opening_figures(results),
        *exporting_figures(results),
        *training_figures(results),
    ]


def _tokenizers(results: Results) -> list[str]:
    return list(dict.fromkeys(run.tokenizer for run in results.runs))


def ceiling_ratios(results: Results, tokenizer: str) -> list[Figure]:
    """packline on English, to the fastest exact engine in memory."""
    ceiling = best_of(results, "english", tokenizer, "ceiling", job)
    found = []
    for contender, rate, goal in (
        ("packline, JSONL", steady, 0.75),
        ("packline, Parquet", steady, 0.65),
        ("packline, one .jsonl.zst", steady, 0.65),
        ("packline, JSONL", whole, None),
    ):
        runs = runs_of(results, "english", tokenizer, contender)
        name = f"{contender}, {rate.__name__} / ceiling"
        found += _ratio(name, "english", tokenizer, (runs, rate), (ceiling, job), goal)
    return found


def peer_ratios(results: Results, tokenizer: str) -> list[Figure]:
    """packline's whole command to each peer.

    Megatron's style is compared twice: whole command to whole command, and to its job alone. The
    slow peers are compared by their job alone, which spares them their imports.
    """
    runs = runs_of(results, "english", tokenizer, "packline, JSONL")
    found = []
    for peer in ("Megatron style", "Megatron style, JSON in Python"):
        others = runs_of(results, "english", tokenizer, peer)
        name = f"packline, JSONL, whole / {peer}"
        found += _ratio(f"{name}, whole", "english", tokenizer, (runs, whole), (others, whole), 2.0)
        found += _ratio(f"{name}, job", "english", tokenizer, (runs, whole), (others, job), 2.0)
    for peer in ("datatrove", "HF datasets map"):
        others = runs_of(results, "slice", tokenizer, peer)
        name = f"packline, JSONL, whole / {peer}, job"
        found += _ratio(name, "english", tokenizer, (runs, whole), (others, job), 50.0)
    return found


def mixed_ratios(results: Results, tokenizer: str) -> list[Figure]:
    """Where engines differ most: packline's choice to each engine alone, and to the ceiling."""
    runs = runs_of(results, "mixed", tokenizer, "packline, JSONL")
    ceiling = best_of(results, "mixed", tokenizer, "ceiling", job)
    found = _ratio(
        "packline, JSONL, steady / ceiling", "mixed", tokenizer, (runs, steady), (ceiling, job), None
    )
    for engine in ("gigatoken", "fastokens"):
        others = runs_of(results, "mixed", tokenizer, f"packline, {engine} only")
        name = f"packline, JSONL, steady / packline, {engine} only, steady"
        found += _ratio(name, "mixed", tokenizer, (runs, steady), (others, steady), 1.0)
    return found


def fixed_costs(results: Results) -> list[Figure]:
    """Seconds from the start of the command to the first unit's encoding, without loading the tokenizer."""
    found = []
    for tokenizer in _tokenizers(results):
        for contender in ("packline, JSONL", "packline, Parquet", "packline, one .jsonl.zst"):
            if runs := runs_of(results, "english", tokenizer, contender):
                spread = spread_of(run.fixed_seconds for run in runs)
                name = f"{contender}, fixed cost in seconds"
                found.append(Figure(name, "english", tokenizer, spread, 3.0, at_most=True))
    return found


def memory_figures(results: Results) -> list[Figure]:
    """The largest worker on the largest input, and how much larger that is than on the smallest."""
    runs = sorted(results.memory, key=lambda run: run.input_bytes)
    if not runs:
        return []
    tokenizer = runs[-1].tokenizer
    largest = runs[-1].worker_resident_bytes
    size = f"{runs[-1].input_bytes / 1e9:.1f} GB"
    peak = spread_of([largest / 2**30])
    figures = [Figure(f"largest worker on {size}, GiB", "memory", tokenizer, peak, 1.0, at_most=True)]
    if len(runs) > 1:
        growth = spread_of([largest / runs[0].worker_resident_bytes])
        name = f"largest worker, {size} / {runs[0].input_bytes / 1e9:.1f} GB"
        figures.append(Figure(name, "memory", tokenizer, growth, 1.2, at_most=True))
    return figures


def packing_figures(results: Results) -> list[Figure]:
    """best_fit on the most documents, and its padding beside best fit decreasing one piece at a time."""
    runs = [run for run in results.packing if run.contender == "packline"]
    if not runs:
        return []
    most = max(run.documents for run in runs)
    largest = [run for run in runs if run.documents == most]
    name = f"best_fit, {most / 1e6:g} million documents"
    seconds = spread_of(run.wall_seconds for run in largest)
    memory = spread_of(run.resident_bytes / 1e9 for run in largest)
    figures = [
        Figure(f"{name}, seconds on one core", "packing", "", seconds, 60.0, at_most=True),
        Figure(f"{name}, GB", "packing", "", memory, 3.0, at_most=True),
    ]
    pairs = [
        (run.padding_share / other.padding_share if other.padding_share else float(run.rows == other.rows))
        for other in results.packing
        for run in runs
        if other.contender == "naive" and (run.documents, run.round) == (other.documents, other.round)
    ]
    if pairs:
        compared = next(run.documents for run in results.packing if run.contender == "naive")
        name = f"padding / best fit decreasing one piece at a time, {compared / 1e6:g} million documents"
        figures.append(Figure(name, "packing", "", spread_of(pairs), 1.0, at_most=True))
    return figures


ROWS_READ = "packline, Rows.read"
WORKERS = ", 2 workers"
"""End of the name of a contender whose batches come from two processes of torch's `DataLoader`."""
OWN_GOALS = {
    "packline, Loader": 1.0,
    "packline, Loader, mixture of two": 0.8,
    "packline, Rows.read, shuffled documents": 0.8,
}
"""Goals of other ways to read, relative to `Rows.read`."""


def loading_figures(results: Results) -> list[Figure]:
    """packline's rows with all four arrays, to bare NumPy and to each peer that ran; workers to workers."""
    rates = {(run.contender, run.round): run.rate for run in results.loading}
    goals = {"bare NumPy slices": 0.6, "nanoGPT": 2.0, "litdata": 2.0, "mosaicml-streaming": 20.0}
    pairs: list[tuple[str, str, float | None]] = [(name, ROWS_READ, goal) for name, goal in OWN_GOALS.items()]
    for name in dict.fromkeys(run.contender for run in results.loading if run.kind != "packline"):
        if name.endswith(WORKERS):
            pairs.append((f"packline, DataLoader{WORKERS}", name, 1.0))
        else:
            goal = next((goal for start, goal in goals.items() if name.startswith(start)), None)
            pairs.append((ROWS_READ, name, goal))
    figures = []
    for name, other, goal in pairs:
        ratios = [
            rate / rates[other, number]
            for (contender, number), rate in rates.items()
            if contender == name and (other, number) in rates
        ]
        if ratios:
            figures.append(Figure(f"{name} / {other}", "loading", "", spread_of(ratios), goal))
    return figures


def opening_figures(results: Results) -> list[Figure]:
    """Opening the store of the most documents, and the rate of the permutation."""
    figures = []
    if results.opening:
        most = max(run.documents for run in results.opening)
        runs = [run for run in results.opening if run.documents == most]
        seconds = spread_of(run.open_seconds + run.rows_seconds for run in runs)
        name = f"opening a store of {most / 1e6:g} million documents and its rows"
        figures.append(Figure(f"{name}, seconds", "loading", "", seconds, 0.1, at_most=True))
        grown = spread_of(run.resident_bytes / 2**20 for run in runs)
        figures.append(Figure(f"{name}, MiB of memory", "loading", "", grown))
    if results.permutation:
        rate = spread_of(run.indices / run.seconds / 1e6 for run in results.permutation)
        size = max(run.size for run in results.permutation)
        name = f"permutation of {size / 1e6:g} million, million indices/s on one core"
        figures.append(Figure(name, "loading", "", rate, 20.0))
    return figures


def exporting_figures(results: Results) -> list[Figure]:
    """Each export to a copy of what it wrote, round by round; and links by the size of the store."""
    figures = []
    for name in dict.fromkeys(run.contender for run in results.exporting):
        runs = [run for run in results.exporting if run.contender == name]
        if all(run.copy_seconds for run in runs):
            goal = None if runs[0].encodes else 0.5
            spread = spread_of(run.ratio for run in runs)
            figures.append(Figure(f"{name}, whole command / copying its files", "export", "", spread, goal))
            continue
        sizes = sorted({run.store_bytes for run in runs})
        small = {run.round: run for run in runs if run.store_bytes == sizes[0]}
        pairs = [
            (run, small[run.round]) for run in runs if run.store_bytes != sizes[0] and run.round in small
        ]
        if pairs:
            more = [run.wall_seconds - other.wall_seconds for run, other in pairs]
            title = f"{name}, seconds more for {sizes[-1] / 1e9:.1f} GB than for {sizes[0] / 1e9:.1f} GB"
            figures.append(Figure(title, "export", "", spread_of(more), 1.0, at_most=True))
    return figures


def training_figures(results: Results) -> list[Figure]:
    """How many times as long other trainers take as packline, round by round, by pattern."""
    figures = []
    for pattern in dict.fromkeys(run.pattern for run in results.training):
        runs = [run for run in results.training if run.pattern == pattern]
        ours = {run.round: run.seconds for run in runs if run.contender == "packline"}
        for name in ("rustbpe", "HF tokenizers"):
            times = [run.seconds / ours[run.round] for run in runs if run.contender == name]
            if times:
                title = f"{pattern}: {name} / packline, seconds"
                figures.append(Figure(title, "training", "", spread_of(times), 2.0))
    return figures


def _ratio(
    name: str,
    corpus: str,
    tokenizer: str,
    above: tuple[list[Run], Rate],
    below: tuple[list[Run], Rate],
    goal: float | None,
) -> list[Figure]:
    if not above[0] or not below[0]:
        return []
    rounds = {run.round for run in above[0]} & {run.round for run in below[0]}
    over, under = ([run for run in runs if run.round in rounds] for runs in (above[0], below[0]))
    spread = compare(over, above[1], under, below[1])
    return [Figure(name, corpus, tokenizer, spread, goal)]
