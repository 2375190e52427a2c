"""Plan of a job: its units, and for a store all that they have in common.

It is written once, by the first process that plans, and read by processes that join the build, readers that
follow it, and `finish`. A million units take a few megabytes in the file, and 300 in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from packline.errors import CorruptStore, StoreError
from packline.fingerprint import hash_value
from packline.recipe import Recipe, is_limited
from packline.sources.files import InputFile
from packline.sources.reader import Span
from packline.storage.results import WORK, Storage
from packline.store.manifest import StreamReceipt, TokenizerEntry

PLAN = "plan.zst"
DIGITS = 12
LEVEL = 3
T = TypeVar("T")


class Unit(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Work that is run and resumed as a whole; a function of the inputs alone."""

    name: str
    """Unique within a job."""
    number: int = 0
    """Place in the plan."""
    source: int = 0
    spans: tuple[Span, ...] = ()
    """Parts of files, to be read in order, all of one source."""
    text_bytes: int = 0
    """Bytes of text, as far as known in advance."""
    slice_bytes: int = 0
    """Text of a slice, if the unit is a file that is committed slice by slice (`sources.slices`); else 0."""
    lane: int = 0
    lanes: int = 1
    """Number of units that read the same file: this one commits every `lanes`-th slice, from `lane` on."""
    max_documents: int | None = None
    """Stop after this many documents."""
    max_tokens: int | None = None
    """Stop before the document that would bring the tokens above this."""

    @classmethod
    def of(cls, number: int) -> Unit:
        """Unit that is named after its number, of a job without files."""
        return cls(f"{number:06d}", number)

    def slice_name(self, number: int) -> str:
        """Name under which a slice is committed."""
        return f"{self.name}-{number:06d}"

    @property
    def receipts(self) -> int:
        """Number of receipts that it is likely to have, without that of its end."""
        return max(-(-self.text_bytes // self.slice_bytes), 1) if self.slice_bytes else 1


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All that is needed to go on with a build, or to read it, before it is finished."""

    build: str
    """Identity of the build: see `build_mark`."""
    recipe: Recipe
    tokenizer: TokenizerEntry
    """The tokenizer; `round_trip` is empty, since it is measured later."""
    dtype: str
    units: list[Unit]
    """Planned units, in the order of the documents."""
    files: list[InputFile] = []
    """Inputs, in the state in which the first run found them."""


def count_units(plan: Plan, ends: Mapping[str, StreamReceipt]) -> tuple[int, bool]:
    """Number of units in all, and whether it is exact: no limit, and all slices were read."""
    total, is_exact = 0, not is_limited(plan.recipe)
    for unit in plan.units:
        known = unit.name in ends or not unit.slice_bytes
        total += ends[unit.name].units if unit.name in ends else unit.receipts
        is_exact = is_exact and known
    return total, is_exact


def build_mark(recipe: Recipe, tokenizer: str, inputs: Iterable[tuple[str, str, int]]) -> str:
    """Hash of what is known of a store before it is built; inputs by source, name and bytes."""
    return hash_value([recipe, tokenizer, sorted(inputs)])[:DIGITS]


def record_plan(storage: Storage, plan: Plan) -> Plan:
    """Record the plan of a build; the recorded one, if another process was first."""
    if (there := read_plan(storage)) is None:
        try:
            storage.put_new(f"{WORK}/{PLAN}", pack(plan))
        except StoreError:
            if (there := read_plan(storage)) is None:
                raise
    return there or plan


def read_plan(storage: Storage) -> Plan | None:
    """Plan of the build in a storage; None if none has begun, or it has ended."""
    try:
        return read_packed(storage, f"{WORK}/{PLAN}", Plan)
    except (FileNotFoundError, NotADirectoryError):
        return None


def pack(value: msgspec.Struct) -> bytes:
    """A value as it is recorded: msgpack, compressed; the same bytes for equal values."""
    import zstandard

    return zstandard.ZstdCompressor(LEVEL, write_checksum=True).compress(msgspec.msgpack.encode(value))


def read_packed(storage: Storage, name: str, kind: type[T]) -> T:
    """Value of a record; a damaged one is a `CorruptStore`."""
    import zstandard

    data = storage.read(name)
    try:
        return msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(data), type=kind)
    except (msgspec.MsgspecError, zstandard.ZstdError, UnicodeDecodeError, ValueError) as error:
        raise CorruptStore(
            f"{storage.place}: {name} is damaged: {error}", hint=f"remove {storage.place} and build again"
        ) from error
