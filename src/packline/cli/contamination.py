"""Output of `packline verify --against`: evaluation questions that occur in a store."""

from __future__ import annotations

from collections.abc import Callable

from packline.evals.contamination import search
from packline.evals.contamination_report import ContaminationReport, GramOf
from packline.store.report import OnProgress
from packline.viewing.page import Block, Facts, Heading, Mood, Note, Page, Table
from packline.viewing.text import duration, plural, size

SHOWN = 20


def find_contamination(
    store: str, against: list[str], n: int, gram_of: GramOf
) -> Callable[[OnProgress | None], ContaminationReport]:
    """Search for evaluation questions, with or without a progress bar."""
    from packline.store.reader import StoreReader

    opened = StoreReader(store)
    return lambda hear: search(opened, against, n=n, gram_of=gram_of, on_progress=hear)


def contamination_page(report: ContaminationReport, store: str) -> Page:
    """Page for a result."""
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
            ("set", "questions", "not checked", "found", "documents"),
            tuple(
                (
                    name,
                    f"{found.questions:,}",
                    f"{found.unchecked:,}" if found.unchecked else "",
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
