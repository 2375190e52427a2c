"""State of a loader: its step, and what decides the batches before it.

    version, step, seed      counts
    fingerprint              12 digits each for stores, rows, stages, batch size and order, of the whole run
    sources                  12 digits each for store and rows of every source, in the order of their numbers
    stages                   [first step, batch size, [[source, weight], ...]] of every stage
    selections               choices of documents in words, to name a difference
    order                    unless it is the global one
    units                    for orders that follow the stored one, per source: identity of its build, number
                             of units read so far, and a hash over their receipts

A state belongs to every run with the same past: stages that begin before its step are compared, later ones
are not. A hash of the past would be shorter, but could not name the difference. The stages are a few integers
each, do not depend on the step, and stay right in a state whose step was edited to skip batches. A state of
an older packline has no stages: its whole run is compared, by the fingerprint.

A store that is still being built has no checksum yet. Its build is identified by recipe, tokenizer and inputs
instead, and what was read of it by the receipts of its units, in their order: those do not change any more.
So a state taken while a store is built is accepted by a loader of the finished store, and the other way
round; a store that was built anew with other contents is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from packline.errors import RecipeError
from packline.loading.order import GLOBAL
from packline.loading.schedule import STORES, RunRecord, Schedule

if TYPE_CHECKING:
    from packline.packing.batch import RowSource

STATE_VERSION = 1
PARTS = 5
"""Hashes of a fingerprint."""
RECORDED = RunRecord.__struct_fields__
UNKNOWN = "building"
"""Mark of a store that is being built, in place of digits of its checksum."""


def save_state(schedule: Schedule, step: int, fingerprint: str) -> dict[str, Any]:
    """State of a run at a step, as JSON types."""
    state: dict[str, Any] = {
        "version": STATE_VERSION,
        "step": step,
        "seed": schedule.seed,
        "fingerprint": fingerprint,
        **msgspec.to_builtins(schedule.record),
    }
    if schedule.order == GLOBAL:
        return state
    from packline.loading.needed_units import units_read

    units = [units_read(rows, schedule.order, draws) for rows, draws in schedule.drawn(step)]
    state["order"] = str(schedule.order)
    return state if None in units else {**state, "units": units}


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


def check_past(schedule: Schedule, state: Mapping[str, Any]) -> bool:
    """Compare what the run of a state and this one draw before the state's step.

    Returns:
        False if the stages until then are not known yet, because a store is still being built: ask again.

    Raises:
        RecipeError: they differ; names the first difference.
    """
    if str(state["fingerprint"]).count("-") != PARTS - 1:
        raise RecipeError(f"not a loader's fingerprint: {state['fingerprint']!r}")
    # The seed and the order belong to all steps.
    causes = (
        ("seed", schedule.seed, state["seed"]),
        ("order", str(schedule.order), state.get("order", str(GLOBAL))),
    )
    if named := [f"{name} (expected {here}, found {there})" for name, here, there in causes if here != there]:
        raise _other_run(f"it differs in {', '.join(named)}")
    if "stages" not in state:
        _check_whole_run(schedule, state)
        return True
    try:
        saved = msgspec.convert({name: state[name] for name in RECORDED if name in state}, RunRecord)
    except msgspec.ValidationError as error:
        raise RecipeError(f"not a loader's state: {error}") from error
    step, own = state["step"], schedule.record
    begun = [stage for stage in saved.stages if stage[0] < step]
    for number, there in enumerate(begun):
        if number == len(own.stages) < len(schedule.declared):
            return False
        here = own.stages[number] if number < len(own.stages) else None
        if change := _change_of_stage(schedule, saved, there, here):
            raise _changed_past(step, f"stage {number}: {change}")
    if len(own.stages) > len(begun) and (first := own.stages[len(begun)][0]) < step:
        what = f"stage {len(begun)}: expected it to begin at step {step:,} or later, found {first:,}"
        raise _changed_past(step, what)
    return True


def _change_of_stage(schedule: Schedule, saved: RunRecord, there: Any, here: Any) -> str | None:
    """First difference of a stage, in words; None if there is none before its end."""
    if here is None:
        return f"expected it to begin at step {there[0]:,}, found no such stage"
    if here[0] != there[0]:
        return f"expected it to begin at step {there[0]:,}, found {here[0]:,}"
    if here[1] != there[1]:
        return f"expected a batch_size of {there[1]:,}, found {here[1]:,}"
    for place, ((old, _), (new, _)) in enumerate(zip(there[2], here[2], strict=False)):
        if change := _change_of_source(schedule, saved, old, new):
            return f"source {place}: {change}"
    if len(here[2]) != len(there[2]):
        return f"expected {len(there[2]):,} sources, found {len(here[2]):,}"
    weights = [" : ".join(f"{weight:,}" for _, weight in stage[2]) for stage in (there, here)]
    return None if weights[0] == weights[1] else f"expected weights {weights[0]}, found {weights[1]}"


def _change_of_source(schedule: Schedule, saved: RunRecord, old: int, new: int) -> str | None:
    """Difference of a source, by its numbers in the two runs."""
    rows = list(schedule.sources.values())[new]
    there, here = (
        (saved.sources[old : old + 1] or [""])[0].split("-"),
        schedule.record.sources[new].split("-"),
    )
    if there[0] != here[0] and UNKNOWN not in (there[0], here[0]):  # check_units compares what was read
        return f"expected the store {there[0]}, found {here[0]} ({rows.store.place})"
    if there[1:] != here[1:]:
        own = schedule.record.selections
        changes = _selection_changes(
            saved.selections[old] if old < len(saved.selections) else {}, own[new] if new < len(own) else {}
        )
        hashes = f"expected {'-'.join(there[1:])}, found {here[1]}"
        return ", ".join(changes) or f"rows (seq_len, packing, selection): {hashes}"
    return None if old == new else f"expected source {old} of the run, found {new}"


def _selection_changes(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Differences between two selections, in words."""
    names = [name for name in dict.fromkeys([*there, *here]) if there.get(name) != here.get(name)]
    return [f"{name}: {there.get(name)!r} -> {here.get(name)!r}" for name in names]


