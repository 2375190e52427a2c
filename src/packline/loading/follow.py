"""Training while preparing: a loader over stores that are still being built.

    build   unit 0 ──> unit 1 ──> unit 3 ──> unit 2 ──> ...     committed in any order
    rows    ├─ window 0 ─┤├─ window 1 ─┤                        in stored order, as far as they are settled
    steps   0 1 2 3 4 5 6  7 8 9 ...                            those of the finished store

The schedule is made as if rows that are not all there had no end, which decides nothing before it; the loader
gives the steps whose rows are settled, and looks for more when they are used up. When the manifest appears it
reads the finished store.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Unpack

import msgspec

from packline.conversion import is_toml
from packline.errors import BuildStopped, RecipeError, StoreError, StoreNotFound, WaitedTooLong
from packline.jobs.status import status
from packline.loading.ahead import PlanAhead, make_ahead
from packline.loading.growing import GrowingBuild
from packline.loading.loader import Batch, Loader, chosen_fields
from packline.loading.mixture import Weight
from packline.loading.order import row_order
from packline.loading.run_file import (
    RunFile,
    SourceSettings,
    StageSettings,
    make_stage,
    parse_run,
    read_run,
    run_schedule,
)
from packline.loading.run_summary import refuse_used_again
from packline.loading.schedule import Schedule
from packline.loading.state import check
from packline.packing.options import LoaderOptions
from packline.packing.rows import Rows
from packline.settings import FollowKeywords

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 2.0
"""Seconds between two looks, doubled from the first to the last. In an object store a look takes two
requests, and two more to see whether the build runs."""


class Waiting(msgspec.Struct, frozen=True):
    """A wait for units, as passed to `on_wait`."""

    step: int
    """Step that is waited for."""
    seconds: float
    """Time waited for it so far."""
    stores: tuple[str, ...]
    """Folders of the stores that are not finished."""
    units: int
    """Units of these that are committed and count."""


class Follower(Loader):
    """Batches of stores that may still be built. Made by `follow`."""

    def __init__(
        self,
        run: RunFile,
        *,
        rank: int = 0,
        world_size: int = 1,
        timeout: float | None = None,
        grace: float | None = 30.0,
        on_wait: Callable[[Waiting], None] | None = None,
    ) -> None:
        settings = run.loader
        order = row_order(settings)
        if not order.window_rows:
            raise RecipeError(
                "order is global: it needs the number of rows, and a store that is followed has no end yet",
                hint='order="blocks" shuffles within windows; shuffle=False keeps the stored order',
            )
        self.run, self.timeout, self.grace, self.on_wait = run, timeout, grace, on_wait
        self.fields = chosen_fields(settings.fields, settings.keys)
        self._order = order
        names = dict.fromkeys(source.store for stage in run.stages for source in stage.sources)
        self._builds = {name: GrowingBuild(name) for name in names}
        self._pending: Mapping[str, Any] | None = None
        self._place(settings, rank, world_size)
        self._wait(0, lambda: all(build.known for build in self._builds.values()))
        self._make_schedule()
        self._check_batch_sizes()

    @property
    def finished(self) -> bool:
        """True if all stores are finished."""
        return all(build.store is not None for build in self._builds.values())

    @property
    def total(self) -> int | None:
        """Steps of the whole run; None if that depends on rows that are not there yet."""
        schedule = self.schedule
        settled = self._known == len(schedule) and len(schedule.stages) == len(schedule.declared)
        return len(schedule) if schedule.has_end or settled else None

    def __len__(self) -> int:
        """Total number of steps."""
        if (total := self.total) is None:
            raise TypeError("the number of steps is not known before the store is finished: give tokens=")
        return total

    def has_step(self, step: int) -> bool:
        """True if the run has this step; waits until that is known."""
        self._wait(step, lambda: step < self._known or self._known == self.total)
        return step < self._known

    def batch(self, step: int) -> Batch:
        """This rank's part of any batch, after waiting for its units."""
        step = operator.index(step)
        if step >= self._known or self._pending is not None:
            self.has_step(step)
        return super().batch(step)

    def next_batch(self, step: int) -> Batch:
        self.has_step(step)
        return super().next_batch(step)

    @cached_property
    def _ahead(self) -> PlanAhead:
        # Rows without an end are not planned ahead, nor fetched.
        return super()._ahead if self.finished else PlanAhead()

    def _iterate(self, first: int, number: int) -> Iterator[Batch]:
        step = first
        while self.has_step(step):
            # Wait in the caller's thread alone, where Ctrl-C works: the other one makes known steps.
            for batch in make_ahead(super().next_batch, step, self._known, ahead=self.prefetch):
                step += 1
                self.count(step, number)
                yield batch
                del batch  # its memory can be used for the next one

    def state_at(self, step: int) -> dict[str, Any]:
        """State after the first `step` batches; those of other processes count if they were made."""
        if step > self._known:
            self.has_step(step - 1)
        return super().state_at(step)

    def check(self, state: Mapping[str, Any]) -> int:
        """Step of a state, taken before or after the stores of this run were finished.

        Units that the state has read and that are not built again yet are compared when they are.
        """
        step, known = check(self.schedule, state, self.total)
        self._pending = None if known else dict(state)
        return step

    def _make_schedule(self) -> None:
        """Schedule the rows that are there, and count the steps whose rows are all settled."""
        stages = [
            make_stage(stage, partial(self._rows, stage), f"stages[{number}]")
            for number, stage in enumerate(self.run.stages)
        ]
        self.schedule = run_schedule(stages, self.run.loader)
        self._known = _settled_steps(self.schedule)
        refuse_used_again(self.schedule)
        vars(self).pop("_ahead", None)

    def _rows(self, stage: StageSettings, source: SourceSettings) -> Rows:
        build = self._builds[source.store]
        if build.store is not None:
            return stage.cut(Rows(build.store, stage.seq_len, source.options, plans=self.run.loader.plans))
        return build.rows(stage, source.options, window=self._order.window_rows)

    def _refresh(self) -> bool:
        """Look for new units, and make a longer schedule of them; True if there are any."""
        new = True in [build.refresh() for build in self._builds.values()]
        if new and all(build.known for build in self._builds.values()):
            self._make_schedule()
            if self._pending is not None:
                self.check(self._pending)
        return new

    def _wait(self, step: int, ready: Callable[[], bool]) -> None:
        began = time.monotonic()
        stopped: float | None = None
        pause = FIRST_PAUSE
        while not ready() or (self._pending is not None and not self.finished):
            if self._refresh():
                pause, stopped = FIRST_PAUSE, None
                continue
            now = time.monotonic()
            if self.timeout is not None and now - began >= self.timeout:
                raise WaitedTooLong(
                    f"waited {self.timeout:,.0f} seconds for step {step:,} of {', '.join(self.building)}",
                    hint="packline status shows the progress of the build; timeout=None waits for any time",
                )
            idle = [build for build in self._builds.values() if not build.is_running]
            stopped = (now if stopped is None else stopped) if idle else None
            if stopped is not None and self.grace is not None and now - stopped >= self.grace:
                raise _stopped(idle[0], step)
            if self.on_wait is not None:
                units = sum(build.units for build in self._builds.values())
                self.on_wait(Waiting(step, now - began, self.building, units))
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    @property
    def building(self) -> tuple[str, ...]:
        """Folders of stores that are still being built."""
        return tuple(name for name, build in self._builds.items() if build.store is None)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process looks at the folders itself.
        make = partial(
            Follower,
            rank=self.rank,
            world_size=self.world_size,
            timeout=self.timeout,
            grace=self.grace,
            on_wait=self.on_wait,
        )
        state = {
            name: getattr(self, name) for name in ("begins_at", "_step", "_pass", "_pending", "workers_began")
        }
        return make, (self.run,), state

    def __repr__(self) -> str:
        total = self.total
        known = f"{total:,}" if total is not None else f"at least {self._known:,}"
        names = ", ".join(self.building)
        return (
            f"<Follower: step {self.step:,} of {known}, rank {self.rank} of {self.world_size}, "
            f"seed {self.seed}"
            f"{f', building {names}' if names else ''}>"
        )


