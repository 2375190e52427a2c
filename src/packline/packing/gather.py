"""Reading of rows from the files of a store: their tokens, and the outline from which the rest follows.

    Copies        ranges of tokens, in the order of the rows that they fill
    PlannedRows   rows whose layout and copies are known, to be read

Documents are adjacent in a shard. So documents that follow one another in a row as they do in the store are
one copy, whatever their number: documents 7, 8, 9 are one copy, documents 7, 30, 9 three (best fit, shuffled
documents). Spans have the places of their documents, so nothing is looked up twice. All copies of a batch,
its padding and the tokens behind its rows are joined by one call, in the store's own dtype: a third of the
time of an assignment for each. If shards have `NAME.loss`, its bytes are joined too.

Copies of a remote store are cut where its pieces end. What a plan reads is brought at once, and a copy is
then a slice of one piece that is held.

Planning costs as much as reading does, most of it for each call and little for each row. So the rows of many
batches are planned together where they are known ahead, also those of several sources, and the plan is
divided into those of single batches.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from packline.packing.layout import IGNORED, Layout, Outline
from packline.packing.packer import Spans
from packline.store.reader import StoreReader
from packline.store.shard import Shard, wrong_id, wrong_place

if TYPE_CHECKING:
    from packline.store.pieces import Held, PieceRanges


class Copies(NamedTuple):
    """N ranges of tokens, each in one shard and for one row."""

    shards: list[Shard]
    starts: list[int]
    """First token of each in its shard."""
    stops: list[int]
    rows: np.ndarray
    """int64 `[N]`, ascending: row of the layout."""
    pieces: PieceRanges | None = None
    """Places in the pieces of a remote store, where the ranges are cut."""

    @classmethod
    def of(
        cls, store: StoreReader, numbers: np.ndarray, starts: np.ndarray, stops: np.ndarray, rows: np.ndarray
    ) -> Copies:
        """Ranges of a store.

        Args:
            store: store that holds the documents.
            numbers: number of each range's shard, int64 `[N]`.
            starts: first token of each in its shard, int64 `[N]`.
            stops: one past its last token, int64 `[N]`.
            rows: row of the layout, int64 `[N]`, ascending.

        Raises:
            CorruptStore: a range begins before its shard.
        """
        found = cls(store.shards.pick(numbers.tolist()), starts.tolist(), stops.tolist(), rows)
        if min(found.starts, default=0) < 0:
            found.check_places()
        return found if store.mirror is None else found._in_pieces()

    def check_places(self) -> None:
        """Search for a range outside of its shard.

        Raises:
            CorruptStore: there is one.
        """
        for shard, start, stop in zip(self.shards, self.starts, self.stops, strict=True):
            if start < 0 or stop > shard.entry.tokens:
                raise wrong_place(shard, start, stop)

    def _in_pieces(self) -> Copies:
        """The same ranges of a remote store, cut where its pieces end."""
        from packline.store.pieces import cut_ranges

        lengths = (np.array(self.stops, np.int64) - self.starts).tolist()
        cut = cut_ranges(self.shards, self.starts, lengths)
        shards = [self.shards[copy] for copy in cut.ranges.tolist()]
        stops = (cut.starts + cut.lengths).tolist()
        return Copies(shards, cut.starts.tolist(), stops, self.rows[cut.ranges], cut.pieces)

    def part(self, first: int, last: int) -> Copies:
        """Ranges of rows `first` to `last` alone."""
        return self._slice(first, *self.rows.searchsorted([first, last]).tolist())

    def parts(self, size: int, count: int) -> list[Copies]:
        """Ranges of rows 0 to `size`, of the `size` rows after them, and so on: `count` parts."""
        firsts = range(0, size * count, size)
        bounds = self.rows.searchsorted([*firsts, size * count]).tolist()
        return [self._slice(*where) for where in zip(firsts, bounds, bounds[1:], strict=False)]

    def _slice(self, first: int, start: int, stop: int) -> Copies:
        """Ranges `start` to `stop`, where row `first` is the first."""
        here = slice(start, stop)
        pieces = None if self.pieces is None else self.pieces.part(start, stop)
        return Copies(self.shards[here], self.starts[here], self.stops[here], self.rows[here] - first, pieces)

    @classmethod
    def join(cls, parts: Sequence[Copies], places: Sequence[np.ndarray]) -> Copies:
        """Ranges of several local sources; see `PlannedRows.join`."""
        rows = np.concatenate([place[part.rows] for part, place in zip(parts, places, strict=True)])
        order = rows.argsort(kind="stable")
        numbers = order.tolist()

        def joined(name: str) -> list[Any]:
            values = list(chain.from_iterable(getattr(part, name) for part in parts))
            return [values[number] for number in numbers]

        return cls(joined("shards"), joined("starts"), joined("stops"), rows[order])

    def needed(self) -> set[int]:
        """Pieces that hold them and their bytes of `NAME.loss`."""
        if self.pieces is None:
            return set()
        return {*self.pieces.numbers, *(self.pieces.masks or ())}

    def tokens(self, held: Held) -> list[np.ndarray]:
        """Tokens of each.

        Args:
            held: the pieces, for ranges of a remote store.
        """
        if self.pieces is None:
            copies = zip(self.shards, self.starts, self.stops, strict=True)
            return [shard.token_ranges[start:stop] for shard, start, stop in copies]
        cut = zip(self.pieces.numbers, self.pieces.begins, self.starts, self.stops, strict=True)
        return [held[piece][begin : begin + stop - start] for piece, begin, start, stop in cut]

    def losses(self) -> list[np.ndarray]:
        """Bytes of `NAME.loss` of each, ones where a shard has none."""
        copies = zip(self.shards, self.starts, self.stops, strict=True)
        return [
            np.ones(stop - start, np.uint8) if (loss := shard.loss_ranges) is None else loss[start:stop]
            for shard, start, stop in copies
        ]

    def check_ids(self, vocabulary: int) -> None:
        """Search all tokens for the first one outside of the vocabulary.

        Raises:
            CorruptStore: there is one.
        """
        for shard, start, stop in zip(self.shards, self.starts, self.stops, strict=True):
            tokens = shard.token_ranges[start:stop]
            wrong = np.flatnonzero((tokens < 0) | (tokens >= vocabulary))
            if len(wrong):
                raise wrong_id(shard, vocabulary, start + int(wrong[0]))


class PlannedRows(NamedTuple):
    """Rows of one source, or of several local ones of the same settings, whose copies are known."""

    store: StoreReader
    layout: Layout
    copies: Copies
    behind: Copies
    """Single tokens that are targets of the last ones of rows: where a row ends within a document."""
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
            spans: spans of B rows. Only the last span of a row may leave its document unfinished, which holds
                for every packing.
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
        copies = Copies.of(store, numbers[first], starts[first], stops[last], layout.rows[first])
        final = layout.offsets[1:][layout.offsets[1:] > layout.offsets[:-1]] - 1
        final = final[spans.starts[final] + spans.lengths[final] < spans.sizes[final]]
        shards, places, rows = numbers[final], stops[final], layout.rows[final]
        if boundary_loss and spans.following is not None:
            others = np.setdiff1d((spans.following >= 0).nonzero()[0], rows)
            documents = spans.following[others]
            found = [shard.offset_of(inner) for shard, inner in map(store.locate, documents.tolist())]
            rows = np.concatenate([rows, others])
            order = rows.argsort()
            rows = rows[order]
            of_others = store.firsts.searchsorted(documents, "right") - 1
            shards = np.concatenate([shards, of_others])[order]
            places = np.concatenate([places, np.array(found, np.int64) // store.dtype.itemsize])[order]
        behind = Copies.of(store, shards, places, places + 1, rows)
        return cls(store, layout, copies, behind, pad_id, boundary_loss, store.has_loss)

    def part(self, first: int, last: int) -> PlannedRows:
        """Rows `first` to `last` alone."""
        return self._replace(
            layout=self.layout.part(first, last),
            copies=self.copies.part(first, last),
            behind=self.behind.part(first, last),
        )

    def parts(self, size: int) -> list[PlannedRows]:
        """Every `size` rows, which must divide their number."""
        count = len(self.layout) // size
        copies, behind = self.copies.parts(size, count), self.behind.parts(size, count)
        layouts = [self.layout.part(first, first + size) for first in range(0, size * count, size)]
        shared = (self.pad_id, self.boundary_loss, self.has_loss)
        each = zip(layouts, copies, behind, strict=True)
        return [PlannedRows(self.store, *one, *shared) for one in each]

    @classmethod
    def join(cls, planned: Sequence[PlannedRows], places: Sequence[np.ndarray]) -> PlannedRows:
        """Rows of several local sources in one batch.

        Args:
            planned: rows of stores of one dtype, with the same `pad_id` and `boundary_loss`.
            places: rows of the batch that those of each source are, int64 `[B_i]` each.
        """
        return planned[0]._replace(
            layout=Layout.join([one.layout for one in planned], places),
            copies=Copies.join([one.copies for one in planned], places),
            behind=Copies.join([one.behind for one in planned], places),
            has_loss=any(one.has_loss for one in planned),
        )

    def needed(self) -> set[int]:
        """Pieces of a remote store that are read."""
        return self.copies.needed() | self.behind.needed()

    def bring(self) -> Held:
        """Bring what will be read of a remote store, all at once.

        Returns:
            The pieces, by number; valid as long as the result exists.
        """
        mirror = self.store.mirror
        return {} if mirror is None else mirror.pieces.bring(self.needed())

    def read(self, *, tokens: bool = True, targets: bool = True) -> tuple[np.ndarray | None, Outline]:
        """Read the rows.

        Args:
            tokens: False if they are not needed, nor targets.
            targets: False if the outline needs nothing that only targets depend on.

        Returns:
            Tokens `[B, L]` in the dtype of the store, read-only, or None; and the outline.

        Raises:
            CorruptStore: an id outside of the vocabulary, or an index that points outside of its shard.
        """
        layout = self.layout
        if not tokens:
            return None, Outline(layout)
        held = self.bring()
        count, seq_len = len(layout), layout.seq_len
        behind = self.behind if targets else self.behind.part(0, 0)
        views = self._with_padding(self.copies.tokens(held), self.pad_id, self.store.dtype)
        views += behind.tokens(held)
        found = _joined(views, self.store.dtype)
        if len(found) != count * seq_len + len(behind.rows):  # a slice beyond the end of a file is shorter
            self.copies.check_places()
            behind.check_places()
        # Viewed as unsigned, negative ids are the largest of all: one pass finds both kinds of wrong id.
        vocabulary = self.store.manifest.tokenizer.vocab_size
        if int(found.view(f"u{found.itemsize}").max(initial=0)) >= vocabulary:
            self.copies.check_ids(vocabulary)
            behind.check_ids(vocabulary)  # or it is the padding, whose id may be any number
        whole = found[: count * seq_len].reshape(count, seq_len)
        if not targets:
            return whole, Outline(layout)
        after, trained = np.full(count, IGNORED, np.int64), None
        after[behind.rows] = found[count * seq_len :]
        if self.has_loss:
            masks = self._with_padding(self.copies.losses(), 1, np.dtype(np.uint8)) + behind.losses()
            trained_on = _joined(masks, np.dtype(np.uint8))
            trained = trained_on[: count * seq_len].reshape(count, seq_len)
            after[behind.rows[trained_on[count * seq_len :] == 0]] = IGNORED
        linked = np.ones(count, np.bool_) if self.boundary_loss else None
        return whole, Outline(layout, after, linked, trained)

    def _with_padding(self, views: list[np.ndarray], pad: int, dtype: np.dtype) -> list[np.ndarray]:
        """The copies of all rows, each row's followed by its padding."""
        if self.layout.padded:
            padding = np.full(self.layout.seq_len, pad, dtype)
            rows = self.layout.padding.nonzero()[0]
            places = self.copies.rows.searchsorted(rows, "right").tolist()
            sizes = self.layout.padding[rows].tolist()
            for place, size in zip(reversed(places), reversed(sizes), strict=True):
                views.insert(place, padding[:size])
        return views


def _joined(views: list[Any], dtype: np.dtype) -> np.ndarray:
    """One array of many.

    The main thread joins them as bytes, which is fastest and holds the GIL. In a thread, NumPy copies them
    and releases the GIL, so that the trainer runs while pages are read from a disk.
    """
    if threading.current_thread() is threading.main_thread():
        return np.frombuffer(b"".join(views), dtype)
    return np.concatenate([np.empty(0, dtype), *views])
