"""Numbers as people write them: `4k`, `2B`, `1_000_000`, `12GiB`.

count     2B = 2,000,000,000     K, M, B, T: 1,000 and its powers
length    4k = 4,096             K, M: 1,024 and its powers, as context lengths are named
size      12GiB, 12Gi, 500MB     bytes; KB is 1,000 and KiB 1,024
"""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, Union

import msgspec

from packline.errors import RecipeError

Kind = Literal["count", "length", "size"]

THOUSANDS = {"K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}
BINARY = {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
FACTORS: dict[Kind, dict[str, int]] = {
    "count": {"": 1} | THOUSANDS | BINARY,
    "length": {"": 1, "K": 2**10, "M": 2**20} | BINARY,
    "size": {"": 1} | THOUSANDS | BINARY | {"B": 1},
}
EXAMPLES: dict[Kind, str] = {
    "count": "for example 20000, 20_000, 20k, 1.5M or 2B",
    "length": "for example 4096, 4_096 or 4k, which is 4,096",
    "size": "for example 4GiB or 512MB",
}
LENGTHS = ("seq_len", "split_to", "batch_tokens", "min_tokens", "max_tokens", "max_seq_len", "vocab_size")
"""Settings whose k is 1,024."""

_NUMBER = re.compile(r"([+-]?\d{1,3}(?:,\d{3})+|[+-]?\d+(?:_\d+)*(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)


def parse_bytes(text: str) -> int:
    """Parse a size in bytes."""
    return _parse(text, "size")


def parse_count(text: str) -> int:
    """Parse a number of things."""
    return _parse(text, "count")


def parse_length(text: str) -> int:
    """Parse a number of tokens in a row, a document or a vocabulary."""
    return _parse(text, "length")


def _parse(text: str, kind: Kind) -> int:
    word = text.strip()
    match = _NUMBER.fullmatch(word)
    unit = match[2].upper() if match else ""
    if kind == "size" and len(unit) > 1:
        unit = unit.removesuffix("B")
    factor = FACTORS[kind].get(unit)
    if match is None or factor is None:
        what = "a size" if kind == "size" else "a number"
        raise RecipeError(f"{text!r} is not {what}", hint=EXAMPLES[kind])
    whole, _, fraction = match[1].replace(",", "").replace("_", "").partition(".")
    value = int(whole) * factor
    if fraction:
        value += int(fraction) * factor // 10 ** len(fraction)
        if kind != "size" and int(fraction) * factor % 10 ** len(fraction):
            raise RecipeError(f"{text!r} is not a whole number", hint=EXAMPLES[kind])
    return value


def read_number(name: str, value: int | float | str) -> int:
    """Whole number of a setting that may be text."""
    kind = _kind_of(name)
    if isinstance(value, str):
        try:
            return _parse(value, kind)
        except RecipeError as error:
            raise RecipeError(f"{name}: {error.message}", hint=error.hint) from None
    if isinstance(value, bool) or value != value // 1:
        raise RecipeError(f"{name}: {value!r} is not a whole number", hint=EXAMPLES[kind])
    return int(value)


def read_quantities(table: Mapping[str, Any], kind: type[msgspec.Struct], where: str) -> dict[str, Any]:
    """Table of a TOML file with numbers in place of texts such as "4k", where its Struct expects integers.

    Fields that may be text keep it. A name that ends in `_bytes` is a size, one in `LENGTHS` a length.
    """
    numbers = dict(table)
    for name in _integers(kind):
        if isinstance(text := table.get(name), str):
            try:
                numbers[name] = read_number(name, text)
            except RecipeError as error:
                raise RecipeError(f"{where}: {error.message}", hint=error.hint) from None
    return numbers


def _kind_of(name: str) -> Kind:
    return "size" if name.endswith("_bytes") else "length" if name in LENGTHS else "count"


@lru_cache
def _integers(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Fields of a Struct that hold integers and no text."""
    found = []
    for name, hint in typing.get_type_hints(kind).items():
        kinds = typing.get_args(hint) if typing.get_origin(hint) in (Union, UnionType) else (hint,)
        literals = any(typing.get_origin(one) is Literal for one in kinds)
        if int in kinds and str not in kinds and not literals:
            found.append(name)
    return tuple(found)
