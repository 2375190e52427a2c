"""The measurement: contenders in turn, round after round, and the proof that they did the same work.

A run counts only if it encoded every document of the corpus. All variants of the ceiling must give
the same number of tokens, and packline that number and one end of document each. Peers obey
special-token strings in text, so theirs may differ by a hair, not by more.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.catalogue import Contender, TokenizerFile, all_contenders
from benchmarks.corpus import Facts, load_facts
from benchmarks.errors import BenchmarkError
from benchmarks.process import Outcome, run_fresh
from benchmarks.results import BUSY_CORES, Parity, Results, Run, new_results

ROOT = Path(__file__).resolve().parents[1]
ENGINES = ("gigatoken", "fastokens")
PEERS = ("datatrove", "datasets", "megatron-core")

PEER_TOLERANCE = 0.001
"""Of the tokens of a corpus."""

Say = Callable[[str], None]


def measure(
    folder: Path,
    *,
    corpora: list[str],
    tokenizers: list[TokenizerFile],
    rounds: int,
    peers_python: str | None,
    say: Say,
    save: Callable[[Results], None],
) -> Results:
    """Measure everything that `catalogue` names; `save` is called after every round.

    Raises:
        BenchmarkError: a contender failed, or did other work than the rest.
    """
    facts = load_facts(folder)
    results = new_results(facts)
    if float(results.machine["busy_cores_at_start"]) > BUSY_CORES:
        say("the machine is busy: rates will be too low and ratios unreliable")
    for corpus in [corpus for corpus in corpora if corpus not in facts]:
        results.left_out.append(f"{corpus}: no such text on this machine")
    corpora = [corpus for corpus in corpora if corpus in facts]
    if peers_python is None:
        results.left_out.append("peers: no interpreter with them was named")
    else:
        results.versions |= peer_versions(peers_python, PEERS)
    results.parity = check_engines(folder, corpora, tokenizers, say)
    engines: dict[tuple[str, str], set[str]] = {}
    for check in results.parity:
        exact = {check.engine} if check.different == 0 else set()
        engines.setdefault((check.corpus, check.tokenizer), set()).update(exact)
    contenders = all_contenders(folder, corpora, tokenizers, engines, peers_python)
    for number in range(1, rounds + 1):
        for contender in contenders:
            run = measure_once(contender, number, facts[contender.corpus], folder)
            say(f"round {number}: {contender.corpus}, {contender.tokenizer}: {line_of(run)}")
            results.runs.append(run)
        check_work(results.runs, facts)
        save(results)
    return results


def line_of(run: Run) -> str:
    """One line of progress."""
    extra = f", steady {run.steady:.0f}, fixed {run.fixed_seconds:.1f} s" if run.kind == "packline" else ""
    return f"{run.contender}: {run.job:.1f} MB/s, whole command {run.whole:.1f}{extra}"


def check_engines(
    folder: Path, corpora: list[str], tokenizers: list[TokenizerFile], say: Say
) -> list[Parity]:
    """Each engine's ids against the reference's, once for each corpus and tokenizer that is measured."""
    checks = []
    for corpus in (corpus for corpus in corpora if corpus != "slice"):
        for tokenizer in tokenizers if corpus == "english" else tokenizers[:1]:
            for engine in ENGINES:
                arguments = [str(folder / f"{corpus}.jsonl"), tokenizer.path, "--engine", engine]
                report = run_script("parity", arguments).report
                check = Parity(
                    corpus,
                    tokenizer.name,
                    engine,
                    report["documents"],
                    report["text_bytes"],
                    report["different"],
                )
                checks.append(check)
                verdict = "exact" if check.different == 0 else f"{check.different} documents differ: left out"
                say(f"{engine} on {corpus} with {tokenizer.name}: {check.documents} documents, {verdict}")
    return checks


def peer_versions(python: str, names: tuple[str, ...]) -> dict[str, str]:
    """Versions of the peers, under the interpreter that has them.

    Raises:
        BenchmarkError: one of them is not installed there.
    """
    code = "import importlib.metadata as m, json; print(json.dumps({n: m.version(n) for n in NAMES}))"
    try:
        command = [python, "-c", code.replace("NAMES", repr(names))]
        return run_fresh(command, cwd=ROOT, env=environment()).report
    except (BenchmarkError, OSError) as error:
        hint = "make peers installs them (peers.txt)"
        raise BenchmarkError(f"{python} lacks one of {', '.join(names)}: {error}", hint=hint) from error


def run_script(name: str, arguments: list[str]) -> Outcome:
    """One of the scripts in `contenders`, under this interpreter."""
    return run_fresh(
        [sys.executable, "-m", f"benchmarks.contenders.{name}", *arguments], cwd=ROOT, env=environment()
    )


def environment() -> dict[str, str]:
    """Of a contender: this one's, without settings that would speed up or slow down an engine."""
    unwanted = ("RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS")
    return {key: value for key, value in os.environ.items() if key not in unwanted}


def measure_once(contender: Contender, number: int, facts: Facts, folder: Path) -> Run:
    """Run a contender in a fresh process, its output into a fresh folder that is then removed."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    command = [part.replace("{out}", str(out)) for part in contender.command]
    try:
        outcome = run_fresh(command, cwd=ROOT, env=environment())
    finally:
        shutil.rmtree(out, ignore_errors=True)
    return run_of(contender, number, facts, outcome)


def run_of(contender: Contender, number: int, facts: Facts, outcome: Outcome) -> Run:
    """What a contender printed, as a run; peers do not count the text, so the corpus's own count stands in.

    Raises:
        BenchmarkError: a field is missing.
    """
    report: dict[str, Any] = outcome.report
    try:
        return Run(
            contender=contender.name,
            kind=contender.kind,
            corpus=contender.corpus,
            tokenizer=contender.tokenizer,
            round=number,
            documents=report["documents"],
            tokens=report["tokens"],
            text_bytes=report["text_bytes"] or facts.text_bytes,
            wall_seconds=outcome.wall_seconds,
            seconds=report["seconds"],
            first_unit_seconds=report["first_unit_seconds"] if contender.kind == "packline" else None,
            tokenizer_seconds=report["tokenizer_seconds"] if contender.kind == "packline" else None,
            worker_bytes=max((peak.resident for peak in outcome.workers), default=0),
        )
    except KeyError as error:
        raise BenchmarkError(f"{contender.name} did not report {error}: {sorted(report)}") from error


def check_work(runs: list[Run], facts: dict[str, Facts]) -> None:
    """Refuse rates of different work.

    Raises:
        BenchmarkError: other documents, bytes or tokens than expected.
    """
    tokens: dict[tuple[str, str], int] = {}
    for run in runs:
        expected = facts[run.corpus]
        if (run.documents, run.text_bytes) != (expected.documents, expected.text_bytes):
            raise BenchmarkError(
                f"{run.contender} on {run.corpus}: {run.documents} documents of {run.text_bytes} bytes: "
                f"expected {expected.documents} of {expected.text_bytes}"
            )
        # The ceiling adds no end of document; everyone else adds one each.
        text_tokens = run.tokens - (0 if run.kind == "ceiling" else run.documents)
        known = tokens.setdefault((run.corpus, run.tokenizer), text_tokens)
        allowed = PEER_TOLERANCE * known if run.kind == "peer" or run.corpus == "slice" else 0
        if abs(text_tokens - known) > allowed:
            raise BenchmarkError(
                f"{run.contender} on {run.corpus} with {run.tokenizer}: "
                f"{text_tokens} tokens of text: expected {known}"
            )
