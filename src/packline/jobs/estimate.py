"""Estimate of a build: documents, tokens, time, disk and memory, from a dry run on a few MB of its inputs.

    prepare ──> choose engines ──> dry run of units on a sample ──> apply the limits ──> time, disk, memory

Errors that would stop the build before its first document are raised here too. Time is a range:
`seconds_cold` is at the rate of the first run of the sample, `seconds` at that of the last, which a long
build of similar text reaches. On an idle machine a build rarely falls outside this range. Cost: 1 to 5 s,
most of it loading the tokenizer.

Limits: the estimate knows only the sample; it is far off for a source whose files differ widely.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np

from packline.encoders import EngineReport
from packline.encoders.encoder import SCRIPTS, Encoder, script_of
from packline.jobs.cut_inputs import COMPRESSION_GUESS
from packline.jobs.dry_run import LEAST_RANGE, Sample, dry_run
from packline.jobs.resources import count_workers, free_disk, resident_memory
from packline.jobs.text_build import TextBuild, load_encoder, prepare, room_of, sample_texts
from packline.recipe import Recipe, RunOptions
from packline.sources.batch import Texts
from packline.sources.files import InputFile, not_text_notes
from packline.store.shard import index_size

UNIT_PROVENANCE_BYTES = 2048
"""Size of a `.docs.parquet` without documents."""


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
    """Warm MB/s of one worker, by script and engine."""
    warnings: list[str]


def estimate_build(recipe: Recipe, options: RunOptions = RunOptions(), *, out: str | Path = ".") -> Estimate:  # noqa: B008
    """Predict a build; write nothing but temporary files.

    Args:
        recipe: recipe of the build.
        options: run options of the build.
        out: planned folder of the store, to check its free space.

    Raises:
        RecipeError, InputError, TokenizerError: errors that would stop the build.

    >>> import msgspec, pathlib, tempfile
    >>> from packline.recipe import Source
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "words.txt").write_text("a b a")
    >>> model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "</s>": 2}, "unk_token": "</s>"}
    >>> text = msgspec.json.encode({"model": model, "pre_tokenizer": {"type": "Whitespace"}})
    >>> _ = (folder / "tokenizer.json").write_bytes(text)
    >>> sources = (Source(inputs=(str(folder / "words.txt"),)),)
    >>> found = estimate_build(Recipe(sources=sources, tokenizer=str(folder / "tokenizer.json"), eod="</s>"))
    >>> found.documents, found.tokens, found.text_bytes
    (1, 4, 5)
    """
    started = time.perf_counter()
    work = prepare(recipe, options, here=True)
    options = work.options
    encoder = load_encoder(work)
    loading, base = time.perf_counter() - started, resident_memory()
    texts = sample_texts(work)
    chosen = encoder.choose(lambda: texts)
    samples = dry_run(work, encoder)
    sources = _limit(work, [_scale(work, one) for one in samples])
    text_bytes, tokens = sum(one.text_bytes for one in sources), sum(one.tokens for one in sources)
    documents = sum(one.documents for one in sources)
    workers, memory = count_workers(options)
    room = room_of(work, chosen.names, base)
    units = sum(unit.receipts for unit in work.units)
    store_bytes = _store_bytes(work, samples, sources, units)
    free = free_disk(Path(out))
    at_once = max(min(workers, units), 1)
    warm = cold = 0.0
    for sample, found in zip(samples, sources, strict=True):
        times = found.text_bytes / max(sample.ledger.text_bytes, 1)
        warm += sample.seconds * times
        cold += sample.seconds_cold * times
    result = Estimate(
        files=len(work.files),
        units=units,
        input_bytes=sum(file.size for file in work.files),
        sources=dict(zip(work.names, sources, strict=True)),
        fields=_fields(work),
        text_bytes=text_bytes,
        documents=documents,
        tokens=tokens,
        tokens_per_byte=tokens / text_bytes if text_bytes else 0.0,
        store_bytes=store_bytes,
        free_disk=free,
        enough_disk=store_bytes <= free,
        workers=workers,
        memory_a_worker=memory,
        largest_document=min(room.document, recipe.max_document_bytes),
        seconds=round(loading + warm / at_once, 2),
        seconds_cold=round(loading + cold / at_once, 2),
        core_seconds=round(warm, 6),
        tokenizer=work.tokenizer.name,
        vocab_size=work.tokenizer.vocab_size,
        eod=work.boundary.eod,
        eod_id=work.boundary.eod_id,
        bos=work.boundary.bos,
        bos_id=work.boundary.bos_id,
        dtype=work.dtype,
        round_trip=encoder.reference.round_trip,
        engines=chosen.reports,
        engines_used=list(chosen.names),
        engines_reason=chosen.reason,
        rates=_rates(encoder, texts),
        warnings=[],
    )
    return msgspec.structs.replace(result, warnings=_warnings(work, samples, result))


def _scale(work: TextBuild, sample: Sample) -> SourceEstimate:
    boundary_tokens = 1 if work.boundary.bos_id is None else 2
    return SourceEstimate(
        files=len(sample.files),
        input_bytes=sum(file.size for file in sample.files),
        text_bytes=round(sample.text_bytes),
        documents=round(sample.documents),
        tokens=round(sample.text_tokens + sample.documents * boundary_tokens),
        tokens_per_byte=sample.text_tokens / sample.text_bytes if sample.text_bytes else 0.0,
        bad_fraction=sample.bad_fraction,
        sampled_bytes=sample.sampled_bytes,
        sampled_documents=sample.sampled_documents,
    )


def _rates(encoder: Encoder, texts: list[str]) -> dict[str, dict[str, float]]:
    """Warm MB/s of processor time by script and engine; a single engine is not measured while it encodes."""
    if len(encoder.engines) > 1:
        found = {
            script: {name: rate for name, rate in rates.items() if rate}
            for script, rates in encoder.rates().items()
        }
        return {script: rates for script, rates in sorted(found.items()) if rates}
    [(name, engine)] = encoder.engines.items()
    parts, rates = Texts.of([text[:LEAST_RANGE] for text in texts]), {}
    scripts = script_of(parts)
    for script in np.unique(scripts).tolist():
        group = parts.take(np.flatnonzero(scripts == script))
        started = time.process_time()
        engine.encode(group)
        seconds = max(time.process_time() - started, 1e-9)
        rates[SCRIPTS[script]] = {str(name): round(1e-6 * len(group.data) / seconds, 1)}
    return rates


def _limit(work: TextBuild, sources: list[SourceEstimate]) -> list[SourceEstimate]:
    """Apply the limits in document order: each source takes from the remainder in turn."""
    documents, tokens = work.recipe.limit_documents, work.recipe.limit_tokens
    limited = []
    for one in sources:
        shares = [1.0]
        if documents is not None and one.documents:
            shares.append(documents / one.documents)
        if tokens is not None and one.tokens:
            shares.append(tokens / one.tokens)
        cut = {
            field: round(getattr(one, field) * min(shares)) for field in ("text_bytes", "documents", "tokens")
        }
        limited.append(msgspec.structs.replace(one, **cut))
        documents = None if documents is None else documents - cut["documents"]
        tokens = None if tokens is None else tokens - cut["tokens"]
    return limited


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


def _fields(work: TextBuild) -> list[FieldChoice]:
    kinds = Counter(
        (work.names[file.source], file.format, file.compression, file.text, file.id) for file in work.files
    )
    return [FieldChoice(*kind, count) for kind, count in kinds.items()]


def _text_bytes(file: InputFile) -> int:
    """Upper estimate of the text in a file."""
    return file.size * (COMPRESSION_GUESS if file.compression or file.format == "parquet" else 1)


def _warnings(work: TextBuild, samples: list[Sample], found: Estimate) -> list[str]:
    """Warnings to show before starting."""
    lines = not_text_notes(work.files, work.names)
    if not found.enough_disk:
        needed = found.store_bytes
        free = found.free_disk
        lines.append(f"the disk is too small: {needed / 1e6:,.1f} MB needed, {free / 1e6:,.1f} MB free")
    for name, sample in zip(work.names, samples, strict=True):
        lines += [f"source {name}: cannot sample {problem}" for problem in sample.problems[:3]]
        if not sample.sampled_documents:
            lines.append(f"source {name}: no documents in the sample")
        elif not sample.ledger.documents:
            lines.append(
                f"source {name}: the filters leave none of the {sample.sampled_documents} documents of the "
                "sample"
            )
        if special := sample.ledger.special_token_strings:
            what = "they become control tokens" if work.recipe.special_tokens == "parse" else "they stay text"
            lines.append(f"source {name}: {special} special-token strings in the sample; {what}")
        if sample.reject_reasons:
            reasons = ", ".join(f"{reason} {count}" for reason, count in sample.reject_reasons.items())
            share = sample.bad_fraction
            above = share > work.options.max_bad_fraction
            more = f": more than the {work.options.max_bad_fraction:.1%} that are allowed" if above else ""
            lines.append(f"source {name}: {share:.2%} bad records in the sample ({reasons}){more}")
    if found.largest_document < work.recipe.max_document_bytes:
        large = sum(_text_bytes(file) > found.largest_document for file in work.files)
        if large:
            lines.append(
                f"a document of more than {found.largest_document / 1e6:,.1f} MB would stop the build, and "
                f"{large:,} of the files may hold one: raise --memory, or make larger documents bad records "
                "with max_document_bytes in a recipe"
            )
    if found.round_trip == "lossy":
        lines.append("the tokenizer does not give the text back when its ids are decoded")
    if found.engines_used == ["tokenizers"]:
        lines.append(f"only the slow reference engine can be used: {found.engines_reason}")
    return lines
