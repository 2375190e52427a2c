"""Dry run of a build on a sample, and the estimate made from it: documents, tokens, time, disk, memory.

Ranges of a few files are run as in a build and written to a temporary folder, so filters, templates and bad
records count as they will. The rest of a sampled file is taken to be like the range that was read, and other
files like those that were sampled. Engines cache words, so the sample is run several times: `seconds_cold` is
at the rate of the first run, `seconds` at that of the last.
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

from packline.encoders import EngineReport
from packline.encoders.encoder import Encoder
from packline.errors import PacklineError
from packline.fingerprint import Hasher
from packline.jobs.cut_inputs import expected_text, is_one_document
from packline.jobs.plan import Unit
from packline.jobs.resources import count_workers, free_disk, resident_memory
from packline.jobs.text_build import TextBuild, load_encoder, prepare, room_of, sample_texts
from packline.jobs.text_unit import TextRunner, UnitRun
from packline.recipe import Recipe, RunOptions, Source
from packline.sources.batch import Batch, Texts
from packline.sources.compression import DecompressedStream
from packline.sources.files import InputFile, not_text_notes
from packline.sources.reader import Span, can_be_cut, read_span
from packline.store.ledger import Ledger
from packline.store.reencode_audit import spread_indices
from packline.store.shard import index_size

SAMPLE_BYTES, REFERENCE_SAMPLE_BYTES = 4 << 20, 1 << 20
"""Bytes of (decompressed) input to sample, over all files; fewer with the reference, which is 100 times
slower."""
PASSES = 3
"""Runs of the sample: the first two include trials of each engine."""
LEAST_FILES, MOST_FILES = 12, 24
"""Number of files to sample per source: tiny files take longer to open than to read."""
LEAST_RANGE = 64 << 10
RANGES = 4
"""Number of ranges of a file that can be cut."""
STEP_BYTES, EXPANSION_BYTES = 32 << 10, 4 << 20
"""Bytes to read for the expansion: large compared with the block that a decompressor buffers."""
UNIT_PROVENANCE_BYTES = 2048
"""Size of a `.docs.parquet` without documents."""


@dataclass(slots=True)
class Sample:
    files: list[InputFile]
    bad_files: int
    """Number of files that are one document each and known not to be text. They are not sampled."""
    ledger: Ledger = field(default_factory=Ledger)
    sampled_bytes: int = 0
    """Bytes of text in the sample, before filters."""
    sampled_documents: int = 0
    whole: np.ndarray = field(default_factory=lambda: np.zeros(4))
    """Estimates for the whole source: records, and documents, bytes and tokens that filters leave."""
    provenance_bytes: int = 0
    seconds: float = 0.0
    """Duration of the last pass."""
    seconds_cold: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def bad_fraction(self) -> float:
        """Fraction of bad records in the whole source; each bad file counts as one record."""
        records, bad = self.whole[0], self.bad_files
        return float((records * self.ledger.bad_fraction + bad) / (records + bad)) if records + bad else 0.0

    @property
    def reject_reasons(self) -> dict[str, int]:
        reasons = Counter(self.ledger.rejected) + Counter(invalid_utf8=self.bad_files)
        return dict(sorted(reasons.items()))


def run_samples(work: TextBuild, encoder: Encoder) -> list[Sample]:
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
    source = work.recipe.sources[number]
    files = [file for file in work.files if file.source == number]
    good = [file for file in files if source.documents != "file" or not file.not_utf8]
    sample = Sample(files, len(files) - len(good))
    name = f"{number:06d}"
    unit = UnitRun(runner, Unit(name, source=number), name, lambda *_: None)
    started = time.perf_counter()
    receipt = unit.run(_batches(work, unit, good, budget, sample), [])
    sample.ledger, sample.seconds = receipt.ledger, time.perf_counter() - started
    written = [file for shard in receipt.shards for file in shard.files]
    sample.provenance_bytes = sum(file.bytes for file in written if file.name.endswith(".docs.parquet"))
    return sample


def _batches(
    work: TextBuild, unit: UnitRun, files: list[InputFile], budget: int, sample: Sample
) -> Generator[Batch, None, None]:
    """Batches of ranges of some files, of about `budget` bytes; adds what they amount to, once they are run.

    A file that cannot be read is a problem of the sample and adds nothing.
    """
    chosen = files[:: max(-(-len(files) // MOST_FILES), 1)]
    least, done, sampled_size = max(LEAST_FILES // len(work.names), 2), 0, 0
    for file in (chosen[place] for place in spread_indices(len(chosen))):
        if done >= least and sample.sampled_bytes >= budget:
            break
        done += 1
        source, before, read = work.recipe.sources[file.source], _counts(unit.ledger), 0
        each = max(budget // len(chosen), LEAST_RANGE)
        try:
            with closing(_read(file, source, work.recipe.max_document_bytes, each)) as batches:
                for batch, size in batches:
                    read += size
                    sample.sampled_documents += len(batch)
                    sample.sampled_bytes += len(batch.texts.data)
                    yield batch
            whole = _parquet_size(file)[1] if file.format == "parquet" else file.size * _expansion(file)
            times = max(whole / read, 1.0) if read else 1.0
        except (PacklineError, OSError, EOFError) as error:
            sample.problems.append(f"{file.path}: {error}")
            continue
        sampled_size += file.size
        one = 1.0 if is_one_document(file, source) else times
        sample.whole += (_counts(unit.ledger) - before) * (one, one, times, times)
    if sampled_size:  # other files are taken to be like these, by size
        factor = sum(file.size for file in files) / sampled_size
        one_each = all(is_one_document(file, work.recipe.sources[file.source]) for file in files)
        one = len(files) / done if one_each else factor
        sample.whole *= (one, one, factor, factor)


def _counts(ledger: Ledger) -> np.ndarray:
    return np.array([ledger.documents_in, ledger.documents, ledger.text_bytes, ledger.text_tokens], float)


def _read(
    file: InputFile, source: Source, max_document_bytes: int, budget: int
) -> Generator[tuple[Batch, int], None, None]:
    """Batches of the sampled ranges of a file, and the bytes (decompressed) or rows of each."""
    if is_one_document(file, source):
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


def _spans(file: InputFile, source: Source, budget: int) -> Iterator[Span]:
    """Spans to sample: the beginning and, if a reader can start there, places further on."""
    if file.format == "parquet":
        groups = _parquet_size(file)[0]
        few = [(group, group + 1) for group in sorted({0, groups // 2}) if group < groups]
        yield from (Span(file.index, *part) for part in ([(0, groups)] if file.size <= budget else few))
    elif file.size <= budget or not can_be_cut(file, source):
        yield Span(file.index, 0, file.size)
    else:
        for start in (file.size * place // RANGES for place in range(RANGES)):
            yield Span(file.index, start, start + budget // RANGES)


def _parquet_size(file: InputFile) -> tuple[int, int]:
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


class SourceEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Estimate for one source, after its filters and the recipe's limits."""

    files: int
    input_bytes: int
    text_bytes: int
    documents: int
    tokens: int
    """Number of tokens, boundary tokens included."""
    tokens_per_byte: float
    bad_fraction: float
    """Fraction of bad records in the sample."""
    sampled_bytes: int
    """Bytes of text in the sample."""
    sampled_documents: int


class FieldChoice(msgspec.Struct, frozen=True):
    """Files of one kind, and the field of their text."""

    source: str
    format: str
    compression: str
    text: str
    id: str | None
    files: int


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Estimate of a build. Sizes are in bytes, times in seconds."""

    files: int
    units: int
    """Number of units; a compressed or otherwise unsplittable file counts as its likely number of units."""
    input_bytes: int
    sources: dict[str, SourceEstimate]
    fields: list[FieldChoice]
    text_bytes: int
    documents: int
    tokens: int
    tokens_per_byte: float
    store_bytes: int
    free_disk: int
    enough_disk: bool
    workers: int
    memory_a_worker: int
    largest_document: int
    """Bytes of the largest document that both the recipe and a worker's memory allow. A document that the
    recipe allows but memory does not stops the build.
    """
    seconds: float
    """Duration at the engines' warm rate."""
    seconds_cold: float
    """Duration at the rate of their first MB."""
    core_seconds: float
    """Time of all units on one core, at the engines' warm rate."""
    tokenizer: str
    vocab_size: int
    eod: str
    eod_id: int
    bos: str | None
    bos_id: int | None
    dtype: str
    round_trip: str
    engines: list[EngineReport]
    engines_used: list[str]
    engines_reason: str
    rates: dict[str, dict[str, float]]
    """Warm MB/s of one worker, by script and engine, where there are several engines."""
    warnings: list[str]


