"""`packline verify`: check a store, or a data set of another project, and list its problems."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from cyclopts import Group, Parameter

from packline.cli.arguments import Flags, _token, option
from packline.cli.main import DONE, FAILED, UNCHECKED
from packline.cli.output import Line, output, table
from packline.errors import RecipeError
from packline.store.report import OnProgress, Report
from packline.viewing.text import bar, duration, plural, size

if TYPE_CHECKING:
    from packline.formats.check import DatasetReport

FOREIGN = Group("Data sets of other projects", sort_key=20)
AGAINST = Group("Evaluation sets", sort_key=15)
R = TypeVar("R")
_FLAGS = Flags()


def verify(
    store: Annotated[str, Parameter(help="Folder of a finished store; with --from a data set.")],
    *,
    deep: Annotated[
        bool,
        Parameter(help="Also read the inputs again and compare documents.", negative="", show_default=False),
    ] = False,
    against: Annotated[
        list[str] | None,
        option(
            "Look for these questions instead: a bundle of CORE, a file, a folder. May be repeated.", AGAINST
        ),
    ] = None,
    ngram: Annotated[int | None, option("How many in a row count. Default: 13.", AGAINST)] = None,
    ngram_of: Annotated[
        Literal["words", "tokens"] | None, option("Of what: words (default), or tokens.", AGAINST)
    ] = None,
    from_: Annotated[
        str | None,
        option(
            "Check a data set of this format instead; packline formats lists them.", FOREIGN, name="--from"
        ),
    ] = None,
    tokenizer: Annotated[
        str | None, option("That made its ids. Default: what the data set says of it.", FOREIGN)
    ] = None,
    eod: Annotated[str | None, option("End of its documents: a token's string, or an id.", FOREIGN)] = None,
    bos: Annotated[
        str | None, option("Beginning of its documents: a token's string, or an id.", FOREIGN)
    ] = None,
    set: Annotated[
        list[str] | None,
        option("An option of the format, NAME=VALUE, a list as NAME=A,B. May be repeated.", FOREIGN),
    ] = None,
    flags: Flags = _FLAGS,
) -> int:
    """Check a store from its files alone; see `pages`."""
    if against:
        if from_ is not None or deep:
            raise RecipeError("--against goes with neither --from nor --deep", hint="ask one after the other")
        return verify_against(store, against, 13 if ngram is None else ngram, ngram_of or "words")
    if ngram is not None or ngram_of is not None:
        raise RecipeError("--ngram and --ngram-of say how to look --against evaluation sets")
    if from_ is not None:
        return verify_foreign(store, from_, tokenizer, eod, bos, set)
    if tokenizer is not None or eod is not None or bos is not None or set:
        raise RecipeError(
            "--tokenizer, --eod, --bos and --set are for data sets of other projects",
            hint="name the format with --from; a store knows its own tokenizer",
        )
    report = run_verify(store, deep)
    output.lines(report_lines(report))
    code = DONE if report.ok else FAILED
    values: dict[str, Any] = msgspec.to_builtins(report)
    output.result({"command": "verify", "store": store, "exit_code": code, **values})
    return code


def verify_against(store: str, against: list[str], n: int, gram_of: Literal["words", "tokens"]) -> int:
    """Search a store for evaluation sets."""
    from packline.cli.contamination import contamination_page, find_contamination
    from packline.viewing.terminal import render

    report = _with_bar(find_contamination(store, against, n, gram_of), "")
    output.lines(render(contamination_page(report, store), output.width, output.color))
    code = FAILED if report.found else UNCHECKED if report.unchecked else DONE
    values: dict[str, Any] = msgspec.to_builtins(report)
    output.result({"command": "verify", "store": store, "exit_code": code, **values})
    return code


def verify_foreign(
    path: str, format: str, tokenizer: str | None, eod: str | None, bos: str | None, words: list[str] | None
) -> int:
    """Check a data set of another project."""
    from packline.cli.exporting import options_of
    from packline.formats.check import check_dataset

    def run(hear: OnProgress | None) -> DatasetReport:
        return check_dataset(
            path,
            format,
            tokenizer,
            options_of(words),
            eod=None if eod is None else _token(eod),
            bos=None if bos is None else _token(bos),
            on_progress=hear,
        )

    report = _with_bar(run, "")
    output.lines(report_lines(report))
    for note in report.notes:
        output.line("  ", ("note", "warning"), "  ", note)
    code = DONE if report.ok else FAILED
    values: dict[str, Any] = msgspec.to_builtins(report)
    output.result({"command": "verify", "path": path, "exit_code": code, **values})
    return code


def run_verify(store: str, deep: bool) -> Report:
    """Verify, with a bar on a terminal."""
    import packline.store.verify

    return _with_bar(
        lambda hear: packline.store.verify.verify(store, deep=deep, on_progress=hear),
        "  comparing documents with the inputs ..." if deep else "",
    )


def _with_bar(run: Callable[[OnProgress | None], R], at_the_end: str) -> R:
    """Run a function that reports how much it has read, and show that on a terminal."""
    done = [0, 1]

    def hear(read: int, whole: int) -> None:
        done[:] = [read, max(whole, 1)]

    def draw(width: int) -> list[Line]:
        share = done[0] / done[1]
        full, rest = bar(share, min(width - 40, 40))
        what = at_the_end if at_the_end and share >= 1 else f" {share:4.0%} read"
        return [["  verifying  ", (full, "good"), (rest, "quiet"), what]]

    if not output.interactive:
        return run(None)
    with output.live(draw):
        return run(hear)


def report_lines(report: Report) -> list[Line]:
    """Scope and problems of a report."""
    lines: list[Line] = [[("problem: ", "error"), str(problem)] for problem in report.problems]
    if report.problems_not_listed:
        lines.append([("problem: ", "error"), f"and {report.problems_not_listed:,} more"])
    looked = f"{plural(report.files, 'file')}, {size(report.bytes)}, {plural(report.documents, 'document')}"
    whole = f"{looked}, {plural(report.tokens, 'token')} in {duration(report.seconds)}"
    rows: list[Line] = [[("checked", "quiet"), whole]]
    if report.deep is not None:
        deep = report.deep
        if deep.documents or not deep.notes:
            compared = f"{plural(deep.documents, 'document')} of {plural(deep.shards, 'shard')}"
            by = f"by the reference tokenizer, {deep.decoded:,} of them also decoded"
            rows.append([("encoded again", "quiet"), f"{compared} {by}"])
        rows += [[("not compared", "warning"), note] for note in deep.notes]
    count = len(report.problems) + report.problems_not_listed
    if not report.ok:
        verdict = (plural(count, "problem"), "error")
    elif report.deep is not None and report.deep.notes:
        verdict = ("no problem found, but not everything was compared", "warning")
    else:
        verdict = ("all is well", "good")
    rows.append([("verdict", "quiet"), verdict])
    return [*lines, *table(rows, "ll", width=output.wrap)]
