"""Shared parts of the commands that write other layouts: format options, progress and results."""

from __future__ import annotations

import os

from packline.cli.output import Line, output
from packline.formats.export import Exported, ExportPlanned
from packline.jobs.events import Planned
from packline.storage.places import is_remote
from packline.viewing.text import duration, plural, size

HOW = {"linked": "hard links", "reflinked": "reflinks", "copied": "copies"}


def export_lines(planned: Planned) -> list[Line]:
    """Lines on the planned output: its files, those shared with the store, and what it cannot represent."""
    assert isinstance(planned, ExportPlanned)
    tokens = planned.tokens or 0
    if planned.rows:
        what = f"{plural(planned.rows, 'row')} of {plural(tokens // planned.rows, 'token')}"
    else:
        what = f"{plural(planned.documents or 0, 'document')}, {plural(tokens, 'token')}"
    work = f"{what}, {plural(planned.units, 'part')}"
    if planned.units_done:
        work += f", {planned.units_done:,} of them done by an earlier run"
    new = planned.bytes + (planned.shared_bytes if planned.sharing == "copied" else 0)
    shared = f"{size(planned.shared_bytes)} as {HOW[planned.sharing]}" if planned.shared_bytes else ""
    return output.fact_lines(
        {
            "writes": f"{planned.format}: {work}",
            "order": planned.order,
            "new on disk": f"about {size(new)}",
            "the store's own": shared,
            "not preserved": list(map(str, planned.lost)),
            "warning": list(planned.warnings),
        }
    )


def show_exported(exported: Exported) -> None:
    if exported.nothing_to_do:
        output.line(f"  {exported.out} holds this export: nothing to do")
        output.facts({"warning": list(exported.warnings)})
        _show_trainer_lines(exported)
        return
    shared = ", ".join(f"{size(count)} of it {HOW[how]}" for how, count in exported.shared.items() if count)
    what = (
        plural(exported.rows, "row") if exported.rows is not None else plural(exported.documents, "document")
    )
    within = f" in {' and '.join(f'{name}/' for name in exported.folders)}" if exported.folders else ""
    where = f"{near(exported.out)}: {plural(exported.files, 'file')}{within}, {size(exported.bytes)}"
    output.line()
    output.facts(
        {
            "exported": f"{what}, {plural(exported.tokens, 'token')} in {duration(exported.seconds)}",
            exported.format: ", ".join([where, shared] if shared else [where]),
            "warning": list(exported.warnings),
        }
    )
    output.line()
    if not is_remote(exported.out):  # another project's dataset is checked on a disk
        command = f"packline verify {near(exported.out)} --from {exported.format}"
        output.line("  check it  ", (command, "hint"))
    _show_trainer_lines(exported)


def _show_trainer_lines(exported: Exported) -> None:
    """Print the lines to paste into the trainer verbatim, without wrapping or markup."""
    if exported.trainer_lines:
        output.line()
        output.line("  for the trainer")
        for line in exported.trainer_lines:
            output.line(f"    {line}")


def near(path: str) -> str:
    """A path relative to the current folder, if it is below it.

    >>> near(os.path.abspath("data")), near("/elsewhere/data"), near("s3://bucket/data")
    ('data', '/elsewhere/data', 's3://bucket/data')
    """
    if is_remote(path):
        return path
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative
