"""Identity of a build: what must be equal to resume it, and how two builds differ."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow

from packline.errors import ResumeMismatch
from packline.fingerprint import Hasher
from packline.recipe import Recipe
from packline.sources.files import InputFile
from packline.store.manifest import FORMAT_VERSION
from packline.version import __version__


def versions() -> dict[str, str]:
    """Versions that decide the bytes of a store."""
    return {"packline": __version__, "store format": str(FORMAT_VERSION), "pyarrow": pyarrow.__version__}


class InputsDigest(msgspec.Struct, frozen=True):
    """Checksums of the list of inputs; the list itself is in the plan."""

    names: str
    """Checksum of the names and sizes."""
    states: str
    """Checksum of the times of modification."""


def digest_inputs(files: Iterable[InputFile]) -> InputsDigest:
    """Checksums of a list of inputs."""
    names, states = Hasher(), Hasher()
    for file in files:
        names.update(msgspec.msgpack.encode((file.source, file.name, file.size)))
        states.update(msgspec.msgpack.encode(file.modified))
    return InputsDigest(names.hexdigest(), states.hexdigest())


class BuildIdentity(msgspec.Struct, frozen=True):
    """Values that must be equal for a build to be resumed."""

    recipe: Recipe
    tokenizer: str
    """Fingerprint of the tokenizer."""
    boundary: dict[str, Any]
    inputs: InputsDigest
    planned_ns: int = 0
    """Time before the inputs were looked at by the first run."""
    versions: dict[str, str] = msgspec.field(default_factory=versions)


def input_differences(old: list[tuple[str, int]], new: list[tuple[str, int]]) -> list[str]:
    """Differences between two lists of inputs (name and size), one line each."""
    before, after = dict(old), dict(new)
    lines = [f"input {name} is gone" for name in before if name not in after]
    lines += [f"input {name} is new" for name in after if name not in before]
    lines += [
        f"input {name}: {size:,} bytes -> {after[name]:,} bytes"
        for name, size in before.items()
        if name in after and after[name] != size
    ]
    if not lines and old != new:
        lines.append("the order of the inputs")
    return lines


def refuse_differences(
    place: Path | str,
    differences: list[str],
    kind: str = "a build",
    hint: str = "repeat the earlier command to resume it, or choose another --out",
) -> None:
    """Raise `ResumeMismatch` if there are any differences.

    Args:
        kind: kind of job that the folder contains.
    """
    if differences:
        more = f"; and {len(differences) - 5} more" if len(differences) > 5 else ""
        raise ResumeMismatch(
            f"{place} holds {kind} of something else: {'; '.join(differences[:5])}{more}", hint=hint
        )
