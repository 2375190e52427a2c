"""Plan of a job: its units, and for a store all that they have in common.

    .packline/plan.zst     recipe, tokenizer, inputs with their states, planned units (msgpack, zstd)

It is written once, by the first process that plans, and read by all others: processes that join the build,
readers that follow it, and `finish`, which therefore needs no input. Together with the receipts it describes
the part of the store that exists. A million units take a few megabytes here, and 300 in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from packline.errors import CorruptStore, StoreError
from packline.fingerprint import hash_value
from packline.recipe import Recipe, is_limited
from packline.sources.files import InputFile
from packline.sources.reader import Span
from packline.storage.protocol import Storage
from packline.storage.publication import WORK
from packline.store.manifest import StreamReceipt, TokenizerEntry
from packline.store.naming import planned_name

PLAN = "plan.zst"
DIGITS = 12
LEVEL = 3


class Unit(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Work that is run and resumed as a whole; a function of the inputs alone.

    >>> Unit("web-000007", 7, slice_bytes=1 << 20).slice_name(2)
    'web-000007-000002'
    """

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
        """Unit that is named after its number, of a job without files.

        >>> Unit.of(7).name
        '000007'
        """
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


class UnitCount:
    """Number of units in all, as far as it is known: that of a stream's units is, at its end.

    Args:
        plan: the plan.
        units: names of committed units.
        streams: streams that were read to their end.
    """

    def __init__(self, plan: Plan, units: Iterable[str], streams: Mapping[str, StreamReceipt]) -> None:
        self._is_limited = is_limited(plan.recipe)
        self._expected = {unit.name: unit.receipts for unit in plan.units if unit.slice_bytes}
        self._slices: Counter[str] = Counter()
        self.total = len(plan.units) - len(self._expected) + sum(self._expected.values())
        for name, end in streams.items():
            self.end(name, end.units)
        for name in units:
            self.add(name)

    @property
    def is_exact(self) -> bool:
        """False while a stream has not been read to its end, and if a limit may end the build early."""
        return not self._expected and not self._is_limited

    def add(self, unit: str) -> bool:
        """Count a committed unit; True if it is one more than expected, of a stream."""
        if (expected := self._expected.get(stream := planned_name(unit))) is None:
            return False
        self._slices[stream] += 1
        is_more = self._slices[stream] > expected
        self.total += is_more
        return is_more

    def end(self, stream: str, units: int) -> None:
        """Take over the number of units of a stream."""
        self.total += units - max(self._expected.pop(stream, units), self._slices[stream])


def build_mark(recipe: Recipe, tokenizer: str, inputs: Iterable[tuple[str, str, int]]) -> str:
    """Hash of what is known of a store before it is built.

    Args:
        recipe: the recipe.
        tokenizer: fingerprint of the tokenizer.
        inputs: source, name and bytes of each input.
    """
    return hash_value([recipe, tokenizer, sorted(inputs)])[:DIGITS]


def record_plan(storage: Storage, plan: Plan) -> Plan:
    """Record the plan of a build; the recorded one, if another process was first."""
    import zstandard

    if (there := read_plan(storage)) is not None:
        return there
    data = zstandard.ZstdCompressor(LEVEL).compress(msgspec.msgpack.encode(plan))
    try:
        storage.put_new(f"{WORK}/{PLAN}", data)
    except StoreError:
        if (there := read_plan(storage)) is None:
            raise
        return there
    return plan


def read_plan(storage: Storage) -> Plan | None:
    """Plan of the build in a storage; None if none has begun, or it has ended.

    Raises:
        CorruptStore: the record is damaged.
    """
    import zstandard

    try:
        data = storage.read(f"{WORK}/{PLAN}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        packed = zstandard.ZstdDecompressor().decompress(data)
        return msgspec.msgpack.decode(packed, type=Plan)
    except (msgspec.MsgspecError, zstandard.ZstdError, UnicodeDecodeError, ValueError) as error:
        raise CorruptStore(
            f"{storage.place}: {WORK}/{PLAN} is damaged: {error}",
            hint=f"remove {storage.place} and build again",
        ) from error
