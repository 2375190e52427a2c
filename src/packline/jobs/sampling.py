"""Estimates of all inputs from a sample of a few MB.

    files of a source ── every n-th ──> beginning and middle of each ──> texts, and what they represent

The rest of a sampled file is assumed to be like the range that was read, and other files like those that
were sampled. Per sampled file:

    plain       text bytes per byte read                  x the file's size
    compressed  the same x expansion of its beginning     x the file's size
    Parquet     text bytes per row                        x the file's rows

Cost: `SAMPLE_BYTES` of text in all, a fraction of a second. Writes nothing, and keeps the sampled texts in
memory. Independent of tokenizers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from packline.errors import PacklineError
from packline.fingerprint import Hasher
from packline.jobs.prepare import Work
from packline.recipe import Source
from packline.sources.batch import Batch
from packline.sources.compression import DecompressedStream
from packline.sources.files import InputFile
from packline.sources.reader import Span
from packline.sources.reading import read_span
from packline.storage.inputs import open_input
from packline.store.rereading import far_apart

SAMPLE_BYTES = 4 << 20
"""Bytes of (decompressed) input to sample, over all files."""
LEAST_FILES, MOST_FILES = 12, 24
"""Number of files to sample per source: tiny files take longer to open than to read."""
LEAST_A_PLACE, ENOUGH_A_PLACE = 64 << 10, 1 << 20
MOST_PLACES = 8
STEP_BYTES = 32 << 10
EXPANSION_BYTES = 4 << 20
"""Bytes to read for the expansion: large compared with the block that a decompressor buffers."""


@dataclass(slots=True)
class SourceSample:
    """Sample of one source, and the estimates derived from it."""

    files: int = 0
    input_bytes: int = 0
    texts: list[str] = field(default_factory=list)
    records: int = 0
    """Number of records read, good and bad."""
    reject_reasons: dict[str, int] = field(default_factory=dict)
    text_bytes: float = 0.0
    """Estimated text bytes of all files, before filters."""
    documents: float = 0.0
    """Estimated documents of all files, before filters."""
    seconds: float = 0.0
    """Time spent on reading the sample."""
    read_bytes: int = 0
    """Text bytes in `texts`."""
    problems: list[str] = field(default_factory=list)
    bad_files: int = 0
    """Number of files that are one document each and known not to be text. They are not sampled."""

    @property
    def bad_fraction(self) -> float:
        """Fraction of bad records in the whole source."""
        bad = sum(self.reject_reasons.values()) - self.bad_files
        if not self.bad_files:
            return bad / self.records if self.records else 0.0
        # The sample represents the other files; each bad file counts as one record.
        records = self.documents * self.records / len(self.texts) if self.texts else 0.0
        share = bad / self.records if self.records else 0.0
        return (records * share + self.bad_files) / (records + self.bad_files)


def sample_sources(work: Work) -> list[SourceSample]:
    """Sample every source of a build, in their order; the time budget is divided among them."""
    share = max(SAMPLE_BYTES // len(work.recipe.sources), LEAST_A_PLACE)
    files: list[list[InputFile]] = [[] for _ in work.recipe.sources]
    for file in work.files:
        files[file.source].append(file)
    return [_sample_source(work, number, share, each) for number, each in enumerate(files)]


def _sample_source(work: Work, number: int, budget: int, files: list[InputFile]) -> SourceSample:
    source = work.recipe.sources[number]
    bad = [file for file in files if file.not_utf8] if source.documents == "file" else []
    sample = SourceSample(len(files), sum(file.size for file in files), bad_files=len(bad))
    if bad:
        sample.reject_reasons["invalid_utf8"] = len(bad)
        files = [file for file in files if not file.not_utf8]
    good_bytes = sum(file.size for file in files)
    chosen = files[:: max(-(-len(files) // MOST_FILES), 1)]
    a_file_each = source.documents == "file" and all(file.format == "text" for file in files)
    sampled_size = 0
    done = 0
    least = max(LEAST_FILES // len(work.recipe.sources), 2)
    for file in (chosen[place] for place in far_apart(len(chosen))):
        if done >= least and sample.read_bytes >= budget:
            break
        done += 1
        started = time.perf_counter()
        try:
            found = _sample_file(file, source, work.recipe.max_document_bytes, budget // len(chosen))
        except (PacklineError, OSError, EOFError) as error:
            sample.problems.append(f"{file.path}: {error}")
            continue
        sample.seconds += time.perf_counter() - started
        sampled_size += file.size
        sample.texts += found.texts
        sample.records += len(found.texts) + sum(found.rejects.values())
        for reason, count in found.rejects.items():
            sample.reject_reasons[reason] = sample.reject_reasons.get(reason, 0) + count
        sample.text_bytes += found.text_bytes * found.whole
        sample.documents += found.documents
        sample.read_bytes += found.text_bytes
    if sampled_size:
        # Files that were not read are assumed to be like the others, by size.
        sample.text_bytes *= good_bytes / sampled_size
        sample.documents *= len(files) / done if a_file_each else good_bytes / sampled_size
    return sample


@dataclass(slots=True)
class _FileSample:
    texts: list[str] = field(default_factory=list)
    rejects: dict[str, int] = field(default_factory=dict)
    text_bytes: int = 0
    documents: float = 0.0
    """Estimated documents in the whole file."""
    read: int = 0
    """Bytes (decompressed) or rows that the texts and rejects were read from."""
    whole: float = 1.0
    """Size of the whole file relative to the part read."""

    def take(self, batch: Batch) -> None:
        self.texts += batch.texts
        self.text_bytes += len(batch.texts.data)
        for reject in batch.rejects:
            if not reject.continued:
                self.rejects[reject.reason] = self.rejects.get(reject.reason, 0) + reject.records


def _sample_file(file: InputFile, source: Source, max_document_bytes: int, budget: int) -> _FileSample:
    """Read up to about `budget` bytes of a file, in one place or two."""
    sample = _FileSample()
    budget = max(budget, LEAST_A_PLACE)
    if file.format == "text" and source.documents == "file":
        _sample_whole(file, budget, sample)
        return sample
    places = list(_places(file, source, budget))
    for span in places:
        taken = 0
        batches = read_span(file, source, span, max_document_bytes, Hasher())
        for batch in batches:
            sample.take(batch)
            taken += batch.consumed_bytes
            rows = len(batch) + len(batch.filtered) + sum(reject.records for reject in batch.rejects)
            sample.read += rows if file.format == "parquet" else batch.consumed_bytes
            if taken >= budget // len(places):
                break
        batches.close()  # type: ignore[attr-defined]  # a generator holds its file open
    if sample.read:
        total = _rows(file) if file.format == "parquet" else file.size * _expansion(file)
        sample.whole = max(total / sample.read, 1.0)
    sample.documents = len(sample.texts) * sample.whole
    return sample


def _places(file: InputFile, source: Source, budget: int) -> Iterator[Span]:
    """Spans to sample: the beginning and, if a reader can start there, the middle, or several such places."""
    if file.format == "parquet":
        groups = _row_groups(file)
        if file.size <= budget:
            yield Span(file.index, 0, groups)
            return
        yield from (
            Span(file.index, group, group + 1) for group in sorted({0, groups // 2}) if group < groups
        )
    elif _only_from_start(file, source) or file.size <= budget:
        yield Span(file.index, 0, file.size)
    else:
        count = min(max(budget // ENOUGH_A_PLACE, 2), MOST_PLACES)
        for start in (file.size * place // count for place in range(count)):
            yield Span(file.index, start, start + budget // count)


def _only_from_start(file: InputFile, source: Source) -> bool:
    return bool(file.compression) or (file.format == "text" and source.documents == "separator")


def _sample_whole(file: InputFile, budget: int, sample: _FileSample) -> None:
    """Sample a file that is one document by its beginning."""
    with open_input(file.path) as raw:
        if file.compression:
            data = DecompressedStream(raw, file.compression).read(budget)
        else:
            data = raw.read(budget)
    text = data.decode("utf-8", "ignore")
    sample.text_bytes = sample.read = len(text.encode("utf-8"))
    if text:
        sample.texts, sample.documents = [text], 1.0
        sample.whole = max(file.size * _expansion(file) / sample.read, 1.0)


def _row_groups(file: InputFile) -> int:
    from packline.sources.parquet import open_parquet

    with open_input(file.path) as raw:
        return int(open_parquet(raw, file.path).metadata.num_row_groups)


def _rows(file: InputFile) -> int:
    from packline.sources.parquet import open_parquet

    with open_input(file.path) as raw:
        return int(open_parquet(raw, file.path).metadata.num_rows)


def _expansion(file: InputFile) -> float:
    """Decompressed bytes per compressed byte, measured on the beginning of the file.

    The stream reads ahead, so the two are compared only when it reads the next block: by then everything read
    before has been decompressed, except for less than one step.
    """
    if not file.compression:
        return 1.0
    given = raw_before = 0
    with open_input(file.path) as raw:
        stream = DecompressedStream(raw, file.compression)
        while data := stream.read(STEP_BYTES):
            if stream.raw_bytes > raw_before:
                if given >= EXPANSION_BYTES:
                    return given / raw_before
                raw_before = stream.raw_bytes
            given += len(data)
        return given / max(stream.raw_bytes, 1)


def first_texts(texts: list[str], count: int) -> list[str]:
    """Up to `count` non-empty texts, spread over a list.

    >>> first_texts(["a", "", "b", "c", "d"], 2)
    ['a', 'c']
    """
    good = [text for text in texts if text]
    return list(islice(good[:: max(-(-len(good) // count), 1)], count))
