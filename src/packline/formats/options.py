"""Options of formats: their declaration, their values from text, and their description.

An option is a field with a type, a default and a docstring: the only declaration of it. Values may be text,
as on the command line; descriptions come from the docstrings.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, get_args, get_origin

import msgspec

from packline.errors import RecipeError


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base class of a format's options, with defaults that its project expects."""


class HasOptions(Protocol):
    """Something with a name and options, as every format is."""

    name: ClassVar[str]
    options: ClassVar[type[Options]]


def convert_options(format: HasOptions, given: Mapping[str, Any]) -> Options:
    """Options of a format from names and values, which may be text.

    `none` leaves an option unset, unless the option has a value of that name. A list is comma-separated text
    or JSON.

    Raises:
        RecipeError: unknown option, or invalid value.

    >>> from packline.formats.format import get_format
    >>> convert_options(get_format("mds"), {"fields": "tokens,targets,loss_mask"}).fields
    ('tokens', 'targets', 'loss_mask')
    """
    types = {field.name: field.type for field in msgspec.structs.fields(format.options)}
    try:
        values = {name: _value(types.get(name), value) for name, value in given.items()}
        return msgspec.convert(values, format.options, strict=False)
    except msgspec.MsgspecError as error:
        known = ", ".join(format.options.__struct_fields__) or "none"
        raise RecipeError(
            f"{format.name}: {str(error).replace('Object contains', 'there is').replace('$.', '')}",
            hint=f"its options: {known}; packline formats {format.name} explains them",
        ) from error


def _value(kind: Any, value: Any) -> Any:
    """The given value, with text that means None or a list converted.

    Raises:
        msgspec.DecodeError: text that begins like a JSON list but is not one.
    """
    if value == "none" and _only_absent(kind):
        return None
    if isinstance(value, str) and takes_list(kind):
        if value.lstrip().startswith("["):
            return msgspec.json.decode(value)
        return [word for part in value.split(",") if (word := part.strip())]
    return value


def takes_list(kind: Any) -> bool:
    """True if an option of this type takes several values.

    >>> takes_list(tuple[str, ...]), takes_list(list[int] | None), takes_list(str)
    (True, True, False)
    """
    return any(get_origin(one) in (list, tuple) for one in (kind, *get_args(kind)))


def _only_absent(kind: Any) -> bool:
    """True if an option may be left unset and has no value called none."""
    return type(None) in get_args(kind) and not {str, "none"} & set(get_args(kind))


def describe_options(options: type[Options]) -> list[dict[str, Any]]:
    """Name, default and description of every option, as JSON-compatible values.

    >>> from packline.formats.mds import MdsOptions
    >>> describe_options(MdsOptions)[1]
    {'name': 'size_limit', 'default': 67108864, 'about': 'Maximum size of a shard, in bytes.'}
    """
    docs = option_docs(options)
    found = []
    for field in msgspec.structs.fields(options):
        about = docs.get(field.name, "")
        if takes_list(field.type):
            about = f"{about} A list: `a,b` or JSON."
        found.append({"name": field.name, "default": msgspec.to_builtins(field.default), "about": about})
    return found


def option_docs(options: type[Options]) -> dict[str, str]:
    """Docstring below each field in the source, as one line.

    >>> from packline.formats.nanogpt import NanogptOptions
    >>> option_docs(NanogptOptions)["edges"]
    'Boundary tokens of documents.'
    """
    found: dict[str, str] = {}
    for kind in reversed(options.__mro__):
        if not issubclass(kind, Options):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            ):
                found[field.target.id] = " ".join(text.value.value.split())
    return found