def _settled_steps(schedule: Schedule) -> int:
    """Number of steps, from the first, whose rows are all settled."""
    for stage in schedule.stages:
        rows = stage.mixture.rows_within([rows.settled for rows in stage.mixture.rows], stage.consumed)
        if rows is not None and (steps := rows // stage.batch_size) < stage.steps:
            return stage.first_step + steps
    return len(schedule)


def _stopped(build: GrowingBuild, step: int) -> StoreError:
    if build.begun is None:
        return StoreNotFound(
            f"{build.files.place} holds no store, and no build has begun there",
            hint="begin the build first; grace=None waits for it",
        )
    found = status(build.files.place)
    about = "" if found.total_is_exact else "about "
    units = "units" if found.units_total is None else f"{about}{found.units_total:,} units"
    resume = "run its command again to resume it"
    if found.command:
        resume = f"resume it: {found.command} (in {found.command_folder})"
    return BuildStopped(
        f"the build of {build.files.place} has stopped: step {step:,} needs more than the first "
        f"{build.units:,} of its {units}, and no process is building",
        hint=f"{resume}; then go on from the loader's state. grace=None waits for that",
    )


def follow(
    source: str | Path,
    *,
    weights: Mapping[str, Weight] | None = None,
    tokens: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    timeout: float | None = None,
    grace: float | None = 30.0,
    on_wait: Callable[[Waiting], None] | None = None,
    **settings: Unpack[FollowKeywords],
) -> Follower:
    """Read a store while it is built: a loader that waits for the units that a step needs.

    The batches are those of a `Loader` of the finished store, and the states of both are exchangeable.

    Args:
        source: folder or URI of a store that is being built, will be, or is finished; or a run file
            (`.toml`), whose stores may be in any of these states.
        weights: share of each source of the store, by name; None: all documents, in stored order.
        tokens: number of tokens to train on; None: until a source is used up.
        rank: number of this process among those that train, from 0.
        world_size: number of such processes.
        timeout: longest wait for a step, in seconds; None: as long as the build runs.
        grace: longest time without a running build, in seconds, before that is an error; None: wait for one.
        on_wait: called with a `Waiting` before every pause, in the thread that takes the batches.
        settings: rows as for `Store.rows`, and batches as for `Loader`, but `order` is `blocks` by default;
            for a run file only the latter.

    Raises:
        RecipeError: settings that need the whole store: the global order, shuffled documents, best_fit
            without `pack_window`; or settings that do not fit it.
        BuildStopped: the build has ended without a store; names the command that resumes it.
        WaitedTooLong: a step was not there within the timeout.
        StoreError: no build has begun, or another one has taken its place.

    A finished store is read at once:

    >>> loader = follow(store.place, seq_len=5, batch_size=2, block_rows=1, window_blocks=2)
    >>> len(loader), next(iter(loader))["tokens"].shape
    (2, (2, 5))
    """
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    loader = {name: given.pop(name) for name in LoaderOptions.__struct_fields__ if name in given}
    if loader.get("shuffle") is False:
        loader.setdefault("order", "global")
    if is_toml(source):
        given |= {} if weights is None else {"weights": weights}
        given |= {} if tokens is None else {"tokens": tokens}
        if given:
            raise RecipeError(f"{min(given)} is set by the run file {source}", hint="change it there")
        run = read_run(source)
    else:
        if weights is not None and "sources" in given:
            raise RecipeError("expected weights or sources, found both", hint="weights names the sources")
        names: list[dict[str, Any]] = [{}]
        if weights is not None:
            names = [{"sources": name, "weight": str(weight)} for name, weight in weights.items()]
        stage: dict[str, Any] = {"seq_len": given.pop("seq_len", None), "tokens": tokens}
        common = {"store": str(source), "max_epochs": given.pop("epochs", 1), **given}
        stage["sources"] = [common | own for own in names]
        run = parse_run({"loader": {"order": "blocks"}, "stages": [stage]}, "follow")
    if loader.keys() & {"batch_size", "batch_tokens"}:
        loader = {"batch_size": None, "batch_tokens": None} | loader
    run = msgspec.structs.replace(run, loader=msgspec.structs.replace(run.loader, **loader))
    return Follower(run, rank=rank, world_size=world_size, timeout=timeout, grace=grace, on_wait=on_wait)
