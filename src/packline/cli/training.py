"""Progress of the training of a tokenizer, and the report at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from packline.cli.output import Line, output
from packline.viewing.text import bar, duration, percent, plural, size

if TYPE_CHECKING:
    from packline.vocabulary.trained_folder import TrainingReport
    from packline.vocabulary.training import TrainingProgress


class TrainingTally:
    """Latest progress report, and the start time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.last: TrainingProgress | None = None
        self._clock, self._began = clock, clock()

    def line(self) -> str:
        """Progress as one line."""
        now = self.last
        if now is None:
            return "looking at the inputs ..."
        learned = f"{plural(now.documents, 'document')}, {size(now.text_bytes)} of text"
        if now.merges:
            return f"{learned}  {now.merges:,} of {now.wanted:,} merges"
        seconds = max(self._clock() - self._began, 0.1)
        return f"counting words of {learned}  {size(int(now.text_bytes / seconds))}/s"

    def draw(self, width: int) -> list[Line]:
        """Progress for a terminal: a bar while merges are found, since their number is known."""
        if self.last is None or not self.last.merges:
            return [[(f"  {self.line()}", "quiet")]]
        done, rest = bar(self.last.merges / self.last.wanted, min(max(width - 70, 8), 40))
        return [["  ", (done, "good"), (rest, "quiet"), "  ", self.line()]]


@contextmanager
def watch_training() -> Iterator[Callable[[TrainingProgress], None]]:
    """Show a running training. Yields the function that receives its progress."""
    tally = TrainingTally()
    with output.follow(tally.draw, tally.line) as tick:

        def hear(progress: TrainingProgress) -> None:
            tally.last = progress
            tick()

        yield hear


def training_lines(
    report: TrainingReport, out: str, max_chars: int | None, doc_chars: int | None
) -> list[Line]:
    """Summary of a training, as lines of a table."""
    one = report.token_bytes
    special = ", ".join(f"{token} {number}" for token, number in report.special_tokens.items())
    learned = f"{plural(report.documents, 'document')} of {plural(report.files, 'file')}"
    facts = {
        "vocabulary": f"{report.vocab_size:,} tokens, {report.merges:,} merges, pattern {report.pattern}",
        "special tokens": f"{len(report.special_tokens)}: {special}" if special else "none",
        "token bytes": f"min {one.min}, max {one.max}, mean {one.mean:.2f}, std {one.std:.2f}",
        "learned from": f"{learned}, {size(report.text_bytes)}",
    }
    if report.words is not None:
        facts["words"] = f"{report.words:,} distinct"
    if report.stopped_early:
        facts["stopped"] = f"at {max_chars:,} characters; what follows was not read"
    if report.cut_documents:
        facts["cut"] = f"{plural(report.cut_documents, 'document')} at {doc_chars:,} characters"
    if report.left_out:
        facts["left out"] = f"{plural(report.left_out, 'document')} that are empty or filtered"
    if report.held_out:
        facts["held out"] = f"{plural(report.held_out, 'document')} for validation and testing"
    facts["time"] = f"{duration(report.seconds)}, trained by {report.trainer}"
    rows: list[Line] = [[("tokenizer", "quiet"), (out, "title")]]
    rows += [[(name, "quiet"), fact] for name, fact in facts.items()]
    if report.vocab_size < report.asked_vocab_size:
        text_ran_out = f"no pair was left to merge: {report.asked_vocab_size:,} tokens were requested"
        rows.append([("note", "warning"), text_ran_out])
    if report.forgotten_words:
        forgotten = f"{report.forgotten_words:,} rare words did not fit into memory"
        share = f"{percent(report.forgotten_share)} of the distinct ones"
        rows.append([("note", "warning"), f"{forgotten}, {share}"])
    for reason, count in report.bad_records.items():
        rows.append([("bad records", "warning"), f"{count:,} {reason}"])
    return rows
