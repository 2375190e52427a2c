"""Places that the relative paths of a recipe mean, which depend on where its file is.

A recipe and its store contain paths as they are written. They get a folder where they are opened.
"""

from __future__ import annotations

from packline.recipe import Recipe, RecipeOfFile


def as_written(recipe: Recipe) -> Recipe:
    """The recipe without places, as stores contain it."""
    if not isinstance(recipe, RecipeOfFile):
        return recipe
    return Recipe(**{name: getattr(recipe, name) for name in Recipe.__struct_fields__})


def placed(recipe: Recipe, folder: str) -> RecipeOfFile:
    """A recipe whose relative inputs are relative to a folder."""
    fields = {name: getattr(recipe, name) for name in Recipe.__struct_fields__}
    return RecipeOfFile(**fields, folder=folder, tokenizer_place=recipe.tokenizer)


def folder_of(recipe: Recipe) -> str:
    """Folder that relative inputs are relative to; empty: the working directory."""
    return recipe.folder if isinstance(recipe, RecipeOfFile) else ""


def tokenizer_of(recipe: Recipe) -> str:
    """The tokenizer to open: a path, or what the hub or a library has."""
    return recipe.tokenizer_place if isinstance(recipe, RecipeOfFile) else recipe.tokenizer
