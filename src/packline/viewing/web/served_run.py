"""A run that is served: its loader, its stores, and the steps that use a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from packline.loading.loader import Loader
from packline.loading.trace import stores_of, trace_document
from packline.store.paths import StorePath
from packline.viewing.page import Link, Value

USES = 3
"""Uses of a document that its page names."""


@dataclass(frozen=True)
class ServedRun:
    """A run file with its loader.

    Args:
        name: name for people.
        loader: loader of one rank; pages compute the others.
    """

    name: str
    loader: Loader

    @classmethod
    def open(cls, path: str | Path) -> ServedRun:
        """Open a run file and its stores.

        Raises:
            RecipeError: an invalid run file.
            StoreError: a store is missing, damaged or has no rows to give.
        """
        return cls(Path(path).name, Loader.from_file(path, prefetch=0))

    @property
    def stores(self) -> list[StorePath]:
        """Places of the stores that it reads."""
        return [store.place for store in stores_of(self.loader)]


def address(path: str, **params: str | int | None) -> str:
    """Address of a page of a run; parameters that are None are omitted."""
    chosen = {name: value for name, value in params.items() if value is not None}
    return f"{path}?{urlencode(chosen)}" if chosen else path


def uses_of(runs: Sequence[ServedRun], place: StorePath, document: int) -> tuple[tuple[str, Value], ...]:
    """Facts about the steps of each run that use a document of the store at a place."""
    facts: list[tuple[str, Value]] = []
    for order, run in enumerate(runs):
        stores = [store for store in stores_of(run.loader) if store.place == place]
        if not stores or run.loader.building:
            continue
        uses = trace_document(run.loader, document, store=stores[0])
        if not uses:
            facts.append((f"in {run.name}", "never used"))
        for use in uses[:USES]:
            href = address("/run", run=order or None, step=use.step, row=use.index)
            facts.append((f"in {run.name}", Link(f"step {use.step:,}, slot {use.index:,}", href)))
        if len(uses) > USES:
            facts.append((f"in {run.name}", f"and {len(uses) - USES:,} more times"))
    return tuple(facts)
