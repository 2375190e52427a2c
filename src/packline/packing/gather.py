"""Reading of rows from the files of a store: their tokens, and the outline from which the rest follows.

    row of 8     document 7 whole | document 8, first 5 | the 6th           [B, L+1]
    tokens       -----------------------------------------
    targets       ---------------------------------------------

A row is read with the token behind it, the target of its last one: so tokens and targets are parts of one
array. A row that ends with its document, or is padded, has a token of padding there.

Documents are adjacent in a shard. So documents that follow one another in a row as they do in the store are
one copy, whatever their number: documents 7, 8, 9 are one copy, documents 7, 30, 9 three (best fit, shuffled
documents). Spans have the places of their documents, so nothing is looked up twice. All copies of a batch
and its padding are joined by one call, in the store's own dtype: a third of the time of an assignment for
each. If shards have `NAME.loss`, its bytes are joined too.

What a plan reads of a remote store is brought at once; its ranges are then slices of what is held.

Planning costs as much as reading does, most of it for each call and little for each row. So the rows of many
batches are planned together where they are known ahead, also those of several sources, and the plan is
divided into those of single batches.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from packline.packing.layout import Layout, Outline
from packline.packing.packer import Spans
from packline.store.reader import StoreReader
from packline.store.shard import Shard, wrong_id, wrong_place


class PlannedRows(NamedTuple):
    """Rows of one source, or of several of the same settings, and the N ranges that fill them."""

    stores: tuple[StoreReader, ...]
    layout: Layout
    last_targets: np.ndarray
    """bool `[B]`: True for rows with a token behind them that is the target of their last one."""
    shards: list[Shard]
    """Shard of each range."""
    starts: list[int]
    """First token of each in its shard."""
    stops: list[int]
    rows: np.ndarray
    """int64 `[N]`, ascending: row of the layout that each is for."""
    pad_id: int
    """Token at padding."""
    boundary_loss: bool
    """True if the last token of a document has the first of the next as its target."""
    has_loss: bool
    """True if any shard may have a `NAME.loss`."""

    @classmethod
    def of(
        cls, store: StoreReader, spans: Spans, seq_len: int, *, pad_id: int, boundary_loss: bool
    ) -> PlannedRows:
        """Plan rows.

        Args:
            store: store that holds the documents.
            spans: spans of B rows. Only the last span of a row may leave its document unfinished, and only
                where the row is full, which holds for every packing.
            seq_len: tokens per row, L.
            pad_id: token at padding.
            boundary_loss: True if the last token of a document has the first of the next as its target.

        Raises:
            RecipeError: a row fuller than `seq_len`.
            CorruptStore: an index points outside of its shard.
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
        shards = store.shards.pick(numbers.tolist())
        if len(starts) and starts[starts.argmin()] < 0:
            _check_places(shards, starts.tolist(), stops.tolist())
        ranges = (shards, starts.tolist(), stops.tolist(), rows)
        return cls((store,), layout, last_targets, *ranges, pad_id, boundary_loss, store.has_loss)

    def parts(self, bounds: Sequence[int]) -> list[PlannedRows]:
        """Rows `bounds[0]` to `bounds[1]`, rows `bounds[1]` to `bounds[2]`, and so on."""
        edges = self.rows.searchsorted(bounds).tolist()
        found = []
        for first, last, start, stop in zip(bounds, bounds[1:], edges, edges[1:], strict=False):
            here = slice(start, stop)
            part = self._replace(
                layout=self.layout.part(first, last),
                last_targets=self.last_targets[first:last],
                shards=self.shards[here],
                starts=self.starts[here],
                stops=self.stops[here],
                rows=self.rows[here] - first,
            )
            found.append(part)
        return found

    @classmethod
    def join(cls, planned: Sequence[PlannedRows], places: Sequence[np.ndarray]) -> PlannedRows:
        """Rows of several sources in one batch.

        Args:
            planned: rows of stores of one dtype, with the same `pad_id` and `boundary_loss`.
            places: rows of the batch that those of each source are, int64 `[B_i]` each.
        """
        rows = np.concatenate([place[part.rows] for part, place in zip(planned, places, strict=True)])
        order = rows.argsort(kind="stable")
        numbers = order.tolist()
        last_targets = np.empty(sum(map(len, places)), np.bool_)
        for part, place in zip(planned, places, strict=True):
            last_targets[place] = part.last_targets

        def joined(name: str) -> list[Any]:
            values = list(chain.from_iterable(getattr(part, name) for part in planned))
            return [values[number] for number in numbers]

        return planned[0]._replace(
            stores=tuple(dict.fromkeys(chain.from_iterable(part.stores for part in planned))),
            layout=Layout.join([one.layout for one in planned], places),
            last_targets=last_targets,
            shards=joined("shards"),
            starts=joined("starts"),
            stops=joined("stops"),
            rows=rows[order],
            has_loss=any(one.has_loss for one in planned),
        )

    def read(self, *, tokens: bool = True, targets: bool = True) -> tuple[np.ndarray | None, Outline]:
        """Read the rows.

        Args:
            tokens: False if they are not needed, nor targets.
            targets: False if the outline needs nothing that only targets depend on.

        Returns:
            Tokens and the one behind each row, `[B, L+1]` in the dtype of the store, read-only, or None; and
            the outline.

        Raises:
            CorruptStore: an id outside of the vocabulary, or an index that points outside of its shard.
        """
        layout, last_targets = self.layout, self.last_targets
        if not tokens:
            return None, Outline(layout, last_targets)
        for store in self.stores:
            store.files.bring_ranges(self.shards, self.starts, self.stops)
        ranges = zip(self.shards, self.starts, self.stops, strict=True)
        tokens_of_ranges = [shard.token_ranges[start:stop] for shard, start, stop in ranges]
        whole = self._joined(tokens_of_ranges, self.pad_id, self.stores[0].dtype)
        # Viewed as unsigned, negative ids are the largest of all: one pass finds both kinds of wrong id.
        vocabulary = self.stores[0].manifest.tokenizer.vocab_size
        unsigned = whole.view(np.uint16 if whole.itemsize == 2 else np.uint32)
        if _most(unsigned) >= vocabulary and (targets or _most(unsigned[:, :-1]) >= vocabulary):
            self._check_ids(vocabulary)  # or it is the padding, whose id may be any number
        trained = None
        if targets and self.has_loss:
            trained = self._joined(self._losses(), 1, np.dtype(np.uint8))
            last_targets = last_targets & (trained[:, -1] != 0)
        linked = np.ones(len(layout), np.bool_) if self.boundary_loss else None
        return whole, Outline(layout, last_targets, linked, trained)

    def _losses(self) -> list[np.ndarray]:
        """Bytes of `NAME.loss` of each range, ones where a shard has none."""
        return [
            np.ones(stop - start, np.uint8) if (loss := shard.loss_ranges) is None else loss[start:stop]
            for shard, start, stop in zip(self.shards, self.starts, self.stops, strict=True)
        ]

    def _joined(self, views: list[Any], pad: int, dtype: np.dtype) -> np.ndarray:
        """The ranges of all rows, each row's followed by its padding, `[B, L+1]`.

        The main thread joins them as bytes, which is fastest and holds the GIL. In a thread, NumPy copies
        them and releases the GIL, so that the trainer runs while pages are read from a disk.
        """
        shape = len(self.layout), self.layout.seq_len + 1
        filled = zip(self.layout.padding.tolist(), self.last_targets.tolist(), strict=True)
        sizes = [size + (not target) for size, target in filled]
        in_main = threading.current_thread() is threading.main_thread()
        if most := max(sizes, default=0):
            whole = np.array([pad], dtype).repeat(most)
            fillers = {size: whole[:size].tobytes() if in_main else whole[:size] for size in {*sizes} - {0}}
            ends = self.rows.searchsorted(np.arange(1, len(sizes) + 1)).tolist()
            for end, size in zip(reversed(ends), reversed(sizes), strict=True):
                if size:
                    views.insert(end, fillers[size])
        if in_main:
            found = np.frombuffer(b"".join(views), dtype)
        else:
            found = np.concatenate([np.empty(0, dtype), *views])
        if len(found) != shape[0] * shape[1]:  # a slice beyond the end of a file is shorter
            _check_places(self.shards, self.starts, self.stops)
        return found.reshape(shape)

    def _check_ids(self, vocabulary: int) -> None:
        """Search all tokens for the first one outside of the vocabulary."""
        for shard, start, stop in zip(self.shards, self.starts, self.stops, strict=True):
            tokens = shard.token_ranges[start:stop]
            wrong = np.flatnonzero((tokens < 0) | (tokens >= vocabulary))
            if len(wrong):
                raise wrong_id(shard, vocabulary, start + int(wrong[0]))


def _most(values: np.ndarray) -> int:
    """Largest of some numbers, 0 if there are none."""
    return int(np.maximum.reduce(values, axis=None, initial=0))


def _check_places(shards: list[Shard], starts: list[int], stops: list[int]) -> None:
    """Search for a range outside of its shard."""
    for shard, start, stop in zip(shards, starts, stops, strict=True):
        if start < 0 or stop > shard.entry.tokens:
            raise wrong_place(shard, start, stop)
