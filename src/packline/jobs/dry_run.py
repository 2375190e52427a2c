"""Dry run of a build on a sample: units made of ranges of a few files, written to a temporary folder.

    files of a source ── every n-th ──> beginning and middle of each ──> one unit ──> counts x size / sample

The units are run as in a build, so filters, templates, bad records and boundary tokens count as they will.
The rest of a sampled file is assumed to be like the range that was read, and other files like those that were
sampled. Per sampled file:

    plain       documents that begin in the ranges     x the file's size / bytes of the ranges
    compressed  those of its beginning                 x its size x expansion of its beginning / bytes read
    Parquet     those of the rows                      x the file's rows / rows read

Engines cache words, so the sample is run several times: the first run is as slow as the beginning of a build,
the last as fast as a long build of similar text.

Cost: `SAMPLE_BYTES` of text in all, a fraction of a second for each run.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from packline.encoders.encoder import Encoder
from packline.errors import EncoderMismatch, PacklineError
from packline.fingerprint import Hasher
from packline.jobs.plan import Unit
from packline.jobs.text_build import TextBuild
from packline.jobs.text_unit import TextRunner, UnitRun
from packline.recipe import Source
from packline.sources.batch import Batch, Texts
from packline.sources.compression import DecompressedStream
from packline.sources.files import InputFile
from packline.sources.reader import Span, read_span
from packline.store.ledger import Ledger
from packline.store.reencode_audit import spread_indices

SAMPLE_BYTES, REFERENCE_SAMPLE_BYTES = 4 << 20, 1 << 20
"""Bytes of (decompressed) input to sample, over all files; fewer with the reference, which is 100 times
slower."""
PASSES = 3
"""Runs of the sample: the first two include trials of each engine."""
LEAST_FILES, MOST_FILES = 12, 24
"""Number of files to sample per source: tiny files take longer to open than to read."""
LEAST_RANGE, ENOUGH_RANGE = 64 << 10, 1 << 20
MOST_RANGES = 8
STEP_BYTES = 32 << 10
EXPANSION_BYTES = 4 << 20
"""Bytes to read for the expansion: large compared with the block that a decompressor buffers."""
PROVENANCE = ".docs.parquet"


@dataclass(slots=True)
class Sample:
    """Dry run of one source."""

    files: list[InputFile]
    bad_files: int
    """Number of files that are one document each and known not to be text. They are not sampled."""
    ledger: Ledger = field(default_factory=Ledger)
    """Counts of the sample."""
    sampled_bytes: int = 0
    """Bytes of text in the sample, before filters."""
    sampled_documents: int = 0
    records: float = 0.0
    """Estimates for the whole source: records, and what remains after filters."""
    documents: float = 0.0
    text_bytes: float = 0.0
    text_tokens: float = 0.0
    provenance_bytes: int = 0
    """Bytes of the sample's provenance."""
    seconds: float = 0.0
    """Duration of the last pass."""
    seconds_cold: float = 0.0
    """Duration of the first pass."""
    problems: list[str] = field(default_factory=list)

    @property
    def bad_fraction(self) -> float:
        """Fraction of bad records in the whole source; each bad file counts as one record."""
        records = self.records + self.bad_files
        return (self.records * self.ledger.bad_fraction + self.bad_files) / records if records else 0.0

    @property
    def reject_reasons(self) -> dict[str, int]:
        """Number of bad records in the sample and of bad files, by reason."""
        reasons = Counter(self.ledger.rejected)
        reasons["invalid_utf8"] += self.bad_files
        return {reason: count for reason, count in sorted(reasons.items()) if count}


