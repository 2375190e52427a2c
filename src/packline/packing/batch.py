"""Batches: rows read from the files of a store into arrays.

    row of 8     document 7 whole | document 8, first 5 | the 6th           [B, L+1]
    tokens       -----------------------------------------
    targets       ---------------------------------------------

A row is read with the token behind it, the target of its last one: so tokens and targets are parts of one
array. A row that ends with its document, or is padded, has a token of padding there. Documents that follow
one another in a row as they do in the store are one copy. All copies of a batch and its padding are joined by
one call, in the store's own dtype. Planning costs as much as reading, most of it for each call: so the rows
of many batches are planned together, also those of several sources, and the plan is divided.

Cost: 32 rows of 4,096 at random, the four arrays of `FIELDS`, 110 spans of a store of 160 MB: 160
microseconds on one core (reading 60, tokens 12, targets 14, positions 30, segments 19), and 40 for the plan,
where many batches are planned together.

Memory is used again once nothing refers to the arrays of an earlier batch. A batch that is allocated anew
costs a page fault for every page that malloc had returned to the kernel, up to five times as much as filling
it. So each use of a block has an owner, to which all its arrays and their views refer, and whose end gives
the memory back: an array never changes while anything refers to it. A process never has more memory for
batches than it needed at some time.
"""

from __future__ import annotations

import threading
from collections import ChainMap, deque
from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from packline.errors import RecipeError
from packline.packing.layout import IGNORED, Layout
from packline.packing.options import Field
from packline.packing.packer import Spans
from packline.store.reader import StoreReader
from packline.store.shard import Shard, wrong_id

if TYPE_CHECKING:
    from packline.packing.rows import Rows


