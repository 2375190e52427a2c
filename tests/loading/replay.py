"""A build played again: the units of a finished store committed into another folder, in any order."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from types import TracebackType

import msgspec

from packline.facade import Store
from packline.jobs.plan import Plan, Unit, record_plan
from packline.jobs.receipts import CommittedReceipts, Publisher
from packline.loading.state import build_identity
from packline.storage.local import LocalFolder
from packline.storage.results import WORK
from packline.store.manifest import MANIFEST, Receipt
from packline.store.naming import STREAM, parse_unit, planned_name


class Replay:
    """A build that commits a unit whenever the test asks for it; it holds the lock meanwhile.

    Args:
        store: the finished store.
        folder: where it is built again.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder = store, folder
        names, sources = store.manifest.units.names("unit"), store.manifest.units.names("source")
        order = {name: number for number, name in enumerate(store.manifest.sources)}
        known = []
        for unit, source in zip(names, sources, strict=True):
            name = parse_unit(unit.removesuffix(STREAM))
            assert name is not None
            known.append((order[source], name.place, unit, source))
        known.sort()
        self.receipts = [unit for _, _, unit, _ in known]
        """Names of all receipts, those of streams included."""
        planned = {planned_name(unit.removesuffix(STREAM)): (source, False) for _, _, unit, source in known}
        for _, _, unit, source in known:
            if unit.endswith(STREAM):
                planned[unit.removesuffix(STREAM)] = (source, True)
        self.units = [
            Unit(name, number, order[source], slice_bytes=int(stream))
            for number, (name, (source, stream)) in enumerate(planned.items())
        ]
        """Planned units; their spans are not needed."""
        self._lock = -1
        self._plan: Plan | None = None

    def begin(self) -> None:
        """Write the records of a build, and take its lock."""
        (self.folder / WORK).mkdir(parents=True)
        (self.folder / "receipts").mkdir()
        manifest = self.store.manifest
        begun = Plan(
            build=build_identity(manifest),
            recipe=manifest.recipe,
            tokenizer=msgspec.structs.replace(manifest.tokenizer, round_trip=""),
            dtype=manifest.dtype,
            units=self.units,
        )
        self._plan = record_plan(LocalFolder(self.folder), begun)
        self.resume()

    def resume(self) -> None:
        """Take the lock, as another process that goes on with the build."""
        self._lock = os.open(self.folder / WORK / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.publisher()

    def publisher(self) -> None:
        """Let another process publish from now on: it knows what is committed, and not what is published."""
        assert self._plan is not None
        storage = LocalFolder(self.folder)
        self._committed = CommittedReceipts(storage)
        self._publisher = Publisher(storage, self._plan, self._committed)

    def stop(self) -> None:
        """Release the lock, as a process does that ends."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def publish(self) -> None:
        """Publish what is committed."""
        self._committed.refresh()
        self._publisher.publish()

    def commit(self, name: str, *, publish: bool = True) -> None:
        """Commit a unit: its files, then its receipt; then publish it, if it follows what is published."""
        if not name.endswith(STREAM):
            data = (self.store.path / "receipts" / f"{name}.json").read_bytes()
            for shard in msgspec.json.decode(data, type=Receipt).shards:
                for file in shard.files:
                    os.link(self.store.path / file.name, self.folder / file.name)
        target = self.folder / "receipts" / f"{name}.json"
        shutil.copy(self.store.path / "receipts" / f"{name}.json", target.with_suffix(".tmp"))
        target.with_suffix(".tmp").rename(target)
        if publish:
            self.publish()

    def finish(self) -> None:
        """Publish the store."""
        for path in self.store.path.iterdir():
            if path.is_file() and path.name != MANIFEST and not (self.folder / path.name).exists():
                shutil.copy(path, self.folder / path.name)
        if not (self.folder / "tokenizer").exists():
            shutil.copytree(self.store.path / "tokenizer", self.folder / "tokenizer")
        shutil.copy(self.store.path / MANIFEST, self.folder / MANIFEST)
        self.stop()
        shutil.rmtree(self.folder / WORK)

    def events(self, order: Iterable[str], then: Iterable[str] = ()) -> Iterable[None]:
        """Begin, commit the units in this order, and finish, one step each.

        Args:
            then: for each unit, whether it is published "at once", "later" or "by another process".
        """
        self.begin()
        yield
        for name, how in zip_longest(order, then, fillvalue="at once"):
            if how == "by another process":
                self.publisher()
            self.commit(name, publish=how != "later")
            yield
        self.finish()
        yield

    def __enter__(self) -> Replay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
