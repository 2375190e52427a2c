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
    kind, name = rng.choice(kinds), rng.choice(files_of(folder) if files is None else files)
    path = folder / name
    data, ending = path.read_bytes(), _ending(name)
    size = len(data)
    if kind in ("bit", "byte", "truncate", "zero") and not data.strip(b"\0" if kind == "zero" else b""):
        kind = "append"
    if kind == "stray":
        stray = path.with_name(f"{path.name.removesuffix(ending)}9{ending}")
        stray.write_bytes(data)
        return Damage(kind, stray.relative_to(folder).as_posix(), "")
    at, other = rng.randrange(size) if size else 0, name
    path.unlink()
    if kind in ("bit", "byte"):
        value = data[at] ^ (1 << rng.randrange(8) if kind == "bit" else rng.randrange(1, 256))
        path.write_bytes(data[:at] + bytes([value]) + data[at + 1 :])
    elif kind == "truncate":
        path.write_bytes(data[: rng.choice((0, at, size - 1))])
    elif kind == "append":
        path.write_bytes(data + rng.randbytes(rng.choice((1, 2, 8, 4096))))
    elif kind == "zero":
        at = next(place for place in (at, *range(size)) if data[place])
        stop = min(size, at + rng.choice((1, 8, 512, 4096)))
        path.write_bytes(data[:at] + bytes(stop - at) + data[stop:])
    elif kind == "swap":
        others = [one for one in files_of(folder) if (folder / one).read_bytes() != data]
        other = rng.choice([one for one in others if _ending(one) == ending] or others)
        (folder / other).rename(path)
        (folder / other).write_bytes(data)
    elif kind == "symlink":
        target = folder.parent / f"{folder.name}-outside" / path.name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(data)
        path.symlink_to(target)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        assert kind == "delete", kind
    return Damage(kind, name, f"at {at} of {size} bytes" if other == name else f"with {other}")


def _ending(name: str) -> str:
    """All suffixes of a file's name: `.docs.parquet`."""
    return "".join(Path(name).suffixes)
