"""`packline.build`: run a build from Python.

The host process (`host`), from which workers are forked, is started first and loads its modules while the
build is prepared here; little text is encoded in this process instead. This module loads nothing heavy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from packline.encoders.separate_engine import start_ahead
from packline.jobs.ahead import BUILD, end_ahead, looks_little
from packline.jobs.on import On, Slice
from packline.recipe import Recipe, RunOptions, check_options
from packline.recipe_places import folder_of, tokenizer_of
from packline.storage.inputs import refuse_name
from packline.storage.places import place_in

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
    here = on == "local"
    inputs = [place_in(folder_of(recipe), given) for source in recipe.sources for given in source.inputs]
    may_stay = here and options.workers is None and looks_little(inputs)
    if may_stay:
        start_ahead(tokenizer_of(recipe), options.engine, parse=recipe.special_tokens == "parse")
    from packline.jobs.executor import LocalProcesses

    processes = LocalProcesses(preload=BUILD)
    if (here or isinstance(on, Slice)) and options.workers != 0 and not may_stay:
        processes.start()
    try:
        from packline.jobs.build_job import BuildJob
        from packline.jobs.engine import run_job

        earlier = None if reuse is None else str(reuse)
        job = BuildJob(recipe, str(out), options, began, earlier, here=here)
        return run_job(job, on_event, processes if job.work.options.workers != 0 else None, on)
    finally:
        end_ahead()
        processes.close()
