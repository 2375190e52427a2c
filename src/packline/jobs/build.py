"""`packline.build`: run a build from Python. This module loads nothing heavy."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from packline.jobs.on import On
from packline.recipe import Recipe, RunOptions, check_options
from packline.storage.inputs import refuse_name

if TYPE_CHECKING:
    from packline.jobs.events import Event, Finished


def run_build(
    recipe: Recipe,
    out: str | Path,
    options: RunOptions = RunOptions(),  # noqa: B008  frozen
    on_event: Callable[[Event], None] | None = None,
    started: float | None = None,
    reuse: str | Path | None = None,
    on: On = "local",
) -> Finished:
    """Build a store and return the result.

    Args:
        on_event: called with every event, in this thread.
        started: start of all time measurements, on the monotonic clock; by default now.
        reuse: folder of an earlier store to take units from (`reuse`).
        on: where the units run.

    Raises:
        PacklineError: the build stopped; running it again resumes from the committed units.
    """
    refuse_name(str(out))
    check_options(options)
    began = time.monotonic() if started is None else started
    from packline.jobs.build_job import BuildJob
    from packline.jobs.engine import run_job

    earlier = None if reuse is None else str(reuse)
    return run_job(BuildJob(recipe, str(out), options, began, earlier, here=on == "local"), on_event, on=on)