class PlannedRows(NamedTuple):
    stores: tuple[StoreReader, ...]
    layout: Layout
    shards: list[Shard]
    starts: list[int]
    """First token of each in its shard."""
    stops: list[int]
    rows: np.ndarray
    """int64 `[N]`, ascending: row of the layout that each is for."""
    pad_ids: list[int]
    places: tuple[list[int], list[int]] | None = None
    """Piece of each range of a remote store, -1 for one that is not in one piece, and its begin there."""

    @classmethod
    def of(
        cls, store: StoreReader, spans: Spans, seq_len: int, *, pad_id: int, boundary_loss: bool
    ) -> PlannedRows:
        """Plan B rows of L tokens.

        Only the last span of a row may leave its document unfinished, and only where the row is full, which
        holds for every packing.
        """
        layout = Layout.of(spans.offsets, spans.lengths, seq_len)
        numbers = store.firsts.searchsorted(spans.documents, "right") - 1
        starts = spans.begins + spans.starts - store.token_firsts[numbers]
        stops = starts + spans.lengths
        # Spans that are adjacent in the store are one copy, if they are in one row.
        apart = np.empty(len(numbers) + 1, np.bool_)
        np.not_equal(starts[1:], stops[:-1], out=apart[1:-1])
        apart[1:-1] |= numbers[1:] != numbers[:-1]
        apart[layout.offsets] = True
        cuts = apart.nonzero()[0]
        first, last = cuts[:-1], cuts[1:] - 1
        # One row is a slice, which is quicker.
        final: Any = layout.offsets[1:] - 1 if len(layout) > 1 else slice(-1, None)
        if layout.padded:
            last_targets, full = np.zeros(len(layout), np.bool_), (layout.padding == 0).nonzero()[0]
            final = layout.offsets[1:][full] - 1
            last_targets[full] = spans.starts[final] + spans.lengths[final] < spans.sizes[final]
            stops[final] += last_targets[full]
        else:
            last_targets = spans.starts[final] + spans.lengths[final] < spans.sizes[final]
            stops[final] += last_targets
        numbers, starts, stops, rows = numbers[first], starts[first], stops[last], layout.rows[first]
        if boundary_loss and spans.following is not None:
            others = ((spans.following >= 0) & (layout.padding == 0) & ~last_targets).nonzero()[0]
            last_targets[others] = True
            behind = spans.following[others]
            found = [shard.offset_of(inner) for shard, inner in map(store.locate, behind.tolist())]
            begins = np.array(found, np.int64) // store.dtype.itemsize
            at = rows.searchsorted(others, "right")
            numbers = np.insert(numbers, at, store.firsts.searchsorted(behind, "right") - 1)
            starts, stops = np.insert(starts, at, begins), np.insert(stops, at, begins + 1)
            rows = np.insert(rows, at, others)
        layout.last_targets = last_targets
        if boundary_loss:
            layout.linked = np.ones(len(layout), np.bool_)
        shards = store.shards.pick(numbers.tolist())
        places = store.files.places(shards, starts, stops)
        ranges = (shards, starts.tolist(), stops.tolist(), rows)
        return cls((store,), layout, *ranges, [pad_id] * len(layout), places)

    def parts(self, bounds: Sequence[int]) -> list[PlannedRows]:
        """Rows `bounds[0]` to `bounds[1]`, rows `bounds[1]` to `bounds[2]`, and so on."""
        edges = self.rows.searchsorted(bounds).tolist()
        found = []
        for first, last, start, stop in zip(bounds, bounds[1:], edges, edges[1:], strict=False):
            here = slice(start, stop)
            part = self._replace(
                layout=self.layout.part(first, last),
                shards=self.shards[here],
                starts=self.starts[here],
                stops=self.stops[here],
                rows=self.rows[here] - first,
                pad_ids=self.pad_ids[first:last],
                places=self.places and (self.places[0][here], self.places[1][here]),
            )
            found.append(part)
        return found

    @classmethod
    def join(cls, planned: Sequence[PlannedRows], places: Sequence[np.ndarray]) -> PlannedRows:
        """Rows of several sources in one batch.

        Args:
            places: rows of the batch that those of each source are, int64 `[B_i]` each.
        """
        rows = np.concatenate([place[part.rows] for part, place in zip(planned, places, strict=True)])
        order = rows.argsort(kind="stable")
        numbers = order.tolist()

        def joined(name: str) -> list[Any]:
            values = list(chain.from_iterable(getattr(part, name) for part in planned))
            return [values[number] for number in numbers]

        pad_ids = [0] * sum(map(len, places))
        for part, place in zip(planned, places, strict=True):
            for row, pad_id in zip(place.tolist(), part.pad_ids, strict=True):
                pad_ids[row] = pad_id
        stores = tuple(dict.fromkeys(chain.from_iterable(part.stores for part in planned)))
        layout = Layout.join([one.layout for one in planned], places)
        ranges = (joined("shards"), joined("starts"), joined("stops"), rows[order])
        found = None
        if any(part.places is not None for part in planned):
            each = [part.places or ([-1] * len(part.shards), part.starts) for part in planned]
            pieces, begins = (list(chain.from_iterable(column)) for column in zip(*each, strict=True))
            found = [pieces[number] for number in numbers], [begins[number] for number in numbers]
        return cls(stores, layout, *ranges, pad_ids, found)

    def read(self, *, tokens: bool = True, targets: bool = True) -> tuple[np.ndarray | None, Layout]:
        """Tokens and the one behind each row, `[B, L+1]` in the widest dtype of the stores, read-only;
        and the layout, with the loss mask.

        Args:
            tokens: False if they are not needed, nor targets: then None.
            targets: False if nothing is needed that only targets depend on.
        """
        layout = self.layout
        if not tokens:
            return None, layout
        needs_loss = targets and any(store.has_loss for store in self.stores)
        views = None if self.places is None or needs_loss else self._held_tokens()
        if views is None:
            for store in self.stores:
                store.files.bring_ranges(self.shards, self.starts, self.stops)
            ranges = zip(self.shards, self.starts, self.stops, strict=True)
            views = [shard.token_ranges[start:stop] for shard, start, stop in ranges]
        whole = self._joined(views, self.pad_ids, {store.dtype for store in self.stores})
        # Viewed as unsigned, negative ids are the largest of all: one pass finds both kinds of wrong id.
        vocabulary = min(store.manifest.tokenizer.vocab_size for store in self.stores)
        unsigned = whole.view(np.uint16 if whole.itemsize == 2 else np.uint32)
        if _most(unsigned) >= vocabulary and (targets or _most(unsigned[:, :-1]) >= vocabulary):
            self._check_ids()  # or it is the padding, whose id may be any number
        if needs_loss:
            trained = self._joined(self._losses(), [1] * len(layout), {np.dtype(np.uint8)})
            last_targets = layout.last_targets & (trained[:, -1] != 0)
            layout = replace(layout, last_targets=last_targets, trained=trained)
        return whole, layout

    def _held_tokens(self) -> list[np.ndarray] | None:
        """Tokens of each range, without a look at its file; None if a piece of a remote store is not held."""
        assert self.places is not None
        each = [store.files.held for store in self.stores]
        held: MutableMapping[int, np.ndarray] = each[0] if len(each) == 1 else ChainMap(*each)
        ranges = zip(*self.places, self.starts, self.stops, strict=True)
        try:
            found: list[Any] = [
                held[piece][begin : begin + stop - start] if piece >= 0 else None
                for piece, begin, start, stop in ranges
            ]
        except KeyError:
            return None
        for number in [number for number, piece in enumerate(self.places[0]) if piece < 0]:
            found[number] = self.shards[number].token_ranges[self.starts[number] : self.stops[number]]
        return found

    def _losses(self) -> list[np.ndarray]:
        return [
            np.ones(stop - start, np.uint8) if (loss := shard.loss_ranges) is None else loss[start:stop]
            for shard, start, stop in zip(self.shards, self.starts, self.stops, strict=True)
        ]

    def _joined(self, views: list[Any], pads: list[int], dtypes: set[np.dtype]) -> np.ndarray:
        """The ranges of all rows, each row's followed by its padding, `[B, L+1]`.

        The main thread joins them as bytes, which is fastest and holds the GIL. In a thread, NumPy copies
        them and releases the GIL, so that the trainer runs while pages are read from a disk.
        """
        layout, dtype = self.layout, np.result_type(*dtypes)
        sizes = (layout.padding + ~layout.last_targets).tolist()
        if most := max(sizes, default=0):
            blanks = {pad: np.array([pad], dtype).repeat(most) for pad in set(pads)}
            ends = self.rows.searchsorted(np.arange(1, len(sizes) + 1)).tolist()
            for end, size, pad in zip(reversed(ends), reversed(sizes), reversed(pads), strict=True):
                if size:
                    views.insert(end, blanks[pad][:size])
        if len(dtypes) == 1 and threading.current_thread() is threading.main_thread():
            found = np.frombuffer(b"".join(views), dtype)
        else:
            found = np.concatenate([np.empty(0, dtype), *views])
        return found.reshape(len(layout), layout.seq_len + 1)

    def _check_ids(self) -> None:
        sizes = {store.files: store.manifest.tokenizer.vocab_size for store in self.stores}
        for shard, start, stop in zip(self.shards, self.starts, self.stops, strict=True):
            tokens, vocabulary = shard.token_ranges[start:stop], sizes[shard.files]
            wrong = np.flatnonzero((tokens < 0) | (tokens >= vocabulary))
            if len(wrong):
                raise wrong_id(shard, vocabulary, start + int(wrong[0]))


