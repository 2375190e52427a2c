"""`packline push` and `packline pull` between folders and object stores, and the bars of all jobs."""

from __future__ import annotations

import os
from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from packline.cli.main import DONE, interrupted
from packline.cli.output import MOST_BARS, Line, State, output, table
from packline.cli.progress import watch_bytes
from packline.formats.copying import Copied, copy
from packline.storage.places import without_secrets
from packline.viewing.text import duration, plural, scaled, size, visible


def hide_bars_of_hub() -> None:
    """Let the hub's client draw its bars on a terminal alone; before it is imported."""
    if output.quiet or not output.interactive:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"


def transfer(command: str, source: str, target: str, *, verify: bool) -> int:
    """Copy between places of which the hub's own client serves neither; print the result.

    Args:
        command: `push` or `pull`, for the result.
    """
    try:
        with watch_bytes("copying") as hear:
            copied = copy(source, target, verify=verify, on_progress=hear)
    except KeyboardInterrupt as error:
        return interrupted(error, "the files that are copied are kept")
    source, target = without_secrets(source), without_secrets(target)
    output.lines(_lines(copied, source, target))
    values = {name: getattr(copied, name) for name in copied.__struct_fields__}
    output.result({"command": command, "source": source, "target": target, "exit_code": DONE, **values})
    return DONE


def _lines(copied: Copied, source: str, target: str) -> list[Line]:
    whole = f"{plural(copied.files, 'file')}, {size(copied.bytes)}"
    if copied.found_files == copied.files:
        done = "nothing to do: all files are there"
    else:
        parts = [duration(copied.seconds)]
        if copied.linked_bytes:
            parts.insert(0, f"{size(copied.linked_bytes)} linked")
        if copied.found_files:
            parts.insert(0, f"{plural(copied.found_files, 'file')} there already")
        done = ", ".join(parts)
    checked = {
        "store": "checksums of the manifest while reading",
        "export": "checksums of packline.json while reading",
        "folder": "sizes, and checksums of what was read",
    }[copied.kind]
    if copied.linked_bytes and not copied.verified:
        checked = "sizes of linked files, checksums of the others"
    rows: list[Line] = [
        [("copied", "quiet"), (f"{source} -> {target}", "title")],
        [("holds", "quiet"), f"{'an export' if copied.kind == 'export' else f'a {copied.kind}'} of {whole}"],
        [("done", "quiet"), (done, "good")],
        [("checked", "quiet"), f"{checked}, and the target read back" if copied.verified else checked],
    ]
    if copied.left_out:
        rows.append([("left out", "quiet"), plural(copied.left_out, "hidden file")])
    return table(rows, "ll", width=output.wrap)


class Rate(ProgressColumn):
    """Recent rate, in the row's unit."""

    def render(self, task: Task) -> Text:
        """Rate as text; empty while it is not known."""
        rate, noun = task.finished_speed or task.speed, task.fields["noun"]
        if not rate:
            return Text()
        return Text(f"{size(rate)}/s" if noun == "bytes" else f"{scaled(rate)} {noun}/s", "cyan")


class Bars(Progress):
    """Bars that are read from a function at each redrawing, and erased at the end.

    Args:
        state: returns what to draw; called from another thread.
    """

    def __init__(self, state: Callable[[], State], console: Console) -> None:
        self._state = state
        super().__init__(
            TextColumn("  {task.description}", markup=False, table_column=Column(no_wrap=True, max_width=32)),
            BarColumn(None, table_column=Column(min_width=4, max_width=40)),
            TaskProgressColumn(),
            TextColumn("{task.fields[says]}", "dim", markup=False),
            Rate(Column(no_wrap=True, justify="right")),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            refresh_per_second=8,
        )
        for _ in range(MOST_BARS + 1):  # all at once: `add_task` would draw within a redrawing
            self.add_task("", total=None)

    def get_renderables(self) -> list[RenderableType]:
        """Rows of the state, or its text."""
        state = self._state()
        if isinstance(state, str):
            return [Text(f"  {visible(state)}", "dim", no_wrap=True, overflow="ellipsis")]
        for task, row in zip(self.tasks, state, strict=False):
            task.total = row.whole  # `update` forgets the rate whenever the total changes
            says, name = visible(row.says), visible(row.name)
            self.update(task.id, completed=row.done, description=name, says=says, noun=row.noun)
        return [self.make_tasks_table(self.tasks[: len(state)])]