def estimate_build(
    recipe: Recipe,
    options: RunOptions = RunOptions(),  # noqa: B008  frozen
    *,
    out: str | Path = ".",
    work: TextBuild | None = None,
) -> Estimate:
    """Predict a build; write nothing but temporary files. Errors that would stop the build are raised.

    Args:
        out: planned folder of the store, to check its free space.
        work: the build, if it is prepared already.
    """
    started = time.perf_counter()
    work = work or prepare(recipe, options, here=True)
    options = work.options
    encoder = load_encoder(work)
    loading, base = time.perf_counter() - started, resident_memory()
    chosen = encoder.choose(lambda: sample_texts(work))
    samples = run_samples(work, encoder)
    sources = _scale(work, samples)
    text_bytes, documents, tokens = (
        sum(getattr(one, name) for one in sources) for name in ("text_bytes", "documents", "tokens")
    )
    workers, memory = count_workers(options)
    units = sum(unit.receipts for unit in work.units)
    store_bytes = _store_bytes(work, samples, sources, units)
    free = free_disk(Path(out))
    at_once = max(min(workers, units), 1)
    pairs = list(zip(samples, sources, strict=True))
    times = [found.text_bytes / max(sample.ledger.text_bytes, 1) for sample, found in pairs]
    warm = sum(sample.seconds * one for sample, one in zip(samples, times, strict=True))
    cold = sum(sample.seconds_cold * one for sample, one in zip(samples, times, strict=True))
    kinds = Counter(
        (work.names[file.source], file.format, file.compression, file.text, file.id) for file in work.files
    )
    measured = {
        script: {engine: rate for engine, rate in rates.items() if rate}
        for script, rates in sorted(encoder.rates().items())
    }
    result = Estimate(
        files=len(work.files),
        units=units,
        input_bytes=sum(file.size for file in work.files),
        sources=dict(zip(work.names, sources, strict=True)),
        fields=[FieldChoice(*kind, count) for kind, count in kinds.items()],
        text_bytes=text_bytes,
        documents=documents,
        tokens=tokens,
        tokens_per_byte=tokens / text_bytes if text_bytes else 0.0,
        store_bytes=store_bytes,
        free_disk=free,
        enough_disk=store_bytes <= free,
        workers=workers,
        memory_a_worker=memory,
        largest_document=min(room_of(work, chosen.names, base).document, recipe.max_document_bytes),
        seconds=round(loading + warm / at_once, 2),
        seconds_cold=round(loading + cold / at_once, 2),
        core_seconds=round(warm, 6),
        tokenizer=work.tokenizer.name,
        vocab_size=work.tokenizer.vocab_size,
        **msgspec.structs.asdict(work.boundary),
        dtype=work.dtype,
        round_trip=encoder.reference.round_trip,
        engines=chosen.reports,
        engines_used=list(chosen.names),
        engines_reason=chosen.reason,
        rates={script: rates for script, rates in measured.items() if rates},
        warnings=[],
    )
    return msgspec.structs.replace(result, warnings=_warnings(work, samples, result))


