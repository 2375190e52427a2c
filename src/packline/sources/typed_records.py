"""Types for decoding JSON records with only the wanted fields: the fastest way in Python.

    text, id, a.x, a.y   ->   Record(f0: text, f1: id, f2: {f0: x, f1: y})

Wanted fields may share objects, be nested, or be the same field. The text is typed, since a document needs
it; every other field may be missing, null or of any type, and is then None or its value. An object that
contains only optional fields is typed too, so that its other fields are skipped; if a record has another
value there, the type refuses it, and one made with `tolerant=True` decodes such objects whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from packline.errors import RecipeError

Values = Callable[[Sequence[Any]], list[Any]]
"""Function from records to the values of one field, None where there is none."""


class RecordType(NamedTuple):
    """A decoder of records, and how to read their wanted fields."""

    decoder: Any
    """`msgspec.json.Decoder`."""
    values: list[Values]
    """One for each wanted field, in their order; the first is the text."""


def record_type(
    text: str, fields: Sequence[str] = (), *, types: Sequence[Any] = (), tolerant: bool = False
) -> RecordType:
    """Make a type for the wanted fields of records.

    Args:
        text: field of the text, `a.b` for a nested one: a required string.
        fields: other fields, all optional.
        types: types of the first of the other fields; null is always allowed. Default: any.
        tolerant: decode objects of other fields whole, whatever they are.

    Raises:
        RecipeError: one field would have to contain another.

    >>> made = record_type("text", ["meta.lang"])
    >>> records = made.decoder.decode_lines(b'{"text": "a", "meta": {"lang": "de", "n": 1}}')
    >>> [values(records) for values in made.values]
    [['a'], ['de']]
    """
    paths = [tuple(text.split(".")), *(tuple(field.split(".")) for field in fields)]
    tree: dict[str, Any] = {}
    for number, path in enumerate(paths):
        _insert(tree, path, number, [text, *fields])
    kinds = [str, *types, *([Any] * (len(fields) - len(types)))]
    kind, places = _struct(tree, kinds, tolerant)
    return RecordType(msgspec.json.Decoder(kind), [_values(*places[number]) for number in range(len(paths))])


def _insert(tree: dict[str, Any], path: tuple[str, ...], number: int, names: list[str]) -> None:
    for name in path[:-1]:
        inner: Any = tree.setdefault(name, {})
        if isinstance(inner, list):
            raise _holds(names[inner[0]], names[number])
        tree = inner
    found = tree.setdefault(path[-1], [])
    if isinstance(found, dict):
        raise _holds(names[number], names[next(_numbers(found))])
    found.append(number)


def _holds(outer: str, inner: str) -> RecipeError:
    return RecipeError(f"{outer!r} and {inner!r} are both wanted: one field cannot hold the other")


def _numbers(node: Any) -> Any:
    """Numbers of all wanted fields in a node of the tree."""
    if isinstance(node, list):
        yield from node
    else:
        for inner in node.values():
            yield from _numbers(inner)


Place = tuple[str, tuple[str, ...]]
"""Attributes joined by dots, and the names below them in an object that is decoded whole."""


def _struct(tree: dict[str, Any], kinds: list[Any], tolerant: bool) -> tuple[Any, dict[int, Place]]:
    fields: list[tuple[Any, ...]] = []
    rename: dict[str, str] = {}
    places: dict[int, Place] = {}
    # The text first: it has no default.
    for name, node in sorted(tree.items(), key=lambda item: 0 not in _numbers(item[1])):
        attribute = f"f{len(fields)}"
        rename[attribute] = name
        numbers = list(_numbers(node))
        if isinstance(node, list):
            required = 0 in numbers
            fields.append((attribute, str) if required else (attribute, kinds[node[0]], None))
            places |= dict.fromkeys(node, (attribute, ()))
        elif tolerant and 0 not in numbers:
            fields.append((attribute, Any, None))
            places |= {number: (attribute, rest) for rest, number in _paths(node)}
        else:
            inner, below = _struct(node, kinds, tolerant)
            fields.append((attribute, inner) if 0 in numbers else (attribute, inner | None, inner()))
            places |= {number: (f"{attribute}.{more}", rest) for number, (more, rest) in below.items()}
    return msgspec.defstruct("Record", fields, rename=rename, gc=False, frozen=True), places


def _paths(node: Any, above: tuple[str, ...] = ()) -> Any:
    if isinstance(node, list):
        for number in node:
            yield above, number
    else:
        for name, inner in node.items():
            yield from _paths(inner, (*above, name))


def _values(attributes: str, rest: tuple[str, ...]) -> Values:
    get = attrgetter(attributes)
    if not rest and "." not in attributes:
        return lambda records: list(map(get, records))

    def one(record: Any) -> Any:
        value = record
        for name in attributes.split("."):
            value = getattr(value, name, None)
        for name in rest:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def values(records: Sequence[Any]) -> list[Any]:
        if not rest:
            try:
                return list(map(get, records))
            except AttributeError:  # an object that is null
                pass
        return list(map(one, records))

    return values
