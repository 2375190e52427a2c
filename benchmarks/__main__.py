"""`python -m benchmarks`: assemble text, measure, and write the tables.

python -m benchmarks corpus              gather real text and write the files (once)
python -m benchmarks run                 measure rates into benchmarks/results.json
python -m benchmarks memory              add the measurement of memory to it
python -m benchmarks packing             add the measurement of best_fit to it
python -m benchmarks selecting           add that of selections of documents
python -m benchmarks loading             add the rates of batches to it
python -m benchmarks cold                add the rates from a cold disk to it
python -m benchmarks export              add the rates of exports to it
python -m benchmarks reuse               add the seconds of builds that reuse a store to it
python -m benchmarks remote              add the rates of builds from an object server to it
python -m benchmarks ray                 compare a build on Ray with one on this machine
python -m benchmarks chaos               kill processes of builds at random, and compare the stores
python -m benchmarks sft                 measure conversations, beside transformers
python -m benchmarks steps               measure what steps of training wait for batches
python -m benchmarks merge               add the seconds of merging and comparing stores to it
python -m benchmarks units               add the rate of units without work to it; --builds: memory of drivers
python -m benchmarks training            add the seconds of training tokenizers to it
python -m benchmarks against             compare this checkout with another one, such as an earlier commit
python -m benchmarks quick               compare the working tree with a commit, in three minutes
python -m benchmarks simulate            simulate a build on 1,000 workers, some of them lost and replaced
python -m benchmarks render              rewrite the tables of docs/benchmarks.md
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.options import ROOT, SHARED, make_parser
from packline.errors import PacklineError

if TYPE_CHECKING:
    from benchmarks.catalogue import TokenizerFile
    from benchmarks.results import Results


RATES = {"date", "machine", "versions", "corpora", "parity", "runs", "left_out", "figures"}
"""Fields of the results that `run` measures."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 0, or 1 after an error, which is printed in one or two lines."""
    options = make_parser((__doc__ or "").splitlines()[0]).parse_args(arguments)
    try:
        commands = {
            "corpus": corpus,
            "run": run,
            "memory": memory,
            "packing": packing,
            "selecting": selecting,
            "loading": loading,
            "cold": cold,
            "export": export,
            "reuse": reuse,
            "remote": remote,
            "ray": on_ray,
            "chaos": chaos,
            "sft": conversations,
            "steps": training_steps,
            "merge": merge,
            "units": units,
            "training": training,
            "against": against,
            "quick": quick,
            "simulate": simulate_builds,
            "render": render_pages,
        }
        commands[options.command](options)
    except PacklineError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 1
    return 0


def simulate_builds(options: argparse.Namespace) -> None:
    """Simulate a build for each choice of units, check it, and print its figures."""
    import tempfile
    from typing import cast

    from benchmarks.simulation import How, World, describe, simulate

    world = World(
        nodes=options.nodes,
        workers=options.workers,
        units=options.units,
        losses_a_node_hour=options.losses,
        seed=options.seed,
    )
    for how in options.how.split(","):
        with tempfile.TemporaryDirectory() as scratch:
            found = simulate(world, cast("How", how), Path(scratch))
            found.check()
        for name, value in describe(found).items():
            _say(f"{name:16}  {value}")
        _say("checked: every unit has one receipt, no file is without one")


def corpus(options: argparse.Namespace) -> None:
    """Write the files that are measured."""
    from benchmarks.corpus import build_corpus, load_facts
    from packline.quantities import parse_bytes

    build_corpus(
        options.folder,
        size_bytes=parse_bytes(options.size),
        slice_bytes=parse_bytes(options.slice_size),
        memory_bytes=parse_bytes(options.memory_size),
        shared=options.shared if options.shared.is_dir() else None,
    )
    for name, facts in load_facts(options.folder).items():
        kinds = ", ".join(f"{kind} {size / 1e6:.0f} MB" for kind, size in facts.kinds.items())
        _say(f"{name}: {facts.documents} documents, {kinds}")


def run(options: argparse.Namespace) -> None:
    """Measure rates; keeps what the other commands measured before."""
    from benchmarks.results import load_results
    from benchmarks.suite import measure

    kept = load_results(options.results) if options.results.exists() else None

    def save(results: Results) -> None:
        for name in set(results.__struct_fields__) - RATES if kept is not None else ():
            setattr(results, name, getattr(kept, name))
        _save(options.results, results)

    measure(
        options.folder,
        corpora=options.corpora.split(","),
        tokenizers=_tokenizers(options),
        rounds=options.rounds,
        peers_python=_peers_python(options.peers_python),
        say=_say,
        save=save,
    )


