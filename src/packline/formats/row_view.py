"""Rows of a store or of a run as a format needs them: in training order, numbered from 0.

Rows of a loader are those of its global batches, one batch after another: row k of a trainer's data set must
be this row for the trainer to see the same batches as with `Loader`. Rows of a store without a seed are in
packed order; with a seed, in the order of `Loader(rows, seed=...)`, followed by the rows that do not fill a
last batch, in the order in which they would be sampled.

A format sees one `RowView` at a time; of several splits, its plan, its parts and its summary are divided by
folders, in `RowSplits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from packline.errors import CorruptStore, RecipeError, StoreError
from packline.fingerprint import hash_value
from packline.formats.types import ExportPart, ExportPlan, NotPreserved, TokenizerProperties, WrittenPart
from packline.loading.mixture import Mixture, Stage
from packline.loading.order import row_order
from packline.loading.schedule import Schedule, ScheduledStage
from packline.packing.batch import FIELDS, BatchPart, CompactBatch
from packline.packing.layout import Layout
from packline.packing.options import LoaderOptions, RowOptions, check_options
from packline.packing.packer import Spans
from packline.packing.row import untrained_rows
from packline.packing.rows import Rows
from packline.recipe import SPLITS
from packline.store.manifest import TokenizerEntry
from packline.store.reader import StoreReader

if TYPE_CHECKING:
    from packline.formats.export_folder import Target
    from packline.formats.format import Format
    from packline.loading.loader import Loader
    from packline.store.reader import StoreReader

BLOCK = 1 << 14
"""Rows per step of a pass over spans."""
ORDER_FIELDS = ("order", "block_rows", "window_blocks")
UNTRAINED = "untrained rows"
NO_LOSS = "no token of theirs is in the loss"


@dataclass(frozen=True, slots=True)
class RowSpans:
    """Ranges of documents that fill rows: S spans, in row order."""

    rows: np.ndarray
    """int64 `[S]`: row number in the view."""
    stores: np.ndarray
    """int64 `[S]`: store number in `RowView.stores`."""
    documents: np.ndarray
    """int64 `[S]`: document number in the store."""
    starts: np.ndarray
    """int64 `[S]`: first token within the document."""
    lengths: np.ndarray
    """int64 `[S]`: number of tokens."""


class RowView(TokenizerProperties):
    """Rows in training order. Made by `RowView.of_store` and `RowView.of_loader`."""

    def __init__(self, stages: Sequence[ScheduledStage], batch_size: int | None, fingerprint: str) -> None:
        self._stages = list(stages)
        self._firsts = np.cumsum([0, *(placed.steps * placed.batch_size for placed in stages)])
        self.rows = int(self._firsts[-1])
        """Number of rows, R."""
        self.untrained = self._left_out = np.empty(0, np.int64)
        """Numbers of rows without a target, as far as they were looked for; and of those left out."""
        self._untrained: dict[str, np.ndarray] = {}
        """The same as numbers in each source, by fingerprint."""
        self.batch_size = batch_size
        """Rows per global batch, if known."""
        self.fingerprint = fingerprint
        """Fingerprint of everything that decides the content of the rows."""
        self._sources = [rows for placed in stages for rows in placed.mixture.rows]
        first = self._sources[0]
        self.seq_len: int = first.seq_len
        """Tokens per row, L."""
        self.stores: list[StoreReader] = list({id(rows.store): rows.store for rows in self._sources}.values())
        self.store: StoreReader = first.store
        self.tokenizer: TokenizerEntry = first.store.manifest.tokenizer
        pads = {rows.pad_id for rows in self._sources}
        if len(pads) > 1:
            raise RecipeError(
                f"the sources pad with {' and '.join(map(str, sorted(pads)))}: expected one token for all",
                hint="set pad_id of the stage in the run file",
            )
        self.pad_id: int = pads.pop()
        """Token at padded positions."""
        self._tokens_left_out = 0
        self.beside: frozenset[str] = frozenset()
        """Splits that are accounted for elsewhere in the same export."""

    @classmethod
    def of_store(
        cls,
        store: StoreReader,
        *,
        seq_len: int,
        seed: int | None = None,
        epochs: int = 1,
        batch_size: int | None = None,
        **settings: Any,
    ) -> RowView:
        """Rows of one store.

        Args:
            seed: seed of the loader's order; None: packed order.
            epochs: number of passes over the rows.
            batch_size: rows per global batch, for formats that write batches.
            settings: fields of `RowOptions`, and those of `LoaderOptions` that make an order.
        """
        if epochs < 1 or (batch_size is not None and batch_size < 1):
            raise RecipeError(
                f"expected epochs and batch_size above 0, found {epochs:,} and {batch_size!r}",
            )
        of_order = {name: settings.pop(name) for name in ORDER_FIELDS if name in settings}
        if seed is None and of_order.get("order", "global") != "global":
            raise RecipeError(
                f"order is {of_order['order']}, and no seed was given", hint="seed=0 shuffles the rows"
            )
        options = check_options(LoaderOptions(shuffle=seed is not None, **of_order))
        stage = Stage(Mixture([(Rows(store, seq_len, RowOptions(**settings)), 1, epochs)]))
        schedule = Schedule([stage], batch_size=1, seed=seed or 0, order=row_order(options))
        mark = hash_value({**schedule.fingerprints(), "epochs": epochs, "batch_size": batch_size})
        return cls(schedule.stages, batch_size, mark)

    @classmethod
    def of_loader(cls, loader: Loader, stage: int | None = None) -> RowView:
        """Rows of a run's global batches, of all ranks.

        Args:
            stage: its number; None: all stages, which must have one row length and one batch size.
        """
        if loader.building:
            raise RecipeError(
                f"cannot export rows of {', '.join(loader.building)} before the build has ended",
                hint="packline status shows its progress",
            )
        stages = loader.schedule.stages
        if stage is not None:
            if not 0 <= stage < len(stages):
                raise RecipeError(f"stage is {stage}: expected 0 to {len(stages) - 1}")
            stages = [stages[stage]]
        shapes = {(placed.mixture.seq_len, placed.batch_size) for placed in stages}
        if len(shapes) > 1:
            shown = ", ".join(f"{size:,} rows of {length:,} tokens" for length, size in sorted(shapes))
            raise RecipeError(
                f"the stages of the run have different batches: {shown}",
                hint="export them one at a time: --stage 0, --stage 1, ...",
            )
        mark = hash_value({"run": loader.fingerprint, "stage": stage, "steps": [s.steps for s in stages]})
        return cls(stages, stages[0].batch_size, mark)

    def find_untrained(self, *, last_targets: bool = True) -> None:
        """Find rows without a target, of which a trainer learns nothing; see `untrained_rows`.

        Args:
            last_targets: False for files without the target of the last token of a row.
        """
        self._untrained = {one.fingerprint: untrained_rows(one, last_targets) for one in self._distinct()}
        if any(map(len, self._untrained.values())):
            places = []
            for start in range(0, self.rows, BLOCK):
                for source, at, rows in self._scheduled_parts(start, min(start + BLOCK, self.rows)):
                    wrong = self._untrained[self._sources[source].fingerprint]
                    places.append(at[np.isin(rows, wrong)] + start)
            self.untrained = np.sort(np.concatenate(places))

    @property
    def untrained_kept(self) -> int:
        """Number of rows without a target that are not left out."""
        return len(self.untrained) - len(self._left_out)

    def leave_out_untrained(self) -> None:
        """Leave out the rows that were found: all others keep their order, and get new numbers."""
        if len(self.untrained):
            every = self.tokens
            del self.tokens
            self._left_out, self.rows = self.untrained, self.rows - len(self.untrained)
            self.fingerprint = hash_value({"rows": self.fingerprint, "untrained": len(self.untrained)})
            self._tokens_left_out = every - self.tokens

    @cached_property
    def has_loss(self) -> bool:
        return any(store.has_loss for store in self.stores)

    def read(self, start: int, stop: int, fields: Sequence[str] = FIELDS) -> dict[str, np.ndarray]:
        """Arrays `[N, L]` of rows `start` to `stop`, as returned by `Rows.read`."""
        if start == stop:
            return self._sources[0].read(np.empty(0, np.int64), fields)
        return CompactBatch.read(self._batch_parts(start, stop), fields).arrays()

    def read_longer(self, start: int, into: np.ndarray) -> Layout:
        """Read rows from `start` on, each with one more token: the target of its last one, or padding.

        Args:
            into: integers of a dtype that holds the vocabulary, `[N, L + 1]`, to be filled.

        Returns:
            The rows' layout, from which their loss mask follows.
        """
        compact = CompactBatch.read(self._batch_parts(start, start + len(into)), ("tokens", "targets"))
        assert compact.tokens is not None
        into[:] = compact.tokens
        into[~compact.layout.last_targets, -1] = self.pad_id
        return compact.layout

    def _batch_parts(self, start: int, stop: int) -> list[BatchPart]:
        """Parts of the batch of these rows, of which there is at least one."""
        parts = [
            BatchPart(self._sources[source], rows, places)
            for source, places, rows in self._parts(start, stop)
        ]
        return [parts[0]._replace(places=None)] if len(parts) == 1 else parts

    def spans(self, start: int, stop: int) -> RowSpans:
        columns: list[tuple[np.ndarray, ...]] = []
        for source, places, rows in self._parts(start, stop):
            spans: Spans = self._sources[source].spans(rows)
            store = next(n for n, one in enumerate(self.stores) if one is self._sources[source].store)
            of_rows = np.repeat(places + start, np.diff(spans.offsets))
            columns.append(
                (of_rows, np.full(len(of_rows), store), spans.documents, spans.starts, spans.lengths)
            )
        if not columns:
            return RowSpans(*(np.empty(0, np.int64) for _ in range(5)))
        joined = [np.concatenate(column) for column in zip(*columns, strict=True)]
        order = np.argsort(joined[0], kind="stable")
        return RowSpans(*(column[order] for column in joined))

    def lengths(self, start: int, stop: int) -> np.ndarray:
        """Tokens per row without padding, of rows `start` to `stop`, int64 `[N]`."""
        filled = np.zeros(stop - start, np.int64)
        for source, places, rows in self._parts(start, stop):
            filled[places] = self._sources[source].spans(rows).filled
        return filled

    @cached_property
    def tokens(self) -> int:
        """Number of tokens in all rows, without padding; needs a pass over their spans."""
        blocks = range(0, self.rows, BLOCK)
        return sum(int(self.lengths(start, min(start + BLOCK, self.rows)).sum()) for start in blocks)

    @property
    def padding_tokens(self) -> int:
        return self.rows * self.seq_len - self.tokens

    @cached_property
    def documents(self) -> int:
        """Number of documents of all sources in the rows, each counted once."""
        return sum(rows.counts.documents - self._documents_left_out(rows) for rows in self._distinct())

    def _documents_left_out(self, rows: Any) -> int:
        """Number of documents of a source all of whose rows are left out."""
        if not len(self._left_out):
            return 0
        gone = self._untrained[rows.fingerprint]
        touched = np.unique(rows.spans(gone).documents).tolist()
        return sum(bool(np.isin(rows.rows_of(document), gone).all()) for document in touched)

    @cached_property
    def lost(self) -> tuple[NotPreserved, ...]:
        """Parts of the selected documents that are in no row."""
        counts = [rows.counts for rows in self._distinct()]
        dropped = sum(count.dropped_tokens for count in counts)
        cut = sum(count.truncated_tokens for count in counts)
        left, gone = sum(placed.left_over for placed in self._stages), len(self._left_out)
        found = (
            ("dropped tokens", dropped, "tokens", "a tail too short for a row, or documents too long"),
            ("truncated tokens", cut, "tokens", "cut off the ends of documents too long for a row"),
            ("left-over rows", left, "rows", "they do not fill a last batch"),
            (UNTRAINED, gone, "rows", f"{NO_LOSS}; --keep-untrained writes them"),
            ("untrained tokens", self._tokens_left_out, "tokens", "in the untrained rows"),
        )
        return (*(NotPreserved(*lost) for lost in found if lost[1]), *self._other_splits())

    def not_preserved(self, *, masks: bool, boundaries: bool) -> tuple[NotPreserved, ...]:
        """Losses of the rows themselves, and parts for which a format has no field."""
        lost = list(self.lost)
        if not masks:
            why = "its reader trains on every token"
            if self.has_loss:
                lost.append(NotPreserved("loss mask", self.tokens, "tokens", why))
            if self.padding_tokens:
                why = f"{why}, those at padding too"
                lost.append(NotPreserved("padding mask", self.padding_tokens, "tokens", why))
        if not boundaries:
            why = "within rows only the tokens between documents show them"
            lost.append(NotPreserved("document boundaries", self.documents, "documents", why))
        lost.append(NotPreserved("provenance", self.documents, "documents", "the format has no place for it"))
        return tuple(lost)

    def _other_splits(self) -> Iterator[NotPreserved]:
        """Splits of the stores that no row is made of; each needs a separate export."""
        taken = {rows.selection.settings["split"] for rows in self._distinct()}
        for split in () if "all" in taken else SPLITS:
            shards = [one.entry for store in self.stores for one in store.shards if one.entry.split == split]
            if shards and split not in taken | self.beside:
                tokens = sum(entry.tokens for entry in shards)
                ours = " and ".join(sorted(taken))
                why = f"{tokens:,} tokens: rows are of {ours} alone; --split {split} exports it"
                yield NotPreserved(
                    f"split {split}", sum(entry.documents for entry in shards), "documents", why
                )

    def _distinct(self) -> list[Any]:
        return list({rows.fingerprint: rows for rows in self._sources}.values())

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """(source, positions among the requested rows, row numbers in the source), for each part."""
        if not 0 <= start <= stop <= self.rows:
            raise IndexError(f"rows {start:,} to {stop:,} of {self.rows:,}")
        gone = self._left_out
        if not len(gone):
            yield from self._scheduled_parts(start, stop)
            return
        kept_before = gone - np.arange(len(gone))
        first, last = (number + int(kept_before.searchsorted(number, "right")) for number in (start, stop))
        for source, places, rows in self._scheduled_parts(first, min(last, int(self._firsts[-1]))):
            kept = ~np.isin(places + first, gone)
            if kept.any():
                at = places[kept] + first
                yield source, at - gone.searchsorted(at) - start, rows[kept]

    def _scheduled_parts(self, start: int, stop: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """The same of all rows, those that are left out included."""
        before = 0
        for placed, first, last in zip(self._stages, self._firsts, self._firsts[1:], strict=False):
            low, high = max(start, int(first)), min(stop, int(last))
            if low < high:
                inner = (low - int(first), high - int(first))
                sources = placed.mixture.interleaving.sources(*inner)
                for source, rows in placed.rows_by_source(*inner):
                    yield before + source, np.flatnonzero(sources == source) + (low - start), rows
            before += len(placed.mixture)


class RowSplits(TokenizerProperties):
    """Rows of all splits that an export writes: one folder per split, if there are several."""

    def __init__(self, views: Mapping[str, RowView], lost: Sequence[NotPreserved] = ()) -> None:
        self.views = dict(views)
        self._lost = tuple(lost)
        first = next(iter(self.views.values()))
        self.seq_len, self.store, self.tokenizer = first.seq_len, first.store, first.tokenizer

    @classmethod
    def of_store(cls, store: StoreReader, *, split: str | None = None, **settings: Any) -> RowSplits:
        """Rows of one split of a store, or of all that have rows."""
        documents = store.manifest.shards.by_split("documents")
        there = [split] if split is not None else [name for name in SPLITS if documents.get(name)]
        views: dict[str, RowView] = {}
        refused: dict[str, StoreError] = {}
        for name in there or ["train"]:  # of an empty store, the error is that of train
            try:
                views[name] = RowView.of_store(store, split=name, **settings)
            except CorruptStore:
                raise
            except StoreError as error:  # a split may be smaller than a row
                refused[name] = error
        if not views:
            raise next(iter(refused.values()))
        if split is None:
            for view in views.values():
                view.beside = frozenset(there)
        tokens = store.manifest.shards.by_split("tokens")
        why = f"tokens: with these settings they fill no row of {settings['seq_len']:,}"
        lost = [
            NotPreserved(f"split {name}", documents[name], "documents", f"{tokens[name]:,} {why}")
            for name in refused
        ]
        return cls(views, lost)

    def find_untrained(self, *, last_targets: bool, leave_out: bool) -> None:
        """Leave out rows without a target, or only count them for a warning; see `RowView.find_untrained`."""
        for split, view in list(self.views.items()):
            view.find_untrained(last_targets=last_targets)
            if not leave_out:
                continue
            if len(view.untrained) < view.rows:
                view.leave_out_untrained()
            else:
                self._lost += (NotPreserved(f"split {split}", view.documents, "documents", NO_LOSS),)
                del self.views[split]
        if not self.views:
            raise StoreError(
                f"{self.store.place}: all rows are untrained: {NO_LOSS}",
                hint="a larger seq_len; or --keep-untrained writes them",
            )

    @property
    def rows(self) -> int:
        return sum(view.rows for view in self.views.values())

    @property
    def tokens(self) -> int:
        return sum(view.tokens for view in self.views.values())

    @property
    def documents(self) -> int:
        return sum(view.documents for view in self.views.values())

    @property
    def fingerprint(self) -> str:
        marks = {split: view.fingerprint for split, view in self.views.items()}
        return next(iter(marks.values())) if len(marks) == 1 else hash_value(marks)

    def plan(self, format: Format, options: Any) -> ExportPlan:
        """Plan of a format for all splits; losses of the same kind are added up.

        A split of which the format cannot write any row is left out and reported.
        """
        plans: dict[str, ExportPlan] = {}
        refused: dict[str, RecipeError] = {}
        for split, view in self.views.items():
            try:
                plans[split] = format.plan(view, options)
            except RecipeError as error:
                refused[split] = error
        if not plans:
            raise next(iter(refused.values()))
        for split, reason in refused.items():
            documents = self.views.pop(split).documents
            self._lost += (NotPreserved(f"split {split}", documents, "documents", reason.message),)
        lost = [
            one
            for split, view in self.views.items()
            for one in (*plans[split].lost, *(other for other in view.lost if other not in plans[split].lost))
        ]
        warnings = dict.fromkeys(text for plan in plans.values() for text in plan.warnings)
        if count := sum(view.untrained_kept for view in self.views.values()):
            warnings[
                f"{count:,} of {self.rows:,} rows are untrained: {NO_LOSS}, so a batch may have none"
            ] = None
        return ExportPlan(
            tuple(
                msgspec.structs.replace(part, split=split, folder=self._folder(format, split))
                for split, plan in plans.items()
                for part in plan.parts
            ),
            sum(plan.bytes for plan in plans.values()),
            sum(plan.shared_bytes for plan in plans.values()),
            (*_sums(lost), *self._lost),
            tuple(warnings),
        )

    def write(self, format: Format, part: ExportPart, target: Target, options: Any) -> dict[str, Any]:
        return format.write(self.views[part.split], part, target.within(part.folder), options)

    def finish(self, format: Format, written: Sequence[WrittenPart], target: Target, options: Any) -> None:
        for split, view in self.views.items():
            ours = [one for one in written if one.part.split == split]
            format.finish(view, ours, target.within(self._folder(format, split)), options)
        if len(self.views) > 1:
            format.finish_splits([format.folders[split] for split in self.views], target)

    def _folder(self, format: Format, split: str) -> str:
        return f"{format.folders[split]}/" if len(self.views) > 1 else ""


def _sums(lost: Iterable[NotPreserved]) -> tuple[NotPreserved, ...]:
    """Losses with the counts of equal ones added up, in order."""
    sums: dict[tuple[str, str, str], int] = {}
    for one in lost:
        key = (one.what, one.unit, one.why)
        sums[key] = sums.get(key, 0) + one.count
    return tuple(NotPreserved(what, count, unit, why) for (what, unit, why), count in sums.items())