def _check_whole_run(schedule: Schedule, state: Mapping[str, Any]) -> None:
    """Compare the fingerprints of whole runs, for a state without stages."""
    own, found = schedule.fingerprints(), str(state["fingerprint"]).split("-")
    differing = [name for (name, value), other in zip(own.items(), found, strict=True) if value != other]
    if _is_unknown(schedule, found[0]):
        differing = [name for name in differing if name != STORES]  # check_units compares what was read
    if differing:
        raise _other_run(f"it differs in {', '.join(differing)}")


def _is_unknown(schedule: Schedule, stores: str) -> bool:
    """True if a state's mark of the stores, or a store here, is one of a store that is being built."""
    own = [getattr(rows.store, "mark", "") for rows in schedule.sources.values()]
    return UNKNOWN in (stores, *own)


def _other_run(what: str) -> RecipeError:
    return RecipeError(
        f"this state is from a different run: {what}",
        hint="resume with the stores and settings that the run began with; only ranks may change",
    )


def _changed_past(step: int, what: str) -> RecipeError:
    return RecipeError(
        f"this state is from a different run: before its step {step:,}, {what}",
        hint=f"keep everything before step {step:,} as it was; a stage with from_step = {step} (or later) "
        "may have other sources, weights and batch sizes",
    )


def check_units(schedule: Schedule, state: Mapping[str, Any]) -> bool:
    """Compare the units that a state has read with those of the stores.

    Returns:
        False if a store that is still being built lacks some of them: then ask again.

    Raises:
        RecipeError: a build of another recipe, tokenizer or inputs, or units with other contents.
    """
    given = state.get("units")
    if not isinstance(given, list):
        if _is_unknown(schedule, str(state["fingerprint"]).split("-")[0]):
            raise RecipeError(
                "a loader's state without the units that it has read",
                hint="a state of the global order belongs to a finished store: wait for the build to end",
            )
        return True
    complete = True
    for number, (rows, entry) in enumerate(zip(schedule.sources.values(), given, strict=False)):
        complete &= _check_source(number, rows, entry)
    return complete


def _check_source(number: int, rows: RowSource, entry: Any) -> bool:
    from packline.loading.needed_units import build_of, chain_of

    build, units, chain = entry
    if build_of(rows.store) != build:
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