def _most(values: np.ndarray) -> int:
    return int(np.maximum.reduce(values, axis=None, initial=0))


ALL_FIELDS: tuple[str, ...] = get_args(Field)
FIELDS = ALL_FIELDS[:-1]
"""All but the loss mask."""


class BatchPart(NamedTuple):
    """Rows of one source in a batch."""

    source: Rows
    rows: np.ndarray
    """int64 `[b]`: numbers of the rows in the source."""
    places: np.ndarray | None = None
    """int64 `[b]`: rows of the batch that they are; None: the whole batch, in order."""


def plan_rows(parts: Sequence[BatchPart]) -> PlannedRows:
    planned = [part.source.plan(part.rows) for part in parts]
    places = [part.places for part in parts if part.places is not None]
    return PlannedRows.join(planned, places) if places else planned[0]


class CompactBatch(NamedTuple):
    """A batch in an eighth of the bytes: tokens, and the layout from which its other arrays follow."""

    tokens: np.ndarray | None
    """Tokens and the one behind each row, `[B, L+1]` in the dtype of the store; None if not needed."""
    layout: Layout
    fields: tuple[str, ...]

    @classmethod
    def read(cls, parts: Sequence[BatchPart], fields: Sequence[str] = FIELDS) -> CompactBatch:
        return cls.of(plan_rows(parts), fields)

    @classmethod
    def of(cls, planned: PlannedRows, fields: Sequence[str]) -> CompactBatch:
        kinds = _kinds(tuple(fields))
        return cls(*planned.read(tokens="tokens" in kinds, targets="targets" in kinds), tuple(fields))

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays by name, each `[B, L]` and new at every call: int32, `loss_mask` uint8.

        Targets are -100 at padding, at the end of a document (unless it predicts the next: `boundary_loss`)
        and where the target is a token that is not trained on (`NAME.loss`); `loss_mask` is 1 elsewhere.
        Positions start at 0 in every span, also in one that continues a document. Segments are numbered
        within the row; -1 is padding.
        """
        layout, tokens, kinds = self.layout, self.tokens, _kinds(self.fields)
        arrays = _allocate(kinds, (len(layout), layout.seq_len))
        if tokens is not None:
            arrays["tokens"][:] = tokens[:, :-1]
        if "targets" in kinds and tokens is not None:
            arrays["targets"][:] = tokens[:, 1:]
            layout.leave_out(arrays["targets"], IGNORED)
        if "loss_mask" in kinds:
            arrays["loss_mask"].fill(1)
            layout.leave_out(arrays["loss_mask"], 0)
        if "position_ids" in kinds:
            layout.fill_positions(arrays["position_ids"].reshape(-1))
        if "segment_ids" in kinds:
            layout.fill_segments(arrays["segment_ids"].reshape(-1))
        return {name: arrays[name] for name in self.fields}


@cache
def _kinds(fields: tuple[str, ...]) -> dict[str, np.dtype[Any]]:
    if unknown := sorted(set(fields).difference(ALL_FIELDS)):
        raise RecipeError(f"no field {', '.join(unknown)}: expected some of {', '.join(ALL_FIELDS)}")
    needed = set(fields)
    if "loss_mask" in needed:
        needed.add("targets")
    if "targets" in needed:
        needed.add("tokens")
    kinds = dict.fromkeys(ALL_FIELDS, np.dtype(np.int32)) | {"loss_mask": np.dtype(np.uint8)}
    return {name: kind for name, kind in kinds.items() if name in needed}


def _allocate(kinds: dict[str, np.dtype[Any]], shape: tuple[int, int]) -> dict[str, np.ndarray]:
    """Allocate arrays `[B, L]`, adjacent in one block of memory."""
    count = shape[0] * shape[1]
    block = take_memory(count * sum(kind.itemsize for kind in kinds.values()))
    arrays: dict[str, np.ndarray] = {}
    begin = 0
    for name, kind in kinds.items():
        arrays[name] = np.ndarray(shape, kind, block, begin)
        begin += count * kind.itemsize
    return arrays


KEPT = 4
"""Free blocks that are kept: as many as a loader with two batches ahead has in use."""
LEAST = 1 << 17
"""Bytes from which a block is kept; malloc keeps smaller ones itself."""
HUGE = 1 << 21
"""Bytes of a huge page. NumPy asks the kernel for them for arrays of twice that size."""

_FREE: deque[_Memory] = deque(maxlen=KEPT)


class _Memory:
    """Memory of a block, aligned to huge pages (filling takes a sixth less), and its description."""

    __slots__ = ("described", "memory", "size")

    def __init__(self, size: int) -> None:
        spare = HUGE if size >= HUGE else 0
        memory = np.empty(size + spare, np.uint8)
        begin = -memory.ctypes.data % HUGE if spare else 0
        self.size, self.memory = size, memory
        self.described: dict[str, Any] = memory[begin : begin + size].__array_interface__


class _Owner:
    """One use of a block: base of all its views, and as long-lived as the last of them."""

    __slots__ = ("__array_interface__", "_memory")

    def __init__(self, memory: _Memory) -> None:
        self._memory, self.__array_interface__ = memory, memory.described

    def __del__(self, free: deque[_Memory] = _FREE) -> None:
        free.append(self._memory)


def take_memory(size: int) -> np.ndarray:
    """Block of memory with any contents, uint8 `[size]`.

    >>> first = take_memory(1 << 20)
    >>> row, place = first[:4], first.ctypes.data
    >>> del first
    >>> take_memory(1 << 20).ctypes.data == place      # a view of it exists
    False
    >>> del row
    >>> take_memory(1 << 20).ctypes.data == place
    True
    """
    if size < LEAST:
        return np.empty(size, np.uint8)
    return np.asarray(_Owner(_free_memory(size) or _Memory(size)))


def _free_memory(size: int) -> _Memory | None:
    """Free memory of this size; if there is none, the memory that has been free for longest is given up.

    Without a lock, since the end of an array may come at any point of any thread: each step is atomic.
    """
    try:
        for _ in range(len(_FREE)):
            memory = _FREE.pop()
            if memory.size == size:
                return memory
            _FREE.appendleft(memory)
        if len(_FREE) > 1:  # two sizes in turn may have one each
            _FREE.popleft()
    except IndexError:  # another thread took it
        pass
    return None
