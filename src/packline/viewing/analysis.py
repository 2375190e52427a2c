"""What is in a store, or in another project's documents, counted from every token in one pass.

    store ── ranges of documents, a process each ──> Tally ── add_up ──┐
    data set of another format ── blocks, in this process ──> Tally ───┼──> Analysis ──> page, report, JSON
    indexes ── lengths, prices of packings ────────────────────────────┘

All of it is exact; `suspicious` says what a screen may miss. The same store gives the same analysis,
whatever the number of processes.

Cost: 4 to 7 nanoseconds a token and half a microsecond a document, in each process; bounded memory (see
`tally`, `duplicates`) but for lengths of other formats, eight bytes a document.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from packline.packing.prices import Price
from packline.store.finding import provenance_of
from packline.store.origins import origins
from packline.store.reader import Store
from packline.viewing.counting import OnProgress, count_store
from packline.viewing.duplicates import Duplicates, count_files, find_duplicates
from packline.viewing.lengths import Lengths, measure_lengths
from packline.viewing.rates import Rates, measure_rates
from packline.viewing.suspicious import REASONS
from packline.viewing.tally import Suspect, Tally, add_up
from packline.viewing.vocabulary import Vocabulary

TOP = 20
FEW, MANY = "few bytes a token", "many bytes a token"


class Group(msgspec.Struct, frozen=True):
    """What a store has of one split, source and label."""

    split: str
    source: str
    label: str | None
    documents: int
    tokens: int
    text_bytes: int
    shards: int


class TokenCount(msgspec.Struct, frozen=True):
    """How often a token is there."""

    id: int
    text: str
    """What it stands for; bytes that are no UTF-8 as `\\xNN`; the name of a special token."""
    count: int


class Suspicious(msgspec.Struct, frozen=True):
    """Documents that look wrong in one way."""

    reason: str
    rule: str
    count: int
    """All of them."""
    documents: list[Suspect]
    """The worst."""


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    path: str
    format: str
    """`store`, or the name of a format."""
    tokenizer: str
    vocab_size: int
    documents: int
    tokens: int
    text_bytes: int
    text_tokens: int
    """Without the boundary tokens of documents."""
    lengths: Lengths
    groups: list[Group]
    special: list[TokenCount]
    """Special tokens that are there, boundary tokens among them."""
    boundary: dict[int, int]
    """How often each id stands at the edge of a document; in `special` these are counted too."""
    most_used: list[TokenCount]
    never_used: int
    """Ids of the vocabulary that have a token which is nowhere; special ones aside."""
    never_used_first: list[TokenCount]
    rates: Rates
    suspicious: list[Suspicious]
    duplicates: Duplicates
    prices: list[Price]
    places: dict[int, str]
    """Where the documents that are named come from."""

    @property
    def bytes_per_token(self) -> float:
        """Of text, boundary tokens aside; 0 where there is none."""
        return self.text_bytes / self.text_tokens if self.text_tokens else 0.0


def analyze(
    store: str | Path | Store,
    *,
    seq_len: int | Sequence[int] = (),
    packing: str | None = None,
    top: int = TOP,
    workers: int | None = None,
    on_progress: OnProgress = lambda tokens: None,
) -> Analysis:
    """Count everything in a store.

    Args:
        store: it, or its folder.
        seq_len: lengths of rows to price packings for.
        packing: this one only.
        top: how many tokens, documents and groups to name of each kind.
        workers: processes; None: as many as this process has cores, 0: this one.
        on_progress: is called with tokens that were counted since the last call.

    Raises:
        StoreNotFound: there is none.
        CorruptStore: an id outside the vocabulary, or files that disagree.
        RecipeError: a length or a packing that makes no sense.

    >>> analysis = analyze(store, workers=0)
    >>> analysis.documents, analysis.tokens, analysis.most_used[0].count
    (1, 25, 16)
    """
    from packline.runtime.resources import usable_cores

    opened = store if isinstance(store, Store) else Store(store)
    prices = _prices(opened, [seq_len] if isinstance(seq_len, int) else seq_len, packing)
    entry, vocabulary = opened.manifest.tokenizer, Vocabulary.of_store(opened)
    files = count_files(opened.manifest.documents)
    firsts = opened.firsts

    def shards_of(numbers: np.ndarray) -> np.ndarray:
        return np.searchsorted(firsts, numbers, side="right") - 1

    def tokens_of(numbers: np.ndarray) -> np.ndarray:
        shards = shards_of(numbers)
        found = np.empty(len(numbers), np.int64)
        for shard in np.unique(shards).tolist():
            here = shards == shard
            found[here] = opened.shards[shard].lengths[numbers[here] - firsts[shard]]
        return found

    names = {split: number for number, split in enumerate(dict.fromkeys(_splits(opened)))}
    codes = np.array([names[split] for split in _splits(opened)], np.int64)
    with tempfile.TemporaryDirectory(prefix="packline-") as folder:
        processes = usable_cores() if workers is None else workers
        special = list(vocabulary.special)
        tallies = count_store(
            opened, special, Path(folder), files, workers=processes, on_progress=on_progress
        )
        duplicates = find_duplicates(
            Path(folder), files, tokens_of, lambda numbers: codes[shards_of(numbers)], top
        )
    tally = add_up(tallies, entry.vocab_size)
    boundary = {entry.eod_id: tally.documents}
    if entry.bos_id is not None:
        boundary[entry.bos_id] = boundary.get(entry.bos_id, 0) + tally.documents
    analysis = put_together(
        tally,
        vocabulary,
        boundary,
        top,
        path=str(opened.path),
        format="store",
        lengths=measure_lengths(opened),
        groups=_groups(opened, tally.text_bytes),
        duplicates=duplicates,
        prices=prices,
        places={},
    )
    return msgspec.structs.replace(analysis, places=_places(opened, analysis))


def put_together(
    tally: Tally, vocabulary: Vocabulary, boundary: Mapping[int, int], top: int, **known: Any
) -> Analysis:
    """An analysis from what was counted.

    Args:
        boundary: how often each boundary token stands at the edge of a document.
        known: the other fields.
    """
    used = tally.used()
    special = np.zeros(tally.vocab_size, bool)
    special[[one for one in vocabulary.special if one < tally.vocab_size]] = True
    has_token = np.array([bool(data) for data in vocabulary.data], bool)
    plain = np.where(special, 0, used)
    most = np.lexsort((np.arange(len(plain)), -plain))[:top]
    never = np.flatnonzero((used == 0) & has_token & ~special)
    rates = measure_rates(np.array(tally.rates))
    return Analysis(
        tokenizer=vocabulary.name,
        vocab_size=tally.vocab_size,
        documents=tally.documents,
        tokens=tally.tokens,
        text_bytes=sum(tally.text_bytes.values()),
        text_tokens=tally.tokens - sum(boundary.values()),
        special=[
            TokenCount(int(one), text_of(vocabulary, int(one)), int(used[one]))
            for one in np.flatnonzero(special & (used > 0))
        ],
        boundary=dict(boundary),
        most_used=[
            TokenCount(int(one), text_of(vocabulary, int(one)), int(plain[one])) for one in most if plain[one]
        ],
        never_used=len(never),
        never_used_first=[TokenCount(int(one), text_of(vocabulary, int(one)), 0) for one in never[:top]],
        rates=rates,
        suspicious=_suspicious(tally, rates, top),
        **known,
    )


def text_of(vocabulary: Vocabulary, number: int) -> str:
    """What a token stands for, or its name.

    >>> text_of(Vocabulary("tiny", [b"a", b"\\xc3", b""], {2: "</s>"}), 1)
    '\\\\xc3'
    """
    if number in vocabulary.special:
        return vocabulary.special[number]
    return vocabulary.data[number].decode("utf-8", "backslashreplace") or f"id {number}"


def _suspicious(tally: Tally, rates: Rates, top: int) -> list[Suspicious]:
    found = [
        Suspicious(reason, rule, tally.found[reason], tally.suspects[reason][:top])
        for reason, rule in REASONS.items()
    ]
    low, high = f"below {rates.low:.2f} bytes a token", f"{rates.high:.2f} bytes a token or more"
    few = [one for one in tally.suspects["few"] if one.value < rates.low]
    many = [one for one in tally.suspects["many"] if one.value >= rates.high]
    return [
        *found,
        Suspicious(FEW, low, rates.few, few[:top]),
        Suspicious(MANY, high, rates.many, many[:top]),
    ]


def _prices(store: Store, lengths: Sequence[int], packing: str | None) -> list[Price]:
    if not lengths or not store.manifest.documents:
        return []
    from packline.packing.packer import PACKINGS
    from packline.packing.prices import price_list
    from packline.packing.selection import Selection

    splits = _splits(store)
    selection = Selection(store, split="train" if "train" in splits else "all")
    packings = PACKINGS if packing is None else [packing]
    return [price for length in dict.fromkeys(lengths) for price in price_list(selection, length, packings)]


def _splits(store: Store) -> list[str]:
    """The split of each shard."""
    return [entry.split for entry in store.manifest.shards]


def _groups(store: Store, text_bytes: Mapping[int, int]) -> list[Group]:
    """Sums over shards, sources in the order of the recipe."""
    groups: dict[tuple[str, int, str, str | None], list[int]] = {}
    for number, (shard, origin) in enumerate(zip(store.manifest.shards, origins(store), strict=True)):
        sums = groups.setdefault((shard.split, *origin), [0, 0, 0, 0])
        counts = (shard.documents, shard.tokens, text_bytes.get(number, 0), 1)
        for place, count in enumerate(counts):
            sums[place] += count
    return [
        Group(split, source, label, *sums)
        for (split, _, source, label), sums in sorted(groups.items(), key=lambda item: item[0][:2])
    ]


def _places(store: Store, analysis: Analysis) -> dict[int, str]:
    """Where the documents come from that an analysis names."""
    named = {one.document for kind in analysis.suspicious for one in kind.documents}
    numbers = sorted(named.union(*(group.documents for group in analysis.duplicates.largest)))
    found = provenance_of(store, np.array(numbers, np.int64)) if numbers else []
    places = {}
    for number, one in zip(numbers, found, strict=True):
        name = f", id {one.id}" if one.id is not None else ""
        places[number] = f"{one.source}/{one.file} at {one.position:,}{name}"
    return places
