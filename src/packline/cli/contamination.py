"""What `packline verify --against` shows: questions that a store has seen."""

from __future__ import annotations

from collections.abc import Callable

from packline.store.report import OnProgress
from packline.tasks.evals.contamination import search
from packline.tasks.evals.contamination_report import ContaminationReport, GramOf
from packline.viewing.page import Block, Facts, Heading, Note, Page, Table
from packline.viewing.text import duration, plural, size

SHOWN = 20


def find_contamination(
    store: str, against: list[str], n: int, gram_of: GramOf
) -> Callable[[OnProgress | None], ContaminationReport]:
    """The search, to be run with or without a bar."""
    from packline.store.reader import Store

    opened = Store(store)
    return lambda hear: search(opened, against, n=n, gram_of=gram_of, on_progress=hear)


def contamination_page(report: ContaminationReport, store: str) -> Page:
    """The result as a page."""
    unit = report.gram_of[:-1]
    left_out = f"{plural(report.common_grams, 'gram')} of too many questions, "
    left_out += f"{report.repetitive_grams:,} that repeat themselves"
    rate = report.bytes / max(report.seconds, 1e-9)
    blocks: list[Block] = [
        Facts(
            (
                ("compared", f"{report.n} {report.gram_of} in a row; {report.normalisation}"),
                ("looked for", f"{plural(report.grams, 'gram')}; left out: {left_out}"),
                (
                    "looked through",
                    f"{plural(report.documents, 'document')}, {plural(report.tokens, 'token')}",
                ),
                ("time", f"{duration(report.seconds)}, {size(int(rate))} of tokens a second"),
            )
        ),
        Heading("Evaluation sets"),
        Table(
            "",
            ("set", "questions", "too short", "found", "documents"),
            tuple(
                (
                    name,
                    f"{found.questions:,}",
                    f"{found.too_short:,}" if found.too_short else "",
                    f"{found.found:,}",
                    f"{sum(found.documents.values()):,}",
                )
                for name, found in report.sets.items()
            ),
            "lrrrr",
        ),
        Heading("Sources"),
        Table(
            "",
            ("source", "documents", "with an overlap"),
            tuple((name, f"{whole:,}", f"{bad:,}") for name, (bad, whole) in report.sources.items()),
            "lrr",
        ),
    ]
    if report.overlaps:
        blocks += [
            Heading("The longest overlaps"),
            Table(
                "",
                ("document", "from", "set", "question", f"{unit}s", "text"),
                tuple(
                    (
                        f"{one.document:,}",
                        f"{one.file} at {one.position:,}" + (f", id {one.id}" if one.id is not None else ""),
                        one.set,
                        f"{one.question:,}",
                        f"{one.length:,}",
                        one.text if len(one.text) <= 120 else f"{one.text[:120]}...",
                    )
                    for one in report.overlaps[:SHOWN]
                ),
                "rllrrl",
            ),
        ]
        more = report.not_listed + max(len(report.overlaps) - SHOWN, 0)
        if more:
            blocks.append(Note(f"and {more:,} more; --json lists {len(report.overlaps)}"))
    verdict = Note("No question was found.", "good")
    if not report.clean:
        questions = sum(found.found for found in report.sets.values())
        documents = sum(bad for bad, _ in report.sources.values())
        verdict = Note(f"{plural(questions, 'question')} found in {plural(documents, 'document')}.", "bad")
    return Page(f"Evaluation sets in {store}", (*blocks, verdict))
