"""Analysis of another project's documents: the same counts, from the blocks that the format reads.

    file or folder ── format.open ──> units ── blocks ── in the form of a store ──> Counter

The caller names the tokenizer that made the ids, since most layouts do not record it. Only hashes are
written. Cost: that of a store in one process, plus eight bytes per document for lengths. Bytes of text are
those of the tokens (`encoders.token_bytes`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from packline.encoders.token_bytes import TextBytes
from packline.errors import CorruptStore
from packline.formats.export_record import check_export
from packline.formats.opening import OpenedDataset, find_record, open_dataset, read_document_blocks
from packline.store.report import Findings
from packline.viewing.analysis import TOP, Analysis, put_together
from packline.viewing.counting import OnProgress
from packline.viewing.duplicates import HashFiles, find_duplicates
from packline.viewing.store_counts import Group, summarize_lengths
from packline.viewing.tally import Counter
from packline.viewing.tokens import Vocabulary

HASH_FILES = 64
"""Fixed number of hash files, since the number of documents is not known in advance."""


def analyze_foreign(
    path: str | Path,
    *,
    tokenizer: str,
    format: str | None = None,
    eod: str | int | None = None,
    bos: str | int | None = None,
    options: Mapping[str, Any] | None = None,
    top: int = TOP,
    on_progress: OnProgress = lambda tokens: None,
) -> Analysis:
    """Count everything in a data set of another project.

    Args:
        path: a file or folder.
        tokenizer: the tokenizer that made the ids.
        format: a name of `packline.formats.format`; None: detected, if unambiguous.
        eod: end-of-document token, as a string or an id; None: taken from the data or the tokenizer.
        bos: begin-of-document token, in the same forms.
        options: options of the format, by name.
        top: number of tokens, documents and groups of each kind to name.

    Raises:
        InputError: the data does not exist or has another format.
        CorruptStore: the data is damaged, has ids outside the vocabulary, or documents without their ends.
        TokenizerError: the tokenizer cannot have made the ids.

    >>> analyze_foreign("nowhere", tokenizer="gpt2", format="nanogpt")
    Traceback (most recent call last):
    packline.errors.InputError: cannot find nowhere
    """
    findings = Findings()
    opened = open_dataset(Path(path), format, tokenizer, eod, bos, dict(options or {}), findings)
    if not findings.problems and Path(path).is_dir() and (record := find_record(Path(path))) is not None:
        check_export(Path(path), record, findings)
    if findings.problems:
        raise CorruptStore(
            f"{path} is damaged: {findings.problems[0]}",
            hint="packline verify --from shows all problems",
        )
    vocabulary = Vocabulary.of_tokenizer(opened.tokenizer, eod_id=opened.boundary.eod_id)
    entry = opened.boundary
    before = 0 if entry.bos_id is None else 1
    special = {*vocabulary.special, entry.eod_id, *([entry.bos_id] if entry.bos_id is not None else [])}
    groups: list[Group] = []
    lengths: list[np.ndarray] = []
    with tempfile.TemporaryDirectory(prefix="packline-") as folder:
        hashes = HashFiles(Path(folder), HASH_FILES, 0)
        counter = Counter(opened.tokenizer.vocab_size, special, before, hashes)
        splits: list[int] = []
        for split in dict.fromkeys(unit.split for unit in opened.reader.units):
            number, documents, tokens = len(splits), counter.tally.documents, counter.tally.tokens
            _count_split(opened, split, number, counter, lengths, on_progress)
            documents, tokens = counter.tally.documents - documents, counter.tally.tokens - tokens
            splits.append(counter.tally.documents)
            size = counter.tally.text_bytes.get(number, 0)
            groups.append(Group(split, opened.format.name, None, documents, tokens, size, 0))
        tally = counter.finish()
        every = np.concatenate([np.empty(0, np.int64), *lengths])
        duplicates = find_duplicates(
            Path(folder),
            HASH_FILES,
            lambda numbers: every[numbers],
            lambda numbers: np.searchsorted(splits, numbers, side="right"),
            top,
        )
    boundary = {entry.eod_id: tally.documents}
    if entry.bos_id is not None:
        boundary[entry.bos_id] = boundary.get(entry.bos_id, 0) + tally.documents
    return put_together(
        tally,
        vocabulary,
        boundary,
        top,
        path=str(path),
        format=opened.format.name,
        lengths=summarize_lengths(iter([every] if len(every) else [])),
        groups=groups,
        duplicates=duplicates,
        prices=[],
        places={},
    )


def _count_split(
    opened: OpenedDataset,
    split: str,
    number: int,
    counter: Counter,
    lengths: list[np.ndarray],
    on_progress: OnProgress,
) -> None:
    """Count the documents of a split, in unit order."""
    policy, sizes = opened.policy, TextBytes(opened.tokenizer)
    before = 0 if opened.boundary.bos_id is None else 1
    for unit in opened.reader.units:
        if unit.split != split:
            continue
        file = opened.reader.files[unit.file]
        for block in read_document_blocks(opened.reader, unit):
            if wrong := next(policy.problems(block), None):
                place = f"document {counter.tally.documents + wrong.document:,}, token {wrong.token:,}"
                raise CorruptStore(
                    f"{file.path}: {place}: {wrong}",
                    hint="another tokenizer? packline verify --from shows all problems",
                )
            ragged, _ = policy.restore(block)
            tokens = np.ascontiguousarray(ragged.tokens)
            if tokens.dtype.itemsize not in (2, 4):  # ids are below 2**31
                tokens = tokens.astype(np.uint32)
            text_bytes = sizes.of(tokens, ragged.offsets, before, 1)
            counter.add(counter.tally.documents, tokens, ragged.offsets, text_bytes, number, file.path)
            lengths.append(ragged.lengths)
            on_progress(len(tokens))
