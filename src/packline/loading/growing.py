"""A store that is still being built, as far as its units are published (`jobs.partial`).

The documents of a source appear in their order, whatever the order in which units end, and the part of a
store that is seen only grows. Rows are given as far as they no longer change: of `concat` all but the last,
for which the next token is not known yet; of `pad` all; of `best_fit` those of windows that are complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from packline.errors import CorruptStore, RecipeError, StoreError
from packline.fingerprint import hash_value
from packline.jobs.plan import Plan, read_plan
from packline.jobs.receipts import ListedUnit, PublishedUnits
from packline.jobs.status import is_run
from packline.loading.mixture import ENDLESS
from packline.loading.run_file import StageSettings
from packline.loading.state import build_identity, selected_names
from packline.packing.best_fit import BestFit
from packline.packing.options import RowOptions
from packline.packing.rows import (
    Rows,
    check_divides,
    check_pad_id,
    check_row_options,
    settings_fingerprint,
    split_fingerprint,
)
from packline.packing.selection import check_known, selection_identity
from packline.recipe import SPLITS, Recipe
from packline.storage.places import open_storage
from packline.store.files import store_files
from packline.store.ledger import source_names
from packline.store.lookup import check_names
from packline.store.manifest import MANIFEST, Manifest, assemble, with_tables
from packline.store.reader import StoreReader
from packline.store.tables import ShardRows, UnitRows
from packline.where.conditions import fields_of, parse_where


class GrowingBuild:
    """A store, in a folder or at the URI of an object store, and the build that makes it."""

    def __init__(self, place: str) -> None:
        self.files = store_files(place)
        self._storage = open_storage(place)
        self.begun: Plan | None = None
        """The build; None until it has begun, and if the store was finished before."""
        self.store: StoreReader | None = None
        self._published: PublishedUnits | None = None
        self._planned: set[str] = set()
        self._rows: dict[str, list[tuple[ShardRows, UnitRows]]] = {}
        """Shards and units of each source, as far as they are published, in order."""
        self._parts: dict[tuple[str, ...], StoreReader] = {}
        self._plans: dict[tuple[str, ...], dict[Any, Any]] = {}
        """Plans of the documents of these sources: the same settings choose other documents of others."""

    @property
    def known(self) -> bool:
        return self.begun is not None or self.store is not None

    @property
    def is_running(self) -> bool:
        """True if the store is finished, perhaps since the last look, or a process is building it."""
        return self.store is not None or is_run(self._storage) or self._storage.facts(MANIFEST) is not None

    @property
    def units(self) -> int:
        return sum(len(units) for rows in self._rows.values() for _, units in rows)

    def refresh(self) -> bool:
        """Look for what has been published since; True if there is something new."""
        if self.store is not None:
            return False
        new = False
        if self._published is None and (begun := read_plan(self._storage)) is not None:
            self.begun, new, names = begun, True, source_names(begun.recipe)
            self._planned = {names[unit.source] for unit in begun.units}
            self._published = PublishedUnits(self._storage, begun.build, self._take)
        if self._storage.facts(MANIFEST) is not None:
            self.store = self._finished()
            return True
        return (self._published is not None and self._published.look()) or new

    def _take(self, source: str, units: list[ListedUnit]) -> None:
        shards = [(unit.unit, unit.source, shard) for unit, listed in units for shard in listed]
        tables = ShardRows.from_entries(shards), UnitRows.from_entries(unit for unit, _ in units)
        self._rows.setdefault(source, []).append(tables)

    def _finished(self) -> StoreReader:
        """The finished store, if it is the one that was followed."""
        store = StoreReader(self.files)
        if self.begun is None:
            return store
        if build_identity(store.manifest) != self.begun.build:
            raise self._other("was built from another recipe, tokenizer or inputs")
        seen = set(_receipts(units for rows in self._rows.values() for _, units in rows))
        if other := seen.difference(_receipts([store.manifest.units])):
            raise self._other(f"got another unit {min(other)[0]}")
        return store

    def _other(self, what: str) -> StoreError:
        return StoreError(
            f"{self.files.place} {what} while it was read",
            hint="begin the run again, or put the earlier store back",
        )

    def rows(self, stage: StageSettings, options: RowOptions, *, window: int) -> Any:
        """Rows of the store in a stage, as far as they are settled, in multiples of `window` rows."""
        assert self.begun is not None
        options = check_row_options(options)
        _check_followable(self.begun.recipe, options)
        sources = selected_names(self.begun.recipe, options)
        part, following = self._part(sources)
        if options.where is not None:
            check_names(part, fields_of(parse_where(options.where)))
        plans = self._plans.setdefault(sources, {})
        if not following:
            return stage.cut(Rows(part, stage.seq_len, options, plans=plans))
        packed = _packed(part, stage.seq_len, options, plans)
        settled = 0 if packed is None else _settled(packed, following)
        return GrowingRows(part, packed, settled, stage, options, window)

    def _part(self, sources: tuple[str, ...]) -> tuple[StoreReader, str]:
        """Committed part of the store, of these sources, and the unit behind it; empty if that is all."""
        assert self.begun is not None and self._published is not None
        rows, following = list[tuple[ShardRows, UnitRows]](), ""
        for name in sources:
            if name in self._planned and not following:
                rows += self._rows.get(name, [])
                following = self._published.following.get(name, name)
        units = UnitRows.joined([units for _, units in rows])
        earlier = self._parts.get(sources)
        if earlier is not None and len(earlier.manifest.units) == len(units):
            return earlier, following
        manifest = partial_manifest(self.begun, ShardRows.joined([shards for shards, _ in rows]), units)
        files = self.files.of(manifest)
        part = self._parts[sources] = StoreReader.just_written(files, manifest)
        part.build = self.begun.build
        if earlier is not None and files is self.files:  # its shards are the first of these
            part.shards.made |= earlier.shards.made
        return part, following


def _receipts(tables: Iterable[UnitRows]) -> Iterable[tuple[str, str]]:
    """Name of each unit, and checksum of its receipt."""
    for units in tables:
        yield from zip(units.names("unit"), units.names("receipt_checksum"), strict=True)


def _packed(part: StoreReader, seq_len: int, options: RowOptions, plans: dict[Any, Any]) -> Rows | None:
    sizes = part.manifest.shards.by_split("tokens")
    if (sum(sizes.values()) if options.split == "all" else sizes.get(options.split, 0)) < seq_len:
        return None
    # The part has no others; that some of them have no document yet is no error.
    everything = msgspec.structs.replace(options, sources=None, labels=None)
    try:
        return Rows(part, seq_len, everything, plans=plans)
    except CorruptStore:
        raise
    except StoreError:
        return None  # the split or a filter has left no document so far, or no row


def _settled(rows: Rows, following: str) -> int:
    """Number of rows that the next unit and those after it do not change."""
    if rows.packing == "concat":
        return (rows.selection.tokens - 1) // rows.seq_len
    return rows.packer.settled(following) if isinstance(rows.packer, BestFit) else len(rows)


def partial_manifest(plan: Plan, shards: ShardRows, units: UnitRows) -> Manifest:
    """Manifest of the store of some units of a build; its checksum is the identity of the build."""
    manifest = assemble(
        [],
        recipe=plan.recipe,
        tokenizer=plan.tokenizer,
        dtype=plan.dtype,
        inputs=(),
        receipt_files=(),
        tokenizer_files=(),
    )
    manifest = with_tables(manifest, shards=shards, units=units)
    return msgspec.structs.replace(manifest, checksum=plan.build)


class GrowingRows(Rows):
    """Rows of a store that is being built: as if there was no end to them; the settled ones can be read."""

    def __init__(
        self,
        store: StoreReader,
        packed: Rows | None,
        settled: int,
        stage: StageSettings,
        options: RowOptions,
        window: int,
    ) -> None:
        if packed is not None:
            vars(self).update(vars(stage.cut(packed)))
        self.store, self.options, self.seq_len = store, options, stage.split_to or stage.seq_len
        identity = selection_identity(options)
        pad_id = check_pad_id(options.pad_id, store)
        self.settings_fingerprint = settings_fingerprint(options, stage.seq_len, pad_id, identity)
        if stage.split_to is not None:
            check_divides(stage.seq_len, stage.split_to)
            self.settings_fingerprint = split_fingerprint(self.settings_fingerprint, stage.split_to)
        self.fingerprint = hash_value([store.manifest.checksum, self.settings_fingerprint])
        self.settled = settled * stage.seq_len // self.seq_len // window * window
        """Number of rows that can be read: whole windows, which depend on nothing behind them."""

    def __len__(self) -> int:
        return ENDLESS

    @property
    def described(self) -> dict[str, Any]:
        return {}

    def __repr__(self) -> str:
        return f"<the first {self.settled:,} rows of {self.seq_len:,} tokens of {self.store.place}>"


def _check_followable(recipe: Recipe, options: RowOptions) -> None:
    """Refuse settings that need documents not built yet, and names that the recipe does not have."""
    needs_all = {
        "shuffle_documents": options.shuffle_documents is not None,
        "best_fit without pack_window": options.packing == "best_fit" and options.pack_window is None,
        "unique": options.unique,
        "exclude": options.exclude,
    }
    if chosen := [name for name, given in needs_all.items() if given]:
        raise RecipeError(
            f"{chosen[0]} needs all documents, and the store is still being built",
            hint="wait for the build to end, and use packline.Loader; or choose what some units decide: a "
            "loader shuffles the rows, and pack_window=8 packs the documents of 8 units together",
        )
    if options.split not in (*SPLITS, "all"):
        raise RecipeError(f"split is {options.split!r}: expected one of {', '.join(SPLITS)}, all")
    choice = options.canonical()
    check_known("the recipe", "source", choice.sources, source_names(recipe))
    check_known("the recipe", "label", choice.labels, (source.label for source in recipe.sources))
