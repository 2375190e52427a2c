"""Preparation of a build: inputs, tokenizer and folder, before the first document.

All refusals happen here, the cheapest checks first: settings, inputs, tokenizer, boundary tokens, folder.
Nothing has been written when one of the first four fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import overload

from packline.encoders import EngineName
from packline.encoders.encoder import Encoder
from packline.encoders.special_tokens import Boundary, resolve_boundary
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import PacklineError
from packline.fingerprint import Hasher
from packline.jobs.resources import count_workers, usable_memory
from packline.jobs.room import Room, room_for
from packline.jobs.unit import UnitSettings
from packline.jobs.units import Stream, Unit, plan_units
from packline.ragged import dtype_for
from packline.recipe import Recipe, RunOptions, check_options, check_recipe
from packline.sources.fields import find_files
from packline.sources.files import InputFile
from packline.sources.reader import Span, read_span
from packline.store.ledger import source_names

SAMPLE_FILES, SAMPLE_DOCUMENTS = 8, 12
LARGEST_SAMPLE = 16 << 20
"""Maximum bytes of a document for trying engines."""


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
