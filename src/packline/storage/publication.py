"""A result at a place: files, each created once under its final name, and a record that is written last.

A run that is killed leaves files without a record, which nobody takes for a result: the same command writes
what is missing. What is unfinished lies below `.packline`, which a complete result does not have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from packline.errors import PacklineError, StoreError, StoreNotFound
from packline.storage.places import is_hidden
from packline.storage.protocol import Storage

WORK = ".packline"
"""Folder of an unfinished result: records of its job and, in a local folder, unfinished files."""
BUILD_BEGUN, EXPORT_BEGUN = f"{WORK}/build.json", f"{WORK}/export.json"
"""Names of the identities of jobs that have begun."""


def unfinished_export(place: object) -> StoreNotFound:
    """Error for a place where an export has begun, and is not complete."""
    return StoreNotFound(
        f"{place} holds an export that has not finished", hint="run its command again to resume it"
    )


class Publication:
    """Files of a result, and the record that completes it."""

    def __init__(self, storage: Storage, record: str) -> None:
        self.storage, self.record = storage, record

    def is_complete(self) -> bool:
        """True if the record is there."""
        return self.storage.facts(self.record) is not None

    def files(self) -> dict[str, int]:
        """Sizes of all files by name, unfinished ones left out."""
        return {one.name: one.size for one in self.storage.walk() if not one.name.startswith(f"{WORK}/")}

    def refuse_foreign(self, begun: str, what: str) -> None:
        """Refuse a place that has files, but neither the record nor anything of a job which began here."""
        if self.is_complete() or self.storage.facts(begun) is not None:
            return
        for name, kind in ((BUILD_BEGUN, "build"), (EXPORT_BEGUN, "export")):
            if self.storage.facts(name) is not None:
                raise StoreError(
                    f"{self.storage.place} holds an unfinished {kind}, and no {what}",
                    hint="run its command again to resume it, or choose another --out",
                )
        if next(iter(self.storage.walk(WORK)), None) is not None:
            return
        others = (one.name for one in self.storage.walk() if not one.name.startswith(f"{WORK}/"))
        if (found := next(others, None)) is not None and not self.is_complete():  # by now, by another process
            raise StoreError(
                f"{self.storage.place} is not empty and holds no {what}: found {found}",
                hint="choose a new or empty folder for --out",
            )

    def publish(self, files: Mapping[str, bytes], listed: Iterable[str] | None = None) -> None:
        """Create small files in their order, of which the last is the record.

        Args:
            listed: names of all files that must be there, and no others; None: not compared.
        """
        if list(files)[-1] != self.record:
            raise PacklineError(f"expected {self.record} last, found {list(files)[-1]}")
        if listed is not None:
            names = list(listed)
            wrong = {name for name in self.files() if not is_hidden(name)}
            wrong = wrong.symmetric_difference(names) - {*files}
            wrong |= {name for name, count in Counter(names).items() if count > 1}
            if wrong:
                place, name = self.storage.place, min(wrong)
                raise PacklineError(f"{place}: expected every file to be listed once, found {name!r} is not")
        for name, data in files.items():
            self.storage.put_new(name, data)

    def clear(self, names: Iterable[str]) -> None:
        """Delete the record first, then files: half a result is never taken for a whole one."""
        self.storage.delete([self.record])
        self.storage.delete(names)
