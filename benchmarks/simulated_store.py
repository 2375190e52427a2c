"""The object store of the simulation: packline's own code of commits over a store in memory, with faults.

`SimulatedStore` is an `ObjectFolder` whose client is obstore's store in memory. Its puts take simulated time,
may lose their reply or be refused, and end in the middle when the node that puts is lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from packline.fingerprint import hash_bytes
from packline.jobs.folder import StoreFolder
from packline.jobs.plan import Unit
from packline.jobs.receipts import CommittedReceipts
from packline.recipe import Recipe, Source
from packline.storage.clients import obstore
from packline.storage.objects import ObjectFolder
from packline.store.files import FileEntry
from packline.store.ledger import Ledger
from packline.store.manifest import Manifest, Receipt, TokenizerEntry, assemble
from packline.store.tables import ShardEntry

ENDINGS = (".bin", ".idx", ".docs.parquet", ".sums")
SOURCE = "simulated"
RECIPE = Recipe(sources=(Source(inputs=("*.txt",), name=SOURCE),), tokenizer="none")
TOKENIZER = TokenizerEntry(
    name="none",
    kind="huggingface",
    fingerprint="0" * 32,
    vocab_size=2,
    eod_id=0,
    eod="</s>",
    bos_id=None,
    bos=None,
    round_trip="exact",
)


class NodeLost(Exception):
    """The node was lost before its put."""


class _Memory:
    """Clients of a store in memory; see `storage.clients.Clients`."""

    scheme = "s3"

    def __init__(self) -> None:
        from obstore.store import MemoryStore

        self._store = MemoryStore()

    def client(self, size: int | None = None) -> Any:
        return self._store


class SimulatedStore(ObjectFolder):
    """See the module.

    Args:
        chances: source of all chances.
        lost_replies: share of puts that succeed without an answer.
        refusals: share of puts that write nothing: by 503, or by a conflict that is none.
        put_seconds: median time of a put.
    """

    def __init__(
        self, chances: random.Random, lost_replies: float, refusals: float, put_seconds: float
    ) -> None:
        super().__init__("s3://simulated/store")
        self._clients: Any = _Memory()
        self._chances, self._lost, self._refused = chances, lost_replies, refusals
        self._median = put_seconds
        self._reached = True
        self.clock = 0.0
        self._ends = float("inf")
        self.puts = self.same = 0

    def committing(self, now: float, ends: float, commit: Callable[[], None]) -> bool:
        """Run a commit that begins now; False if its node is lost before the end.

        `clock` is the simulated time after it.
        """
        self.clock, self._ends = now, ends
        try:
            commit()
        except NodeLost:
            return False
        finally:
            self._ends = float("inf")
        return True

    def put_files(self, files: Mapping[str, Path]) -> None:
        """Put all files of a unit at once: they take as long as the slowest, and may arrive in any order."""
        names = list(files)
        self._chances.shuffle(names)
        begun, latest = self.clock, self.clock
        for name in names:
            self.clock = begun
            self.put_new(name, content(name))
            latest = max(latest, self.clock)
        self.clock = latest

    def put_new(self, name: str, data: bytes) -> bool:
        """See `Storage.put_new`; takes simulated time."""
        self.clock += self._median * self._chances.lognormvariate(0.0, 1.0)
        if self.clock >= self._ends:
            raise NodeLost
        self.puts += 1
        created = super().put_new(name, data)
        self.same += not created
        return created

    def _put(self, name: str, data: bytes | memoryview, checksum: str) -> None:
        errors, chance = obstore().exceptions, self._chances.random()
        if chance < self._refused / 2:
            raise errors.GenericError("status code: 503")
        if chance < self._refused:
            raise errors.AlreadyExistsError
        super()._put(name, data, checksum)
        if chance > 1 - self._lost:
            raise errors.GenericError("HTTP error: the reply was lost")


class SimulatedFolder(StoreFolder):
    """The folder of a build, whose storage is simulated and whose units have no files on a disk."""

    storage: SimulatedStore

    def __init__(self, storage: SimulatedStore, scratch: Path) -> None:
        super().__init__(scratch)
        self.storage, self.place, self.work = storage, storage.place, scratch
        self.local = None  # like an object store
        self._tmp = super().tmp

    @property
    def tmp(self) -> Path:
        """The same folder for all units, looked up once."""
        return self._tmp

    def manifest(self, committed: CommittedReceipts) -> Manifest:
        """Manifest of the committed units."""
        names = sorted(committed.receipts)
        return assemble(
            [committed.receipts[name] for name in names],
            recipe=RECIPE,
            tokenizer=TOKENIZER,
            dtype="uint16",
            inputs=(),
            receipt_files=committed.entries(names),
            tokenizer_files=(),
        )


def content(name: str) -> bytes:
    """Bytes of a file: a function of its name, as a unit's are of the inputs."""
    return name.encode()


def expected_tokens(number: int) -> int:
    """Tokens of a unit."""
    return 1000 + number % 97


def receipt_of(unit: Unit) -> Receipt:
    """Receipt of a unit: the same whoever runs it."""
    name, tokens = f"train-{unit.name}", expected_tokens(int(unit.name))
    entries = []
    for ending in ENDINGS:
        data = content(f"{name}{ending}")
        entries.append(FileEntry(f"{name}{ending}", len(data), hash_bytes(data)))
    ledger = Ledger(documents_in=1, documents=1, tokens=tokens, text_tokens=tokens - 1, eod_tokens=1)
    shard = ShardEntry(name, "train", 1, tokens, tuple(entries))
    return Receipt(
        unit=unit.name, source=SOURCE, inputs=(), shards=(shard,), rejects=(), ledger=ledger, audited=0
    )
