"""A run as a file: stages, their sources and loader settings, in TOML.

    [loader]
    batch_size = 32                 # rows of the global batch
    seed = 1

    [[stages]]
    tokens = 4_000_000_000
    seq_len = 4096
    packing = "best_fit"

    [[stages.sources]]
    store = "web"                   # relative to this file
    weight = 0.8

    [[stages.sources]]
    store = "code"
    weight = 0.2
    max_epochs = 2

The contents of a batch depend only on this file and its stores. Rank and world size are not part of it: they
are arguments of `load`. Reading the file costs nothing; opening its stores maps them, and makes the best-fit
plans that do not exist yet.

The file is data: nothing in it is executed, no environment variable is read, and an unknown setting is an
error.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from packline.errors import PacklineError, RecipeError, did_you_mean
from packline.recipe import read_toml

if TYPE_CHECKING:
    from packline.loading.loader import Loader
    from packline.loading.stages import Stage
    from packline.packing.rows import RowSource
    from packline.store.reader import StoreReader


class LoaderSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Loader settings: the table `[loader]`."""

    batch_size: int
    """Rows per global batch, over all ranks."""
    seed: int = 0
    """Seed for the order of rows."""
    shuffle: bool = True
    """False: rows come in the order of their documents."""
    fields: tuple[str, ...] | None = None
    """Arrays of a batch; by default tokens, targets, position_ids and segment_ids."""
    keys: str = "packline"
    """`packline`, or `huggingface` for models that shift the labels internally."""
    prefetch: int = 2
    """Batches that a thread prepares ahead; 0: none. Does not change any batch."""
    plans: str | None = None
    """Folder of pack plans; by default that of the store, or the user's cache."""


class Cutting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings that turn documents into rows, in a stage or in a source; those of the source take precedence.

    A source with its own packing ignores the settings of the stage that belong to the stage's packing alone.
    """

    packing: str | None = None
    """`concat`, `best_fit` or `pad`."""
    boundary_loss: bool | None = None
    """True if the end of a document predicts the beginning of the next."""
    min_tail_fraction: float | None = None
    """For concat: smallest share of a row for which the last row is kept."""
    overflow: str | None = None
    """For pad: `truncate`, `split` or `drop` documents longer than a row."""
    pad_id: int | None = None
    """Token at padding."""


class SourceSettings(Cutting, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rows of one store in a stage: a table `[[stages.sources]]`."""

    store: str
    """Folder of the store, relative to the file."""
    weight: int | float | str | None = None
    """Share of the stage's rows, `0.7` or `"1/3"`; required if there are other sources."""
    max_epochs: int | Literal["unlimited"] = 1
    """Largest number of times its rows may be used; needing more is an error before the first batch."""
    split: str | None = None
    """`train` by default."""
    labels: str | tuple[str, ...] | None = None
    """Only documents with this label, or with one of these."""
    sources: str | tuple[str, ...] | None = None
    """Only documents of this source of the store, or of these."""
    min_tokens: int | None = None
    """Only documents with at least n tokens."""
    max_tokens: int | None = None
    """Only documents with at most n tokens."""
    shuffle_documents: int | None = None
    """Seed for a shuffle of documents before they are packed; by default they keep the stored order."""


