"""The folder of an export: its files, its parts, committed one by one, and the record that completes it.

    OUT/.packline/export.json          identity of the export
    OUT/.packline/parts/000000.json    commit record of a part, written after its files
    OUT/train.bin ...                  files of committed parts
    OUT/packline.json                  written last: with it the export is complete

All are created once and never changed, also by several processes that write the same export. The record has
no time and no path, so equal exports have equal records, and its own checksum (`fingerprint.seal`). Checks:

    listed      exists, a regular file, in the folder itself, of its size         `check_places`
    stray       in the folder but not listed: a trainer's glob would match it     `note_strays`
    checksums   every byte                                                        `check_export`
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, get_args

import msgspec

from packline.errors import CorruptStore, PacklineError, RecipeError
from packline.fingerprint import NotWhole, unseal
from packline.formats.types import ExportPart, NotPreserved, WrittenPart
from packline.jobs.folder import refuse_differences
from packline.jobs.receipts import READERS
from packline.jobs.work import PARTS, WorkFolder
from packline.recipe import recipe_difference
from packline.storage.local import Link, disk_errors, share_file
from packline.storage.results import EXPORT_BEGUN, WORK, unfinished_export
from packline.store.files import FileEntry, StoreFiles, reading, stat_file
from packline.store.manifest import TokenizerEntry
from packline.store.report import Findings
from packline.store.shard_check import check_file
from packline.store.writer import HashedFile
from packline.version import __version__

RECORD = "packline.json"
RECORD_VERSION = 1
TOKENIZER_FILE = "tokenizer.json"

FOLDERS = {"train": "train", "val": "val", "validation": "val", "test": "test"}
"""Names of folders of splits in an export, and their splits."""


class ExportIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides the bytes of an export: equal identities, equal files."""

    format: str
    options: dict[str, Any]
    """Options of the format, including those with default values."""
    settings: dict[str, Any]
    """Selection and order of documents or rows: fields that differ from their defaults (`source.Choice`)."""
    source: dict[str, str]
    """Checksums: `store` of the store's manifest, plus `rows` of the content of rows; for a run, `run`."""
    link: str


class ExportRecord(ExportIdentity, frozen=True, kw_only=True):
    version: int = RECORD_VERSION
    packline: str = __version__
    tokenizer: TokenizerEntry
    documents: int
    tokens: int
    """Number of tokens as in the output, after changes of boundary tokens; for rows, without padding."""
    rows: int | None = None
    seq_len: int | None = None
    lost: tuple[NotPreserved, ...] = ()
    warnings: tuple[str, ...] = ()
    shared: dict[str, int]
    """Number of bytes shared with the store: `linked`, `reflinked` or `copied`."""
    files: tuple[FileEntry, ...]
    """All files except this one, by name."""
    checksum: str = ""
    """xxh3-128 of this record's JSON form with this field empty: 32 hexadecimal digits."""

    @property
    def folders(self) -> dict[str, str]:
        """Folder of each split, such as `{"train": "train", "val": "val"}`; empty if splits have none."""
        there = {entry.name.partition("/")[0] for entry in self.files if "/" in entry.name}
        return {split: name for name, split in FOLDERS.items() if name in there}

    def train_folder(self, out: str) -> str:
        """Folder in which a trainer finds the training split of the export at `out`."""
        return "/".join([out, *list(self.folders.values())[:1]])

    @property
    def identity(self) -> ExportIdentity:
        return ExportIdentity(**{name: getattr(self, name) for name in ExportIdentity.__struct_fields__})


def read_record(folder: Path) -> ExportRecord | None:
    """The record of an export; None for a folder without one."""
    path = folder / RECORD
    if not os.path.lexists(path):
        if (folder / EXPORT_BEGUN).exists():
            raise unfinished_export(folder)
        return None
    stat_file(path, folder)
    with reading(path):
        return parse_record(path, path.read_bytes())


def parse_record(path: str | Path, data: bytes) -> ExportRecord:
    try:  # every version has this field
        version = msgspec.json.decode(data, type=_Version).version
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        version = RECORD_VERSION
    if version > RECORD_VERSION:
        raise CorruptStore(
            f"{path} has version {version}, newer than {RECORD_VERSION}", hint="update packline to read it"
        )
    try:
        return unseal(data, ExportRecord)
    except NotWhole as error:
        raise CorruptStore(
            f"{path} is damaged: {error}", hint="export again, or delete it if the files are to be trusted"
        ) from error


class _Version(msgspec.Struct):
    version: int


