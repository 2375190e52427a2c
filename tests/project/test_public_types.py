"""The public names and their keywords; `typed_calls` has what type checkers say of them."""

from __future__ import annotations

import ast
import inspect
import re
import traceback
import typing
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

import packline
from packline import settings
from packline.errors import RecipeError
from packline.packing.options import PACKINGS, DocumentFilter, ExportChoice, LoaderOptions, RowOptions
from packline.recipe import Recipe, RunOptions, Source


def public_callables() -> dict[str, Any]:
    """Public functions, classes and the public methods of those classes."""
    found: dict[str, Any] = {}
    for name in packline._HOMES:
        value = getattr(packline, name)
        found[name] = value
        if inspect.isclass(value):
            for inner, method in inspect.getmembers(value, inspect.isroutine):
                if not inner.startswith("_") and (getattr(method, "__module__", "") or "").startswith(
                    "packline"
                ):
                    found[f"{name}.{inner}"] = method
    return found


def with_options() -> dict[str, Any]:
    """Those with keywords of their own, for users: structs have fields, and packline itself makes errors and
    rows."""
    found: dict[str, Any] = {}
    for name, value in public_callables().items():
        kinds = {one.kind for one in inspect.signature(value).parameters.values()}
        is_struct = inspect.isclass(value) and issubclass(value, msgspec.Struct)
        is_ours = name.startswith(("PacklineError", "Rows"))
        if (
            not is_ours
            and inspect.Parameter.KEYWORD_ONLY in kinds
            and inspect.Parameter.VAR_KEYWORD not in kinds
        ):
            found |= {} if is_struct else {name: value}
    return found


@pytest.mark.parametrize("name", sorted(with_options()))
def test_an_unknown_name_is_an_error_of_packline_with_the_nearest_one(name: str) -> None:
    value = with_options()[name]
    known = max((one for one in inspect.signature(value).parameters if one != "self"), key=len)
    with pytest.raises(RecipeError, match=f"has no setting '{known}s'") as caught:
        value(**{f"{known}s": 1})
    assert f"did you mean {known!r}?" in caught.value.hint
    assert f"hint: {caught.value.hint}" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("name", sorted(public_callables()))
def test_every_parameter_has_a_name_and_a_type(name: str) -> None:
    for parameter in inspect.signature(public_callables()[name]).parameters.values():
        assert parameter.kind is not parameter.VAR_POSITIONAL
        if parameter.kind is parameter.VAR_KEYWORD:
            assert re.fullmatch(r"Unpack\[\w+Keywords\]", str(parameter.annotation)), parameter
        elif parameter.name != "self":
            assert parameter.annotation not in (parameter.empty, "Any"), parameter


def test_the_keywords_are_the_fields_of_the_settings() -> None:
    of_source = set(Source.__struct_fields__) - {"inputs", "name", "label"}
    of_recipe = set(Recipe.__struct_fields__) - {"sources", "tokenizer"}
    of_run = set(RunOptions.__struct_fields__) - {"memory_bytes"} | {"memory"}
    build = set(get_type_hints(settings.BuildKeywords))
    assert build == of_source | of_recipe | of_run
    rows = set(get_type_hints(settings.RowKeywords))
    order = set(LoaderOptions.__struct_fields__) & rows
    own = {"seq_len", "epochs", "stage", "in_order", "keep_untrained"}
    assert rows == set(RowOptions.__struct_fields__) | order | own
    assert order == {"seed", "order", "block_rows", "window_blocks", "batch_size"}
    assert set(get_type_hints(settings.LoaderKeywords)) == set(LoaderOptions.__struct_fields__) - {"plans"}
    assert set(get_type_hints(settings.ExportKeywords)) == build - {"workers"} | rows
    given = inspect.signature(packline.Store.rows).parameters
    assert set(given) == {"self", "seq_len", "plans", *RowOptions.__struct_fields__}
    for name, default in zip(RowOptions.__struct_fields__, RowOptions.__struct_defaults__, strict=True):
        assert given[name].default == default
    packings = typing.get_args(typing.get_args(get_type_hints(settings.RowKeywords)["packing"])[0])
    assert packings == PACKINGS
    assert set(DocumentFilter.__struct_fields__) < set(RowOptions.__struct_fields__)


def test_exports_have_the_row_settings_of_python() -> None:
    rows = set(get_type_hints(settings.RowKeywords))
    assert set(ExportChoice.__struct_fields__) == rows


def test_the_table_for_type_checkers_is_the_table_of_names() -> None:
    tree = ast.parse(Path(packline.__file__).read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    listed = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert listed == packline._HOMES
    assert dir(packline) == sorted([*packline.__all__, "open", "__version__"])
    assert typing.TYPE_CHECKING is False
