"""Source of an export: a store or a run, and the choice of its documents or rows, as JSON-compatible values.

A worker process opens its own view from them, so views never cross a process boundary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from packline.conversion import convert, is_toml
from packline.errors import RecipeError
from packline.formats.types import Edges
from packline.packing.options import DocumentFilter, ExportChoice
from packline.recipe import load_recipe, load_shares
from packline.storage.places import is_remote
from packline.store.ledger import source_names
from packline.store.manifest import MANIFEST
from packline.store.reader import StoreReader

if TYPE_CHECKING:
    from packline.formats.document_view import DocumentView
    from packline.formats.row_view import RowSplits


def make_choice(settings: dict[str, Any]) -> tuple[ExportChoice, dict[str, Any]]:
    """A choice from settings by name, and the settings that are not part of it."""
    known = set(ExportChoice.__struct_fields__)
    given = {name: value for name, value in settings.items() if name in known and value is not None}
    for name in ("labels", "sources", "unique", "exclude"):
        if name in given and not isinstance(given[name], bool):
            names = [given[name]] if isinstance(given[name], str) else list(given[name])
            given[name] = sorted(set(names))
    rest = {name: value for name, value in settings.items() if name not in known}
    return convert(given, ExportChoice), rest


def with_order(choice: ExportChoice, *, shuffled: bool) -> ExportChoice:
    """A choice of rows of a store with the seed of their order; without one, they are in packed order.

    Args:
        shuffled: True for a format that a trainer reads in the order of its files: seed 0, unless in order.

    >>> with_order(ExportChoice(), shuffled=True).seed, with_order(ExportChoice(), shuffled=False).seed
    (0, None)
    """
    if choice.in_order and choice.seed is not None:
        raise RecipeError("--in-order and --seed exclude each other", hint="leave one of them out")
    seed = 0 if shuffled and choice.seed is None and not choice.in_order else choice.seed
    return msgspec.structs.replace(choice, seed=seed, in_order=None)


def order_in_words(source: str, choice: ExportChoice, *, rows: bool) -> str:
    """Order of an export, and the options that change it."""
    if not rows:
        seed, what, option = choice.shuffle_documents, "documents", "--shuffle-documents"
    elif not source or is_toml(source):
        return "rows in the order of the run"
    else:
        seed, what, option = choice.seed, "rows", "--seed"
    if seed is None:
        return f"{what} in stored order: {option} shuffles them"
    return f"{what} shuffled with seed {seed}: change it with {option}" + (" or --in-order" if rows else "")


def without_where(choice: ExportChoice) -> tuple[ExportChoice, str | None]:
    """A choice without its condition, and the condition: of text, it leaves out records while building."""
    return msgspec.structs.replace(choice, where=None), choice.where


def with_weights(format: str, options: Mapping[str, Any] | None, recipe: str | Path) -> dict[str, Any]:
    """Options of an export of a recipe's store: where the format takes weights, those of the recipe."""
    given = dict(options or {})
    if format.lower() == "megatron" and "weights" not in given:
        shares = [one.tokens if one.weight is None else one.weight for one in load_shares(recipe)]
        names = source_names(load_recipe(recipe)[0])
        words = [f"{name}={share}" for name, share in zip(names, shares, strict=True) if share is not None]
        given |= {"weights": words} if words else {}
    return given


def is_store(source: str | Path, format: str | None) -> bool:
    return format is None and (is_remote(str(source)) or (Path(source) / MANIFEST).is_file())


def document_view(source: str, edges: Edges, choice: ExportChoice) -> DocumentView:
    from packline.formats.document_view import DocumentView

    if is_toml(source):
        raise RecipeError(
            f"{source} is a run file, and this format holds documents", hint="name one of its stores"
        )
    given: dict[str, Any] = msgspec.to_builtins(choice)
    for name in given:
        if name not in DocumentFilter.__struct_fields__:
            raise RecipeError(
                f"{option_name(name)} is for rows, and this format holds documents",
                hint="packline formats lists the formats of rows",
            )
    return DocumentView(StoreReader(source), edges=edges, **given)


def row_view(source: str, choice: ExportChoice) -> RowSplits:
    """Rows of a store, of all its splits unless one is chosen, or of a run."""
    from packline.formats.row_view import RowSplits, RowView

    given: dict[str, Any] = msgspec.to_builtins(choice)
    if is_toml(source):
        from packline.loading.loader import Loader

        for name in given:
            if name not in ("stage", "keep_untrained"):
                raise RecipeError(
                    f"{option_name(name)} is set by the run file {source}", hint="change it there"
                )
        return RowSplits({"train": RowView.of_loader(Loader.from_file(source, prefetch=0), choice.stage)})
    if choice.stage is not None:
        raise RecipeError("--stage requires a run file", hint="packline export run.toml --stage 0 ...")
    if choice.seq_len is None:
        raise RecipeError("this format holds rows, and no row length was given", hint="--seq-len 2048")
    given.pop("keep_untrained", None)
    return RowSplits.of_store(StoreReader(source), **given)


def option_name(name: str) -> str:
    """Option of the command line for a setting.

    >>> option_name("labels"), option_name("min_tokens")
    ('--label', '--min-tokens')
    """
    return "--" + {"labels": "label", "sources": "source"}.get(name, name).replace("_", "-")
