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
are not. A store that is still being built has no checksum yet: its build is identified by recipe, tokenizer
and inputs, and what was read of it by the receipts of its units, in the order of the documents. An order that
follows the stored one needs the rows of the windows up to its place, and no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec

from packline.errors import RecipeError
from packline.fingerprint import hash_value
from packline.loading.order import GLOBAL, RowOrder
from packline.loading.schedule import Schedule
from packline.packing.options import DocumentFilter
from packline.recipe import Recipe
from packline.store.ledger import source_names
from packline.store.naming import STREAM, parse_unit
from packline.store.reader import StoreReader

if TYPE_CHECKING:
    from packline.packing.rows import Rows
    from packline.store.manifest import Manifest


STATE_VERSION = 1
UNKNOWN = "building"
"""Mark of a store that is being built, in place of digits of its checksum."""


class RunRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings that decide the rows of the batches of a run, apart from seed and order."""

    sources: list[str]
    """12 digits for the store and 12 for the rows of each source, in the order of their numbers."""
    stages: list[tuple[int, int, list[tuple[int, int]]]]
    """First step, batch size, and number and weight of each source; of every stage that has a place."""
    selections: list[dict[str, Any]] = []
    """Choice of documents of each source, in words; empty if all are the default."""


def record_of(schedule: Schedule) -> RunRecord:
    sources = schedule.sources
    words = [rows.described for rows in sources.values()]
    numbers = {fingerprint: number for number, fingerprint in enumerate(sources)}
    stages = [
        (
            stage.first_step,
            stage.batch_size,
            [
                (numbers[rows.fingerprint], weight)
                for rows, weight in zip(stage.mixture.rows, stage.mixture.interleaving.parts, strict=True)
            ],
        )
        for stage in schedule.stages
    ]
    marks = [f"{_mark(rows)}-{hash_value(rows.settings_fingerprint)[:12]}" for rows in sources.values()]
    return RunRecord(marks, stages, msgspec.json.decode(msgspec.json.encode(words)) if any(words) else [])


def _is_building(rows: Rows) -> bool:
    return rows.store.build is not None


def _mark(rows: Rows) -> str:
    return UNKNOWN if _is_building(rows) else hash_value(rows.store.manifest.checksum)[:12]


def fingerprint_of(schedule: Schedule) -> str:
    """Fingerprint of all that determines the batches of a run, except stores that are being built."""
    marks = schedule.fingerprints()
    if any(map(_is_building, schedule.sources.values())):
        marks["stores"] = UNKNOWN
    return "-".join(marks.values())


def save_state(schedule: Schedule, step: int) -> dict[str, Any]:
    state: dict[str, Any] = {
        "version": STATE_VERSION,
        "step": step,
        "seed": schedule.seed,
        "fingerprint": fingerprint_of(schedule),
        **msgspec.to_builtins(record_of(schedule)),
    }
    if schedule.order == GLOBAL:
        return state
    units = [units_read(rows, schedule.order, draws) for rows, draws in schedule.drawn(step)]
    state["order"] = str(schedule.order)
    return state if None in units else {**state, "units": units}


def check(schedule: Schedule, state: Mapping[str, Any], steps: int | None) -> tuple[int, bool]:
    """Step of a state, which must be of a run with the same past; `steps` is None if they are not known yet.

    Also False if some of that past is not known yet, because a store is still being built: ask again.
    """
    missing = [name for name in ("version", "step", "seed", "fingerprint") if name not in state]
    if missing:
        raise RecipeError(f"not a loader's state: {', '.join(missing)} missing")
    if state["version"] != STATE_VERSION:
        raise RecipeError(
            f"a loader's state of version {state['version']!r}: expected version {STATE_VERSION}",
            hint="a newer packline wrote it; resume with that one",
        )
    step = state["step"]
    whole = isinstance(step, int) and not isinstance(step, bool) and step >= 0
    if not whole or (steps is not None and step > steps):
        end = f"{steps:,}, the steps of this run" if steps is not None else "a step of this run"
        raise RecipeError(
            f"a loader's state at step {step!r}: expected 0 to {end}",
            hint="the run was made shorter; give it at least the tokens or epochs that it had",
        )
    known = _check_past(schedule, state)
    return step, _check_units(schedule, state) and known


def _another_run(what: str, hint: str) -> RecipeError:
    return RecipeError(f"this state is from a different run: {what}", hint=hint)


def _check_past(schedule: Schedule, state: Mapping[str, Any]) -> bool:
    """Compare what the run of a state and this one draw before its step; False if that is not known yet."""
    # The seed and the order belong to all steps.
    causes = (
        ("seed", schedule.seed, state["seed"]),
        ("order", str(schedule.order), state.get("order", str(GLOBAL))),
    )
    if named := [f"{name} (expected {here}, found {there})" for name, here, there in causes if here != there]:
        hint = "resume with the stores and settings that the run began with; only ranks may change"
        raise _another_run(f"it differs in {', '.join(named)}", hint)
    try:
        saved = msgspec.convert(dict(state), RunRecord)
    except msgspec.ValidationError as error:
        raise RecipeError(f"not a loader's state: {error}") from error
    step, own = state["step"], record_of(schedule)
    begun = [stage for stage in saved.stages if stage[0] < step]
    change: str | None
    for number, there in enumerate(begun):
        if number == len(own.stages) < len(schedule.declared):
            return False
        here = own.stages[number] if number < len(own.stages) else None
        if change := _change_of_stage(schedule, own, saved, there, here):
            break
    else:
        number, change = len(begun), None
        if len(own.stages) > number and (first := own.stages[number][0]) < step:
            change = f"expected it to begin at step {step:,} or later, found {first:,}"
    if change is not None:
        raise _another_run(
            f"before its step {step:,}, stage {number}: {change}",
            f"keep everything before step {step:,} as it was; a stage with from_step = {step} (or later) may "
            "have other sources, weights and batch sizes",
        )
    return True


def _words(stage: tuple[int, int, list[tuple[int, int]]]) -> dict[str, str]:
    first, size, sources = stage
    weights = " : ".join(f"{weight:,}" for _, weight in sources)
    return {"it to begin at step": f"{first:,}", "a batch_size of": f"{size:,}", "weights": weights}


def _change_of_stage(
    schedule: Schedule, own: RunRecord, saved: RunRecord, there: Any, here: Any
) -> str | None:
    """First difference of a stage, in words; None if there is none before its end."""
    after = _words(here) if here else {}
    for what, value in _words(there).items():
        if (found := after.get(what, "no such stage")) != value:
            return f"expected {what} {value}, found {found}"
    for place, ((old, _), (new, _)) in enumerate(zip(there[2], here[2], strict=True)):
        if change := _change_of_source(schedule, own, saved, old, new):
            return f"source {place}: {change}"
    return None


def _change_of_source(schedule: Schedule, own: RunRecord, saved: RunRecord, old: int, new: int) -> str | None:
    """Difference of a source, by its numbers in the two runs."""
    there = (saved.sources[old : old + 1] or [""])[0].split("-")
    here = own.sources[new].split("-")
    if there[0] != here[0] and UNKNOWN not in (there[0], here[0]):  # units are compared
        place = list(schedule.sources.values())[new].store.place
        return f"expected the store {there[0]}, found {here[0]} ({place})"
    if there[1:] != here[1:]:
        before: dict[str, Any] = dict(*saved.selections[old : old + 1])
        after: dict[str, Any] = dict(*own.selections[new : new + 1])
        changes = [
            f"{name}: {before.get(name)!r} -> {after.get(name)!r}"
            for name in dict.fromkeys([*before, *after])
            if before.get(name) != after.get(name)
        ]
        hashes = f"expected {'-'.join(there[1:])}, found {here[1]}"
        return ", ".join(changes) or f"rows (seq_len, packing, selection): {hashes}"
    return None if old == new else f"expected source {old} of the run, found {new}"


def _check_units(schedule: Schedule, state: Mapping[str, Any]) -> bool:
    """Compare the units that a state has read with those of the stores; False if one lacks some of them."""
    given = state.get("units")
    if not isinstance(given, list):
        grown = any(map(_is_building, schedule.sources.values()))
        if grown or str(state["fingerprint"]).startswith(UNKNOWN):
            raise RecipeError(
                "a loader's state without the units that it has read",
                hint="a state of the global order belongs to a finished store: wait for the build to end",
            )
        return True
    complete = True
    for number, (rows, (build, units, chain)) in enumerate(
        zip(schedule.sources.values(), given, strict=False)
    ):
        place = rows.store.place
        if build_of(rows.store) != build:
            raise _another_run(
                f"source {number} was read from a build of another recipe, tokenizer or inputs than {place}",
                "resume with the store that the run began with",
            )
        found = chain_of(rows, units)
        complete &= found is not None
        if found not in (None, chain):
            raise _another_run(
                f"the first {units:,} units that it read of source {number} differ from those of {place} "
                f"(expected {chain}, found {found})",
                "the store was built again, with other contents; packline diff shows what differs",
            )
    return complete


DIGITS = 12

_KNOWN: WeakKeyDictionary[StoreReader, dict[Any, Any]] = WeakKeyDictionary()
"""By store: identity of its build, and receipts by sources; states are saved often."""


def units_read(rows: Rows, order: RowOrder, draws: int) -> list[Any] | None:
    """Units that the first uses of a source depend on, for a state; None for rows without a store.

    Returns:
        Hash of recipe, tokenizer and inputs of the store; number of units, in the order of the documents, up
        to the last that holds a row; and a hash of their receipts.
    """
    if not hasattr(rows, "options"):
        return None
    units = 0
    if draws:
        first = min(-(-draws // order.window_rows) * order.window_rows, len(rows))
        shard, _ = rows.store.locate(rows.last_document(first))
        units = list(_receipts(rows)).index(shard.entry.name.partition("-")[2]) + 1
    return [build_of(rows.store), units, chain_of(rows, units)]


def chain_of(rows: Rows, units: int) -> str | None:
    """Hash of the receipts of a source's first units; None if there are fewer, for now."""
    receipts = list(_receipts(rows).values())
    return hash_value(receipts[:units])[:DIGITS] if units <= len(receipts) else None