class StageSettings(Cutting, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One stage of training: a table `[[stages]]`."""

    seq_len: int
    """Tokens per row, as packed."""
    tokens: int | None = None
    """Length of the stage, rounded down to whole batches; by default until a source is used up."""
    sources: tuple[SourceSettings, ...]
    split_to: int | None = None
    """Cut the packed rows into rows of n tokens; n divides `seq_len`."""
    batch_size: int | None = None
    """Rows per global batch in this stage; by default that of `[loader]`."""


class RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole run, as written in the file."""

    loader: LoaderSettings
    stages: tuple[StageSettings, ...]


SELECTION = ("split", "labels", "sources", "min_tokens", "max_tokens", "shuffle_documents")
"""Fields of a source that choose documents; `store.rows` takes them by the same names."""


def read_run(path: str | Path) -> RunFile:
    """Read a run file without opening any store. Folders are absolute or relative to the working directory.

    Raises:
        RecipeError: not TOML, an unknown or missing setting, a wrong type; reported with its place.
    """
    path = Path(path)
    return _placed(parse_run(read_toml(path, "run file"), str(path)), path.parent)


def parse_run(table: dict[str, Any], name: str = "the run file") -> RunFile:
    """Convert the tables that TOML gives to a run file.

    Raises:
        RecipeError: an unknown or missing setting, a wrong type; reported with its place.

    >>> source = {"store": "s"}
    >>> parse_run({"loader": {"batch_size": 8}, "stages": [{"tokens": 1, "seqlen": 9, "sources": [source]}]})
    Traceback (most recent call last):
    packline.errors.RecipeError: the run file: stages[0] has no setting 'seqlen'
    """
    _refuse_unknown(table, RunFile, name, "")
    _refuse_unknown(table.get("loader"), LoaderSettings, name, "loader")
    for number, stage in enumerate(_tables(table.get("stages"))):
        _refuse_unknown(stage, StageSettings, name, f"stages[{number}]")
        for place, source in enumerate(_tables(stage.get("sources"))):
            _refuse_unknown(source, SourceSettings, name, f"stages[{number}].sources[{place}]")
    try:
        run = msgspec.convert(table, RunFile)
    except msgspec.ValidationError as error:
        hint = "a run file has [loader] with batch_size, and [[stages]] with seq_len and [[stages.sources]]"
        raise RecipeError(f"{name}: {str(error).replace('$.', '')}", hint=hint) from error
    return _check(run, name)


def load_run(path: str | Path) -> tuple[list[Stage], dict[str, Any]]:
    """Stages of a run file with their stores opened, and the loader's other arguments.

    Each store is opened once, however many stages read it.

    Raises:
        RecipeError: an invalid run file.
        StoreError: a store is missing, damaged or has no rows to give.
    """
    from packline.loading.mixture import Mixture
    from packline.loading.stages import Stage
    from packline.store.reader import StoreReader

    run = read_run(path)
    stores: dict[str, StoreReader] = {}
    stages: list[Stage] = []
    for number, stage in enumerate(run.stages):
        entries = []
        for place, source in enumerate(stage.sources):
            if source.store not in stores:
                stores[source.store] = StoreReader(source.store)
            try:
                rows = _rows(stores[source.store], source, stage, run.loader.plans)
            except PacklineError as error:
                where = f"{path}: stages[{number}].sources[{place}]"
                raise type(error)(f"{where}: {error.message}", hint=error.hint) from error
            weight = 1 if source.weight is None else source.weight
            limit = None if source.max_epochs == "unlimited" else source.max_epochs
            entries.append((rows, weight, limit))
        stages.append(Stage(Mixture(entries), tokens=stage.tokens, batch_size=stage.batch_size))
    return stages, _loader_arguments(run.loader)


def load(path: str | Path, *, rank: int = 0, world_size: int = 1, **changes: Any) -> Loader:
    """Make the loader of a run file.

    Args:
        path: a TOML file; docs/reading.md lists its settings.
        rank: number of this process among those that train, from 0.
        world_size: number of such processes.
        changes: other arguments of `Loader`, which override the file: `prefetch=0`, `keys="huggingface"`.

    Raises:
        RecipeError: an invalid run file, or a rank outside the world.
        StoreError: a store is missing, damaged or has no rows to give.

    >>> load("missing.toml")
    Traceback (most recent call last):
    packline.errors.RecipeError: cannot read the run file missing.toml: No such file or directory
    """
    from packline.loading.loader import Loader

    stages, settings = load_run(path)
    return Loader(stages, rank=rank, world_size=world_size, **{**settings, **changes})


def _rows(store: StoreReader, source: SourceSettings, stage: StageSettings, plans: str | None) -> RowSource:
    """Rows of one store, with the settings of a source and its stage."""
    ours = set() if source.packing is None else {"min_tail_fraction", "overflow"}
    cutting = {name: getattr(stage, name) for name in Cutting.__struct_fields__ if name not in ours}
    cutting |= {
        name: getattr(source, name) for name in Cutting.__struct_fields__ if getattr(source, name) is not None
    }
    cutting = {name: value for name, value in cutting.items() if value is not None}
    chosen = {name: getattr(source, name) for name in SELECTION if getattr(source, name) is not None}
    if plans is not None:
        chosen["plans"] = plans
    from packline.packing.rows import Rows

    rows = Rows(store, stage.seq_len, **cutting, **chosen)
    return rows if stage.split_to is None else rows.split_to(stage.split_to)


def _loader_arguments(settings: LoaderSettings) -> dict[str, Any]:
    given = msgspec.structs.asdict(settings)
    del given["plans"]
    if given["fields"] is None:
        del given["fields"]
    return given


def _placed(run: RunFile, folder: Path) -> RunFile:
    """Resolve folders relative to the working directory."""

    def placed(source: SourceSettings) -> SourceSettings:
        return msgspec.structs.replace(source, store=str(folder / source.store))

    stages = tuple(
        msgspec.structs.replace(stage, sources=tuple(map(placed, stage.sources))) for stage in run.stages
    )
    plans = None if run.loader.plans is None else str(folder / run.loader.plans)
    return RunFile(loader=msgspec.structs.replace(run.loader, plans=plans), stages=stages)


def _check(run: RunFile, name: str) -> RunFile:
    """Check everything that can be checked before any store is opened."""
    if not run.stages:
        raise RecipeError(f"{name} has no stages", hint="a run file has at least one [[stages]]")
    for number, stage in enumerate(run.stages):
        where = f"{name}: stages[{number}]"
        if not stage.sources:
            raise RecipeError(f"{where} has no sources", hint="name a store under [[stages.sources]]")
        for place, source in enumerate(stage.sources):
            if source.weight is None and len(stage.sources) > 1:
                raise RecipeError(
                    f"{where}.sources[{place}] has no weight, beside {len(stage.sources) - 1} other sources",
                    hint="give each its share: weight = 0.5",
                )
    return run


def _refuse_unknown(table: Any, kind: type[msgspec.Struct], name: str, where: str) -> None:
    """Reject an unknown setting, usually a typing error, and suggest the one that was meant."""
    if not isinstance(table, dict):
        return
    known = kind.__struct_fields__
    for word in table:
        if word in known:
            continue
        hint = did_you_mean(word, known)
        what = f"{name}: {where} has" if where else f"{name} has"
        raise RecipeError(f"{what} no setting {word!r}", hint=f"{hint}there are: {', '.join(sorted(known))}")


def _tables(value: Any) -> list[dict[str, Any]]:
    """Tables of an array; conversion rejects the other values."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
