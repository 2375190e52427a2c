"""Preparation of a build: inputs, tokenizer and folder, before the first document.

All refusals happen here, the cheapest checks first: settings, inputs, tokenizer, boundary tokens, folder.
Nothing has been written when one of the first four fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from packline.encoders import EngineName
from packline.encoders.boundary import Boundary, resolve_boundary
from packline.encoders.encoder import Encoder
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import PacklineError, ResumeMismatch
from packline.fingerprint import Hasher
from packline.jobs.folder import BuildFolder, BuildIdentity, refuse_differences
from packline.jobs.resources import GIB, MEMORY_A_WORKER, usable_cores, usable_memory
from packline.jobs.room import Room, room_for
from packline.jobs.unit import Job
from packline.jobs.units import Stream, Unit, plan_units
from packline.ragged import dtype_for
from packline.recipe import Recipe, RunOptions, check_options, check_recipe
from packline.sources.fields import find_files
from packline.sources.files import InputFile
from packline.sources.reader import Span, read_span
from packline.sources.slices import StreamEnd, cut_slices
from packline.store.ledger import source_names
from packline.store.manifest import Manifest, Receipt

SAMPLE_FILES, SAMPLE_DOCUMENTS = 8, 12
LARGEST_SAMPLE = 16 << 20
"""Maximum bytes of a document for trying engines."""
SMALLEST_WORKER = GIB // 2


@dataclass(slots=True)
class Work:
    """A build before it begins."""

    recipe: Recipe
    options: RunOptions
    files: list[InputFile]
    tokenizer: Tokenizer
    boundary: Boundary
    units: list[Unit | Stream]
    names: list[str]
    dtype: str
    val_share: float | msgspec.UnsetType = msgspec.UNSET
    """Value of val_fraction that `val_documents` amounts to."""
    room: Room = field(default_factory=Room)

    @property
    def job(self) -> Job:
        """Job shared by the units."""
        recipe = self.recipe
        if self.val_share is not msgspec.UNSET:
            recipe = msgspec.structs.replace(recipe, val_fraction=self.val_share)
        return Job(recipe, self.files, self.options.strict, self.room)

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
    dtype = dtype_for(tokenizer.vocab_size).name
    return Work(recipe, options, files, tokenizer, boundary, units, source_names(recipe), dtype)


def identity_of(work: Work) -> BuildIdentity:
    """Identity of a build."""
    boundary: dict[str, Any] = msgspec.to_builtins(work.boundary)
    return BuildIdentity(work.recipe, work.tokenizer.fingerprint, boundary, work.files)


def refuse_other_store(folder: BuildFolder, manifest: Manifest, work: Work) -> None:
    """Refuse to build into a finished store, unless it is the result of the same build.

    Raises:
        ResumeMismatch: with the difference.
    """
    from packline.jobs.folder import input_differences
    from packline.recipe import recipe_difference
    from packline.store.manifest import MANIFEST

    differences = recipe_difference(msgspec.to_builtins(manifest.recipe), msgspec.to_builtins(work.recipe))
    if manifest.tokenizer.fingerprint != work.tokenizer.fingerprint:
        differences.append("the tokenizer's content")
    differences += input_differences(
        [(entry.name, entry.bytes) for entry in manifest.inputs],
        [(file.name, file.size) for file in work.files],
    )
    built = (folder.path / MANIFEST).stat().st_mtime_ns
    differences += [
        f"input {file.path} was modified after the store was built"
        for file in work.files
        if file.modified.isdigit() and int(file.modified) > built
    ]
    refuse_differences(folder.path, differences)


def refuse_changed_inputs(
    folder: BuildFolder, earlier: BuildIdentity, work: Work, receipts: dict[str, Receipt]
) -> None:
    """Refuse to resume if a file that finished units have read has changed.

    A file with another modification time but the same checksums counts as unchanged.

    Raises:
        ResumeMismatch: with the files.
    """
    before = {file.index: file.modified for file in earlier.files}
    suspects = {file.index for file in work.files if before.get(file.index) != file.modified}
    changed = set()
    for receipt in receipts.values():
        source = work.recipe.sources[receipt.source]
        for piece in receipt.inputs:
            if piece.file in suspects:
                hasher = Hasher()
                span = Span(piece.file, piece.start, piece.stop)
                limit = work.recipe.max_document_bytes
                for _ in read_span(work.files[piece.file], source, span, limit, hasher):
                    pass
                if hasher.hexdigest() != piece.checksum:
                    changed.add(piece.file)
    streams, begun_streams = folder.streams(), {name.partition("-")[0] for name in receipts}
    for stream in work.units:
        if isinstance(stream, Stream) and stream.file in suspects:
            begun, whole = stream.name in begun_streams, streams.get(stream.name)
            # There is no checksum of a partly read stream to compare with.
            if begun and (whole is None or _stream_checksum(work, stream) != whole.checksum):
                changed.add(stream.file)
    if changed:
        paths = ", ".join(work.files[file].path for file in sorted(changed)[:5])
        raise ResumeMismatch(
            f"{folder.path} was begun with another state of {paths}: expected the content that it has read, "
            "found other content, or a compressed file that was modified",
            hint="put the earlier files back to go on, or choose another --out",
        )


def _stream_checksum(work: Work, stream: Stream) -> str:
    """Read a stream again to its end, without spilling slices."""
    pieces = cut_slices(
        work.files[stream.file],
        work.recipe.sources[stream.source],
        Path(),
        slice_bytes=stream.slice_bytes,
        max_document_bytes=work.recipe.max_document_bytes,
        skip=range(2**62),
    )
    return next(piece.checksum for piece in pieces if isinstance(piece, StreamEnd))


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


def sample_texts(work: Work) -> list[str]:
    """A few documents from files spread over the inputs, for trying engines."""
    step = max(len(work.files) // SAMPLE_FILES, 1)
    texts: list[str] = []
    for file in work.files[::step][:SAMPLE_FILES]:
        texts += _first_texts(file, work)
    return texts


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


def count_workers(options: RunOptions) -> tuple[int, int]:
    """Number of workers, and bytes of memory for each.

    >>> count_workers(RunOptions(workers=2, memory_bytes=2 << 30))
    (2, 1073741824)
    """
    available = options.memory_bytes or int(usable_memory() * 0.8)
    workers = options.workers if options.workers is not None else usable_cores()
    if options.workers is None:
        workers = max(1, min(workers, available // SMALLEST_WORKER))
    each = available // max(workers, 1)
    return workers, each if options.memory_bytes else min(each, MEMORY_A_WORKER)
