"""Conversion of settings to Structs; its errors name the setting, what was found and what is expected."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from packline.errors import RecipeError, did_you_mean

T = TypeVar("T")
LISTS = (inspect.VarTupleType, inspect.ListType)

_PLACE = re.compile(r" - at `(?:key in )?\$(.*)`$")
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_MISSING = re.compile(r"missing required field `(\w+)`")
_UNKNOWN = re.compile(r"contains unknown field `(\w+)`")


def convert(values: Any, kind: type[T], where: str = "", *, hint: str = "", strict: bool = True) -> T:
    """Settings as a Struct, or as a list of Structs.

    Args:
        values: settings by name.
        kind: type to convert them to.
        where: file and table of the settings, for messages.
        hint: hint of errors that have none of their own.
        strict: False: numbers may be text.

    >>> class Row(msgspec.Struct):
    ...     seq_len: int
    >>> convert({"seq_len": True}, Row, "run.toml")
    Traceback (most recent call last):
    packline.errors.RecipeError: run.toml: seq_len is true: expected a whole number
    """
    try:
        return msgspec.convert(values, kind, strict=strict)
    except msgspec.ValidationError as error:
        message, own = _in_words(str(error), values, inspect.type_info(kind))
        raise RecipeError(f"{where}: {message}" if where else message, hint=own or hint) from error


def _in_words(message: str, value: Any, kind: inspect.Type) -> tuple[str, str]:
    place = _PLACE.search(message)
    name = ""
    for step, number in _STEP.findall(place[1] if place else ""):
        if step:
            if step not in _fields(kind):
                break
            kind, value = _fields(kind)[step], value[step]
            name += f".{step}" if name.endswith("]") else f": {step}" if name else step
        else:
            kind = next(one.item_type for one in _types(kind) if isinstance(one, LISTS))
            value = value[int(number)]
            named = isinstance(value, dict) and value.get("name")
            name = str(named) if named else f"{name}[{number}]"
    before = f"{name}: " if name else ""
    if found := _MISSING.search(message):
        kinds = _types(_fields(kind)[found[1]])
        tables = any(
            isinstance(one, LISTS) and isinstance(one.item_type, inspect.StructType) for one in kinds
        )
        return (
            f"{before}{found[1]} is missing",
            f"write [[{found[1]}]]" if tables else f"write {found[1]} = ...",
        )
    if found := _UNKNOWN.search(message):
        known = sorted(_fields(kind))
        hint = f"{did_you_mean(found[1], known)}expected one of: {', '.join(known)}"
        return f"{before}there is no setting {found[1]!r}", hint
    message = f"{name or 'the value'} is {in_toml(value)}: expected {_expected(value, kind)}"
    return message, _hint(name, value, kind)


def _fields(kind: inspect.Type) -> dict[str, inspect.Type]:
    structs = [one for one in _types(kind) if isinstance(one, inspect.StructType)]
    return {field.encode_name: field.type for one in structs for field in one.fields}


def _types(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    kinds = tuple(one.type if isinstance(one, inspect.Metadata) else one for one in kinds)
    return tuple(one for one in kinds if not isinstance(one, inspect.NoneType) and not _is_unset(one))


def _is_unset(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.CustomType) and kind.cls is msgspec.UnsetType


def _expected(value: Any, kind: inspect.Type) -> str:
    """Values of a type, in words; of a number out of its limits, the limits alone."""
    return " or ".join(_one_expected(value, one) for one in _types(kind))


def _one_expected(value: Any, kind: inspect.Type) -> str:
    if isinstance(kind, inspect.LiteralType):
        *others, last = map(str, kind.values)
        return f"{', '.join(others)} or {last}" if others else last
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        limits = {"at least": kind.ge, "above": kind.gt, "at most": kind.le, "below": kind.lt}
        said = " and ".join(f"{word} {limit:,}" for word, limit in limits.items() if limit is not None)
        whole = isinstance(kind, inspect.IntType)
        if said and (type(value) is int or (type(value) is float and not whole)):
            return said
        what = "a whole number" if whole else "a number"
        return f"{what}, {said}" if said else what
    if isinstance(kind, LISTS):
        return "a list of tables" if isinstance(kind.item_type, inspect.StructType) else "a list"
    words = {inspect.BoolType: "true or false", inspect.StrType: "text", inspect.StructType: "a table"}
    return words.get(type(kind), "another type")


def _hint(name: str, value: Any, kind: inspect.Type) -> str:
    setting = re.split(r"[.: ]", name)[-1]
    for one in _types(kind):
        if isinstance(one, inspect.LiteralType) and isinstance(value, str):
            return did_you_mean(value, map(str, one.values)).strip()
        if isinstance(one, LISTS):
            if isinstance(one.item_type, inspect.StructType):
                return f"write [[{setting}]], in two brackets" if isinstance(value, dict) else ""
            return f"write {setting} = {in_toml([value], quotes=True)}"
        if isinstance(one, inspect.StructType) and value is None:
            return f"write [{setting}]"
    return ""


def in_toml(value: Any, *, quotes: bool = False) -> str:
    """A value with the words of a TOML file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return f"[{', '.join(in_toml(one, quotes=quotes) for one in value)}]"
    if value is None or value is msgspec.UNSET:
        return "not given"
    return json.dumps(value, ensure_ascii=False) if quotes else repr(value)
