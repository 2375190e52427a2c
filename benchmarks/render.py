"""Tables of docs/benchmarks.md and goals of benchmarks/README.md, rendered from `results.json`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.errors import BenchmarkError
from benchmarks.figures import job, steady, whole
from benchmarks.results import BUSY_CORES, Figure, Results, Run, Spread, best_of, runs_of, spread_of

START = "<!-- benchmarks:start -->"
END = "<!-- benchmarks:end -->"


def rewrite(page: Path, tables: str) -> None:
    """Put tables between the markers of a page.

    Raises:
        BenchmarkError: the file is absent, or a marker is missing, doubled or out of order.
    """
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise BenchmarkError(f"cannot read {page}: {error.strerror}") from error
    page.write_text(replace_between(text, tables, page.name), encoding="utf-8")


def replace_between(text: str, tables: str, name: str) -> str:
    """`text` with `tables` between the markers.

    >>> replace_between(f"a {START} old {END} b", "new", "README.md").split()
    ['a', '<!--', 'benchmarks:start', '-->', 'new', '<!--', 'benchmarks:end', '-->', 'b']
    """
    counts = text.count(START), text.count(END)
    if counts != (1, 1) or text.index(START) > text.index(END):
        raise BenchmarkError(
            f"{name} has {counts[0]} start and {counts[1]} end markers: expected one of each, in this order",
            hint=f"put {START} and {END} where the tables belong",
        )
    before, rest = text.split(START)
    after = rest.split(END)[1]
    return f"{before}{START}\n\n{tables}\n\n{END}{after}"


def render(results: Results) -> str:
    """All tables as Markdown, by subject, without the goals (see `figure_table`)."""
    parts = [headline(results)]
    for title, tables in (
        ("Building", building_tables(results)),
        ("Packing and selecting", packing_tables(results)),
        ("Reading", reading_tables(results)),
        ("Exporting", [exporting_table(results)] if results.exporting else []),
        ("Reusing and merging", changing_tables(results)),
        ("Tokenizers and conversations", training_tables(results)),
    ):
        parts += [f"## {title}", *tables] if tables else []
    if results.left_out:
        parts.append("Not measured: " + "; ".join(results.left_out) + ".")
    return "\n\n".join(parts)


def building_tables(results: Results) -> list[str]:
    """Rates of builds, from this disk and from elsewhere, and their memory."""
    parts = []
    for tokenizer in dict.fromkeys(run.tokenizer for run in results.runs):
        if rows := rate_rows(results, "english", tokenizer):
            size = results.corpora["english"].text_bytes / 1e6
            parts.append(
                table(f"{size:.0f} MB of English text and code, `{tokenizer}`", "share of the ceiling", rows)
            )
        if rows := rate_rows(results, "mixed", tokenizer):
            size = results.corpora["mixed"].text_bytes / 1e6
            title = f"{size:.0f} MB of Chinese, Japanese, Korean, English and code, `{tokenizer}`"
            parts.append(table(title, "share of the ceiling", rows))
    if results.memory:
        parts.append(memory_table(results))
    if results.remote:
        parts.append(remote_table(results))
    return parts


def packing_tables(results: Results) -> list[str]:
    """Seconds of packing and of selecting documents."""
    parts = [packing_table(results)] if results.packing else []
    return [*parts, selecting_table(results)] if results.selecting else parts


def reading_tables(results: Results) -> list[str]:
    """Rates of batches, from the page cache and from a cold disk."""
    parts = [loading_table(results)] if results.loading else []
    return [*parts, cold_table(results)] if results.cold else parts


def changing_tables(results: Results) -> list[str]:
    """Seconds of builds with reuse, and of merge and diff."""
    parts = [reusing_table(results)] if results.reusing else []
    parts += [merging_table(results)] if results.merging else []
    return parts


def training_tables(results: Results) -> list[str]:
    """Seconds of training a vocabulary and of conversations."""
    parts = [training_table(results)] if results.training else []
    return [*parts, conversation_table(results)] if results.conversations else parts


def headline(results: Results) -> str:
    """Machine, date and versions."""
    machine = results.machine
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    count = max((run.round for run in results.runs), default=0)
    load = float(machine["busy_cores_at_start"])
    busy = (
        f" Other work ran at the same time ({load} cores busy at the start), so rates are too low."
        if load > BUSY_CORES
        else ""
    )
    rounds = f"{count} round{'s' * (count != 1)}"
    return (
        f"Measured on {results.date}: {machine['cores']} cores of {machine['processor']}, "
        f"{machine['memory_gib']} GiB, {machine['system']}, Python {machine['python']}; {versions}. "
        f"Contenders run alternately, each in a fresh process, {rounds}; medians (minimum-maximum). "
        "1 MB is 10^6 bytes of text."
        f"{busy}"
    )


def rate_rows(results: Results, corpus: str, tokenizer: str) -> list[list[str]]:
    """One row per contender: the ceiling first, then packline and peers, steady and as a whole command."""
    ceiling = best_of(results, corpus, tokenizer, "ceiling", job)
    if not ceiling:
        return []
    top = spread_of(map(job, ceiling)).median
    rows = [_row(f"ceiling: {ceiling[0].contender}, in memory", ceiling, job, top, timed=False)]
    for name in _names(results.runs, corpus, tokenizer, "packline"):
        rows.append(_row(f"**{name}**", runs_of(results, corpus, tokenizer, name), steady, top))
    peer_corpora = ("english", "slice") if corpus == "english" else (corpus,)
    for place in peer_corpora:
        for name in _names(results.runs, place, tokenizer, "peer"):
            runs = runs_of(results, place, tokenizer, name)
            rows.append(_row(name, runs, job, top, timed=place == "english"))
    return rows


def _names(runs: Iterable[Run], corpus: str, tokenizer: str, kind: str) -> list[str]:
    wanted = (corpus, tokenizer, kind)
    return list(dict.fromkeys(r.contender for r in runs if (r.corpus, r.tokenizer, r.kind) == wanted))


def _row(
    name: str, runs: list[Run], rate: Callable[[Run], float], top: float, timed: bool = True
) -> list[str]:
    spread = spread_of(map(rate, runs))
    return [
        name,
        show_rate(spread),
        show_rate(spread_of(map(whole, runs))) if timed else "",
        f"{spread.median / top:.2f}" if spread.median > top / 100 else "below 0.01",
    ]


def show_rate(spread: Spread) -> str:
    """A median with its range.

    >>> show_rate(Spread(151.4, 140.0, 160.2)), show_rate(Spread(1.42, 1.4, 1.5))
    ('151 (140-160)', '1.4 (1.4-1.5)')
    """
    digits = 0 if spread.median >= 20 else 1
    return f"{spread.median:.{digits}f} ({spread.least:.{digits}f}-{spread.greatest:.{digits}f})"


def table(title: str, last: str, rows: list[list[str]]) -> str:
    """A Markdown table of rates."""
    lines = [f"| {title} | MB/s, without start-up | whole command | {last} |", "|---|---:|---:|---:|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def memory_table(results: Results) -> str:
    """Peak memory by size of the input."""
    lines = [
        "| JSONL file | largest worker, resident | main process |",
        "|---:|---:|---:|",
    ]
    for run in results.memory:
        sizes = (run.worker_resident_bytes, run.main_resident_bytes)
        cells = [show_size(run.input_bytes), *(f"{size / 2**20:.0f} MiB" for size in sizes)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def packing_table(results: Results) -> str:
    """best_fit and packing one piece at a time, each by the number of documents."""
    lines = [
        "| packing documents into rows, one core | documents | row length | seconds | memory | padding |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    names = {"packline": "**packline, best_fit**", "naive": "best fit decreasing one piece at a time"}
    for kind in dict.fromkeys((run.contender, run.documents, run.seq_len) for run in results.packing):
        runs = [run for run in results.packing if (run.contender, run.documents, run.seq_len) == kind]
        cells = [
            names[kind[0]],
            f"{kind[1]:,}",
            f"{kind[2]:,}",
            show_rate(spread_of(run.wall_seconds for run in runs)),
            f"{max(run.resident_bytes for run in runs) / 1e9:.2f} GB",
            f"{100 * runs[0].padding_share:.4f}%",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def selecting_table(results: Results) -> str:
    """Selections of a synthetic store, by case."""
    names = {
        "where": "`where` with three columns",
        "where, again": "the same, opened again",
        "unique": "`unique`, a tenth are copies",
        "exclude": "`exclude`, a list of a hundredth",
    }
    lines = [
        "| selecting from a synthetic store | documents | selected | seconds | memory | on disk |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for case in dict.fromkeys(run.case for run in results.selecting):
        runs = [run for run in results.selecting if run.case == case]
        cells = [
            names[case],
            f"{runs[0].documents:,}",
            f"{runs[0].selected:,}",
            show_rate(spread_of(run.seconds for run in runs)),
            f"{max(run.resident_bytes for run in runs) / 1e9:.2f} GB",
            f"{max(run.plan_bytes for run in runs) / 1e6:.0f} MB" if runs[0].plan_bytes else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def loading_table(results: Results) -> str:
    """Rates of batches of bare NumPy, packline and peers, with the arrays that each returns."""
    lines = [
        "| batches of 32 x 4,096 tokens from the page cache | arrays* | million tokens/s |",
        "|---|---|---:|",
    ]
    for name in dict.fromkeys(run.contender for run in results.loading):
        runs = [run for run in results.loading if run.contender == name]
        shown = f"**{name}**" if runs[0].kind == "packline" else name
        arrays = runs[0].gives.count(",") + 1
        lines.append(f"| {shown} | {arrays} | {show_rate(spread_of(run.rate for run in runs))} |")
    note = "\\* 2: tokens and targets; 4: also positions and segments (of Megatron the loss mask)."
    return "\n".join([*lines, "", note])


def show_seconds(seconds: Spread) -> str:
    """Seconds of the rounds: median, least and greatest."""
    return f"{seconds.median:.1f} ({seconds.least:.1f}-{seconds.greatest:.1f})"


def cold_table(results: Results) -> str:
    """Rates of reading from a disk, by the order of the loader."""
    busy = spread_of(run.busy_cores for run in results.cold)
    note = f"Other work ran during these reads ({show_rate(busy)} cores), so rates are low, ratios imprecise."
    lines = [
        *([note, ""] if busy.greatest > BUSY_CORES else []),
        f"| batches of 32 x 4,096 tokens (tokens only) from a cold disk ({results.cold[-1].disk}), "
        "windows of 8,192 rows | MB/s |",
        "|---|---:|",
    ]
    for name in dict.fromkeys(run.contender for run in results.cold):
        rates = spread_of(run.rate for run in results.cold if run.contender == name)
        lines.append(f"| {'**blocks**' if name == 'blocks' else name} | {show_rate(rates)} |")
    return "\n".join(lines)


def exporting_table(results: Results) -> str:
    """Rates of exports by format, of the largest store that was exported to it."""
    lines = [
        *busy_note(
            (run.busy_cores for run in results.exporting), "exports", "so rates are low, ratios imprecise"
        ),
        "| export of a store, whole command | tokens | written | seconds |",
        "|---|---:|---:|---:|",
    ]
    for name in dict.fromkeys(run.contender for run in results.exporting):
        size = max(run.store_bytes for run in results.exporting if run.contender == name)
        runs = [run for run in results.exporting if (run.contender, run.store_bytes) == (name, size)]
        seconds = spread_of(run.wall_seconds for run in runs)
        cells = [name, show_size(size), show_size(runs[0].output_bytes), show_seconds(seconds)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def busy_note(cores: Iterable[float], during: str, effect: str = "so they took longer") -> list[str]:
    """Lines before a table whose runs were disturbed by other work on these cores."""
    busy = spread_of(cores)
    note = f"Other work ran during {during} ({show_rate(busy)} cores), {effect}."
    return [note, ""] if busy.median > BUSY_CORES else []


def reusing_table(results: Results) -> str:
    """Seconds of builds with reuse, by the share of the files that has changed."""
    first = results.reusing[0]
    title = f"build of {show_size(first.text_bytes)} from {first.files} files, whole command"
    lines = [
        *busy_note((run.busy_cores for run in results.reusing), "these builds"),
        f"| {title} | files changed | units reused | seconds | share of the first build |",
        "|---|---:|---:|---:|---:|",
    ]
    whole = spread_of(run.wall_seconds for run in results.reusing if run.contender == first.contender).median
    for name, changed in dict.fromkeys((run.contender, run.changed) for run in results.reusing):
        runs = [run for run in results.reusing if (run.contender, run.changed) == (name, changed)]
        seconds = spread_of(run.wall_seconds for run in runs)
        cells = [
            name,
            "" if name == first.contender else str(changed),
            f"{runs[0].units_reused:,} of {runs[0].units:,}",
            show_seconds(seconds),
            f"{seconds.median / whole:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def remote_table(results: Results) -> str:
    """Rates of builds from an object server beside those from the disk."""
    lines = [
        *busy_note((run.busy_cores for run in results.remote), "these builds"),
        "| build by two workers | seconds, whole command | MB/s after start-up | share of the rate above |",
        "|---|---:|---:|---:|",
    ]
    for name, contender in dict.fromkeys((run.input, run.contender) for run in results.remote):
        runs = [run for run in results.remote if (run.input, run.contender) == (name, contender)]
        disk = [run for run in results.remote if run.input == name and run.contender == runs[0].base]
        share = spread_of(one.steady_rate / two.steady_rate for one, two in zip(runs, disk, strict=True))
        cells = [
            f"`{name}` {contender}",
            show_seconds(spread_of(run.wall_seconds for run in runs)),
            show_rate(spread_of(run.steady_rate / 1e6 for run in runs)),
            "" if contender == runs[0].base else f"{share.median:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def merging_table(results: Results) -> str:
    """Seconds of merge and diff."""
    first = results.merging[0]
    title = f"{show_size(first.store_bytes)} in {first.shards:,} shards, {first.documents:,} documents"
    lines = [
        *busy_note((run.busy_cores for run in results.merging), "these commands"),
        f"| {title}, whole command | shards that differ | seconds | memory |",
        "|---|---:|---:|---:|",
    ]
    for case in dict.fromkeys(run.case for run in results.merging):
        runs = [run for run in results.merging if run.case == case]
        seconds = spread_of(run.wall_seconds for run in runs)
        cells = [
            f"`{case}`" if not runs[0].changed and "equal" not in case else case,
            f"{runs[0].changed:,}" if case.startswith("diff") else "",
            show_seconds(seconds),
            show_size(max(run.peak_bytes for run in runs)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def training_table(results: Results) -> str:
    """Seconds of each trainer, one column per pattern."""
    patterns = list(dict.fromkeys(run.pattern for run in results.training))
    first = results.training[0]
    title = f"training of {first.vocab_size:,} tokens on {show_size(first.text_bytes)}, seconds"
    lines = [
        f"| {title} | {' | '.join(f'`{pattern}`' for pattern in patterns)} | memory |",
        f"|---|{'---:|' * (len(patterns) + 1)}",
    ]
    for name in dict.fromkeys(run.contender for run in results.training):
        cells = [f"**{name}**" if name == "packline" else name]
        runs = [run for run in results.training if run.contender == name]
        for pattern in patterns:
            seconds = [run.seconds for run in runs if run.pattern == pattern]
            cells.append(show_rate(spread_of(seconds)) if seconds else "")
        cells.append(show_size(max(run.resident_bytes for run in runs)))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def conversation_table(results: Results) -> str:
    """Rates of conversations."""
    first = results.conversations[0]
    title = f"{first.conversations:,} conversations of {first.tokens:,} tokens"
    lines = [
        *busy_note((run.busy_cores for run in results.conversations), "these commands"),
        f"| {title} | seconds, whole command | million tokens per processor second | the same per second, "
        "without start |",
        "|---|---:|---:|---:|",
    ]
    for name in dict.fromkeys(run.contender for run in results.conversations):
        runs = [run for run in results.conversations if run.contender == name]
        cells = [
            name,
            show_seconds(spread_of(run.wall_seconds for run in runs)),
            f"{spread_of(run.tokens / run.cpu_seconds / 1e6 for run in runs).median:.2f}",
            f"{spread_of(run.tokens / run.seconds / 1e6 for run in runs).median:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def show_size(size: int) -> str:
    """Bytes in GB, or in MB below one.

    >>> show_size(5 * 10**9), show_size(600_000_000)
    ('5.0 GB', '600 MB')
    """
    return f"{size / 1e9:.1f} GB" if size >= 10**9 else f"{size / 1e6:.0f} MB"


def figure_table(figures: list[Figure]) -> str:
    """Figures that have a goal, and whether it was reached."""
    lines = ["| figure, per round | median | range | goal |", "|---|---:|---:|---:|"]
    for figure in figures:
        if figure.goal is None:
            continue
        digits = 2 if figure.goal < 10 else 0
        median, least, greatest = (
            f"{value:.{digits}f}"
            for value in (figure.spread.median, figure.spread.least, figure.spread.greatest)
        )
        bound = "at most" if figure.at_most else "at least"
        goal = f"{bound} {figure.goal:g}: {'reached' if figure.reached else 'not reached'}"
        about = f"{figure.corpus}, `{figure.tokenizer}`" if figure.tokenizer else figure.corpus
        name = f"{about}: {figure.name}"
        lines.append(f"| {name} | {median} | {least} to {greatest} | {goal} |")
    return "\n".join(lines)