LEFT_BY_READERS = re.compile(
    r"(.*/)?cache-[^/]*\.arrow"  # datasets: the results of map and filter, next to the data
    r"|(.*/)?cache/.*"  # Megatron-LM: PREFIX/cache/GPTDataset_indices/...
    r"|(.*/)?\.[^/]*(/.*)?"  # hidden: no glob matches it
    r"|README[^/]*"
)


def check_places(folder: Path, record: ExportRecord, findings: Findings) -> set[str]:
    """Note listed files that are missing, outside the folder, not regular files, or of another size.

    Returns:
        Names of the listed files.
    """
    wrong = set()
    for entry in record.files:
        path = folder / entry.name
        if not os.path.lexists(path):
            findings.add(entry.name, "the file is missing", f"{entry.bytes:,} bytes", "nothing")
        else:
            try:
                if findings.compare(
                    entry.name, "size in bytes", entry.bytes, stat_file(path, folder).st_size
                ):
                    continue
            except CorruptStore as error:
                findings.add(entry.name, error.message.removeprefix("cannot read ").removeprefix(f"{path}: "))
        wrong.add(entry.name)
    return wrong


def note_strays(names: Iterable[str], record: ExportRecord, findings: Findings) -> None:
    """Note files, or folders that are links, that the record does not list."""
    listed = {entry.name for entry in record.files} | {RECORD}
    for name in names:
        if name not in listed:
            findings.add(name, "a stray file", "nothing", f"a file that {RECORD} does not list")


def check_export(folder: Path, record: ExportRecord, findings: Findings) -> bool:
    """Check all files of an export, checksums included; return True if they are unchanged."""
    before = len(findings.problems) + findings.not_listed
    wrong = check_places(folder, record, findings)
    for entry in record.files:
        if entry.name in wrong:
            findings.files += 1
        else:
            check_file(StoreFiles(folder), entry, findings)
    whole = len(findings.problems) + findings.not_listed == before
    found = (name for name in files_below(folder) if not LEFT_BY_READERS.fullmatch(name))
    note_strays(found, record, findings)
    return whole


def files_below(folder: Path) -> Iterator[str]:
    """Names of everything in a folder and its subfolders except folders, sorted; links are not followed."""
    for base, folders, files in os.walk(folder):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(base, name))]
        for name in sorted([*files, *links]):
            yield Path(base, name).relative_to(folder).as_posix()


class Target:
    """A folder to write files to, with a record of them."""

    def __init__(
        self, folder: Path, *, link: Link = "auto", on_progress: Callable[[int], None] | None = None
    ) -> None:
        if link not in get_args(Link):
            raise RecipeError(f"link is {link!r}: expected one of {', '.join(get_args(Link))}")
        self.folder, self.link = folder, link
        self.files: list[FileEntry] = []
        """Files that were entered, in that order."""
        self.shared: Counter[str] = Counter()
        """Number of bytes that were `linked`, `reflinked` or `copied`."""
        self._on_progress, self._prefix = on_progress, ""

    def within(self, prefix: str) -> Target:
        """The same target for files whose names are given without this prefix, such as `train/`."""
        inner = Target(self.folder, link=self.link, on_progress=self._on_progress)
        inner.files, inner.shared, inner._prefix = self.files, self.shared, self._prefix + prefix
        return inner

    @contextmanager
    def create(self, name: str) -> Iterator[HashedFile]:
        """Create a file to write to; it is entered when closed."""
        name = self._prefix + name
        path = self._place(name)
        with disk_errors(self.folder):
            file = HashedFile(path)
            try:
                yield file
            except BaseException:
                file.abandon()
                raise
            self.files.append(file.entry(name))

    def share(self, files: StoreFiles, entry: FileEntry, name: str) -> None:
        """Add a file with the bytes of a file of a store."""
        link = self.link if files.is_local else "copy"  # else it would be to a file of the cache
        name = self._prefix + name
        target = self._place(name)
        with disk_errors(self.folder):
            how = share_file(files.local(entry), target, link)
        self.shared[how] += entry.bytes
        self.files.append(FileEntry(name, entry.bytes, entry.checksum))

    def progress(self, tokens: int) -> None:
        if self._on_progress is not None:
            self._on_progress(tokens)

    def _place(self, name: str) -> Path:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts:
            raise PacklineError(f"a file of an export cannot be called {name!r}")
        path = self.folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # from an interrupted run; never write through a link
        return path


QUICK = 1 << 20
"""Bytes, apart from links, below which a part is not synced to disk."""