def _scale(work: TextBuild, samples: list[Sample]) -> list[SourceEstimate]:
    """Estimates of the sources; each takes from what the limits leave, in document order."""
    left = {"documents": work.recipe.limit_documents, "tokens": work.recipe.limit_tokens}
    boundary_tokens = 1 if work.boundary.bos_id is None else 2
    scaled = []
    for sample in samples:
        _, documents, text_bytes, text_tokens = sample.whole.tolist()
        counts = {"documents": documents, "tokens": text_tokens + documents * boundary_tokens}
        shares = [limit / counts[name] for name, limit in left.items() if limit is not None and counts[name]]
        share = min([1.0, *shares])
        cut = {name: round(count * share) for name, count in counts.items()}
        left = {name: None if limit is None else limit - cut[name] for name, limit in left.items()}
        scaled.append(
            SourceEstimate(
                files=len(sample.files),
                input_bytes=sum(file.size for file in sample.files),
                text_bytes=round(text_bytes * share),
                tokens_per_byte=text_tokens / text_bytes if text_bytes else 0.0,
                bad_fraction=sample.bad_fraction,
                sampled_bytes=sample.sampled_bytes,
                sampled_documents=sample.sampled_documents,
                **cut,
            )
        )
    return scaled


def _store_bytes(work: TextBuild, samples: list[Sample], sources: list[SourceEstimate], units: int) -> int:
    """Size of shards, provenance, tokenizer and receipts (counted again in the manifest)."""
    provenance = float(UNIT_PROVENANCE_BYTES * units)
    for sample, found in zip(samples, sources, strict=True):
        size = max(sample.provenance_bytes - UNIT_PROVENANCE_BYTES, 0)
        provenance += size * found.documents / max(sample.ledger.documents, 1)
    receipts = 2 * 1024 * units + 256 * len(work.files)
    itemsize = np.dtype(work.dtype).itemsize
    tokens, documents = sum(one.tokens for one in sources), sum(one.documents for one in sources)
    tokenizer = len(work.tokenizer.json.encode())
    return tokens * itemsize + index_size(documents) + round(provenance) + receipts + tokenizer


def _warnings(work: TextBuild, samples: list[Sample], found: Estimate) -> list[str]:
    lines = not_text_notes(work.files, work.names)
    if not found.enough_disk:
        needed, free = found.store_bytes / 1e6, found.free_disk / 1e6
        lines.append(f"the disk is too small: {needed:,.1f} MB needed, {free:,.1f} MB free")
    for name, sample in zip(work.names, samples, strict=True):
        lines += [f"source {name}: cannot sample {problem}" for problem in sample.problems[:3]]
        if not sample.sampled_documents:
            lines.append(f"source {name}: no documents in the sample")
        elif not sample.ledger.documents:
            count = sample.sampled_documents
            lines.append(f"source {name}: the filters leave none of the {count} documents of the sample")
        if special := sample.ledger.special_token_strings:
            what = "they become control tokens" if work.recipe.special_tokens == "parse" else "they stay text"
            lines.append(f"source {name}: {special} special-token strings in the sample; {what}")
        if reasons := sample.reject_reasons:
            counts = ", ".join(f"{reason} {count}" for reason, count in reasons.items())
            share, most = sample.bad_fraction, work.options.max_bad_fraction
            more = f": more than the {most:.1%} that are allowed" if share > most else ""
            lines.append(f"source {name}: {share:.2%} bad records in the sample ({counts}){more}")
    largest = found.largest_document
    large = sum(expected_text(file) > largest for file in work.files)
    if large and largest < work.recipe.max_document_bytes:
        lines.append(
            f"a document of more than {largest / 1e6:,.1f} MB would stop the build, and {large:,} of the "
            "files may hold one: raise --memory, or make larger documents bad records with "
            "max_document_bytes in a recipe"
        )
    if found.round_trip == "lossy":
        lines.append("the tokenizer does not give the text back when its ids are decoded")
    if found.engines_used == ["tokenizers"]:
        lines.append(f"only the slow reference engine can be used: {found.engines_reason}")
    return lines
