"""A build of text before it begins: inputs, tokenizer and settings, checked once and sent to workers."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from typing import Any

import msgspec

from packline.encoders import LITTLE_TEXT, EngineName
from packline.encoders.encoder import Encoder
from packline.encoders.engines import Encodable, fast_engine
from packline.encoders.special_tokens import Boundary, resolve_boundary
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import PacklineError
from packline.fingerprint import Hasher
from packline.jobs.cut_inputs import expected_text, is_one_document, plan_units, target_bytes
from packline.jobs.folder import StoreOpening
from packline.jobs.job import Runner
from packline.jobs.plan import Unit
from packline.jobs.resources import ENCODING, LEAST, READING, Room, count_workers, usable_memory
from packline.ragged import dtype_for
from packline.recipe import Recipe, RunOptions, check_options, check_recipe
from packline.settings import as_written, tokenizer_of
from packline.sources.carried import Column
from packline.sources.fields import find_files, pin_recipe
from packline.sources.files import InputFile
from packline.sources.reader import Span, read_span
from packline.store.ledger import source_names

SAMPLE_FILES, SAMPLE_DOCUMENTS = 8, 12
LARGEST_SAMPLE = 16 << 20
"""Maximum bytes of a document for trying engines."""


class TextBuild(StoreOpening, msgspec.Struct, dict=True):
    """A build of text: what all its units have in common, made once and sent to workers as it is."""

    recipe: Recipe
    options: RunOptions
    files: list[InputFile]
    tokenizer: Tokenizer
    boundary: Boundary
    units: list[Unit] = []
    """Planned units; workers get none of them in advance."""
    loaded: Encodable | None = None
    """See `encodable`."""
    fingerprint: str = ""
    """Fingerprint of the tokenizer, which takes long to compute."""
    out: str = ""
    """Place of the store."""
    scratch: str = ""
    """Folder of finished units that the driver commits; empty if workers commit them."""

    def open(self) -> Runner[Any, Any]:
        from packline.jobs.text_unit import open_runner

        return open_runner(self)

    @cached_property
    def names(self) -> list[str]:
        return source_names(self.recipe)

    @property
    def encodable(self) -> Encodable:
        self.loaded = self.loaded or Encodable.of_tokenizer(
            self.tokenizer, parse=self.recipe.special_tokens == "parse"
        )
        return self.loaded

    @property
    def text_bytes(self) -> int:
        """Bytes of text, as far as known without reading it."""
        return sum(map(expected_text, self.files))

    @property
    def dtype(self) -> str:
        return dtype_for(self.tokenizer.vocab_size).name

    @property
    def source_bytes(self) -> dict[str, int]:
        sums = dict.fromkeys(self.names, 0)
        for unit in self.units:
            sums[self.names[unit.source]] += unit.text_bytes
        return sums

    @cached_property
    def carried(self) -> list[tuple[Column, ...]]:
        """Columns that each source carries; its files have the same."""
        found: dict[int, tuple[Column, ...]] = {}
        for file in self.files:
            found.setdefault(file.source, file.carried or ())
        return [found.get(source, ()) for source in range(len(self.names))]


def prepare(recipe: Recipe, options: RunOptions, *, here: bool = False) -> TextBuild:
    """Inspect inputs and tokenizer; write nothing.

    Args:
        here: the units run on this machine alone; little text is then encoded in this process.
    """
    check_recipe(recipe)
    check_options(options)
    recipe = pin_recipe(recipe)
    files = find_files(recipe)
    tokenizer = load_tokenizer(tokenizer_of(recipe), recipe.encoding)
    tokenizer = msgspec.structs.replace(tokenizer, name=recipe.tokenizer)
    recipe = as_written(recipe)
    boundary = resolve_boundary(tokenizer, recipe.eod, recipe.bos)
    build = TextBuild(recipe, options, files, tokenizer, boundary, plan_units(recipe, files))
    size = build.text_bytes
    # Little text is encoded by one process before others would have started.
    if (
        here
        and options.workers is None
        and size < LITTLE_TEXT
        and (size < target_bytes(0) or fast_engine(options.engine, build.encodable.features) is not None)
    ):
        build.options = msgspec.structs.replace(options, workers=0)
    return build


def load_encoder(build: TextBuild) -> Encoder:
    """Load the encoder of a build."""
    return Encoder(
        build.tokenizer,
        engine=build.options.engine,
        boundary=build.boundary,
        text_bytes=build.text_bytes,
        encodable=build.encodable,
    )


def room_of(build: TextBuild, engines: Iterable[EngineName], base: int) -> Room:
    """Maximum size of a document; refuse files that are known to be larger.

    If no memory limit is set, a document may use all of the machine's memory per worker.

    Args:
        base: bytes that a worker holds before its first document.
    """
    options, recipe = build.options, build.recipe
    each = (options.memory_bytes or int(usable_memory() * 0.8)) // max(count_workers(options)[0], 1)
    left, factor = each - base, max(ENCODING[name] for name in engines)
    room = Room(max(left // READING, LEAST), max(left // factor, LEAST), each, factor)
    for file in build.files:
        one = is_one_document(file, recipe.sources[file.source])
        if one and not file.compression and room.document < file.size <= recipe.max_document_bytes:
            room.refuse(file.path, file.size)
    return room


def sample_texts(build: TextBuild) -> list[str]:
    """A few documents from files spread over the inputs, to try engines on."""
    found: list[str] = []
    limit = min(build.recipe.max_document_bytes, LARGEST_SAMPLE)
    for file in build.files[:: max(len(build.files) // SAMPLE_FILES, 1)][:SAMPLE_FILES]:
        span = Span(file.index, 0, 1 if file.format == "parquet" else file.size)
        with suppress(PacklineError, OSError):
            batches = read_span(file, build.recipe.sources[file.source], span, limit, Hasher())
            texts = next((batch.texts.to_list() for batch in batches if len(batch)), [])
            step = max(len(texts) // SAMPLE_DOCUMENTS, 1)
            found += [text for text in texts[::step] if text][:SAMPLE_DOCUMENTS]
    return found