class PartReceipt(WrittenPart, frozen=True):
    """Commit record of a part whose files are on the disk."""

    files: tuple[FileEntry, ...]
    shared: dict[str, int]

    @property
    def linked_bytes(self) -> int:
        """Bytes of files that take no extra disk space."""
        return self.shared.get("linked", 0) + self.shared.get("reflinked", 0)

    @property
    def own_bytes(self) -> int:
        """Bytes of the other files."""
        return sum(entry.bytes for entry in self.files) - self.linked_bytes

    @property
    def is_quick(self) -> bool:
        """True if the part is little more than links: writing it again is faster than syncing its receipt."""
        return self.linked_bytes > 0 and self.own_bytes <= QUICK


class Staging(WorkFolder[ExportIdentity]):
    """An export in progress; unless it is shared, only one process can have it open."""

    busy, what = "another export is writing", "export of packline"

    def __init__(self, out: str | Path) -> None:
        self.out = str(out)
        super().__init__(self.out, ExportIdentity, EXPORT_BEGUN, f"{WORK}/{PARTS}", RECORD)

    def finished(self, identity: ExportIdentity) -> ExportRecord | None:
        """The record of the same export; None if it is not complete."""
        try:
            data = self.storage.read(RECORD)
        except (FileNotFoundError, NotADirectoryError):
            self.refuse_foreign(EXPORT_BEGUN, self.what)
            return None
        record = parse_record(f"{self.out}/{RECORD}", data)
        refuse_another(self.out, record.identity, identity)
        sizes = self.files()
        for entry in record.files:
            if sizes.get(entry.name) != entry.bytes:
                found = f"{sizes[entry.name]:,}" if entry.name in sizes else "nothing"
                raise CorruptStore(
                    f"{self.out}/{entry.name}: expected {entry.bytes:,} bytes, found {found}",
                    hint=f"delete {self.out} and export again",
                )
        return record

    def begin(self, identity: ExportIdentity, parts: tuple[ExportPart, ...]) -> dict[str, PartReceipt]:
        """Start, or resume an earlier run: the receipts of finished parts, by name."""
        self.resume(identity, lambda earlier: refuse_another(self.out, earlier, identity), units=len(parts))
        return self.kept(parts)

    def kept(self, parts: Sequence[ExportPart]) -> dict[str, PartReceipt]:
        """Receipts of finished parts by now, by name: those whose files are there, each of its size."""
        names = self.receipt_names()
        numbers = [number for number in range(len(parts)) if f"{number:06d}" in names]
        if not numbers:
            return {}
        sizes = self.files()
        with ThreadPoolExecutor(READERS if self.local is None else 1) as threads:  # each may be a request
            found = threads.map(lambda number: self.find_receipt(number, parts[number]), numbers)
            return {
                receipt.part.unit: receipt
                for receipt in found
                if receipt is not None
                if all(sizes.get(entry.name) == entry.bytes for entry in receipt.files)
            }

    def find_receipt(self, number: int, part: ExportPart) -> PartReceipt | None:
        try:
            data = self.storage.read(f"{self._receipts}/{number:06d}.json")
        except FileNotFoundError:
            return None
        receipt = msgspec.json.decode(data, type=PartReceipt)
        return receipt if receipt.part == part else None

    def commit(self, number: int, receipt: PartReceipt, *, shared: bool = False) -> None:
        """Publish the files of a part, then its receipt.

        Quick parts of an export that no other process writes wait for the end instead: all at once.
        """
        if receipt.is_quick and not shared and self.local is not None:
            return
        self.put(entry.name for entry in receipt.files)
        self.commit_record(f"{number:06d}", receipt)

    def put(self, names: Iterable[str]) -> None:
        """Give files of this process their names in the export, those that have not got them yet."""
        files = {name: self.tmp / name for name in names}
        self.storage.put_files({name: path for name, path in files.items() if path.exists()})

    def __exit__(self, *error: object) -> None:
        """Release the folder; nothing is left of an export that has written nothing."""
        try:
            if self.descriptor >= 0 and self.local is not None and self.alone() and not self.files():
                with contextlib.suppress(OSError):
                    self.remove_work()
                    self.path.rmdir()
        finally:
            super().__exit__(*error)


def refuse_another(place: str | Path, old: ExportIdentity, new: ExportIdentity) -> None:
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    if old.format != new.format:  # options then differ anyway
        before, after = {"format": old.format}, {"format": new.format}
    refuse_differences(
        place,
        recipe_difference(before, after),
        kind="an export",
        hint=f"choose another --out, or delete {place}",
    )
