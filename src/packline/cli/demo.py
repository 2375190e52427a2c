"""`packline demo`: from text to a store that can be inspected, without a network.

Nothing is prepared: the corpus comes from this machine's Python, and every number is measured during the run.
It takes a few seconds and about 50 MB of disk.
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from packline.cli.arguments import Flags
from packline.cli.build import facts, kept
from packline.cli.corpus import END, Corpus, gather, prepare_folder
from packline.cli.info import group_lines, group_shards, length_lines, show_document
from packline.cli.main import DONE, FAILED, interrupted
from packline.cli.output import Line, output, table
from packline.cli.plan import estimate_lines
from packline.cli.progress import Tally, watch
from packline.cli.summary import finished_lines, ledger_lines
from packline.cli.verify import report_lines, run_verify
from packline.jobs.estimate import Estimate
from packline.jobs.events import Finished
from packline.recipe import load_recipe
from packline.store.reader import StoreReader
from packline.store.report import Report
from packline.viewing.lengths import measure_lengths
from packline.viewing.text import duration, plural, size

_FLAGS = Flags()
VOCAB_SIZE = 16_384
SHOWN = (("code", "bisect.py", None), ("docs", "docs.jsonl", "topic with"))
"""Documents present in every Python, by source, file and id."""


def demo(
    *,
    out: Annotated[str, Parameter(help="Folder for all of it: new, or an earlier demo's.")] = "packline-demo",
    flags: Flags = _FLAGS,
) -> int:
    """Build, verify and show a store of Python's own library; see `pages`."""
    folder = Path(out)
    prepare_folder(folder)
    corpus = _gather(folder)
    training_seconds = _train(corpus)
    estimate = _plan(corpus)
    _title(4, "build", f"packline build {_quoted(corpus.recipe)} --out {_quoted(corpus.store)}")
    tally = Tally()
    try:
        finished = _build(corpus, tally)
    except KeyboardInterrupt as error:
        return interrupted(error, kept(tally))
    output.line()
    output.lines(finished_lines(finished, str(corpus.store)))
    output.line()
    output.lines(ledger_lines(finished.ledger))
    report = _verify(corpus)
    _show(corpus)
    code = DONE if report.ok else FAILED
    output.result(
        {
            **facts(finished, tally, str(corpus.store), code, 1.0),
            "command": "demo",
            "training_seconds": training_seconds,
            "plan": msgspec.to_builtins(estimate),
            "verify": msgspec.to_builtins(report),
        }
    )
    return code


def _title(number: int, word: str, what: str) -> None:
    output.line()
    output.line((f"{number}  {word}", "title"), "   ", (what, "quiet"))
    output.line()


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _gather(folder: Path) -> Corpus:
    _title(1, "text", "what this machine's Python brings along")
    corpus = gather(folder)
    output.lines(
        table(
            [
                [("code", "quiet"), plural(corpus.code_files, "file"), size(corpus.code_bytes)],
                [("docs", "quiet"), plural(corpus.docs, "document"), size(corpus.docs_bytes)],
            ],
            "lrr",
        )
    )
    return corpus


def _train(corpus: Corpus) -> float:
    from packline.vocabulary.training import train_bpe

    _title(2, "tokenizer", f"byte-level BPE of {VOCAB_SIZE:,} tokens, trained on all of it")
    started = time.perf_counter()
    corpus.tokenizer.write_text(train_bpe(corpus.texts(), VOCAB_SIZE, (END,)), encoding="utf-8")
    seconds = time.perf_counter() - started
    output.line(f"  {corpus.tokenizer} in {duration(seconds)}")
    return seconds


def _plan(corpus: Corpus) -> Estimate:
    from packline.jobs.estimate import estimate_build

    _title(3, "plan", f"packline plan {_quoted(corpus.recipe)}")
    found = estimate_build(*load_recipe(corpus.recipe))
    output.lines(estimate_lines(found))
    return found


def _build(corpus: Corpus, tally: Tally) -> Finished:
    from packline.jobs.build import run_build

    recipe, options = load_recipe(corpus.recipe)
    with watch(tally, corpus.store) as hear:
        return run_build(recipe, corpus.store, options, hear)


def _verify(corpus: Corpus) -> Report:
    _title(5, "verify", f"packline verify {_quoted(corpus.store)} --deep")
    report = run_verify(str(corpus.store), deep=True)
    output.lines(report_lines(report))
    return report


def _show(corpus: Corpus) -> None:
    _title(6, "look", f"packline info {_quoted(corpus.store)}")
    store = StoreReader(corpus.store)
    output.lines(group_lines(group_shards(store)))
    output.line()
    output.lines(length_lines(measure_lengths(store), output.width))
    for source, file, id in SHOWN:
        number = find_document(store, source, file, id)
        if number is not None:
            output.line()
            show_document(store, number, 8)
    output.line()
    rows: list[Line] = [
        [("in Python", "quiet"), f"packline.open({str(corpus.store)!r}).documents[0]"],
        [("as rows", "quiet"), f"packline pack {_quoted(corpus.store)} --seq-len 2048"],
    ]
    output.lines(table(rows, "ll"))


def find_document(store: StoreReader, source: str, file: str, id: str | None) -> int | None:
    """First document with the given source, file and, if given, id."""
    import pyarrow.compute as pc

    start = 0
    for shard in store.shards:
        columns: dict[str, Any] = {name: shard.table.column(name) for name in ("source", "file", "id")}
        found = pc.and_(pc.equal(columns["source"], source), pc.equal(columns["file"], file))
        if id is not None:
            found = pc.and_(found, pc.equal(columns["id"], id))
        place = pc.index(found, True).as_py()
        if place >= 0:
            return start + int(place)
        start += len(shard)
    return None