def build_of(store: StoreReader) -> str:
    """Identity of the build of a store, finished or not."""
    known = _KNOWN.setdefault(store, {})
    if "build" not in known:
        known["build"] = store.build or build_identity(store.manifest)
    return str(known["build"])


def build_identity(manifest: Manifest) -> str:
    from packline.jobs.plan import build_mark

    columns = (manifest.inputs.names("source"), manifest.inputs.names("name"))
    inputs = zip(*columns, manifest.inputs.numbers("bytes").tolist(), strict=True)
    return build_mark(manifest.recipe, manifest.tokenizer.fingerprint, inputs)


def selected_names(recipe: Recipe, options: DocumentFilter) -> tuple[str, ...]:
    """Names of the sources that a choice of documents takes, in the recipe's order."""
    choice = options.canonical()
    named = zip(source_names(recipe), recipe.sources, strict=True)
    return tuple(
        name
        for name, source in named
        if (choice.sources is None or name in choice.sources)
        and (choice.labels is None or source.label in choice.labels)
    )


def _receipts(rows: Any) -> dict[str, str]:
    """Checksum of the receipt of each unit of the selected sources, in the order of the documents."""
    manifest = rows.store.manifest
    sources = selected_names(manifest.recipe, rows.options)
    known: dict[Any, dict[str, str]] = _KNOWN.setdefault(rows.store, {})
    if sources not in known:
        places = {name: place for place, name in enumerate(sources)}
        table = manifest.units
        found = []
        for unit, source, checksum in zip(
            table.names("unit"), table.names("source"), table.names("receipt_checksum"), strict=True
        ):
            name = parse_unit(unit)
            if source in places and name is not None and not unit.endswith(STREAM):
                found.append((places[source], name.place, unit, checksum))
        known[sources] = {unit: checksum for _, _, unit, checksum in sorted(found)}
    return known[sources]
