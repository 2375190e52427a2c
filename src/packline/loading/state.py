"""State of a loader: what identifies its run, and what was read of it.

    version, step, seed      counts
    fingerprint              12 digits each for stores, rows, stages, batch size and order
    selections               choices of documents in words, to name a difference
    order                    unless it is the global one
    units                    for orders that follow the stored one, per source: identity of its build, number
                             of units read so far, and a hash over their receipts

A store that is still being built has no checksum yet. Its build is identified by recipe, tokenizer and inputs
instead, and what was read of it by the receipts of its units, in their order: those do not change any more.
So a state taken while a store is built is accepted by a loader of the finished store, and the other way
round; a store that was built anew with other contents is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from packline.errors import RecipeError
from packline.loading.order import GLOBAL
from packline.loading.schedule import STORES, UNKNOWN, Schedule

if TYPE_CHECKING:
    from packline.loading.units_read import UnitsRead
    from packline.packing.row_reader import RowSource

STATE_VERSION = 1


def save_state(schedule: Schedule, step: int, fingerprint: str) -> dict[str, Any]:
    """State of a run at a step, as JSON types."""
    state: dict[str, Any] = {
        "version": STATE_VERSION,
        "step": step,
        "seed": schedule.seed,
        "fingerprint": fingerprint,
    }
    if any(selections := schedule.selections()):
        state["selections"] = selections
    if schedule.order == GLOBAL:
        return state
    units = [_read(schedule, rows, draws) for rows, draws in schedule.drawn(step)]
    known = [[one.build, one.units, one.chain] for one in units if one is not None]
    state["order"] = str(schedule.order)
    return {**state, "units": known} if len(known) == len(units) else state


def check_state(state: Mapping[str, Any]) -> None:
    """Reject what is no state, or one of another version.

    Raises:
        RecipeError: names what is missing, or the versions.
    """
    missing = [name for name in ("version", "step", "seed", "fingerprint") if name not in state]
    if missing:
        raise RecipeError(f"not a loader's state: {', '.join(missing)} missing")
    if state["version"] != STATE_VERSION:
        raise RecipeError(
            f"a loader's state of version {state['version']!r}: expected version {STATE_VERSION}",
            hint="a newer packline wrote it; resume with that one",
        )


def check_step(state: Mapping[str, Any], steps: int | None) -> int:
    """Step of a state.

    Args:
        steps: steps of the run; None if they are not known yet.

    Raises:
        RecipeError: no step, or one beyond the end of the run.
    """
    step = state["step"]
    whole = isinstance(step, int) and not isinstance(step, bool) and step >= 0
    if not whole or (steps is not None and step > steps):
        end = f"{steps:,}, the steps of this run" if steps is not None else "a step of this run"
        raise RecipeError(
            f"a loader's state at step {step!r}: expected 0 to {end}",
            hint="the run was made shorter; give it at least the tokens or epochs that it had",
        )
    return int(step)


def check_same_run(schedule: Schedule, state: Mapping[str, Any]) -> None:
    """Reject a state of another run, and name the difference as closely as fingerprints allow.

    Raises:
        RecipeError: the run differs.
    """
    own, found = schedule.fingerprints(), str(state["fingerprint"]).split("-")
    if len(found) != len(own):
        raise RecipeError(f"not a loader's fingerprint: {state['fingerprint']!r}")
    differing = [name for (name, value), other in zip(own.items(), found, strict=True) if value != other]
    if any(name.startswith("rows") for name in differing) and STORES not in differing:
        changes = _selection_changes(schedule, state.get("selections"))
        differing = (
            [name for name in differing if not name.startswith("rows")] if changes else differing
        ) + changes
    if UNKNOWN in (own[STORES], found[0]):
        differing = [name for name in differing if name != STORES]  # check_units compares what was read
    # The seed and the order have one fingerprint: name the cause.
    causes = (
        ("seed", schedule.seed, state["seed"]),
        ("order", str(schedule.order), state.get("order", str(GLOBAL))),
    )
    if named := [f"{name} (expected {here}, found {there})" for name, here, there in causes if here != there]:
        differing = [name for name in differing if name != "order"] + named
    if differing:
        raise RecipeError(
            f"this state is from a different run: it differs in {', '.join(differing)}",
            hint="resume with the stores and settings that the run began with; only ranks may change",
        )


def _selection_changes(schedule: Schedule, found: Any) -> list[str]:
    """Differences between the selections of a state and of a run, in words; none if they are alike."""
    own = schedule.selections()
    found = found if isinstance(found, list) and len(found) == len(own) else [{}] * len(own)
    changes: list[str] = []
    for there, here in zip(found, own, strict=True):
        there = there if isinstance(there, dict) else {}
        for name in dict.fromkeys([*there, *here]):
            if there.get(name) != here.get(name):
                changes.append(f"{name}: {there.get(name)!r} -> {here.get(name)!r}")
    return list(dict.fromkeys(changes))


def check_units(schedule: Schedule, state: Mapping[str, Any]) -> bool:
    """Compare the units that a state has read with those of the stores.

    Returns:
        False if a store that is still being built lacks some of them: then ask again.

    Raises:
        RecipeError: a build of another recipe, tokenizer or inputs, or units with other contents.
    """
    given = state.get("units")
    if not isinstance(given, list):
        if UNKNOWN in (schedule.fingerprints()[STORES], str(state["fingerprint"]).split("-")[0]):
            raise RecipeError(
                "a loader's state without the units that it has read",
                hint="a state of the global order belongs to a finished store: wait for the build to end",
            )
        return True
    sources = {rows.fingerprint: rows for stage in schedule.declared for rows in stage.mixture.rows}
    complete = True
    for number, (rows, entry) in enumerate(zip(sources.values(), given, strict=False)):
        complete &= _check_source(number, rows, entry)
    return complete


def _check_source(number: int, rows: RowSource, entry: Any) -> bool:
    from packline.loading.units_read import build_of, chain_of

    build, units, chain = entry
    if build_of(rows) != build:
        raise RecipeError(
            f"this state is from a different run: source {number} was read from a build of another recipe, "
            f"tokenizer or inputs than {rows.store.place}",
            hint="resume with the store that the run began with",
        )
    found = chain_of(rows, units)
    if found is None:
        return False
    if found != chain:
        raise RecipeError(
            f"this state is from a different run: the first {units:,} units that it read of source {number} "
            f"differ from those of {rows.store.place} (expected {chain}, found {found})",
            hint="the store was built again, with other contents; packline diff shows what differs",
        )
    return True


def _read(schedule: Schedule, rows: RowSource, draws: int) -> UnitsRead | None:
    from packline.loading.units_read import units_read

    return units_read(rows, schedule.order, draws)
