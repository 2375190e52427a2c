"""Events of a running job, the same for every kind of job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from packline.encoders import EngineReport
from packline.store.ledger import Ledger


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of a job, before its first unit. Each kind of job adds what it knows."""

    units: int
    """Units in all, as far as known."""
    units_done: int
    """Units committed by an earlier run of the same job."""
    workers: int
    """Number of worker processes; 0: all in this process."""
    tokens: int | None = None
    """Tokens of all units, where known in advance."""
    is_exact: bool = True
    """False if the number of units is not known yet: a compressed file is cut as it is read."""


class StorePlanned(Planned, frozen=True, kw_only=True):
    """Plan of a store: the end of its documents, and the type of its tokens."""

    files: int
    tokenizer: str
    vocab_size: int
    eod: str
    eod_id: int
    dtype: str


class BuildPlanned(StorePlanned, frozen=True, kw_only=True):
    sources: dict[str, int]
    """Expected text bytes by source."""
    sources_done: dict[str, Ledger]
    """Work of earlier runs by source."""
    seconds: float
    """Seconds since the process began."""


class ImportPlanned(StorePlanned, frozen=True, kw_only=True):
    """Plan of an import, or of a build of conversations."""

    format: str
    bytes: int
    documents: int | None
    """Number of documents, as far as headers declare it."""
    edges: str
    """Boundary tokens that documents have in the files."""


class SourceReuse(msgspec.Struct):
    source: str
    units: int = 0
    """Units that are taken over."""
    text_bytes: int = 0
    """Expected text bytes of these units."""
    run: dict[str, int] = msgspec.field(default_factory=dict)
    """Units that are run, as far as known, by the reason why they are not taken over."""


class ReusePlanned(msgspec.Struct, frozen=True):
    """Units that a build takes over from an earlier store, before it does.

    Those that turn out to be damaged are moved to the ones that are run.
    """

    store: str
    """Folder of the earlier store."""
    sources: list[SourceReuse]
    read_bytes: int
    """Bytes of inputs that were read to compare their content, not to encode it."""
    damaged: list[str] = []
    """Receipts of the earlier store that cannot be used."""

    @property
    def units(self) -> int:
        return sum(source.units for source in self.sources)

    @property
    def units_run(self) -> int:
        return sum(count for source in self.sources for count in source.run.values())


class Comparing(msgspec.Struct, frozen=True):
    """Inputs that were touched are compared with what a store, or an unfinished build, has read of them."""

    files: int
    bytes: int
    """Their size."""
    fraction: float
    """Completed fraction."""


class EnginesTried(msgspec.Struct, frozen=True):
    """Engines available for the build, with the reasons."""

    reports: list[EngineReport]
    used: list[str]
    reason: str


class Progress(msgspec.Struct, frozen=True):
    """Progress of one worker over a few hundred milliseconds."""

    source: str
    documents: int
    text_bytes: int
    tokens: int


class UnitsKnown(msgspec.Struct, frozen=True):
    """The number of units is another one by now, after what was read of compressed files."""

    units: int
    is_exact: bool


class UnitDone(msgspec.Struct, frozen=True):
    """A unit was committed."""

    unit: str
    documents: int = 0
    tokens: int = 0
    rates: dict[str, dict[str, float]] = {}
    """MB/s at the end of the unit, by script and engine."""


class Note(msgspec.Struct, frozen=True):
    """A notice that does not stop the build."""

    text: str


class Finished(msgspec.Struct, frozen=True):
    """The store is published."""

    ledger: Ledger
    sources: dict[str, Ledger]
    shards: int
    units: int
    store_bytes: int
    seconds: float
    first_unit_seconds: float
    """Time from the start of the process to the first unit's encoding."""
    tokenizer_seconds: float
    run_text_bytes: int
    """Text bytes encoded by this run, without units of earlier runs."""
    peak_rss_bytes: int
    """Peak resident memory of the largest worker."""
    engine_bytes: dict[str, int]
    """Text bytes encoded, by engine."""
    nothing_to_do: bool = False
    warnings: list[str] = []
    """Results that were probably not intended: splits without documents."""


Event = Planned | Comparing | UnitsKnown | ReusePlanned | EnginesTried | Progress | UnitDone | Note | Finished
OnEvent = Callable[[Event], None]
OnResult = Callable[[str, Any], None]
"""Called with the name of a unit and a result after its commit."""
