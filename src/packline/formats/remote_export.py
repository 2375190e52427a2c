"""Export to an object store: made in a scratch folder, then put there, the record last.

    SCRATCH/export/        the whole export, as in a local folder
    URI/...                its files, created and never changed
    URI/packline.json      the record: there is no export before it

After an interruption the same export resumes: what is in the scratch folder is kept, and what is in the store
is compared by size and checksum instead of being put again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from packline.errors import StoreError
from packline.formats.export_record import RECORD, ExportIdentity, ExportRecord, read_record
from packline.formats.staging import refuse_another
from packline.jobs.work import open_results, store_work_folder
from packline.storage.local import disk_errors
from packline.storage.probe import probe
from packline.storage.protocol import Storage
from packline.store.manifest import WORK

TOGETHER = 64
"""Files that are put together."""


class RemoteExport:
    """An export at a URI.

    Args:
        place: URI of the export.
    """

    def __init__(self, place: str) -> None:
        self.place = place.rstrip("/")
        self._storage = open_results(place)
        self._work = store_work_folder(place)
        self.folder = self._work / "export"
        """Local folder in which the export is made."""

    def finished(self, identity: ExportIdentity) -> ExportRecord | None:
        """The record of the same export at the place; None if it is not complete.

        Raises:
            StoreError: there is something else.
            ResumeMismatch: there is another export; lists the differences.
        """
        try:
            data = self._storage.read(RECORD)
        except FileNotFoundError:
            self._refuse_foreign()
            probe(self._storage)
            self._work.mkdir(parents=True, exist_ok=True)
            return None
        with tempfile.TemporaryDirectory(prefix="packline-") as copy:
            Path(copy, RECORD).write_bytes(data)
            record = read_record(Path(copy))
        assert record is not None
        refuse_another(Path(self.place), record.identity, identity)
        return record

    def _refuse_foreign(self) -> None:
        """Refuse a place with files, unless an export was begun from here."""
        names = (one.name for one in self._storage.walk())
        first = next((name for name in names if not name.startswith(f"{WORK}/")), None)
        if first is not None and not self._work.exists():
            raise StoreError(
                f"{self.place} is not empty and holds no export of packline: found {first}",
                hint="choose a new or empty place for --out",
            )

    def publish(self) -> None:
        """Put all files of the local export, the record last, and remove it.

        Raises:
            StoreError: the store has a file of the same name with other bytes, or cannot be reached.
        """
        record = read_record(self.folder)
        assert record is not None
        names = [entry.name for entry in record.files if entry.name != RECORD]
        for start in range(0, len(names), TOGETHER):
            put_copies(self._storage, self.folder, names[start : start + TOGETHER], self._work)
        self._storage.delete([one.name for one in self._storage.walk(WORK)])  # of an interrupted probe
        self._storage.put_new(RECORD, (self.folder / RECORD).read_bytes())
        shutil.rmtree(self._work, ignore_errors=True)


def put_copies(storage: Storage, folder: Path, names: list[str], work: Path) -> None:
    """Put files of a folder and keep them: the storage consumes links to them."""
    with disk_errors(work), tempfile.TemporaryDirectory(prefix="uploading-", dir=work) as links:
        files: dict[str, Path] = {}
        for number, name in enumerate(names):
            path = files[name] = Path(links, str(number))
            os.link(folder / name, path)
        storage.put_files(files)