def memory(options: argparse.Namespace) -> None:
    """Measure memory and add it to the results."""
    from benchmarks.corpus import load_facts
    from benchmarks.memory import measure_memory
    from benchmarks.results import load_results, new_results
    from packline.quantities import parse_bytes

    sizes = [parse_bytes(size) for size in options.sizes.split(",")]
    runs = measure_memory(options.folder, _tokenizers(options)[0], sizes, _say)
    old = options.results.exists()
    results = load_results(options.results) if old else new_results(load_facts(options.folder))
    results.memory = runs
    _save(options.results, results)


def packing(options: argparse.Namespace) -> None:
    """Measure best_fit and add it to the results."""
    from benchmarks.packing import measure_packing

    runs = measure_packing(
        options.folder,
        documents=options.documents,
        compared=options.compared,
        seq_len=options.seq_len,
        rounds=options.rounds,
        say=_say,
    )
    results = _results(options)
    results.packing = runs
    _save(options.results, results)


def selecting(options: argparse.Namespace) -> None:
    """Measure selections and add them to the results."""
    from benchmarks.selecting import measure_selecting

    runs = measure_selecting(options.folder, documents=options.documents, rounds=options.rounds, say=_say)
    results = _results(options)
    results.selecting = runs
    _save(options.results, results)


def loading(options: argparse.Namespace) -> None:
    """Measure batches, opening and permuting, and add them to the results."""
    from benchmarks.loading import measure_loading

    results = _results(options)
    measure_loading(
        options.folder,
        results,
        # A vocabulary that fits uint16, which is what the peers' own examples read.
        tokenizer=_tokenizers(options)[-1],
        documents=options.documents,
        rounds=options.rounds,
        seconds=options.seconds,
        peers_python=_peers_python(options.peers_python),
        say=_say,
    )
    _save(options.results, results)


def cold(options: argparse.Namespace) -> None:
    """Measure reading from a cold disk, and add it to the results."""
    from benchmarks.cold import measure_cold
    from packline.quantities import parse_bytes

    results = _results(options)
    measure_cold(
        options.folder,
        results,
        size=parse_bytes(options.size),
        rounds=options.rounds,
        seconds=options.seconds,
        say=_say,
    )
    _save(options.results, results)


def export(options: argparse.Namespace) -> None:
    """Measure exports beside copies, and add them to the results, in place of older ones of these formats."""
    from benchmarks.exporting import measure_exporting
    from packline.quantities import parse_bytes

    only = options.formats.split(",") if options.formats else None
    runs = measure_exporting(
        options.folder,
        tokenizer=_tokenizers(options)[-1],
        large_bytes=parse_bytes(options.size),
        small_bytes=parse_bytes(options.small_size),
        rounds=options.rounds,
        only=only,
        say=_say,
    )
    results = _results(options)
    kept = [run for run in results.exporting if only is not None and run.format not in only]
    results.exporting = kept + runs
    _save(options.results, results)


def reuse(options: argparse.Namespace) -> None:
    """Measure builds that reuse a store, and add them to the results, in place of older ones."""
    from benchmarks.reusing import measure_reuse
    from packline.quantities import parse_bytes

    results = _results(options)
    results.reusing = measure_reuse(
        options.folder,
        tokenizer=_tokenizers(options)[-1],
        text_bytes=parse_bytes(options.size),
        rounds=options.rounds,
        say=_say,
    )
    _save(options.results, results)


def remote(options: argparse.Namespace) -> None:
    """Measure builds from an object server, and add them to the results, in place of older ones."""
    from benchmarks.remote import INPUTS, measure_remote
    from benchmarks.remote_reads import measure_reads, measure_waits

    if options.waits:
        measure_waits(options.folder, steps=options.steps, say=_say)
        return
    if options.reads:
        measure_reads(options.folder, rounds=options.rounds, steps=options.steps, say=_say)
        return
    results = _results(options)
    runs = measure_remote(
        options.folder,
        inputs=options.inputs.split(",") if options.inputs else INPUTS,
        tokenizer=_tokenizers(options)[-1],
        rounds=options.rounds,
        say=_say,
    )
    results.remote = [run for run in results.remote if run.base != runs[0].base] + runs
    _save(options.results, results)


def on_ray(options: argparse.Namespace) -> None:
    """Measure builds on Ray beside builds without it, and add them to the results, in place of older ones."""
    from benchmarks.clusters import measure_ray

    results = _results(options)
    runs = measure_ray(
        options.folder,
        tokenizer=_tokenizers(options)[-1],
        rounds=options.rounds,
        workers=options.workers,
        say=_say,
    )
    results.remote = [run for run in results.remote if run.base != runs[0].base] + runs
    _save(options.results, results)


def chaos(options: argparse.Namespace) -> None:
    """Kill processes of builds at random, and compare their stores."""
    from benchmarks.clusters import run_chaos

    run_chaos(options.kills, options.seed, _say)


