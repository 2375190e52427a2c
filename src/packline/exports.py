"""Python functions that write the layouts of other projects, behind `export`.

export        a store, a run or text -> the layout of another project
write_rows    rows in training order -> native shards
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from packline.errors import unknown_name
from packline.settings import ExportKeywords, RowKeywords, is_recipe, make_recipe
from packline.toml import is_toml

if TYPE_CHECKING:
    from packline.facade import Store
    from packline.formats.baked import BakedRows
    from packline.formats.export import Exported
    from packline.jobs.events import Event
    from packline.jobs.machines import On
    from packline.loading.loader import Loader
    from packline.recipe import Recipe
    from packline.storage.local import Link


def export(
    source: str | Path | Store | Loader | Recipe | Sequence[str | Path],
    *,
    out: str | Path,
    to: str,
    tokenizer: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    link: Link = "auto",
    workers: int | None = None,
    on: On = "local",
    on_event: Callable[[Event], None] | None = None,
    **settings: Unpack[ExportKeywords],
) -> Exported:
    """Export a store, or rows of a store or run, to the layout of another project; or resume an export.

    Args:
        source: a store or its folder, a run file (`.toml`) or a `Loader`; or arguments of `build`: inputs
            with a tokenizer, or a recipe. Their store is built next to the output, at `OUT.store`, and kept.
        out: output folder: new, empty, or containing the same export.
        to: name of the format; `packline formats` lists them.
        tokenizer: tokenizer for text inputs.
        options: options of the format, by name.
        link: how files of the store are reused where the output has the same bytes: `hard` links,
            `reflink` or `copy`; `auto` takes the first that works.
        workers: number of processes; None: one per usable core, 0: run in this process.
        on: where it runs; see `build`.
        on_event: called with every event while the export runs.
        **settings: documents or rows to export, such as `split`, `labels`, `seq_len`, `packing`,
            `batch_size`, `seed`, `stage`; see `packline.settings.RowKeywords`. For text, how to build its
            store; see `packline.settings.TextKeywords`.

    Raises:
        RecipeError: invalid settings, or ids too large for the format.
        StoreError: a damaged store, or an output folder with other contents.
        OutOfSpace: not enough disk space. Finished parts are kept.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> exported = export(store.path, out=folder / "data", to="nanogpt", workers=0)
    >>> (folder / "data" / "train.bin").read_bytes() == store.documents[0].tobytes()
    True
    """
    from packline.formats.choice import make_choice, with_weights, without_where
    from packline.formats.export import run_export
    from packline.formats.row_view import RowView
    from packline.jobs.build_job import run_build
    from packline.loading.loader import Loader
    from packline.packing.options import ExportChoice
    from packline.recipe import Recipe
    from packline.storage.places import store_beside
    from packline.store.reader import StoreReader

    choice, rest = make_choice(dict(settings))
    view: str | Path | RowView
    if isinstance(source, Loader):
        view = RowView.of_loader(source, choice.stage)
    elif isinstance(source, StoreReader):
        view = str(source.place)
    elif isinstance(source, str | Path) and tokenizer is None and not is_recipe(source):
        view = source
    else:
        view = store_beside(out)
        if not isinstance(source, Recipe) and not is_toml(str(source)):
            choice, rest["where"] = without_where(choice)
        recipe, running = make_recipe(source, tokenizer, {**rest, "workers": workers})
        run_build(recipe, view, running, None, on=on)
        rest = {}
        if isinstance(source, str | Path) and is_recipe(source):
            options = with_weights(to, options, source)
    if rest:
        raise unknown_name(f"no setting {min(rest)!r}", min(rest), ExportChoice.__struct_fields__)
    return run_export(
        view,
        to=to,
        out=out,
        options=options,
        choice=choice,
        link=link,
        workers=workers,
        on=on,
        on_event=on_event,
    )


def write_rows(
    source: str | Path | Store | Loader,
    *,
    out: str | Path,
    options: Mapping[str, Any] | None = None,
    workers: int | None = None,
    on: On = "local",
    on_event: Callable[[Event], None] | None = None,
    **settings: Unpack[RowKeywords],
) -> BakedRows:
    """Write rows in training order as native shards, and open them: of several splits, those of train.

    Args:
        source: a store or its folder, a run file or a `Loader`.
        out: folder for the rows.
        options: `file_rows`: rows per file.
        workers: number of processes; None: one per usable core, 0: run in this process.
        on: where it runs; see `build`.
        on_event: called with every event while rows are written.
        **settings: rows and their order: `seq_len`, `packing`, ...; see `packline.settings.RowKeywords`.

    Raises:
        PacklineError: see `export`.

    >>> import tempfile, pathlib
    >>> out = pathlib.Path(tempfile.mkdtemp()) / "rows"
    >>> rows = write_rows(store, out=out, seq_len=5, in_order=True, workers=0)
    >>> len(rows), rows.read([1], ["tokens"])["tokens"].tolist()
    (5, [[0, 0, 1, 0, 0]])
    """
    from packline.formats.baked import BakedRows

    exported = export(
        source,
        out=out,
        to="baked",
        options=options,
        workers=workers,
        on=on,
        on_event=on_event,
        **settings,
    )
    return BakedRows(Path(out, *exported.folders[:1]))
