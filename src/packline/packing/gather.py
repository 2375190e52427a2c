"""Reading of rows from the files of a store: their tokens, and the outline from which the rest follows.

    GatherPlan    ranges of files, and the ranges of the batch they are copied to
    Behind        tokens after the last ones of rows
    PlannedRows   rows whose layout and plan are known, to be read to their places in a batch

Documents are adjacent in a shard. So documents that follow one another in a row as they do in the store are
one copy, whatever their number: documents 7, 8, 9 are one copy, documents 7, 30, 9 three (best fit, shuffled
documents). Spans have the places of their documents, so nothing is looked up twice. If shards have
`NAME.loss`, its bytes are copied too, which costs as much again.

Copies of a remote store are cut where its pieces end. What a plan reads is brought at once, and a copy is
then a slice of one piece that is held.

Planning costs as much as reading does, most of it for each call and little for each row. So the rows of many
batches are planned together where they are known ahead, also those of several sources, and the plan is
divided into those of single batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from packline.packing.layout import IGNORED, Layout, Outline
from packline.packing.packer import Spans
from packline.store.reader import StoreReader
from packline.store.shard import Shard, wrong_id, wrong_place

if TYPE_CHECKING:
    from packline.store.pieces import Held, PieceRanges


class Behind(NamedTuple):
    """Tokens that are targets of the last ones of rows, K of them: where a row ends within a document."""

    rows: np.ndarray
    """int64 `[K]`: row of the layout, ascending."""
    shards: list[Shard]
    places: list[int]
    """Place of the token in its shard."""
    pieces: list[int] | None = None
    """Piece of a remote store that holds the token, once they are known."""
    begins: list[int] | None = None
    """Place of the token in its piece."""

    @classmethod
    def of(
        cls,
        store: StoreReader,
        spans: Spans,
        numbers: np.ndarray,
        stops: np.ndarray,
        *,
        boundary_loss: bool = False,
    ) -> Behind:
        """Find them.

        Args:
            store: store that holds the documents.
            spans: spans of B rows.
            numbers: number of each span's shard, int64 `[S]`.
            stops: place in it after each span, int64 `[S]`.
            boundary_loss: True if the document that follows a row counts too.
        """
        rows = (spans.offsets[1:] > spans.offsets[:-1]).nonzero()[0]
        final = spans.offsets[1:][rows] - 1
        unfinished = spans.starts[final] + spans.lengths[final] < spans.sizes[final]
        rows, final = rows[unfinished], final[unfinished]
        found = cls(rows, store.shards.pick(numbers[final].tolist()), stops[final].tolist())
        if spans.following is None or not boundary_loss:
            return found
        others = np.setdiff1d((spans.following >= 0).nonzero()[0], rows)
        located = [store.locate(follower) for follower in spans.following[others].tolist()]
        itemsize = store.dtype.itemsize
        begins = [shard.offset_of(inner) // itemsize for shard, inner in located]
        following = cls(others, [shard for shard, _ in located], begins)
        return cls.join([found, following], [np.arange(len(spans))] * 2)

    def part(self, first: int, last: int) -> Behind:
        """Keep rows `first` to `last` alone."""
        start, stop = self.rows.searchsorted([first, last]).tolist()
        rows, shards, places = self.rows[start:stop] - first, self.shards[start:stop], self.places[start:stop]
        if self.pieces is None or self.begins is None:
            return Behind(rows, shards, places)
        return Behind(rows, shards, places, self.pieces[start:stop], self.begins[start:stop])

    @classmethod
    def join(cls, parts: Sequence[Behind], places: Sequence[np.ndarray]) -> Behind:
        """Join several layouts in one; see `Layout.join`."""
        rows = np.concatenate([place[part.rows] for part, place in zip(parts, places, strict=True)])
        order = rows.argsort()
        shards = list(chain.from_iterable(part.shards for part in parts))
        tokens = list(chain.from_iterable(part.places for part in parts))
        numbers = order.tolist()
        return cls(rows[order], [shards[one] for one in numbers], [tokens[one] for one in numbers])

    def targets(self, count: int, vocabulary: int, held: Held | None = None, *, has_loss: bool) -> np.ndarray:
        """Token after the last one of each row, int64 `[count]`; -100 for none, or one without a loss.

        Args:
            count: number of rows.
            vocabulary: upper bound of ids, exclusive.
            held: the pieces that hold them, where they are known.
            has_loss: True if any shard may have a `NAME.loss`.

        Raises:
            CorruptStore: a token is outside of the file or of the vocabulary.
        """
        copied = list(zip(self.shards, self.places, strict=True))
        if held is not None and self.pieces is not None and self.begins is not None:
            found = [held[piece].item(begin) for piece, begin in zip(self.pieces, self.begins, strict=True)]
        else:
            ranges = [(shard.token_ranges, place) for shard, place in copied]
            found = [tokens.item(place) if 0 <= place < len(tokens) else -1 for tokens, place in ranges]
        if found and not (min(found) >= 0 and max(found) < vocabulary):
            wrong = next(number for number, token in enumerate(found) if not 0 <= token < vocabulary)
            shard, place = copied[wrong]
            if not 0 <= place < len(shard.token_ranges):
                raise wrong_place(shard, place, place + 1)
            raise wrong_id(shard, vocabulary, place)
        if has_loss:
            trained = [(loss := shard.loss_ranges) is None or loss.item(place) for shard, place in copied]
            found = [token if one else IGNORED for token, one in zip(found, trained, strict=True)]
        after = np.full(count, IGNORED, np.int64)
        after[self.rows] = found
        return after


@dataclass(frozen=True, slots=True)
class GatherPlan:
    """N copied ranges, in the order of the rows. No copy holds tokens of two rows."""

    store: StoreReader
    shards: list[Shard]
    """Shard that each copy is from."""
    sources: list[int]
    """First token of each copy in its shard."""
    targets: list[int]
    """First place of each copy in the batch."""
    lengths: list[int]
    """Tokens."""
    rows: np.ndarray
    """int64 `[N]`: row of the layout."""
    behind: Behind
    pieces: PieceRanges | None = None
    """Places of the copies in the pieces of a remote store, once they are cut there."""

    @classmethod
    def of(
        cls,
        store: StoreReader,
        spans: Spans,
        layout: Layout,
        places: np.ndarray | None = None,
        *,
        boundary_loss: bool = False,
    ) -> GatherPlan:
        """Join the spans that are adjacent in the store.

        Args:
            store: store that holds the documents.
            spans: spans of B rows.
            layout: their layout.
            places: row of the batch that each row is, int64 `[B]`; None: as they come.
            boundary_loss: True if the last token of a document has the first of the next as its target.

        Raises:
            CorruptStore: an index points outside of its shard.
        """
        numbers = store.firsts.searchsorted(spans.documents, "right") - 1
        sources = spans.begins + spans.starts - store.token_firsts[numbers]
        stops = sources + spans.lengths
        apart = np.empty(len(numbers) + 1, np.bool_)
        np.not_equal(sources[1:], stops[:-1], out=apart[1:-1])
        apart[1:-1] |= numbers[1:] != numbers[:-1]
        apart[layout.offsets] = True  # no copy holds tokens of two rows
        cuts = apart.nonzero()[0]
        first = cuts[:-1]
        rows, targets = layout.rows[first], layout.begins[first]
        if places is not None:
            targets = targets + (places - np.arange(len(places)))[rows] * layout.seq_len
        lengths = stops[cuts[1:] - 1] - sources[first]
        shards = store.shards.pick(numbers[first].tolist())
        behind = Behind.of(store, spans, numbers, stops, boundary_loss=boundary_loss)
        return cls(store, shards, sources[first].tolist(), targets.tolist(), lengths.tolist(), rows, behind)

    def in_pieces(self) -> GatherPlan:
        """The same copies of a remote store, cut where its pieces end.

        Raises:
            CorruptStore: an index points outside of its shard.
        """
        from packline.store.pieces import cut_ranges, find_pieces

        cut = cut_ranges(self.shards, self.sources, self.lengths)
        pieces, begins = find_pieces(self.behind.shards, self.behind.places)
        behind = self.behind._replace(pieces=pieces, begins=begins)
        copies = cut.ranges.tolist()
        if len(copies) == len(self.shards):
            return replace(self, behind=behind, pieces=cut.pieces)
        moved = np.array(self.targets, np.int64) - np.array(self.sources, np.int64)
        return GatherPlan(
            self.store,
            [self.shards[copy] for copy in copies],
            cut.starts.tolist(),
            (moved[cut.ranges] + cut.starts).tolist(),
            cut.lengths.tolist(),
            self.rows[cut.ranges],
            behind,
            cut.pieces,
        )

    def part(self, first: int, last: int, seq_len: int, places: np.ndarray | None = None) -> GatherPlan:
        """Copies of rows `first` to `last` alone.

        Args:
            first: a row.
            last: one past the last row.
            seq_len: tokens per row.
            places: row of another batch that each of them is, int64 `[last - first]`; None: as they come.
        """
        start, stop = self.rows.searchsorted([first, last]).tolist()
        rows = self.rows[start:stop] - first
        if places is None:
            base = first * seq_len
            targets = [target - base for target in self.targets[start:stop]]
        else:
            moves = (places - np.arange(first, last)) * seq_len
            targets = (np.array(self.targets[start:stop], np.int64) + moves[rows]).tolist()
        return GatherPlan(
            self.store,
            self.shards[start:stop],
            self.sources[start:stop],
            targets,
            self.lengths[start:stop],
            rows,
            self.behind.part(first, last),
            None if self.pieces is None else self.pieces.part(start, stop),
        )

    @classmethod
    def join(cls, plans: Sequence[GatherPlan], places: Sequence[np.ndarray]) -> GatherPlan:
        """Copies of several local sources to one batch.

        Args:
            plans: made with these places.
            places: rows of the batch that the rows of each plan are, int64 `[B_i]` each.
        """
        rows = np.concatenate([place[plan.rows] for plan, place in zip(plans, places, strict=True)])
        order = rows.argsort(kind="stable")
        copies = order.tolist()

        def joined(name: str) -> list[Any]:
            values = list(chain.from_iterable(getattr(plan, name) for plan in plans))
            return [values[copy] for copy in copies]

        behind = Behind.join([plan.behind for plan in plans], places)
        shards, sources, targets, lengths = map(joined, ("shards", "sources", "targets", "lengths"))
        return cls(plans[0].store, shards, sources, targets, lengths, rows[order], behind)

    def needed(self) -> set[int]:
        """Pieces of copies that are cut, and of the tokens after rows."""
        if self.pieces is None:
            return set()
        found = {*self.pieces.numbers, *(self.behind.pieces or ())}
        if self.pieces.masks is not None:
            found.update(self.pieces.masks.reshape(-1).tolist())
        return found

    def bring(self) -> Held:
        """Bring what will be copied of a remote store, all at once, by copies that are cut.

        Returns:
            The pieces, by number; valid as long as the result exists.
        """
        assert self.store.mirror is not None
        return self.store.mirror.pieces.bring(self.needed())

    def copy_tokens(self, into: np.ndarray, held: Held | None = None) -> None:
        """Copy the tokens to their places in the batch, `[B*L]`; other places are left unchanged.

        Args:
            into: tokens of the batch.
            held: what `bring` returned, for copies that are cut.

        Raises:
            CorruptStore: an index points outside of its shard.
        """
        if held is not None and self.pieces is not None:
            for piece, begin, target, length in zip(
                self.pieces.numbers, self.pieces.begins, self.targets, self.lengths, strict=True
            ):
                into[target : target + length] = held[piece][begin : begin + length]
            return
        for shard, source, target, length in zip(
            self.shards, self.sources, self.targets, self.lengths, strict=True
        ):
            tokens = shard.token_ranges[source : source + length]
            # NumPy returns fewer values beyond the end of an array, and counts from the end below its start.
            if len(tokens) != length or source < 0:
                raise wrong_place(shard, source, source + length)
            into[target : target + length] = tokens

    def copy_loss(self, into: np.ndarray) -> None:
        """Copy the bytes of `NAME.loss` in the same way, ones where a shard has none."""
        for shard, source, target, length in zip(
            self.shards, self.sources, self.targets, self.lengths, strict=True
        ):
            loss = shard.loss_ranges
            into[target : target + length] = 1 if loss is None else loss[source : source + length]

    def check_ids(self) -> None:
        """Search all tokens for the first one outside of the vocabulary.

        Raises:
            CorruptStore: there is one.
        """
        vocabulary = self.store.manifest.tokenizer.vocab_size
        for shard, source, length in zip(self.shards, self.sources, self.lengths, strict=True):
            tokens = shard.token_ranges[source : source + length]
            wrong = np.flatnonzero((tokens < 0) | (tokens >= vocabulary))
            if len(wrong):
                raise wrong_id(shard, vocabulary, source + int(wrong[0]))


class PlannedRows(NamedTuple):
    """Rows of one source, or of several local ones of the same settings, whose copies are known."""

    layout: Layout
    plan: GatherPlan
    pad_id: int
    """Token at padding."""
    boundary_loss: bool
    """True if the last token of a document has the first of the next as its target."""
    has_loss: bool
    """True if any shard may have a `NAME.loss`."""

    @classmethod
    def of(
        cls,
        store: StoreReader,
        spans: Spans,
        seq_len: int,
        places: np.ndarray | None = None,
        *,
        pad_id: int,
        boundary_loss: bool,
    ) -> PlannedRows:
        """Plan rows.

        Args:
            store: store that holds the documents.
            spans: spans of B rows. Only the last span of a row may leave its document unfinished, which holds
                for every packing.
            seq_len: tokens per row, L.
            places: row of the batch that each row is, int64 `[B]`; None: the whole batch, in order.
            pad_id: token at padding.
            boundary_loss: True if the last token of a document has the first of the next as its target.

        Raises:
            RecipeError: a row fuller than `seq_len`.
            CorruptStore: an index points outside of its shard.
        """
        layout = Layout.of(spans.offsets, spans.lengths, seq_len)
        plan = GatherPlan.of(store, spans, layout, places, boundary_loss=boundary_loss)
        if store.mirror is not None:
            plan = plan.in_pieces()
        return cls(layout, plan, pad_id, boundary_loss, store.has_loss)

    def part(self, first: int, last: int, places: np.ndarray | None = None) -> PlannedRows:
        """Rows `first` to `last` alone; see `GatherPlan.part`."""
        layout = self.layout.part(first, last)
        return self._replace(layout=layout, plan=self.plan.part(first, last, layout.seq_len, places))

    @classmethod
    def join(cls, planned: Sequence[PlannedRows], places: Sequence[np.ndarray]) -> PlannedRows:
        """Rows of several local sources in one batch; see `GatherPlan.join`."""
        layout = Layout.join([one.layout for one in planned], places)
        plan = GatherPlan.join([one.plan for one in planned], places)
        has_loss = any(one.has_loss for one in planned)
        return planned[0]._replace(layout=layout, plan=plan, has_loss=has_loss)

    def gather(self, tokens: np.ndarray | None, places: np.ndarray | None, *, targets: bool) -> Outline:
        """Read the rows into a batch.

        Args:
            tokens: tokens of the batch, of a dtype that holds all ids; its rows `places` are filled, all if
                that is None. None: no field needs them.
            places: row of the batch that each row is, int64 `[B]`.
            targets: False if the outline needs nothing that only targets depend on.

        Raises:
            CorruptStore: an id outside of the vocabulary, or an index that points outside of its shard.
        """
        layout, plan = self.layout, self.plan
        if tokens is None:
            return Outline(layout)
        held = plan.bring() if plan.pieces is not None else None
        plan.copy_tokens(tokens.reshape(-1), held)
        for begin, end in layout.pads():
            row, start = divmod(begin, layout.seq_len)
            tokens[row if places is None else places[row], start : start + end - begin] = self.pad_id
        read = tokens if places is None else tokens[places]
        # Viewed as unsigned, negative ids are the largest of all: one pass finds both kinds of wrong id.
        vocabulary = plan.store.manifest.tokenizer.vocab_size
        if int(read.view(f"u{tokens.itemsize}").max(initial=0)) >= vocabulary:
            plan.check_ids()  # or it is the padding, whose id may be any number
        if not targets:
            return Outline(layout)
        linked = np.ones(len(layout), np.bool_) if self.boundary_loss else None
        trained = None
        if self.has_loss:
            whole = np.ones(tokens.shape, np.uint8)
            plan.copy_loss(whole.reshape(-1))
            trained = whole if places is None else whole[places]
        after = plan.behind.targets(len(layout), vocabulary, held, has_loss=self.has_loss)
        outline = Outline(layout, after, linked, trained)
        del held
        return outline