def merge(options: argparse.Namespace) -> None:
    """Measure merging and comparing stores, and add it to the results, in place of older measurements."""
    from benchmarks.merging import measure_merging
    from packline.quantities import parse_bytes

    results = _results(options)
    results.merging = measure_merging(
        options.folder,
        tokenizer=_tokenizers(options)[-1],
        size=parse_bytes(options.size),
        rounds=options.rounds,
        say=_say,
    )
    _save(options.results, results)


def units(options: argparse.Namespace) -> None:
    """Measure units without work, and add them to the results, in place of older measurements."""
    from benchmarks.units import measure_drivers, measure_units
    from packline.quantities import parse_count

    if options.builds:
        numbers = [parse_count(word) for word in options.builds.split(",")]
        measure_drivers(numbers, tokenizer=_tokenizers(options)[-1], say=_say)
        return
    results = _results(options)
    counts = [parse_count(word) for word in options.counts.split(",")]
    results.units = measure_units(counts, workers=options.workers, rounds=options.rounds, say=_say)
    _save(options.results, results)


def conversations(options: argparse.Namespace) -> None:
    """Measure conversations, and add them to the results, in place of older measurements."""
    from benchmarks.conversations import measure_conversations

    results = _results(options)
    results.conversations = measure_conversations(
        options.folder,
        source=options.dialogues,
        tokenizer=_tokenizers(options)[-1],
        rounds=options.rounds,
        peers_python=options.peers_python,
        say=_say,
    )
    _save(options.results, results)


def training_steps(options: argparse.Namespace) -> None:
    """Train models for some steps, and print what each step waits for its batch."""
    from benchmarks.stepping import measure_steps

    models = options.models.split(",")
    measure_steps(options.folder, models=models, steps=options.steps, rows=options.rows, say=_say)


def training(options: argparse.Namespace) -> None:
    """Measure trainers of tokenizers and add them to the results."""
    from benchmarks.training import measure_training
    from packline.quantities import parse_bytes

    results = _results(options)
    measure_training(
        options.folder,
        results,
        text_bytes=parse_bytes(options.size),
        vocab_size=options.vocab_size,
        rounds=options.rounds,
        peers_python=_peers_python(options.peers_python),
        say=_say,
    )
    _save(options.results, results)


def _results(options: argparse.Namespace) -> Results:
    """Results measured so far; empty ones if there is no file."""
    from benchmarks.results import load_results, new_results

    return load_results(options.results) if options.results.exists() else new_results({})


def _save(path: Path, results: Results) -> None:
    """Save the results with figures computed from all runs."""
    from benchmarks.figures import all_figures
    from benchmarks.results import save_results

    results.figures = all_figures(results)
    save_results(path, results)


def against(options: argparse.Namespace) -> None:
    """Compare with another checkout and print the table."""
    from benchmarks.against import find_tasks, measure_against, table

    tokenizer = _tokenizers(options)[0]
    found = measure_against(
        options.folder,
        options.other,
        Path(tokenizer.path),
        tokenizer.eod,
        rounds=options.rounds,
        names=find_tasks(tuple(name for name in options.only.split(",") if name)),
        say=_say,
    )
    print("\n".join(table(found)))


def quick(options: argparse.Namespace) -> None:
    """Compare the working tree with a commit; an error if a task is slower."""
    from benchmarks.quick import measure_quick

    (tokenizer,) = options.tokenizer or [None]
    measure_quick(options.commit, tokenizer, options.eod, rounds=options.rounds, say=_say)


def render_pages(options: argparse.Namespace) -> None:
    """Rewrite the tables of docs/benchmarks.md and the goals of benchmarks/README.md."""
    from benchmarks.render import figure_table, render, rewrite
    from benchmarks.results import load_results

    results = load_results(options.results)
    rewrite(options.page, render(results))
    rewrite(options.goals, figure_table(results.figures))


def _tokenizers(options: argparse.Namespace) -> list[TokenizerFile]:
    from benchmarks.catalogue import read_tokenizer
    from benchmarks.errors import BenchmarkError

    paths = options.tokenizer or [SHARED / "tokenizers" / name for name in ("qwen3", "gpt2")]
    if not options.tokenizer and not SHARED.is_dir():
        raise BenchmarkError("no tokenizer to measure with", hint="--tokenizer PATH --eod STRING")
    return [read_tokenizer(path, options.eod) for path in paths]


def _peers_python(named: str | None) -> str | None:
    """The one that was named, else PACKLINE_PEERS_PYTHON, else that of .venv-peers."""
    environment = ROOT / ".venv-peers" / "bin" / "python"
    return (
        named
        or os.environ.get("PACKLINE_PEERS_PYTHON")
        or (str(environment) if environment.exists() else None)
    )


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
