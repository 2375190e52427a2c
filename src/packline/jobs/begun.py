"""Record of a build that has begun: what a reader needs to know before there is a manifest.

    DIR/.packline/plan.json     recipe, tokenizer, dtype, and the planned units in the order of the documents

Like the units, it is a function of the inputs alone: a resumed build writes the same record. Together with
the receipts it describes the part of the store that exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from packline.errors import CorruptStore
from packline.fingerprint import hash_value
from packline.recipe import Recipe
from packline.storage.local import publish_bytes
from packline.store.manifest import WORK, TokenizerEntry, to_json

PLAN = "plan.json"
DIGITS = 12


class PlannedUnit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A unit, or a stream, whose slices are units."""

    name: str
    source: str
    """Name of the source."""
    is_stream: bool = False


class BegunBuild(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of the record."""

    build: str
    """Identity of the build: see `build_mark`."""
    recipe: Recipe
    tokenizer: TokenizerEntry
    """The tokenizer; `round_trip` is empty, since it is measured later."""
    dtype: str
    units: tuple[PlannedUnit, ...]


def build_mark(recipe: Recipe, tokenizer: str, inputs: Iterable[tuple[str, str, int]]) -> str:
    """Hash of what is known of a store before it is built.

    Args:
        recipe: the recipe.
        tokenizer: fingerprint of the tokenizer.
        inputs: source, name and bytes of each input.
    """
    return hash_value([recipe, tokenizer, sorted(inputs)])[:DIGITS]


def record_begun(folder: Path, begun: BegunBuild) -> None:
    """Write the record of a build into the folder of its store."""
    publish_bytes(folder / WORK / PLAN, to_json(begun))


def read_begun(folder: Path) -> BegunBuild | None:
    """Record of the build in a folder; None if none has begun, or it has ended.

    Raises:
        CorruptStore: the record is damaged.
    """
    path = folder / WORK / PLAN
    try:
        return msgspec.json.decode(path.read_bytes(), type=BegunBuild)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptStore(f"{path} is damaged: {error}", hint=f"remove {folder} and build again") from error
