"""Search of a store for evaluation questions: documents with n words or tokens of a question in a row.

    questions ──> grams (`grams`) ────────┐
    shards ──one unit each──> processes ──┴──> overlaps ──> by set, by source, the longest of all

`words` (the default) compares the text, in lower case and without punctuation (`words`), independent of the
tokenizer (if it does not keep all of a text, the part it keeps); `tokens` compares ids exactly; where a token
is less than a character, 13 of them are short.

The text of a question includes its right answer, but no wrong ones, which often occur in other questions:

    a bundle of CORE (folder with core.yaml)        one set per task
    a folder that `packline evals` wrote            the sets it was made of, from its questions.jsonl
    anything else                                   one set per file, or one for all CSV files of a folder; a
                                                    file named after its split also has its folder's name

Layouts are those that `packline evals` reads; of any other record, such as GSM8K's `question` and `answer`,
all strings are used. In a folder with several splits, only the test split is read.

Cost: 1.5 s for the 78,000 questions of CORE, MMLU and GSM8K, then one pass over the shards.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from itertools import chain, pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import numpy as np

from packline.chat.tasks import Arc, Mmlu, OriginalArc, lettered_mmlu
from packline.encoders.token_bytes import TokenText, keeps_text, token_bytes
from packline.errors import InputError, RecipeError
from packline.evals.core import BUNDLE, DATA, KINDS, HellaSwag, read_bundle, read_questions
from packline.evals.grams import (
    CHUNK_TOKENS,
    WORDS,
    GramOf,
    QuestionGrams,
    Questions,
    ScanSettings,
    SetFound,
    ShardFound,
    word_encoder,
    write_questions,
)
from packline.evals.task import CONFIG, QUESTIONS, EvaluationText, text_encoder, texts_of
from packline.evals.words import LOWER, spelled
from packline.jobs.engine import run_units
from packline.jobs.machines import On, temporary_folder
from packline.jobs.plan import Unit
from packline.jobs.resources import usable_cores
from packline.packing.exclusions import check_list_path, write_list
from packline.sources.listing import expand
from packline.sources.records import files_of, lines_of, records_of
from packline.storage.local import disk_errors
from packline.store.manifest import load_kept_tokenizer
from packline.store.reader import StoreReader, shard_labels
from packline.store.report import OnProgress

N = 13
MOST_TEXTS = 10
ALONE_TOKENS = 1 << 24
"""Tokens below which the search runs in this process: starting another takes half a second."""
MOST_LISTED = 100
MOST_SHOWN = 400
"""Maximum characters of an overlap to keep."""
NORMALISATION = {
    "words": "lower case and NFKC, without punctuation and white space; "
    "in scripts without spaces each character is a word",
    "tokens": "none: equal ids of the store's tokenizer",
}


class Overlap(msgspec.Struct, frozen=True):
    """An overlap of a document with a question."""

    document: int
    """Number of the document in the store."""
    source: str
    file: str
    position: int
    id: str | None
    split: str
    set: str
    question: int
    """Number of the question in its set."""
    length: int
    """Length of the longest overlap, in words or tokens."""
    text: str
    """Text of that overlap, normalized, at most its first 400 characters."""


class ContaminationReport(msgspec.Struct):
    """Result of a search."""

    clean: bool
    """True if every question was checked and none was found."""
    questions: int
    """Number of questions of all sets."""
    found: int
    """Questions found in some document."""
    unchecked: int
    """Questions not checked: nothing is known about them."""
    n: int
    gram_of: GramOf
    normalisation: str
    grams: int
    common_grams: int
    """Grams left out because too many questions share them."""
    repetitive_grams: int
    """Grams left out because they consist of repetitions."""
    sets: dict[str, SetFound]
    sources: dict[str, tuple[int, int]]
    """Documents with an overlap and all documents, by source."""
    overlaps: list[Overlap]
    """The longest overlaps, at most 100; one per document and question."""
    not_listed: int
    documents: int
    tokens: int
    bytes: int
    """Size of the shards."""
    seconds: float = 0.0
    """Time spent searching the shards."""


def find_questions(
    store: StoreReader,
    against: Sequence[str],
    *,
    n: int = N,
    gram_of: GramOf = "words",
    most_texts: int = MOST_TEXTS,
    workers: int | None = None,
    on: On = "local",
    on_progress: OnProgress | None = None,
    write: str | Path | None = None,
) -> ContaminationReport:
    """Search a store for the questions of evaluation sets.

    Grams that more than `most_texts` questions share are left out. `workers`: None is one per core if that
    pays, 0 is this process. `write` names the file for the list of documents with an overlap, `.parquet`.
    """
    if n < 1:
        raise RecipeError(f"ngram is {n}: expected 1 or more")
    if write is not None:
        check_list_path(write)
    if workers is None:
        workers = min(usable_cores(), store.manifest.tokens // ALONE_TOKENS)
    texts = _read(against)
    with temporary_folder(on) as folder:
        with disk_errors(folder):
            questions = _prepare(folder, store, texts, gram_of, n, most_texts)
        job = ScanSettings(str(store.place), str(folder), n, gram_of, CHUNK_TOKENS, store.cache)
        started = time.perf_counter()
        found = _look(store, job, workers, on_progress, on)
        if write is not None:
            _write_found(write, store, job, questions, found)
        return _sum_up(store, job, questions, found, time.perf_counter() - started)


def _read(against: Sequence[str]) -> Iterator[EvaluationText]:
    """Questions of all paths; sets with the same name are distinguished by their path."""
    owners: dict[str, str] = {}
    for path in dict.fromkeys(against):
        for text in read_evaluations(path):
            alike = owners.setdefault(text.set, path) != path
            yield msgspec.structs.replace(text, set=f"{text.set} ({path})") if alike else text


def _prepare(
    folder: Path,
    store: StoreReader,
    texts: Iterator[EvaluationText],
    gram_of: GramOf,
    n: int,
    most_texts: int,
) -> Questions:
    """Write the data that the processes need: grams of the questions; for words, bytes of the tokens."""
    store.files.read(store.tokenizer_file)  # refuses a damaged one
    tokenizer = load_kept_tokenizer(store.files, store.manifest.tokenizer_files)
    if gram_of == "tokens":
        return write_questions(folder, texts, n, most_texts, text_encoder(tokenizer).encode)
    entry = store.manifest.tokenizer
    found = [one.translate(LOWER) for one in token_bytes(tokenizer)]
    for boundary in (*tokenizer.special_tokens.values(), entry.eod_id, entry.bos_id):
        if boundary is not None:  # it separates words
            found[boundary] = b" "
    vocabulary = TokenText.of_tokens(found)
    vocabulary.save(folder)
    encoder = text_encoder(tokenizer) if not keeps_text(tokenizer) else None

    def spell(texts: Sequence[str]) -> list[bytes]:
        """Texts as a store has them: only the part that its tokenizer keeps."""
        if encoder is None:
            return [text.encode("utf-8", "surrogatepass") for text in texts]
        ids = encoder.encode(texts)
        data, begins = vocabulary.gather(ids.tokens)
        places = begins[ids.offsets].tolist()
        return [data[start:end].tobytes() for start, end in pairwise(places)]

    known: dict[bytes, int] = {}
    questions = write_questions(folder, texts, n, most_texts, word_encoder(known, spell))
    (folder / WORDS).write_bytes(b"\n".join(known))
    return questions


def _look(
    store: StoreReader, job: ScanSettings, workers: int, on_progress: OnProgress | None, on: On
) -> list[ShardFound]:
    whole = store.manifest.tokens * store.dtype.itemsize
    read = 0

    def hear(tokens: int) -> None:
        nonlocal read
        read += tokens * store.dtype.itemsize
        if on_progress is not None:
            on_progress(read, whole)

    shards = [Unit.of(number) for number in range(len(store.shards))]
    return run_units(job, shards, workers=workers, on_tokens=hear, on=on)


def _write_found(
    path: str | Path, store: StoreReader, job: ScanSettings, questions: Questions, found: list[ShardFound]
) -> None:
    """Write the documents with an overlap; the reason of each is its longest."""
    longest: dict[int, tuple[int, int]] = {}
    for here in found:
        for document, text, length in zip(here.documents, here.texts, here.lengths, strict=True):
            longest[document] = max(longest.get(document, (0, 0)), (length, -text))
    documents = sorted(longest)
    reasons = [
        f"{questions.names[-text]} question {questions.numbers[-text]}: {length} {job.gram_of} in a row"
        for length, text in map(longest.__getitem__, documents)
    ]
    write_list(path, [(store, np.array(documents, np.int64), reasons)])


def _sum_up(
    store: StoreReader,
    job: ScanSettings,
    questions: Questions,
    found: list[ShardFound],
    seconds: float,
) -> ContaminationReport:
    sets, names = questions.sets, questions.names
    sources: dict[str, tuple[int, int]] = {}
    for shard, origin, here in zip(store.shards, shard_labels(store), found, strict=True):
        bad, count = sources.get(origin.source, (0, 0))
        sources[origin.source] = bad + len(set(here.documents)), count + len(shard)
        pairs = {(document, names[text]) for document, text in zip(here.documents, here.texts, strict=True)}
        for _, name in pairs:
            by_source = sets[name].documents
            by_source[origin.source] = by_source.get(origin.source, 0) + 1
    for text in {text for here in found for text in here.texts}:
        sets[names[text]].found += 1
    rows = (zip(here.lengths, here.documents, here.texts, here.positions, strict=True) for here in found)
    longest = nsmallest(MOST_LISTED, chain.from_iterable(rows), key=lambda row: (-row[0], *row[1:]))
    grams = QuestionGrams(Path(job.folder), job.n)
    words = (Path(job.folder) / WORDS).read_bytes().split(b"\n") if job.gram_of == "words" else []
    overlaps = []
    for length, document, text, position in longest:
        place = store.provenance(document)
        said = grams.piece(text, position, position + length).tolist()
        overlaps.append(
            Overlap(
                document,
                place.source,
                place.file,
                place.position,
                place.id,
                place.split,
                names[text],
                questions.numbers[text],
                length,
                _shown(
                    spelled([words[one] for one in said])
                    if words
                    else store.tokenizer.decode(said, skip_special_tokens=False)
                ),
            )
        )
    count = sum(len(here.documents) for here in found)
    unchecked = sum(one.unchecked for one in sets.values())
    return ContaminationReport(
        clean=not count and not unchecked,
        questions=len(names),
        found=sum(one.found for one in sets.values()),
        unchecked=unchecked,
        n=job.n,
        gram_of=job.gram_of,
        normalisation=NORMALISATION[job.gram_of],
        grams=questions.grams,
        common_grams=questions.common,
        repetitive_grams=questions.repetitive,
        sets=sets,
        sources=sources,
        overlaps=overlaps,
        not_listed=count - len(overlaps),
        documents=len(store.documents),
        tokens=store.manifest.tokens,
        bytes=store.manifest.tokens * store.dtype.itemsize,
        seconds=seconds,
    )


def _shown(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


LAYOUTS: tuple[Any, ...] = (*KINDS.values(), HellaSwag, Mmlu, Arc, OriginalArc)
"""Layouts of records whose right answer is known."""
HEADER = ("question", "answer")
"""First and last field of a CSV header."""


SPLIT = re.compile(r"(train|test|validation|valid|val|dev)(?:-\d+-of-\d+)?", re.IGNORECASE)
"""Names of files that name their split but not their dataset."""


def read_evaluations(path: str) -> Iterator[EvaluationText]:
    """Read the texts of a file, a folder or a bundle."""
    if (Path(path) / BUNDLE).is_file():
        seen = set()
        for entry in read_bundle(path):
            if entry.dataset_uri in seen:  # the same questions with other shots
                continue
            seen.add(entry.dataset_uri)
            questions = read_questions(Path(path) / DATA / entry.dataset_uri, entry.icl_task_type)
            yield from texts_of(entry.label, questions, entry.continuation_delimiter)
        return
    if (Path(path) / QUESTIONS).is_file() and (Path(path) / CONFIG).is_file():
        yield from _read_recorded(str(Path(path) / QUESTIONS))
        return
    if _is_written(Path(path)):
        raise InputError(
            f"{path} holds ids with few-shot prompts, and no {QUESTIONS} with the questions themselves",
            hint="make it again with packline evals, or give what it was made of: the bundle, or files",
        )
    inner = sorted(
        {PurePosixPath(file.path).parent for file in expand(path) if file.path.endswith(f"/{BUNDLE}")}
    )
    if inner:
        raise InputError(
            f"{path} is not one evaluation set: {inner[0]} is a bundle of CORE",
            hint="name each set with a separate --against",
        )
    counts: dict[str, int] = {}
    for file in files_of(path):
        name = _name_of(PurePosixPath(path if file.lower().endswith(".csv") else file))
        for _, record in records_of(file):
            if isinstance(record, list) and (record[0], record[-1]) == HEADER:
                continue
            number = counts.get(name, 0)
            counts[name] = number + 1
            yield EvaluationText(name, number, record_text(record))


def _name_of(path: PurePosixPath) -> str:
    """Name of a set: its file's or folder's; both if the file is named after a split, as in `gsm8k/test`.

    >>> [_name_of(PurePosixPath(path)) for path in ("a/q.jsonl", "gsm8k/test.jsonl.gz", "test.csv")]
    ['q', 'gsm8k/test', 'test']
    """
    stem = path.name.partition(".")[0]
    split = SPLIT.fullmatch(stem)
    return f"{path.parent.name}/{split[1]}" if split and path.parent.name else stem


def _read_recorded(path: str) -> Iterator[EvaluationText]:
    for number, line in lines_of(path):
        try:
            yield msgspec.json.decode(line, type=EvaluationText)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path}, line {number}: no question of packline evals: {error}") from error


def _is_written(folder: Path) -> bool:
    try:
        config = msgspec.json.decode((folder / CONFIG).read_bytes())
    except (OSError, msgspec.DecodeError):
        return False
    return isinstance(config, dict) and {"max_seq_len", "bos_id", "tasks"} <= config.keys()


def record_text(record: Any) -> str:
    """Text of a record: its question and, if the layout is known, only the right answer.

    >>> record_text({"question": "Sky?", "choices": ["red", "blue"], "answer": 1})
    'Sky? blue'
    >>> record_text({"prompt": "Sky?", "more": {"notes": ["is", 3, "blue"]}})
    'Sky? is blue'
    """
    if isinstance(record, list):
        try:
            question = lettered_mmlu(record, "")
        except InputError:
            question = None
        return question.answered() if question else " ".join(record)
    for kind in LAYOUTS:
        try:
            return msgspec.convert(record, kind).answered()
        except (msgspec.ValidationError, IndexError, ValueError):
            continue
    return " ".join(_strings(record))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)
