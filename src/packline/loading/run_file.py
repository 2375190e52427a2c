"""A run as a file: stages, their sources and loader settings, in TOML (docs/reading.md shows one).

Rank and world size are arguments of `Loader.from_file`. The file is data: nothing in it is executed, no
environment variable is read, and an unknown setting is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from packline.conversion import convert, read_table, read_toml
from packline.errors import PacklineError, RecipeError
from packline.loading.order import row_order
from packline.packing.options import DEFAULTS, DocumentFilter, LoaderOptions, RowOptions
from packline.quantities import read_quantities
from packline.recipe import Natural, Positive, Share
from packline.storage.places import place_in, resolved

if TYPE_CHECKING:
    from packline.loading.mixture import Stage
    from packline.loading.schedule import Schedule
    from packline.packing.rows import Rows
    from packline.store.reader import StoreReader


class SourceSettings(RowOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rows of one store in a stage: a table `[[stages.sources]]`."""

    store: str
    weight: int | float | str | None = None
    """Share of the stage's rows, `0.7` or `"1/3"`; required if there are other sources."""
    max_epochs: Positive | Literal["unlimited"] = 1
    """Largest number of times its rows may be used; needing more is an error before the first batch."""

    @property
    def options(self) -> RowOptions:
        return RowOptions(**{name: getattr(self, name) for name in RowOptions.__struct_fields__})


class StageSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One stage of training: a table `[[stages]]`.

    The table also holds `PACKING_FIELDS`, for all of its sources; those of a source take precedence. A source
    with its own packing ignores the settings of the stage that belong to the stage's packing alone.
    """

    seq_len: Annotated[int, Meta(ge=2)]
    tokens: Positive | None = None
    """Length of the stage, rounded down to whole batches; by default until a source is used up."""
    sources: Annotated[tuple[SourceSettings, ...], Meta(min_length=1)]
    split_to: Positive | None = None
    batch_size: Positive | None = None
    batch_tokens: Positive | None = None
    from_step: Natural | None = None
    """First step of the stage: the stage before ends there, whatever its length."""

    def cut(self, rows: Rows) -> Rows:
        return rows if self.split_to is None else rows.split_to(self.split_to)


class RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    loader: LoaderOptions
    stages: Annotated[tuple[StageSettings, ...], Meta(min_length=1)]


PACKING_FIELDS = tuple(
    name for name in RowOptions.__struct_fields__ if name not in DocumentFilter.__struct_fields__
)
OF_A_PACKING = ("min_tail_fraction", "overflow", "pack_window")
"""Settings that belong to one packing alone."""


def read_run(path: str | Path) -> RunFile:
    """Read a run file without opening a store. Folders are absolute or relative to the working directory."""
    path = Path(path)
    return _placed(parse_run(read_toml(path, "run file"), str(path)), path.parent)


def parse_run(table: dict[str, Any], name: str = "the run file") -> RunFile:
    """Convert the tables that TOML gives to a run file.

    >>> source = {"store": "s"}
    >>> parse_run({"loader": {"batch_size": 8}, "stages": [{"tokens": 1, "seqlen": 9, "sources": [source]}]})
    Traceback (most recent call last):
    packline.errors.RecipeError: the run file: stages[0] has no setting 'seqlen'
    """
    table = read_table(deepcopy(table), RunFile, name)
    table["loader"] = read_table(table.get("loader"), LoaderOptions, f"{name}: loader")
    for number, stage in enumerate(_tables(table.get("stages"))):
        where = f"{name}: stages[{number}]"
        stage.update(read_table(stage, StageSettings, where, more=PACKING_FIELDS))
        common = {field: stage.pop(field) for field in PACKING_FIELDS if field in stage}
        common = read_quantities(common, RowOptions, where)
        convert(common, RowOptions, where)
        for place, source in enumerate(_tables(stage.get("sources"))):
            own = read_table(source, SourceSettings, f"{where}.sources[{place}]")
            other = OF_A_PACKING if "packing" in own else ()
            source.update({field: value for field, value in common.items() if field not in other} | own)
    return convert(table, RunFile, name)


def settings_of_store(path: str | Path, store: str, *, rows: bool) -> dict[str, Any]:
    """Settings that a run file has for one store, by name, without those that are defaults.

    `rows`: all that decide its rows (`seq_len` and `RowOptions`), not only its documents.
    """
    run, wanted = read_run(path), resolved(store)
    kind = RowOptions if rows else DocumentFilter
    found: list[dict[str, Any]] = []
    for number, stage in enumerate(run.stages):
        for source in stage.sources:
            if resolved(source.store) != wanted:
                continue
            if rows and stage.split_to is not None:
                raise RecipeError(
                    f"{path}: stages[{number}] cuts its rows by split_to: they are not rows of {store}",
                    hint=f"packline view {path} --step 0 shows the rows of the run",
                )
            given = {name: getattr(source, name) for name in kind.__struct_fields__}
            settings = {name: value for name, value in given.items() if value != getattr(DEFAULTS, name)}
            settings["split"] = source.split  # without one, some commands take all
            found.append(settings | ({"seq_len": stage.seq_len} if rows else {}))
    if not found:
        read = ", ".join(sorted({source.store for stage in run.stages for source in stage.sources}))
        raise RecipeError(f"{path} does not read {store}", hint=f"it reads {read}")
    if any(one != found[0] for one in found):
        raise RecipeError(
            f"{path} reads {store} in several ways: expected one choice of its documents",
            hint="give the options instead of --run",
        )
    return found[0]


def load_run(path: str | Path, until: int | None = None) -> tuple[list[Stage], LoaderOptions]:
    """Stages of a run file with their stores opened, each once, and the loader's settings.

    `until`: leave out stages whose `from_step` is this step or a later one, and all after them.
    """
    from packline.packing.rows import Rows
    from packline.store.reader import StoreReader

    run = read_run(path)
    stores: dict[str, StoreReader] = {}
    stages: list[Stage] = []

    def rows_of(stage: StageSettings, source: SourceSettings) -> Rows:
        if source.store not in stores:
            stores[source.store] = StoreReader(source.store)
        return stage.cut(Rows(stores[source.store], stage.seq_len, source.options, plans=run.loader.plans))

    for number, stage in enumerate(run.stages):
        if until is not None and stage.from_step is not None and stage.from_step >= until:
            break
        stages.append(make_stage(stage, partial(rows_of, stage), f"{path}: stages[{number}]"))
    return stages, run.loader


def run_schedule(stages: Sequence[Stage], settings: LoaderOptions) -> Schedule:
    from packline.loading.schedule import Schedule

    return Schedule(
        stages,
        batch_size=settings.batch_size,
        batch_tokens=settings.batch_tokens,
        seed=settings.seed,
        order=row_order(settings),
    )


def make_stage(settings: StageSettings, rows_of: Callable[[SourceSettings], Rows], where: str) -> Stage:
    """Stage with the rows of its sources; `where` is its place, for messages."""
    from packline.loading.mixture import Mixture, Stage

    names = ("tokens", "batch_size", "batch_tokens", "from_step")
    entries, at = [], where
    try:
        for place, source in enumerate(settings.sources):
            at = f"{where}.sources[{place}]"
            if source.weight is None and len(settings.sources) > 1:
                raise RecipeError("no weight: expected one, since there are several sources")
            limit = None if source.max_epochs == "unlimited" else source.max_epochs
            entries.append((rows_of(source), 1 if source.weight is None else source.weight, limit))
        at = where
        return Stage(Mixture(entries), **{name: getattr(settings, name) for name in names})
    except PacklineError as error:
        raise type(error)(f"{at}: {error.message}", hint=error.hint) from error


def _placed(run: RunFile, folder: Path) -> RunFile:
    def below(paths: Any) -> Any:
        if isinstance(paths, str):
            return place_in("" if folder == Path() else str(folder), paths)
        return tuple(map(below, paths)) if isinstance(paths, tuple) else paths

    def placed(source: SourceSettings) -> SourceSettings:
        return msgspec.structs.replace(
            source, store=below(source.store), unique=below(source.unique), exclude=below(source.exclude)
        )

    stages = tuple(
        msgspec.structs.replace(stage, sources=tuple(map(placed, stage.sources))) for stage in run.stages
    )
    plans = None if run.loader.plans is None else str(folder / run.loader.plans)
    return RunFile(loader=msgspec.structs.replace(run.loader, plans=plans), stages=stages)


def _tables(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


DRAFT = """\
# A packline run: `packline trace THIS --step 0` shows a batch, Loader.from_file(THIS) reads it.
# The documentation has all settings. A stage with from_step = N changes a run that has begun.

