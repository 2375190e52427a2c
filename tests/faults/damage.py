"""Damage to a folder's files: one at a time, of a known kind, the same for the same seed.

    bit, byte        one flipped bit; one byte of another value
    truncate         the end of the file is missing
    append           bytes after its end
    zero             a range of zeros, as a hole after a crash leaves it
    delete           the file is missing
    swap             two files with each other's bytes
    symlink          a link to an equal file outside the folder in place of the file
    fifo             a pipe in place of the file: whoever opens it waits for ever
    stray            a file that nobody wrote, with a name like its neighbour's

Every damage changes the folder. A file is replaced and never written in place, so the folder may consist of
hard links: `link_copy` makes such a copy without copying bytes.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

KINDS = ("bit", "byte", "truncate", "append", "zero", "delete", "swap", "symlink", "fifo", "stray")


class Damage(NamedTuple):
    """One damage that was done."""

    kind: str
    file: str
    """Name within the folder; of a stray, its own."""
    detail: str
    """Offset in the file, or name of the other file."""

    def __str__(self) -> str:
        return f"{self.kind} of {self.file} {self.detail}".rstrip()


def files_of(folder: Path) -> list[str]:
    """Names of all files in a folder and those below it, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def link_copy(folder: Path, to: Path) -> Path:
    """A copy of a folder whose files are hard links to the first one's."""
    for name in files_of(folder):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        os.link(folder / name, to / name)
    return to


def damage(
    folder: Path, seed: int, *, kinds: Sequence[str] = KINDS, files: Sequence[str] | None = None
) -> Damage:
    """Do one damage to one file of a folder.

    Args:
        folder: its files must not be damaged yet.
        seed: decides kind, file and place.
        kinds: to choose from.
        files: names within the folder to choose from; None for all.

    Returns:
        The damage. An append where the chosen kind changes nothing: an empty file has no bit to flip.
    """
    rng = random.Random(seed)
    kind = rng.choice(kinds)
    name = rng.choice(files_of(folder) if files is None else files)
    path = folder / name
    data = path.read_bytes()
    size = len(data)
    if kind in ("bit", "byte", "truncate", "zero") and not data.strip(b"\0" if kind == "zero" else b""):
        kind = "append"
    if kind == "bit":
        at, bit = rng.randrange(size), rng.randrange(8)
        _replace(path, data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
        return Damage(kind, name, f"{bit} of byte {at} of {size}")
    if kind == "byte":
        at = rng.randrange(size)
        value = (data[at] + rng.randrange(1, 256)) % 256
        _replace(path, data[:at] + bytes([value]) + data[at + 1 :])
        return Damage(kind, name, f"{at} of {size}: {data[at]} became {value}")
    if kind == "truncate":
        left = rng.choice((0, size - 1, rng.randrange(size)))
        _replace(path, data[:left])
        return Damage(kind, name, f"from {size} to {left} bytes")
    if kind == "append":
        more = rng.randbytes(rng.choice((1, 2, 8, 4096)))
        _replace(path, data + more)
        return Damage(kind, name, f"by {len(more)} bytes")
    if kind == "zero":
        at = rng.choice([place for place in (rng.randrange(size) for _ in range(64)) if data[place]] or [-1])
        at = at if at >= 0 else next(place for place in range(size) if data[place])
        stop = min(size, at + rng.choice((1, 8, 512, 4096)))
        _replace(path, data[:at] + bytes(stop - at) + data[stop:])
        return Damage(kind, name, f"bytes {at} to {stop} of {size}")
    if kind == "delete":
        path.unlink()
        return Damage(kind, name, "")
    if kind == "swap":
        others = [other for other in files_of(folder) if (folder / other).read_bytes() != data]
        other = rng.choice([one for one in others if _ending(one) == _ending(name)] or others)
        theirs = (folder / other).read_bytes()
        _replace(folder / other, data)
        _replace(path, theirs)
        return Damage(kind, name, f"with {other}")
    if kind == "symlink":
        outside = folder.parent / f"{folder.name}-outside"
        outside.mkdir(exist_ok=True)
        target = outside / path.name
        target.write_bytes(data)
        path.unlink()
        path.symlink_to(target)
        return Damage(kind, name, f"to {target}")
    if kind == "fifo":
        path.unlink()
        os.mkfifo(path)
        return Damage(kind, name, "")
    assert kind == "stray", kind
    stem, ending = path.name[: len(path.name) - len(_ending(name))], _ending(name)
    stray = path.with_name(f"{stem}9{ending}")
    stray.write_bytes(data)
    return Damage(kind, stray.relative_to(folder).as_posix(), "")


def _ending(name: str) -> str:
    """All suffixes of a file's name: `.docs.parquet`."""
    return "".join(Path(name).suffixes)


def _replace(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)