def dry_run(work: TextBuild, encoder: Encoder) -> list[Sample]:
    """Run a sample of every source; the size of the sample is divided among them."""
    by_reference = encoder.encodes_by_reference
    size = REFERENCE_SAMPLE_BYTES if by_reference else SAMPLE_BYTES
    budget = max(size // len(work.names), LEAST_RANGE)
    with tempfile.TemporaryDirectory(prefix="packline-") as folder:
        runner = TextRunner(work, encoder, Path(folder))
        passes = [
            [_run_source(work, runner, number, budget) for number in range(len(work.names))]
            for _ in range(1 if by_reference else PASSES)
        ]
    for first, last in zip(passes[0], passes[-1], strict=True):
        last.seconds_cold = first.seconds
    return passes[-1]


def _run_source(work: TextBuild, runner: TextRunner, number: int, budget: int) -> Sample:
    """Run one unit made of ranges of some files of a source."""
    source = work.recipe.sources[number]
    files = [file for file in work.files if file.source == number]
    good = [file for file in files if source.documents != "file" or not file.not_utf8]
    sample = Sample(files, len(files) - len(good))
    chosen = good[:: max(-(-len(good) // MOST_FILES), 1)]
    least = max(LEAST_FILES // len(work.names), 2)
    done = sampled_size = 0
    started = time.perf_counter()
    name = f"{number:06d}"
    unit = UnitRun(runner, Unit(name, source=number), name, lambda *_: None)
    try:
        for file in (chosen[place] for place in spread_indices(len(chosen))):
            if done >= least and sample.sampled_bytes >= budget:
                break
            done += 1
            sampled_size += _run_file(work, unit, file, budget // len(chosen), sample)
        sample.seconds = time.perf_counter() - started
        receipt = unit.finish([])
    except BaseException:
        unit.abandon()
        raise
    sample.ledger = receipt.ledger
    written = [file for shard in receipt.shards for file in shard.files]
    sample.provenance_bytes = sum(file.bytes for file in written if file.name.endswith(PROVENANCE))
    if sampled_size:
        # Files that were not read are assumed to be like the others, by size.
        factor = sum(file.size for file in good) / sampled_size
        one_each = source.documents == "file" and all(file.format == "text" for file in good)
        sample.text_bytes *= factor
        sample.text_tokens *= factor
        sample.documents *= len(good) / done if one_each else factor
        sample.records *= len(good) / done if one_each else factor
    return sample


def _run_file(work: TextBuild, unit: UnitRun, file: InputFile, budget: int, sample: Sample) -> int:
    """Run ranges of a file of about `budget` bytes, and add what they amount to; return the file's size.

    A file that cannot be read is a problem of the sample and adds nothing.
    """
    source, budget = work.recipe.sources[file.source], max(budget, LEAST_RANGE)
    before = msgspec.structs.replace(unit.ledger)
    read = 0
    try:
        with closing(_read(file, source, work.recipe.max_document_bytes, budget)) as batches:
            for batch, size in batches:
                read += size
                sample.sampled_documents += len(batch)
                sample.sampled_bytes += len(batch.texts.data)
                unit.take(batch)
        whole = max(_size(file) / read, 1.0) if read else 1.0
    except EncoderMismatch:
        raise
    except (PacklineError, OSError, EOFError) as error:
        sample.problems.append(f"{file.path}: {error}")
        return 0
    counted = 1.0 if _is_one_document(file, source) else whole
    sample.records += (unit.ledger.documents_in - before.documents_in) * counted
    sample.documents += (unit.ledger.documents - before.documents) * counted
    sample.text_bytes += (unit.ledger.text_bytes - before.text_bytes) * whole
    sample.text_tokens += (unit.ledger.text_tokens - before.text_tokens) * whole
    return file.size


def _read(
    file: InputFile, source: Source, max_document_bytes: int, budget: int
) -> Generator[tuple[Batch, int], None, None]:
    """Batches of the sampled ranges of a file, and the bytes (decompressed) or rows of each."""
    if _is_one_document(file, source):
        with file.open() as raw:
            stream = DecompressedStream(raw, file.compression) if file.compression else raw
            text = stream.read(budget).decode("utf-8", "ignore")
        texts = Texts.of([text])
        yield Batch(file.index, texts, np.zeros(1, np.int64)), len(texts.data)
        return
    spans = list(_spans(file, source, budget))
    for span in spans:
        read = 0
        for batch in read_span(file, source, span, max_document_bytes, Hasher()):
            rows = len(batch) + len(batch.filtered) + sum(reject.records for reject in batch.rejects)
            yield batch, rows if file.format == "parquet" else batch.consumed_bytes
            read += batch.consumed_bytes
            if read >= budget // len(spans):
                break


def _is_one_document(file: InputFile, source: Source) -> bool:
    return file.format == "text" and source.documents == "file"


def _spans(file: InputFile, source: Source, budget: int) -> Iterator[Span]:
    """Spans to sample: the beginning and, if a reader can start there, the middle, or several such places."""
    if file.format == "parquet":
        groups = _parquet_size(file)[0]
        if file.size <= budget:
            yield Span(file.index, 0, groups)
            return
        yield from (
            Span(file.index, group, group + 1) for group in sorted({0, groups // 2}) if group < groups
        )
    elif file.compression or file.format == "json" or file.size <= budget or _has_separators(file, source):
        yield Span(file.index, 0, file.size)
    else:
        count = min(max(budget // ENOUGH_RANGE, 2), MOST_RANGES)
        for start in (file.size * place // count for place in range(count)):
            yield Span(file.index, start, start + budget // count)


def _has_separators(file: InputFile, source: Source) -> bool:
    return file.format == "text" and source.documents == "separator"


def _size(file: InputFile) -> float:
    """Size of a file in the unit of `_read`: decompressed bytes or rows."""
    return _parquet_size(file)[1] if file.format == "parquet" else file.size * _expansion(file)


def _parquet_size(file: InputFile) -> tuple[int, int]:
    """Number of row groups and rows."""
    from packline.sources.parquet import open_parquet

    with file.open() as raw:
        metadata = open_parquet(raw, file.path).metadata
        return int(metadata.num_row_groups), int(metadata.num_rows)


def _expansion(file: InputFile) -> float:
    """Decompressed bytes per compressed byte, measured on the beginning of the file.

    The stream reads ahead, so the two are compared only when it reads the next block: by then everything read
    before has been decompressed, except for less than one step.
    """
    if not file.compression:
        return 1.0
    given = raw_before = 0
    with file.open() as raw:
        stream = DecompressedStream(raw, file.compression)
        while data := stream.read(STEP_BYTES):
            if stream.raw_bytes > raw_before:
                if given >= EXPANSION_BYTES:
                    return given / raw_before
                raw_before = stream.raw_bytes
            given += len(data)
        return given / max(stream.raw_bytes, 1)
