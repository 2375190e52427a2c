"""Results of the commands that make a store by way of an import."""

from __future__ import annotations

from packline.cli.main import interrupted
from packline.cli.output import Line, output, table
from packline.cli.progress import Tally
from packline.jobs.store_job import Imported
from packline.viewing.text import duration, plural


def import_interrupted(error: KeyboardInterrupt, tally: Tally) -> int:
    """Report what is kept and how to resume."""
    kept = f"{plural(tally.units_done, 'unit')} committed" if tally.planned else "before the first unit"
    return interrupted(error, kept)


def finished_lines(imported: Imported, out: str) -> list[Line]:
    """Lines with the result of an import."""
    manifest = imported.manifest
    counts = f"{plural(manifest.documents, 'document')}, {plural(manifest.tokens, 'token')}"
    done = "nothing to do: the store is complete" if imported.nothing_to_do else duration(imported.seconds)
    rows: list[Line] = [
        [("store", "quiet"), (out, "title")],
        [("holds", "quiet"), f"{counts} of {manifest.tokenizer.name} as {manifest.dtype}"],
        [("done", "quiet"), (done, "good")],
        [("check it", "quiet"), f"packline verify {out}"],
    ]
    return table(rows, "ll", width=output.wrap)
