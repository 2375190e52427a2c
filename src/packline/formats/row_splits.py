"""Rows of all splits that an export writes: one folder per split, if there are several.

A row format sees one `RowView` at a time; its plan, its parts and its summary are divided by folders here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from packline.errors import CorruptStore, RecipeError, StoreError
from packline.fingerprint import hash_value
from packline.formats.row_view import NO_LOSS, RowView
from packline.formats.types import ExportPart, ExportPlan, NotPreserved, TokenizerProperties, WrittenPart
from packline.recipe import SPLITS

if TYPE_CHECKING:
    from packline.formats.export_record import Target
    from packline.formats.format import Format
    from packline.store.reader import StoreReader


class RowSplits(TokenizerProperties):
    """Rows of one or several splits."""

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
