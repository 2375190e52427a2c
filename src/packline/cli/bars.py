"""Bars of a running job on a terminal, by rich; imported only for a terminal."""

from __future__ import annotations

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

from packline.cli.output import MOST_BARS, State
from packline.viewing.text import scaled, size, visible


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
