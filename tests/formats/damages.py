"""Damage to a file of a data set, by its name in the folder: what tables of damage are made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path], object]


def rewritten(name: str, make: Callable[[bytes], bytes]) -> Damage:
    """Another content made from the present one; a file that may be a link into a store is replaced."""

    def damage(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).unlink()
        (folder / name).write_bytes(make(data))

    return damage


def change(name: str, at: int, new: bytes) -> Damage:
    """Other bytes at a place."""
    return rewritten(name, lambda data: data[:at] + new + data[at + len(new) :])


def cut(name: str, size: int) -> Damage:
    """The first bytes alone, or all but the last ones where it is negative."""
    return rewritten(name, lambda data: data[:size])


def more(name: str, new: bytes = b"\0") -> Damage:
    """Bytes behind the last one."""
    return rewritten(name, lambda data: data + new)


def flip(name: str) -> Damage:
    """The first bit turned over."""
    return rewritten(name, lambda data: bytes([data[0] ^ 1]) + data[1:])


def written(name: str, new: bytes) -> Damage:
    """Another content."""
    return rewritten(name, lambda _: new)


def remove(name: str) -> Damage:
    """No file."""
    return lambda folder: (folder / name).unlink()
