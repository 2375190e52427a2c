"""Contents of a store, or of a run: totals of groups, lengths of documents, columns, first documents.

Lengths up to a million tokens are counted by value, so quantiles are exact there and memory is 8 MB for a
store of any size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from packline.conversion import kind_of
from packline.errors import refuse_unknown_names
from packline.recipe import Recipe
from packline.store.ledger import Ledger
from packline.store.manifest import ImportEntry, TokenizerEntry
from packline.store.provenance import Provenance
from packline.store.reader import StoreReader, shard_labels
from packline.viewing.columns import count_columns

if TYPE_CHECKING:
    from packline.loading.run_summary import RunUse

CHARACTERS = 1000
"""Maximum characters of a document's text."""
MARGIN = 8
"""Characters at the end of a truncated text that may change with the next token."""
UNKNOWN = "\ufffd"
LONGEST_COUNTED = 1 << 20
BLOCK = 1 << 20


class Group(msgspec.Struct, frozen=True):
    """Totals for one split, source and label of a store."""

    split: str
    source: str
    label: str | None
    documents: int
    tokens: int
    text_bytes: int
    shards: int


class DocumentLengths(msgspec.Struct, frozen=True):
    """Tokens per document, boundary tokens included."""

    shortest: int
    median: int
    mean: float
    p90: int
    p99: int
    longest: int
    histogram: list[int]
    """Documents of 1, 2 to 3, 4 to 7, ... tokens: entry k counts lengths from 2**k to 2**(k+1) - 1."""


class FirstDocument(Provenance, frozen=True):
    """Origin of a document, and the beginning of its text."""

    text: str = ""


class StoreInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a store."""

    store: str
    documents: int
    tokens: int
    text_bytes: int
    store_bytes: int
    dtype: str
    shards: int
    tokenizer: TokenizerEntry
    recipe: Recipe
    imported: tuple[ImportEntry, ...] | None
    groups: list[Group]
    """Totals by split, source and label."""
    lengths: DocumentLengths
    columns: list[dict[str, Any]]
    """Summaries of the columns that the documents carry."""
    ledger: Ledger
    sources: dict[str, Ledger]
    first_documents: list[FirstDocument]


@refuse_unknown_names
def info(path: str | Path, *, documents: int = 3) -> StoreInfo | RunUse:
    """Contents of a store, or what a run reads, as `packline info --json` prints it.

    Args:
        path: folder or URI of a finished store, or a run file (`.toml`).
        documents: number of first documents.

    Raises:
        StoreNotFound: there is no store.
        CorruptStore: it is damaged.
        RecipeError: not a run file.

    >>> contents = info(store.path)
    >>> contents.documents, contents.lengths.longest, contents.first_documents[0].file
    (1, 25, 'words.txt')
    """
    if kind_of(path) == "run file":
        from packline.loading.run_summary import summarize_run

        return summarize_run(path)
    store = StoreReader(path)
    manifest = store.manifest
    return StoreInfo(
        store=str(store.place),
        documents=manifest.documents,
        tokens=manifest.tokens,
        text_bytes=manifest.ledger.text_bytes,
        store_bytes=manifest.store_bytes,
        dtype=manifest.dtype,
        shards=len(manifest.shards),
        tokenizer=manifest.tokenizer,
        recipe=manifest.recipe,
        imported=manifest.imported or None,
        groups=group_shards(store),
        lengths=measure_lengths(store),
        columns=[one.as_json() for one in count_columns(store)],
        ledger=manifest.ledger,
        sources=manifest.sources,
        first_documents=[
            FirstDocument(
                **msgspec.structs.asdict(store.provenance(number)), text=first_characters(store, number)
            )
            for number in range(min(max(documents, 0), len(store.documents)))
        ],
    )


def first_characters(store: StoreReader, number: int) -> str:
    """First characters of a document's text, decoding little more than needed.

    A cut may fall within a character, and some decoders then also lose what precedes it, so more tokens are
    taken until the characters are complete or no tokens are left.
    """
    start = 0 if store.manifest.tokenizer.bos_id is None else 1
    tokens, taken = store.documents[number][start:-1], CHARACTERS
    while True:
        text = str(store.tokenizer.decode(tokens[:taken].tolist(), skip_special_tokens=False))
        found = text[:CHARACTERS]
        if taken >= len(tokens) or (len(text) > CHARACTERS + MARGIN and UNKNOWN not in found):
            return found
        taken *= 4


def group_shards(store: StoreReader, text_bytes: Mapping[int, int] | None = None) -> list[Group]:
    """Totals by split, source and label, with sources in the order of the recipe."""
    groups: dict[tuple[str, int, str, str | None], list[int]] = {}
    for number, (shard, origin) in enumerate(zip(store.manifest.shards, shard_labels(store), strict=True)):
        sums = groups.setdefault((shard.split, *origin), [0, 0, 0, 0])
        counts = (shard.documents, shard.tokens, (text_bytes or {}).get(number, 0), 1)
        for place, count in enumerate(counts):
            sums[place] += count
    return [
        Group(split, source, label, *sums)
        for (split, _, source, label), sums in sorted(groups.items(), key=lambda item: item[0][:2])
    ]


def measure_lengths(store: StoreReader) -> DocumentLengths:
    return summarize_lengths(length_blocks(store))


def summarize_lengths(blocks: Iterator[np.ndarray]) -> DocumentLengths:
    """Summarize lengths.

    Args:
        blocks: lengths, integers `[D]` each, not empty.
    """
    counts = np.zeros(LONGEST_COUNTED + 1, np.int64)
    histogram = np.zeros(32, np.int64)
    longest = tokens = 0
    for lengths in blocks:
        longest, tokens = max(longest, int(lengths.max())), tokens + int(lengths.sum(dtype=np.int64))
        counts += np.bincount(np.minimum(lengths, LONGEST_COUNTED), minlength=len(counts))
        powers = np.frexp(np.maximum(lengths, 1).astype(np.float64))[1] - 1
        histogram += np.bincount(powers, minlength=32)
    documents = int(counts.sum())
    if not documents:
        return DocumentLengths(0, 0, 0.0, 0, 0, 0, [])
    sums = np.cumsum(counts)

    def quantile(share: float) -> int:
        place = min(int(share * documents), documents - 1)
        return int(np.searchsorted(sums, place, side="right"))

    last = int(np.flatnonzero(histogram)[-1])
    return DocumentLengths(
        quantile(0),
        quantile(0.5),
        tokens / documents,
        quantile(0.9),
        quantile(0.99),
        longest,
        histogram[: last + 1].tolist(),
    )


def length_blocks(store: StoreReader) -> Iterator[np.ndarray]:
    """Lengths of all documents in order, small shards joined because counting has a cost per block."""
    waiting: list[np.ndarray] = []
    held = 0
    for shard in store.shards:
        waiting.append(np.array(shard.lengths))  # a copy, so that no memory map stays open
        held += len(waiting[-1])
        if held >= BLOCK:
            yield np.concatenate(waiting)
            waiting, held = [], 0
    if held:
        yield np.concatenate(waiting)
