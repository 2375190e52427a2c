"""`packline verify`: check a store, a data set of another project, or a store against evaluation sets."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import Group, Parameter

from packline.cli.arguments import RUNNING, OnName, Reading, option, place_of
from packline.cli.main import DONE, FAILED, UNCHECKED
from packline.cli.output import output
from packline.cli.progress import watch_bytes
from packline.errors import RecipeError
from packline.jobs.machines import On, parse_slice
from packline.store.reader import StoreReader
from packline.store.report import Report
from packline.viewing.page import Block, Heading, KeyValues, Mood, Note, Page, Table
from packline.viewing.text import duration, plural, size

if TYPE_CHECKING:
    from packline.evals.contamination import ContaminationReport
    from packline.evals.grams import GramOf

AGAINST = Group("Evaluation sets", sort_key=15)
SHOWN = 20
"""Overlaps of evaluation sets shown, the longest first."""
_READING = Reading()


def verify(
    store: Annotated[str, Parameter(help="Folder of a finished store; with --from a dataset.")],
    /,
    *,
    deep: Annotated[
        bool,
        Parameter(help="Also read the inputs again and compare documents.", negative="", show_default=False),
    ] = False,
    slice: Annotated[
        str | None, option("Check part i of n; other machines check the others: --slice 3/8.", RUNNING)
    ] = None,
    against: Annotated[
        list[str] | None,
        option(
            "Search for these questions: a bundle of CORE, a file, a folder. May be repeated.",
            AGAINST,
        ),
    ] = None,
    ngram: Annotated[int | None, option("Length of an overlap that counts. Default: 13.", AGAINST)] = None,
    ngram_of: Annotated[
        Literal["words", "tokens"] | None, option("Unit of that length: words (default) or tokens.", AGAINST)
    ] = None,
    write: Annotated[
        str | None,
        option("Write the list of documents with an overlap, LIST.parquet, for --exclude.", AGAINST),
    ] = None,
    reading: Reading = _READING,
    on: OnName = None,
) -> int:
    """Check a store, or another project's dataset, from its files alone.

    Checks sizes, checksums, indexes, provenance and end-of-document tokens, and
    counts the ledger again. --deep also reads the inputs again and compares a
    sample of documents with the reference tokenizer. --slice i/n checks a part of a
    store; it is whole if no slice has a problem. --from checks the dataset of
    another project: sizes, indexes, ids, boundaries. --against lists the documents
    that share 13 words in a row with a question of an evaluation set, and counts
    the questions that could not be checked; --write makes a list of the documents
    that --exclude leaves out.

    Examples:

      packline verify store
      packline verify store --deep
      packline verify s3://bucket/store --slice 3/8
      packline verify store --against eval_bundle --against gsm8k/test.jsonl
      packline verify store --against gsm8k/test.jsonl --write leaked.parquet
      packline verify data --from megatron --tokenizer gpt2/tokenizer.json

    Exit codes: 0 no problem, 1 problems or questions found, 4 no question found
    but some could not be checked.
    """
    if slice is not None and (against or reading.from_ is not None):
        raise RecipeError("--slice goes with neither --against nor --from")
    if against:
        if reading.from_ is not None or deep:
            raise RecipeError("--against goes with neither --from nor --deep", hint="run one after the other")
        n = 13 if ngram is None else ngram
        return verify_against(store, against, n, ngram_of or "words", write, place_of(on))
    if ngram is not None or ngram_of is not None or write is not None or on is not None:
        raise RecipeError("--ngram, --ngram-of, --write and --on belong to --against")
    if reading.from_ is not None:
        return verify_foreign(store, reading.from_, reading)
    if reading != Reading():
        raise RecipeError(
            "--tokenizer, --eod, --bos and --set belong to --from",
            hint="name the format with --from; a store contains its own tokenizer",
        )
    part = parse_slice(slice or "0/1")
    report = run_verify(store, deep, (part.number, part.count))
    output.blocks(*report_blocks(report))
    return output.result("verify", report, code=DONE if report.ok else FAILED, store=store)


def verify_against(
    store: str,
    against: list[str],
    n: int,
    gram_of: GramOf,
    write: str | None,
    on: On,
) -> int:
    from packline.evals.contamination import find_questions

    opened = StoreReader(store)
    with watch_bytes("searching") as hear:
        report = find_questions(opened, against, n=n, gram_of=gram_of, on=on, on_progress=hear, write=write)
    output.page(contamination_page(report, store))
    if write is not None:
        show_list(store, write, sum(bad for bad, _ in report.sources.values()))
    code = FAILED if report.found else UNCHECKED if report.unchecked else DONE
    return output.result("verify", report, code=code, store=store, written=write)


def show_list(store: str, path: str, documents: int) -> None:
    output.line("  ", ("wrote", "quiet"), f"  {path}: {plural(documents, 'document')}")
    if documents:
        command = shlex.join(["packline", "info", store, "--seq-len", "4096", "--exclude", path])
        output.line("  leave them out  ", (command, "hint"))


def verify_foreign(path: str, format: str, reading: Reading) -> int:
    from packline.formats.check import check_dataset

    with watch_bytes("verifying") as hear:
        report = check_dataset(
            path,
            format,
            reading.tokenizer,
            reading.options(),
            eod=reading.eod,
            bos=reading.bos,
            on_progress=hear,
        )
    output.blocks(*report_blocks(report), *(Note(f"note: {note}", "warning") for note in report.notes))
    return output.result("verify", report, code=DONE if report.ok else FAILED, path=path)


def run_verify(store: str, deep: bool, slice: tuple[int, int] = (0, 1)) -> Report:
    """Verify, with a bar on a terminal."""
    import packline.store.verify

    with watch_bytes("verifying", "comparing documents with the inputs ..." if deep else "") as hear:
        return packline.store.verify.verify(store, deep=deep, slice=slice, on_progress=hear)


def report_blocks(report: Report) -> list[Block]:
    """Scope and problems of a report."""
    blocks: list[Block] = [Note(f"problem: {problem}", "bad") for problem in report.problems]
    if report.problems_not_listed:
        blocks.append(Note(f"problem: and {report.problems_not_listed:,} more", "bad"))
    read = f"{plural(report.files, 'file')}, {size(report.bytes)}, {plural(report.documents, 'document')}"
    rows = [("checked", f"{read}, {plural(report.tokens, 'token')} in {duration(report.seconds)}")]
    if report.deep is not None:
        deep = report.deep
        if deep.documents or not deep.notes:
            compared = f"{plural(deep.documents, 'document')} of {plural(deep.shards, 'shard')}"
            by = f"by the reference tokenizer, {deep.decoded:,} of them also decoded"
            rows.append(("encoded again", f"{compared} {by}"))
        rows += [("not compared", note) for note in deep.notes]
    count = len(report.problems) + report.problems_not_listed
    verdict, in_slice = Note("all is well", "good"), ""
    if report.slice is not msgspec.UNSET:
        number, slices = report.slice
        in_slice = f" in slice {number} of {slices}"
        rows.append(("slice", f"{number} of {slices}, from 0: the store is whole if no slice has a problem"))
        verdict = Note(f"no problem{in_slice}; the others were not checked", "warning")
    if not report.ok:
        verdict = Note(plural(count, "problem"), "bad")
    elif report.deep is not None and report.deep.notes:
        verdict = Note(f"no problem found{in_slice}, but not everything was compared", "warning")
    return [*blocks, KeyValues(tuple(rows)), verdict]


# -------------------------------------------------------------------------------- evaluation sets


def contamination_page(report: ContaminationReport, store: str) -> Page:
    left_out = f"{plural(report.common_grams, 'gram')} of too many questions, "
    left_out += f"{report.repetitive_grams:,} that repeat"
    rate = report.bytes / max(report.seconds, 1e-9)
    facts = (
        ("compared", f"{report.n} {report.gram_of} in a row; {report.normalisation}"),
        ("searched for", f"{plural(report.grams, 'gram')}; left out: {left_out}"),
        ("searched", f"{plural(report.documents, 'document')}, {plural(report.tokens, 'token')}"),
        ("time", f"{duration(report.seconds)}, {size(int(rate))} of tokens per second"),
    )
    sets = tuple(
        (
            name,
            f"{found.questions:,}",
            f"{found.unchecked:,}" if found.unchecked else "",
            f"{found.found:,}",
            f"{sum(found.documents.values()):,}",
        )
        for name, found in report.sets.items()
    )
    sources = tuple((name, f"{whole:,}", f"{bad:,}") for name, (bad, whole) in report.sources.items())
    blocks: list[Block] = [
        KeyValues(facts),
        Heading("Evaluation sets"),
        Table("", ("set", "questions", "not checked", "found", "documents"), sets, "lrrrr"),
        Heading("Sources"),
        Table("", ("source", "documents", "with an overlap"), sources, "lrr"),
    ]
    if report.overlaps:
        head = ("document", "from", "set", "question", report.gram_of, "text")
        rows = tuple(
            (
                f"{one.document:,}",
                f"{one.file} at {one.position:,}" + (f", id {one.id}" if one.id is not None else ""),
                one.set,
                f"{one.question:,}",
                f"{one.length:,}",
                one.text if len(one.text) <= 120 else f"{one.text[:120]}...",
            )
            for one in report.overlaps[:SHOWN]
        )
        blocks += [Heading("The longest overlaps"), Table("", head, rows, "rllrrl")]
        more = report.not_listed + max(len(report.overlaps) - SHOWN, 0)
        if more:
            blocks.append(Note(f"and {more:,} more; --json lists {len(report.overlaps)}"))
    if report.unchecked:
        blocks.append(Note(_reasons(report)))
    blocks.append(Note(*_verdict(report)))
    return Page(f"Evaluation sets in {store}", tuple(blocks))


def _verdict(report: ContaminationReport) -> tuple[str, Mood]:
    """Last line of the page: the findings; never clean if something was not checked."""
    left = f"{report.unchecked:,} of {plural(report.questions, 'question')} could not be checked"
    if report.found:
        documents = sum(bad for bad, _ in report.sources.values())
        found = f"{plural(report.found, 'question')} found in {plural(documents, 'document')}"
        return f"{found}; {left}." if report.unchecked else f"{found}.", "bad"
    if report.unchecked:
        return f"clean, but {left}", "warning"
    return "No question was found.", "good"


def _reasons(report: ContaminationReport) -> str:
    """Reasons why questions were not checked, and remedies."""
    short = sum(found.too_short for found in report.sets.values())
    reasons = []
    if short:
        reasons.append(
            f"{short:,} with fewer than {report.n} {report.gram_of} (a smaller --ngram checks more)"
        )
    if rest := report.unchecked - short:
        reasons.append(f"{rest:,} of which every gram repeats itself or is in too many questions")
    return f"Not checked: {'; '.join(reasons)}."
