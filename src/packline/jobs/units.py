"""Units: the inputs cut into pieces of work, as a function of the inputs alone.

    Unit    spans of one or many files: a range of a large file, or many small files together
    Stream  one file that cannot be split; its reader cuts it into units as it reads

A unit is about 1/32 of all inputs, between 4 and 256 MB of text: small enough to keep all cores busy and
to lose little work to an interruption, large enough to keep the number of shards low. Neither the machine
nor the number of workers matters, because each unit becomes a shard.

`prepare` inspects inputs and tokenizer, the cheapest checks first, and writes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import overload

import msgspec

from packline.encoders import EngineName
from packline.encoders.encoder import Encoder
from packline.encoders.special_tokens import Boundary, resolve_boundary
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import PacklineError
from packline.fingerprint import Hasher
from packline.jobs.resources import Room, count_workers, room_for, usable_memory
from packline.ragged import dtype_for
from packline.recipe import Recipe, RunOptions, check_options, check_recipe
from packline.sources.carried import Column
from packline.sources.fields import find_files
from packline.sources.files import InputFile
from packline.sources.reader import Span, read_span
from packline.storage.inputs import open_input
from packline.store.ledger import source_names

SMALLEST_UNIT, LARGEST_UNIT = 4 << 20, 256 << 20
LARGEST_SLICE = 64 << 20
"""Maximum bytes of a slice; slices wait on disk for their encoder, so they are smaller than units."""
UNITS_IN_ALL = 32
COMPRESSION_GUESS = 4
FILES_A_UNIT = 4096
SAMPLE_FILES, SAMPLE_DOCUMENTS = 8, 12
LARGEST_SAMPLE = 16 << 20
"""Maximum bytes of a document for trying engines."""


class Unit(msgspec.Struct, frozen=True):
    """Spans to be encoded together, in order, all of one source."""

    name: str
    source: int
    spans: tuple[Span, ...]
    text_bytes: int
    """Bytes of text, as far as known in advance."""


class Stream(msgspec.Struct, frozen=True):
    """A file to be cut into units while it is read; their names are `NAME-000000` and so on."""

    name: str
    source: int
    file: int
    slice_bytes: int
    text_bytes: int

    def unit_name(self, number: int) -> str:
        """Name of the unit with this number."""
        return f"{self.name}-{number:06d}"


def plan_units(recipe: Recipe, files: list[InputFile]) -> list[Unit | Stream]:
    """Plan all work, in the order of the documents."""
    sizes = [_FileSize(file) for file in files]
    unit_bytes = max(SMALLEST_UNIT, min(sum(size.text for size in sizes) // UNITS_IN_ALL, LARGEST_UNIT))
    work: list[Unit | Stream] = []
    held: list[Span] = []
    held_bytes = 0

    def name() -> str:
        return f"{len(work):06d}"

    def flush(source: int) -> None:
        nonlocal held, held_bytes
        if held:
            work.append(Unit(name(), source, tuple(held), held_bytes))
            held, held_bytes = [], 0

    source = 0
    for file, size in zip(files, sizes, strict=True):
        if file.source != source:
            flush(source)
            source = file.source
        if size.text <= unit_bytes:
            if held and (held_bytes + size.text > unit_bytes or len(held) == FILES_A_UNIT):
                flush(source)
            held.append(Span(file.index, 0, size.end))
            held_bytes += size.text
        elif _must_stream(file, recipe, size, unit_bytes):
            flush(source)
            slice_bytes = min(unit_bytes, LARGEST_SLICE)
            work.append(Stream(name(), source, file.index, slice_bytes, size.text))
        else:
            flush(source)
            for span, text_bytes in _split(file, recipe, size, unit_bytes):
                work.append(Unit(name(), source, (span,), text_bytes))
    flush(source)
    return work


class _FileSize:
    """Text bytes of a file, as far as known without reading it."""

    __slots__ = ("end", "groups", "text")

    def __init__(self, file: InputFile) -> None:
        self.groups: Sequence[int] = ()
        self.end = file.size
        self.text = file.size * (COMPRESSION_GUESS if file.compression else 1)
        if file.format == "parquet":
            self.groups = _row_groups(file)
            self.end = len(self.groups)
            self.text = sum(self.groups)


def _row_groups(file: InputFile) -> list[int]:
    """Uncompressed bytes of the wanted columns in each row group."""
    from packline.sources.parquet import open_parquet

    def wanted(path: str) -> bool:
        return path.partition(".")[0] in file.columns if file.columns else path == file.text

    with open_input(file.path) as raw:
        metadata = open_parquet(raw, file.path).metadata
        sizes = []
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            columns = [group.column(place) for place in range(group.num_columns)]
            sizes.append(
                sum(column.total_uncompressed_size for column in columns if wanted(column.path_in_schema))
            )
        return sizes


def _must_stream(file: InputFile, recipe: Recipe, size: _FileSize, unit_bytes: int) -> bool:
    source = recipe.sources[file.source]
    if file.format == "json" or (file.format == "text" and source.documents == "file"):
        return False  # one document, or one array
    if file.format == "parquet":
        return max(size.groups) > 2 * unit_bytes
    # Separators may overlap themselves, so where one begins depends on all text before it.
    return bool(file.compression) or (file.format == "text" and source.documents == "separator")


def _split(file: InputFile, recipe: Recipe, size: _FileSize, unit_bytes: int) -> Iterator[tuple[Span, int]]:
    source = recipe.sources[file.source]
    if file.format == "json" or (file.format == "text" and source.documents == "file"):
        yield Span(file.index, 0, size.end), size.text
    elif file.format == "parquet":
        start = held = 0
        for group, text_bytes in enumerate(size.groups):
            if held and held + text_bytes > unit_bytes:
                yield Span(file.index, start, group), held
                start, held = group, 0
            held += text_bytes
        yield Span(file.index, start, size.end), held
    else:
        pieces = -(-size.text // unit_bytes)
        cuts = [size.end * piece // pieces for piece in range(pieces + 1)]
        for start, stop in itertools.pairwise(cuts):
            yield Span(file.index, start, stop), stop - start


class UnitSettings(msgspec.Struct, frozen=True):
    """Settings common to all units of a build."""

    recipe: Recipe
    files: list[InputFile]
    strict: bool
    room: Room = Room()

    def carried(self, source: int) -> tuple[Column, ...]:
        """Columns that a source carries; its files have the same."""
        return next((file.carried or () for file in self.files if file.source == source), ())


@dataclass
class Work:
    """A build before it begins."""

    recipe: Recipe
    options: RunOptions
    files: list[InputFile]
    tokenizer: Tokenizer
    boundary: Boundary
    units: list[Unit | Stream] = field(default_factory=list)
    room: Room = field(default_factory=Room)

    @cached_property
    def names(self) -> list[str]:
        """Names of the sources."""
        return source_names(self.recipe)

    @property
    def dtype(self) -> str:
        """Dtype of the tokens."""
        return dtype_for(self.tokenizer.vocab_size).name

    @property
    def settings(self) -> UnitSettings:
        """Settings common to the units."""
        return UnitSettings(self.recipe, self.files, self.options.strict, self.room)

    @property
    def source_bytes(self) -> dict[str, int]:
        """Expected text bytes of each source."""
        expected = dict.fromkeys(self.names, 0)
        for unit in self.units:
            expected[self.names[unit.source]] += unit.text_bytes
        return expected


def prepare(recipe: Recipe, options: RunOptions) -> Work:
    """Inspect inputs and tokenizer; write nothing.

    Raises:
        RecipeError, InputError, TokenizerError: errors that would stop the build.
    """
    check_recipe(recipe)
    check_options(options)
    files = find_files(recipe)
    tokenizer = load_tokenizer(recipe.tokenizer, recipe.encoding)
    boundary = resolve_boundary(tokenizer, recipe.eod, recipe.bos)
    units = plan_units(recipe, files)
    return Work(recipe, options, files, tokenizer, boundary, units)


def load_encoder(work: Work) -> Encoder:
    """Load the encoder of a build.

    Raises:
        TokenizerError: the requested engine does not support this tokenizer.
    """
    return Encoder(
        work.tokenizer,
        engine=work.options.engine,
        parse_special_tokens=work.recipe.special_tokens == "parse",
        boundary=work.boundary,
    )


def set_room(work: Work, engines: Iterable[EngineName], base: int) -> None:
    """Set the maximum size of a document, and refuse files that are known to be larger.

    If no memory limit is set, a document may use all of the machine's memory per worker.

    Args:
        engines: engines that will encode.
        base: bytes that a worker holds before its first document.

    Raises:
        OutOfMemory: a file that is one document does not fit.
    """
    options = work.options
    each = (options.memory_bytes or int(usable_memory() * 0.8)) // max(count_workers(options)[0], 1)
    room = work.room = room_for(each, base, engines)
    for file in work.files:
        one = file.format == "text" and work.recipe.sources[file.source].documents == "file"
        if one and not file.compression and room.document < file.size <= work.recipe.max_document_bytes:
            room.refuse(file.path, file.size)


class SampleTexts(Sequence[str]):
    """A few documents from files spread over the inputs, to try engines on; read when first used."""

    def __init__(self, work: Work) -> None:
        self._work = work

    @cached_property
    def _texts(self) -> list[str]:
        files = self._work.files
        chosen = files[:: max(len(files) // SAMPLE_FILES, 1)][:SAMPLE_FILES]
        return [text for file in chosen for text in _first_texts(file, self._work)]

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        return self._texts[place]


def _first_texts(file: InputFile, work: Work) -> Iterator[str]:
    span = Span(file.index, 0, 1 if file.format == "parquet" else file.size)
    source = work.recipe.sources[file.source]
    limit = min(work.recipe.max_document_bytes, LARGEST_SAMPLE)
    try:
        batches = read_span(file, source, span, limit, Hasher())
        batch = next((batch for batch in batches if len(batch)), None)
    except (PacklineError, OSError):
        return
    if batch is not None:
        step = max(len(batch) // SAMPLE_DOCUMENTS, 1)
        yield from [text for text in batch.texts.to_list()[::step] if text][:SAMPLE_DOCUMENTS]
