"""Settings that people write: TOML files, unknown names, and conversion to Structs.

Errors name the setting, what was found and what is expected.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import msgspec
from msgspec import inspect

from packline.errors import RecipeError, did_you_mean, unknown_name
from packline.quantities import read_quantities

FileKind = Literal["recipe", "run file"]


def is_toml(path: str | Path) -> bool:
    """True if the name of a path is that of a recipe or run file."""
    return str(path).endswith(".toml")


def kind_of(path: str | Path) -> FileKind | None:
    """Kind of a local TOML file, by its tables; None for anything else."""
    if not (is_toml(path) and Path(path).is_file()):
        return None
    return _kind(read_toml(Path(path), "recipe or run file"))


def refuse_toml(path: str | Path, expected: str) -> None:
    """Refuse a recipe or a run file where something else is expected."""
    if kind := kind_of(path):
        raise RecipeError(f"{path} is a {kind}: expected {expected}", hint=kind_hint(path, kind))


def _kind(table: dict[str, Any]) -> FileKind | None:
    if "stages" in table or "loader" in table:
        return "run file"
    return "recipe" if "sources" in table or "tokenizer" in table else None


def kind_hint(path: str | Path, kind: FileKind) -> str:
    """Hint to what a file of this kind is for."""
    if kind == "recipe":
        return f"packline build {path} --out store makes the store of a recipe"
    return "trace, view, serve, export, info and diff read a run file; its [[stages.sources]] name stores"


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Read a TOML file."""
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except OSError as error:
        raise RecipeError(f"cannot read the {what} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not TOML: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path} is not TOML: {error}", hint=_hint_of_line(text, str(error))) from error
    kind = _kind(table)
    if kind is not None and what in get_args(FileKind) and kind != what:
        raise RecipeError(f"{path} is a {kind}: expected a {what}", hint=kind_hint(path, kind))
    return table


def _hint_of_line(text: str, error: str) -> str:
    """Hint for the line that an error names: how to write it or, where that is not known, the line."""
    number = re.search(r"at line (\d+)", error)
    line = text.splitlines()[int(number[1]) - 1].strip() if number else ""
    bare = re.fullmatch(r"([\w.-]+)\s*=\s*([A-Za-z][\w./-]*)\s*(?:#.*)?", line)
    if bare and bare[2] not in ("true", "false"):
        return f'text has quotes: {bare[1]} = "{bare[2]}"'
    return f"the line is: {line}" if line else ""


def read_table(
    table: Any,
    kind: type[msgspec.Struct],
    where: str,
    *,
    more: Sequence[str] = (),
    elsewhere: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """Settings of a table: unknown ones are refused, and texts such as "4k" become numbers.

    Args:
        table: the table; anything else is returned unchanged, for conversion to refuse.
        kind: Struct with the settings.
        where: file and table, for messages.
        more: further known settings.
        elsewhere: settings that belong to other tables, by what to say of them.
    """
    if not isinstance(table, dict):
        return table
    known = (*kind.__struct_fields__, *more)
    for word in table:
        if word not in known:
            for place, words in (elsewhere or {}).items():
                if word in words:
                    raise RecipeError(f"{where}: {word!r} {place}")
            raise unknown_name(f"{where} has no setting {word!r}", word, known)
    return read_quantities(table, kind, where)


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
