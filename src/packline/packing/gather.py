"""Reading of rows from the files of a store: their tokens, and the layout from which the rest follows.

    row of 8     document 7 whole | document 8, first 5 | the 6th           [B, L+1]
    tokens       -----------------------------------------
    targets       ---------------------------------------------

A row is read with the token behind it, the target of its last one: so tokens and targets are parts of one
array. A row that ends with its document, or is padded, has a token of padding there. Documents that follow
one another in a row as they do in the store are one copy. All copies of a batch and its padding are joined by
one call, in the store's own dtype. Planning costs as much as reading, most of it for each call: so the rows
of many batches are planned together, also those of several sources, and the plan is divided.
"""

from __future__ import annotations

import threading
from collections import ChainMap
from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from packline.packing.layout import Layout
from packline.packing.packer import Spans
from packline.store.reader import StoreReader
from packline.store.shard import Shard, wrong_id


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
