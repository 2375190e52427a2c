"""Python functions behind the command line.

build   inputs and a tokenizer -> a store
plan    the same arguments -> an estimate of the build
open    a store for reading
export  a store, a run or text -> the layout of another project
bake    rows in training order -> native shards
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from packline.errors import CorruptStore, RecipeError
from packline.recipe import Recipe, RunOptions, Source, check_options, check_recipe, load_recipe, parse_bytes

if TYPE_CHECKING:
    from packline.formats.baked import BakedRows
    from packline.formats.exporting.run import Exported, ExportEvent
    from packline.formats.exporting.target import Link
    from packline.jobs.estimate import Estimate
    from packline.jobs.events import Event
    from packline.loading.loader import Loader
    from packline.store.reader import Store

SOURCE_FIELDS = set(Source.__struct_fields__) - {"inputs", "name", "label"}
RECIPE_FIELDS = set(Recipe.__struct_fields__) - {"sources", "tokenizer"}
OPTION_FIELDS = set(RunOptions.__struct_fields__) - {"memory_bytes"}


def build(
    inputs: str | Path | Sequence[str | Path],
    tokenizer: str | Path | None = None,
    *,
    out: str | Path,
    on_event: Callable[[Event], None] | None = None,
    **settings: Any,
) -> Store:
    """Build a store from text, or resume an interrupted build.

    Args:
        inputs: files, folders, globs or URIs; or one recipe (`.toml`).
        tokenizer: a tokenizer.json, a folder with one, a hub id, a `.tiktoken` or SentencePiece file.
        out: folder of the store: new, empty, or containing the same build.
        on_event: called with every event of `packline.jobs.events` while the build runs.
        **settings: any field of `Source` (except inputs, name, label), `Recipe` and `RunOptions`:
            `text="a.b"`, `eod="<|endoftext|>"`, `val_fraction=0.01` or `val_documents=100`,
            `engine="auto"`, `workers=2`, `memory="4GiB"`, ...

    Raises:
        PacklineError: the build stopped; `hint` suggests a remedy. Finished units are kept.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "words.txt").write_text("a b a")
    >>> model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "</s>": 2}, "unk_token": "</s>"}
    >>> text = msgspec.json.encode({"model": model, "pre_tokenizer": {"type": "Whitespace"}})
    >>> _ = (folder / "tokenizer.json").write_bytes(text)
    >>> tokenizer = folder / "tokenizer.json"
    >>> store = build(folder / "words.txt", tokenizer, out=folder / "store", eod="</s>", workers=0)
    >>> store.documents[0].tolist()
    [0, 1, 0, 2]
    """
    from packline.jobs.build import run_build
    from packline.store.reader import Store

    recipe, options = make_recipe(inputs, tokenizer, settings)
    run_build(recipe, out, options, on_event)
    return Store(out)


def estimate(
    inputs: str | Path | Sequence[str | Path],
    tokenizer: str | Path | None = None,
    *,
    out: str | Path = ".",
    **settings: Any,
) -> Estimate:
    """Predict time, size and memory of `build` with the same arguments; write nothing.

    Args:
        out: planned folder of the store; its disk is checked for free space.

    Raises:
        PacklineError: any error that would stop the build before its first document.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "words.txt").write_text("a b a")
    >>> model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "</s>": 2}, "unk_token": "</s>"}
    >>> text = msgspec.json.encode({"model": model, "pre_tokenizer": {"type": "Whitespace"}})
    >>> _ = (folder / "tokenizer.json").write_bytes(text)
    >>> estimate(folder / "words.txt", folder / "tokenizer.json", eod="</s>").documents
    1
    """
    from packline.jobs.estimate import estimate_build

    return estimate_build(*make_recipe(inputs, tokenizer, settings), out=out)


def open(path: str | Path, *, verify: bool = False) -> Store:
    """Open a finished store for reading.

    Args:
        path: folder of the store.
        verify: check every checksum first, which reads the whole store. Otherwise only sizes, indexes and
            formats are checked, in milliseconds whatever the size.

    Raises:
        StoreNotFound: no store there, or its build has not finished.
        CorruptStore: its files disagree; with `verify`, even a single flipped bit.

    >>> open("missing")
    Traceback (most recent call last):
    packline.errors.StoreNotFound: missing does not exist
    """
    from packline.store.reader import Store

    store = Store(path)
    if verify and not (report := store.verify()).ok:
        raise CorruptStore(
            f"{path} is damaged: {report.problems[0]}", hint="packline verify shows all that differs"
        )
    return store


def export(
    source: str | Path | Store | Loader | Sequence[str | Path],
    *,
    to: str,
    out: str | Path,
    tokenizer: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    link: Link = "auto",
    workers: int | None = None,
    on_event: Callable[[ExportEvent], None] | None = None,
    **settings: Any,
) -> Exported:
    """Export a store, or rows of a store or run, to the layout of another project; or resume an export.

    Args:
        source: a store or its folder, a run file (`.toml`) or a `Loader`; or arguments of `build`: inputs
            with a tokenizer, or a recipe. Their store is built next to the output, at `OUT.store`, and kept.
        to: name of the format; `packline formats` lists them.
        out: output folder: new, empty, or containing the same export.
        tokenizer: tokenizer for text inputs.
        options: options of the format, by name.
        link: how files of the store are reused where the output has the same bytes: `hard` links,
            `reflink` or `copy`; `auto` takes the first that works.
        workers: number of processes; None: one per usable core, 0: run in this process.
        on_event: called with every event of `packline.formats.exporting.run`.
        **settings: documents or rows to export: any field of
            `packline.formats.exporting.source.Choice`, such as `split`,
            `labels`, `seq_len`, `packing`, `batch_size`, `seed`, `stage`; and for text the settings of
            `build` with other names.

    Raises:
        RecipeError: invalid settings, or ids too large for the format.
        StoreError: a damaged store, or an output folder with other contents.
        OutOfSpace: not enough disk space. Finished parts are kept.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> exported = export(store.path, to="nanogpt", out=folder / "data", workers=0)
    >>> (folder / "data" / "train.bin").read_bytes() == store.documents[0].tobytes()
    True
    """
    from packline.formats.exporting.rows import RowView
    from packline.formats.exporting.run import export as export_view
    from packline.formats.exporting.source import make_choice
    from packline.loading.loader import Loader
    from packline.store.reader import Store

    choice, rest = make_choice(settings)
    view: str | Path | RowView
    if isinstance(source, Loader):
        view = RowView.of_loader(source, choice.stage)
    elif isinstance(source, Store):
        view = source.path
    elif isinstance(source, str | Path) and tokenizer is None and not is_recipe(source):
        view = source
    else:
        view = Path(f"{Path(out)}.store")
        build(source, tokenizer, out=view, workers=workers, **rest)
        rest = {}
    if rest:
        raise RecipeError(f"unknown setting {min(rest)!r}")
    return export_view(
        view,
        to=to,
        out=out,
        options=options,
        choice=choice,
        link=link,
        workers=workers,
        on_event=on_event,
    )


def bake(source: str | Path | Store | Loader, *, out: str | Path, **settings: Any) -> BakedRows:
    """Write rows in training order as native shards, and open them.

    Args:
        source: a store or its folder, a run file or a `Loader`.
        out: folder for the rows.
        **settings: settings of `export`: `seq_len`, `packing`, `seed`, `epochs`, `stage`, ...

    Raises:
        PacklineError: see `export`.

    >>> import tempfile, pathlib
    >>> rows = bake(store, out=pathlib.Path(tempfile.mkdtemp()) / "rows", seq_len=5, workers=0)
    >>> len(rows), rows.read([1], ["tokens"])["tokens"].tolist()
    (5, [[0, 0, 1, 0, 0]])
    """
    from packline.formats.baked import BakedRows

    export(source, to="baked", out=out, **settings)
    return BakedRows(out)


def is_recipe(path: str | Path) -> bool:
    """True if a TOML file is a recipe: it has sources, where a run file has stages.

    Raises:
        RecipeError: the file cannot be read.
    """
    if not str(path).endswith(".toml"):
        return False
    from packline.recipe import read_toml

    table = read_toml(Path(path), "recipe or run file")
    return "stages" not in table and "loader" not in table


def make_recipe(
    inputs: str | Path | Sequence[str | Path], tokenizer: str | Path | None, settings: dict[str, Any]
) -> tuple[Recipe, RunOptions]:
    """Recipe and run options from arguments, or from a recipe file with arguments on top.

    Raises:
        RecipeError: an unknown setting, a missing tokenizer, a wrong type.
    """
    paths = [str(inputs)] if isinstance(inputs, str | Path) else [str(path) for path in inputs]
    settings = {name: value for name, value in settings.items() if value is not None}
    memory = settings.pop("memory", None)
    if memory is not None:
        settings["memory_bytes"] = parse_bytes(memory) if isinstance(memory, str) else int(memory)
    unknown = set(settings) - SOURCE_FIELDS - RECIPE_FIELDS - OPTION_FIELDS - {"memory_bytes"}
    if unknown:
        raise RecipeError(f"unknown setting {min(unknown)!r}")
    of_source = {name: settings[name] for name in settings if name in SOURCE_FIELDS}
    of_recipe = {name: settings[name] for name in settings if name in RECIPE_FIELDS}
    of_options = {name: settings[name] for name in settings if name in OPTION_FIELDS | {"memory_bytes"}}
    if len(paths) == 1 and paths[0].endswith(".toml"):
        recipe, options = load_recipe(paths[0])
        if tokenizer is not None:
            of_recipe["tokenizer"] = str(tokenizer)
        if of_source:
            raise RecipeError(
                f"{min(of_source)!r} belongs to a source",
                hint="in a recipe file it stands under [[sources]]",
            )
        recipe, options = _replace(recipe, of_recipe), _replace(options, of_options)
    else:
        if tokenizer is None:
            raise RecipeError(
                "no tokenizer", hint="name one with --tokenizer: a tokenizer.json, a hub id, ..."
            )
        source = _convert({"inputs": paths, **of_source}, Source)
        recipe = _convert({"tokenizer": str(tokenizer), "sources": [source], **of_recipe}, Recipe)
        options = _convert(of_options, RunOptions)
    return check_recipe(recipe), check_options(options)


def _replace(value: Any, changes: dict[str, Any]) -> Any:
    kind = type(value)
    fields = {name: getattr(value, name) for name in kind.__struct_fields__} | changes
    return _convert({name: field for name, field in fields.items() if field is not msgspec.UNSET}, kind)


def _convert(fields: dict[str, Any], kind: type[Any]) -> Any:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise RecipeError(f"a setting is wrong: {error}") from error
