"""Keyword settings of the public functions, and the recipe that the settings of a build make.

Each key has the name and meaning of a field of `Source`, `Recipe`, `RunOptions`, `RowOptions` or
`LoaderOptions`; a test keeps them equal. A key that is absent or None keeps the default, or what the recipe
contains. Relative paths of a recipe get a folder where they are opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

import msgspec

from packline.conversion import convert, is_toml, kind_of
from packline.errors import RecipeError, unknown_name
from packline.quantities import parse_bytes
from packline.recipe import (
    Documents,
    Engine,
    Format,
    Recipe,
    RecipeOfFile,
    RunOptions,
    Source,
    SpecialTokens,
    Split,
    check_options,
    check_recipe,
    load_recipe,
)

SOURCE_FIELDS = set(Source.__struct_fields__) - {"inputs", "name", "label"}
RECIPE_FIELDS = set(Recipe.__struct_fields__) - {"sources", "tokenizer"}
OPTION_FIELDS = set(RunOptions.__struct_fields__) - {"memory_bytes"}


CachePlace = str | Path | bool | None
"""Folder for what is read of remote stores; None: the usual one, False: none, but memory."""


class RowKeywords(TypedDict, total=False):
    """Documents or rows of a source, and their order. Those from `seq_len` on apply to rows only."""

    split: Literal["train", "val", "test", "all"] | None
    """Default: all; an export of rows has a folder for each split."""
    labels: str | Sequence[str] | None
    sources: str | Sequence[str] | None
    min_tokens: int | None
    max_tokens: int | None
    where: str | None
    unique: bool | str | Sequence[str] | None
    exclude: str | Sequence[str] | None
    shuffle_documents: int | None
    seq_len: int | None
    packing: Literal["concat", "best_fit", "pad"] | None
    min_tail_fraction: float | None
    pack_window: int | None
    overflow: Literal["truncate", "split", "drop"] | None
    boundary_loss: bool | None
    pad_id: int | None
    seed: int | None
    """Seed of the loader's order; default: 0, but packed order for `npz` and `pt`."""
    in_order: bool | None
    """Rows in packed order."""
    order: Literal["global", "blocks"] | None
    """Order that the seed belongs to; see `Loader`."""
    block_rows: int | None
    window_blocks: int | None
    epochs: int | None
    batch_size: int | None
    """Rows per global batch."""
    stage: int | None
    """Stage of a run file."""
    keep_untrained: bool | None
    """Also write rows without a trained token."""


class LoaderKeywords(TypedDict, total=False):
    """Settings of a loader that replace those of its run file."""

    batch_size: int | None
    batch_tokens: int | str | None
    seed: int | None
    shuffle: bool | None
    order: Literal["global", "blocks"] | None
    block_rows: int | None
    window_blocks: int | None
    fields: Sequence[str] | None
    keys: Literal["packline", "huggingface"] | None
    prefetch: int | None


class FollowKeywords(RowKeywords, LoaderKeywords, total=False):
    """Rows of a store that is followed, and their batches."""


class TextKeywords(TypedDict, total=False):
    """Keywords of a build from text: fields of `Source`, `Recipe` and `RunOptions`."""

    format: Format | None
    text: str | None
    id: str | None
    documents: Documents | None
    separator: str | None
    min_chars: int | None
    max_chars: int | None
    template: str | None
    where: str | None
    columns: Sequence[str] | None
    charset: str | None
    newlines: Literal["unix"] | None
    rare_fields: Sequence[str] | None
    encoding: str | None
    eod: str | int | None
    bos: str | int | None
    special_tokens: SpecialTokens | None
    val_fraction: float | None
    test_fraction: float | None
    val_documents: int | None
    limit_documents: int | None
    limit_tokens: int | None
    max_document_bytes: int | None
    memory: str | int | None
    """Memory limit for all processes together: bytes, or text such as "4GiB"."""
    engine: Engine | None
    strict: bool | None
    max_bad_fraction: float | None


class BuildKeywords(TextKeywords, total=False):
    """Settings of a build."""

    split: Split | None
    """Split of all documents, regardless of their hash."""
    seed: int | None
    """Seed of the splits."""
    workers: int | None
    """Number of encoding processes; 0: run in this process."""


