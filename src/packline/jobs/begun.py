"""Plan of a build that has begun: all that is needed to go on with it, or to read it, before it is finished.

    .packline/plan.zst     recipe, tokenizer, inputs with their states, planned units (msgpack, zstd)

It is written once, by the first process that plans, and read by all others: processes that join the build,
readers that follow it, and `finish`, which therefore needs no input. Together with the receipts it describes
the part of the store that exists. A million units take a few megabytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from packline.errors import CorruptStore, StoreError
from packline.fingerprint import hash_value
from packline.jobs.unit_table import Stream, UnitTable
from packline.recipe import Recipe, is_limited
from packline.sources.files import InputFile
from packline.storage.protocol import Storage
from packline.store.ledger import source_names
from packline.store.manifest import WORK, ImportEntry, StreamReceipt, TokenizerEntry
from packline.store.tables import InputEntry
from packline.store.unit_names import planned_name

PLAN = "plan.zst"
DIGITS = 12
LEVEL = 3


class PlannedUnit(msgspec.Struct, frozen=True, gc=False):
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
    units: UnitTable
    files: list[InputFile] = []
    """Inputs, in the state in which the first run found them."""
    imported: ImportEntry | None = None
    """Format and options of an import; None for a build of text."""
    input_format: str = ""
    """Format of the inputs in the manifest, if it is not the files' own."""

    def planned(self) -> Iterator[PlannedUnit]:
        """Units and streams, in the order of the documents."""
        names, sources = source_names(self.recipe), self.units.columns["source"].tolist()
        for name, source, stream in zip(
            self.units.names(), sources, self.units.is_stream.tolist(), strict=True
        ):
            yield PlannedUnit(name, names[source], stream)

    def inputs(self) -> Iterator[InputEntry]:
        """Inputs for the manifest, without checksums."""
        return input_entries(self.recipe, self.files, self.input_format)


class UnitCount:
    """Number of units in all, as far as it is known: that of a stream's units is, at its end.

    Args:
        begun: the plan.
        units: names of committed units.
        streams: streams that were read to their end.
    """

    def __init__(self, begun: BegunBuild, units: Iterable[str], streams: Mapping[str, StreamReceipt]) -> None:
        is_stream = begun.units.is_stream
        self._is_limited = is_limited(begun.recipe)
        self._expected = {
            unit.name: unit.slices()
            for unit in begun.units.at(is_stream.nonzero()[0])
            if isinstance(unit, Stream)
        }
        self._slices: Counter[str] = Counter()
        self.total = int((~is_stream).sum()) + sum(self._expected.values())
        for name, end in streams.items():
            self.end(name, end.units)
        for name in units:
            self.add(name)

    @property
    def is_exact(self) -> bool:
        """False while a stream has not been read to its end, and if a limit may end the build early."""
        return not self._expected and not self._is_limited

    def add(self, unit: str) -> None:
        """Count a committed unit: a stream may have more than expected."""
        if (expected := self._expected.get(stream := planned_name(unit))) is not None:
            self._slices[stream] += 1
            self.total += self._slices[stream] > expected

    def end(self, stream: str, units: int) -> None:
        """Take over the number of units of a stream."""
        self.total += units - max(self._expected.pop(stream, units), self._slices[stream])


def input_entries(recipe: Recipe, files: Iterable[InputFile], format: str) -> Iterator[InputEntry]:
    """Inputs for the manifest, without checksums.

    Args:
        format: format of all of them, if it is not the files' own.
    """
    names = source_names(recipe)
    for file in files:
        name = names[file.source]
        if format:
            yield InputEntry(name, file.name, file.size, format, "", "", "")
        else:
            yield InputEntry(name, file.name, file.size, file.format, file.compression, file.text, "")


def build_mark(recipe: Recipe, tokenizer: str, inputs: Iterable[tuple[str, str, int]]) -> str:
    """Hash of what is known of a store before it is built.

    Args:
        recipe: the recipe.
        tokenizer: fingerprint of the tokenizer.
        inputs: source, name and bytes of each input.
    """
    return hash_value([recipe, tokenizer, sorted(inputs)])[:DIGITS]


def record_begun(storage: Storage, begun: BegunBuild) -> BegunBuild:
    """Record the plan of a build; the recorded one, if another process was first."""
    import zstandard

    if (there := read_begun(storage)) is not None:
        return there
    data = zstandard.ZstdCompressor(LEVEL).compress(msgspec.msgpack.encode(begun, enc_hook=_pack))
    try:
        storage.put_new(f"{WORK}/{PLAN}", data)
    except StoreError:
        if (there := read_begun(storage)) is None:
            raise
        return there
    return begun


def read_begun(storage: Storage) -> BegunBuild | None:
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
        return msgspec.msgpack.decode(packed, type=BegunBuild, dec_hook=_unpack)
    except (msgspec.MsgspecError, zstandard.ZstdError, UnicodeDecodeError, ValueError) as error:
        raise CorruptStore(
            f"{storage.place}: {WORK}/{PLAN} is damaged: {error}",
            hint=f"remove {storage.place} and build again",
        ) from error


def _pack(table: UnitTable) -> dict[str, Any]:
    return table.packed()


def _unpack(kind: type[UnitTable], values: dict[str, Any]) -> UnitTable:
    return kind.unpacked(values)