[loader]
batch_size = {batch_size}                  # rows of the global batch
seed = 0

[[stages]]
seq_len = {seq_len}
packing = "concat"               # "best_fit": no document is cut that fits into a row
{length}
"""


def draft_run(
    store: StoreReader,
    shares: Sequence[Share],
    *,
    seq_len: int,
    batch_size: int,
    folder: Path,
    tokens: int | None = None,
) -> str:
    """Draft a run file for a store, to be in `folder`: the store is named relative to it.

    `shares` has that of each source, `weight` or `tokens`, in order; without any the store is read as it is.
    Rows have equal lengths, so tokens are a share too: the stage lasts for their sum, or for `tokens`.
    """
    for said, number in (("seq_len", seq_len), ("batch_size", batch_size), ("tokens", tokens)):
        if number is not None and number < 1:
            raise RecipeError(f"{said} is {number}: expected at least 1")
    sizes = dict.fromkeys(store.manifest.sources, 0)
    shards = store.manifest.shards
    for name, split, size in zip(
        shards.names("source"), shards.names("split"), shards.numbers("tokens").tolist(), strict=True
    ):
        sizes[name] += size if split == "train" else 0
    if shares and len(shares) != len(sizes):
        raise RecipeError(
            f"the recipe has {len(shares)} sources, the store {len(sizes)}: {', '.join(sizes)}",
            hint="give the recipe that the store was built from",
        )
    lasts = tokens or sum(share.tokens or 0 for share in shares)
    place = str(store.place)
    if isinstance(store.place, Path) and not store.place.is_absolute():
        place = os.path.relpath(place, folder)
    length = (
        f"tokens = {lasts}" if lasts else "# tokens = 1_000_000_000         # else until a source is used up"
    )
    text = DRAFT.format(batch_size=batch_size, seq_len=seq_len, length=length)
    source = f"\n[[stages.sources]]\nstore = {json.dumps(place)}\n"
    if all(share.weight is None and share.tokens is None for share in shares):
        text += source + "".join(
            f"#   {name}: {size:,} tokens for training\n" for name, size in sizes.items()
        )
        several = "some of them only; then each [[stages.sources]] has a weight"
        return f"{text}# sources = [...]                # {several}\n"
    for (name, size), share in zip(sizes.items(), shares, strict=True):
        if not size:
            raise RecipeError(f"source {name!r} has a share, and no document in the split train")
        weight = share.weight if share.tokens is None else share.tokens
        epochs = f"max_epochs = {json.dumps(share.max_epochs)}"
        if share.max_epochs is None:
            epochs = (
                "# max_epochs = 2                 # more than 1 where its share asks for more than there is"
            )
        text += f"{source}sources = {json.dumps(name)}\nweight = {json.dumps(weight)}\n"
        text += f"# {size:,} tokens for training\n{epochs}\n"
    return text