class ExportKeywords(TextKeywords, RowKeywords, total=False):
    """Documents or rows to export; and for text, how to build its store."""


def is_recipe(path: str | Path) -> bool:
    """True if a TOML file is a recipe: it has sources, where a run file has stages."""
    return is_toml(path) and kind_of(path) != "run file"


def make_recipe(
    inputs: Recipe | str | Path | Sequence[str | Path],
    tokenizer: str | Path | None,
    settings: Mapping[str, Any],
) -> tuple[Recipe, RunOptions]:
    """Recipe and run options from arguments; or from a recipe, or a file with one, with arguments on top."""
    given = {name: value for name, value in settings.items() if value is not None}
    memory = given.pop("memory", None)
    if memory is not None:
        given["memory_bytes"] = parse_bytes(memory) if isinstance(memory, str) else int(memory)
    known = SOURCE_FIELDS | RECIPE_FIELDS | OPTION_FIELDS
    if unknown := set(given) - known - {"memory_bytes"}:
        raise unknown_name(f"no setting {min(unknown)!r}", min(unknown), known | {"tokenizer"})
    of_source = {name: given[name] for name in given if name in SOURCE_FIELDS}
    of_recipe = {name: given[name] for name in given if name in RECIPE_FIELDS}
    of_options = {name: given[name] for name in given if name in OPTION_FIELDS | {"memory_bytes"}}
    whole = _whole_recipe(inputs)
    if whole is not None:
        recipe, options = whole
        if tokenizer is not None:
            of_recipe["tokenizer"] = str(tokenizer)
            if isinstance(recipe, RecipeOfFile):
                of_recipe["tokenizer_place"] = str(tokenizer)
        if of_source:
            raise RecipeError(
                f"{min(of_source)!r} belongs to a source",
                hint="in a recipe file it belongs under [[sources]]",
            )
        recipe, options = _replace(recipe, of_recipe), _replace(options, of_options)
    else:
        if tokenizer is None:
            raise RecipeError(
                "no tokenizer", hint="name one with --tokenizer: gpt2, a hub id, a tokenizer.json, ..."
            )
        paths = [str(inputs)] if isinstance(inputs, str | Path) else [str(path) for path in inputs]  # type: ignore[union-attr]
        source = convert({"inputs": paths, **of_source}, Source)
        recipe = convert({"tokenizer": str(tokenizer), "sources": [source], **of_recipe}, Recipe)
        options = convert(of_options, RunOptions)
    return check_recipe(recipe), check_options(options)


def _whole_recipe(
    inputs: Recipe | str | Path | Sequence[str | Path],
) -> tuple[Recipe, RunOptions] | None:
    """The recipe that the inputs are or name; None if they are inputs of one source."""
    if isinstance(inputs, Recipe):
        return inputs, RunOptions()
    paths = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    recipes = [path for path in paths if is_toml(path)]
    if recipes and len(paths) > 1:
        kind = kind_of(recipes[0]) or "recipe"
        raise RecipeError(f"{recipes[0]} is a {kind}: expected no other input, found {len(paths)}")
    return load_recipe(paths[0]) if recipes else None


def _replace(value: Any, changes: dict[str, Any]) -> Any:
    kind = type(value)
    fields = {name: getattr(value, name) for name in kind.__struct_fields__} | changes
    return convert({name: field for name, field in fields.items() if field is not msgspec.UNSET}, kind)


def as_written(recipe: Recipe) -> Recipe:
    """The recipe without places, as stores contain it."""
    if not isinstance(recipe, RecipeOfFile):
        return recipe
    return Recipe(**{name: getattr(recipe, name) for name in Recipe.__struct_fields__})


def folder_of(recipe: Recipe) -> str:
    """Folder that relative inputs are relative to; empty: the working directory."""
    return recipe.folder if isinstance(recipe, RecipeOfFile) else ""


def tokenizer_of(recipe: Recipe) -> str:
    """The tokenizer to open: a path, or what the hub or a library has."""
    return recipe.tokenizer_place if isinstance(recipe, RecipeOfFile) else recipe.tokenizer
