"""Find token ids, document ids and files in a store of any size, page by page; for texts, see `text_search`.

    find_tokens(store, [[1820, 262]], after=0)    -> places, and where to continue
    find_origins(store, id="a1b2", after=0)

A search proceeds through the store from `after` and stops when it has enough hits or its time is up; the next
page continues there. A page therefore takes the same time on any store, and a whole search as long as reading
the tokens once: 2 G tokens per second from memory.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from packline.store.reader import StoreReader
from packline.store.shard import Shard

if TYPE_CHECKING:
    import pyarrow as pa

BUDGET = 0.04
"""Seconds of searching per page."""
BLOCK = 1 << 18
"""Tokens searched between two checks of the time."""
MOST_IDS = 512
"""Maximum tokens of a search pattern."""


@dataclass(frozen=True, slots=True)
class Hit:
    """Place of a search result."""

    document: int
    start: int
    """First token, counted within the document."""
    length: int
    """Number of tokens."""
    skip: int = 0
    """Bytes of the first token before the text found."""


@dataclass(frozen=True, slots=True)
class Found:
    """Result of one page of a search."""

    hits: tuple[Hit, ...]
    after: int | None
    """Place from which to continue; None: the store has been searched to its end."""
    done: float
    """Share of the store that has been searched, from 0 to 1."""


def find_tokens(
    store: StoreReader,
    patterns: Sequence[Sequence[int]],
    *,
    after: int = 0,
    most: int = 20,
    budget: float = BUDGET,
) -> Found:
    """Find token sequences within documents, in the order of the store.

    Args:
        patterns: sequences of ids, none of them empty.
        after: token to begin at, counted over all shards: 0, or `after` of the previous page.
        most: maximum hits per page.
        budget: seconds; one block is searched however long it takes.

    Returns:
        The hits, ordered by place, then by pattern.
    """
    total, most_id = store.manifest.tokens, int(np.iinfo(store.dtype).max)
    wanted = [np.array(ids, np.int64) for ids in patterns if 0 < len(ids) <= MOST_IDS]
    wanted = [ids for ids in wanted if int(ids.min()) >= 0 and int(ids.max()) <= most_id]
    hits: list[Hit] = []

    def page(position: int) -> Found:
        return Found(tuple(hits), position if position < total else None, min(position / max(total, 1), 1.0))

    end, first, position = time.monotonic() + budget, 0, max(after, 0)
    for number, shard in enumerate(store.shards if wanted else ()):
        last = first + shard.entry.tokens
        while position < last:
            place, stop = position - first, min(position - first + BLOCK, last - first)
            found = sorted(
                (at, len(ids)) for ids in wanted for at in _in_block(shard.tokens, ids, place, stop)
            )
            for at, group in itertools.groupby(found, lambda one: one[0]):
                inner = document_at(shard, at)
                start = at - int(shard.places(slice(inner, inner + 1))[0])
                room = int(shard.lengths[inner]) - start
                document = int(store.firsts[number]) + inner
                hits += [Hit(document, start, length) for _, length in group if length <= room]
                if len(hits) >= most:
                    return page(first + at + 1)
            position = first + stop
            if time.monotonic() > end:
                return page(position)
        first = last
    return page(total)


def find_origins(
    store: StoreReader,
    column: str,
    value: str,
    *,
    position: int | None = None,
    after: int = 0,
    most: int = 20,
    budget: float = BUDGET,
) -> Found:
    """Find documents by their id or file in their source, in the order of the store.

    Args:
        column: `id` or `file`.
        value: the whole id, or the whole name of the file.
        position: find only documents at this position in the file.
        after: the document to begin at.
        most: approximate hits per page: those of one row group stay together.
        budget: seconds; one row group is read however long it takes.

    Raises:
        CorruptStore: a shard's provenance cannot be read.
    """
    total = len(store.documents)
    hits: list[Hit] = []
    end = time.monotonic() + budget
    for first, table in _row_groups(store, [column, "position"], after):
        mask = _equal(table[column], value)
        if position is not None:
            mask &= table["position"].to_numpy() == position
        found = first + np.flatnonzero(mask)
        found = found[found >= after][: most - len(hits)].tolist()
        hits += [Hit(document, 0, 0) for document in found]
        done = found[-1] + 1 if len(hits) >= most else first + table.num_rows
        if len(hits) >= most or time.monotonic() > end:
            return Found(tuple(hits), done if done < total else None, done / total)
    return Found(tuple(hits), None, 1.0)


def _in_block(tokens: np.ndarray, ids: np.ndarray, start: int, stop: int) -> list[int]:
    """Places from `start` to `stop` where these ids begin; they may end after `stop`."""
    rarest = int(ids.argmax())  # merges come late in a vocabulary, so a large id is probably rare
    stop = min(stop, len(tokens) - len(ids) + 1)
    if stop <= start:
        return []
    places = start + np.flatnonzero(tokens[start + rarest : stop + rarest] == ids[rarest])
    for place, one in enumerate(ids.tolist()):
        if place != rarest:
            places = places[tokens[places + place] == one]
    return places.tolist()


def document_at(shard: Shard, place: int) -> int:
    """Document of a shard that contains a token, found in the memory-mapped index without copying."""
    low, high = 0, len(shard)
    byte = place * shard.itemsize
    while high - low > 1:
        middle = (low + high) // 2
        if shard.offset_of(middle) <= byte:
            low = middle
        else:
            high = middle
    return low


def _row_groups(store: StoreReader, columns: list[str], after: int) -> Iterator[tuple[int, pa.Table]]:
    """Columns of provenance by row group, from that of document `after`, each with its first document."""
    for number in range(max(int(store.firsts.searchsorted(after, "right")) - 1, 0), len(store.shards)):
        file, first = store.shards[number].open_provenance(), int(store.firsts[number])
        for group, rows in enumerate(file.rows):
            if first + rows > after:
                yield first, file.read(group, columns)
            first += rows


def _equal(column: pa.ChunkedArray, value: str) -> np.ndarray:
    """Rows of a column that equal a value, bool `[N]`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        pieces = [
            pc.equal(piece.dictionary, value).to_numpy(zero_copy_only=False)[piece.indices.to_numpy()]
            for piece in column.chunks
        ]
        return np.concatenate([*pieces, np.empty(0, bool)]).astype(bool)
    return pc.fill_null(pc.equal(column, value), False).to_numpy()
